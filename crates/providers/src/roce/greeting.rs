//! The handshake messages of two ends; over a Unix socket, each is one packet.
//!
//! ```text
//!   dialling end                  listening end
//!     Dial(offer, hello) ───────────►
//!     ◄─────────── Accept(offer, grants, hello)  or Refused(reason)
//!     Ready(grants) ────────────────►        the queue pairs of both ends are ready; at the end follows
//!                                            Left(packets), or only the hang-up
//!
//!   0 "roce" | 4 version u8 | 5 kind u8 | then, in Dial and Accept:
//!   6 mtu u8 | 7 family u8 | 8 port u16 | 10 address, 16 bytes | 26 salt u32 | 30 per lane: qpn u32, psn u32
//!   46 extensions u8 | 47 grants, if their bit is set | hello
//!   extensions: bits 0, 1, 3, 4 and 7 below; bits 5 and 6: lanes to which the end is set: 0: 2, 1: 1, 2: 3, 3: 4
//!   grants, also in Ready: per lane: epoch u32, effect life in ns u64, key, 32 bytes
//! ```
//!
//! Lanes 2 and 3 have the queue pair numbers that follow the one of lane 1, and its first packet number: an end that
//! dials does not know whether the other end can decode more lanes.
//!
//! With grants, the lanes are stateless ([`super::stateless`]): the receiving end accesses the memory of the sending
//! end with these keys. The dialling end sends its grants in Ready if it got some.
//!
//! `Left` carries the unacknowledged packets of its sender, each preceded by its length as a u16.
//!
//! Numbers are little-endian. An end checks all fields of a message, although processes that may enter the directory
//! are trusted with all registered memory.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use halite_fabric::HELLO_BYTES_MAX;
use halite_rnic::Mtu;
use halite_rnic::wire::{Psn, Qpn};

use super::LANES;
use super::stateless::ResponderMode;

const MAGIC: &[u8; 4] = b"roce";
const VERSION: u8 = 4;
const OFFER_BYTES: usize = EXTENSIONS_AT + 1;
/// Offset of the extensions in an offer, after the lanes.
const EXTENSIONS_AT: usize = 24 + LANES * 8;
/// Bits of the extensions that an end supports; unknown bits are ignored.
const SELECTIVE: u8 = 1;
const TELLS_WAITS: u8 = 2;
/// Stateless lanes. Bit 2 meant an earlier form.
const TAKES_STATELESS: u8 = 128;
const ASKS_STATELESS: u8 = 8;
/// Bit of the extensions in Accept: grants follow the offer.
const HAS_GRANTS: u8 = 16;
/// Position of the two bits with the number of lanes, and the number for each of their values. Earlier releases leave
/// the bits 0 and have two lanes.
const LANES_SHIFT: u32 = 5;
const LANES_CODES: [u8; 4] = [2, 1, 3, 4];
/// Length of one lane's grant in bytes, and of all grants.
const GRANT_BYTES: usize = 4 + 8 + 32;
const GRANTS_BYTES: usize = LANES * GRANT_BYTES;
/// Maximum length in bytes of Left, and of any message: Accept with grants and the longest hello.
pub(super) const LEFT_BYTES_MAX: usize = 6 + OFFER_BYTES + HELLO_BYTES_MAX;
pub(super) const MESSAGE_BYTES_MAX: usize = LEFT_BYTES_MAX + GRANTS_BYTES;
/// Bytes of the length before each packet of the last message.
const PACKET_LEN_BYTES: usize = 2;
const REASON_BYTES_MAX: usize = 200;

/// The offer of one end to the other: its address and its queue pairs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Offer {
    pub(super) address: SocketAddr,
    /// Maximum payload of a packet that the offering end sends or receives.
    pub(super) mtu: Mtu,
    /// Salt of the offering end's keys: an rkey in a packet of the other end is the key XORed with this salt.
    pub(super) salt: u32,
    pub(super) lanes: [LaneOffer; LANES],
    /// Number of lanes to which the offering end is set.
    pub(super) lanes_max: u8,
    /// True if the offering end supports selective repeat.
    pub(super) selective: bool,
    /// True if the responses of the offering end report the time that a request waited at that end.
    pub(super) tells_waits: bool,
    /// The mode of the responders to which the offering end is set.
    pub(super) responder: ResponderMode,
}

/// The permissions of the two lanes of an end to access the memory of the other end.
pub(super) type Grants = [LaneGrant; LANES];

/// The permission of one lane to access all registered memory of the other end without connection state there.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct LaneGrant {
    pub(super) epoch: u32,
    pub(super) effect_life_ns: u64,
    pub(super) key: [u8; 32],
}

