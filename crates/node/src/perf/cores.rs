//! Which thread runs on which core.

use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The cores that this process may use.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cores(Vec<usize>);

impl Cores {
    /// As the system tells.
    pub fn available() -> io::Result<Cores> {
        let set = sched_getaffinity(None)?;
        Ok(Cores((0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect()))
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The core of a server's thread number `thread`: the first core, and so on in turn.
    pub fn of_server(&self, thread: usize) -> usize {
        self.0[thread % self.0.len()]
    }

    /// The core of a client's thread number `thread`: beside its server's, so that a pair has two cores.
    pub fn of_client(&self, thread: usize) -> usize {
        self.of_server(thread + 1)
    }
}

/// Keeps the calling thread, and those that it starts from now on, on `core`.
pub fn pin(core: usize) -> io::Result<()> {
    let mut cores = CpuSet::new();
    cores.set(core);
    Ok(sched_setaffinity(None, &cores)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_of_threads_never_shares_a_core_if_there_are_two() {
        let cores = Cores(vec![2, 5, 7]);
        for thread in 0..10 {
            assert_ne!(cores.of_client(thread), cores.of_server(thread));
        }
        let only = Cores(vec![3]);
        assert_eq!((only.of_client(4), only.of_server(4)), (3, 3));
    }

    #[test]
    fn a_pinned_thread_has_one_core() {
        let core = Cores::available().unwrap().of_client(0);
        let pinned = std::thread::spawn(move || {
            pin(core).unwrap();
            Cores::available().unwrap()
        });
        assert_eq!(pinned.join().unwrap(), Cores(vec![core]));
    }
}
