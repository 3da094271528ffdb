//! The process that holds the bytes is killed: in the middle of a copy, and at any other moment.

use std::time::{Duration, Instant};

use fastrand::Rng;
use halite::blocking::Session;
use halite::{AccessCause, Lh, NodeId, NodeState, Placement};

use super::cluster::{ANYBODY, Cluster, PATIENCE, await_state, status_of};
use super::pattern::{bytes, first_difference};
use super::stripes::{self, WRITERS};

const GIB: u64 = 1 << 30;

/// Repeats an access until it fails; returns when it did, and why.
fn until_it_fails(mut access: impl FnMut() -> Result<(), halite::AccessError>) -> (Instant, AccessCause) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Err(error) = access() {
            return (Instant::now(), error.cause);
        }
        assert!(Instant::now() < deadline, "the bytes of a dead node can still be had");
    }
}

/// Waits until a byte of a region has that value: a copy has come so far.
fn await_byte(session: &Session, lh: Lh, offset: u64, value: u8) {
    let deadline = Instant::now() + PATIENCE;
    let mut byte = [0];
    while byte[0] != value {
        session.read(lh, offset, &mut byte).expect("the owner lives");
        assert!(Instant::now() < deadline, "the copy does not get on");
    }
}

/// Kills the owner of 1 GiB while this process copies it to or fro, and returns how long the call took to fail.
fn kill_amid_a_copy(is_write: bool) -> Duration {
    let mut cluster = Cluster::new();
    cluster.config.arena_bytes = GIB + (64 << 20);
    cluster.config.segment_bytes = cluster.config.arena_bytes;
    cluster.config.chunk_bytes = 4 << 20;
    // The kernel tells of a death, and nobody waits for a lease.
    cluster.config.lease = 2 * PATIENCE;
    let node = cluster.join(0);
    let session = node.blocking_session();
    let (mut victim, mut survivor) = (cluster.start(1), cluster.start(2));
    let lh = session.alloc(Some("large"), GIB, Placement::On(NodeId(1)), ANYBODY).expect("there is room");
    let kept =
        session.alloc(Some("kept"), 1 << 20, Placement::On(NodeId(2)), ANYBODY).expect("there is room");
    session.write(kept, 0, &bytes(1, 1 << 20)).expect("it is ours");
    survivor.order("map kept");

    let mut buffer = vec![7; GIB as usize];
    let (begun, begin) = std::sync::mpsc::channel();
    let took = std::thread::scope(|scope| {
        let session_of_copy = &session;
        let copying = scope.spawn(move || {
            let mut round = 0;
            until_it_fails(|| {
                round += 1;
                if round == 2 {
                    begun.send(()).expect("somebody waits for this");
                }
                match is_write {
                    true => session_of_copy.write(lh, 0, &buffer),
                    false => session_of_copy.read(lh, 0, &mut buffer),
                }
            })
        });
        match is_write {
            // In the middle of the very first one.
            true => await_byte(&session, lh, GIB / 4, 7),
            false => begin.recv().expect("the first one succeeds"),
        }
        let killed = Instant::now();
        victim.begin_kill();
        // Others are not held up meanwhile.
        survivor.order("check kept 1048576 1");
        let (failed, cause) = copying.join().expect("no panic");
        assert_eq!(cause, AccessCause::PeerDown(NodeId(1)));
        failed - killed
    });

    await_state(&session, 1, NodeState::Dead);
    survivor.order("check kept 1048576 1");
    victim.kill();
    // The same number, another incarnation.
    let mut reborn = cluster.start(1);
    let (_, cause) = until_it_fails(|| session.read(lh, 0, &mut [0]));
    assert_eq!(cause, AccessCause::Stale);
    reborn.order("alloc large 1048576 here");
    reborn.order("zero large");
    reborn.order("fill large 1048576 2");
    let again = session.map("large", ANYBODY).expect("the name is found");
    let mut found = vec![0; 1 << 20];
    session.read(again, 0, &mut found).expect("it is there");
    assert_eq!(first_difference(&found, &bytes(2, 1 << 20)), None);
    took
}

