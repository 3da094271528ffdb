//! The records in a ring: their kinds, and the layout of a small write.
//!
//! ```text
//!   kind        payload
//!   0 Notice    -                                   the sender has executed a write with this immediate
//!   1 Send      the message                         a message with this immediate
//!   2 Write     address u64, bytes to the end       a write that the receiver must execute, with this immediate
//!
//!   address:    | offset, 48 bits | key, 16 bits |
//! ```
//!
//! A write of up to 48 bytes takes one cache line with its address and immediate, so only this line moves between
//! cores.

use halite_fabric::{Key, RemoteAddress};

pub(super) const NOTICE: u8 = 0;
pub(super) const SEND: u8 = 1;
pub(super) const WRITE: u8 = 2;

/// Bytes of the address in front of the data.
pub(super) const ADDRESS_BYTES: usize = 8;
/// Maximum number of bytes of a write inside the ring: with header and address, eight cache lines. The header of
/// [`super`] describes such writes.
///
/// Round trips in ns between two processes on a busy virtual machine, best of 50 runs; two cache lines without any
/// other work take 281 ns:
///
/// ```text
///   bytes               48   112   240   496
///   inside the ring    346   501   565   769
///   copied when posted 588   629   750  1109
/// ```
///
/// For longer writes, the second copy would cost more than the ring saves, and would delay the bytes.
pub(super) const SMALL_WRITE_BYTES_MAX: usize = 496;

const OFFSET_BITS: u32 = 48;

/// Packs an address into a word. Returns `None` if key or offset is too large; the poster then copies the bytes itself.
pub(super) fn pack(address: RemoteAddress) -> Option<u64> {
    let RemoteAddress { key, offset } = address;
    let fits = key.0 <= u16::MAX.into() && offset < 1 << OFFSET_BITS;
    fits.then_some(offset | u64::from(key.0) << OFFSET_BITS)
}

/// Unpacks an address from a word. Accepts any word; the caller must check that the address exists.
pub(super) fn unpack(word: u64) -> RemoteAddress {
    let key = Key((word >> OFFSET_BITS) as u32);
    RemoteAddress { key, offset: word & ((1 << OFFSET_BITS) - 1) }
}
