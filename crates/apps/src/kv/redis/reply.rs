//! Replies in versions 2 and 3 of the protocol, encoded by crate `redis-protocol`.

use redis_protocol::error::RedisProtocolError;
use redis_protocol::{resp2, resp3};

/// Version of the protocol that a connection speaks.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) enum Protocol {
    #[default]
    Resp2,
    Resp3,
}

/// A reply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Reply<'a> {
    Status(&'a str),
    Error(String),
    Integer(i64),
    Bulk(&'a [u8]),
    Text(String),
    Null,
    /// Null in place of an array.
    NullArray,
    Array(Vec<Reply<'a>>),
    /// A map; in version 2, an array of keys and values in turn.
    Map(Vec<(Reply<'a>, Reply<'a>)>),
}

/// The output of a connection, and its protocol version.
#[derive(Debug, Default)]
pub(super) struct Replies {
    pub(super) protocol: Protocol,
    pub(super) bytes: Vec<u8>,
}

impl Replies {
    /// Appends a reply.
    pub(super) fn push(&mut self, reply: &Reply<'_>) {
        reply.write(self.protocol, &mut self.bytes);
    }

    /// Starts an array. The caller pushes its `len` elements afterwards.
    pub(super) fn begin_array(&mut self, len: usize) {
        self.bytes.extend(format!("*{len}\r\n").bytes());
    }
}

/// The reply OK.
pub(super) const OK: Reply<'static> = Reply::Status("OK");

impl Reply<'_> {
    /// Returns an error, reduced to one line.
    pub(super) fn error(text: impl Into<String>) -> Reply<'static> {
        let text: String = text.into();
        let is_clean = !text.contains(['\r', '\n']);
        Reply::Error(if is_clean { text } else { text.replace(['\r', '\n'], " ") })
    }

    /// Appends the encoded reply to `out`.
    pub(super) fn write(&self, protocol: Protocol, out: &mut Vec<u8>) {
        match protocol {
            Protocol::Resp2 => self.write_resp2(out),
            Protocol::Resp3 => self.write_resp3(out),
        }
    }

    fn write_resp2(&self, out: &mut Vec<u8>) {
        use resp2::types::{BorrowedFrame, Resp2Frame};
        // The most frequent reply to changes.
        if matches!(self, Reply::Status("OK")) {
            return out.extend_from_slice(b"+OK\r\n");
        }
        let borrowed = |frame: BorrowedFrame<'_>, out: &mut Vec<u8>| {
            let encode = |room: &mut [u8]| resp2::encode::encode_borrowed(room, &frame, false);
            append(out, frame.encode_len(false), encode);
        };
        match self {
            Reply::Status(text) => borrowed(BorrowedFrame::SimpleString(text.as_bytes()), out),
            Reply::Error(text) => borrowed(BorrowedFrame::Error(text), out),
            Reply::Integer(number) => borrowed(BorrowedFrame::Integer(*number), out),
            Reply::Bulk(bytes) => borrowed(BorrowedFrame::BulkString(bytes), out),
            Reply::Text(text) => borrowed(BorrowedFrame::BulkString(text.as_bytes()), out),
            Reply::Null => borrowed(BorrowedFrame::Null, out),
            Reply::NullArray => out.extend(b"*-1\r\n"),
            Reply::Array(_) | Reply::Map(_) => {
                let frame = self.to_resp2();
                append(out, frame.encode_len(false), |room| resp2::encode::encode(room, &frame, false));
            }
        }
    }

    fn to_resp2(&self) -> resp2::types::OwnedFrame {
        use resp2::types::OwnedFrame;
        match self {
            Reply::Status(text) => OwnedFrame::SimpleString(text.as_bytes().to_vec()),
            Reply::Error(text) => OwnedFrame::Error(text.clone()),
            Reply::Integer(number) => OwnedFrame::Integer(*number),
            Reply::Bulk(bytes) => OwnedFrame::BulkString(bytes.to_vec()),
            Reply::Text(text) => OwnedFrame::BulkString(text.as_bytes().to_vec()),
            Reply::Null | Reply::NullArray => OwnedFrame::Null,
            Reply::Array(replies) => OwnedFrame::Array(replies.iter().map(Reply::to_resp2).collect()),
            Reply::Map(pairs) => OwnedFrame::Array(
                pairs.iter().flat_map(|(key, value)| [key.to_resp2(), value.to_resp2()]).collect(),
            ),
        }
    }

    fn write_resp3(&self, out: &mut Vec<u8>) {
        use resp3::encode::complete;
        use resp3::types::{BorrowedFrame, Resp3Frame};
        let attributes = None;
        let borrowed = |frame: BorrowedFrame<'_>, out: &mut Vec<u8>| {
            append(out, frame.encode_len(false), |room| complete::encode_borrowed(room, &frame, false));
        };
        match self {
            Reply::Bulk(data) => borrowed(BorrowedFrame::BlobString { data, attributes }, out),
            Reply::Status(text) => {
                borrowed(BorrowedFrame::SimpleString { data: text.as_bytes(), attributes }, out);
            }
            Reply::Integer(data) => borrowed(BorrowedFrame::Number { data: *data, attributes }, out),
            Reply::Null | Reply::NullArray => borrowed(BorrowedFrame::Null, out),
            _ => {
                let frame = self.to_resp3();
                append(out, frame.encode_len(false), |room| complete::encode(room, &frame, false));
            }
        }
    }

    fn to_resp3(&self) -> resp3::types::OwnedFrame {
        use resp3::types::OwnedFrame;
        let attributes = None;
        match self {
            Reply::Status(text) => OwnedFrame::SimpleString { data: text.as_bytes().to_vec(), attributes },
            Reply::Error(text) => OwnedFrame::SimpleError { data: text.clone(), attributes },
            Reply::Integer(number) => OwnedFrame::Number { data: *number, attributes },
            Reply::Bulk(bytes) => OwnedFrame::BlobString { data: bytes.to_vec(), attributes },
            Reply::Text(text) => OwnedFrame::BlobString { data: text.as_bytes().to_vec(), attributes },
            Reply::Null | Reply::NullArray => OwnedFrame::Null,
            Reply::Array(replies) => {
                OwnedFrame::Array { data: replies.iter().map(Reply::to_resp3).collect(), attributes }
            }
            Reply::Map(pairs) => {
                let data = pairs.iter().map(|(key, value)| (key.to_resp3(), value.to_resp3())).collect();
                OwnedFrame::Map { data, attributes }
            }
        }
    }
}

