//! What a node takes from its environment: the time, the date, random numbers, and a number for people to see.
//!
//! Nothing else in a node comes from outside of what its fabric and its sessions tell it.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::thread;
use std::time::{Instant, SystemTime};

use rustix::rand::{GetRandomFlags, getrandom};

use crate::runtime::crowd::is_host_crowded;
use crate::runtime::headroom;

/// The environment of a [`crate::Driven`] node, which may be made up: the same environment and the same fabric make the same node do
/// the same.
pub trait Env: Send + Sync {
    /// Nanoseconds on the node's clock.  Never runs backwards.
    fn now_ns(&self) -> u64;

    /// Nanoseconds since 1970, as well as the host knows: locks that are made anew count their tokens from there.
    fn since_1970_ns(&self) -> u64;

    /// A number that nobody else is given.
    fn random(&self) -> u64;

    /// What `halite status` shows as the node's process.
    fn pid(&self) -> u32;

    /// Where the node's fabric is dialled by others, who do so when they have lost sight of it; empty if it cannot be.
    fn address(&self) -> String {
        String::new()
    }
}

/// The environment of a node, of which the usual one costs no look-up.
#[derive(Clone)]
pub(crate) enum NodeEnv {
    /// This process, since it began, with a clock of day that is so far ahead.
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

    /// How many threads run at once.
    pub(crate) fn parallelism(&self) -> usize {
        match self {
            NodeEnv::Process { .. } => thread::available_parallelism().map_or(1, NonZeroUsize::get),
            NodeEnv::Custom(_) => 1,
        }
    }

    /// Whether a thread of the node's own looks now and then, though nobody rings.
    pub(crate) fn has_progress_thread(&self) -> bool {
        matches!(self, NodeEnv::Process { .. })
    }

    /// Whether more threads want to run than can.
    pub(crate) fn is_crowded(&self) -> bool {
        match self {
            NodeEnv::Process { .. } => is_host_crowded(),
            NodeEnv::Custom(_) => false,
        }
    }

    /// Whether the system could give `len` bytes of memory now.
    pub(crate) fn has_free(&self, len: u64) -> bool {
        match self {
            NodeEnv::Process { .. } => headroom::has_free(len),
            NodeEnv::Custom(_) => true,
        }
    }

    /// Whether a segment of `len` bytes leaves enough addresses for others.
    pub(crate) fn has_addresses(&self, len: u64) -> bool {
        match self {
            NodeEnv::Process { .. } => headroom::has_addresses(len),
            NodeEnv::Custom(_) => true,
        }
    }

    /// Where others dial the node, if its environment say.
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
    assert_eq!(filled, Ok(bytes.len()), "the system gives short random numbers without fail");
    u64::from_ne_bytes(bytes)
}
