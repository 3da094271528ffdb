//! The interface through which a queue pair accesses memory.

/// The kind of access that a peer requests.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Access {
    /// An RDMA read.
    Read,
    /// An RDMA write.
    Write,
    /// A fetch-add or a compare-swap.
    Atomic,
}

/// The error for a refused access: the key does not exist, does not cover the range, or does not permit this kind of
/// access. No byte was read or written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("access refused: the key does not exist, or does not allow this access to this range")]
pub struct Refused;

/// Registered memory that a queue pair accesses, addressed by key.
///
/// The owner of a key defines the meaning of its addresses. Between Halite peers, an address is the offset in bytes
/// from the start of the segment. Every method checks key and bounds, and fails without effect if they are invalid. In
/// addition, a queue pair calls [`Memory::check`] for the whole range before it executes a peer's request.
/// Implementations read and write aligned 8-byte words atomically.
pub trait Memory {
    /// Checks that `key` permits a peer this kind of `access` to `len` bytes at `address`.
    fn check(&self, key: u32, access: Access, address: u64, len: u64) -> Result<(), Refused>;

    /// Copies `target.len()` bytes from `address` to `target`.
    fn read(&self, key: u32, address: u64, target: &mut [u8]) -> Result<(), Refused>;

    /// Copies the bytes of `source` to `address`.
    fn write(&self, key: u32, address: u64, source: &[u8]) -> Result<(), Refused>;

    /// Adds `add` to the aligned 8-byte word at `address`, wrapping at overflow, and returns the previous value of the
    /// word.
    fn fetch_add(&self, key: u32, address: u64, add: u64) -> Result<u64, Refused>;

    /// Replaces the aligned 8-byte word at `address` by `new` if the word equals `expected`. Returns the previous value
    /// of the word in either case.
    fn compare_swap(&self, key: u32, address: u64, expected: u64, new: u64) -> Result<u64, Refused>;

    /// Copies from the local memory of a request that this end posted, as [`Memory::read`] does for a request of the
    /// peer. Implementations may use different keys for the two.
    fn read_own(&self, key: u32, address: u64, target: &mut [u8]) -> Result<(), Refused> {
        self.read(key, address, target)
    }

    /// Copies to the local memory of a request that this end posted, as [`Memory::write`] does for a request of the
    /// peer.
    fn write_own(&self, key: u32, address: u64, source: &[u8]) -> Result<(), Refused> {
        self.write(key, address, source)
    }
}
