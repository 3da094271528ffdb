//! A node's environment: the time, the time of day, random numbers, and a process id for display.
//!
//! A node has no other inputs than these, its fabric and its sessions.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::thread;
use std::time::{Instant, SystemTime};

use rustix::rand::{GetRandomFlags, getrandom};

use crate::runtime::contention::is_host_contended;
use crate::runtime::headroom;

/// The environment of a [`crate::Driven`] node, real or simulated. A node is deterministic: with the same environment
/// and the same fabric, it behaves the same.
pub trait Env: Send + Sync {
    /// Returns the time in nanoseconds on the node's clock, which never runs backwards.
    fn now_ns(&self) -> u64;

    /// Returns the nanoseconds since 1970 by the host's clock; the fencing tokens of new locks start at this number.
    fn since_1970_ns(&self) -> u64;

    /// Returns a random number. Each node must get different numbers.
    fn random(&self) -> u64;

    /// Returns the process id that `halite status` shows.
    fn pid(&self) -> u32;

    /// Returns the address at which peers dial the node's fabric after they have lost the connection; empty if they
    /// cannot dial it.
    fn address(&self) -> String {
        String::new()
    }
}

/// The environment of a node; that of a process needs no dynamic dispatch.
#[derive(Clone)]
pub(crate) enum NodeEnv {
    /// The environment of this process, with an offset to its time of day.
    Process {
        begin: Instant,
        clock_offset_s: i64,
    },
    Custom(Arc<dyn Env>),
}

impl NodeEnv {
    pub(crate) fn process(clock_offset_s: i64) -> NodeEnv {
        NodeEnv::Process { begin: Instant::now(), clock_offset_s }
    }

    #[inline]
    pub(crate) fn now_ns(&self) -> u64 {
        match self {
            NodeEnv::Process { begin, .. } => begin.elapsed().as_nanos() as u64,
            NodeEnv::Custom(env) => env.now_ns(),
        }
    }

    pub(crate) fn since_1970_ns(&self) -> u64 {
        match self {
            NodeEnv::Process { clock_offset_s, .. } => since_1970_ns(*clock_offset_s),
            NodeEnv::Custom(env) => env.since_1970_ns(),
        }
    }

    pub(crate) fn random(&self) -> u64 {
        match self {
            NodeEnv::Process { .. } => random(),
            NodeEnv::Custom(env) => env.random(),
        }
    }

    /// Returns the number of threads that can run at once.
    pub(crate) fn parallelism(&self) -> usize {
        match self {
            NodeEnv::Process { .. } => thread::available_parallelism().map_or(1, NonZeroUsize::get),
            NodeEnv::Custom(_) => 1,
        }
    }

    /// Returns true if the node has a progress thread, which polls from time to time even if no doorbell rings.
    pub(crate) fn has_progress_thread(&self) -> bool {
        matches!(self, NodeEnv::Process { .. })
    }

    /// Returns true if more threads are runnable than the cores can run.
    pub(crate) fn is_contended(&self) -> bool {
        match self {
            NodeEnv::Process { .. } => is_host_contended(),
            NodeEnv::Custom(_) => false,
        }
    }

    /// Returns true if the system could provide `len` bytes of memory now.
    pub(crate) fn has_free(&self, len: u64) -> bool {
        match self {
            NodeEnv::Process { .. } => headroom::has_free(len),
            NodeEnv::Custom(_) => true,
        }
    }

    /// Returns true if a segment of `len` bytes leaves enough addresses for peers' segments.
    pub(crate) fn has_addresses(&self, len: u64) -> bool {
        match self {
            NodeEnv::Process { .. } => headroom::has_addresses(len),
            NodeEnv::Custom(_) => true,
        }
    }

    /// Returns the address at which peers dial the node; empty if its environment has none.
    pub(crate) fn address(&self) -> String {
        match self {
            NodeEnv::Process { .. } => String::new(),
            NodeEnv::Custom(env) => env.address(),
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        match self {
            NodeEnv::Process { .. } => std::process::id(),
            NodeEnv::Custom(env) => env.pid(),
        }
    }
}

impl fmt::Debug for NodeEnv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NodeEnv::Process { .. } => "NodeEnv::Process",
            NodeEnv::Custom(_) => "NodeEnv::Custom",
        })
    }
}

fn since_1970_ns(clock_offset_s: i64) -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let shown_ns = (since.as_nanos() as i128).saturating_add(i128::from(clock_offset_s) * 1_000_000_000);
    u64::try_from(shown_ns.max(0)).unwrap_or(u64::MAX)
}

fn random() -> u64 {
    let mut bytes = [0; 8];
    let filled = getrandom(&mut bytes, GetRandomFlags::empty());
    assert_eq!(filled, Ok(bytes.len()), "the system always provides a few random bytes");
    u64::from_ne_bytes(bytes)
}
