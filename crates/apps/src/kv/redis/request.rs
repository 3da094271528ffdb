//! An incremental parser of requests: an array of bulk strings, or a line.
//!
//! The decoder of crate `redis-protocol` does not limit the announced length of a bulk string, so the server could
//! refuse an oversized request only after it had received all of it into memory. It also parses arrays nested to any
//! depth, although requests contain no nested arrays.

use std::mem::take;
use std::ops::Range;

use super::super::layout::{KEY_BYTES_MAX, VALUE_BYTES_MAX};

/// Maximum number of arguments of a request, including the command: enough for `MSET` of 2^20 pairs of short values.
pub const ARGS_MAX: usize = (1 << 21) + 1;
/// Maximum length of an argument, in bytes.
pub const ARG_BYTES_MAX: usize = VALUE_BYTES_MAX;
/// Maximum length in bytes of a line: an inline request, or the announcement of a length.
pub const LINE_BYTES_MAX: usize = KEY_BYTES_MAX;
/// Maximum length of a request, in bytes: enough for the longest value.
pub const REQUEST_BYTES_MAX: usize = VALUE_BYTES_MAX + (64 << 20);

/// Maximum announced length of an argument, and number of arguments, of a request that is dropped. Beyond it, the
/// connection ends, as in Redis beyond the longest value.
const DROPPED_ARG_BYTES_MAX: usize = 1 << 30;
const DROPPED_ARGS_MAX: i64 = i32::MAX as i64;

/// Result of parsing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Parsed {
    /// The request is incomplete.
    Partial,
    /// Length of the first request; its [arguments](Parser::args) are available.
    Request(usize),
    /// Length of a piece of a request that exceeds a limit. The caller drops this piece. The second value is the limit
    /// if the request ends with this piece; otherwise `None`.
    Dropped(usize, Option<Excess>),
}

/// A limit that a well-formed request exceeds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Excess {
    /// Length of an argument, in bytes.
    #[error("an argument has {0} bytes; the maximum is {max}", max = ARG_BYTES_MAX)]
    Arg(usize),
    /// Number of arguments.
    #[error("the request has {0} arguments; the maximum is {max}", max = ARGS_MAX)]
    Args(usize),
    /// The length of the request.
    #[error("the request has more than {max} bytes", max = REQUEST_BYTES_MAX)]
    Request,
}

/// The reason why a request is malformed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ProtocolError {
    /// A line is too long.
    #[error("{0}")]
    TooLong(&'static str),
    /// The number of arguments is invalid or too high.
    #[error("invalid multibulk length")]
    Count,
    /// An argument does not start as a bulk string.
    #[error("expected '$', got '{}'", .0.escape_ascii())]
    NoBulk(u8),
    /// The length of an argument is invalid or too high.
    #[error("invalid bulk length")]
    Length,
    /// A line has an unclosed quote, or a quote that no space follows.
    #[error("unbalanced quotes in request")]
    Quotes,
}

/// Parses one request after the other, and continues when more bytes have arrived.
#[derive(Clone, Debug, Default)]
pub struct Parser {
    /// Offset in the request.
    at: usize,
    /// Minimum length of the request.
    len_min: usize,
    /// Number of arguments of an array that are not parsed yet; `None` before their number is known.
    args_left: Option<usize>,
    args: Vec<Range<usize>>,
    /// Arguments of a line, without quotes and escapes.
    unquoted: Vec<u8>,
    is_line: bool,
    /// The limit that the current request exceeds. Its rest is dropped.
    excess: Option<Excess>,
    /// Bytes of the current argument that are still to be dropped.
    to_drop: usize,
}

/// The arguments of a request.
#[derive(Clone, Copy, Debug)]
pub struct Args<'a> {
    bytes: &'a [u8],
    ranges: &'a [Range<usize>],
}

impl<'a> Args<'a> {
    /// Returns the number of arguments.
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Returns true if there are no arguments; such a request has no effect.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Returns one argument.
    pub fn get(&self, index: usize) -> Option<&'a [u8]> {
        self.ranges.get(index).map(|range| &self.bytes[range.clone()])
    }

    /// Returns all arguments in order.
    pub fn iter(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let bytes = self.bytes;
        self.ranges.iter().map(move |range| &bytes[range.clone()])
    }
}