impl std::fmt::Debug for LaneGrant {
    /// Omits the key, which is secret.
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "LaneGrant {{ epoch {} }}", self.epoch)
    }
}

/// A queue pair, and the number of the first packet that it sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct LaneOffer {
    pub(super) qpn: Qpn,
    pub(super) psn: Psn,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Message {
    Dial {
        offer: Offer,
        hello: Vec<u8>,
    },
    Accept {
        offer: Offer,
        grants: Option<Grants>,
        hello: Vec<u8>,
    },
    Ready {
        grants: Option<Grants>,
    },
    Refused {
        reason: String,
    },
    /// The sender ends the connection; its process may continue.
    Left {
        /// Unacknowledged packets of the sender.
        packets: Vec<Vec<u8>>,
    },
}

/// The reason for rejecting a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum BadMessage {
    #[error(
        "a greeting of version {0}; this process uses version {VERSION}, so run one release on all hosts"
    )]
    Version(u8),
    #[error("a malformed greeting")]
    Malformed,
}

impl Message {
    pub(super) fn encode(&self) -> Vec<u8> {
        let kind = match self {
            Message::Dial { .. } => 1,
            Message::Accept { .. } => 2,
            Message::Ready { .. } => 3,
            Message::Refused { .. } => 4,
            Message::Left { .. } => 5,
        };
        let mut bytes = MAGIC.to_vec();
        bytes.extend([VERSION, kind]);
        match self {
            Message::Dial { offer, hello } => {
                offer.encode(false, &mut bytes);
                bytes.extend(hello);
            }
            Message::Accept { offer, grants, hello } => {
                offer.encode(grants.is_some(), &mut bytes);
                encode_grants(grants.as_ref(), &mut bytes);
                bytes.extend(hello);
            }
            Message::Ready { grants } => encode_grants(grants.as_ref(), &mut bytes),
            Message::Left { packets } => {
                for packet in packets {
                    let len = u16::try_from(packet.len()).expect("left_with() bounds the message");
                    bytes.extend(len.to_le_bytes());
                    bytes.extend(packet);
                }
            }
            Message::Refused { reason } => {
                bytes.extend(&reason.as_bytes()[..reason.len().min(REASON_BYTES_MAX)]);
            }
        }
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Message, BadMessage> {
        let rest = bytes.strip_prefix(MAGIC).ok_or(BadMessage::Malformed)?;
        let (&[version, kind], rest) = rest.split_first_chunk().ok_or(BadMessage::Malformed)?;
        if version != VERSION {
            return Err(BadMessage::Version(version));
        }
        match kind {
            1 | 2 => {
                let (offer, hello) = rest.split_first_chunk().ok_or(BadMessage::Malformed)?;
                let has_grants = offer[EXTENSIONS_AT] & HAS_GRANTS != 0;
                let (offer, is_accept) = (Offer::decode(offer)?, kind == 2);
                let (grants, hello) = match hello.split_first_chunk() {
                    _ if !has_grants || !is_accept => (None, hello),
                    Some((grants, hello)) => (Some(decode_grants(grants)), hello),
                    None => return Err(BadMessage::Malformed),
                };
                let hello = hello.to_vec();
                if hello.len() > HELLO_BYTES_MAX {
                    return Err(BadMessage::Malformed);
                }
                Ok(match is_accept {
                    true => Message::Accept { offer, grants, hello },
                    false => Message::Dial { offer, hello },
                })
            }
            3 if rest.is_empty() => Ok(Message::Ready { grants: None }),
            3 => match rest.try_into() {
                Ok(grants) => Ok(Message::Ready { grants: Some(decode_grants(grants)) }),
                Err(_) => Err(BadMessage::Malformed),
            },
            4 => Ok(Message::Refused { reason: String::from_utf8_lossy(rest).into_owned() }),
            5 if bytes.len() <= LEFT_BYTES_MAX => Ok(Message::Left { packets: decode_packets(rest)? }),
            _ => Err(BadMessage::Malformed),
        }
    }

    /// Returns the message `Left` with these packets; `None` if the packets do not fit into a message.
    pub(super) fn left_with(packets: Vec<Vec<u8>>) -> Option<Message> {
        let bytes: usize = packets.iter().map(|packet| PACKET_LEN_BYTES + packet.len()).sum();
        (6 + bytes <= LEFT_BYTES_MAX).then_some(Message::Left { packets })
    }
}

fn encode_grants(grants: Option<&Grants>, bytes: &mut Vec<u8>) {
    for LaneGrant { epoch, effect_life_ns, key } in grants.into_iter().flatten() {
        bytes.extend(epoch.to_le_bytes());
        bytes.extend(effect_life_ns.to_le_bytes());
        bytes.extend(key);
    }
}

fn decode_grants(bytes: &[u8; GRANTS_BYTES]) -> Grants {
    std::array::from_fn(|lane| {
        let bytes = &bytes[lane * GRANT_BYTES..][..GRANT_BYTES];
        LaneGrant {
            epoch: u32::from_le_bytes(bytes[..4].try_into().expect("four bytes")),
            effect_life_ns: u64::from_le_bytes(bytes[4..12].try_into().expect("eight bytes")),
            key: bytes[12..].try_into().expect("32 bytes"),
        }
    })
}

fn decode_packets(mut bytes: &[u8]) -> Result<Vec<Vec<u8>>, BadMessage> {
    let mut packets = Vec::new();
    while !bytes.is_empty() {
        let (len, rest) = bytes.split_first_chunk().ok_or(BadMessage::Malformed)?;
        let (packet, rest) =
            rest.split_at_checked(u16::from_le_bytes(*len).into()).ok_or(BadMessage::Malformed)?;
        packets.push(packet.to_vec());
        bytes = rest;
    }
    Ok(packets)
}

impl Offer {
    /// Returns true if the addresses of the two offers have the same IP version, so that packets can travel between
    /// them.
    pub(super) fn has_ip_version_of(&self, other: &Offer) -> bool {
        self.address.is_ipv4() == other.address.is_ipv4()
    }

