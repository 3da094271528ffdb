//! Opcodes: what a packet is, and which headers it has therefore.

use super::WireError;

/// The opcodes of reliable connections, whose upper three bits are zero; and of our own extensions.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Opcode {
    /// The first of several packets of a message.
    SendFirst = 0,
    /// Neither the first nor the last.
    SendMiddle,
    /// The last.
    SendLast,
    /// The last, with an immediate.
    SendLastImm,
    /// The only one.
    SendOnly,
    /// The only one, with an immediate.
    SendOnlyImm,
    /// The first of several packets of a write, which says where to.
    WriteFirst,
    /// Neither the first nor the last.
    WriteMiddle,
    /// The last.
    WriteLast,
    /// The last, with an immediate.
    WriteLastImm,
    /// The only one.
    WriteOnly,
    /// The only one, with an immediate.
    WriteOnlyImm,
    /// Asks for bytes.
    ReadRequest,
    /// The first of several packets of the answer.
    ReadResponseFirst,
    /// Neither the first nor the last.
    ReadResponseMiddle,
    /// The last.
    ReadResponseLast,
    /// The only one.
    ReadResponseOnly,
    /// All up to this one has arrived, or one of the refusals.
    Acknowledge,
    /// The answer to an atomic.
    AtomicAcknowledge,
    /// Replaces a word if it has a certain value.
    CompareSwap,
    /// Adds to a word.
    FetchAdd,
    /// All before this one has been carried out, and of those behind it some have been kept; between our own ends only, as what follows.
    Missing = 0xc0,
    /// Whether a packet of this size comes through.
    Probe = 0xd0,
    /// One of this size has come through.
    ProbeAnswer,
    /// A part of a packet that would not come through.
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

/// Whose an opcode is.  The architecture leaves the upper quarter to manufacturers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Range {
    /// Reliable connection, 0x00 to 0x1f.
    ReliableConnection,
    /// What says which single packets are missing: 0xc0 to 0xcf.
    SelectiveRepeat,
    /// What finds out how long a packet comes through, and cuts those that do not: 0xd0 to 0xdf.
    Path,
    /// Kept for a responder without connections: 0xe0 to 0xff.
    Stateless,
    /// Other transports of the architecture, none of which is spoken here.
    Other,
}

impl Range {
    /// In which range an opcode is.
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
    /// What `byte` stands for.
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

    /// Whether it answers a request, and so is for the requester.
    pub fn is_response(self) -> bool {
        self == Opcode::Missing
            || (Opcode::ReadResponseFirst as u8..=Opcode::AtomicAcknowledge as u8).contains(&(self as u8))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_opcode_is_where_the_architecture_has_it() {
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

    #[test]
    fn extensions_have_the_manufacturers_range() {
        assert_eq!(Range::of(0x1f), Range::ReliableConnection);
        assert_eq!(Range::of(0x20), Range::Other);
        assert_eq!(Range::of(Opcode::Missing as u8), Range::SelectiveRepeat);
        assert_eq!(Range::of(0xcf), Range::SelectiveRepeat);
        assert_eq!(Range::of(Opcode::Part as u8), Range::Path);
        assert_eq!(Range::of(0xff), Range::Stateless);
    }
}
