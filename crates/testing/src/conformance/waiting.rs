//! Waits for words: each wait ends when the word has the expected value, or can no longer get it.

use halite::{AccessCause, NodeId, Permissions, Who};

use super::cluster::{Cluster, Harness, everyone, shared};
use super::refused;
use super::turns::{pause_again, scope};

/// Waits until a wait has begun to pause.
fn linger() {
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
                // Some words are written at once, others after the reader has begun to pause.
                if round % 10 == 0 {
                    linger();
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
        linger();
        owner.free(freed).unwrap();
        refused!(waiting.join().unwrap(), AccessCause::Stale);
    });
    drop(owner);
    scope(|scope| {
        let waiting = scope.spawn(|| wait(to_be_lost));
        linger();
        cluster.leave(1);
        refused!(
            waiting.join().unwrap(),
            AccessCause::PeerDown(NodeId(1)) | AccessCause::LinkLost(NodeId(1)) | AccessCause::Stale
        );
    });
}

/// Expects that a wait fails if the read permission is revoked while it pauses.
pub fn a_wait_ends_with_the_read_permission(h: &dyn Harness) {
    let cluster = Cluster::of_principals(h, &["ada", "bob"]);
    let (master, reader) = (cluster.session(0), cluster.session(1));
    let board = shared(&master, "board", 8);
    let lh = reader.map("board", Permissions::READ).unwrap();
    scope(|scope| {
        let waiting = scope.spawn(|| reader.wait_until(lh, 0, |word| word != 0));
        linger();
        master.revoke(board, Who::Everyone, Permissions::READ).unwrap();
        refused!(waiting.join().unwrap(), AccessCause::PermissionDenied { .. });
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
