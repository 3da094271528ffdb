//! Applications in virtual time, on nodes of which one dies.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use halite::{NodeId, Session};
use halite_apps::dsm::{Access, DsmError, Member, Options};
use halite_apps::graph::input::{Input, Kronecker};
use halite_apps::graph::{Crowd, GraphError, PageRank, Shard, pagerank};
use halite_apps::mapreduce::table::Table;
use halite_apps::mapreduce::words::{Counted, WordCount};
use halite_apps::mapreduce::{Clock, Desk, Job, Master, Pause, Text, Worker};
use halite_mem::PagedError;
use halite_testing::conformance::Cluster;
use halite_testing::conformance::sim::Simulated;
use halite_testing::conformance::turns::{
    self, StartingLine, pause, pause_again, scope, sleep, virtual_now_ns, wait,
};

/// Ranks a small graph with one worker per session, and runs `meanwhile`. Returns the sum of the ranks of each worker.
fn rank(
    sessions: Vec<Session>,
    name: &str,
    options: PageRank,
    meanwhile: impl FnOnce(),
) -> Vec<Result<f64, GraphError>> {
    let input = Input::Kronecker(Kronecker { scale: 6, seed: 1 });
    let workers = sessions.len();
    scope(|scope| {
        let started: Vec<_> = sessions
            .into_iter()
            .enumerate()
            .map(|(me, session)| {
                let (name, patience) = (name.to_owned(), Duration::from_secs(1));
                let (crowd, input) = (Crowd { session, me, workers, name, patience }, &input);
                scope.spawn(move || {
                    wait(async {
                        let shard = Shard::load(&crowd, input, false).await?;
                        let found = pagerank(&crowd, &shard, options).await?;
                        crowd.end().await?;
                        Ok(found.values.iter().sum())
                    })
                })
            })
            .collect();
        meanwhile();
        started.into_iter().map(|worker| worker.join()).collect()
    })
}

#[test]
fn a_graph_run_ends_when_a_worker_dies() {
    let harness = Simulated::profile("rnic-100g");
    let mut cluster = Cluster::new(&harness, 3);
    let sessions = |cluster: &Cluster, count| (0..count).map(|node| cluster.futures(node)).collect();
    let short = PageRank { iterations: 20, tolerance: 0.0, ..PageRank::default() };
    let sum_with = |cluster: &Cluster, count, name| -> f64 {
        rank(sessions(cluster, count), name, short, || {}).into_iter().map(Result::unwrap).sum()
    };
    assert!((sum_with(&cluster, 3, "before") - 1.0).abs() < 1e-9);
    let endless = PageRank { iterations: u64::MAX, tolerance: -1.0, ..PageRank::default() };
    let ended = rank(sessions(&cluster, 3), "during", endless, || {
        (0..60).for_each(pause_again);
        cluster.kill(2);
    });
    for error in ended.into_iter().map(Result::unwrap_err) {
        assert!(matches!(error, GraphError::Barrier(_) | GraphError::Access(_)), "{error}");
    }
    // The other workers can run again.
    assert!((sum_with(&cluster, 2, "after") - 1.0).abs() < 1e-9);
}

/// Returns true if the system reports page faults to this process. Otherwise prints the reason.
fn can_share_pages() -> bool {
    match halite_mem::Paged::new(1, |_, _| {}) {
        Err(why @ (PagedError::Refused | PagedError::Unsupported)) => {
            eprintln!("skipped: {why}");
            false
        }
        _ => true,
    }
}

/// Opens a range of shared pages on three nodes, and runs `work` on each node and `meanwhile` concurrently.
fn share_pages(
    cluster: &mut Cluster,
    name: &str,
    work: impl Fn(usize, &Member) + Sync,
    meanwhile: impl FnOnce(&mut Cluster),
) {
    scope(|scope| {
        for me in 0..3 {
            let (session, work, name) = (cluster.futures(me), &work, name.to_owned());
            scope.spawn(move || {
                let patience = Duration::from_secs(60);
                let options = Options { name, me, workers: 3, pages: 12, patience };
                let (member, services) = wait(Member::open(&session, options)).unwrap();
                turns::scope(|scope| {
                    scope.spawn(|| wait(services.run()));
                    work(me, &member);
                    drop(member);
                });
            });
        }
        meanwhile(cluster);
    });
}

