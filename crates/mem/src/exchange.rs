//! An exchange: requests and replies in shared memory between a server and one untrusted client process.
//!
//! The server creates two memfds and passes them to the client. The client writes requests into the first one; the
//! second one holds the replies and is sealed against writes by the client. An exchange does not interpret requests and
//! replies. It wakes no thread: it only reports to its caller that the other side sleeps.
//!
//! ```text
//!   requests, written by the client           replies, written by the server
//!   line 0       wakes: a bit for each slot   line 0       naps: odd while the server sleeps
//!                whose reply wakes the client              (+1 at each sleep and each wake)
//!   lines 1..33  requests, in order           lines 1..33  the last reply of each slot
//!   page 1..     data area of each slot: 64 KiB
//!
//!   line, 64 bytes:  | word 0: info (48 bits), tag (16 bits) | words 1 to 7 |
//! ```
//!
//! The client claims a slot, which is the place of the reply, and writes the request into the next line. The tag of a
//! request is the number of passes over the lines; the tag of a reply is the number of uses of its slot. So a stale
//! line never looks like a new one, neither side publishes a position, and only one line moves between the processes
//! per direction. The server may answer in any order. If a slot is free, the next line is free too: the server has
//! answered at least one of the requests in the lines, and has taken all requests before it.
//!
//! Before a side sleeps, it publishes that it sleeps, executes a fence, and checks for lines once more. The other side
//! publishes its line, executes a fence, and checks whether the first side sleeps. So at least one side sees the
//! other's store.
//!
//! The server trusts nothing in the requests. It keeps its own positions, and copies each line before its caller checks
//! the line. So a client that writes garbage only receives wrong replies. The client trusts the server.
//!
//! [`buffer`] has memory beside the slots, for bytes that the server copies where the client's program keeps them.

#[cfg(not(all(loom, test)))]
pub mod buffer;
mod memory;

#[cfg(not(all(loom, test)))]
use std::io;
#[cfg(not(all(loom, test)))]
use std::os::fd::OwnedFd;

use self::memory::Lines;
use crate::sync::{AtomicBool, Ordering};
#[cfg(not(all(loom, test)))]
use crate::{OpenError, OutOfBounds, Segment, Window};

/// Number of slots: the maximum number of requests that a client may have outstanding.
pub const SLOTS: usize = if cfg!(all(loom, test)) { 2 } else { 32 };
/// Number of 64-bit words in a line.
pub const WORDS: usize = if cfg!(all(loom, test)) { 2 } else { 8 };
/// Length of each slot's data area, in bytes.
pub const SLOT_BYTES: usize = 64 << 10;

/// A line: one request or one reply. The exchange sets the lower 16 bits of the first word; the caller chooses the
/// upper 48 bits and all other words. Words that the sender did not publish have arbitrary values.
pub type Line = [u64; WORDS];

/// Number of low bits in a line's first word that the exchange sets. These bits hold the tag, which distinguishes a new
/// line from a stale one.
pub const TAG_BITS: u32 = 16;

/// Index of the line in which a side announces that it sleeps; the lines of requests or replies follow.
const HEADER_LINE: usize = 0;
/// Offset of the data areas, in bytes: one page.
#[cfg(not(all(loom, test)))]
const DATA_OFFSET: u64 = 4096;
#[cfg(not(all(loom, test)))]
const REQUESTS_BYTES: u64 = DATA_OFFSET + (SLOTS * SLOT_BYTES) as u64;
#[cfg(not(all(loom, test)))]
const REPLIES_BYTES: u64 = 4096;

/// The client's end of an exchange. Any thread may use it.
#[derive(Debug)]
pub struct Client {
    requests: Lines,
    replies: Lines,
    #[cfg(not(all(loom, test)))]
    data: Window,
    /// True for each slot that is free again. Taking the lock of the claims instead would cost each operation a second
    /// lock, and one word for all slots would cost a locked instruction.
    freed: [AtomicBool; SLOTS],
}

