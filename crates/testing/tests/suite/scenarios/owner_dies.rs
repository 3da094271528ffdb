//! The process that owns the bytes of a region is killed during a copy, and at random moments.

use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use fastrand::Rng;
use halite::blocking::Session;
use halite::{AccessCause, Lh, NodeId, NodeState, Placement, Provider};

use super::cluster::{Cluster, PATIENCE, READ_WRITE, await_state, status_of};
use super::pattern::{bytes, first_difference};
use super::stripes::{self, WRITERS};

const GIB: u64 = 1 << 30;

/// Repeats an access until it fails. Returns the time of the failure and its cause.
fn repeat_until_error(mut access: impl FnMut() -> Result<(), halite::AccessError>) -> (Instant, AccessCause) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Err(error) = access() {
            return (Instant::now(), error.cause);
        }
        assert!(Instant::now() < deadline, "the bytes of a dead node are still readable");
    }
}

/// Waits until a byte of a region has this value, which a copy in progress writes.
fn await_byte(session: &Session, lh: Lh, offset: u64, value: u8) {
    let deadline = Instant::now() + PATIENCE;
    let mut byte = [0];
    while byte[0] != value {
        session.read(lh, offset, &mut byte).expect("the owner lives");
        assert!(Instant::now() < deadline, "the copy makes no progress");
    }
}

/// Kills the owner of 1 GiB while this process writes or reads it. Returns the time from the kill to the failure.
fn kill_during_a_copy(is_write: bool) -> Duration {
    let mut cluster = Cluster::new();
    cluster.config.arena_bytes = GIB + (64 << 20);
    cluster.config.segment_bytes = cluster.config.arena_bytes;
    cluster.config.chunk_bytes = 4 << 20;
    // The kernel reports the death, so no node waits for a lease.
    cluster.config.lease = 2 * PATIENCE;
    let node = cluster.join(0);
    let session = node.blocking_session();
    let (mut victim, mut survivor) = (cluster.start(1), cluster.start(2));
    let lh = session.alloc(Some("large"), GIB, Placement::On(NodeId(1)), READ_WRITE).expect("there is room");
    let kept =
        session.alloc(Some("kept"), 1 << 20, Placement::On(NodeId(2)), READ_WRITE).expect("there is room");
    session.write(kept, 0, &bytes(1, 1 << 20)).expect("the session is a master");
    survivor.run("map kept");

    let mut buffer = vec![7; GIB as usize];
    let (begun, begin) = channel();
    let took = std::thread::scope(|scope| {
        let copy_session = &session;
        let copying = scope.spawn(move || {
            let mut round = 0;
            repeat_until_error(|| {
                round += 1;
                if round == 2 {
                    begun.send(()).expect("the other thread waits");
                }
                match is_write {
                    true => copy_session.write(lh, 0, &buffer),
                    false => copy_session.read(lh, 0, &mut buffer),
                }
            })
        });
        match is_write {
            // The first copy is in progress.
            true => await_byte(&session, lh, GIB / 4, 7),
            false => begin.recv().expect("the first copy succeeds"),
        }
        let killed = Instant::now();
        victim.begin_kill();
        // Other nodes continue to work.
        survivor.run("check kept 1048576 1");
        let (failed, cause) = copying.join().expect("the thread does not panic");
        assert_eq!(cause, AccessCause::PeerDown(NodeId(1)));
        failed - killed
    });

    await_state(&session, 1, NodeState::Dead);
    survivor.run("check kept 1048576 1");
    victim.kill();
    // The next incarnation gets the same number.
    let mut restarted = cluster.start(1);
    let (_, cause) = repeat_until_error(|| session.read(lh, 0, &mut [0]));
    assert_eq!(cause, AccessCause::Stale);
    restarted.run("alloc large 1048576 here");
    restarted.run("zero large");
    restarted.run("fill large 1048576 2");
    let again = session.map("large", READ_WRITE).expect("the name is found");
    let mut found = vec![0; 1 << 20];
    session.read(again, 0, &mut found).expect("the object exists");
    assert_eq!(first_difference(&found, &bytes(2, 1 << 20)), None);
    took
}

#[test]
fn a_long_write_to_a_killed_process_fails_at_once() {
    eprintln!("a write of 1 GiB failed {:?} after its owner was killed", kill_during_a_copy(true));
}

#[test]
fn a_long_read_from_a_killed_process_fails_at_once() {
    eprintln!("a read of 1 GiB failed {:?} after its owner was killed", kill_during_a_copy(false));
}

#[test]
fn a_wait_for_a_word_of_a_killed_process_fails() {
    let mut cluster = Cluster::new();
    // The kernel reports the death, so no node waits for a lease.
    cluster.config.lease = 2 * PATIENCE;
    let node = cluster.join(0);
    let session = node.blocking_session();
    let mut victim = cluster.start(1);
    let lh = session.alloc(Some("word"), 8, Placement::On(NodeId(1)), READ_WRITE).expect("there is room");
    let ((report_check, checks), (report_end, end)) = (channel(), channel());
    std::thread::spawn(move || {
        let waited = session.wait_until(lh, 0, |word| {
            // The test counts the checks. If it fails, it drops the receiver first.
            let _ = report_check.send(());
            word != 0
        });
        let _ = report_end.send(waited.map_err(|error| error.cause));
    });
    // After so many checks, the wait pauses between them.
    (0..300).for_each(|_| checks.recv_timeout(PATIENCE).expect("the wait checks again"));
    victim.kill();
    assert_eq!(end.recv_timeout(PATIENCE), Ok(Err(AccessCause::PeerDown(NodeId(1)))));
}

