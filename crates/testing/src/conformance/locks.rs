//! Locks: one holder at a time, in order, and recovery after the end of a holder.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use halite::{LockCause, Permissions, Placement, RegionCause, Who};

use super::cluster::{Cluster, Harness, eventually, everyone, expect_long_pending};
use super::session::{Session, block_on};
use super::turns::{expect_pending, scope};
use super::{eventually_refused, refused};

/// Longer than any operation here takes.
const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(2);

/// Expects that no other session gets a lock while a session holds it.
pub fn a_lock_is_held_by_one_session(h: &dyn Harness) {
    let cluster = Cluster::new(h, 3);
    let sessions = [0, 1, 2].map(|index| cluster.session(index));
    for holder in 0..3 {
        let guard = sessions[holder].lock("one").unwrap();
        for other in (0..3).filter(|other| *other != holder) {
            refused!(sessions[other].try_lock("one"), LockCause::Held);
        }
        guard.unlock().unwrap();
    }
}

/// Expects that any session can take a lock at once when its guard has been dropped.
pub fn a_dropped_guard_releases_the_lock(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let sessions = [0, 1].map(|index| cluster.session(index));
    for turn in 0..20 {
        drop(sessions[turn % 2].lock("door").unwrap());
        drop(sessions[turn % 2].lock("door").unwrap());
        drop(sessions[1 - turn % 2].lock_within("door", LONG).unwrap());
    }
}

/// Expects that a session which releases a lock and ends at once leaves nothing to recover, also if other sessions of its
/// user are busy.
pub fn a_lock_released_before_the_end_is_not_recovered(h: &dyn Harness) {
    let cluster = Cluster::new(h, 1);
    let is_over = AtomicBool::new(false);
    scope(|scope| {
        for _ in 0..2 {
            let busy = cluster.session(0);
            let is_over = &is_over;
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    busy.list().unwrap();
                }
            });
        }
        for round in 0..50 {
            let session = cluster.session(0);
            drop(session.lock("vault").unwrap());
            drop(session);
            let is_recovered = cluster.session(0).lock("vault").unwrap().recovered();
            is_over.store(is_recovered || round == 49, Ordering::Relaxed);
            assert!(!is_recovered, "round {round}");
        }
    });
}

/// Expects that a session cannot take a lock that it holds, because the session would wait for itself.
pub fn a_session_takes_a_lock_once(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let session = cluster.session(1);
    let guard = session.lock("mirror").unwrap();
    refused!(session.lock("mirror"), LockCause::AlreadyHeld);
    refused!(session.try_lock("mirror"), LockCause::AlreadyHeld);
    refused!(session.clone().lock_within("mirror", LONG), LockCause::AlreadyHeld);
    drop(guard);
    drop(session.lock("mirror").unwrap());
}

/// Expects that a session cannot release a lock that was never taken, was released already, or is held by another
/// session.
pub fn only_a_held_lock_can_be_released(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let (session, other) = (cluster.session(0), cluster.session(1));
    refused!(session.unlock("absent"), LockCause::NotHeld);
    let guard = session.lock("present").unwrap();
    refused!(other.unlock("present"), LockCause::NotHeld);
    session.unlock("present").unwrap();
    refused!(session.unlock("present"), LockCause::NotHeld);
    let second = other.lock("present").unwrap();
    refused!(guard.unlock(), LockCause::NotHeld);
    refused!(session.try_lock("present"), LockCause::Held);
    second.unlock().unwrap();
}

/// Expects that a wait for a held lock times out, and that the waiter does not get the lock later.
pub fn a_wait_for_a_held_lock_times_out(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    for holder in [0, 1] {
        let (session, other) = (cluster.session(holder), cluster.session(1 - holder));
        let guard = session.lock("slow").unwrap();
        refused!(other.lock_within("slow", SHORT), LockCause::Timeout);
        refused!(other.lock_within("slow", Duration::ZERO), LockCause::Timeout);
        guard.unlock().unwrap();
        drop(session.lock("slow").unwrap());
        drop(other.lock_within("slow", LONG).unwrap());
    }
}

/// Expects that no waiter overtakes another, on any node.
pub fn waiters_get_the_lock_in_order(h: &dyn Harness) {
    let cluster = Cluster::new(h, 3);
    let first = cluster.session(0).lock("queue").unwrap();
    let waiters: Vec<halite::Session> = (0..6).map(|index| cluster.futures(index % 3)).collect();
    let mut waits: Vec<_> = waiters.iter().map(|session| Box::pin(session.lock("queue"))).collect();
    for wait in &mut waits {
        // A request may take many polls until it is in the queue, where later requests must not overtake it.
        expect_long_pending(wait, &cluster.session(0), 200);
    }
    let mut before = first.token();
    first.unlock().unwrap();
    for wait in waits {
        let guard = block_on(&waiters[0], wait).unwrap();
        assert!(guard.token() == before + 1, "another holder came in between");
        before = guard.token();
    }
}

