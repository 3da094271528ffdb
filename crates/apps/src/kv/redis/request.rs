//! An incremental parser of requests: an array of bulk strings, or a line.
//!
//! The decoder of crate `redis-protocol` is not suitable. It accepts any announced length of a bulk string, so an
//! oversized request could be refused only after it had arrived. It also parses arrays nested to any depth, although
//! requests contain no nested arrays.

use std::ops::Range;

use super::super::layout::{KEY_BYTES_MAX, VALUE_BYTES_MAX};

/// Maximum number of arguments of a request, including the command.
pub const ARGS_MAX: usize = 1 << 20;
/// Maximum length of an argument, in bytes.
pub const ARG_BYTES_MAX: usize = VALUE_BYTES_MAX;
/// Maximum length in bytes of a line: an inline request, or the announcement of a length.
pub const LINE_BYTES_MAX: usize = KEY_BYTES_MAX;
/// Maximum length of a request, in bytes.
pub const REQUEST_BYTES_MAX: usize = 64 << 20;

/// The reason why a request is malformed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ProtocolError {
    /// A line or the request is too long.
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
    /// Number of arguments of an array that are still to come.
    left: Option<usize>,
    args: Vec<Range<usize>>,
    /// Arguments of a line with quotes, in place of its bytes.
    unquoted: Vec<u8>,
    is_line: bool,
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
    /// Continues to parse `bytes`, which start with the same bytes as in the last call, or with a new request. Returns
    /// the length of the first request once it is complete; its [arguments](Parser::args) are available then.
    pub fn parse(&mut self, bytes: &[u8]) -> Result<Option<usize>, ProtocolError> {
        if self.at == 0 {
            self.args.clear();
            self.unquoted.clear();
            (self.left, self.len_min) = (None, 0);
            self.is_line = !bytes.starts_with(b"*");
        }
        let done = match (bytes.is_empty(), self.is_line) {
            (true, _) => return Ok(None),
            (_, true) => self.parse_line(bytes)?,
            (_, false) => self.parse_array(bytes)?,
        };
        if done.is_some() {
            self.at = 0;
        } else if bytes.len() > REQUEST_BYTES_MAX {
            return Err(ProtocolError::TooLong("too big request"));
        }
        Ok(done)
    }

    /// Returns the arguments of the parsed request at the start of `bytes`.
    pub fn args<'a>(&'a self, bytes: &'a [u8]) -> Args<'a> {
        Args { bytes: if self.is_line { &self.unquoted } else { bytes }, ranges: &self.args }
    }

    /// Returns a lower bound of the length of the current request, in bytes.
    pub fn len_min(&self) -> usize {
        self.len_min
    }

    fn parse_array(&mut self, bytes: &[u8]) -> Result<Option<usize>, ProtocolError> {
        let mut left = match self.left {
            Some(left) => left,
            None => {
                let Some((line, end)) = line_of(bytes, 1, "too big mbulk count string")? else {
                    return Ok(None);
                };
                let count = number_of(line).ok_or(ProtocolError::Count)?;
                if count > ARGS_MAX as i64 {
                    return Err(ProtocolError::Count);
                }
                self.at = end;
                // Requests with no arguments, or a negative number of them, have no effect.
                usize::try_from(count).unwrap_or(0)
            }
        };
        while left > 0 {
            self.left = Some(left);
            let Some(&first) = bytes.get(self.at) else { return Ok(None) };
            if first != b'$' {
                return Err(ProtocolError::NoBulk(first));
            }
            let Some((line, begin)) = line_of(bytes, self.at + 1, "too big bulk count string")? else {
                return Ok(None);
            };
            let len = number_of(line).and_then(|len| usize::try_from(len).ok());
            let len = len.filter(|len| *len <= ARG_BYTES_MAX).ok_or(ProtocolError::Length)?;
            // The two bytes after an argument are skipped unchecked, as in Redis.
            let end = begin + len + 2;
            if end > REQUEST_BYTES_MAX {
                return Err(ProtocolError::TooLong("too big request"));
            }
            if end > bytes.len() {
                self.len_min = end;
                return Ok(None);
            }
            self.args.push(begin..begin + len);
            self.at = end;
            left -= 1;
        }
        Ok(Some(self.at))
    }

    fn parse_line(&mut self, bytes: &[u8]) -> Result<Option<usize>, ProtocolError> {
        let end = bytes[self.at..].iter().position(|byte| *byte == b'\n');
        let len = end.map_or(bytes.len(), |end| self.at + end);
        if len > LINE_BYTES_MAX {
            return Err(ProtocolError::TooLong("too big inline request"));
        }
        if end.is_none() {
            self.at = len;
            return Ok(None);
        }
        let line = &bytes[..len];
        self.split(line.strip_suffix(b"\r").unwrap_or(line))?;
        Ok(Some(len + 1))
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
                (Some(b'"'), [b'\\', byte, ..]) => (2, escaped(*byte)),
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

/// Returns the line from `begin`, and the start of the next.
fn line_of<'a>(
    bytes: &'a [u8],
    begin: usize,
    too_long: &'static str,
) -> Result<Option<(&'a [u8], usize)>, ProtocolError> {
    let rest = &bytes[begin..];
    let looked_through = &rest[..rest.len().min(NUMBER_BYTES_MAX)];
    match looked_through.iter().position(|byte| *byte == b'\r') {
        // The line feed is skipped too.
        Some(len) if rest.len() > len + 1 => Ok(Some((&rest[..len], begin + len + 2))),
        None if rest.len() >= NUMBER_BYTES_MAX => Err(ProtocolError::TooLong(too_long)),
        _ => Ok(None),
    }
}

/// Maximum number of digits of an accepted number.
const NUMBER_BYTES_MAX: usize = 32;

/// Parses a decimal number in its shortest form.
pub fn number_of(text: &[u8]) -> Option<i64> {
    super::super::shard::number_of(text)
}

fn is_hex(byte: u8) -> bool {
    byte.is_ascii_hexdigit()
}

fn hex(byte: u8) -> u8 {
    (byte as char).to_digit(16).unwrap_or(0) as u8
}

fn escaped(byte: u8) -> u8 {
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
            let there = &bytes[..end.min(bytes.len())];
            while let Some(len) = parser.parse(&there[begin..])? {
                assert!(len > 0);
                found.push(parser.args(&there[begin..]).iter().map(<[u8]>::to_vec).collect());
                begin += len;
            }
        }
        Ok(found)
    }

    #[test]
    fn requests_are_the_same_in_whatever_pieces_they_come() {
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
    fn malformed_requests_are_refused_early() {
        for (bytes, expected) in [
            (&b"*x\r\n"[..], "invalid multibulk length"),
            (b"*1048577\r\n", "invalid multibulk length"),
            (b"*1\r\n\0", "expected '$', got '\\x00'"),
            (b"*1\r\n$1048577\r\n", "invalid bulk length"),
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
