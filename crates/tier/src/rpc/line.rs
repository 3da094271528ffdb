//! Lines: short requests and replies of 64 bytes, each of which becomes visible as a whole.
//!
//! ```text
//!   request, in the server's row of lines for the client's node
//!    0 mark u16 | slot u16 | generation u16 | input len u8 | kind u8          stored last
//!    8 number u32 | principal u16 | posted before it u16
//!   16 reply max u32, or grant u32 | zero u32
//!   24 input: up to 40 bytes
//!
//!   reply, in the line of the slot, at the caller
//!    0 mark u16 | status u8 | 1 if the output is here | number u32            stored last
//!    8 output: up to 48 bytes, or an address
//!   56 whether to notify the caller: written by the caller
//! ```
//!
//! The mark of a request is its lap: the number of times that the client had filled the row before. The mark of a reply
//! is the generation of its slot. Both marks have the highest bit set. So older content has a different mark, and fresh
//! memory, which is zero, has no mark.
//!
//! Instead of the principal's name, a line contains a number, which an earlier request in the ring has assigned to the
//! name. The server handles a node's cancels, and its requests in lines and in the ring, in the order in which the node
//! posted them. For this, each line carries the number of ring requests and cancels posted before it.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU16, AtomicU64};

use halite_fabric::RemoteAddress;

use super::wire::WireError;
use super::{Kind, ReplyHeader, SlotId, Status, Violation, wire};

/// Maximum length of an input in a line, in bytes.
pub const INPUT_BYTES_MAX: usize = 40;
/// Maximum length of an output in a line, in bytes.
pub const OUTPUT_BYTES_MAX: usize = 48;
/// Number of lines in a row of requests, which is the maximum number of unread requests in lines.
pub const REQUEST_LINES: u32 = 512;
/// Number of words of a request.
pub const REQUEST_WORDS: usize = 8;
/// Number of words of a reply. In the next word of the line, the caller requests a notification.
pub const REPLY_WORDS: usize = 7;
/// Maximum number of principals to which a client can assign numbers.
pub const PRINCIPALS_MAX: u16 = 1024;

/// First word of the input, and its maximum number of words.
const INPUT_AT: usize = 3;
const INPUT_WORDS: usize = INPUT_BYTES_MAX / size_of::<u64>();
const MARK: u16 = 1 << 15;

/// A request that fits into a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequestLine {
    /// The kind of request.
    pub kind: Kind,
    /// Number of the function or port.
    pub number: u32,
    /// The caller's reply slot.
    pub slot: SlotId,
    /// Number that an earlier request in the ring has assigned to the principal.
    pub principal: u16,
    /// Number of ring requests and cancels that the client posted before this request, modulo 2^16.
    pub posted_before: u16,
    /// Maximum length of the reply that the caller accepts, in bytes.
    pub reply_bytes_max: u32,
    /// Length of the input in bytes.
    pub input_bytes: u8,
    /// The input, padded with zeros.
    pub input: [u8; INPUT_BYTES_MAX],
}

/// Returns the mark of a request at `position`: the lap, with the highest bit set. The server recognises a new request
/// by this mark.
#[inline]
pub fn request_mark(position: u64) -> u16 {
    (position / u64::from(REQUEST_LINES)) as u16 | MARK
}

/// Returns the mark of a reply for `slot`: the slot's generation, with the highest bit set. The caller recognises a new
/// reply by this mark.
#[inline]
pub fn reply_mark(slot: SlotId) -> u16 {
    slot.generation | MARK
}

impl RequestLine {
    /// Encodes the request. The client must store the first word last.
    #[inline]
    pub fn emit(&self, mark: u16) -> [u64; REQUEST_WORDS] {
        let (kind, limit) = wire::kind_code(self.kind, self.reply_bytes_max);
        let mut words = [0; REQUEST_WORDS];
        words[0] = u64::from(mark)
            | u64::from(self.slot.index) << 16
            | u64::from(self.slot.generation) << 32
            | u64::from(self.input_bytes) << 48
            | u64::from(kind) << 56;
        words[1] =
            u64::from(self.number) | u64::from(self.principal) << 32 | u64::from(self.posted_before) << 48;
        words[2] = u64::from(limit);
        let chunks = self.input.as_chunks().0;
        for at in 0..INPUT_WORDS {
            words[INPUT_AT + at] = u64::from_le_bytes(chunks[at]);
        }
        words
    }