/// Formats a client's bytes for an error message. Bytes that are not UTF-8 appear in hexadecimal.
pub(super) fn printable(bytes: &[u8]) -> String {
    let mut text = String::new();
    for chunk in bytes.utf8_chunks() {
        text += chunk.valid();
        text.extend(chunk.invalid().iter().map(|byte| format!("\\x{byte:02x}")));
    }
    text
}

/// Appends what `encode` writes, at most `len` bytes. The crate counts one digit too many for some numbers from
/// 999,999,999,999,998 on.
fn append(
    out: &mut Vec<u8>,
    len: usize,
    encode: impl FnOnce(&mut [u8]) -> Result<usize, RedisProtocolError>,
) {
    let begin = out.len();
    out.resize(begin + len, 0);
    let encoded = encode(&mut out[begin..]).expect("the buffer has room");
    out.truncate(begin + encoded);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded_text(reply: &Reply<'_>, protocol: Protocol) -> String {
        let mut out = b"before".to_vec();
        reply.write(protocol, &mut out);
        String::from_utf8(out).unwrap().strip_prefix("before").unwrap().to_owned()
    }

    /// `INCRBY x 999999999999999` once ended the server.
    #[test]
    fn numbers_of_any_length_are_written() {
        let powers = (0..19).map(|digits| 10_i64.pow(digits));
        for number in powers.flat_map(|power| [power - 2, power - 1, power, power + 1, 21 - power, 1 - power])
        {
            for protocol in [Protocol::Resp2, Protocol::Resp3] {
                assert_eq!(encoded_text(&Reply::Integer(number), protocol), format!(":{number}\r\n"));
                let list = Reply::Array(vec![Reply::Integer(number), OK]);
                assert_eq!(encoded_text(&list, protocol), format!("*2\r\n:{number}\r\n+OK\r\n"));
            }
        }
    }
}
