//! Requests of one client through shared memory.
//!
//! The client may write anything there at any time. The node copies each line once, and then checks the copy; an
//! invalid line ends the connection. A line waits while the client has no room for replies, and until the node has
//! started the requests of the socket messages before the line.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Instant;

use halite_mem::Window;
use halite_mem::exchange::{self, Line, SLOT_BYTES, SLOTS};
use halite_tier::access::Atomic;
use halite_tier::permissions::Permissions;
use halite_tier::qos::Priority;

use super::{Connection, Over, is_release};
use crate::session::Lh;
use crate::session::attached::entry::{
    self, COPY_INSTEAD, Head, INLINE_BYTES_MAX, Kind, OPERAND_BYTES_MAX, Status, WAKE_ID, id_of,
};
use crate::session::attached::wire::{self, HEADER_BYTES, Request};

/// Size in bytes of the memory that the node shares with a client, once the client has used all of it.
pub(super) const RING_BYTES: u64 = (SLOTS * SLOT_BYTES) as u64;

/// The node's end of the memory that it shares with a client.
pub(super) struct Ring {
    pub(super) memory: exchange::Server,
    /// True if the shared memory tells the client that the node polls its lines.
    is_awake: bool,
    /// Bit set of the slots whose requests are reads.
    reads: u32,
    /// An access to a buffer that is in progress. The lines after it wait.
    copy: Option<BufferCopy>,
}

/// The rest of an access to a buffer of the client, which the node executes in slices.
struct BufferCopy {
    slot: usize,
    is_read: bool,
    lh: Lh,
    /// Offset in the region, in bytes.
    offset: u64,
    buffer: Window,
    /// Offset in the buffer, in bytes.
    at: u64,
    /// Number of bytes that are left.
    len: u64,
    is_partly_done: bool,
}

impl Ring {
    /// Creates the memory, and returns it with the client's descriptors. Fails if the system cannot provide it.
    pub(super) fn create() -> io::Result<(Ring, [OwnedFd; 2])> {
        let (mut memory, fds) = exchange::create()?;
        memory.sleep();
        Ok((Ring { memory, is_awake: false, reads: 0, copy: None }, fds))
    }
}

impl Connection {
    /// Returns true if the node must poll the client's lines.
    pub(crate) fn is_awake(&self) -> bool {
        self.ring.as_ref().is_some_and(|ring| ring.is_awake)
    }

    /// Starts to poll the client's lines.
    pub(super) fn wake_ring(&mut self) {
        if let Some(ring) = &mut self.ring {
            ring.is_awake = true;
            ring.memory.wake();
        }
    }

    /// Stops polling the client's lines; the client then wakes the node for its next line. Continues to poll and
    /// returns false if a line has arrived meanwhile.
    pub(crate) fn try_sleep(&mut self) -> bool {
        if let Some(ring) = &mut self.ring {
            ring.memory.sleep();
            ring.is_awake = false;
        }
        if self.is_copying() || self.next_line().is_some() {
            self.wake_ring();
        }
        !self.is_awake()
    }

    /// Returns a copy of the next line and its parsed first word, if the line can be executed now. The word is `None`
    /// if it is invalid.
    #[inline]
    fn next_line(&self) -> Option<(Line, Option<Head>)> {
        let line = self.ring.as_ref()?.memory.peek()?;
        let head = Head::unpack(line[0]);
        let is_early = head.is_some_and(|head| head.after.wrapping_sub(self.started) as i16 > 0);
        // Otherwise the line waits until a socket message arrives, the access in progress ends, or the socket accepts
        // replies.
        (!is_early && !self.is_copying() && self.has_room()).then_some((line, head))
    }

