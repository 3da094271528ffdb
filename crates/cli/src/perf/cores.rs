//! Which thread runs on which core.

use std::io;

use clap::ValueEnum;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// How the two ends share the cores.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pinning {
    /// The two threads of a pair on two cores, pairs over all cores in turn: best where both ends are busy
    Apart,
    /// Both ends on the first core, with all their threads: best where they mostly sleep
    Shared,
    /// On whichever cores the scheduler picks
    Any,
}

/// The cores that this process may use, and how the two ends share them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cores {
    available: Vec<usize>,
    pinning: Pinning,
}

impl Cores {
    /// Those that the system tells.
    pub fn available(pinning: Pinning) -> io::Result<Cores> {
        let set = sched_getaffinity(None)?;
        let available = (0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect();
        Ok(Cores { available, pinning })
    }

    /// Whether there is one core only where two are wanted.
    pub fn are_too_few(&self) -> bool {
        self.available.len() < 2 && self.pinning != Pinning::Shared
    }

    /// Where a server's thread number `thread` may run: apart, on the first core, and so on in turn.
    pub fn of_server(&self, thread: usize) -> CpuSet {
        match self.pinning {
            Pinning::Apart => set_of(&[self.available[thread % self.available.len()]]),
            Pinning::Shared => set_of(&[self.available[0]]),
            Pinning::Any => set_of(&self.available),
        }
    }

    /// Where a client's thread number `thread` may run: apart, beside its server's, so that a pair has two cores.
    pub fn of_client(&self, thread: usize) -> CpuSet {
        self.of_server(thread + 1)
    }
}

fn set_of(cores: &[usize]) -> CpuSet {
    let mut set = CpuSet::new();
    cores.iter().for_each(|core| set.set(*core));
    set
}

/// Keeps the calling thread, and those that it starts from now on, on `cores`.
pub fn pin(cores: CpuSet) -> io::Result<()> {
    Ok(sched_setaffinity(None, &cores)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cores(available: &[usize], pinning: Pinning) -> Cores {
        Cores { available: available.to_vec(), pinning }
    }

    #[test]
    fn apart_a_pair_of_threads_never_shares_a_core_if_there_are_two() {
        let three = cores(&[2, 5, 7], Pinning::Apart);
        for thread in 0..10 {
            let (client, server) = (three.of_client(thread), three.of_server(thread));
            assert_ne!(client, server);
            assert_eq!((client.count(), server.count()), (1, 1));
        }
        let only = cores(&[3], Pinning::Apart);
        assert_eq!((only.of_client(4), only.of_server(4)), (set_of(&[3]), set_of(&[3])));
    }

    #[test]
    fn shared_all_threads_have_the_first_core() {
        let shared = cores(&[2, 5, 7], Pinning::Shared);
        for thread in 0..10 {
            assert_eq!((shared.of_client(thread), shared.of_server(thread)), (set_of(&[2]), set_of(&[2])));
        }
    }

    #[test]
    fn unpinned_threads_keep_all_cores() {
        let any = cores(&[2, 5, 7], Pinning::Any);
        assert_eq!((any.of_client(0), any.of_server(3)), (set_of(&[2, 5, 7]), set_of(&[2, 5, 7])));
    }

    #[test]
    fn one_core_is_too_few_unless_it_is_to_be_shared() {
        let too_few = |available: &[usize]| {
            [Pinning::Apart, Pinning::Shared, Pinning::Any]
                .map(|pinning| cores(available, pinning).are_too_few())
        };
        assert_eq!(too_few(&[3]), [true, false, true]);
        assert_eq!(too_few(&[3, 4]), [false; 3]);
    }

    #[test]
    fn a_pinned_thread_and_those_that_it_starts_have_its_core() {
        let cores = Cores::available(Pinning::Apart).unwrap();
        let pinned = std::thread::spawn(move || {
            pin(cores.of_client(0)).unwrap();
            let started = std::thread::spawn(|| sched_getaffinity(None).unwrap());
            (cores.of_client(0), started.join().unwrap())
        });
        let (wanted, found) = pinned.join().unwrap();
        assert_eq!(found, wanted);
    }
}
