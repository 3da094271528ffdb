//! The memory that a queue pair accesses: for requests of the peer, the segments that its fabric has registered; for
//! requests that the fabric itself has posted, their local memory.

use halite_mem::Window;
use halite_rnic::wire::AtomicEthRepr;
use halite_rnic::{Access, Held, Memory, Refused};

/// Memory for one call of a queue pair; see the header of this file.
pub(super) struct View<'a> {
    pub(super) segments: &'a [Option<Window>],
    /// Number of the segments' keys that the peer may use.
    pub(super) keys_usable: u32,
    pub(super) held: &'a Held<Window>,
    /// The word of an atomic, as the adapter has read it in the first step.
    pub(super) word: Option<u64>,
}

impl View<'_> {
    /// Reads the word of an atomic, if its address is valid.
    pub(super) fn load(&self, eth: &AtomicEthRepr) -> Option<u64> {
        self.segment(eth.rkey).ok()?.load_u64(eth.address).ok()
    }

    fn segment(&self, key: u32) -> Result<&Window, Refused> {
        let segment = self.segments.get(key as usize).filter(|_| key < self.keys_usable);
        segment.and_then(Option::as_ref).ok_or(Refused)
    }

    /// Executes an atomic by `execute`, atomically with respect to processors. If the adapter has already read the
    /// word, only writes the result of `new_value`, and so overwrites changes since the read.
    fn execute_atomic(
        &self,
        key: u32,
        address: u64,
        execute: impl FnOnce(&Window) -> Result<u64, Refused>,
        new_value: impl FnOnce(u64) -> Option<u64>,
    ) -> Result<u64, Refused> {
        let window = self.segment(key)?;
        let Some(old) = self.word else { return execute(window) };
        if let Some(new) = new_value(old) {
            window.store_u64(address, new).map_err(refused)?;
        }
        Ok(old)
    }
}

fn refused<E>(_: E) -> Refused {
    Refused
}

impl Memory for View<'_> {
    fn check(&self, key: u32, _: Access, address: u64, len: u64) -> Result<(), Refused> {
        let end = address.checked_add(len).ok_or(Refused)?;
        if end <= self.segment(key)?.len() { Ok(()) } else { Err(Refused) }
    }

    fn read(&self, key: u32, address: u64, target: &mut [u8]) -> Result<(), Refused> {
        self.segment(key)?.read(address, target).map_err(refused)
    }

    fn write(&self, key: u32, address: u64, source: &[u8]) -> Result<(), Refused> {
        self.segment(key)?.write(address, source).map_err(refused)
    }

    fn fetch_add(&self, key: u32, address: u64, add: u64) -> Result<u64, Refused> {
        let execute = |window: &Window| window.fetch_add_u64(address, add).map_err(refused);
        self.execute_atomic(key, address, execute, |old| Some(old.wrapping_add(add)))
    }

    fn compare_swap(&self, key: u32, address: u64, expected: u64, new: u64) -> Result<u64, Refused> {
        let execute = |window: &Window| window.compare_exchange_u64(address, expected, new).map_err(refused);
        self.execute_atomic(key, address, execute, |old| (old == expected).then_some(new))
    }

    fn read_own(&self, key: u32, address: u64, target: &mut [u8]) -> Result<(), Refused> {
        self.held.get(key)?.read(address, target).map_err(refused)
    }

    fn write_own(&self, key: u32, address: u64, source: &[u8]) -> Result<(), Refused> {
        self.held.get(key)?.write(address, source).map_err(refused)
    }
}
