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
    /// A part of the answer. Its order is that of the answer.
    type Record: Serialize + DeserializeOwned + Ord + Send;

    /// Returns true if texts may be cut behind this byte. Must be false for all bytes beyond ASCII.
    fn is_boundary(byte: u8) -> bool;

    /// Calls `emit` with the keys and values of a text.
    fn map(&self, text: Text<'_>, emit: impl FnMut(&[u8], Self::Value));

    /// Combines two values of one key. Values arrive in any order.
    fn combine(&self, into: &mut Self::Value, more: Self::Value);

    /// Returns the number that a value stands for; the sum over all keys must survive the run.
    fn weight(&self, value: &Self::Value) -> u64;

    /// Returns the sorted records of a part of the keys; may omit those that the answer cannot contain.
    fn reduce(&self, part: Table<Self::Value>) -> Vec<Self::Record>;

    /// Removes from sorted records what the answer cannot contain, whatever other records precede.
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