/// Expects that no increment is lost if sessions increment a word by a read and a write under a lock.
pub fn no_update_is_lost_under_a_lock(h: &dyn Harness) {
    const EACH: u64 = 100;
    let cluster = Cluster::new(h, 3);
    let owner = cluster.session(0);
    let lh = owner.alloc(Some("account"), 8, Placement::Local, everyone()).unwrap();
    scope(|scope| {
        for index in 0..6 {
            let session = cluster.session(index % 3);
            let lh = session.map("account", everyone()).unwrap();
            scope.spawn(move || {
                for _ in 0..EACH {
                    let guard = session.lock("ledger").unwrap();
                    let mut bytes = [0; 8];
                    session.read(lh, 0, &mut bytes).unwrap();
                    session.write(lh, 0, &(u64::from_le_bytes(bytes) + 1).to_le_bytes()).unwrap();
                    drop(guard);
                }
            });
        }
    });
    let mut bytes = [0; 8];
    owner.read(lh, 0, &mut bytes).unwrap();
    assert_eq!(u64::from_le_bytes(bytes), 6 * EACH);
}

/// Expects that each token is higher than all earlier ones.
pub fn tokens_rise_from_holder_to_holder(h: &dyn Harness) {
    let cluster = Cluster::new(h, 3);
    let (sender, receiver) = channel();
    scope(|scope| {
        for index in 0..3 {
            let (session, sender) = (cluster.session(index), sender.clone());
            scope.spawn(move || {
                for _ in 0..50 {
                    let guard = session.lock("counter").unwrap();
                    // Sent under the lock, so that tokens are received in the order of the holders.
                    sender.send(guard.token()).unwrap();
                }
            });
        }
    });
    drop(sender);
    let tokens: Vec<u64> = receiver.iter().collect();
    assert_eq!(tokens.len(), 150);
    assert!(tokens.windows(2).all(|pair| pair[0] < pair[1]), "{tokens:?}");
}

/// Expects that an abandoned request for a lock blocks no other session, whether the request is not sent yet, in
/// flight, queued or granted.
pub fn an_abandoned_wait_for_a_lock_blocks_no_other(h: &dyn Harness) {
    let cluster = Cluster::new(h, 3);
    let (quitter, holder, next) = (cluster.futures(1), cluster.session(0), cluster.session(2));
    for polls in 0..60 {
        let guard = holder.lock("busy").unwrap();
        {
            let mut wait = pin!(quitter.lock("busy"));
            expect_long_pending(&mut wait, &holder, polls);
            if polls % 2 == 0 {
                holder.unlock("busy").unwrap();
            }
        }
        drop(guard);
        drop(next.lock_within("busy", LONG).unwrap());
        drop(Session::new(&quitter).lock_within("busy", LONG).unwrap());
    }
}

/// Expects that the lock of a session that has ended is recovered, and that the next holder learns of the recovery,
/// whether it waited already or requests the lock later.
pub fn a_lock_kept_until_the_session_ends_is_recovered(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    for holder in [0, 1] {
        let other = cluster.session(1 - holder);
        let token = cluster.session(holder).lock("left").unwrap().keep();
        let guard = other.lock_within("left", LONG).unwrap();
        assert!(guard.recovered() && guard.token() > token);
        drop(guard);
        assert!(!other.lock("left").unwrap().recovered(), "the recovery is reported once");
        let waiter = cluster.futures(holder);
        let session = cluster.session(holder);
        session.lock("left").unwrap().keep();
        let mut wait = pin!(waiter.lock("left"));
        expect_pending(&mut wait);
        drop(session);
        assert!(block_on(&waiter, wait).unwrap().recovered());
    }
}

/// Expects that the lock of a node that has left is recovered, because the node can no longer use the lock.
pub fn the_lock_of_a_node_that_left_is_recovered(h: &dyn Harness) {
    // The third node has no memory, so no lock is placed there.
    let mut cluster = Cluster::with(h, &[("ada", 1 << 20), ("ada", 1 << 20), ("ada", 0)]);
    let names = ["a", "b", "c", "d"];
    let leaving = cluster.session(2);
    let tokens: BTreeMap<&str, u64> =
        names.iter().map(|name| (*name, leaving.lock(name).unwrap().keep())).collect();
    let other = cluster.session(0);
    let waiters = cluster.futures(1);
    let mut wait = pin!(waiters.lock("a"));
    expect_pending(&mut wait);
    cluster.leave(2);
    assert!(block_on(&waiters, wait).unwrap().recovered());
    for name in &names[1..] {
        let guard = other.lock_within(name, LONG).unwrap();
        assert!(guard.recovered() && guard.token() > tokens[name], "{name}");
    }
    drop(leaving);
}

