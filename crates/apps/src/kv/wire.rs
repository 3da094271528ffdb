//! Requests to owners of shards and their answers, as the contents of calls.
//!
//! ```text
//!   request   op u8 | store u64 | number i64 | number i64 | key bytes u32 | key | value        numbers by operation
//!             store: hash of the store's name, because the same function may serve another store later
//!   answer    kind u8 | number i64 | bytes
//!   batch     len u32 | request | len u32 | request ...     as a request's value; its answer holds the answers
//! ```

use std::time::Duration;

use super::fields::Field;
use super::limit::Eviction;

/// A client's request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Request<'a> {
    Get {
        key: &'a [u8],
    },
    Set {
        key: &'a [u8],
        value: &'a [u8],
        only: Only,
        expires: Expires,
        returns_old: bool,
        /// True if the value had another key, which is then removed. The limit of memory does not apply.
        is_renamed: bool,
    },
    Delete {
        key: &'a [u8],
    },
    /// Returns the value and removes it.
    Take {
        key: &'a [u8],
    },
    /// Returns the value and sets its expiry.
    GetAndExpire {
        key: &'a [u8],
        expires: Expires,
    },
    /// Returns the new length.
    Append {
        key: &'a [u8],
        value: &'a [u8],
    },
    /// Returns the new number.
    Add {
        key: &'a [u8],
        number: i64,
    },
    /// Sets the expiry; returns true if the key exists and the condition held.
    Expire {
        key: &'a [u8],
        expires: Expires,
        when: When,
    },
    /// Returns the time left in ms; -1 if the key never expires.
    TimeLeft {
        key: &'a [u8],
    },
    /// Returns the time of the owner's clock at which the key expires, in ms; -1 if never.
    ExpireTime {
        key: &'a [u8],
    },
    /// Returns some keys, and the cursor to continue at.
    Scan {
        from: u64,
        count: u64,
    },
    Count,
    /// Returns the bytes of all entries and of the table, and the number of evicted keys.
    Memory,
    /// Limits the memory of the shard.
    Limit {
        bytes: u64,
        eviction: Eviction,
    },
    Clear,
    /// Ends the owner and frees its memory.
    Close,
    /// Returns a number that is greater after each change of the key, and perhaps after changes of other keys.
    Watch {
        key: &'a [u8],
    },
    /// Removes the key if its value is equal to this one, or if it differs.
    DeleteIf {
        key: &'a [u8],
        value: &'a [u8],
        is_equal: bool,
    },
    /// Overwrites a part of the value, which grows if necessary; returns its length.
    SetRange {
        key: &'a [u8],
        offset: u64,
        value: &'a [u8],
    },
    /// Sets a bit; returns the old one.
    SetBit {
        key: &'a [u8],
        offset: u64,
        bit: bool,
    },
    /// Returns the sum of two decimal numbers.
    AddFloat {
        key: &'a [u8],
        value: &'a [u8],
    },
    /// Returns the results for encoded [fields](super::fields::Field): for each a flag, and a number if it is 1.
    BitFields {
        key: &'a [u8],
        value: &'a [u8],
    },
    /// Several requests, each [with a short answer](Request::has_short_answer).
    Batch {
        requests: &'a [u8],
    },
}

/// Condition of setting a value.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Only {
    /// No condition.
    #[default]
    Always,
    /// The key must not exist.
    IfAbsent,
    /// The key must exist.
    IfPresent,
}

/// Expiry of a value.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Expires {
    /// The value never expires.
    #[default]
    Never,
    /// The expiry stays as it is.
    Unchanged,
    /// The value expires this many ms after the owner receives the request.
    After {
        /// Time in ms; 0 removes the key at once.
        ms: u64,
    },
    /// The value expires at this time of the owner's clock; one that has passed removes the key at once.
    At {
        /// Time in ms.
        ms: u64,
    },
}

/// Condition of a change of expiry. A key without an expiry counts as one that expires later than any other.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum When {
    /// No condition.
    #[default]
    Always,
    /// The key has no expiry.
    KeptForEver,
    /// The key has an expiry.
    Expiring,
    /// The new expiry is later.
    Later,
    /// The new expiry is sooner.
    Sooner,
    /// The key has an expiry, and the new one is sooner.
    SoonerIfExpiring,
}

