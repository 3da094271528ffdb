//! The acknowledge extended transport header (AETH): the outcome of a request, and the number of completed messages.
//!
//! ```text
//!   0            1
//!  | syndrome   | msn u24 |      syndrome: 000 credit 5, 001 timer 5, or 011 code 5
//! ```

use super::{WireError, header, put_u24, u24};

/// Length of the header in bytes.
pub const AETH_BYTES: usize = 4;

/// The header's fields.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AethRepr {
    /// The outcome of the request.
    pub syndrome: Syndrome,
    /// Number of messages that the responder has completed, modulo 2^24. If both ends have negotiated reports of
    /// waits, the field contains instead the time that the request waited at the responder; see
    /// [`AethRepr::waited_ns`].
    pub msn: u32,
}

/// Unit in which waits are encoded, in ns: 24 bits then cover 1.07 s.
const WAIT_UNIT_NS: u64 = 64;
const MSN_MAX: u64 = 0xff_ffff;

impl AethRepr {
    /// Returns the time in ns that the request waited at the responder. Valid only if both ends have negotiated that
    /// `msn` contains this time.
    // [ROCE-CC-3]
    pub fn waited_ns(&self) -> u64 {
        u64::from(self.msn) * WAIT_UNIT_NS
    }

    /// Encodes the time in ns that a request waited at the responder as the 24 bits of [`AethRepr::msn`], rounded down
    /// and saturated.
    pub fn msn_of_wait(waited_ns: u64) -> u32 {
        (waited_ns / WAIT_UNIT_NS).min(MSN_MAX) as u32
    }
}

/// The outcome of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Syndrome {
    /// Acknowledgement: all packets up to and including this one have been executed.
    Ack(Credit),
    /// Receiver not ready: all packets before this one have been executed. This packet found no posted receive; the
    /// requester must retry when the timer expires.
    RnrNak(RnrTimer),
    /// Negative acknowledgement: all packets before this one have been executed, and the responder refused this one.
    Nak(Nak),
}

/// The reason why the responder refused a packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Nak {
    /// The packet with this number is missing. The requester must retransmit the missing packet.
    Sequence = 0,
    /// The packet is invalid: for example, it has a wrong length, or it continues a message that has not begun.
    InvalidRequest = 1,
    /// The key does not permit the access, or does not cover the range.
    RemoteAccess = 2,
    /// The responder failed to execute the request.
    RemoteOperation = 3,
}

/// Number of packets that the requester may still send: one of 31 steps, or unlimited.
///
/// In the InfiniBand architecture, a credit counts messages that consume a receive. Between Halite peers, a credit
/// counts packets after the acknowledged one: it is the receiver's grant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Credit(u8);

/// The time before a retry: one of 32 steps from 10 us to 655 ms.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RnrTimer(u8);

/// The steps: 0, 1, 2, 3, then each power of two and the midpoint to the next.
const CREDITS: [u32; 31] = [
    0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072,
    4096, 6144, 8192, 12288, 16384, 24576, 32768,
];

/// The architecture's RNR NAK timers, in units of 10 us.
const RNR_10_US: [u32; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
    3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

impl Credit {
    /// No limit on the number of packets.
    pub const UNLIMITED: Credit = Credit(31);

    /// Returns the largest credit of at most `packets` packets.
    // [ROCE-AETH-2]
    pub fn at_most(packets: u32) -> Credit {
        Credit((CREDITS.partition_point(|step| *step <= packets) - 1) as u8)
    }

    /// Returns the credit in packets; `None` if unlimited.
    pub fn packets(self) -> Option<u32> {
        CREDITS.get(usize::from(self.0)).copied()
    }
}

impl RnrTimer {
    /// Returns the shortest timer of at least `nanoseconds`, or the longest timer if all are shorter.
    pub fn at_least(nanoseconds: u64) -> RnrTimer {
        let step = RNR_10_US[1..].iter().position(|step| u64::from(*step) * 10_000 >= nanoseconds);
        RnrTimer(step.map_or(0, |index| index as u8 + 1))
    }

    /// Returns the time before the retry, in ns.
    pub fn nanoseconds(self) -> u64 {
        u64::from(RNR_10_US[usize::from(self.0)]) * 10_000
    }
}

impl Syndrome {
    /// Parses the byte that encodes the syndrome.
    pub fn parse(byte: u8) -> Result<Syndrome, WireError> {
        let low = byte & 31;
        match byte >> 5 {
            0b000 => Ok(Syndrome::Ack(Credit(low))),
            0b001 => Ok(Syndrome::RnrNak(RnrTimer(low))),
            0b011 => match low {
                0 => Ok(Syndrome::Nak(Nak::Sequence)),
                1 => Ok(Syndrome::Nak(Nak::InvalidRequest)),
                2 => Ok(Syndrome::Nak(Nak::RemoteAccess)),
                3 => Ok(Syndrome::Nak(Nak::RemoteOperation)),
                _ => Err(WireError::Syndrome(byte)),
            },
            _ => Err(WireError::Syndrome(byte)),
        }
    }

    /// Returns the byte that encodes the syndrome.
    // [ROCE-AETH-1]
    pub fn byte(self) -> u8 {
        match self {
            Syndrome::Ack(Credit(step)) => step,
            Syndrome::RnrNak(RnrTimer(step)) => 0b001 << 5 | step,
            Syndrome::Nak(nak) => 0b011 << 5 | nak as u8,
        }
    }
}

impl AethRepr {
    /// Parses the header at the start of `bytes`. Fails if `bytes` is shorter than the header, or if the syndrome is
    /// unknown.
    pub fn parse(bytes: &[u8]) -> Result<AethRepr, WireError> {
        let bytes = header::<AETH_BYTES>(bytes)?;
        Ok(AethRepr { syndrome: Syndrome::parse(bytes[0])?, msn: u24(&bytes[1..]) })
    }

    /// Writes the header to the start of `buffer`.
    pub fn emit(&self, buffer: &mut [u8]) {
        buffer[0] = self.syndrome.byte();
        put_u24(&mut buffer[1..], self.msn);
    }
}
