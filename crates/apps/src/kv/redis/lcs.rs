//! `LCS`: the longest common subsequence of two values.

use super::super::decimal::parse_integer;
use super::commands::{NOT_AN_INTEGER, SYNTAX, is};
use super::reply::{Replies, Reply};
use super::request::Args;

/// Maximum product of the lengths of the values, each plus 1. The table has 4 bytes for each of these cells.
const CELLS_MAX: usize = 1 << 24;

/// The requested properties of the longest common subsequence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Lcs {
    wanted: Wanted,
    /// Minimum length of the reported ranges.
    len_min: usize,
    has_lengths: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wanted {
    Bytes,
    Length,
    Ranges,
}

/// Equal ranges of both values: their starts, and their length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Range {
    begins: [usize; 2],
    len: usize,
}

impl Lcs {
    /// Parses the options of `LCS`.
    pub(super) fn parse(args: Args<'_>) -> Result<Lcs, Reply<'static>> {
        let (mut has_length, mut has_ranges, mut len_min, mut has_lengths) = (false, false, 0, false);
        let mut options = args.iter().skip(3);
        while let Some(option) = options.next() {
            if is(option, "len") {
                has_length = true;
            } else if is(option, "idx") {
                has_ranges = true;
            } else if is(option, "withmatchlen") {
                has_lengths = true;
            } else if is(option, "minmatchlen")
                && let Some(number) = options.next()
            {
                let number = parse_integer(number).ok_or_else(|| Reply::error(NOT_AN_INTEGER))?;
                len_min = usize::try_from(number).unwrap_or(0);
            } else {
                return Err(Reply::error(SYNTAX));
            }
        }
        let wanted = match (has_length, has_ranges) {
            (true, true) => {
                let why = "ERR If you want both the length and indexes, please just use IDX.";
                return Err(Reply::error(why));
            }
            (true, false) => Wanted::Length,
            (false, true) => Wanted::Ranges,
            (false, false) => Wanted::Bytes,
        };
        Ok(Lcs { wanted, len_min, has_lengths })
    }

    /// Writes the reply for two values.
    pub(super) fn reply(self, values: [&[u8]; 2], replies: &mut Replies) {
        let [one, other] = values.map(<[u8]>::len);
        if (one + 1).saturating_mul(other + 1) > CELLS_MAX {
            return replies.push(&Reply::error(format!(
                "ERR LCS takes too much memory for values of {one} and {other} bytes; the maximum product is {CELLS_MAX}"
            )));
        }
        let (bytes, ranges) = common_subsequence(values);
        let number = |number: usize| Reply::Integer(number as i64);
        match self.wanted {
            Wanted::Bytes => replies.push(&Reply::Bulk(&bytes)),
            Wanted::Length => replies.push(&number(bytes.len())),
            Wanted::Ranges => {
                let long = ranges.into_iter().filter(|range| range.len >= self.len_min);
                let matches = long.map(|Range { begins, len }| {
                    let bounds =
                        begins.map(|begin| Reply::Array(vec![number(begin), number(begin + len - 1)]));
                    Reply::Array(bounds.into_iter().chain(self.has_lengths.then(|| number(len))).collect())
                });
                replies.push(&Reply::Map(vec![
                    (Reply::Bulk(b"matches"), Reply::Array(matches.collect())),
                    (Reply::Bulk(b"len"), number(bytes.len())),
                ]));
            }
        }
    }
}

/// Returns a longest common subsequence, and its ranges, the last one first. Of several, it is the one of Redis.
fn common_subsequence([one, other]: [&[u8]; 2]) -> (Vec<u8>, Vec<Range>) {
    // At `[at(i, j)]`: the length for the first i bytes of one value and the first j bytes of the other.
    let width = other.len() + 1;
    let at = |i: usize, j: usize| i * width + j;
    let mut lengths = vec![0u32; (one.len() + 1) * width];
    for (i, byte) in one.iter().enumerate() {
        for (j, other) in other.iter().enumerate() {
            lengths[at(i + 1, j + 1)] = match byte == other {
                true => lengths[at(i, j)] + 1,
                false => lengths[at(i, j + 1)].max(lengths[at(i + 1, j)]),
            };
        }
    }
    let (mut bytes, mut ranges): (Vec<u8>, Vec<Range>) = (Vec::new(), Vec::new());
    let (mut i, mut j) = (one.len(), other.len());
    while i > 0 && j > 0 {
        if one[i - 1] == other[j - 1] {
            bytes.push(one[i - 1]);
            match ranges.last_mut().filter(|range| range.begins == [i, j]) {
                Some(range) => *range = Range { begins: [i - 1, j - 1], len: range.len + 1 },
                None => ranges.push(Range { begins: [i - 1, j - 1], len: 1 }),
            }
            (i, j) = (i - 1, j - 1);
        } else if lengths[at(i - 1, j)] > lengths[at(i, j - 1)] {
            i -= 1;
        } else {
            j -= 1;
        }
    }
    bytes.reverse();
    (bytes, ranges)
}
