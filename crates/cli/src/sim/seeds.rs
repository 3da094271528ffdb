//! Ranges of seeds on the command line.

use std::num::ParseIntError;
use std::ops::Range;
use std::str::FromStr;

/// A half-open range of seeds: `3..17`, or `3..` without an end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seeds(pub Range<u64>);

/// The reason why a text is not a range of seeds.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SeedsError {
    /// The text does not have two dots.
    #[error("expected a range of seeds such as 0..5000 or 5000..")]
    Malformed,
    /// One end is not a number.
    #[error("{text:?} is not a seed: {cause}")]
    Seed {
        text: String,
        /// The reason why the text is not a number.
        cause: ParseIntError,
    },
    /// The end is not greater than the start.
    #[error("the range {0}..{1} is empty")]
    Empty(u64, u64),
}

impl Default for Seeds {
    fn default() -> Seeds {
        Seeds(0..u64::MAX)
    }
}

impl FromStr for Seeds {
    type Err = SeedsError;

    fn from_str(text: &str) -> Result<Seeds, SeedsError> {
        let (first, end) = text.split_once("..").ok_or(SeedsError::Malformed)?;
        let (first, end) = (seed(first)?, if end.is_empty() { u64::MAX } else { seed(end)? });
        if first < end { Ok(Seeds(first..end)) } else { Err(SeedsError::Empty(first, end)) }
    }
}

fn seed(text: &str) -> Result<u64, SeedsError> {
    text.parse().map_err(|cause| SeedsError::Seed { text: text.to_owned(), cause })
}
