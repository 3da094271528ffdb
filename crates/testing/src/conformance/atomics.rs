//! Atomics: no concurrent change of a word is lost.

use std::sync::atomic::{AtomicBool, Ordering};

use halite::{AccessCause, Lh, NodeId, Permissions, SwapOp};

use super::cluster::{CHUNK, Cluster, Harness, everyone, in_common, shared};
use super::refused;
use super::session::Session;
use super::turns::scope;

fn word(session: &Session, lh: Lh, offset: u64) -> u64 {
    let mut bytes = [0; 8];
    session.read(lh, offset, &mut bytes).expect("the region is readable");
    u64::from_ne_bytes(bytes)
}

/// Expects that atomics return the word's previous value, on the owner's node and on another node. A failed swap
/// changes nothing.
pub fn atomics_return_the_previous_value(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let [(owner, near), (remote, far)] = in_common(&cluster, "word", 64);
    assert_eq!(owner.fetch_add(near, 8, 5).unwrap(), 0);
    assert_eq!(remote.fetch_add(far, 8, 2).unwrap(), 5);
    assert_eq!(remote.compare_swap(far, 8, 6, 100).unwrap(), 7, "a failed swap returns the current value");
    assert_eq!(owner.compare_swap(near, 8, 7, 100).unwrap(), 7);
    assert_eq!(remote.compare_swap(far, 8, 100, 3).unwrap(), 100);
    assert_eq!(word(&owner, near, 8), 3);
    assert_eq!((word(&owner, near, 0), word(&owner, near, 16)), (0, 0), "a neighbouring word has changed");
}

/// Expects that the swaps before the first failed one take effect, and that later swaps are not attempted.
pub fn swaps_run_until_one_fails(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let [(owner, near), (remote, far)] = in_common(&cluster, "words", 64);
    for (session, lh) in [(&owner, near), (&remote, far)] {
        (0..5).for_each(|at| owner.write(near, at * 8, &u64::to_ne_bytes(0)).unwrap());
        let swaps: Vec<SwapOp> =
            (0..5).map(|at| SwapOp { offset: at * 8, expected: 0, new: at + 1 }).collect();
        assert_eq!(session.compare_swap_while(lh, &swaps[..2]).unwrap(), 2);
        assert_eq!(session.compare_swap_while(lh, &[]).unwrap(), 0);
        owner.write(near, 24, &u64::to_ne_bytes(9)).unwrap();
        assert_eq!(session.compare_swap_while(lh, &swaps[2..]).unwrap(), 1, "the second holds 9");
        let words: Vec<u64> = (0..5).map(|at| word(&owner, near, at * 8)).collect();
        assert_eq!(words, [1, 2, 3, 9, 0]);
        // Each swap sees the result of the previous one.
        let chain =
            [(0, 1, 7), (0, 7, 8), (0, 7, 9)].map(|(offset, expected, new)| SwapOp { offset, expected, new });
        assert_eq!(session.compare_swap_while(lh, &chain).unwrap(), 2);
        assert_eq!(word(&owner, near, 0), 8);
    }
}

/// Expects that the error of a batch of swaps contains the index of the invalid swap, and that the swaps before it take
/// effect.
pub fn swaps_stop_at_an_error(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let [(owner, near), (remote, far)] = in_common(&cluster, "words", 64);
    for (at, (session, lh)) in [(&owner, near), (&remote, far)].into_iter().enumerate() {
        let at = 16 * at as u64;
        let swap = |offset| SwapOp { offset, expected: 0, new: 5 };
        let error = session.compare_swap_while(lh, &[swap(at), swap(at + 12), swap(at + 8)]).unwrap_err();
        assert_eq!((error.index, error.later), (1, false));
        assert!(matches!(error.source.cause(), AccessCause::Unaligned { .. }));
        assert_eq!((word(&owner, near, at), word(&owner, near, at + 8)), (5, 0));
        let error = session.compare_swap_while(lh, &[swap(64)]).unwrap_err();
        assert!(matches!(error.source.cause(), AccessCause::OutOfRange { region_len: 64 }));
    }
    let other = cluster.session(0);
    let error = other.compare_swap_while(far, &[SwapOp { offset: 0, expected: 0, new: 1 }]).unwrap_err();
    assert_eq!(*error.source.cause(), AccessCause::ForeignHandle);
}

