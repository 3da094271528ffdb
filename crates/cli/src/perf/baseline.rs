//! The cost of bare memory: copies and accesses to words, without a library in between.
//!
//! Halite is compared with the faster of two ways: the C library's memcpy between private buffers, and a copy to a
//! plain shared mapping. The mapping has the same kind of pages as the arena of a node.

use std::fs::File;
use std::hint::black_box;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use halite_mem::{PagePolicy, Segment, Window};

use super::measure::{estimate_ns, infallible, timed};

/// The direction of a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// Copies into shared memory.
    Write,
    /// Copies out of shared memory.
    Read,
    /// Fills shared memory with bytes of one value.
    Fill,
}

/// Copies or fills memory of one size, by the faster of two ways.
#[derive(Debug)]
pub struct Copier {
    direction: Direction,
    shared: Window,
    private: Vec<u8>,
    other: Vec<u8>,
    is_shared_faster: bool,
}

impl Copier {
    /// Allocates and touches the buffers, and measures which way is faster.
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
        // Takes some milliseconds per way: each moves 64 MiB.
        let tries = ((64 << 20) / size).clamp(2, 10_000);
        let by_mapping = copier.try_for(tries);
        copier.is_shared_faster = false;
        let by_memcpy = copier.try_for(tries);
        copier.is_shared_faster = by_mapping < by_memcpy;
        Ok(copier)
    }

    /// Copies or fills the memory once.
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
        let copies = |count| timed(count, infallible(|| self.copy()));
        estimate_ns(tries * 10, copies).expect("copies do not fail")
    }
}

/// A plain shared mapping for random accesses to words or pieces.
#[derive(Clone, Debug)]
pub struct Words(Window);

impl Words {
    /// Maps `bytes` of shared memory; pages are allocated on first use.
    pub fn new(bytes: u64) -> io::Result<Words> {
        let bytes = bytes.next_multiple_of(8);
        Ok(Words(plain_segment(bytes)?.window(0, bytes).expect("the whole segment")))
    }

    /// Maps the memory that another process has created, by a path of its descriptor.
    pub fn open(path: &Path, bytes: u64) -> anyhow::Result<Words> {
        let file = File::options().read(true).write(true).open(path)?;
        Ok(Words(Segment::open(&file, bytes)?.window(0, bytes).expect("the whole segment")))
    }

    /// Returns a path by which processes of the same user can open this memory.
    pub fn path(&self) -> PathBuf {
        let fd = self.0.segment().fd().expect("the memory is a memfd").as_raw_fd();
        PathBuf::from(format!("/proc/{}/fd/{fd}", std::process::id()))
    }

    /// Returns the word at `offset`, which must be a multiple of 8 inside the mapping.
    pub fn at(&self, offset: u64) -> &AtomicU64 {
        self.0.atomic_u64(offset).expect("aligned and inside")
    }

    /// Copies `bytes` to `offset`; the range must lie inside the mapping.
    #[inline]
    pub fn write(&self, offset: u64, bytes: &[u8]) {
        self.0.write(offset, bytes).expect("inside");
    }

    /// Fills `buffer` from `offset`; the range must lie inside the mapping.
    #[inline]
    pub fn read(&self, offset: u64, buffer: &mut [u8]) {
        self.0.read(offset, buffer).expect("inside");
    }
}

/// A plain shared mapping, to time page faults: each measurement populates all pages and then discards them.
#[derive(Clone, Debug)]
pub struct Pages(Arc<Segment>);

impl Pages {
    /// Maps `bytes` of shared memory without populating pages.
    pub fn new(bytes: u64) -> io::Result<Pages> {
        Ok(Pages(plain_segment(bytes)?))
    }

    /// Populates all pages, then discards them; returns the time of populating.
    pub fn take(&self) -> anyhow::Result<Duration> {
        let begin = Instant::now();
        self.0.populate(0, self.0.len())?;
        let took = begin.elapsed();
        self.0.discard(0, self.0.len())?;
        Ok(took)
    }
}

/// Stores a word without a library in between.
#[inline]
pub fn store(word: &AtomicU64, value: u64) {
    // Nothing needs to be ordered; only the cost counts.
    word.store(value, Ordering::Relaxed);
}

/// Adds to a word with the processor's atomic.
#[inline]
pub fn fetch_add(word: &AtomicU64, add: u64) -> u64 {
    // AcqRel, as strong as the operation that it is compared with.
    black_box(word.fetch_add(add, Ordering::AcqRel))
}

/// Compares and swaps a word with the processor's atomic.
#[inline]
pub fn compare_swap(word: &AtomicU64, expected: u64, new: u64) -> u64 {
    // As in fetch_add().
    let (Ok(old) | Err(old)) = word.compare_exchange(expected, new, Ordering::AcqRel, Ordering::Acquire);
    black_box(old)
}

/// Loads a word without a library in between.
#[inline]
pub fn load(word: &AtomicU64) -> u64 {
    // As in store().
    black_box(word.load(Ordering::Relaxed))
}

fn plain_segment(bytes: u64) -> io::Result<Arc<Segment>> {
    Segment::create("halite-perf-baseline", bytes, PagePolicy::Normal)
}
