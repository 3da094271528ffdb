//! Waits for words, and loops that poll memory and make progress themselves. A wait ends when the word has the expected
//! value, or can no longer get it.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};

use halite::{AccessCause, Function, NodeId, Permissions, ServeOptions, Who};

use super::calls::{Closing, PATIENCE};
use super::cluster::{CHUNK, Cluster, Harness, everyone, in_common, shared};
use super::turns::{pause, pause_again, scope, wait};
use super::{node_lost, refused};

/// Waits long enough that a concurrent wait pauses between its reads.
pub(super) fn await_pause() {
    (0..20).for_each(pause_again);
}

/// Expects that writes of one session to one region become visible in order.
pub fn a_wait_ends_after_earlier_writes_are_visible(h: &dyn Harness) {
    const ROUNDS: u64 = 20;
    let cluster = Cluster::new(h, 3);
    let (reader, writer) = (cluster.session(1), cluster.session(2));
    shared(&cluster.session(0), "board", 4096 + 8);
    scope(|scope| {
        scope.spawn(|| {
            let board = writer.map("board", everyone()).unwrap();
            for round in 1..=ROUNDS {
                writer.write(board, 0, &[round as u8; 4096]).unwrap();
                writer.write(board, 4096, &round.to_ne_bytes()).unwrap();
                // Most words are written at once, some after the reader has begun to pause.
                if round % 10 == 0 {
                    await_pause();
                }
            }
        });
        let board = reader.map("board", everyone()).unwrap();
        let mut round = 0;
        while round < ROUNDS {
            let before = round;
            round = reader.wait_until(board, 4096, |word| word > before).unwrap();
            let mut bytes = [0; 4096];
            reader.read(board, 0, &mut bytes).unwrap();
            assert!(bytes.iter().all(|byte| u64::from(*byte) >= round), "round {round}");
        }
    });
}

/// Expects that a wait fails if the region is freed, or lost with its owner's node.
pub fn a_wait_ends_with_its_region(h: &dyn Harness) {
    let mut cluster = Cluster::new(h, 2);
    let (reader, owner) = (cluster.session(0), cluster.session(1));
    let freed = shared(&owner, "freed", 8);
    shared(&owner, "lost", 8);
    let [to_be_freed, to_be_lost] =
        ["freed", "lost"].map(|name| reader.map(name, Permissions::READ).unwrap());
    let wait = |lh| reader.wait_until(lh, 0, |word| word != 0);
    scope(|scope| {
        let waiting = scope.spawn(|| wait(to_be_freed));
        await_pause();
        owner.free(freed).unwrap();
        refused!(waiting.join(), AccessCause::Stale);
    });
    drop(owner);
    scope(|scope| {
        let waiting = scope.spawn(|| wait(to_be_lost));
        await_pause();
        cluster.leave(1);
        refused!(waiting.join(), node_lost!(NodeId(1)));
    });
}

/// Expects that a wait reads the region's new place after each move.
pub fn a_wait_continues_while_its_region_moves(h: &dyn Harness) {
    let cluster = Cluster::new(h, 3);
    let [(owner, near), (reader, far)] = in_common(&cluster, "board", 8);
    // The region moves to a third node, to the reader's own node, and back.
    for (node, word) in [(2, 1u64), (1, 2), (0, 3)] {
        scope(|scope| {
            let waiting = scope.spawn(|| reader.wait_until(far, 0, |found| found >= word));
            await_pause();
            owner.move_to(near, NodeId(node)).unwrap();
            await_pause();
            owner.write(near, 0, &word.to_ne_bytes()).unwrap();
            assert_eq!(waiting.join().unwrap(), word, "after the move to node {node}");
        });
    }
}

/// Expects that a wait fails if the read permission is revoked while it pauses.
pub fn a_wait_ends_with_the_read_permission(h: &dyn Harness) {
    let cluster = Cluster::of_principals(h, &["ada", "bob"]);
    let (master, reader) = (cluster.session(0), cluster.session(1));
    let board = shared(&master, "board", 8);
    let lh = reader.map("board", Permissions::READ).unwrap();
    scope(|scope| {
        let waiting = scope.spawn(|| reader.wait_until(lh, 0, |word| word != 0));
        await_pause();
        master.revoke(board, Who::Everyone, Permissions::READ).unwrap();
        refused!(waiting.join(), AccessCause::PermissionDenied { .. });
    });
}

