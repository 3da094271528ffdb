//! What clients and the owners of shards say to each other, by calls.
//!
//! ```text
//!   request   op u8 | store u64 | number i64 | number i64 | key bytes u32 | key | value        numbers as the operation has them
//!             store: the hash of its name, since another may be served where one was
//!   answer    kind u8 | number i64 | bytes
//!   together  len u32 | request | len u32 | request ...     as the value of a request; its answer has the answers as bytes, likewise
//! ```

/// What a client asks for.
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
    },
    Delete {
        key: &'a [u8],
    },
    /// Answers the value, and removes it.
    Take {
        key: &'a [u8],
    },
    /// Answers the value, and changes until when it is kept.
    GetAndExpire {
        key: &'a [u8],
        expires: Expires,
    },
    /// Answers the new length.
    Append {
        key: &'a [u8],
        value: &'a [u8],
    },
    /// Answers the new number.
    Add {
        key: &'a [u8],
        number: i64,
    },
    /// Answers whether there is such a key, and the condition held.
    Expire {
        key: &'a [u8],
        expires: Expires,
        when: When,
    },
    /// Answers the time that is left, in ms; -1 if it is for ever.
    TimeLeft {
        key: &'a [u8],
    },
    /// Answers some keys, and where to go on.
    Scan {
        from: u64,
        count: u64,
    },
    Count,
    Clear,
    /// The owner ends, and what it has made goes.
    Close,
    /// Several, each of which [is answered by a number](Request::is_answered_shortly) at most.
    Together {
        requests: &'a [u8],
    },
}

/// On which condition something is set.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Only {
    /// On none.
    #[default]
    Always,
    /// If there is no such key.
    IfAbsent,
    /// If there is one.
    IfPresent,
}

/// Until when a key is kept.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Expires {
    /// For ever.
    #[default]
    Never,
    /// As long as it would have been.
    Unchanged,
    /// For so many ms, from when the owner hears of it.
    After {
        /// How many; none makes it go at once.
        ms: u64,
    },
}

/// On which condition it changes until when a key is kept.  What is kept for ever goes later than all that expires.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum When {
    /// On none.
    #[default]
    Always,
    /// If it is kept for ever.
    KeptForEver,
    /// If it expires at some time.
    Expiring,
    /// If it goes later by that.
    Later,
    /// If it goes sooner by that.
    Sooner,
    /// If it expires at some time, and goes sooner by that.
    SoonerIfExpiring,
}

/// What the owner answers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Answer<'a> {
    /// Done; or a number that was asked for.
    Number(i64),
    /// A value that was asked for, or keys.
    Bytes(i64, &'a [u8]),
    /// There is no such key, or the condition does not hold.
    Nothing,
    Full,
    NotANumber,
    /// The sum would have more than 64 bits.
    Overflow,
    TooLong,
    /// The request makes no sense.
    Malformed,
    /// The request is for another store than is served here.
    AnotherStore,
    /// The directory of names does not answer, and there is no room without it.
    NoDirectory,
}

/// Longest answer that is no value and no keys.
const SHORT_ANSWER_BYTES: usize = 9;

/// Puts bytes behind others, for [`parts`] to tell them apart.
pub(super) fn push_part(into: &mut Vec<u8>, part: &[u8]) {
    into.extend((part.len() as u32).to_le_bytes());
    into.extend(part);
}

/// Bytes that were put one behind the other, up to the first that are cut.
pub(super) fn parts(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (len, after) = bytes.split_first_chunk()?;
        let (part, after) = after.split_at_checked(u32::from_le_bytes(*len) as usize)?;
        bytes = after;
        Some(part)
    })
}

/// How long the answer to so many requests may be that are asked together.
pub(super) fn together_bytes_max(count: usize) -> usize {
    SHORT_ANSWER_BYTES + count * (size_of::<u32>() + SHORT_ANSWER_BYTES)
}

impl<'a> Request<'a> {
    /// Whether it may be asked together with others: however many they are, their answers are no longer than they.
    pub(super) fn is_answered_shortly(&self) -> bool {
        match self {
            Request::Set { returns_old, .. } => !returns_old,
            Request::Delete { .. }
            | Request::Append { .. }
            | Request::Add { .. }
            | Request::Expire { .. }
            | Request::TimeLeft { .. } => true,
            _ => false,
        }
    }

    /// For the store of that number.
    pub(super) fn encode(&self, store: u64, into: &mut Vec<u8>) {
        let none = (0, 0, &[][..], &[][..]);
        let (op, (one, two, key, value)) = match *self {
            Request::Get { key } => (0, (0, 0, key, &[][..])),
            Request::Set { key, value, only, expires, returns_old } => {
                let only = match only {
                    Only::Always => 0,
                    Only::IfAbsent => 1,
                    Only::IfPresent => 2,
                };
                (1, (only | i64::from(returns_old) << 8, encode_expires(expires), key, value))
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
            Request::Clear => (9, none),
            Request::Close => (10, none),
            Request::Take { key } => (11, (0, 0, key, &[][..])),
            Request::GetAndExpire { key, expires } => (12, (encode_expires(expires), 0, key, &[][..])),
            Request::Together { requests } => (13, (0, 0, &[][..], requests)),
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

    /// For which store it is, and what it asks for; `None` for what is no request.
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
                let expires = decode_expires(two)?;
                Request::Set { key, value, only, expires, returns_old: one >> 8 & 1 != 0 }
            }
            2 => Request::Delete { key },
            3 => Request::Append { key, value },
            4 => Request::Add { key, number: one },
            5 => Request::Expire { key, expires: decode_expires(one)?, when: decode_when(two)? },
            6 => Request::TimeLeft { key },
            7 => Request::Scan { from: one as u64, count: two as u64 },
            8 => Request::Count,
            9 => Request::Clear,
            10 => Request::Close,
            11 => Request::Take { key },
            12 => Request::GetAndExpire { key, expires: decode_expires(one)? },
            13 => Request::Together { requests: value },
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
    }
}

fn decode_expires(number: i64) -> Option<Expires> {
    match number {
        -1 => Some(Expires::Never),
        -2 => Some(Expires::Unchanged),
        _ => Some(Expires::After { ms: u64::try_from(number).ok()? }),
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
        };
        into.clear();
        into.push(kind);
        into.extend(i64::to_le_bytes(number));
        into.extend(bytes);
    }

    /// Those to requests that were asked together, one behind the other; if these were not looked at, what was answered to all.
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
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_as_written_and_cut_ones_refused() {
        let (key, value) = (&b"key"[..], &b"value"[..]);
        let expires = Expires::After { ms: 7 };
        let mut bytes = Vec::new();
        for request in [
            Request::Get { key },
            Request::Set { key, value, only: Only::IfAbsent, expires, returns_old: true },
            Request::Delete { key },
            Request::Append { key, value },
            Request::Add { key, number: -3 },
            Request::Expire { key, expires, when: When::Sooner },
            Request::TimeLeft { key },
            Request::Scan { from: 1 << 60, count: 9 },
            Request::Count,
            Request::Clear,
            Request::Close,
            Request::Take { key },
            Request::GetAndExpire { key, expires },
            Request::Together { requests: value },
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
        assert_eq!((Request::decode(&[14; 30]), Answer::decode(&[10; 9])), (None, None));
    }
}
