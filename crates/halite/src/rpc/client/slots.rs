//! Reply slots and their memory: opened for a request, read when the reply has arrived, then freed.

use std::task::Waker;

use halite_fabric::RemoteAddress;
use halite_mem::Window;
use halite_tier::rpc::wire::REPLY_HEADER_BYTES;
use halite_tier::rpc::{Kind, ReplyHeader, ReplySlots, ReplyState, SlotId, Status, Target};

use super::Client;
use super::reply::{Reply, ReplyBuffer, read_reply};
use super::request::{NotPosted, Request};
use crate::rpc::Rpc;
use crate::rpc::shared::Block;
use crate::runtime::locks::lock;

/// Number of default slots; each further call allocates memory for its reply.
pub(in crate::rpc) const DEFAULT_SLOTS: u16 = 1024;

/// Length of a default slot in bytes: a page and a cache line, so that slots do not all compete for the same cache
/// sets.
pub(in crate::rpc) const DEFAULT_SLOT_BYTES: u64 = 4096 + 64;

/// Maximum number of calls and messages in progress.
pub(super) const SLOTS_MAX: usize = 1 << 16;

/// Resources that a slot holds while it is in use.
#[derive(Debug, Default)]
pub(crate) struct SlotResources {
    /// Memory for the reply; `None` if the reply goes to the default slot.
    pub(super) reply: Option<Block>,
    /// The input in registered memory; `None` if the server does not read it from this node.
    pub(super) input: Option<Block>,
    /// The port to which the message goes; `None` for a call.
    pub(super) port: Option<u32>,
    pub(super) by_line: bool,
}

impl Rpc {
    /// Opens a slot for the reply to a request. Returns the slot, with the address and length of its memory if that is not
    /// the default slot.
    pub(in crate::rpc) fn open_slot(
        &self,
        target: Target,
        request: &Request<'_>,
        input: Option<Block>,
    ) -> Result<(SlotId, Option<(RemoteAddress, u32)>), NotPosted> {
        let slot = {
            let mut slots = lock(&self.client.slots);
            // A closed node's slots are never served again.
            let full = if slots.is_closed() { NotPosted::Closed } else { NotPosted::TooManyCalls };
            let slot = slots.open(target).ok_or(full)?;
            self.keep_deadline(&mut slots, slot, request.deadline_ns);
            slot
        };
        let wanted = u64::from(request.reply_bytes_max) + REPLY_HEADER_BYTES as u64;
        let room = if request.reply_in_place { wanted.max(DEFAULT_SLOT_BYTES) } else { DEFAULT_SLOT_BYTES };
        if room == DEFAULT_SLOT_BYTES
            && slot.index < DEFAULT_SLOTS
            && input.is_none()
            && request.kind == Kind::Call
        {
            // Most calls hold nothing, and storing that takes time.
            return Ok((slot, None));
        }
        let mut held = SlotResources { input, ..SlotResources::default() };
        if room > DEFAULT_SLOT_BYTES || slot.index >= DEFAULT_SLOTS {
            held.reply = self.poster.allocate(room);
            if held.reply.is_none() {
                self.client.free_slot(slot);
                return Err(NotPosted::NoMemory);
            }
        }
        if request.kind != Kind::Call {
            held.port = Some(request.number);
        }
        let reply_at = held.reply.as_ref().map(|block| (block.address(), room as u32));
        if held.reply.is_some() || held.input.is_some() || held.port.is_some() {
            lock(&self.client.slots).hold(slot, held);
        }
        Ok((slot, reply_at))
    }

    pub(crate) fn set_deadline(&self, slot: SlotId, deadline_ns: u64) {
        self.keep_deadline(&mut lock(&self.client.slots), slot, deadline_ns);
    }

    pub(super) fn keep_deadline(
        &self,
        slots: &mut ReplySlots<SlotResources>,
        slot: SlotId,
        deadline_ns: u64,
    ) {
        let before = slots.next_deadline_ns();
        slots.set_deadline(slot, deadline_ns);
        if deadline_ns < before {
            // The sleeping progress thread must wake earlier.
            self.poster.set_dirty();
        }
    }
}