    /// Returns the number of lanes between two ends: the smaller of their settings. One lane needs both ends, because
    /// an end that offers two may be of an earlier release, which always has two.
    // [ROCE-LANES-1]
    pub(super) fn lanes_with(&self, other: &Offer) -> usize {
        let smaller = self.lanes_max.min(other.lanes_max);
        usize::from(if self.lanes_max.max(other.lanes_max) == 1 { 1 } else { smaller.max(2) })
    }

    /// Returns the queue pair of a lane. For lanes beyond those of the offer, derives it from the last one.
    pub(super) fn lane(&self, index: usize) -> LaneOffer {
        self.lanes.get(index).copied().unwrap_or_else(|| {
            let last = self.lanes[LANES - 1];
            LaneOffer { qpn: Qpn::new(last.qpn.value() + (index + 1 - LANES) as u32), psn: last.psn }
        })
    }

    /// Returns the queue pair numbers that the offering end reserves.
    pub(super) fn qpns(&self) -> Vec<Qpn> {
        (0..usize::from(self.lanes_max).max(LANES)).map(|index| self.lane(index).qpn).collect()
    }

    fn encode(&self, has_grants: bool, bytes: &mut Vec<u8>) {
        let (family, address) = match self.address.ip() {
            IpAddr::V4(address) => (4, address.to_ipv6_mapped().octets()),
            IpAddr::V6(address) => (6, address.octets()),
        };
        bytes.extend([self.mtu as u8, family]);
        bytes.extend(self.address.port().to_le_bytes());
        bytes.extend(address);
        bytes.extend(self.salt.to_le_bytes());
        for lane in self.lanes {
            bytes.extend(lane.qpn.value().to_le_bytes());
            bytes.extend(lane.psn.value().to_le_bytes());
        }
        let bit = |is_offered: bool, bit: u8| if is_offered { bit } else { 0 };
        let responder = match self.responder {
            ResponderMode::Stateful => 0,
            ResponderMode::Auto => TAKES_STATELESS,
            ResponderMode::Stateless => TAKES_STATELESS | ASKS_STATELESS,
        };
        let common = bit(self.selective, SELECTIVE) | bit(self.tells_waits, TELLS_WAITS);
        let lanes =
            LANES_CODES.iter().position(|lanes| *lanes == self.lanes_max).expect("1 to LANES_MAX lanes");
        bytes.push(common | responder | bit(has_grants, HAS_GRANTS) | (lanes as u8) << LANES_SHIFT);
    }