impl std::ops::Index<usize> for Args<'_> {
    type Output = [u8];

    fn index(&self, index: usize) -> &[u8] {
        &self.bytes[self.ranges[index].clone()]
    }
}

impl Parser {
    /// Continues to parse the current request, or starts the next one. `bytes` must start with the unprocessed bytes of
    /// the last call: those that the caller has not dropped and that belong to no finished request.
    pub fn parse(&mut self, bytes: &[u8]) -> Result<Parsed, ProtocolError> {
        if self.excess.is_some() {
            return self.drop_rest(bytes);
        }
        if self.at == 0 {
            self.args.clear();
            self.unquoted.clear();
            (self.args_left, self.len_min) = (None, 0);
            self.is_line = !bytes.starts_with(b"*");
        }
        let parsed = match (bytes.is_empty(), self.is_line) {
            (true, _) => Parsed::Partial,
            (_, true) => self.parse_line(bytes)?,
            (_, false) => self.parse_array(bytes)?,
        };
        if let Parsed::Request(_) = parsed {
            self.at = 0;
        }
        Ok(parsed)
    }

    /// Returns the arguments of the parsed request at the start of `bytes`.
    pub fn args<'a>(&'a self, bytes: &'a [u8]) -> Args<'a> {
        Args { bytes: if self.is_line { &self.unquoted } else { bytes }, ranges: &self.args }
    }

    /// Returns true if the current request exceeds a limit, and its rest is dropped.
    pub(super) fn is_dropping(&self) -> bool {
        self.excess.is_some()
    }

    /// Returns a lower bound of the length of the current request, in bytes.
    pub fn len_min(&self) -> usize {
        self.len_min
    }

    fn parse_array(&mut self, bytes: &[u8]) -> Result<Parsed, ProtocolError> {
        let mut args_left = match self.args_left {
            Some(args_left) => args_left,
            None => {
                let Some((line, end)) = number_line(bytes, 1, "too big mbulk count string")? else {
                    return Ok(Parsed::Partial);
                };
                let count = parse_integer(line).filter(|count| *count <= DROPPED_ARGS_MAX);
                // Requests with no arguments, or a negative number of them, have no effect.
                let count = usize::try_from(count.ok_or(ProtocolError::Count)?).unwrap_or(0);
                self.at = end;
                self.args_left = Some(count);
                if count > ARGS_MAX {
                    return self.start_dropping(Excess::Args(count), bytes);
                }
                count
            }
        };
        while args_left > 0 {
            self.args_left = Some(args_left);
            let Some((len, begin)) = self.next_arg_len(bytes)? else { return Ok(Parsed::Partial) };
            // The two bytes after an argument are skipped unchecked, as in Redis.
            let end = begin + len + 2;
            if len > ARG_BYTES_MAX {
                return self.start_dropping(Excess::Arg(len), bytes);
            }
            if end > REQUEST_BYTES_MAX {
                return self.start_dropping(Excess::Request, bytes);
            }
            if end > bytes.len() {
                self.len_min = end;
                return Ok(Parsed::Partial);
            }
            self.args.push(begin..begin + len);
            self.at = end;
            args_left -= 1;
        }
        Ok(Parsed::Request(self.at))
    }

    /// Returns the length of the next argument, and its offset; `None` if the announcement of the length is incomplete.
    fn next_arg_len(&self, bytes: &[u8]) -> Result<Option<(usize, usize)>, ProtocolError> {
        let Some(&first) = bytes.get(self.at) else { return Ok(None) };
        if first != b'$' {
            return Err(ProtocolError::NoBulk(first));
        }
        let Some((line, begin)) = number_line(bytes, self.at + 1, "too big bulk count string")? else {
            return Ok(None);
        };
        let len = parse_integer(line).and_then(|len| usize::try_from(len).ok());
        let len = len.filter(|len| *len <= DROPPED_ARG_BYTES_MAX).ok_or(ProtocolError::Length)?;
        Ok(Some((len, begin)))
    }

