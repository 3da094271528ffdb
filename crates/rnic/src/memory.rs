//! The interface through which a queue pair accesses memory.

/// The kind of access that a peer requests.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Access {
    /// RDMA read.
    Read,
    /// RDMA write.
    Write,
    /// Fetch-add or compare-swap.
    Atomic,
}

/// A refused access: the key does not exist, does not cover the range, or does not permit this access. No byte was read
/// or written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the key does not allow this access")]
pub struct Refused;

/// Registered memory, addressed by key.
///
/// The owner of a key defines what addresses mean; between Halite peers, they are offsets from the start of the
/// segment. Every method checks key and bounds, and a queue pair calls [`Memory::check`] before it executes a peer's
/// request. Implementations read and write aligned 8-byte words atomically.
pub trait Memory {
    /// Checks that the peer may access `len` bytes at `address` in the way of `access`.
    fn check(&self, key: u32, access: Access, address: u64, len: u64) -> Result<(), Refused>;

    /// Fills `target` with the bytes from `address` on.
    fn read(&self, key: u32, address: u64, target: &mut [u8]) -> Result<(), Refused>;

    /// Copies `source` to `address`.
    fn write(&self, key: u32, address: u64, source: &[u8]) -> Result<(), Refused>;

    /// Adds to the aligned word at `address`, wrapping, and returns its previous value.
    fn fetch_add(&self, key: u32, address: u64, add: u64) -> Result<u64, Refused>;

    /// Replaces the aligned word at `address` if it equals `expected`, and returns its previous value.
    fn compare_swap(&self, key: u32, address: u64, expected: u64, new: u64) -> Result<u64, Refused>;

    /// As [`Memory::read`], for the local memory of a local request, whose keys may be separate from those that peers
    /// use.
    fn read_own(&self, key: u32, address: u64, target: &mut [u8]) -> Result<(), Refused> {
        self.read(key, address, target)
    }

    /// As [`Memory::write`], for a local request.
    fn write_own(&self, key: u32, address: u64, source: &[u8]) -> Result<(), Refused> {
        self.write(key, address, source)
    }
}