    /// Decodes a request from `words`, which must be a private copy. Fails if the content is invalid.
    #[inline]
    pub fn parse(words: &[u64; REQUEST_WORDS]) -> Result<RequestLine, WireError> {
        let bad = WireError("request");
        let first = words[0];
        let (kind, reply_bytes_max) = wire::kind_of((first >> 56) as u8, words[2] as u32).ok_or(bad)?;
        let input_bytes = (first >> 48) as u8;
        let generation = (first >> 32) as u16;
        if usize::from(input_bytes) > INPUT_BYTES_MAX || generation & MARK != 0 || words[2] >> 32 != 0 {
            return Err(bad);
        }
        let mut input = [0; INPUT_BYTES_MAX];
        let chunks = input.as_chunks_mut().0;
        for at in 0..INPUT_WORDS {
            chunks[at] = words[INPUT_AT + at].to_le_bytes();
        }
        Ok(RequestLine {
            kind,
            number: words[1] as u32,
            slot: SlotId { index: (first >> 16) as u16, generation },
            principal: (words[1] >> 32) as u16,
            posted_before: (words[1] >> 48) as u16,
            reply_bytes_max,
            input_bytes,
            input,
        })
    }
}

/// The header of a reply in a line. A short output follows in the line; a longer output is in the slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReplyLine {
    /// The result of the request.
    pub status: Status,
    /// True if the output is in the line.
    pub is_here: bool,
}

impl ReplyLine {
    /// Encodes a reply, and returns its words with the number of words in use. Includes `output` if it has at most
    /// [`OUTPUT_BYTES_MAX`] bytes. The server must store the first word last.
    #[inline]
    pub fn emit(status: Status, slot: SlotId, output: &[u8]) -> ([u64; REPLY_WORDS], usize) {
        let is_here = output.len() <= OUTPUT_BYTES_MAX;
        let mut words = [0; REPLY_WORDS];
        let header = u64::from_le_bytes(ReplyHeader { status }.emit());
        // Codes fit into a byte, and the number is the upper half.
        words[0] = u64::from(reply_mark(slot))
            | (header & 0xff) << 16
            | u64::from(is_here) << 24
            | header >> 32 << 32;
        if !is_here {
            return (words, 1);
        }
        let mut bytes = [0; OUTPUT_BYTES_MAX];
        bytes[..output.len()].copy_from_slice(output);
        let chunks = bytes.as_chunks().0;
        for at in 1..REPLY_WORDS {
            words[at] = u64::from_le_bytes(chunks[at - 1]);
        }
        (words, 1 + output.len().div_ceil(size_of::<u64>()))
    }

    /// Decodes a reply from its first word, which must be a private copy. Fails if the content is invalid.
    #[inline]
    pub fn parse(first: u64) -> Result<ReplyLine, WireError> {
        let header = first >> 16 & 0xff | first >> 32 << 32;
        let ReplyHeader { status } = ReplyHeader::parse(header.to_le_bytes())?;
        match first >> 24 & 0xff {
            0 => Ok(ReplyLine { status, is_here: false }),
            1 => Ok(ReplyLine { status, is_here: true }),
            _ => Err(WireError("reply")),
        }
    }
}

/// Returns the output bytes of a reply line, padded with zeros.
#[inline]
pub fn output_of(words: &[u64; REPLY_WORDS]) -> [u8; OUTPUT_BYTES_MAX] {
    let mut output = [0; OUTPUT_BYTES_MAX];
    let chunks = output.as_chunks_mut().0;
    for at in 1..REPLY_WORDS {
        chunks[at - 1] = words[at].to_le_bytes();
    }
    output
}

/// Returns the address that a reply line contains instead of the output ([`Status::DoneAt`]). Fails if the address is
/// invalid.
#[inline]
pub fn address_of(words: &[u64; REPLY_WORDS]) -> Result<RemoteAddress, WireError> {
    let output = output_of(words);
    wire::parse_output_address(*output.first_chunk().expect("an address is shorter than an output"))
}