/// Adds 1 to the first word of each page in `pages`, in one critical section.
fn add_to(member: &Member, pages: Range<u64>) -> Result<(), DsmError> {
    let page = member.page_bytes();
    wait(async {
        let held = member.acquire(pages.start * page..pages.end * page, Access::Write).await?;
        member.touch(pages.start * page..pages.end * page).await?;
        for at in pages {
            member.store_u64(at * page, member.load_u64(at * page)? + 1)?;
        }
        member.release(held).await
    })
}

#[test]
fn shared_pages_lose_only_unreleased_stores() {
    const ROUNDS: u64 = 12;
    if !can_share_pages() {
        return;
    }
    let mut cluster = Cluster::new(&Simulated::profile("rnic-100g"), 3);
    let (holds, lines) = (AtomicBool::new(false), [StartingLine::new(2), StartingLine::new(2)]);
    let work = |me: usize, member: &Member| {
        let page = member.page_bytes();
        // Pages 0 and 1 have their homes at workers that survive.
        (0..ROUNDS).for_each(|_| add_to(member, 0..2).unwrap());
        wait(member.meet()).unwrap();
        if me == 2 {
            let held = wait(member.acquire(0..page, Access::Write)).unwrap();
            wait(member.touch(0..page)).unwrap();
            member.store_u64(0, 1 << 40).unwrap();
            holds.store(true, Ordering::Relaxed);
            // The worker holds the section, so this acquire waits until the worker dies.
            let ended = wait(member.acquire(0..page, Access::Write)).unwrap_err();
            assert!(matches!(ended, DsmError::Locks(_)), "{ended}");
            drop(held);
            return;
        }
        while !holds.load(Ordering::Relaxed) {
            pause();
        }
        // These sections wait until the death of the holder is known. Their releases skip the dead worker.
        (0..ROUNDS).for_each(|_| add_to(member, 0..2).unwrap());
        lines[0].wait();
        let held = wait(member.acquire(0..2 * page, Access::Read)).unwrap();
        wait(member.touch(0..2 * page)).unwrap();
        for at in [0, page] {
            assert_eq!(member.load_u64(at).unwrap(), ROUNDS * 5, "worker {me}");
        }
        wait(member.release(held)).unwrap();
        lines[1].wait();
        if me == 1 {
            let untouched = member.load_u64(3 * page);
            assert!(matches!(untouched, Err(DsmError::Untouched { page: 3 })), "{untouched:?}");
        } else {
            let lost = wait(member.touch(2 * page..3 * page));
            assert!(matches!(lost, Err(DsmError::Access(_))), "{lost:?}");
        }
    };
    share_pages(&mut cluster, "pages", work, |cluster| {
        while !holds.load(Ordering::Relaxed) {
            pause();
        }
        cluster.kill(2);
    });
}

#[test]
fn shared_pages_fail_when_the_lock_server_dies() {
    if !can_share_pages() {
        return;
    }
    let mut cluster = Cluster::new(&Simulated::profile("rnic-100g"), 3);
    let has_begun = AtomicBool::new(false);
    let work = |me: usize, member: &Member| {
        let error = loop {
            if let Err(error) = add_to(member, 1..3) {
                break error;
            }
            has_begun.store(true, Ordering::Relaxed);
        };
        let is_typed = matches!(
            error,
            DsmError::Locks(_) | DsmError::Access(_) | DsmError::Invalidate { .. } | DsmError::Release(_)
        );
        assert!(is_typed, "worker {me}: {error}");
    };
    share_pages(&mut cluster, "pages", work, |cluster| {
        while !has_begun.load(Ordering::Relaxed) {
            pause();
        }
        cluster.kill(0);
    });
}

#[test]
fn a_release_does_not_wait_for_the_lock_server() {
    if !can_share_pages() {
        return;
    }
    let mut cluster = Cluster::new(&Simulated::profile("rnic-100g"), 3);
    let now_ns = || virtual_now_ns().expect("the run is simulated");
    let work = |me: usize, member: &Member| {
        let page = member.page_bytes();
        // More releases than may be unanswered at a time, so that the member also checks answers.
        for round in 0..30 {
            let own = 4 * me as u64 * page..(4 * me as u64 + 1) * page;
            let begin_ns = now_ns();
            let held = wait(member.acquire(own, Access::Read)).unwrap();
            let acquired_ns = now_ns();
            wait(member.release(held)).unwrap();
            let (acquire_ns, release_ns) = (acquired_ns - begin_ns, now_ns() - acquired_ns);
            let is_quick = 2 * release_ns < acquire_ns;
            assert!(
                is_quick || me == 0,
                "worker {me}, round {round}: a release took {release_ns} ns, an acquire {acquire_ns} ns"
            );
        }
        // Releases more sections at once than may be unanswered.
        let held: Vec<_> = (0..20).map(|_| wait(member.acquire(0..page, Access::Read)).unwrap()).collect();
        held.into_iter().for_each(|held| wait(member.release(held)).unwrap());
        wait(member.meet()).unwrap();
        let held = wait(member.acquire(0..page, Access::Write)).unwrap();
        wait(member.release(held)).unwrap();
        wait(member.meet()).unwrap();
    };
    share_pages(&mut cluster, "pages", work, |_| {});
}

