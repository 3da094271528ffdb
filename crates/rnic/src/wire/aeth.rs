//! The acknowledge extended transport header: how it went, and how many messages there were.
//!
//! ```text
//!   0            1
//!  | syndrome   | msn u24 |      syndrome: 000 credit 5, 001 timer 5, or 011 code 5
//! ```

use super::{WireError, checked, put_u24, u24};

/// Its length.
pub const AETH_BYTES: usize = 4;

/// A view over its bytes.
#[derive(Clone, Copy, Debug)]
pub struct Aeth<T: AsRef<[u8]>> {
    buffer: T,
}

/// What it says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AethRepr {
    /// How it went.
    pub syndrome: Syndrome,
    /// How many messages the responder has completed, in 24 bits; or how long what it answers has waited, see [`AethRepr::waited_ns`].
    pub msn: u32,
}

/// What a wait is told in: all 24 bits are a second.
const WAIT_UNIT_NS: u64 = 64;
const MSN_MAX: u64 = 0xff_ffff;

impl AethRepr {
    /// How long what is answered has waited at the responder, where ends have agreed on telling that in place of messages.
    // [ROCE-CC-3]
    pub fn waited_ns(&self) -> u64 {
        u64::from(self.msn) * WAIT_UNIT_NS
    }

    /// The 24 bits that tell a wait, or the longest that there is.
    pub fn msn_of_wait(waited_ns: u64) -> u32 {
        (waited_ns / WAIT_UNIT_NS).min(MSN_MAX) as u32
    }
}

/// How it went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Syndrome {
    /// All up to this packet is done.
    Ack(Credit),
    /// All before this packet is done, and there is no room for what it brings: try again when the time is over.
    RnrNak(RnrTimer),
    /// All before this packet is done, and this one is refused.
    Nak(Nak),
}

/// Why a packet is refused for good, or is to be sent again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Nak {
    /// This is the packet that is missing.
    Sequence = 0,
    /// It makes no sense where it stands.
    InvalidRequest = 1,
    /// The key or range is not one that may be used so.
    RemoteAccess = 2,
    /// The responder failed.
    RemoteOperation = 3,
}

/// How much more may be sent, as one of 31 steps; the 32nd sets no limit.
///
/// The architecture counts messages that take a receive.  Between our own ends it counts packets behind the one that is
/// acknowledged: the receiver's grant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Credit(u8);

/// How long to wait before trying again, as one of 32 steps from 10 us to 655 ms.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RnrTimer(u8);

/// 0, 1, 2, 3, and then each power of two with the step half way to the next.
const CREDITS: [u32; 31] = [
    0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072,
    4096, 6144, 8192, 12288, 16384, 24576, 32768,
];

/// In units of 10 us, as the architecture's table of RNR NAK timers has them.
const RNR_10_US: [u32; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
    3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

impl Credit {
    /// No limit by this means.
    pub const UNLIMITED: Credit = Credit(31);

    /// The largest step of at most `packets`.
    // [ROCE-AETH-2]
    pub fn at_most(packets: u32) -> Credit {
        Credit((CREDITS.partition_point(|step| *step <= packets) - 1) as u8)
    }

    /// How many; `None` where there is no limit.
    pub fn packets(self) -> Option<u32> {
        CREDITS.get(usize::from(self.0)).copied()
    }
}

impl RnrTimer {
    /// The shortest step of at least `nanoseconds`, or the longest of all.
    pub fn at_least(nanoseconds: u64) -> RnrTimer {
        let step = RNR_10_US[1..].iter().position(|step| u64::from(*step) * 10_000 >= nanoseconds);
        RnrTimer(step.map_or(0, |index| index as u8 + 1))
    }

    /// How long.
    pub fn nanoseconds(self) -> u64 {
        u64::from(RNR_10_US[usize::from(self.0)]) * 10_000
    }
}

impl Syndrome {
    /// What `byte` stands for.
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

    /// Its byte.
    // [ROCE-AETH-1]
    pub fn byte(self) -> u8 {
        match self {
            Syndrome::Ack(Credit(step)) => step,
            Syndrome::RnrNak(RnrTimer(step)) => 0b001 << 5 | step,
            Syndrome::Nak(nak) => 0b011 << 5 | nak as u8,
        }
    }
}

impl<T: AsRef<[u8]>> Aeth<T> {
    /// A view of what is long enough.
    pub fn new_checked(buffer: T) -> Result<Aeth<T>, WireError> {
        Ok(Aeth { buffer: checked::<AETH_BYTES, T>(buffer)? })
    }

    /// The syndrome's byte.
    pub fn syndrome(&self) -> u8 {
        self.buffer.as_ref()[0]
    }

    /// The number of messages.
    pub fn msn(&self) -> u32 {
        u24(&self.buffer.as_ref()[1..])
    }
}

impl AethRepr {
    /// What the header says, if that has a meaning.
    pub fn parse<T: AsRef<[u8]>>(aeth: &Aeth<T>) -> Result<AethRepr, WireError> {
        Ok(AethRepr { syndrome: Syndrome::parse(aeth.syndrome())?, msn: aeth.msn() })
    }

    /// Writes the header to the start of `buffer`.
    pub fn emit(&self, buffer: &mut [u8]) {
        buffer[0] = self.syndrome.byte();
        put_u24(&mut buffer[1..], self.msn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credits_are_granted_in_steps_and_never_more_than_meant() {
        let granted = |packets| Credit::at_most(packets).packets();
        assert_eq!([0, 1, 5, 25, 32768, u32::MAX].map(granted), [0, 1, 4, 24, 32768, 32768].map(Some));
        assert_eq!(Credit::UNLIMITED.packets(), None);
    }

    #[test]
    fn timers_wait_at_least_as_long_as_meant() {
        let waits = |ns| RnrTimer::at_least(ns).nanoseconds();
        assert_eq!(
            [1, 10_001, 491_520_000, 491_520_001].map(waits),
            [10_000, 20_000, 491_520_000, 655_360_000]
        );
    }

    #[test]
    fn a_wait_is_told_within_64_ns_and_up_to_a_second() {
        for waited_ns in [0, 63, 64, 5_000_000, 1_000_000_000, u64::MAX] {
            let aeth = AethRepr {
                syndrome: Syndrome::Ack(Credit::UNLIMITED),
                msn: AethRepr::msn_of_wait(waited_ns),
            };
            let most = waited_ns.min(0xff_ffff * 64);
            assert!(aeth.waited_ns() <= most && most < aeth.waited_ns() + 64, "{waited_ns}: {aeth:?}");
        }
    }

    #[test]
    fn a_syndrome_is_its_byte_or_nothing() {
        let meanings = (0..=255).filter(|byte| Syndrome::parse(*byte).is_ok()).inspect(|byte| {
            assert_eq!(Syndrome::parse(*byte).map(Syndrome::byte), Ok(*byte));
        });
        assert_eq!(meanings.count(), 32 + 32 + 4);
    }
}
