//! Payload of calls: bytes that derive from the call's number, so that bytes of another call are detected.

use super::ledger::CallId;

/// Minimum length of an input in bytes: room for the number of its call.
pub(super) const INPUT_BYTES_MIN: usize = 8;

const INPUT: u64 = 0x9e37_79b9_7f4a_7c15;
const OUTPUT: u64 = 0xc2b2_ae3d_27d4_eb4f;

/// Flag of a call to several nodes: the number is that of the first call, and the others follow.
const MANY_NODES: u64 = 1 << 63;
/// Position of the first node's number.
const FIRST_SHIFT: u32 = 48;

/// Returns the input of one call.
pub(super) fn input(id: CallId, len: usize) -> Vec<u8> {
    stamped_bytes(id.0, len)
}

/// Returns the input of calls to nodes from `node` on; `first` is the first call.
pub(super) fn input_to_many(first: CallId, node: u32, len: usize) -> Vec<u8> {
    stamped_bytes(MANY_NODES | u64::from(node) << FIRST_SHIFT | first.0, len)
}

fn stamped_bytes(stamp: u64, len: usize) -> Vec<u8> {
    let mut bytes = pattern(stamp.wrapping_mul(INPUT), len);
    bytes[..INPUT_BYTES_MIN].copy_from_slice(&stamp.to_le_bytes());
    bytes
}

fn stamp_of(input: &[u8]) -> Option<u64> {
    input.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

/// Returns the call that arrived with `input` at a node; `None` if the input is too short.
pub(super) fn id_of(input: &[u8], node: u32) -> Option<CallId> {
    let stamp = stamp_of(input)?;
    if stamp & MANY_NODES == 0 {
        return Some(CallId(stamp));
    }
    let first_node = (stamp & !MANY_NODES) >> FIRST_SHIFT;
    let first = stamp & ((1 << FIRST_SHIFT) - 1);
    u64::from(node).checked_sub(first_node).map(|step| CallId(first + step))
}

/// Returns true if `input` is undamaged and has that length.
pub(super) fn is_input(input: &[u8], len: usize) -> bool {
    input.len() == len && stamp_of(input).is_some_and(|stamp| input == stamped_bytes(stamp, len))
}

pub(super) fn output(id: CallId, len: usize) -> Vec<u8> {
    pattern(id.0.wrapping_mul(OUTPUT), len)
}

fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len.next_multiple_of(8)];
    for (index, word) in bytes.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&(seed ^ index as u64).wrapping_mul(INPUT | 1).to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}