/// An owner's answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Answer<'a> {
    /// Success, or the requested number.
    Number(i64),
    /// The requested value, or keys.
    Bytes(i64, &'a [u8]),
    /// The key does not exist, or the condition does not hold.
    Nothing,
    Full,
    NotANumber,
    /// The value, or the number to add, is no decimal number.
    NotAFloat,
    /// The sum is infinite.
    Infinite,
    /// The sum exceeds 64 bits.
    Overflow,
    TooLong,
    /// The request is malformed.
    Malformed,
    /// The request is for another store.
    AnotherStore,
    /// The directory of names does not answer, and the shard has no room without it.
    NoDirectory,
}

/// Rate at which a slow host moves values of up to 512 MB.
const BYTES_PER_S_MIN: u64 = 64 << 20;

/// Returns the timeout of a request. `timeout` is that of a short one.
pub(super) fn timeout_of(request: &[u8], timeout: Duration) -> Duration {
    timeout + Duration::from_secs(request.len() as u64 / BYTES_PER_S_MIN)
}

/// Maximum length of an answer without a value or keys.
const SHORT_ANSWER_BYTES: usize = 9;

/// Appends bytes behind their length, for [`parts`].
pub(super) fn push_part(into: &mut Vec<u8>, part: &[u8]) {
    into.extend((part.len() as u32).to_le_bytes());
    into.extend(part);
}

/// Splits bytes written by [`push_part`]; ends at the first incomplete part.
pub(super) fn parts(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (len, after) = bytes.split_first_chunk()?;
        let (part, after) = after.split_at_checked(u32::from_le_bytes(*len) as usize)?;
        bytes = after;
        Some(part)
    })
}

/// Maximum length of the answer to a batch of `count` requests.
pub(super) fn batch_answer_bytes_max(count: usize) -> usize {
    SHORT_ANSWER_BYTES + count * (size_of::<u32>() + SHORT_ANSWER_BYTES)
}

impl<'a> Request<'a> {
    /// Returns true if the request is refused at the limit of the shard's memory, as in Redis: if it sets a value or a
    /// part of one.
    pub(super) fn may_grow(&self) -> bool {
        match self {
            Request::Set { is_renamed, .. } => !is_renamed,
            Request::Append { .. }
            | Request::Add { .. }
            | Request::AddFloat { .. }
            | Request::SetRange { .. }
            | Request::SetBit { .. } => true,
            Request::BitFields { value, .. } => {
                Field::decode_all(value).is_some_and(|fields| fields.iter().any(Field::writes))
            }
            _ => false,
        }
    }

    /// Returns true if the answer has no value, so that the request may be part of a batch: the answers are never
    /// longer than the requests.
    pub(super) fn has_short_answer(&self) -> bool {
        match self {
            Request::Set { returns_old, .. } => !returns_old,
            Request::Delete { .. }
            | Request::Append { .. }
            | Request::Add { .. }
            | Request::Expire { .. }
            | Request::Watch { .. }
            | Request::SetRange { .. }
            | Request::SetBit { .. }
            | Request::DeleteIf { .. }
            | Request::ExpireTime { .. }
            | Request::TimeLeft { .. } => true,
            _ => false,
        }
    }

    /// Encodes the request to the store with that number.
    pub(super) fn encode(&self, store: u64, into: &mut Vec<u8>) {
        let none = (0, 0, &[][..], &[][..]);
        let (op, (one, two, key, value)) = match *self {
            Request::Get { key } => (0, (0, 0, key, &[][..])),
            Request::Set { key, value, only, expires, returns_old, is_renamed } => {
                let only = match only {
                    Only::Always => 0,
                    Only::IfAbsent => 1,
                    Only::IfPresent => 2,
                };
                let flags = i64::from(returns_old) << 8 | i64::from(is_renamed) << 9;
                (1, (only | flags, encode_expires(expires), key, value))
            }
            Request::Delete { key } => (2, (0, 0, key, &[][..])),
            Request::Append { key, value } => (3, (0, 0, key, value)),
            Request::Add { key, number } => (4, (number, 0, key, &[][..])),
            Request::Expire { key, expires, when } => {
                (5, (encode_expires(expires), encode_when(when), key, &[][..]))
            }
            Request::TimeLeft { key } => (6, (0, 0, key, &[][..])),
            Request::Scan { from, count } => (7, (from as i64, count as i64, &[][..], &[][..])),
            Request::Count => (8, none),
            Request::Memory => (20, none),
            Request::Limit { bytes, eviction } => (21, (bytes as i64, eviction as i64, &[][..], &[][..])),
            Request::Clear => (9, none),
            Request::Close => (10, none),
            Request::Take { key } => (11, (0, 0, key, &[][..])),
            Request::GetAndExpire { key, expires } => (12, (encode_expires(expires), 0, key, &[][..])),
            Request::Batch { requests } => (13, (0, 0, &[][..], requests)),
            Request::Watch { key } => (14, (0, 0, key, &[][..])),
            Request::DeleteIf { key, value, is_equal } => (15, (is_equal.into(), 0, key, value)),
            Request::SetRange { key, offset, value } => (16, (offset as i64, 0, key, value)),
            Request::SetBit { key, offset, bit } => (17, (offset as i64, bit.into(), key, &[][..])),
            Request::AddFloat { key, value } => (18, (0, 0, key, value)),
            Request::BitFields { key, value } => (19, (0, 0, key, value)),
            Request::ExpireTime { key } => (22, (0, 0, key, &[][..])),
        };
        into.clear();
        into.push(op);
        into.extend(store.to_le_bytes());
        into.extend(i64::to_le_bytes(one));
        into.extend(i64::to_le_bytes(two));
        into.extend((key.len() as u32).to_le_bytes());
        into.extend(key);
        into.extend(value);
    }

