//! Values: sequences of entries of equal length. Each entry names its writer.

/// Length of an entry in bytes: a token, and a check word.
pub(super) const ENTRY_BYTES: usize = 16;

/// A digest of a value: its entries in order, folded.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Value {
    pub(super) entries: u64,
    folded: u64,
}

impl Value {
    const EMPTY: Value = Value { entries: 0, folded: 0 };

    /// Returns the value with one more entry.
    pub(super) fn push(self, token: u64) -> Value {
        let folded = self.folded.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(token);
        Value { entries: self.entries + 1, folded }
    }

    /// Returns the value of one entry.
    pub(super) fn of(token: u64) -> Value {
        Value::EMPTY.push(token)
    }

    /// Parses a value; returns `None` if the bytes are not a sequence of entries.
    pub(super) fn parse(bytes: &[u8]) -> Option<Value> {
        let (entries, []) = bytes.as_chunks::<ENTRY_BYTES>() else { return None };
        entries.iter().try_fold(Value::EMPTY, |value, entry| {
            let (token, check) = entry.split_at(8);
            let token = u64::from_le_bytes(token.try_into().ok()?);
            (check == (!token).to_le_bytes()).then(|| value.push(token))
        })
    }
}

/// Returns the bytes of some entries with the same token.
pub(super) fn bytes(token: u64, entries: u64) -> Vec<u8> {
    let entry = [token.to_le_bytes(), (!token).to_le_bytes()].concat();
    entry.repeat(entries as usize)
}