/// The client's record of its free slots and published requests. The caller protects this record with a lock.
#[derive(Debug)]
pub struct Claims {
    /// Number of requests so far.
    requests: u64,
    /// Bitmap of the free slots.
    free: u32,
    /// Number of uses of each slot.
    uses: [u16; SLOTS],
    /// Bitmap of the slots whose replies must wake the client.
    wakes: u32,
}

/// A slot that the client has claimed for one request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Claim {
    /// Index of the slot, below [`SLOTS`].
    pub slot: usize,
    tag: u16,
}

/// The server's end of an exchange.
#[derive(Debug)]
pub struct Server {
    requests: Lines,
    replies: Lines,
    #[cfg(not(all(loom, test)))]
    data: Window,
    /// Number of requests taken so far.
    taken: u64,
    /// Number of uses of each slot.
    uses: [u16; SLOTS],
    /// Bitmap of the slots with an outstanding request.
    busy: u32,
    /// The value in the header line of the replies: odd while the server sleeps.
    naps: u64,
}

/// The error for a request whose slot does not exist, or still has an outstanding request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("cannot take the request: its slot does not exist, or still has an outstanding request")]
pub struct BadSlot;

/// Creates an exchange. Returns the server's end, and the two descriptors that the client passes to [`Client::open`].
/// Fails if the system lacks memory or descriptors, or if the kernel is older than Linux 5.1.
#[cfg(not(all(loom, test)))]
pub fn create() -> io::Result<(Server, [OwnedFd; 2])> {
    use rustix::fs::SealFlags;
    use std::sync::Arc;

    let (requests, requests_fd) =
        Segment::create_sealed("halite-requests", REQUESTS_BYTES, SealFlags::empty())?;
    let (replies, replies_fd) =
        Segment::create_sealed("halite-replies", REPLIES_BYTES, SealFlags::FUTURE_WRITE)?;
    let (requests, replies) = (Arc::new(requests.streaming()), Arc::new(replies));
    let (requests, data, replies) = windows(&requests, &replies);
    let server = Server { requests, replies, data, taken: 0, uses: [0; SLOTS], busy: 0, naps: 0 };
    Ok((server, [requests_fd, replies_fd]))
}

#[cfg(not(all(loom, test)))]
fn windows(requests: &std::sync::Arc<Segment>, replies: &std::sync::Arc<Segment>) -> (Lines, Window, Lines) {
    let inside = "the lengths are constants";
    let lines = |segment: &std::sync::Arc<Segment>| Lines::new(segment.window(0, DATA_OFFSET).expect(inside));
    let data = requests.window(DATA_OFFSET, REQUESTS_BYTES - DATA_OFFSET).expect(inside);
    (lines(requests), data, lines(replies))
}

/// Returns the line of request `number`, and its tag.
fn place_of(number: u64) -> (usize, u16) {
    (HEADER_LINE + 1 + (number % SLOTS as u64) as usize, (number / SLOTS as u64 + 1) as u16)
}

fn line_of_slot(slot: usize) -> usize {
    HEADER_LINE + 1 + slot
}

fn tagged(mut line: Line, tag: u16) -> Line {
    line[0] = line[0] & !u64::from(u16::MAX) | u64::from(tag);
    line
}

impl Default for Claims {
    fn default() -> Claims {
        Claims { requests: 0, free: ((1_u64 << SLOTS) - 1) as u32, uses: [0; SLOTS], wakes: 0 }
    }
}

impl Claims {
    /// Claims a free slot; returns `None` if no slot is free. `has_data` must be true if the request or its reply uses
    /// the slot's data area. The method then claims the lowest free slot, so that few data areas ever take memory.
    #[inline]
    pub fn claim(&mut self, client: &Client, has_data: bool) -> Option<Claim> {
        if self.free == 0 || has_data {
            self.find_freed(client);
        }
        let slot = self.free.trailing_zeros() as usize;
        if slot >= SLOTS {
            return None;
        }
        self.free &= !(1 << slot);
        self.uses[slot] = self.uses[slot].wrapping_add(1);
        Some(Claim { slot, tag: self.uses[slot] })
    }