    /// Starts to drop the current request.
    fn start_dropping(&mut self, excess: Excess, bytes: &[u8]) -> Result<Parsed, ProtocolError> {
        (self.args, self.len_min) = (Vec::new(), 0);
        (self.excess, self.to_drop) = (Some(excess), 0);
        self.drop_rest(bytes)
    }

    fn drop_rest(&mut self, bytes: &[u8]) -> Result<Parsed, ProtocolError> {
        let mut args_left = self.args_left.unwrap_or(0);
        loop {
            let available = self.to_drop.min(bytes.len() - self.at);
            self.at += available;
            self.to_drop -= available;
            if self.to_drop > 0 {
                break;
            }
            if args_left == 0 {
                return Ok(Parsed::Dropped(take(&mut self.at), self.excess.take()));
            }
            let Some((len, begin)) = self.next_arg_len(bytes)? else { break };
            (self.at, self.to_drop) = (begin, len + 2);
            args_left -= 1;
        }
        self.args_left = Some(args_left);
        Ok(match take(&mut self.at) {
            0 => Parsed::Partial,
            len => Parsed::Dropped(len, None),
        })
    }

    fn parse_line(&mut self, bytes: &[u8]) -> Result<Parsed, ProtocolError> {
        let end = bytes[self.at..].iter().position(|byte| *byte == b'\n');
        let len = end.map_or(bytes.len(), |end| self.at + end);
        if len > LINE_BYTES_MAX {
            return Err(ProtocolError::TooLong("too big inline request"));
        }
        if end.is_none() {
            self.at = len;
            return Ok(Parsed::Partial);
        }
        let line = &bytes[..len];
        self.split(line.strip_suffix(b"\r").unwrap_or(line))?;
        Ok(Parsed::Request(len + 1))
    }

    /// Splits a line at spaces outside of quotes; in double quotes, `\n`, `\x0a` and similar escapes stand for one
    /// byte.
    fn split(&mut self, line: &[u8]) -> Result<(), ProtocolError> {
        let mut rest = line;
        loop {
            rest = rest.trim_ascii_start();
            if rest.is_empty() {
                return Ok(());
            }
            let begin = self.unquoted.len();
            rest = self.unquote(rest)?;
            self.args.push(begin..self.unquoted.len());
        }
    }

    /// Takes the first argument of a line; returns the rest.
    fn unquote<'a>(&mut self, mut rest: &'a [u8]) -> Result<&'a [u8], ProtocolError> {
        let mut quote = None;
        loop {
            let (taken, byte) = match (quote, rest) {
                (None, []) => return Ok(rest),
                (None, [byte, ..]) if byte.is_ascii_whitespace() => return Ok(rest),
                (None, [b'"' | b'\'', ..]) => {
                    quote = Some(rest[0]);
                    rest = &rest[1..];
                    continue;
                }
                (Some(_), []) => return Err(ProtocolError::Quotes),
                (Some(b'"'), [b'\\', b'x', high, low, ..]) if is_hex(*high) && is_hex(*low) => {
                    (4, hex(*high) << 4 | hex(*low))
                }
                (Some(b'"'), [b'\\', byte, ..]) => (2, unescape(*byte)),
                (Some(b'\''), [b'\\', b'\'', ..]) => (2, b'\''),
                (Some(open), [byte, ..]) if open == *byte => {
                    rest = &rest[1..];
                    if rest.first().is_some_and(|byte| !byte.is_ascii_whitespace()) {
                        return Err(ProtocolError::Quotes);
                    }
                    return Ok(rest);
                }
                (_, [byte, ..]) => (1, *byte),
            };
            self.unquoted.push(byte);
            rest = &rest[taken..];
        }
    }
}

/// Returns the line with a number that starts at `begin`, and the offset of the next line; `None` if it is incomplete.
fn number_line<'a>(
    bytes: &'a [u8],
    begin: usize,
    too_long: &'static str,
) -> Result<Option<(&'a [u8], usize)>, ProtocolError> {
    let rest = &bytes[begin..];
    let searched = &rest[..rest.len().min(NUMBER_BYTES_MAX)];
    match searched.iter().position(|byte| *byte == b'\r') {
        // The line feed is skipped too.
        Some(len) if rest.len() > len + 1 => Ok(Some((&rest[..len], begin + len + 2))),
        None if rest.len() >= NUMBER_BYTES_MAX => Err(ProtocolError::TooLong(too_long)),
        _ => Ok(None),
    }
}

