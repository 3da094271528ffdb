//! Jobs: long work for the engine, which threads carry out while they do not hold the engine's lock.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use halite_fabric::{Fabric, Key};
use halite_mem::{PagePolicy, Segment, Window};
use halite_tier::effect::Token;

use crate::runtime::env::NodeEnv;
use crate::runtime::locks::{lock, ranked};

#[derive(Debug)]
pub(crate) enum Job {
    /// Registers a new segment of this many bytes.
    Grow(u64),
    /// Copies all bytes of `from` to `to`.
    Copy { token: Token, from: Window, to: Window },
    /// Sets all bytes of `window` to `byte`.
    Fill { token: Token, window: Window, byte: u8 },
    /// Allocates pages for a part of this node's memory.
    Populate { token: Token, key: Key, offset: u64, len: u64 },
    /// Makes a part of this node's memory read as zero.
    Discard { token: Token, key: Key, offset: u64, len: u64 },
}

#[derive(Debug)]
pub(crate) enum Done {
    /// The new segment; `None` if the system refused the memory.
    Grown(Option<(Key, Window)>),
    Copied(Token),
    Discarded(Token),
    /// A part of the arena was populated; `is_done` is true if the system provided the memory.
    Populated {
        token: Token,
        len: u64,
        is_done: bool,
    },
    /// The rest of a job, which goes into the queue behind other jobs.
    Rest(Job),
}

/// Bytes to populate without a check of the system's free memory, because each check takes 0.1 ms.
const HEADROOM_BYTES_MIN: u64 = 1 << 20;
/// Bytes to discard between clock reads: about 10 ms of work if all pages were touched.
const DISCARD_BYTES_MIN: u64 = 64 << 20;
/// Time, in nanoseconds, after which a job lets other jobs run.
const JOB_NS_MAX: u64 = 8_000_000;

ranked! {
    BTreeMap<Key, Arc<Segment>> => Innermost;
}

/// The segments of this node.
#[derive(Debug, Default)]
pub(crate) struct Arena {
    segments: Mutex<BTreeMap<Key, Arc<Segment>>>,
}

impl Arena {
    pub(crate) fn run(&self, job: Job, fabric: &dyn Fabric, env: &NodeEnv) -> Done {
        match job {
            Job::Grow(len) => Done::Grown(self.grow(len, fabric, env)),
            Job::Copy { token, from, to } => {
                let len = to.len().min(from.len());
                to.copy_from(0, &from, 0, len).expect("the length is in both windows");
                Done::Copied(token)
            }
            Job::Fill { token, window, byte } => {
                window.fill(0, window.len(), byte).expect("all of the window");
                Done::Copied(token)
            }
            Job::Populate { token, key, offset, len } => {
                Done::Populated { token, len, is_done: self.populate(key, offset, len, env) }
            }
            Job::Discard { token, key, offset, len } => {
                let done = self.discard_slices(key, offset, len, env);
                match len - done {
                    0 => Done::Discarded(token),
                    len => Done::Rest(Job::Discard { token, key, offset: offset + done, len }),
                }
            }
        }
    }

    /// Registers a new segment of `len` bytes. Returns `None` if the system refuses; the engine then requests less.
    fn grow(&self, len: u64, fabric: &dyn Fabric, env: &NodeEnv) -> Option<(Key, Window)> {
        match self.try_growing(len, fabric, env) {
            Ok(grown) => {
                tracing::info!("the arena has grown by {len} bytes");
                Some(grown)
            }
            Err(reason) => {
                tracing::info!("the arena cannot grow by {len} bytes: {reason}");
                None
            }
        }
    }

    fn try_growing(&self, len: u64, fabric: &dyn Fabric, env: &NodeEnv) -> Result<(Key, Window), String> {
        if !env.has_addresses(len) {
            return Err("the limit on address space (ulimit -v) leaves too little".to_owned());
        }
        let segment = Segment::create("halite-arena", len, PagePolicy::Huge);
        let segment = segment.map_err(|error| error.to_string())?;
        let window = segment.window(0, len).expect("the whole segment");
        let key = fabric.register(segment.clone()).map_err(|error| error.to_string())?;
        lock(&self.segments).insert(key, segment);
        Ok((key, window))
    }

    /// Allocates pages for a part of the arena. Returns true if the system provided the memory.
    fn populate(&self, key: Key, offset: u64, len: u64, env: &NodeEnv) -> bool {
        // Linux kills a process, perhaps this one, rather than report that memory is short.
        let must_check = len >= HEADROOM_BYTES_MIN;
        if must_check && !env.has_free(len) {
            tracing::warn!("the system lacks {len} bytes of free memory for a region");
            return false;
        }
        let populated = self.segment(key).populate(offset, len);
        populated.inspect_err(|error| tracing::warn!("cannot allocate {len} bytes: {error}")).is_ok()
    }

    /// Discards memory for about [`JOB_NS_MAX`]. Returns the number of bytes done. The system takes about 0.15 s per
    /// touched GiB, and almost no time for untouched memory, so the slices grow while they are cheap.
    fn discard_slices(&self, key: Key, offset: u64, len: u64, env: &NodeEnv) -> u64 {
        let begin_ns = env.now_ns();
        let elapsed_ns = || env.now_ns() - begin_ns;
        let (mut done, mut slice) = (0, DISCARD_BYTES_MIN);
        while done < len && elapsed_ns() < JOB_NS_MAX {
            let part = slice.min(len - done);
            self.discard(key, offset + done, part);
            done += part;
            if elapsed_ns() < JOB_NS_MAX / 8 {
                slice *= 4;
            }
        }
        done
    }

    fn segment(&self, key: Key) -> Arc<Segment> {
        let segment = lock(&self.segments).get(&key).cloned();
        segment.expect("the engine uses only segments that this node registered")
    }

    fn discard(&self, key: Key, offset: u64, len: u64) {
        let segment = self.segment(key);
        if segment.discard(offset, len).is_err() {
            // The system keeps the pages, but their next user must not see the old contents.
            let window = segment.window(offset, len).expect("the engine knows the lengths of segments");
            window.fill(0, len, 0).expect("all of the window");
        }
    }
}