    /// Decodes the store's number and the request; `None` if malformed.
    pub(super) fn decode(bytes: &'a [u8]) -> Option<(u64, Request<'a>)> {
        let (&op, rest) = bytes.split_first()?;
        let (store, rest) = rest.split_first_chunk()?;
        let (one, rest) = rest.split_first_chunk()?;
        let (two, rest) = rest.split_first_chunk()?;
        let (key_len, rest) = rest.split_first_chunk()?;
        let (one, two) = (i64::from_le_bytes(*one), i64::from_le_bytes(*two));
        let (key, value) = rest.split_at_checked(u32::from_le_bytes(*key_len) as usize)?;
        let request = match op {
            0 => Request::Get { key },
            1 => {
                let only = match one & 0xff {
                    0 => Only::Always,
                    1 => Only::IfAbsent,
                    2 => Only::IfPresent,
                    _ => return None,
                };
                let expires = decode_expires(two);
                let (returns_old, is_renamed) = (one >> 8 & 1 != 0, one >> 9 & 1 != 0);
                Request::Set { key, value, only, expires, returns_old, is_renamed }
            }
            2 => Request::Delete { key },
            3 => Request::Append { key, value },
            4 => Request::Add { key, number: one },
            5 => Request::Expire { key, expires: decode_expires(one), when: decode_when(two)? },
            6 => Request::TimeLeft { key },
            7 => Request::Scan { from: one as u64, count: two as u64 },
            8 => Request::Count,
            20 => Request::Memory,
            21 => {
                let (eviction, _) = *Eviction::NAMES.get(usize::try_from(two).ok()?)?;
                Request::Limit { bytes: one as u64, eviction }
            }
            9 => Request::Clear,
            10 => Request::Close,
            11 => Request::Take { key },
            12 => Request::GetAndExpire { key, expires: decode_expires(one) },
            13 => Request::Batch { requests: value },
            14 => Request::Watch { key },
            15 => Request::DeleteIf { key, value, is_equal: one != 0 },
            16 => Request::SetRange { key, offset: one as u64, value },
            17 => Request::SetBit { key, offset: one as u64, bit: two != 0 },
            18 => Request::AddFloat { key, value },
            19 => Request::BitFields { key, value },
            22 => Request::ExpireTime { key },
            _ => return None,
        };
        Some((u64::from_le_bytes(*store), request))
    }
}

fn encode_expires(expires: Expires) -> i64 {
    match expires {
        Expires::Never => -1,
        Expires::Unchanged => -2,
        Expires::After { ms } => i64::try_from(ms).unwrap_or(i64::MAX),
        Expires::At { ms } => i64::MIN.saturating_add_unsigned(ms).min(-3),
    }
}

fn decode_expires(number: i64) -> Expires {
    match number {
        -1 => Expires::Never,
        -2 => Expires::Unchanged,
        0.. => Expires::After { ms: number as u64 },
        _ => Expires::At { ms: number.abs_diff(i64::MIN) },
    }
}

const WHEN: [When; 6] =
    [When::Always, When::KeptForEver, When::Expiring, When::Later, When::Sooner, When::SoonerIfExpiring];

fn encode_when(when: When) -> i64 {
    WHEN.iter().position(|one| *one == when).expect("all are listed") as i64
}

fn decode_when(number: i64) -> Option<When> {
    WHEN.get(usize::try_from(number).ok()?).copied()
}