    fn find_freed(&mut self, client: &Client) {
        for (slot, is_free) in client.freed.iter().enumerate() {
            // Pairs with the Release in release(): the slot's last user no longer accesses its data.
            if is_free.load(Ordering::Acquire) {
                // Relaxed: only the slot's next user sets it again, after this store.
                is_free.store(false, Ordering::Relaxed);
                self.free |= 1 << slot;
            }
        }
    }

    /// Frees a claimed slot for which no request was published.
    pub fn unclaim(&mut self, claim: Claim) {
        self.uses[claim.slot] = self.uses[claim.slot].wrapping_sub(1);
        self.free |= 1 << claim.slot;
    }

    /// Publishes the request of a claimed slot: the first `words` words of `line`. Afterwards, the caller calls
    /// [`Client::nap`] to find out whether it must wake the server.
    #[inline]
    pub fn submit(&mut self, client: &Client, line: Line, words: usize) {
        let (place, tag) = place_of(self.requests);
        self.requests += 1;
        client.requests.publish(place, &tagged(line, tag)[..words]);
    }

    /// Requests a wake-up of the client when a reply arrives in one of `slots`, a bitmap of slots. After this call, the
    /// client must look for replies once more before it sleeps.
    pub fn ask_for_wakes(&mut self, client: &Client, slots: u32) {
        if self.wakes & slots != slots {
            self.wakes |= slots;
            client.requests.set_flag(self.wakes.into());
        }
        // Pairs with the fence in Server::complete().
        memory::fence();
    }

    /// Withdraws the wake-ups that [`Claims::ask_for_wakes`] requested for `slots`, a bitmap of slots.
    pub fn end_wakes(&mut self, client: &Client, slots: u32) {
        if self.wakes & slots != 0 {
            self.wakes &= !slots;
            client.requests.set_flag(self.wakes.into());
        }
    }
}

impl Client {
    /// Opens the client's end with the two descriptors that [`create`] returned. Fails if a descriptor is not a memfd
    /// of the expected kind and length, or if it cannot be mapped.
    #[cfg(not(all(loom, test)))]
    pub fn open([requests, replies]: [OwnedFd; 2]) -> Result<Client, OpenError> {
        let requests = Segment::open_streaming(requests, REQUESTS_BYTES)?;
        let replies = Segment::open_read_only(replies, REPLIES_BYTES)?;
        let (requests, data, replies) = windows(&requests, &replies);
        let freed = std::array::from_fn(|_| AtomicBool::new(false));
        Ok(Client { requests, replies, data, freed })
    }

    /// Returns a number that identifies the server's current sleep; `None` while the server is awake. The client calls
    /// this method after [`Claims::submit`], and wakes the server once per number.
    #[inline]
    pub fn nap(&self) -> Option<u64> {
        // Pairs with the fence in Server::sleep(): the server sees the request, or this sees its sleep.
        memory::fence();
        let naps = self.replies.flag();
        (naps % 2 == 1).then_some(naps)
    }

    /// Returns the reply of a claimed slot; `None` if the reply has not arrived.
    #[inline]
    pub fn reply(&self, claim: Claim) -> Option<Line> {
        self.replies.take(line_of_slot(claim.slot), claim.tag)
    }

    /// Frees a claimed slot, after its reply has been read.
    #[inline]
    pub fn release(&self, claim: Claim) {
        // Pairs with the Acquire in find_freed().
        self.freed[claim.slot].store(true, Ordering::Release);
    }

    /// Copies `bytes` into the data area of a claimed slot. Fails if they are longer than [`SLOT_BYTES`].
    #[cfg(not(all(loom, test)))]
    pub fn write(&self, claim: Claim, bytes: &[u8]) -> Result<(), OutOfBounds> {
        self.data.write(data_at(claim.slot, bytes.len())?, bytes)
    }

    /// Fills `into` from the start of the data area of a claimed slot. Fails if `into` is longer than [`SLOT_BYTES`].
    #[cfg(not(all(loom, test)))]
    pub fn read(&self, claim: Claim, into: &mut [u8]) -> Result<(), OutOfBounds> {
        self.data.read(data_at(claim.slot, into.len())?, into)
    }
}

