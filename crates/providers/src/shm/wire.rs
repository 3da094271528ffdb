//! The messages of two shm fabrics over their socket, one per packet.
//!
//! The messages only manage connections and segments; data never passes through the socket. Numbers are little-endian.
//!
//! ```text
//!   offset 0        4          6       8
//!          | "HLsm" | version  | kind  | body
//!
//!   kind          body                      attached descriptors
//!   1 Hello       eventfds u8, hello to     pidfd, mailbox, ring (sender to receiver); if `eventfds` is 1
//!                 the end                   (not 0), also eventfds for the progress thread and for callers
//!   2 Segment     key u32, len u64          memfd
//!   3 Ready       -                         -
//!   4 Detached    -                         -
//!   5 Refused     reason in UTF-8           -
//!   6 Withdrawn   key u32                   -
//!   7 Forgotten   key u32                   -
//!
//!   initiator   Hello Segment* Ready ----------------------->
//!   acceptor    <----------------------- Hello Segment* Ready      now both ends are connected
//!   either      Segment when it registers a segment
//!   either      Withdrawn when a key is deregistered; the peer answers Forgotten once it has unmapped the segment. If
//!               the sender never sent the segment, Withdrawn takes the place of Segment, and has no answer
//!   either      Detached once it has unmapped all memory of the peer
//! ```
//!
//! The acceptor answers only after `Ready`, so an initiator that gives up earlier never becomes its peer.

use halite_fabric::HELLO_BYTES_MAX;

/// Protocol version. Must change with the format of a message and with the layout of a ring, a record or a mailbox.
pub(super) const VERSION: u16 = 5;
/// Maximum length of a packet in bytes: a header, the byte `eventfds`, and the longest hello.
pub(super) const MESSAGE_BYTES_MAX: usize = HEADER_BYTES + 1 + HELLO_BYTES_MAX;
/// Maximum length of a refusal reason, in bytes.
const REASON_BYTES_MAX: usize = 200;
const MAGIC: [u8; 4] = *b"HLsm";
const HEADER_BYTES: usize = 8;

/// A message, which is one packet of the socket.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Message {
    /// The first message of each end: identifies the sender's process, and transfers the memory for messages.
    Hello {
        /// The hello that the fabric's user has configured. The fabric does not interpret these bytes.
        hello: Vec<u8>,
        /// True if threads of the sender sleep on descriptors. The eventfds for these threads are attached to the
        /// message.
        has_eventfds: bool,
    },
    /// A segment of the sender that the receiver may access from now on.
    Segment {
        /// Key of the segment. A fabric assigns its keys in order, from zero.
        key: u32,
        /// Length of the segment in bytes.
        len: u64,
    },
    /// The sender has sent all its segments.
    Ready,
    /// The sender has unmapped all memory of the receiver and will not access it again.
    Detached,
    /// A segment of the sender that the receiver must unmap.
    Withdrawn {
        /// Key of the segment.
        key: u32,
    },
    /// The sender has unmapped a segment of the receiver.
    Forgotten {
        /// Key of the segment.
        key: u32,
    },
    /// The sender refuses the connection.
    Refused {
        /// The reason, as a sentence for users.
        reason: String,
    },
}

/// The reason why a packet is not a valid message.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum BadMessage {
    #[error("a packet of another protocol")]
    Magic,
    #[error(
        "a packet of protocol version {theirs}; this process uses version {VERSION}; run one release on this host"
    )]
    Version { theirs: u16 },
    #[error("an unknown or malformed message of kind {kind}")]
    Shape { kind: u16 },
}

impl Message {
    /// Returns the number of descriptors that are attached to the message.
    pub(super) fn fds(&self) -> usize {
        match self {
            Message::Hello { has_eventfds, .. } => 3 + 2 * usize::from(*has_eventfds),
            Message::Segment { .. } => 1,
            Message::Ready
            | Message::Detached
            | Message::Refused { .. }
            | Message::Withdrawn { .. }
            | Message::Forgotten { .. } => 0,
        }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut packet = MAGIC.to_vec();
        packet.extend(VERSION.to_le_bytes());
        packet.extend(self.kind().to_le_bytes());
        match self {
            Message::Hello { hello, has_eventfds } => {
                packet.push((*has_eventfds).into());
                packet.extend(hello);
            }
            Message::Segment { key, len } => {
                packet.extend(key.to_le_bytes());
                packet.extend(len.to_le_bytes());
            }
            Message::Ready | Message::Detached => {}
            Message::Withdrawn { key } | Message::Forgotten { key } => packet.extend(key.to_le_bytes()),
            Message::Refused { reason } => {
                let end = reason.floor_char_boundary(REASON_BYTES_MAX);
                packet.extend(&reason.as_bytes()[..end]);
            }
        }
        packet
    }