/// Expects that a principal can take the lock only between the grant and the revoke, and that a holder keeps the lock
/// after the revoke.
pub fn a_lock_may_be_restricted_to_principals(h: &dyn Harness) {
    let cluster = Cluster::of_principals(h, &["ada", "bob"]);
    let (ada, bob) = (cluster.session(0), cluster.session(1));
    ada.create_lock("vault", Permissions::empty()).unwrap();
    refused!(ada.create_lock("vault", Permissions::ATOMIC), LockCause::Region(RegionCause::NameTaken));
    let denied = |session: &Session| {
        let cause = session.lock("vault").unwrap_err().cause;
        assert_eq!(cause, LockCause::Region(RegionCause::PermissionDenied { missing: Permissions::ATOMIC }));
    };
    denied(&bob);
    drop(ada.lock("vault").unwrap());
    ada.grant_lock("vault", Who::Principal("bob".into()), Permissions::ATOMIC).unwrap();
    let guard = bob.lock("vault").unwrap();
    ada.revoke_lock("vault", Who::Principal("bob".into()), Permissions::ATOMIC).unwrap();
    refused!(ada.try_lock("vault"), LockCause::Held);
    guard.unlock().unwrap();
    denied(&bob);
    drop(ada.lock("vault").unwrap());
    refused!(
        bob.free_lock("vault"),
        LockCause::Region(RegionCause::PermissionDenied { .. } | RegionCause::Stale)
    );
}

/// Expects that a lock and a region may have the same name, that lists of regions contain no locks, and that no region
/// can have or be found by a name under which the directory records a lock.
pub fn locks_are_hidden_from_lists_and_names(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let session = cluster.session(1);
    let guard = session.lock("twin").unwrap();
    session.alloc(Some("twin"), 8, Placement::Local, everyone()).unwrap();
    let listed = session.list().unwrap();
    assert_eq!(listed.len(), 1, "{listed:?}");
    for name in ["\0ltwin", "\0", "\0anything"] {
        refused!(session.stat(name), RegionCause::NameReserved);
        refused!(session.map(name, everyone()), RegionCause::NameReserved);
        refused!(session.alloc(Some(name), 8, Placement::Local, everyone()), RegionCause::NameReserved);
        refused!(session.lock(name), LockCause::Region(RegionCause::NameReserved));
    }
    refused!(session.lock(""), LockCause::Region(RegionCause::NameEmpty));
    let longest = "n".repeat(255);
    drop(session.lock(&longest).unwrap());
    refused!(session.lock(&format!("{longest}n")), LockCause::Region(RegionCause::NameTooLong { len: 256 }));
    drop(guard);
}

/// Expects that a check of the lock fails once the lock is freed or its home has left.
pub fn a_holder_learns_that_it_lost_the_lock(h: &dyn Harness) {
    // Only the second node has memory, so locks are placed there.
    let mut cluster = Cluster::with(h, &[("ada", 0), ("ada", 1 << 20)]);
    let (session, other) = (cluster.session(0), cluster.session(1));
    refused!(session.check_lock("brief"), LockCause::NotHeld);
    let guard = session.lock("brief").unwrap();
    guard.check().unwrap();
    session.check_lock("brief").unwrap();
    refused!(other.check_lock("brief"), LockCause::NotHeld);
    other.free_lock("brief").unwrap();
    let taken = other.lock("brief").unwrap();
    taken.check().unwrap();
    refused!(guard.check(), LockCause::Lapsed);
    drop((guard, taken));
    let kept = session.lock("long").unwrap();
    cluster.leave(1);
    eventually_refused!(kept.check(), LockCause::Lapsed);
}

/// Expects that a freed lock can be created again with higher tokens, and that the memory of the old lock is freed.
pub fn a_freed_lock_is_created_again(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let (session, other) = (cluster.session(0), cluster.session(1));
    let token = session.lock("brief").unwrap().keep();
    let waiter = cluster.futures(1);
    let mut wait = pin!(waiter.lock("brief"));
    expect_pending(&mut wait);
    session.free_lock("brief").unwrap();
    let guard = block_on(&waiter, wait).unwrap();
    assert!(guard.token() > token && !guard.recovered());
    drop(guard);
    refused!(session.unlock("brief"), LockCause::NotHeld | LockCause::Region(_));
    other.free_lock("brief").unwrap();
    cluster.expect_empty();
}

/// Expects that a lock whose home has left can be created again, and that its next holder has a higher token.
pub fn a_lock_is_created_again_after_its_home_left(h: &dyn Harness) {
    // Only the second node has memory, so the lock is placed there.
    let mut cluster = Cluster::with(h, &[("ada", 0), ("ada", 1 << 20)]);
    let session = cluster.session(0);
    let guard = session.lock("phoenix").unwrap();
    cluster.leave(1);
    let token = guard.token();
    // The lock was lost with its home, but the holder may not know this yet. So both results are valid.
    let _ = guard.unlock();
    cluster.start(1, "ada", 1 << 20).unwrap();
    let guard = eventually("the lock is created again", || session.lock_within("phoenix", LONG));
    assert!(guard.token() > token);
}
