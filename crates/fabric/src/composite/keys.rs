//! One numbering of keys for all parts of a composite.
//!
//! All parts register the same segments in the same order, so all give the same ordinals.  A part that refuses makes
//! the whole refuse, but what the parts before it have registered cannot be taken back.  So their ordinal is used up: the segment
//! stays registered with them, under a key that nobody is ever told, and the parts that lack it get it, too, before they get the
//! next one.  While they go on refusing, nothing is registered anywhere, so one segment at most is held in vain.

use std::collections::BTreeMap;
use std::sync::Arc;

use halite_mem::Segment;

use super::Part;
use crate::{Key, RegisterError};

/// What has been registered so far.
#[derive(Debug, Default)]
pub(super) struct Keys {
    /// The next ordinal.
    next: u32,
    gap: Option<Gap>,
    /// Keys that were taken back, and how many parts have not told so yet.
    deregistered: BTreeMap<Key, usize>,
    /// The first key that was not the one that was to come; the ordinals of the parts cannot be the same after that.
    mismatch: Option<Mismatch>,
}

/// A segment that has its ordinal in the parts before `index` only.
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

    /// A key is taken back of `parts` parts.  `false` if it is none of ours, or was taken back before.
    pub(super) fn deregister(&mut self, key: Key, parts: usize) -> bool {
        let is_new = key.0 < self.next && !self.deregistered.contains_key(&key);
        if is_new {
            self.deregistered.insert(key, parts);
        }
        is_new
    }

    /// A part has told so; whether it is the last one.
    pub(super) fn handle_deregistered(&mut self, key: Key) -> bool {
        let left = self.deregistered.get_mut(&key).filter(|left| **left > 0);
        let Some(left) = left else { return false };
        *left -= 1;
        *left == 0
    }

    /// Registers `segment` in the parts from `index` on; those before have it.
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