    fn decode(bytes: &[u8; OFFER_BYTES]) -> Result<Offer, BadMessage> {
        let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let number = |at| Some(u32_at(at)).filter(|number| number >> 24 == 0).ok_or(BadMessage::Malformed);
        let mtu = Mtu::ALL.get(usize::from(bytes[0])).copied().ok_or(BadMessage::Malformed)?;
        let address: [u8; 16] = bytes[4..20].try_into().expect("sixteen bytes");
        let address = Ipv6Addr::from(address);
        let ip = match (bytes[1], address.to_ipv4_mapped()) {
            (4, Some(address)) if address != Ipv4Addr::UNSPECIFIED => IpAddr::V4(address),
            (6, None) if address != Ipv6Addr::UNSPECIFIED => IpAddr::V6(address),
            _ => return Err(BadMessage::Malformed),
        };
        let port = u16::from_le_bytes([bytes[2], bytes[3]]);
        let mut lanes = [LaneOffer { qpn: Qpn::new(0), psn: Psn::new(0) }; LANES];
        for (index, lane) in lanes.iter_mut().enumerate() {
            let at = 24 + 8 * index;
            *lane = LaneOffer { qpn: Qpn::new(number(at)?), psn: Psn::new(number(at + 4)?) };
        }
        let [selective, tells_waits, takes_stateless, asks_stateless] =
            [SELECTIVE, TELLS_WAITS, TAKES_STATELESS, ASKS_STATELESS]
                .map(|bit| bytes[EXTENSIONS_AT] & bit != 0);
        let responder = match (takes_stateless, asks_stateless) {
            (false, _) => ResponderMode::Stateful,
            (true, false) => ResponderMode::Auto,
            (true, true) => ResponderMode::Stateless,
        };
        let (address, salt) = (SocketAddr::new(ip, port), u32_at(20));
        let lanes_max = LANES_CODES[usize::from(bytes[EXTENSIONS_AT] >> LANES_SHIFT & 3)];
        Ok(Offer { address, mtu, salt, lanes, lanes_max, selective, tells_waits, responder })
    }
}

/// A fuzz target: checks that a parsed message does not change when it is encoded and parsed again.
#[cfg(fuzzing)]
pub fn check_greeting(bytes: &[u8]) {
    let Ok(message) = Message::decode(bytes) else { return };
    let again = message.encode();
    assert!(again.len() <= MESSAGE_BYTES_MAX, "{message:?}");
    let Message::Refused { .. } = message else {
        assert_eq!(Message::decode(&again), Ok(message));
        return;
    };
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn offer(address: &str) -> Offer {
        let lane = |number| LaneOffer { qpn: Qpn::new(number), psn: Psn::new(0xff_ffff - number) };
        let lanes = [lane(17), lane(0xff_fffc)];
        let (address, selective, tells_waits) = (address.parse().unwrap(), true, true);
        let (mtu, salt, responder) = (Mtu::Bytes4096, 0x1234_5678, ResponderMode::Auto);
        Offer { address, mtu, salt, lanes, lanes_max: 2, selective, tells_waits, responder }
    }

    #[test]
    fn ends_agree_on_the_smaller_number_of_lanes() {
        let sent = |lanes_max| Offer { lanes_max, ..offer("127.0.0.1:4") };
        for (one, other, agreed) in [(1, 1, 1), (1, 2, 2), (1, 4, 2), (2, 4, 2), (3, 4, 3), (4, 4, 4)] {
            let arrived = [one, other].map(|lanes_max| {
                let dial = Message::Dial { offer: sent(lanes_max), hello: vec![] }.encode();
                let Ok(Message::Dial { offer, .. }) = Message::decode(&dial) else { panic!("a dial") };
                offer
            });
            assert_eq!(sent(one).lanes_with(&arrived[1]), agreed, "{one} and {other}");
            assert_eq!(sent(other).lanes_with(&arrived[0]), agreed, "{other} and {one}");
        }
    }

    #[test]
    fn encoded_greetings_decode_to_the_same_message() {
        for address in ["127.0.0.1:4", "[fe80::1]:65535"] {
            let (offer, hello) = (offer(address), vec![7; HELLO_BYTES_MAX]);
            let grant = |key| LaneGrant { epoch: 1, effect_life_ns: 50_000_000, key: [key; 32] };
            let grants = [grant(8), grant(9)];
            for message in [
                Message::Dial { offer, hello: vec![] },
                Message::Accept { offer, grants: None, hello: hello.clone() },
                Message::Accept { offer, grants: Some(grants), hello },
                Message::Ready { grants: None },
                Message::Ready { grants: Some(grants) },
                Message::Refused { reason: "no room".to_owned() },
                Message::Left { packets: vec![] },
                Message::left_with(vec![vec![7; 40], vec![], vec![8; 900]]).unwrap(),
            ] {
                let bytes = message.encode();
                assert!(bytes.len() <= MESSAGE_BYTES_MAX);
                assert_eq!(Message::decode(&bytes), Ok(message));
            }
        }
    }

    proptest! {
        #[test]
        fn random_greetings_are_decoded_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200), kind in 0u8..7) {
            let _ = Message::decode(&bytes);
            let _ = Message::decode(&[MAGIC, &[VERSION, kind][..], &bytes].concat());
        }
    }
}
