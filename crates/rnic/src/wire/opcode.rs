//! Opcodes: the kinds of packets. The opcode determines which headers a packet has.

use super::WireError;

/// The kind of a packet. Opcodes whose upper three bits are zero belong to reliable connections; the other opcodes are
/// Halite's extensions.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Opcode {
    /// The first of several packets of a send.
    SendFirst = 0,
    /// A middle packet of a send.
    SendMiddle,
    /// The last packet of a send.
    SendLast,
    /// The last packet of a send, with an immediate.
    SendLastImm,
    /// The only packet of a send.
    SendOnly,
    /// The only packet of a send, with an immediate.
    SendOnlyImm,
    /// The first of several packets of a write, with the target address.
    WriteFirst,
    /// A middle packet of a write.
    WriteMiddle,
    /// The last packet of a write.
    WriteLast,
    /// The last packet of a write, with an immediate.
    WriteLastImm,
    /// The only packet of a write, with the target address.
    WriteOnly,
    /// The only packet of a write, with the target address and an immediate.
    WriteOnlyImm,
    /// Requests a read.
    ReadRequest,
    /// The first of several packets of a read response.
    ReadResponseFirst,
    /// A middle packet of a read response.
    ReadResponseMiddle,
    /// The last packet of a read response.
    ReadResponseLast,
    /// The only packet of a read response.
    ReadResponseOnly,
    /// Acknowledges all packets up to the number of this packet, or reports a NAK.
    Acknowledge,
    /// The response to an atomic.
    AtomicAcknowledge,
    /// Requests a compare-swap: replaces a word if it equals an expected value.
    CompareSwap,
    /// Requests a fetch-add: adds to a word.
    FetchAdd,
    /// Reports a missing packet, and the later packets that the responder keeps. This opcode and the following opcodes
    /// are extensions between Halite peers.
    Missing = 0xc0,
    /// Tests whether the network delivers packets of a given size.
    Probe = 0xd0,
    /// Answers a probe.
    ProbeAnswer,
    /// A part of a packet longer than the path MTU.
    Part,
}

const ALL: [Opcode; 21] = [
    Opcode::SendFirst,
    Opcode::SendMiddle,
    Opcode::SendLast,
    Opcode::SendLastImm,
    Opcode::SendOnly,
    Opcode::SendOnlyImm,
    Opcode::WriteFirst,
    Opcode::WriteMiddle,
    Opcode::WriteLast,
    Opcode::WriteLastImm,
    Opcode::WriteOnly,
    Opcode::WriteOnlyImm,
    Opcode::ReadRequest,
    Opcode::ReadResponseFirst,
    Opcode::ReadResponseMiddle,
    Opcode::ReadResponseLast,
    Opcode::ReadResponseOnly,
    Opcode::Acknowledge,
    Opcode::AtomicAcknowledge,
    Opcode::CompareSwap,
    Opcode::FetchAdd,
];

/// The transport or extension to which an opcode belongs. The InfiniBand architecture leaves the upper quarter of the
/// opcodes to manufacturers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Range {
    /// Reliable connection, 0x00 to 0x1f.
    ReliableConnection,
    /// Selective repeat: 0xc0 to 0xcf.
    SelectiveRepeat,
    /// Path MTU discovery and packets sent in parts: 0xd0 to 0xdf.
    Path,
    /// Packets of the [stateless responder](crate::stateless): 0xe0 to 0xff.
    Stateless,
    /// Other transports of the InfiniBand architecture, which Halite does not support.
    Other,
}

impl Range {
    /// Returns the range to which the opcode with this byte belongs.
    // [ROCE-OP-2]
    pub fn of(opcode: u8) -> Range {
        match opcode >> 4 {
            0x0 | 0x1 => Range::ReliableConnection,
            0xc => Range::SelectiveRepeat,
            0xd => Range::Path,
            0xe | 0xf => Range::Stateless,
            _ => Range::Other,
        }
    }
}

impl Opcode {
    /// Parses the byte that encodes the opcode.
    // [ROCE-OP-1]
    pub fn parse(byte: u8) -> Result<Opcode, WireError> {
        match byte {
            0xc0 => Ok(Opcode::Missing),
            0xd0 => Ok(Opcode::Probe),
            0xd1 => Ok(Opcode::ProbeAnswer),
            0xd2 => Ok(Opcode::Part),
            _ => ALL.get(usize::from(byte)).copied().ok_or(WireError::Opcode(byte)),
        }
    }

    /// Returns true for a response, which the requester handles. The responder handles all other packets.
    pub fn is_response(self) -> bool {
        self == Opcode::Missing
            || (Opcode::ReadResponseFirst as u8..=Opcode::AtomicAcknowledge as u8).contains(&(self as u8))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opcodes_have_the_values_of_the_architecture() {
        for byte in 0..=255 {
            match Opcode::parse(byte) {
                Ok(opcode) => assert_eq!(opcode as u8, byte),
                Err(error) => {
                    let is_ours = byte == 0xc0 || (0xd0..0xd3).contains(&byte);
                    assert!(byte > 20 && !is_ours && error == WireError::Opcode(byte));
                }
            }
        }
        let known = [(Opcode::WriteOnlyImm, 0x0b), (Opcode::ReadRequest, 0x0c), (Opcode::Acknowledge, 0x11)];
        assert!(known.into_iter().all(|(opcode, byte)| opcode as u8 == byte));
        assert_eq!(Opcode::FetchAdd as u8, 0x14);
    }
}