impl Client {
    /// Copies the reply out and frees the slot, if the reply has arrived.
    pub(crate) fn try_take(&self, slot: SlotId, into: ReplyBuffer<'_>) -> Result<Reply, ReplyState> {
        let mut slots = lock(&self.slots);
        match slots.look(slot, 0) {
            ReplyState::Replied if slots.held(slot).is_none() => {}
            ReplyState::Replied => {
                drop(slots);
                return Ok(self.take_reply(slot, into));
            }
            state => return Err(state),
        }
        let reply = read_reply(self.default_slots.window(), default_offset(slot), DEFAULT_SLOT_BYTES, into);
        if !reply.needs_slot() {
            slots.free(slot);
        }
        Ok(reply)
    }

    /// Copies a reply that has arrived to the caller's memory. Frees the slot, unless the reply still needs it.
    pub(crate) fn take_reply(&self, slot: SlotId, into: ReplyBuffer<'_>) -> Reply {
        let by_line = lock(&self.slots).held(slot).is_some_and(|held| held.by_line);
        let reply = if by_line { self.read_line(slot, into) } else { self.read_slot(slot, into) };
        if !reply.needs_slot() {
            self.free_slot(slot);
        }
        reply
    }

    /// Returns the state of a reply, and registers `waker` if the reply has not arrived. Calls `now_ns` under the lock,
    /// so that its time is later than that of the last search for overdue calls.
    pub(crate) fn wait_for(
        &self,
        slot: SlotId,
        now_ns: impl FnOnce() -> u64,
        waker: &mut Option<Waker>,
    ) -> ReplyState {
        let mut slots = lock(&self.slots);
        slots.wait(slot, now_ns(), waker)
    }

    fn read_slot(&self, slot: SlotId, into: ReplyBuffer<'_>) -> Reply {
        let window = self.slot_window(slot);
        read_reply(&window, 0, window.len(), into)
    }

    /// Returns the memory of a slot in use.
    pub(super) fn slot_window(&self, slot: SlotId) -> Window {
        let own =
            lock(&self.slots).held(slot).and_then(|held| held.reply.as_ref().map(|b| b.window().clone()));
        own.unwrap_or_else(|| {
            let window = self.default_slots.window().slice(default_offset(slot), DEFAULT_SLOT_BYTES);
            window.expect("slots beyond the default ones hold memory")
        })
    }

    pub(super) fn slot_status(&self, slot: SlotId) -> Option<Status> {
        let mut header = [0; REPLY_HEADER_BYTES];
        self.slot_window(slot).read(0, &mut header).expect("a slot holds a header");
        ReplyHeader::parse(header).ok().map(|header| header.status)
    }

    /// Frees a slot, and releases its resources after unlocking the table.
    pub(super) fn free_slot(&self, slot: SlotId) {
        let held = lock(&self.slots).free(slot);
        drop(held);
    }

    // Calls of this node to itself.

    /// Sets the memory for a reply once its length is known. Returns false if the caller has given up.
    pub(in crate::rpc) fn give_slot_memory(&self, slot: SlotId, block: Block) -> bool {
        let mut slots = lock(&self.slots);
        let Some(held) = slots.take_held(slot) else { return false };
        slots.hold(slot, SlotResources { reply: Some(block), ..held.unwrap_or_default() });
        true
    }

    pub(in crate::rpc) fn write_own_slot(&self, slot: SlotId, header: &[u8], output: &[u8]) {
        let window = self.slot_window(slot);
        window.write(0, header).expect("a slot holds a header");
        window.write(header.len() as u64, output).expect("the output fits");
    }
}

/// Returns the offset of a slot in the memory of the default slots.
pub(super) fn default_offset(slot: SlotId) -> u64 {
    u64::from(slot.index) * DEFAULT_SLOT_BYTES
}