/// Expects that an addition beyond 64 bits wraps around, as in verbs.
pub fn an_addition_wraps_around(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let [(owner, near), (remote, far)] = in_common(&cluster, "wrap", 8);
    for (session, lh) in [(&owner, near), (&remote, far)] {
        assert_eq!(session.fetch_add(lh, 0, u64::MAX).unwrap(), 0);
        assert_eq!(session.fetch_add(lh, 0, 1).unwrap(), u64::MAX);
    }
}

/// Expects that a swap can compare bytes that were written, and that a read returns the bytes that the swap stored.
pub fn a_word_is_eight_bytes_in_native_order(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let [(owner, near), (remote, far)] = in_common(&cluster, "order", 8);
    let (before, after) = (0x0102_0304_0506_0708, 0xF0E0_D0C0_B0A0_9080);
    owner.write(near, 0, &u64::to_ne_bytes(before)).unwrap();
    assert_eq!(remote.compare_swap(far, 0, before, after).unwrap(), before);
    assert_eq!(word(&owner, near, 0), after);
}

/// Expects that concurrent additions by threads of all nodes return each number exactly once.
pub fn no_addition_is_lost_among_many(h: &dyn Harness) {
    const EACH: u64 = 300;
    let cluster = Cluster::new(h, 3);
    shared(&cluster.session(0), "numbers", 64);
    let mut drawn: Vec<u64> = scope(|scope| {
        let threads: Vec<_> = (0..6)
            .map(|index| {
                let session = cluster.session(index % 3);
                let lh = session.map("numbers", everyone()).unwrap();
                scope.spawn(move || {
                    (0..EACH).map(|_| session.fetch_add(lh, 32, 1).unwrap()).collect::<Vec<_>>()
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join()).collect()
    });
    drawn.sort_unstable();
    assert_eq!(drawn, (0..6 * EACH).collect::<Vec<_>>());
}

/// Expects that exactly one of several concurrent swaps of the same value succeeds, in each round.
pub fn one_swap_wins_among_many(h: &dyn Harness) {
    const ROUNDS: u64 = 200;
    let cluster = Cluster::new(h, 3);
    let owner = cluster.session(0);
    let near = shared(&owner, "throne", 8);
    let wins: u64 = scope(|scope| {
        let threads: Vec<_> = (0..3)
            .map(|index| {
                let session = cluster.session(index);
                let lh = session.map("throne", everyone()).unwrap();
                let try_round = move |round| session.compare_swap(lh, 0, round, round + 1).unwrap() == round;
                scope.spawn(move || (0..ROUNDS).map(try_round).filter(|won| *won).count() as u64)
            })
            .collect();
        threads.into_iter().map(|thread| thread.join()).sum()
    });
    assert_eq!((wins, word(&owner, near, 0)), (ROUNDS, ROUNDS));
}

/// Expects that atomics need the atomic permission: permissions to read and to write do not suffice.
pub fn atomics_need_their_permission(h: &dyn Harness) {
    let cluster = Cluster::of_principals(h, &["ada", "bob"]);
    let owner = cluster.session(0);
    let near = shared(&owner, "closed", 8);
    let remote = cluster.session(1);
    let far = remote.map("closed", Permissions::READ | Permissions::WRITE).unwrap();
    let missing = Permissions::ATOMIC;
    refused!(remote.fetch_add(far, 0, 1), AccessCause::PermissionDenied { missing: Permissions::ATOMIC });
    refused!(
        remote.compare_swap(far, 0, 0, 1),
        AccessCause::PermissionDenied { missing: Permissions::ATOMIC }
    );
    let allowed = remote.map("closed", missing).unwrap();
    assert_eq!(remote.fetch_add(allowed, 0, 1).unwrap(), 0);
    owner.revoke(near, halite::Who::Everyone, missing).unwrap();
    refused!(remote.fetch_add(allowed, 0, 1), AccessCause::PermissionDenied { .. });
    assert_eq!(word(&owner, near, 0), 1);
    let stranger = cluster.session(1);
    refused!(stranger.fetch_add(near, 0, 1), AccessCause::ForeignHandle);
}

/// Expects that an atomic on an unaligned word is refused before any byte is accessed, with an error that contains the
/// required alignment.
pub fn a_word_must_be_aligned(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let [_, (session, lh)] = in_common(&cluster, "odd", 2 * CHUNK);
    for offset in [1, 4, 7, CHUNK - 4, 2 * CHUNK - 7] {
        refused!(session.fetch_add(lh, offset, 1), AccessCause::Unaligned { alignment: 8 });
        refused!(session.compare_swap(lh, offset, 0, 1), AccessCause::Unaligned { alignment: 8 });
    }
    let text = session.fetch_add(lh, 12, 1).unwrap_err().to_string();
    for part in ["fetch_add", "offset 12", "multiple of 8"] {
        assert!(text.contains(part), "{text:?} does not mention {part}");
    }
}

/// Expects that an atomic on a word that crosses the end of the region is refused.
pub fn a_word_must_be_inside(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let [_, (session, lh)] = in_common(&cluster, "short", 100);
    assert_eq!(session.fetch_add(lh, 88, 1).unwrap(), 0);
    for offset in [96, 104, 1 << 40] {
        refused!(session.fetch_add(lh, offset, 1), AccessCause::OutOfRange { region_len: 100 });
        refused!(session.compare_swap(lh, offset, 0, 1), AccessCause::OutOfRange { region_len: 100 });
    }
    refused!(session.fetch_add(lh, u64::MAX - 7, 1), AccessCause::Overflow);
}

/// Expects that a sealed region refuses atomics.
pub fn a_sealed_region_refuses_atomics(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let [(owner, near), (session, far)] = in_common(&cluster, "stone", 8);
    owner.seal(near).unwrap();
    refused!(session.fetch_add(far, 0, 1), AccessCause::Sealed);
    refused!(owner.compare_swap(near, 0, 0, 1), AccessCause::Sealed);
    assert_eq!(word(&owner, near, 0), 0);
}

/// Expects that an addition during a move takes effect at the old place, before the bytes there are copied, or at the
/// new place.
pub fn no_addition_is_lost_while_the_region_moves(h: &dyn Harness) {
    let cluster = Cluster::new(h, 3);
    let owner = cluster.session(0);
    let near = shared(&owner, "train", 4 * CHUNK);
    let is_done = AtomicBool::new(false);
    let sums: Vec<u64> = scope(|scope| {
        let threads: Vec<_> = (0..3)
            .map(|index| {
                let session = cluster.session(index);
                let lh = session.map("train", everyone()).unwrap();
                let is_done = &is_done;
                scope.spawn(move || {
                    let mut sum = 0;
                    // Pairs with the Release below: another round follows the last move.
                    while !is_done.load(Ordering::Acquire) || sum < 64 {
                        session.fetch_add(lh, (sum % 4) * CHUNK + 8, 1).unwrap();
                        sum += 1;
                    }
                    sum
                })
            })
            .collect();
        for to in [1, 0, 2, 0, 1] {
            owner.move_to(near, NodeId(to)).unwrap();
        }
        is_done.store(true, Ordering::Release);
        threads.into_iter().map(|thread| thread.join()).collect()
    });
    let found: u64 = (0..4).map(|chunk| word(&owner, near, chunk * CHUNK + 8)).sum();
    assert_eq!(found, sums.iter().sum::<u64>());
}