#[test]
fn a_long_write_to_a_process_that_is_killed_ends_at_once_and_hurts_nobody_else() {
    eprintln!("a write of 1 GiB failed {:?} after its owner was killed", kill_amid_a_copy(true));
}

#[test]
fn a_long_read_from_a_process_that_is_killed_ends_at_once_and_hurts_nobody_else() {
    eprintln!("a read of 1 GiB failed {:?} after its owner was killed", kill_amid_a_copy(false));
}

/// Reads all and compares it with what the writers are done with; `dying` may have died in the middle of a write,
/// or between a write and telling of it.
fn check_stripes(session: &Session, lh: Lh, counts: Lh, len: u64, dying: u64, others: [u64; 3]) {
    let count_of = |writer: u64| {
        let mut word = [0; 8];
        session.read(counts, writer * 8, &mut word).expect("it is here");
        u64::from_le_bytes(word)
    };
    let mut found = vec![0; len as usize];
    session.read(lh, 0, &mut found).expect("it is here");
    let mut done = others;
    done[dying as usize] = count_of(dying);
    // The write after the last that was told of may be there in part: put in place what it would be whole.
    let next = stripes::offset(dying, done[dying as usize] + 1, len) as usize;
    let record = stripes::record(dying, done[dying as usize] + 1);
    let torn = &found[next..next + stripes::RECORD_BYTES];
    let before = match done[dying as usize].checked_sub(stripes::turns(len) - 1) {
        None | Some(0) => [0; stripes::RECORD_BYTES],
        Some(count) => stripes::record(dying, count),
    };
    for (at, byte) in torn.iter().enumerate() {
        assert!(*byte == before[at] || *byte == record[at], "byte {at} of a torn write was never written");
    }
    found[next..next + stripes::RECORD_BYTES].copy_from_slice(&before);
    assert_eq!(stripes::check(&found, &done), Ok(()));
}

#[test]
fn a_process_that_is_killed_at_any_moment_takes_only_its_own_bytes_along() {
    const LEN: u64 = 256 << 10;
    let cluster = Cluster::new();
    let node = cluster.join(0);
    let session = node.blocking_session();
    let mut survivor = cluster.start(2);
    let mut lost: Option<Lh> = None;
    for seed in 0..20 {
        eprintln!("seed {seed}");
        let mut numbers = Rng::with_seed(seed);
        let lh = session.alloc(Some("shared"), LEN, Placement::Local, ANYBODY).expect("there is room");
        let counts = session.alloc(Some("counts"), 4096, Placement::Local, ANYBODY).expect("there is room");
        let mut victim = cluster.start(1);
        if let Some(lost) = lost {
            assert_eq!(until_it_fails(|| session.read(lost, 0, &mut [0])).1, AccessCause::Stale);
        }
        for process in [&mut survivor, &mut victim] {
            process.order("map shared");
            process.order("map counts");
        }
        survivor.order("stripes shared counts 0 0");
        victim.order("stripes shared counts 1 0");
        victim.order("alloc own 1048576 here");
        let own = session.map("own", ANYBODY).expect("the name is free again in each incarnation");
        survivor.order("map own");
        survivor.order("flood own 1048576");
        for _ in 0..numbers.u64(0..300) {
            session.status().expect("the status can be had");
        }
        victim.begin_kill();
        assert_eq!(until_it_fails(|| session.write(own, 0, &[1])).1, AccessCause::PeerDown(NodeId(1)));
        assert_eq!(survivor.news(), "own begun");
        assert_eq!(survivor.news(), "own ended PeerDown(NodeId(1))");
        await_state(&session, 1, NodeState::Dead);
        victim.kill();
        let answer = survivor.ask("halt");
        let count = answer.strip_prefix("done ").and_then(|count| count.parse().ok());
        let count: u64 = count.unwrap_or_else(|| panic!("the survivor is disturbed: {answer}"));
        let mut others = [0; WRITERS as usize];
        others[0] = count;
        check_stripes(&session, lh, counts, LEN, 1, others);
        session.free(lh).expect("it is ours");
        session.free(counts).expect("it is ours");
        lost = Some(own);
    }
    let here = status_of(&session, 0);
    assert_eq!((here.bytes_used, here.bytes_quarantined, here.regions), (0, 0, 0));
}
