//! Gives a segment the same key in all parts of a composite.
//!
//! All parts register the same segments in the same order, so all parts return the same ordinals. If a part fails to
//! register a segment, the registration fails, but the parts before it have already used the ordinal. Those parts keep
//! the segment registered under a key that the caller never learns. The next registration first registers that segment
//! in the remaining parts, so that the ordinals agree again. If this fails, the new registration fails, too. So at most
//! one segment is kept without use.

use std::collections::BTreeMap;
use std::sync::Arc;

use halite_mem::Segment;

use super::Part;
use crate::{Key, RegisterError};

/// The keys registered so far.
#[derive(Debug, Default)]
pub(super) struct Keys {
    /// The next ordinal.
    next: u32,
    gap: Option<Gap>,
    /// Deregistered keys, with the number of parts that have not confirmed yet.
    deregistered: BTreeMap<Key, usize>,
    /// The first unexpected key, after which the ordinals of the parts can no longer agree.
    mismatch: Option<Mismatch>,
}

/// A segment that is registered only in the parts before `index`.
#[derive(Debug)]
struct Gap {
    segment: Arc<Segment>,
    index: usize,
}

#[derive(Clone, Copy, Debug)]
struct Mismatch {
    provider: &'static str,
    expected: Key,
    given: Key,
}

impl Keys {
    pub(super) fn register(&mut self, parts: &[Part], segment: Arc<Segment>) -> Result<Key, RegisterError> {
        if let Some(mismatch) = self.mismatch {
            return Err(mismatch.into());
        }
        if let Some(Gap { segment, index }) = self.gap.take() {
            self.register_from(index, parts, segment)?;
        }
        self.register_from(0, parts, segment)
    }

    /// Records that the deregistration of a key in `parts` parts has started. Returns false if the key is not
    /// registered.
    pub(super) fn deregister(&mut self, key: Key, parts: usize) -> bool {
        let is_new = key.0 < self.next && !self.deregistered.contains_key(&key);
        if is_new {
            self.deregistered.insert(key, parts);
        }
        is_new
    }

    /// Counts the confirmation of one part. Returns true once all parts have confirmed.
    pub(super) fn handle_deregistered(&mut self, key: Key) -> bool {
        let left = self.deregistered.get_mut(&key).filter(|left| **left > 0);
        let Some(left) = left else { return false };
        *left -= 1;
        *left == 0
    }

    /// Registers `segment` in the parts from `index` on. The earlier parts have already registered it.
    fn register_from(
        &mut self,
        index: usize,
        parts: &[Part],
        segment: Arc<Segment>,
    ) -> Result<Key, RegisterError> {
        let expected = Key(self.next);
        for (index, part) in parts.iter().enumerate().skip(index) {
            let given = match part.fabric.register(segment.clone()) {
                Ok(given) => given,
                Err(error) => {
                    self.gap = (index > 0).then_some(Gap { segment, index });
                    return Err(error);
                }
            };
            if given != expected {
                let mismatch = Mismatch { provider: part.name, expected, given };
                self.mismatch = Some(mismatch);
                debug_assert!(false, "{}", RegisterError::from(mismatch));
                return Err(mismatch.into());
            }
        }
        self.next += 1;
        Ok(expected)
    }
}

impl From<Mismatch> for RegisterError {
    fn from(Mismatch { provider, expected, given }: Mismatch) -> RegisterError {
        RegisterError::Mismatch { provider, expected, given }
    }
}
