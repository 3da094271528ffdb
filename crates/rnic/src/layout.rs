//! Splits an operation into messages, and messages into packets.
//!
//! ```text
//!  address 5, MTU 256:    | 251, a separate message | 256 | 256 | ... | rest |
//! ```
//!
//! All packets of a message except the last are full. If an operation of several packets starts at an unaligned
//! address, its first message has one packet, which ends at an 8-byte boundary. So no aligned word is split between
//! packets.

/// The packets of one operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Layout {
    mtu: u32,
    len: u32,
    /// Bytes of the aligning message; 0 if there is none.
    head: u32,
    /// Maximum packets of each later message.
    message_packets_max: u32,
}

/// The payload of one packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    /// Offset of the first byte in the operation, in bytes.
    pub offset: u32,
    /// Length in bytes.
    pub len: u32,
    /// True if the packet begins a message.
    pub is_first: bool,
    /// Bytes from the start of the packet to the end of its message.
    pub message_rest: u32,
    /// Number of packets from this one to the end of its message, including this one.
    pub packets_rest: u32,
    /// True if the packet ends the operation.
    pub is_end: bool,
}

impl Piece {
    /// Returns true if the packet ends a message.
    pub fn is_last(&self) -> bool {
        self.packets_rest == 1
    }

    /// Returns this packet, turned into a message of one packet.
    pub fn as_message(self) -> Piece {
        self.as_message_of(1)
    }

    /// Returns this packet, turned into the first packet of a message of `count` packets, at most `packets_rest`.
    pub fn as_message_of(self, count: u32) -> Piece {
        let message_rest = if count < self.packets_rest { count * self.len } else { self.message_rest };
        Piece { is_first: true, message_rest, packets_rest: count, ..self }
    }
}

impl Layout {
    /// Returns the layout of `len` bytes at the peer's `address`.
    // [ROCE-CUT-1]
    pub fn new(mtu: u32, address: u64, len: u32, message_packets_max: u32) -> Layout {
        let misalignment = (address % 8) as u32;
        let head = if misalignment != 0 && len > mtu { mtu - misalignment } else { 0 };
        Layout { mtu, len, head, message_packets_max }
    }

    /// Returns the number of packets, at least one.
    pub fn packets(&self) -> u32 {
        u32::from(self.head > 0) + packets(self.len - self.head, self.mtu)
    }

    /// Returns the payload of packet `index`.
    pub fn piece(&self, index: u32) -> Piece {
        if self.head > 0 && index == 0 {
            return Piece {
                offset: 0,
                len: self.head,
                is_first: true,
                message_rest: self.head,
                packets_rest: 1,
                is_end: false,
            };
        }
        let in_body = index - u32::from(self.head > 0);
        let body = self.len - self.head;
        let body_packets = packets(body, self.mtu);
        let in_message = in_body % self.message_packets_max;
        let message_end = (in_body - in_message).saturating_add(self.message_packets_max).min(body_packets);
        let end_bytes = if message_end == body_packets { body } else { message_end * self.mtu };
        let begin = in_body * self.mtu;
        Piece {
            offset: self.head + begin,
            len: self.mtu.min(body - begin),
            is_first: in_message == 0,
            message_rest: end_bytes - begin,
            packets_rest: message_end - in_body,
            is_end: in_body + 1 == body_packets,
        }
    }
}

/// Returns the number of packets of a message of `len` bytes; an empty message takes one.
pub(crate) fn packets(len: u32, mtu: u32) -> u32 {
    len.div_ceil(mtu).max(1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn packets_contain_each_byte_once_and_split_no_word(
            mtu in prop::sample::select(vec![256u32, 512, 1024, 2048, 4096]),
            address: u64,
            len in 0u32..50_000,
            messages in prop_oneof![Just(u32::MAX), 1u32..20],
        ) {
            let layout = Layout::new(mtu, address, len, messages);
            let (mut offset, mut rest, mut packets_rest) = (0, 0, 0);
            for index in 0..layout.packets() {
                let piece = layout.piece(index);
                prop_assert_eq!(piece.offset, offset);
                prop_assert_eq!(piece.is_first, rest == 0 && packets_rest == 0);
                if piece.is_first {
                    (rest, packets_rest) = (piece.message_rest, piece.packets_rest);
                    prop_assert!(packets_rest <= messages);
                    prop_assert_eq!(packets(rest, mtu), packets_rest);
                }
                prop_assert_eq!((piece.message_rest, piece.packets_rest), (rest, packets_rest));
                prop_assert!(piece.len <= mtu && (piece.is_last() || piece.len == mtu));
                offset += piece.len;
                rest -= piece.len;
                packets_rest -= 1;
                prop_assert_eq!(piece.is_last(), packets_rest == 0);
                prop_assert_eq!(piece.is_end, index + 1 == layout.packets());
                if !piece.is_end {
                    prop_assert_eq!(address.wrapping_add(u64::from(offset)) % 8, 0, "a word is split");
                }
            }
            prop_assert_eq!(offset, len);
        }
    }
}