/// Returns the offset of a slot's data area. Fails if the slot does not exist or `len` exceeds [`SLOT_BYTES`].
#[cfg(not(all(loom, test)))]
fn data_at(slot: usize, len: usize) -> Result<u64, OutOfBounds> {
    match slot < SLOTS && len <= SLOT_BYTES {
        true => Ok((slot * SLOT_BYTES) as u64),
        false => Err(OutOfBounds { offset: 0, len: len as u64, window_len: SLOT_BYTES as u64 }),
    }
}

impl Server {
    /// Returns a copy of the next request, which stays in its line; `None` if no request waits. The copies of two calls
    /// may differ, because the client can write to the line.
    #[inline]
    pub fn peek(&self) -> Option<Line> {
        let (place, tag) = place_of(self.taken);
        self.requests.take(place, tag)
    }

    /// Removes the request that [`Server::peek`] returned. Its reply will go into `slot`. Fails if `slot` does not
    /// exist or still has an outstanding request.
    #[inline]
    pub fn take(&mut self, slot: usize) -> Result<(), BadSlot> {
        if slot >= SLOTS || self.busy & 1 << slot != 0 {
            return Err(BadSlot);
        }
        self.busy |= 1 << slot;
        self.taken += 1;
        self.uses[slot] = self.uses[slot].wrapping_add(1);
        Ok(())
    }

    /// Returns true if `slot` has an outstanding request: the server has taken the request but not replied.
    pub fn is_busy(&self, slot: usize) -> bool {
        slot < SLOTS && self.busy & 1 << slot != 0
    }

    /// Publishes the reply to the outstanding request of `slot`: the first `words` words of `line`. Returns true if the
    /// caller must wake the client. Panics if `slot` has no outstanding request.
    #[inline]
    pub fn complete(&mut self, slot: usize, line: Line, words: usize) -> bool {
        assert!(self.is_busy(slot), "slot {slot} has no outstanding request to reply to");
        self.busy &= !(1 << slot);
        self.replies.publish(line_of_slot(slot), &tagged(line, self.uses[slot])[..words]);
        // Pairs with the fence in ask_for_wakes(): the client sees the reply, or this sees its bit.
        memory::fence();
        self.requests.flag() & 1 << slot != 0
    }

    /// Announces to the client that the server is about to sleep. The caller must [peek](Server::peek) once more before
    /// it sleeps.
    pub fn sleep(&mut self) {
        self.set_naps(self.naps | 1);
        // Pairs with the fence in Client::nap().
        memory::fence();
    }

    /// Announces to the client that the server is awake and looks for requests.
    pub fn wake(&mut self) {
        self.set_naps(self.naps.next_multiple_of(2));
    }

    /// Returns true if the server has announced a sleep, so that the client must wake the server after a request.
    pub fn is_asleep(&self) -> bool {
        self.naps % 2 == 1
    }

    fn set_naps(&mut self, naps: u64) {
        if self.naps != naps {
            self.naps = naps;
            self.replies.set_flag(naps);
        }
    }

    /// Returns the memory of all data areas, and the offset in bytes of the data area of `slot` in this memory. The
    /// client may change the bytes at any time.
    #[cfg(not(all(loom, test)))]
    pub fn data(&self, slot: usize) -> (&Window, u64) {
        (&self.data, (slot * SLOT_BYTES) as u64)
    }

    /// Copies `bytes` into the data area of `slot`. Fails if they are longer than [`SLOT_BYTES`].
    #[cfg(not(all(loom, test)))]
    pub fn write(&self, slot: usize, bytes: &[u8]) -> Result<(), OutOfBounds> {
        self.data.write(data_at(slot, bytes.len())?, bytes)
    }

    /// Fills `into` from the start of the data area of `slot`. Fails if `into` is longer than [`SLOT_BYTES`].
    #[cfg(not(all(loom, test)))]
    pub fn read(&self, slot: usize, into: &mut [u8]) -> Result<(), OutOfBounds> {
        self.data.read(data_at(slot, into.len())?, into)
    }
}

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;
