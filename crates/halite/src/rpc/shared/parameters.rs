//! The parameters in a peer's handshake: addresses in the peer's memory for calls.

use halite_fabric::{Key, RemoteAddress};
use halite_tier::rpc::wire::REPLY_HEADER_BYTES;
use halite_tier::rpc::{CallControl, SlotId, Violation};

#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerParameters {
    /// Address of the word in which this node writes the position up to which it has read the peer's requests.
    pub(crate) head: RemoteAddress,
    slots: RemoteAddress,
    slot_bytes: u32,
    slot_count: u32,
    pub(in crate::rpc) lines: RemoteAddress,
    pub(in crate::rpc) replies: RemoteAddress,
}

impl PeerParameters {
    /// Parses a [`CallControl::Handshake`]. Returns `None` for any other control message.
    pub(crate) fn parse(control: &CallControl) -> Option<PeerParameters> {
        match *control {
            CallControl::Handshake {
                head_key,
                head_offset,
                slots_key,
                slots_offset,
                slot_bytes,
                slots,
                lines_key,
                lines_offset,
                replies_key,
                replies_offset,
                ..
            } => Some(PeerParameters {
                head: RemoteAddress { key: Key(head_key), offset: head_offset },
                slots: RemoteAddress { key: Key(slots_key), offset: slots_offset },
                slot_bytes,
                slot_count: slots,
                lines: RemoteAddress { key: Key(lines_key), offset: lines_offset },
                replies: RemoteAddress { key: Key(replies_key), offset: replies_offset },
            }),
            _ => None,
        }
    }

    pub(in crate::rpc) fn slot_count(&self) -> u32 {
        self.slot_count
    }

    /// Returns the address of a default slot, and its length in bytes.
    pub(crate) fn slot(&self, id: SlotId) -> Result<(RemoteAddress, u32), Violation> {
        let index = u32::from(id.index);
        if index >= self.slot_count || (self.slot_bytes as usize) < REPLY_HEADER_BYTES {
            return Err(Violation("a request names a default slot that does not exist"));
        }
        let offset = u64::from(index) * u64::from(self.slot_bytes);
        let offset =
            self.slots.offset.checked_add(offset).ok_or(Violation("the address of a slot overflows"))?;
        Ok((RemoteAddress { key: self.slots.key, offset }, self.slot_bytes))
    }
}
