//! What bare memory costs: copies and words without any library in between.
//!
//! The limit that Halite is compared with is the faster of two ways: the C library's memcpy between private
//! buffers, and a copy to a plain shared mapping.  The pages are of the same kind that nodes contribute.

use std::hint::black_box;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use halite_mem::{PagePolicy, Segment, Window};

use super::measure::{estimate_ns, sure, timed};

/// Which way the bytes go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// Into the shared memory.
    Write,
    /// Out of it.
    Read,
    /// Nowhere: it is set to a byte.
    Fill,
}

/// Copies (or fills) of one size, by the way that was found to be faster.
#[derive(Debug)]
pub struct Copier {
    direction: Direction,
    shared: Window,
    private: Vec<u8>,
    other: Vec<u8>,
    is_shared_faster: bool,
}

impl Copier {
    /// Makes the buffers, touches them, and tries both ways.
    pub fn new(direction: Direction, size: u64) -> io::Result<Copier> {
        let bytes = usize::try_from(size).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let shared = plain_segment(size)?.window(0, size).expect("the whole segment");
        let mut copier = Copier {
            direction,
            shared,
            private: vec![0x5A; bytes],
            other: vec![0xA5; bytes],
            is_shared_faster: true,
        };
        // 64 MiB of each is a matter of milliseconds.
        let tries = ((64 << 20) / size).clamp(2, 10_000);
        let by_mapping = copier.try_for(tries);
        copier.is_shared_faster = false;
        let by_memcpy = copier.try_for(tries);
        copier.is_shared_faster = by_mapping < by_memcpy;
        Ok(copier)
    }

    /// One copy, or fill.
    #[inline]
    pub fn copy(&mut self) {
        let len = self.private.len() as u64;
        let done = match (self.is_shared_faster, self.direction) {
            (true, Direction::Write) => self.shared.write(0, black_box(&self.private)),
            (true, Direction::Read) => self.shared.read(0, black_box(&mut self.private)),
            (true, Direction::Fill) => self.shared.fill(0, len, 0x5A),
            (false, Direction::Fill) => return black_box(&mut self.other).fill(0x5A),
            (false, _) => return black_box(&mut self.other).copy_from_slice(black_box(&self.private)),
        };
        done.expect("as long as the window");
    }

    fn try_for(&mut self, tries: u64) -> f64 {
        let copies = |count| timed(count, sure(|| self.copy()));
        estimate_ns(tries * 10, copies).expect("copies do not fail")
    }
}

/// A plain shared mapping, to be touched at random: word by word, or by copies of several.
#[derive(Clone, Debug)]
pub struct Words(Window);

impl Words {
    /// A mapping of `bytes`; memory is taken as it is touched.
    pub fn new(bytes: u64) -> io::Result<Words> {
        let bytes = bytes.next_multiple_of(8);
        Ok(Words(plain_segment(bytes)?.window(0, bytes).expect("the whole segment")))
    }

    /// The word at `offset`, a multiple of 8 inside the mapping.
    pub fn at(&self, offset: u64) -> &AtomicU64 {
        self.0.atomic_u64(offset).expect("aligned and inside")
    }

    /// Copies `bytes` to `offset`; both ends of them are inside the mapping.
    #[inline]
    pub fn write(&self, offset: u64, bytes: &[u8]) {
        self.0.write(offset, bytes).expect("inside");
    }

    /// Fills `buffer` from `offset`; both ends are inside the mapping.
    #[inline]
    pub fn read(&self, offset: u64, buffer: &mut [u8]) {
        self.0.read(offset, buffer).expect("inside");
    }
}

/// A plain shared mapping whose pages come and go.
#[derive(Clone, Debug)]
pub struct Pages(Arc<Segment>);

impl Pages {
    /// A mapping of `bytes`, without any memory yet.
    pub fn new(bytes: u64) -> io::Result<Pages> {
        Ok(Pages(plain_segment(bytes)?))
    }

    /// Takes all of it from the system, and gives it back; how long the taking took.
    pub fn take(&self) -> anyhow::Result<Duration> {
        let begin = Instant::now();
        self.0.populate(0, self.0.len())?;
        let took = begin.elapsed();
        self.0.discard(0, self.0.len())?;
        Ok(took)
    }
}

/// One bare store.
#[inline]
pub fn store(word: &AtomicU64, value: u64) {
    // A plain store instruction: nothing is to be ordered, only its cost counts.
    word.store(value, Ordering::Relaxed);
}

/// One bare atomic addition.
#[inline]
pub fn fetch_add(word: &AtomicU64, add: u64) -> u64 {
    // As strong as what it is compared with, which orders what is before with what is behind it.
    black_box(word.fetch_add(add, Ordering::AcqRel))
}

/// One bare compare-and-swap.
#[inline]
pub fn compare_swap(word: &AtomicU64, expected: u64, new: u64) -> u64 {
    // As in fetch_add().
    let (Ok(old) | Err(old)) = word.compare_exchange(expected, new, Ordering::AcqRel, Ordering::Acquire);
    black_box(old)
}

/// One bare load.
#[inline]
pub fn load(word: &AtomicU64) -> u64 {
    // As in store().
    black_box(word.load(Ordering::Relaxed))
}

fn plain_segment(bytes: u64) -> io::Result<Arc<Segment>> {
    Segment::create("halite-perf-baseline", bytes, PagePolicy::Normal)
}
