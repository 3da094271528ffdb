//! Shared pages, as two workers of one process see them.

use crate::common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{Cluster, MIB, SetAtEnd, can_share_pages};
use halite_apps::dsm::{Access, Dsm, DsmError, Options};

const PAGES: usize = 16;

fn open(cluster: &Cluster, me: usize, pages: usize) -> Dsm {
    let workers = cluster.nodes.len();
    let patience = Duration::from_secs(60);
    let options = Options { name: "dsm".into(), me, workers, pages, patience };
    Dsm::open(&cluster.session(me), options).unwrap()
}

/// Runs a worker on each node.
fn on_all(cluster: &Cluster, run: impl Fn(&Dsm, usize) + Sync) {
    on_all_with(cluster, PAGES, run);
}

fn on_all_with(cluster: &Cluster, pages: usize, run: impl Fn(&Dsm, usize) + Sync) {
    if !can_share_pages() {
        return;
    }
    std::thread::scope(|scope| {
        for me in 0..cluster.nodes.len() {
            let run = &run;
            scope.spawn(move || {
                let dsm = open(cluster, me, pages);
                run(&dsm, me);
                dsm.close().unwrap();
            });
        }
    });
    assert_eq!(cluster.bytes_used(), 0);
}

#[test]
fn no_update_under_a_section_is_lost() {
    const ROUNDS: u64 = 200;
    on_all(&Cluster::new(64 * MIB), |dsm, me| {
        // All workers add to one word on each of three pages, and each stores to its own word beside it.
        let (page, own) = (dsm.page_bytes(), 8 + 8 * me as u64);
        for round in 1..=ROUNDS {
            let section = dsm.acquire(page..4 * page, Access::Write).unwrap();
            for at in [page, 2 * page, 3 * page] {
                dsm.store_u64(at, dsm.load_u64(at).unwrap() + round).unwrap();
                dsm.store_u64(at + own, round).unwrap();
            }
            section.release().unwrap();
        }
        dsm.meet().unwrap();
        let section = dsm.acquire(0..dsm.len(), Access::Read).unwrap();
        for at in [page, 2 * page, 3 * page] {
            let words = [0, 8, 16, 24].map(|word| dsm.load_u64(at + word).unwrap());
            assert_eq!(words, [ROUNDS * (ROUNDS + 1), ROUNDS, ROUNDS, 0]);
        }
        section.release().unwrap();
    });
}

#[test]
fn an_acquire_never_finds_stale_copies() {
    on_all(&Cluster::new(64 * MIB), |dsm, me| {
        let len = dsm.len();
        let stamp = |round: u64| vec![round as u8; len as usize];
        for round in 1..40 {
            // The workers take turns to store to all pages, of which the other worker has copies.
            dsm.touch(0..len).unwrap();
            dsm.meet().unwrap();
            if round % 2 == me as u64 {
                let section = dsm.acquire(0..len, Access::Write).unwrap();
                dsm.write(0, &stamp(round)).unwrap();
                section.release().unwrap();
            }
            dsm.meet().unwrap();
            let section = dsm.acquire(0..len, Access::Read).unwrap();
            let mut seen = vec![0; len as usize];
            dsm.read(0, &mut seen).unwrap();
            assert!(seen == stamp(round), "worker {me}, round {round}");
            section.release().unwrap();
        }
    });
}

#[test]
fn scattered_dirty_pages_reach_their_homes() {
    // The dirty pages form runs longer than the maximum of one write, single pages, and gaps.
    const MANY: usize = 300;
    let cluster = Cluster::new(64 * MIB);
    on_all_with(&cluster, MANY, |dsm, me| {
        let page = dsm.page_bytes();
        let mut expected = vec![0; MANY];
        let mut random = fastrand::Rng::with_seed(8);
        for round in 1..20 {
            let dense = random.f64();
            let chosen: Vec<u64> = (0..MANY as u64).filter(|_| random.f64() < dense || round == 1).collect();
            chosen.iter().for_each(|number| expected[*number as usize] = round);
            if round % 2 == me as u64 {
                let section = dsm.acquire(0..dsm.len(), Access::Write).unwrap();
                for number in &chosen {
                    // The first and the last word.
                    dsm.store_u64(number * page, round).unwrap();
                    dsm.store_u64((number + 1) * page - 8, round).unwrap();
                }
                section.release().unwrap();
            }
            dsm.meet().unwrap();
            let section = dsm.acquire(0..dsm.len(), Access::Read).unwrap();
            for (number, value) in (0..).zip(&expected) {
                for at in [number * page, (number + 1) * page - 8] {
                    assert_eq!(dsm.load_u64(at).unwrap(), *value, "worker {me}, round {round}, {number}");
                }
            }
            section.release().unwrap();
            dsm.meet().unwrap();
        }
    });
}