    /// Executes the lines that can be executed now. Returns false if it ends with the turn, after `until`.
    pub(super) fn drain_ring(&mut self, until: Instant) -> Result<bool, Over> {
        // At most one line per slot: a client that writes lines quickly must not keep its messages waiting.
        for _ in 0..SLOTS {
            if !self.serve_line()? {
                break;
            }
            if Instant::now() >= until {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns true if an access to a buffer is in progress.
    pub(super) fn is_copying(&self) -> bool {
        self.ring.as_ref().is_some_and(|ring| ring.copy.is_some())
    }

    /// Executes the next line, or the next slice of the access in progress. Returns false if there is none.
    #[inline]
    pub(crate) fn serve_line(&mut self) -> Result<bool, Over> {
        let Some((line, head)) = self.next_line() else {
            return Ok(self.is_copying() && self.continue_copy());
        };
        let Head { kind, slot, len, .. } = head.ok_or(Over)?;
        let (Some(ring), Some(desk)) = (&mut self.ring, &self.desk) else { return Err(Over) };
        ring.memory.take(slot).map_err(|_| Over)?;
        let (lh, offset) = entry::handle(&line);
        let inner = &desk.embedded(Priority::High).inner;
        let mut bytes = [0; INLINE_BYTES_MAX];
        let done = match kind {
            Kind::Read if len <= INLINE_BYTES_MAX => inner.read_now(lh, offset, &mut bytes[..len]).ok(),
            Kind::Write if len <= OPERAND_BYTES_MAX => {
                entry::get(&line[4..], &mut bytes[..len]);
                inner.write_now(lh, offset, &bytes[..len]).ok()
            }
            Kind::Read => inner.read_into_memory(lh, (offset, len as u64), ring.memory.data(slot)),
            Kind::Write => inner.write_from_memory(lh, (offset, len as u64), ring.memory.data(slot)),
            Kind::FetchAdd | Kind::CompareSwap => {
                let atomic = match kind {
                    Kind::FetchAdd => Atomic::FetchAdd { add: line[4] },
                    _ => Atomic::CompareSwap { expected: line[4], new: line[5] },
                };
                inner.atomic_now(lh, offset, atomic).ok().map(|old| {
                    bytes[..8].copy_from_slice(&old.to_ne_bytes());
                    len
                })
            }
            Kind::ReadBuffer | Kind::WriteBuffer => {
                self.start_copy(&line, slot, kind == Kind::ReadBuffer);
                return Ok(true);
            }
            Kind::Call | Kind::Receive | Kind::Answer => {
                ring.reads &= !(1 << slot);
                self.serve_call(kind, &line, slot)?;
                return Ok(true);
            }
            Kind::Message => None,
        };
        match done.is_some_and(|done| done == len) {
            true => {
                let inline = if len <= INLINE_BYTES_MAX { len } else { 0 };
                self.complete(slot, entry::reply(Status::Value, len, &bytes[..inline]));
            }
            false => self.start_line(&line, kind, slot, len)?,
        }
        Ok(true)
    }

    /// Checks an access to a buffer, and executes its first slice.
    #[inline(never)]
    fn start_copy(&mut self, line: &Line, slot: usize, is_read: bool) {
        let (Some(ring), Some(desk)) = (&mut self.ring, &self.desk) else { return };
        let (lh, offset) = entry::handle(line);
        let [at, len] = [line[5], line[6]];
        let wanted = if is_read { Permissions::READ } else { Permissions::WRITE };
        let buffer = desk.buffer(line[4]).filter(|buffer| len > 0 && buffer.slice(at, len).is_some());
        let may_access = desk.embedded(Priority::High).inner.may_access(lh, wanted, offset, len);
        match buffer.filter(|_| may_access) {
            Some(buffer) => {
                let copy = BufferCopy { slot, is_read, lh, offset, buffer, at, len, is_partly_done: false };
                ring.copy = Some(copy);
                self.continue_copy();
            }
            None => self.refuse_copy(slot, false),
        }
    }

    /// Executes the next slice of the access to a buffer that is in progress. Returns false if there is none.
    #[inline(never)]
    fn continue_copy(&mut self) -> bool {
        let (Some(ring), Some(desk)) = (&mut self.ring, &self.desk) else { return false };
        let Some(copy) = &mut ring.copy else { return false };
        let inner = &desk.embedded(Priority::High).inner;
        let (place, memory) = ((copy.offset, copy.len.min(SLOT_BYTES as u64)), (&copy.buffer, copy.at));
        let done = match copy.is_read {
            true => inner.read_into_memory(copy.lh, place, memory),
            false => inner.write_from_memory(copy.lh, place, memory),
        };
        let (slot, done) = (copy.slot, done.unwrap_or(0) as u64);
        (copy.offset, copy.at, copy.len) = (copy.offset + done, copy.at + done, copy.len - done);
        if done == 0 {
            let is_partly_done = copy.is_partly_done;
            ring.copy = None;
            self.refuse_copy(slot, is_partly_done);
            return true;
        }
        copy.is_partly_done = true;
        if copy.len == 0 {
            ring.copy = None;
            self.complete(slot, entry::reply(Status::Value, 0, &[]));
        }
        true
    }

    /// Lets the client copy the bytes itself.
    fn refuse_copy(&mut self, slot: usize, is_partly_done: bool) {
        let body = [COPY_INSTEAD, is_partly_done.into()];
        self.complete(slot, entry::reply(Status::Body, body.len(), &body));
    }

    /// Starts the request of a line as a future.
    fn start_line(&mut self, line: &Line, kind: Kind, slot: usize, len: usize) -> Result<(), Over> {
        let (lh, offset) = entry::handle(line);
        if let Some(ring) = &mut self.ring {
            ring.reads = ring.reads & !(1 << slot) | u32::from(kind == Kind::Read) << slot;
        }
        let body = match kind {
            Kind::Message => self.with_bytes(&[], &line[1..], slot, len),
            Kind::Read => wire::body(&Request::Read { lh, offset, len: len as u32 }),
            Kind::Write => {
                let request = wire::body(&Request::Write { lh, offset });
                self.with_bytes(&request, &line[4..], slot, len)
            }
            Kind::ReadBuffer | Kind::WriteBuffer | Kind::Call | Kind::Receive | Kind::Answer => {
                unreachable!("these have their own paths")
            }
            Kind::FetchAdd => wire::body(&Request::FetchAdd { lh, offset, add: line[4] }),
            Kind::CompareSwap => {
                wire::body(&Request::CompareSwap { lh, offset, expected: line[4], new: line[5] })
            }
        };
        if let Err(exceeded) = self.admit(body.len())
            && !is_release(&body)
        {
            self.counts[1] += 1;
            self.answer_slot(slot, wire::refused(id_of(slot), exceeded));
            return Ok(());
        }
        self.start(id_of(slot), body, 0)
    }

    /// Returns `head` and a copy of a line's bytes, which are in its slot if they are too long for `words`.
    fn with_bytes(&self, head: &[u8], words: &[u64], slot: usize, len: usize) -> Vec<u8> {
        let desk = self.desk.as_ref();
        let mut body = desk.map_or_else(Vec::new, |desk| desk.spares.take(head.len() + len));
        body.extend_from_slice(head);
        body.resize(head.len() + len, 0);
        let bytes = &mut body[head.len()..];
        match &self.ring {
            Some(ring) if len > size_of_val(words) => {
                ring.memory.read(slot, bytes).expect("a line has at most the bytes of a slot");
            }
            _ => entry::get(words, bytes),
        }
        body
    }

    /// Sends the reply to the request of a slot: over the socket if it is longer than a slot.
    pub(super) fn answer_slot(&mut self, slot: usize, message: Vec<u8>) {
        let Some(ring) = &self.ring else { return };
        let body = &message[HEADER_BYTES..];
        let (status, bytes) = match body {
            // The result of a read, whose bytes alone fit into a slot.
            [0, read @ ..] if ring.reads & 1 << slot != 0 => (Status::Value, read),
            body if body.len() > SLOT_BYTES => (Status::Socket, body),
            body => (Status::Body, body),
        };
        let is_inline = bytes.len() <= INLINE_BYTES_MAX;
        if !is_inline && status != Status::Socket {
            ring.memory.write(slot, bytes).expect("the length was checked");
        }
        let line = entry::reply(status, bytes.len(), if is_inline { bytes } else { &[] });
        match (status, &self.desk) {
            (Status::Socket, _) => self.queue(message),
            (_, Some(desk)) => desk.spares.give_back(message),
            _ => {}
        }
        self.complete(slot, line);
    }

    /// Announces that the reply to the request of a slot comes over the socket.
    pub(super) fn announce_message(&mut self, slot: usize) {
        self.complete(slot, entry::reply(Status::Socket, 0, &[]));
    }

    #[inline]
    pub(super) fn complete(&mut self, slot: usize, line: Line) {
        let Some(ring) = &mut self.ring else { return };
        if ring.memory.complete(slot, line, entry::words(1, entry::status(&line).1)) {
            self.wake_client();
        }
    }

    /// Wakes the client. A wake-up that is still to be sent covers all replies so far.
    fn wake_client(&mut self) {
        let wake = wire::message(WAKE_ID, &(), &[]);
        if self.output.back().is_none_or(|last| last.bytes != wake) {
            self.queue(wake);
        }
    }
}
