//! Records that derive from a token, so that a record that was read identifies itself and shows damage.

/// Maximum length of a payload in bytes: several slots.
const FILL_MAX: u64 = 100;
/// One of this many tokens is a transaction of several records.
const ONE_OF: u64 = 4;

/// Returns the records of a token; usually one.
pub(super) fn of(token: u64) -> Vec<Vec<u8>> {
    let count = if token.is_multiple_of(ONE_OF) { 2 + token / ONE_OF % 2 } else { 1 };
    (0..count).map(|index| record(token, index)).collect()
}

/// Returns the token of the records that were read; `None` if they are damaged.
pub(super) fn token_of(records: &[Vec<u8>]) -> Option<u64> {
    let token = u64::from_le_bytes(*records.first()?.first_chunk()?);
    (of(token) == records).then_some(token)
}

fn record(token: u64, index: u64) -> Vec<u8> {
    let mixed = (token * 4 + index).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let fill = (mixed >> 40) % (FILL_MAX + 1);
    let mut bytes = token.to_le_bytes().to_vec();
    bytes.extend((0..fill).map(|at| (mixed >> (at % 8 * 8)) as u8));
    bytes
}
