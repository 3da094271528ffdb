//! Detects contention: so many threads are runnable that a spinning thread takes a core from another thread.
//!
//! A thread could also detect contention by yielding, but at a cost: it gives up its time slice, waits for the slice of
//! a computing thread to end, and is scheduled late at its next wake-up. A thread that sleeps is scheduled at once when
//! woken.

use std::fs::read_to_string;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Time for which a reading stays valid, in nanoseconds: a tick of most schedulers. Taking a reading takes about 5 us.
const VALID_NS: u64 = 4_000_000;

/// The last reading of the host's contention.
#[derive(Debug, Default)]
pub(crate) struct Contention {
    /// Time of the reading, with the result in the last bit; 0 before the first reading.
    last: AtomicU64,
}

impl Contention {
    /// Returns the last reading. If it is too old, takes a new reading with `measure`.
    pub(crate) fn is_contended(&self, now_ns: u64, measure: impl FnOnce() -> bool) -> bool {
        // Relaxed: the word is independent of other memory.
        let last = self.last.load(Relaxed);
        if last != 0 && now_ns.saturating_sub(last >> 1) < VALID_NS {
            return last & 1 == 1;
        }
        let is_contended = measure();
        self.last.store(now_ns.max(1) << 1 | u64::from(is_contended), Relaxed);
        is_contended
    }
}

/// Returns true if the cores of this host are contended; false if the system does not say.
pub(crate) fn is_host_contended() -> bool {
    static PROCESSORS: OnceLock<Option<usize>> = OnceLock::new();
    let contents = |path| read_to_string(path).ok();
    let processors = PROCESSORS.get_or_init(|| count(&contents("/sys/devices/system/cpu/online")?));
    let running = contents("/proc/loadavg").as_deref().and_then(running);
    running.zip(*processors).is_some_and(|(running, processors)| exceeds_cores(running, processors))
}

/// Returns true if more than two threads per core are runnable. Two spinning ends and their progress threads, which
/// poll occasionally, do not contend for two cores.
fn exceeds_cores(running: usize, processors: usize) -> bool {
    running > 2 * processors
}

/// Returns the number of runnable threads, from text such as `0.20 0.18 0.12 3/80 11206`.
fn running(loadavg: &str) -> Option<usize> {
    let (running, _) = loadavg.split_ascii_whitespace().nth(3)?.split_once('/')?;
    running.parse().ok()
}

/// Returns the number of items in a list such as `0-3,8`.
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