#[test]
fn posted_work_and_a_wait_end_when_a_process_is_killed_over_roce() {
    let mut cluster = Cluster::new();
    cluster.config.providers = vec![Provider::Roce];
    // The kernel closes the control socket of the killed process, so no node waits for a lease.
    cluster.config.lease = 2 * PATIENCE;
    let node = cluster.join(0);
    let session = node.blocking_session();
    let mut victim = cluster.start(1);
    let lh = session.alloc(Some("word"), 4096, Placement::On(NodeId(1)), READ_WRITE).expect("there is room");
    // From here on, nothing is acknowledged.
    victim.stop();
    let mut write = session.post_write(lh, 8, [7; 8]);
    let mut read = session.post_read(lh, 0, [0; 8]);
    let mut long = session.post_write(lh, 64, vec![7; 4000]);
    assert!(!write.is_ended() && !read.is_ended() && !long.is_ended());
    let (report_end, end) = channel();
    std::thread::spawn({
        let session = session.clone();
        move || report_end.send(session.wait_until(lh, 0, |word| word != 0).map_err(|error| error.cause))
    });
    victim.kill();
    let down = AccessCause::PeerDown(NodeId(1));
    assert_eq!(end.recv_timeout(PATIENCE), Ok(Err(down)));
    let ended = [write.wait().1, read.wait().1, long.wait().1];
    assert_eq!(ended.map(|outcome| outcome.map_err(|error| error.cause)), [Err(down); 3]);
}

/// Compares all bytes with the completed writes. Writer `dying` may have died during a write, or before it reported a
/// completed write.
fn check_stripes(session: &Session, lh: Lh, counts: Lh, len: u64, dying: u64, others: [u64; 3]) {
    let count_of = |writer: u64| {
        let mut word = [0; 8];
        session.read(counts, writer * 8, &mut word).expect("the bytes are local");
        u64::from_le_bytes(word)
    };
    let mut found = vec![0; len as usize];
    session.read(lh, 0, &mut found).expect("the bytes are local");
    let mut done = others;
    done[dying as usize] = count_of(dying);
    // A part of the write after the last reported one may have landed. Each of its bytes must be old or new; then the
    // old record is restored for the comparison.
    let next = stripes::offset(dying, done[dying as usize] + 1, len) as usize;
    let record = stripes::record(dying, done[dying as usize] + 1);
    let torn = &found[next..next + stripes::RECORD_BYTES];
    let before = match done[dying as usize].checked_sub(stripes::turns(len) - 1) {
        None | Some(0) => [0; stripes::RECORD_BYTES],
        Some(count) => stripes::record(dying, count),
    };
    for (at, byte) in torn.iter().enumerate() {
        assert!(
            *byte == before[at] || *byte == record[at],
            "byte {at} of a torn write is neither the old nor the new one"
        );
    }
    found[next..next + stripes::RECORD_BYTES].copy_from_slice(&before);
    assert_eq!(stripes::check(&found, &done), Ok(()));
}

#[test]
fn a_killed_process_loses_only_its_own_bytes() {
    const LEN: u64 = 256 << 10;
    let cluster = Cluster::new();
    let node = cluster.join(0);
    let session = node.blocking_session();
    let mut survivor = cluster.start(2);
    let mut lost: Option<Lh> = None;
    for seed in 0..20 {
        eprintln!("seed {seed}");
        let mut numbers = Rng::with_seed(seed);
        let lh = session.alloc(Some("shared"), LEN, Placement::Local, READ_WRITE).expect("there is room");
        let counts =
            session.alloc(Some("counts"), 4096, Placement::Local, READ_WRITE).expect("there is room");
        let mut victim = cluster.start(1);
        if let Some(lost) = lost {
            assert_eq!(repeat_until_error(|| session.read(lost, 0, &mut [0])).1, AccessCause::Stale);
        }
        for process in [&mut survivor, &mut victim] {
            process.run("map shared");
            process.run("map counts");
        }
        survivor.run("stripes shared counts 0 0");
        victim.run("stripes shared counts 1 0");
        victim.run("alloc own 1048576 here");
        let own = session.map("own", READ_WRITE).expect("the process has allocated the region");
        survivor.run("map own");
        survivor.run("rewrite own 1048576");
        for _ in 0..numbers.u64(0..300) {
            session.status().expect("the directory answers");
        }
        victim.begin_kill();
        assert_eq!(repeat_until_error(|| session.write(own, 0, &[1])).1, AccessCause::PeerDown(NodeId(1)));
        assert_eq!(survivor.event(), "own begun");
        assert_eq!(survivor.event(), "own ended PeerDown(NodeId(1))");
        await_state(&session, 1, NodeState::Dead);
        victim.kill();
        let mut others = [0; WRITERS as usize];
        others[0] = survivor.halt();
        check_stripes(&session, lh, counts, LEN, 1, others);
        session.free(lh).expect("the session is a master");
        session.free(counts).expect("the session is a master");
        lost = Some(own);
    }
    let here = status_of(&session, 0);
    assert_eq!((here.bytes_used, here.bytes_quarantined, here.regions), (0, 0, 0));
}
