//! Registered memory, and the rkeys by which the two ends of a connection address this memory.
//!
//! An rkey is the segment's key XORed with a salt that the peer received when it connected, so a third party can only
//! guess an rkey at random. Local requests hold references to the segments that they use, in the order of posting, so
//! the requests complete even if a key is deregistered meanwhile.

use std::sync::RwLock;

use halite_mem::{AccessError, Window};
use halite_rnic::{Access, Held, Memory, Refused};

use super::read;

/// Windows of whole segments, by key; `None` after deregistration. The list never shrinks.
pub(super) type Registered = RwLock<Vec<Option<Window>>>;

/// All memory that a queue pair can access.
pub(super) struct View<'a> {
    pub(super) registered: &'a Registered,
    /// Salt of this end's keys in the peer's packets.
    pub(super) salt: u32,
    pub(super) held: &'a Held<Window>,
}

impl View<'_> {
    /// Calls `then` with the window of an rkey while it holds the lock, so that the key cannot be deregistered during
    /// the access.
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
        self.held.get(key)?.read(address, target).map_err(|_| Refused)
    }

    fn write_own(&self, key: u32, address: u64, source: &[u8]) -> Result<(), Refused> {
        self.held.get(key)?.write(address, source).map_err(|_| Refused)
    }
}