#[test]
fn a_touch_during_a_release_leaves_no_stale_copy() {
    const ROUNDS: u64 = 300;
    on_all(&Cluster::new(64 * MIB), |dsm, me| {
        let page = dsm.page_bytes();
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let end = SetAtEnd(&is_over);
            scope.spawn(|| {
                // Outside of sections, so that reads overlap with the releases of the other worker.
                while me == 1 && !is_over.load(Ordering::Relaxed) {
                    dsm.touch(0..dsm.len()).unwrap();
                }
            });
            for round in 1..=ROUNDS {
                if me == 0 {
                    let section = dsm.acquire(0..dsm.len(), Access::Write).unwrap();
                    for number in 0..PAGES as u64 {
                        dsm.store_u64(number * page, round).unwrap();
                    }
                    section.release().unwrap();
                }
                dsm.meet().unwrap();
                let section = dsm.acquire(0..dsm.len(), Access::Read).unwrap();
                for number in 0..PAGES as u64 {
                    assert_eq!(dsm.load_u64(number * page).unwrap(), round, "worker {me}, page {number}");
                }
                section.release().unwrap();
                dsm.meet().unwrap();
            }
            drop(end);
        });
    });
}

#[test]
fn readers_share_their_pages_and_stores_need_a_section() {
    on_all(&Cluster::new(64 * MIB), |dsm, _| {
        // Each worker holds its section until the other one has a section, too.
        let section = dsm.acquire(0..100, Access::Read).unwrap();
        dsm.meet().unwrap();
        let refused = dsm.store_u64(0, 1);
        assert!(matches!(refused, Err(DsmError::NotAcquired { page: 0 })), "{refused:?}");
        section.release().unwrap();
        dsm.meet().unwrap();
        let end = dsm.len();
        let outside = [dsm.read(end - 1, &mut [0; 2]), dsm.write(u64::MAX, &[1]), dsm.touch(end..end + 1)];
        for refused in outside {
            assert!(matches!(refused, Err(DsmError::OutOfBounds { .. })), "{refused:?}");
        }
        assert!(matches!(dsm.load_u64(4), Err(DsmError::Misaligned { offset: 4 })));
        assert_eq!(dsm.load_u64(0).unwrap(), 0);
    });
}

#[test]
fn sections_end_with_their_worker() {
    if !can_share_pages() {
        return;
    }
    let mut cluster = Cluster::new(64 * MIB);
    let (survivor, ended) = std::thread::scope(|scope| {
        let ended = scope.spawn(|| open(&cluster, 1, PAGES));
        (open(&cluster, 0, PAGES), ended.join().unwrap())
    });
    let page = survivor.page_bytes();
    let section = ended.acquire(0..page, Access::Write).unwrap();
    ended.store_u64(0, 7).unwrap();
    std::mem::forget(section);
    cluster.nodes.remove(1).leave();

    // The stores of the unreleased section are lost, and so are the pages whose home was the ended worker.
    let section = survivor.acquire(0..page, Access::Write).unwrap();
    assert_eq!(survivor.load_u64(0).unwrap(), 0);
    survivor.store_u64(0, 5).unwrap();
    section.release().unwrap();
    let lost = survivor.load_u64(page);
    assert!(matches!(lost, Err(DsmError::Access(_))), "{lost:?}");
    let lost = survivor.acquire(0..page, Access::Read);
    assert!(matches!(lost, Err(DsmError::Access(_))), "{lost:?}");
}
