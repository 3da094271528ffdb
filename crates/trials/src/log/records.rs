//! Records whose bytes derive from a token, so that a reader can identify each record and detect damage.

/// Maximum length of a payload in bytes: several slots.
const PAYLOAD_BYTES_MAX: u64 = 100;
/// One in this many tokens is a transaction of several records.
const TRANSACTION_PERIOD: u64 = 4;

/// Returns the records of a token; usually one.
pub(super) fn of(token: u64) -> Vec<Vec<u8>> {
    let count = if token.is_multiple_of(TRANSACTION_PERIOD) { 2 + token / TRANSACTION_PERIOD % 2 } else { 1 };
    (0..count).map(|index| record(token, index)).collect()
}

/// Returns the token of the records that were read; `None` if they are damaged.
pub(super) fn token_of(records: &[Vec<u8>]) -> Option<u64> {
    let token = u64::from_le_bytes(*records.first()?.first_chunk()?);
    (of(token) == records).then_some(token)
}

fn record(token: u64, index: u64) -> Vec<u8> {
    let hash = (token * 4 + index).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let fill = (hash >> 40) % (PAYLOAD_BYTES_MAX + 1);
    let mut bytes = token.to_le_bytes().to_vec();
    bytes.extend((0..fill).map(|at| (hash >> (at % 8 * 8)) as u8));
    bytes
}