    pub(super) fn decode(packet: &[u8]) -> Result<Message, BadMessage> {
        let Some((header, body)) = packet.split_first_chunk::<HEADER_BYTES>() else {
            return Err(BadMessage::Magic);
        };
        let [m0, m1, m2, m3, version @ .., k0, k1] = *header;
        if [m0, m1, m2, m3] != MAGIC {
            return Err(BadMessage::Magic);
        }
        let theirs = u16::from_le_bytes(version);
        if theirs != VERSION {
            return Err(BadMessage::Version { theirs });
        }
        let kind = u16::from_le_bytes([k0, k1]);
        Message::decode_body(kind, body).ok_or(BadMessage::Shape { kind })
    }

    fn decode_body(kind: u16, body: &[u8]) -> Option<Message> {
        match kind {
            1 => match body {
                [eventfds @ (0 | 1), hello @ ..] if hello.len() <= HELLO_BYTES_MAX => {
                    Some(Message::Hello { hello: hello.to_vec(), has_eventfds: *eventfds == 1 })
                }
                _ => None,
            },
            2 => {
                let (key, len) = body.split_first_chunk()?;
                Some(Message::Segment {
                    key: u32::from_le_bytes(*key),
                    len: u64::from_le_bytes(len.try_into().ok()?),
                })
            }
            3 if body.is_empty() => Some(Message::Ready),
            4 if body.is_empty() => Some(Message::Detached),
            5 if body.len() <= REASON_BYTES_MAX => {
                Some(Message::Refused { reason: String::from_utf8(body.to_vec()).ok()? })
            }
            6 => Some(Message::Withdrawn { key: u32::from_le_bytes(body.try_into().ok()?) }),
            7 => Some(Message::Forgotten { key: u32::from_le_bytes(body.try_into().ok()?) }),
            _ => None,
        }
    }

    fn kind(&self) -> u16 {
        match self {
            Message::Hello { .. } => 1,
            Message::Segment { .. } => 2,
            Message::Ready => 3,
            Message::Detached => 4,
            Message::Refused { .. } => 5,
            Message::Withdrawn { .. } => 6,
            Message::Forgotten { .. } => 7,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn malformed_bodies_are_refused() {
        let bare = |kind: u8| [b'H', b'L', b's', b'm', VERSION as u8, 0, kind, 0];
        for (kind, body_bytes) in [(0, 0), (1, 0), (1, HELLO_BYTES_MAX + 2), (2, 11), (2, 13), (3, 1), (6, 0)]
        {
            let mut packet = bare(kind).to_vec();
            packet.resize(HEADER_BYTES + body_bytes, 0);
            let shape = BadMessage::Shape { kind: kind.into() };
            assert_eq!(Message::decode(&packet), Err(shape));
        }
    }

    proptest! {
        #[test]
        fn messages_round_trip(
            hello in prop::collection::vec(any::<u8>(), 0..=HELLO_BYTES_MAX), has_eventfds: bool,
            key: u32, len: u64, reason in ".{0,50}"
        ) {
            let messages = [
                Message::Hello { hello, has_eventfds },
                Message::Segment { key, len },
                Message::Ready,
                Message::Detached,
                Message::Refused { reason },
            ];
            for message in messages {
                let packet = message.encode();
                prop_assert!(packet.len() <= MESSAGE_BYTES_MAX);
                prop_assert_eq!(Message::decode(&packet), Ok(message));
            }
        }

        #[test]
        fn decoded_packets_encode_to_the_same_bytes(mut packet in prop::collection::vec(any::<u8>(), 0..64)) {
            for (byte, header) in packet.iter_mut().zip([b'H', b'L', b's', b'm', VERSION as u8, 0]) {
                *byte = header;
            }
            if let Ok(message) = Message::decode(&packet) {
                prop_assert_eq!(message.encode(), packet);
            }
        }
    }
}