/// Counts words, and records the progress of a worker.
#[derive(Default)]
struct Tracked {
    /// True once the worker has mapped a text.
    has_mapped: AtomicBool,
    /// True once the worker has reduced a part.
    has_reduced: AtomicBool,
}

impl Job for Tracked {
    type Value = u64;
    type Record = Counted;

    fn is_boundary(byte: u8) -> bool {
        WordCount::is_boundary(byte)
    }

    fn map(&self, text: Text<'_>, emit: impl FnMut(&[u8], u64)) {
        COUNT.map(text, emit);
        self.has_mapped.store(true, Ordering::Relaxed);
    }

    fn combine(&self, into: &mut u64, more: u64) {
        COUNT.combine(into, more);
    }

    fn weight(&self, value: &u64) -> u64 {
        COUNT.weight(value)
    }

    fn reduce(&self, part: Table<u64>) -> Vec<Counted> {
        let records = COUNT.reduce(part);
        self.has_reduced.store(true, Ordering::Relaxed);
        records
    }

    fn shorten(&self, records: &mut Vec<Counted>) {
        COUNT.shorten(records);
    }
}

const COUNT: WordCount = WordCount { top: 1000 };

/// The clock of the simulated world.
struct VirtualClock;

impl Clock for VirtualClock {
    fn now_ns(&self) -> u64 {
        virtual_now_ns().expect("the run is simulated")
    }

    fn pause(&self, duration: Duration) -> Pause<'_> {
        Box::pin(sleep(duration))
    }
}

#[test]
fn words_are_counted_although_a_worker_dies() {
    let dir = tempfile::tempdir().unwrap();
    let (path, words) = (dir.path().join("text"), ["node", "dies", "others", "count"]);
    // Several tasks for each worker.
    std::fs::write(&path, (words.join(" ") + "\n").repeat(250_000)).unwrap();
    let mut expected: Vec<_> = words.iter().map(|word| (250_000, (*word).to_owned())).collect();
    expected.sort();
    // The worker dies with unpublished results, or with published results that other workers need.
    for dies_late in [false, true] {
        let mut cluster = Cluster::new(&Simulated::profile("rnic-100g"), 3);
        let nodes = [0, 1, 2].map(NodeId);
        let (jobs, is_over): ([Tracked; 3], AtomicBool) = Default::default();
        let (clock, run) = (VirtualClock, "words");
        let sessions: Vec<Session> = nodes.iter().map(|node| cluster.futures(node.0 as usize)).collect();
        let desk = wait(Desk::open(&sessions[0], run)).unwrap();
        let outcome = scope(|scope| {
            let leading = scope.spawn(|| {
                let master = Master { session: &sessions[0], desk: &desk, nodes: &nodes, clock: &clock };
                wait(master.lead(&COUNT, std::slice::from_ref(&path), |_| {}))
            });
            let work = |number: u32| {
                let (session, job) = (&sessions[number as usize], &jobs[number as usize]);
                let worker = Worker { session, run, number, workers: 3, is_over: &is_over, clock: &clock };
                scope.spawn(move || wait(worker.work(job)))
            };
            // The worker is alone at first, so it holds all results so far.
            let dying = work(2);
            let progress = if dies_late { &jobs[2].has_reduced } else { &jobs[2].has_mapped };
            while !progress.load(Ordering::Relaxed) {
                pause();
            }
            cluster.kill(2);
            let others = [0, 1].map(work);
            assert!(dying.join().is_err());
            others.into_iter().for_each(|worker| worker.join().unwrap());
            leading.join().unwrap()
        });
        let found: Vec<_> = outcome.records.into_iter().map(|found| (found.count.0, found.word)).collect();
        assert_eq!(found, expected);
        assert_eq!((outcome.lost, outcome.verified), (1, true), "late: {dies_late}");
    }
}
