//! Whether so many threads want to run that nobody spins, for the processor is another thread's.
//!
//! To offer the processor shows it as well, and costs what it shows: who yields has used its slice up, waits for that of a thread that computes, and is
//! let on late when it is next woken.  A thread that sleeps and is woken is let on at once.

use std::fs::read_to_string;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// For so long what was seen is taken to be so: a tick of most schedulers.  To look takes some 5 us.
const SEEN_FOR_NS: u64 = 4_000_000;

/// What was last seen.
#[derive(Debug, Default)]
pub(crate) struct Crowd {
    /// When, and in the last bit, what; 0 if nothing was.
    seen: AtomicU64,
}

impl Crowd {
    /// Whether there is one, as `look` says, which is asked now and then.
    pub(crate) fn is_there(&self, now_ns: u64, look: impl FnOnce() -> bool) -> bool {
        // One word, and each look is as good as another: it orders nothing.
        let seen = self.seen.load(Relaxed);
        if seen != 0 && now_ns.saturating_sub(seen >> 1) < SEEN_FOR_NS {
            return seen & 1 == 1;
        }
        let is_there = look();
        self.seen.store(now_ns.max(1) << 1 | u64::from(is_there), Relaxed);
        is_there
    }
}

/// Whether the threads of this host that want to run are a crowd.  Not, where that cannot be told.
pub(crate) fn is_host_crowded() -> bool {
    static PROCESSORS: OnceLock<Option<usize>> = OnceLock::new();
    let told = |path| read_to_string(path).ok();
    let processors = PROCESSORS.get_or_init(|| count(&told("/sys/devices/system/cpu/online")?));
    let running = told("/proc/loadavg").as_deref().and_then(running);
    running.zip(*processors).is_some_and(|(running, processors)| is_crowd(running, processors))
}

/// Two ends that spin, and their progress threads, which look now and then, are no crowd on two processors.
fn is_crowd(running: usize, processors: usize) -> bool {
    running > 2 * processors
}

/// How many threads want to run, as the kernel says in `0.20 0.18 0.12 3/80 11206`.
fn running(loadavg: &str) -> Option<usize> {
    let (running, _) = loadavg.split_ascii_whitespace().nth(3)?.split_once('/')?;
    running.parse().ok()
}

/// How many there are in a list as `0-3,8`.
fn count(list: &str) -> Option<usize> {
    let parts = list.trim().split(',');
    parts
        .map(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
            last.checked_sub(first)?.checked_add(1)
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn running_threads_are_read_from_loadavg() {
        assert_eq!(running("0.20 0.18 0.12 3/80 11206\n"), Some(3));
        for other in ["", "0.20 0.18 0.12", "0.20 0.18 0.12 380 11206", "0.20 0.18 0.12 x/80 11206"] {
            assert_eq!(running(other), None, "{other}");
        }
        // This thread runs.
        let here = read_to_string("/proc/loadavg").expect("Linux");
        assert!(running(&here).is_some_and(|running| running >= 1), "{here}");
    }
}
