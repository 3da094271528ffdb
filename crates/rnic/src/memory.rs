//! What a queue pair needs of the memory that it moves bytes to and from.

/// What a peer wants to do with memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Access {
    /// Its reads.
    Read,
    /// Its writes.
    Write,
    /// Its atomics.
    Atomic,
}

/// There is no such key, it does not hold these bytes, or they may not be used so.  Nothing was touched.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the key does not allow this access")]
pub struct Refused;

/// Registered memory, behind keys.
///
/// Addresses are those that the owner of a key gives out; by agreement of our own ends they count from the start of a segment.
/// All methods check bounds, and whatever a peer names is checked before it is touched.  Aligned words of eight bytes are read and written in one piece.
pub trait Memory {
    /// Whether the peer may access `len` bytes at `address` so.
    fn check(&self, key: u32, access: Access, address: u64, len: u64) -> Result<(), Refused>;

    /// Copies bytes out, as many as `target` takes.
    fn read(&self, key: u32, address: u64, target: &mut [u8]) -> Result<(), Refused>;

    /// Copies `source` in.
    fn write(&self, key: u32, address: u64, source: &[u8]) -> Result<(), Refused>;

    /// Adds to the aligned word at `address`, wrapping, and returns what it held before.
    fn fetch_add(&self, key: u32, address: u64, add: u64) -> Result<u64, Refused>;

    /// Replaces the aligned word at `address` if it holds `expected`, and returns what it held before.
    fn compare_swap(&self, key: u32, address: u64, expected: u64, new: u64) -> Result<u64, Refused>;

    /// Copies bytes out for a request of our own, whose keys need not be those that peers use.
    fn read_own(&self, key: u32, address: u64, target: &mut [u8]) -> Result<(), Refused> {
        self.read(key, address, target)
    }

    /// Copies `source` in for a request of our own, likewise.
    fn write_own(&self, key: u32, address: u64, source: &[u8]) -> Result<(), Refused> {
        self.write(key, address, source)
    }
}
