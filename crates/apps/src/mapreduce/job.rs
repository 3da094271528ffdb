//! The interface of a job.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::table::Table;

/// Consecutive whole words or lines of one file.
#[derive(Debug)]
pub struct Text<'a> {
    /// Number of the file in the sorted list.
    pub file: u32,
    /// Number of this text in the file, from 0.
    pub number: u32,
    /// The bytes, which the job may change.
    pub bytes: &'a mut [u8],
}

/// A MapReduce job. All processes of a run must use equal jobs.
pub trait Job: Sync {
    /// The combined value of one key.
    type Value: Serialize + DeserializeOwned;
    /// One record of the answer. The answer is sorted by the order of this type.
    type Record: Serialize + DeserializeOwned + Ord + Send;

    /// Returns true if the engine may end a text after this byte. Must return false for all bytes beyond ASCII.
    fn is_boundary(byte: u8) -> bool;

    /// Calls `emit` with the keys and values of a text.
    fn map(&self, text: Text<'_>, emit: impl FnMut(&[u8], Self::Value));

    /// Combines `more` into `into`, two values of the same key. Values arrive in any order.
    fn combine(&self, into: &mut Self::Value, more: Self::Value);

    /// Returns the weight of a value, for verification: combining values must not change the sum of their weights.
    fn weight(&self, value: &Self::Value) -> u64;

    /// Returns the sorted records of a part of the keys. May omit records that the answer cannot contain.
    fn reduce(&self, part: Table<Self::Value>) -> Vec<Self::Record>;

    /// Removes the sorted records that the answer cannot contain, no matter which records of other parts are merged
    /// with them.
    fn shorten(&self, records: &mut Vec<Self::Record>);

    /// Merges two sorted runs.
    fn merge(&self, left: Vec<Self::Record>, right: Vec<Self::Record>) -> Vec<Self::Record> {
        let mut merged = Vec::with_capacity(left.len() + right.len());
        let (mut left, mut right) = (left.into_iter().peekable(), right.into_iter().peekable());
        while let (Some(one), Some(other)) = (left.peek(), right.peek()) {
            merged.extend(if one <= other { left.next() } else { right.next() });
        }
        merged.extend(left.chain(right));
        self.shorten(&mut merged);
        merged
    }
}