/// The client's end of a row of request lines.
#[derive(Debug, Default)]
pub struct LineWriter {
    /// Number of requests posted.
    tail: u64,
    /// Number of requests read by the server, when last updated.
    head: u64,
}

impl LineWriter {
    /// Returns the position of the next request, or `None` if the row is full.
    #[inline]
    pub fn place(&self) -> Option<u64> {
        (self.tail - self.head < u64::from(REQUEST_LINES)).then_some(self.tail)
    }

    /// Advances the tail past a posted request.
    #[inline]
    pub fn take(&mut self) {
        self.tail += 1;
    }

    /// Records that the server has read `head` requests in total. Fails if the client has posted fewer requests.
    #[inline]
    pub fn set_head(&mut self, head: u64) -> Result<(), Violation> {
        if head > self.tail {
            return Err(Violation("the head of the lines is beyond their tail"));
        }
        self.head = self.head.max(head);
        Ok(())
    }
}

/// Returns the index of the line at `position`. Positions count all requests, and wrap around the row.
#[inline]
pub fn index_of(position: u64) -> u32 {
    (position % u64::from(REQUEST_LINES)) as u32
}

/// The server's end of a row of request lines. Only one thread at a time reads requests; any thread may read the head
/// that the server reported last.
#[derive(Debug, Default)]
pub struct LineReader {
    head: AtomicU64,
    told: AtomicU64,
    /// Number of ring requests and cancels handled, wrapping.
    heard: AtomicU16,
}

impl LineReader {
    /// Returns the position of the next request.
    #[inline]
    pub fn position(&self) -> u64 {
        // Handing the reader to another thread orders this access and those below.
        self.head.load(Relaxed)
    }

    /// Records that the server has read the next request.
    #[inline]
    pub fn advance(&self) {
        self.head.store(self.position() + 1, Relaxed);
    }

    /// Returns the number of ring requests and cancels handled, modulo 2^16, for comparison with
    /// [`RequestLine::posted_before`].
    #[inline]
    pub fn heard(&self) -> u16 {
        self.heard.load(Relaxed)
    }

    /// Records that the server has handled one more ring request or cancel. A line waits until the number recorded
    /// reaches its [`RequestLine::posted_before`].
    pub fn hear(&self) {
        self.heard.store(self.heard().wrapping_add(1), Relaxed);
    }

    /// Returns true once per quarter of the row: the server must then report the head to the client.
    #[inline]
    pub fn poll_head(&self) -> bool {
        let is_due = self.position() - self.told() >= u64::from(REQUEST_LINES) / 4;
        if is_due {
            // Pairs with the Acquire in told(): the reporting thread has seen the lines read.
            self.told.store(self.position(), Release);
        }
        is_due
    }

    /// Returns the head that the server last reported to the client, or 0 before the first report.
    #[inline]
    pub fn told(&self) -> u64 {
        // Pairs with the Release in poll_head().
        self.told.load(Acquire)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn places_are_reused_after_reading_with_new_marks() {
        let (mut writer, reader) = (LineWriter::default(), LineReader::default());
        for position in 0..u64::from(REQUEST_LINES) {
            assert_eq!(writer.place(), Some(position));
            writer.take();
        }
        assert_eq!(writer.place(), None);
        (0..REQUEST_LINES / 4).for_each(|_| reader.advance());
        assert!(reader.poll_head() && !reader.poll_head());
        writer.set_head(reader.told()).unwrap();
        let position = writer.place().unwrap();
        assert_eq!(index_of(position), 0);
        assert_ne!(request_mark(position), request_mark(0));
        assert!(writer.set_head(u64::from(REQUEST_LINES) + 1).is_err(), "beyond the tail");
    }

    proptest! {
        #[test]
        fn words_are_refused_or_round_trip(words: [u64; REQUEST_WORDS]) {
            if let Ok(line) = RequestLine::parse(&words) {
                prop_assert_eq!(RequestLine::parse(&line.emit(words[0] as u16)), Ok(line));
            }
            let _ = ReplyLine::parse(words[0]);
        }
    }
}