impl<'a> Answer<'a> {
    pub(super) fn encode(&self, into: &mut Vec<u8>) {
        let (kind, number, bytes) = match *self {
            Answer::Number(number) => (0, number, &[][..]),
            Answer::Bytes(number, bytes) => (1, number, bytes),
            Answer::Nothing => (2, 0, &[][..]),
            Answer::Full => (3, 0, &[][..]),
            Answer::NotANumber => (4, 0, &[][..]),
            Answer::TooLong => (5, 0, &[][..]),
            Answer::Malformed => (6, 0, &[][..]),
            Answer::Overflow => (7, 0, &[][..]),
            Answer::AnotherStore => (8, 0, &[][..]),
            Answer::NoDirectory => (9, 0, &[][..]),
            Answer::NotAFloat => (10, 0, &[][..]),
            Answer::Infinite => (11, 0, &[][..]),
        };
        into.clear();
        into.reserve(1 + size_of_val(&number) + bytes.len());
        into.push(kind);
        into.extend(i64::to_le_bytes(number));
        into.extend(bytes);
    }

    /// Returns the answers to the requests of a batch; if the batch was refused as a whole, the one refusal.
    pub(super) fn each(bytes: &'a [u8]) -> impl Iterator<Item = Option<Answer<'a>>> {
        let whole = Answer::decode(bytes);
        let mut answers = match whole {
            Some(Answer::Bytes(_, bytes)) => Some(parts(bytes)),
            _ => None,
        };
        std::iter::from_fn(move || {
            Some(match &mut answers {
                Some(answers) => answers.next().and_then(Answer::decode),
                None => whole.clone(),
            })
        })
    }

    pub(super) fn decode(bytes: &'a [u8]) -> Option<Answer<'a>> {
        let (&kind, rest) = bytes.split_first()?;
        let (number, bytes) = rest.split_first_chunk()?;
        let number = i64::from_le_bytes(*number);
        Some(match kind {
            0 => Answer::Number(number),
            1 => Answer::Bytes(number, bytes),
            2 => Answer::Nothing,
            3 => Answer::Full,
            4 => Answer::NotANumber,
            5 => Answer::TooLong,
            6 => Answer::Malformed,
            7 => Answer::Overflow,
            8 => Answer::AnotherStore,
            9 => Answer::NoDirectory,
            10 => Answer::NotAFloat,
            11 => Answer::Infinite,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_requests_have_more_time() {
        let timeout = Duration::from_secs(5);
        assert_eq!(timeout_of(b"short", timeout), timeout);
        assert_eq!(timeout_of(&vec![0; 128 << 20], timeout), Duration::from_secs(7));
    }

    #[test]
    fn messages_round_trip_and_truncated_ones_are_refused() {
        let (key, value) = (&b"key"[..], &b"value"[..]);
        let expires = Expires::After { ms: 7 };
        let mut bytes = Vec::new();
        for request in [
            Request::Get { key },
            Request::Set { key, value, only: Only::IfAbsent, expires, returns_old: true, is_renamed: false },
            Request::Delete { key },
            Request::Append { key, value },
            Request::Add { key, number: -3 },
            Request::Expire { key, expires, when: When::Sooner },
            Request::TimeLeft { key },
            Request::ExpireTime { key },
            Request::Expire { key, expires: Expires::At { ms: 1 << 42 }, when: When::Always },
            Request::Scan { from: 1 << 60, count: 9 },
            Request::Count,
            Request::Memory,
            Request::Limit { bytes: u64::MAX, eviction: Eviction::SoonestExpiry },
            Request::Clear,
            Request::Close,
            Request::Take { key },
            Request::GetAndExpire { key, expires },
            Request::Batch { requests: value },
            Request::Watch { key },
            Request::DeleteIf { key, value, is_equal: true },
            Request::SetRange { key, offset: 3, value },
            Request::SetBit { key, offset: 3, bit: true },
            Request::AddFloat { key, value },
            Request::BitFields { key, value },
        ] {
            request.encode(77, &mut bytes);
            assert_eq!(Request::decode(&bytes), Some((77, request)));
            assert_eq!(Request::decode(&bytes[..20]), None);
        }
        for answer in
            [Answer::Number(-1), Answer::Bytes(3, value), Answer::Nothing, Answer::Full, Answer::NoDirectory]
        {
            answer.encode(&mut bytes);
            assert_eq!(Answer::decode(&bytes), Some(answer));
            assert_eq!(Answer::decode(&bytes[..8]), None);
        }
        assert_eq!((Request::decode(&[23; 30]), Answer::decode(&[12; 9])), (None, None));
    }
}