/// Expects that a wait for an unaligned word, or for a word beyond the end of the region, is refused at once.
pub fn a_wait_needs_an_aligned_word_inside(h: &dyn Harness) {
    let cluster = Cluster::new(h, 1);
    let session = cluster.session(0);
    let board = shared(&session, "board", 16);
    refused!(session.wait_until(board, 4, |_| true), AccessCause::Unaligned { alignment: 8 });
    refused!(session.wait_until(board, 16, |_| true), AccessCause::OutOfRange { region_len: 16 });
}

/// Expects that a loop of `progress` and reads sees a posted word, and then all bytes that were posted before it.
pub fn a_progress_loop_sees_posted_writes_in_order(h: &dyn Harness) {
    const ROUNDS: u64 = 20;
    let cluster = Cluster::new(h, 2);
    let [(reader, near), (writer, far)] = in_common(&cluster, "board", CHUNK + 8);
    scope(|scope| {
        scope.spawn(|| {
            for round in 1..=ROUNDS {
                // These bytes take many packets. In another lane, the word would overtake them.
                let bytes = writer.post_write(far, 0, vec![round as u8; CHUNK as usize]);
                let word = writer.post_write(far, CHUNK, round.to_ne_bytes());
                bytes.wait().1.unwrap();
                word.wait().1.unwrap();
            }
        });
        let (mut seen, mut word, mut bytes) = (0, [0; 8], vec![0; CHUNK as usize]);
        while seen < ROUNDS {
            reader.progress();
            reader.read(near, CHUNK, &mut word).unwrap();
            let round = u64::from_ne_bytes(word);
            if round > seen {
                seen = round;
                reader.read(near, 0, &mut bytes).unwrap();
                assert!(bytes.iter().all(|byte| u64::from(*byte) >= round), "round {round}");
            }
        }
    });
}

/// A waker that makes progress before it wakes the task.
struct Progress(halite::Session, Waker);

impl Wake for Progress {
    fn wake(self: Arc<Self>) {
        self.0.progress();
        self.1.wake_by_ref();
    }
}

/// Ends the loops of threads when dropped, even if the case fails.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Expects that `progress` may be called by many threads of both nodes at once, by a handler before it replies, by the
/// predicate of a wait, and by a waker.
pub fn progress_may_be_called_from_anywhere(h: &dyn Harness) {
    const FUNCTION: Function = Function(7);
    let cluster = Cluster::new(h, 2);
    let [(caller, near), (there, far)] = in_common(&cluster, "board", 8);
    let server = there.serve(FUNCTION, ServeOptions::default()).unwrap();
    let is_over = AtomicBool::new(false);
    scope(|scope| {
        for session in [&caller, &caller, &there, &there] {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    session.progress();
                    pause();
                }
            });
        }
        let _ending = (Ending(&is_over), Closing(&server));
        scope.spawn(|| {
            while let Ok(call) = server.recv() {
                there.progress();
                there.write(far, 0, call.input()).unwrap();
                there.progress();
                call.reply(b"written").unwrap();
            }
        });
        for round in 1..=50u64 {
            let input = round.to_ne_bytes();
            let mut call = pin!(caller.as_async().call(NodeId(1), FUNCTION, &input, PATIENCE));
            let polled = std::future::poll_fn(|context| {
                let waker = Progress(caller.as_async().clone(), context.waker().clone());
                call.as_mut().poll(&mut Context::from_waker(&Waker::from(Arc::new(waker))))
            });
            assert_eq!(wait(polled).unwrap(), b"written");
            let word = caller.wait_until(near, 0, |word| {
                caller.progress();
                word == round
            });
            assert_eq!(word.unwrap(), round);
        }
    });
}
