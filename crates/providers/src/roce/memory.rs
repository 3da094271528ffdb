//! Registered memory, as the two ends of a connection name it.
//!
//! A peer names a segment by its key, hidden by a salt that it was told when it connected: an rkey that a stranger guesses is no
//! more likely to be right than any other number.  Our own requests hold what they name, in the order in which they were posted, so
//! that they are carried out though a key is taken back meanwhile.

use std::collections::VecDeque;
use std::sync::RwLock;

use halite_mem::{AccessError, Window};
use halite_rnic::{Access, Memory, Refused};

use super::read;

/// Windows of whole segments, but of those that were taken back; a key is an index.  Only ever grows.
pub(super) type Registered = RwLock<Vec<Option<Window>>>;

/// The windows that posted requests hold, oldest first.
#[derive(Debug, Default)]
pub(super) struct HeldWindows {
    /// The number of the oldest one, which counts all that were ever posted.
    first: u32,
    windows: VecDeque<Option<Window>>,
}

impl HeldWindows {
    /// The key of the next request that is posted.
    pub(super) fn next_key(&self) -> u32 {
        self.first.wrapping_add(self.windows.len() as u32)
    }

    /// A request was posted.
    pub(super) fn push(&mut self, window: Option<Window>) {
        self.windows.push_back(window);
    }

    /// Only so many of the last have not ended.
    pub(super) fn keep_last(&mut self, count: usize) {
        let ended = self.windows.len().saturating_sub(count);
        self.windows.drain(..ended);
        self.first = self.first.wrapping_add(ended as u32);
    }

    fn window(&self, key: u32) -> Result<&Window, Refused> {
        let index = key.wrapping_sub(self.first) as usize;
        self.windows.get(index).and_then(Option::as_ref).ok_or(Refused)
    }
}

/// All memory that a queue pair sees.
pub(super) struct View<'a> {
    pub(super) registered: &'a Registered,
    /// What the peer hides our keys by.
    pub(super) salt: u32,
    pub(super) held: &'a HeldWindows,
}

impl View<'_> {
    /// The lock is held until `then` is done, so that a key that was taken back is not being used any more.
    fn with<R, E>(&self, rkey: u32, then: impl FnOnce(&Window) -> Result<R, E>) -> Result<R, Refused> {
        let registered = read(self.registered);
        let window = registered.get((rkey ^ self.salt) as usize).and_then(Option::as_ref).ok_or(Refused)?;
        then(window).map_err(|_| Refused)
    }
}

impl Memory for View<'_> {
    fn check(&self, key: u32, _: Access, address: u64, len: u64) -> Result<(), Refused> {
        let is_inside = |window: &Window| address <= window.len() && len <= window.len() - address;
        self.with(key, |window| if is_inside(window) { Ok(()) } else { Err(Refused) })
    }

    fn read(&self, key: u32, address: u64, target: &mut [u8]) -> Result<(), Refused> {
        self.with(key, |window| window.read(address, target))
    }

    fn write(&self, key: u32, address: u64, source: &[u8]) -> Result<(), Refused> {
        self.with(key, |window| window.write(address, source))
    }

    fn fetch_add(&self, key: u32, address: u64, add: u64) -> Result<u64, Refused> {
        self.with::<_, AccessError>(key, |window| window.fetch_add_u64(address, add))
    }

    fn compare_swap(&self, key: u32, address: u64, expected: u64, new: u64) -> Result<u64, Refused> {
        self.with::<_, AccessError>(key, |window| window.compare_exchange_u64(address, expected, new))
    }

    fn read_own(&self, key: u32, address: u64, target: &mut [u8]) -> Result<(), Refused> {
        self.held.window(key)?.read(address, target).map_err(|_| Refused)
    }

    fn write_own(&self, key: u32, address: u64, source: &[u8]) -> Result<(), Refused> {
        self.held.window(key)?.write(address, source).map_err(|_| Refused)
    }
}
