//! Values: rows of entries of one length, each of which shows by whom it was written.

/// Bytes of an entry: a number, and another that follows from it and from what kind of entry it is.
pub(super) const ENTRY_BYTES: usize = 16;

/// What a value is known by: its entries in their order, folded.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Value {
    pub(super) entries: u64,
    folded: u64,
}

impl Value {
    const EMPTY: Value = Value { entries: 0, folded: 0 };

    /// With an entry more.
    pub(super) fn and(self, token: u64) -> Value {
        let folded = self.folded.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(token);
        Value { entries: self.entries + 1, folded }
    }

    /// What was appended to nothing.
    pub(super) fn of(token: u64) -> Value {
        Value::EMPTY.and(token)
    }

    /// `None` if the bytes are no row of entries.
    pub(super) fn read(bytes: &[u8]) -> Option<Value> {
        let (entries, []) = bytes.as_chunks::<ENTRY_BYTES>() else { return None };
        entries.iter().try_fold(Value::EMPTY, |value, entry| {
            let (token, check) = entry.split_at(8);
            let token = u64::from_le_bytes(token.try_into().ok()?);
            (check == (!token).to_le_bytes()).then(|| value.and(token))
        })
    }
}

/// So many entries with the same number.
pub(super) fn bytes(token: u64, entries: u64) -> Vec<u8> {
    let entry = [token.to_le_bytes(), (!token).to_le_bytes()].concat();
    entry.repeat(entries as usize)
}
