//! Answers that are lent: read where they have arrived, instead of copied out first.
//!
//! A long answer costs a copy into the caller's slot; to copy it out again costs more than that, for every byte comes over from
//! the processor that wrote it.  A caller that wants only a part of it, or puts it somewhere else anyway, does without.

use halite_mem::Window;

/// Where a lent answer is.
#[derive(Default)]
pub(crate) enum Lent {
    /// Nowhere yet.
    #[default]
    Nowhere,
    /// In the slot, which the server's node could still write to: never a slice.
    InSlot(Window),
    /// It was too long for a slot, and has been fetched.
    Fetched(Vec<u8>),
}

impl Lent {
    /// Memory to fetch so many bytes into.
    pub(super) fn fetched(&mut self, len: usize) -> &mut [u8] {
        *self = Lent::Fetched(vec![0; len]);
        match self {
            Lent::Fetched(bytes) => bytes,
            Lent::Nowhere | Lent::InSlot(_) => unreachable!("set just before"),
        }
    }
}
