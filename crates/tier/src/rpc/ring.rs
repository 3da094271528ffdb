//! The two ends of a request ring. They determine the offsets at which the client writes and the server reads the next
//! request, and do not access memory.
//!
//! Positions count all bytes since the ring was created. A request is contiguous. If a request does not fit before the
//! end of the ring, it starts at the ring's beginning, and the bytes before the end are skipped. Requests are not
//! padded, so only the ring's length limits their number.

use super::{RING_BYTES_MAX, RING_BYTES_MIN, Violation};

/// The error of a full ring: it has no room until the server has read more requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the request ring is full; try again after the server has read requests")]
pub struct RingFull;

/// The client's end of a ring, which owns the tail. To undo requests that could not be posted, the client clones this
/// value first and restores it.
#[derive(Clone, Debug)]
pub struct RingWriter {
    bytes: u64,
    tail: u64,
    /// The server's head as last read.
    head: u64,
}

/// A free part of the ring for one request. [`RingWriter::take`] reserves the part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// Offset in the ring, in bytes.
    pub offset: u64,
    end: u64,
}

/// The server's end of a ring, which owns the head.
#[derive(Debug)]
pub struct RingReader {
    bytes: u64,
    head: u64,
    /// The head last reported to the client.
    told: u64,
}

/// Returns true if a ring can have this length.
pub fn is_ring_size(bytes: u64) -> bool {
    bytes.is_power_of_two() && (RING_BYTES_MIN..=RING_BYTES_MAX).contains(&bytes)
}

/// Returns the maximum length in bytes of a request in a ring of `bytes`: a quarter. Such a request always fits after
/// the server has read the whole ring. In the worst case, the reported head lags by a quarter, and another quarter at
/// the end of the ring is skipped.
pub const fn request_bytes_max(bytes: u64) -> u64 {
    bytes / 4
}

impl RingWriter {
    /// Creates the writing end of an empty ring of `bytes`.
    pub fn new(bytes: u64) -> RingWriter {
        debug_assert!(is_ring_size(bytes), "a ring of {bytes} bytes");
        RingWriter { bytes, tail: 0, head: 0 }
    }

    /// Returns the maximum length of a request, in bytes.
    pub fn request_bytes_max(&self) -> u64 {
        request_bytes_max(self.bytes)
    }

    /// Returns a free part of the ring for the next request, of `len` bytes. Fails if the ring is full. `len` must be
    /// at most [`RingWriter::request_bytes_max`].
    pub fn place(&self, len: u64) -> Result<Place, RingFull> {
        debug_assert!(len <= self.request_bytes_max(), "a request of {len} bytes");
        let left_in_lap = self.bytes - self.tail % self.bytes;
        let start = if len <= left_in_lap { self.tail } else { self.tail + left_in_lap };
        let end = start + len;
        if end - self.head > self.bytes {
            return Err(RingFull);
        }
        Ok(Place { offset: start % self.bytes, end })
    }

    /// Advances the tail past the request posted at `place`.
    pub fn take(&mut self, place: Place) {
        self.tail = place.end;
    }

    /// Records that the server has read up to position `head`. Fails if `head` is beyond the tail.
    pub fn set_head(&mut self, head: u64) -> Result<(), Violation> {
        if head > self.tail {
            return Err(Violation("the head of a ring is beyond its tail"));
        }
        // Plain writes of the word may become visible in any order.
        self.head = self.head.max(head);
        Ok(())
    }
}

impl RingReader {
    /// Creates the reading end of an empty ring of `bytes`.
    pub fn new(bytes: u64) -> RingReader {
        debug_assert!(is_ring_size(bytes), "a ring of {bytes} bytes");
        RingReader { bytes, head: 0, told: 0 }
    }

    /// Handles the arrival of a request at `offset`. Returns the maximum length of the request in bytes. Fails if a
    /// request cannot start at `offset`.
    pub fn arrive(&mut self, offset: u64) -> Result<u64, Violation> {
        let at = self.head % self.bytes;
        if offset != at {
            if offset != 0 {
                return Err(Violation("a request is not at the next position of the ring"));
            }
            self.head += self.bytes - at;
        }
        Ok(request_bytes_max(self.bytes).min(self.bytes - offset))
    }

    /// Records that the server has copied the last request, of `len` bytes, out of the ring.
    pub fn advance(&mut self, len: u64) {
        self.head += len;
    }

    /// Returns the head to report to the client if the server has read a quarter of the ring since the last report,
    /// else `None`.
    pub fn poll_head(&mut self) -> Option<u64> {
        if self.head - self.told < self.bytes / 4 {
            return None;
        }
        self.told = self.head;
        Some(self.head)
    }

    /// Returns the head that [`RingReader::poll_head`] returned last, or 0 before the first time.
    pub fn told(&self) -> u64 {
        self.told
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    const BYTES: u64 = RING_BYTES_MIN;

    #[test]
    fn misplaced_requests_are_violations() {
        let mut reader = RingReader::new(BYTES);
        assert!(reader.arrive(64).is_err());
        assert_eq!(reader.arrive(0), Ok(BYTES / 4));
        reader.advance(65);
        assert!(reader.arrive(64).is_err());
        assert_eq!(reader.arrive(65), Ok(BYTES / 4));
    }

    #[test]
    fn heads_beyond_the_tail_are_violations() {
        let mut writer = RingWriter::new(BYTES);
        assert!(writer.set_head(64).is_err());
        let place = writer.place(100).unwrap();
        writer.take(place);
        writer.set_head(100).unwrap();
        writer.set_head(0).unwrap();
        assert!(writer.set_head(101).is_err());
    }

    proptest! {
        /// Compares with a model that tracks the bytes of unread requests.
        #[test]
        fn unread_requests_are_never_overwritten(
            steps in prop::collection::vec((any::<bool>(), 1..=BYTES / 4, any::<bool>()), 1..500)
        ) {
            let (mut writer, mut reader) = (RingWriter::new(BYTES), RingReader::new(BYTES));
            let mut waiting: VecDeque<(u64, u64)> = VecDeque::new();
            let mut head_word = 0;
            for (write, len, look) in steps {
                if look {
                    prop_assert!(writer.set_head(head_word).is_ok());
                }
                if write {
                    let Ok(place) = writer.place(len) else { continue };
                    prop_assert!(place.offset + len <= BYTES);
                    for (offset, other) in &waiting {
                        prop_assert!(place.offset + len <= *offset || offset + other <= place.offset);
                    }
                    writer.take(place);
                    waiting.push_back((place.offset, len));
                } else if let Some((offset, len)) = waiting.pop_front() {
                    prop_assert!(reader.arrive(offset).unwrap() >= len);
                    reader.advance(len);
                    head_word = reader.poll_head().unwrap_or(head_word);
                }
            }
            // Once all is read and the head is known, any request fits.
            for (offset, len) in waiting {
                prop_assert!(reader.arrive(offset).is_ok());
                reader.advance(len);
                head_word = reader.poll_head().unwrap_or(head_word);
            }
            prop_assert!(writer.set_head(head_word).is_ok());
            prop_assert!(writer.place(BYTES / 4).is_ok());
        }
    }
}