/// Maximum length of a line with a number.
const NUMBER_BYTES_MAX: usize = 32;

/// Parses a decimal number in its shortest form.
pub fn parse_integer(text: &[u8]) -> Option<i64> {
    super::super::decimal::parse_integer(text)
}

fn is_hex(byte: u8) -> bool {
    byte.is_ascii_hexdigit()
}

fn hex(byte: u8) -> u8 {
    (byte as char).to_digit(16).unwrap_or(0) as u8
}

fn unescape(byte: u8) -> u8 {
    match byte {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'b' => 8,
        b'a' => 7,
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns all requests in `bytes`, which arrive in pieces of `piece` bytes.
    fn requests(bytes: &[u8], piece: usize) -> Result<Vec<Vec<Vec<u8>>>, ProtocolError> {
        let (mut parser, mut begin, mut found) = (Parser::default(), 0, Vec::new());
        for end in (piece..bytes.len() + piece).step_by(piece) {
            let available = &bytes[..end.min(bytes.len())];
            loop {
                match parser.parse(&available[begin..])? {
                    Parsed::Partial => break,
                    Parsed::Request(len) => {
                        assert!(len > 0);
                        found.push(parser.args(&available[begin..]).iter().map(<[u8]>::to_vec).collect());
                        begin += len;
                    }
                    Parsed::Dropped(len, excess) => {
                        assert!(len > 0);
                        found.extend(excess.map(|excess| vec![excess.to_string().into_bytes()]));
                        begin += len;
                    }
                }
            }
        }
        Ok(found)
    }

    #[test]
    fn requests_parse_alike_in_pieces_of_any_length() {
        let bytes = b"*2\r\n$3\r\nGET\r\n$1\r\na\r\nPING\r\n*0\r\n\r\n*-1\r\nset 'a b' \"\\x41\\n\"\n*1\r\n$0\r\n\r\n";
        let expected: Vec<Vec<&[u8]>> = vec![
            vec![b"GET", b"a"],
            vec![b"PING"],
            vec![],
            vec![],
            vec![],
            vec![b"set", b"a b", b"A\n"],
            vec![b""],
        ];
        for piece in 1..bytes.len() {
            assert_eq!(requests(bytes, piece).unwrap(), expected, "{piece}");
        }
    }

    #[test]
    fn requests_beyond_a_limit_are_dropped_as_a_whole() {
        let count = ARGS_MAX + 1;
        let request = format!("*{count}\r\n{}ping\r\n", "$1\r\n*\r\n".repeat(count)).into_bytes();
        let excess = Excess::Args(count).to_string().into_bytes();
        for piece in [(16 << 10) + 1, request.len()] {
            assert_eq!(requests(&request, piece).unwrap(), [vec![excess.clone()], vec![b"ping".to_vec()]]);
        }
    }

    #[test]
    fn malformed_requests_are_refused_early() {
        for (bytes, expected) in [
            (&b"*x\r\n"[..], "invalid multibulk length"),
            (b"*2147483648\r\n", "invalid multibulk length"),
            (b"*1\r\n\0", "expected '$', got '\\x00'"),
            (b"*1\r\n$1073741825\r\n", "invalid bulk length"),
            (b"*2097154\r\n$1\r\na\r\n:", "expected '$', got ':'"),
            (&[b'*'; 40], "too big mbulk count string"),
            (&[b'a'; LINE_BYTES_MAX + 1], "too big inline request"),
            (b"get \"a\r\n", "unbalanced quotes in request"),
            (b"get 'a'b\r\n", "unbalanced quotes in request"),
        ] {
            for piece in [1, 7, bytes.len()] {
                assert_eq!(requests(bytes, piece).unwrap_err().to_string(), expected);
            }
        }
    }
}
