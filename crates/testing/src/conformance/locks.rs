//! Locks: one at a time, in order, and never held by nobody.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::mpsc::channel;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use halite::{LockCause, Permissions, Placement, RegionCause, Who};

use super::cluster::{Cluster, Harness, eventually, everyone};
use super::refused;
use super::session::{Session, block_on};
use super::turns::scope;

/// Far longer than anything here takes.
const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(2);

/// The second client is refused, or waits.
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

/// Its session, and others, can take it again at once.
pub fn a_dropped_guard_gives_the_lock_up(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let sessions = [0, 1].map(|index| cluster.session(index));
    for turn in 0..20 {
        drop(sessions[turn % 2].lock("door").unwrap());
        drop(sessions[turn % 2].lock("door").unwrap());
        drop(sessions[1 - turn % 2].lock_within("door", LONG).unwrap());
    }
}

/// A second time would wait for itself.
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

/// Neither what was never taken, nor what was given up, nor what another holds.
pub fn what_is_not_held_is_not_given_up(h: &dyn Harness) {
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

/// And then it does not get it later.
pub fn a_lock_that_stays_held_is_waited_for_no_longer_than_told(h: &dyn Harness) {
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

/// Nobody overtakes, from whatever node.
pub fn who_waits_gets_the_lock_in_order(h: &dyn Harness) {
    let cluster = Cluster::new(h, 3);
    let first = cluster.session(0).lock("queue").unwrap();
    let waiters: Vec<halite::Session> = (0..6).map(|index| cluster.futures(index % 3)).collect();
    let mut waits: Vec<_> = waiters.iter().map(|session| Box::pin(session.lock("queue"))).collect();
    let mut context = Context::from_waker(Waker::noop());
    for wait in &mut waits {
        // That it waits shows only in that it does not get the lock: others who ask later must not either.
        for _ in 0..200 {
            assert!(wait.as_mut().poll(&mut context).is_pending());
            cluster.session(0).status().unwrap();
        }
    }
    let mut before = first.token();
    first.unlock().unwrap();
    for wait in waits {
        let guard = block_on(&waiters[0], wait).unwrap();
        assert!(guard.token() == before + 1, "each is the next");
        before = guard.token();
    }
}

/// Reads and writes in between are not torn apart by others'.
pub fn nothing_is_lost_under_a_lock(h: &dyn Harness) {
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

/// No two are alike, and each is higher than those of the holders before.
pub fn tokens_rise_from_holder_to_holder(h: &dyn Harness) {
    let cluster = Cluster::new(h, 3);
    let (sender, receiver) = channel();
    scope(|scope| {
        for index in 0..3 {
            let (session, sender) = (cluster.session(index), sender.clone());
            scope.spawn(move || {
                for _ in 0..50 {
                    let guard = session.lock("counter").unwrap();
                    // Under the lock, so that they are received in the order of the holders.
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

/// Wherever it was: not begun, under way, waiting, or granted already.
pub fn an_abandoned_wait_for_a_lock_holds_up_nobody(h: &dyn Harness) {
    let cluster = Cluster::new(h, 3);
    let (quitter, holder, next) = (cluster.futures(1), cluster.session(0), cluster.session(2));
    for polls in 0..60 {
        let guard = holder.lock("busy").unwrap();
        {
            let mut wait = pin!(quitter.lock("busy"));
            let mut context = Context::from_waker(Waker::noop());
            for _ in 0..polls {
                assert!(wait.as_mut().poll(&mut context).is_pending());
                // Lets messages arrive in between.
                holder.status().unwrap();
            }
            if polls % 2 == 0 {
                holder.unlock("busy").unwrap();
            }
        }
        drop(guard);
        drop(next.lock_within("busy", LONG).unwrap());
        drop(Session::new(&quitter).lock_within("busy", LONG).unwrap());
    }
}

/// The next holder is told, whether it waited or comes later.
pub fn a_lock_kept_until_the_session_ends_is_recovered(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    for holder in [0, 1] {
        let other = cluster.session(1 - holder);
        let token = cluster.session(holder).lock("left").unwrap().keep();
        let guard = other.lock_within("left", LONG).unwrap();
        assert!(guard.recovered() && guard.token() > token);
        drop(guard);
        assert!(!other.lock("left").unwrap().recovered(), "it is told once");
        let waiter = cluster.futures(holder);
        let session = cluster.session(holder);
        session.lock("left").unwrap().keep();
        let mut wait = pin!(waiter.lock("left"));
        assert!(wait.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        drop(session);
        assert!(block_on(&waiter, wait).unwrap().recovered());
    }
}

/// It says goodbye, and can do nothing under its lock any more.
pub fn the_lock_of_a_node_that_left_is_recovered(h: &dyn Harness) {
    // The third contributes no memory, so that no lock lives there.
    let mut cluster = Cluster::with(h, &[("ada", 1 << 20), ("ada", 1 << 20), ("ada", 0)]);
    let names = ["a", "b", "c", "d"];
    let leaving = cluster.session(2);
    let tokens: BTreeMap<&str, u64> =
        names.iter().map(|name| (*name, leaving.lock(name).unwrap().keep())).collect();
    let other = cluster.session(0);
    let (waiters, mut context) = (cluster.futures(1), Context::from_waker(Waker::noop()));
    let mut wait = pin!(waiters.lock("a"));
    assert!(matches!(wait.as_mut().poll(&mut context), Poll::Pending));
    cluster.leave(2);
    assert!(block_on(&waiters, wait).unwrap().recovered());
    for name in &names[1..] {
        let guard = other.lock_within(name, LONG).unwrap();
        assert!(guard.recovered() && guard.token() > tokens[name], "{name}");
    }
    drop(leaving);
}

/// Others take it once they are granted to, and not after that is revoked; who holds it keeps it.
pub fn a_lock_may_be_for_some_only(h: &dyn Harness) {
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

/// A lock and a region may have one name, and regions' names cannot reach locks.
pub fn locks_hide_from_lists_and_names(h: &dyn Harness) {
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

/// Who holds a lock can ask whether it still does, and hears in time that it does not: the lock is freed, or its home gone.
pub fn who_holds_a_lock_is_told_when_it_may_be_another_ones(h: &dyn Harness) {
    // Only the second contributes memory, so that locks live there.
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
    eventually("the home is known to be gone", || match kept.check() {
        Err(error) if error.cause == LockCause::Lapsed => Ok(()),
        other => Err(format!("{other:?}")),
    });
}

/// With its memory given back in between, and its tokens still rising.
pub fn a_freed_lock_is_made_anew(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let (session, other) = (cluster.session(0), cluster.session(1));
    let token = session.lock("brief").unwrap().keep();
    let waiter = cluster.futures(1);
    let mut wait = pin!(waiter.lock("brief"));
    assert!(wait.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    session.free_lock("brief").unwrap();
    let anew = block_on(&waiter, wait).unwrap();
    assert!(anew.token() > token && !anew.recovered());
    drop(anew);
    refused!(session.unlock("brief"), LockCause::NotHeld | LockCause::Region(_));
    other.free_lock("brief").unwrap();
    cluster.expect_empty();
}

/// The next holder goes on with higher tokens.
pub fn a_lock_is_made_anew_after_its_home_left(h: &dyn Harness) {
    // Only the second contributes memory, so that the lock lives there.
    let mut cluster = Cluster::with(h, &[("ada", 0), ("ada", 1 << 20)]);
    let session = cluster.session(0);
    let guard = session.lock("phoenix").unwrap();
    cluster.leave(1);
    let token = guard.token();
    // It was lost with its home, of whose end the holder may not have heard yet.
    let _ = guard.unlock();
    cluster.start(1, "ada", 1 << 20).unwrap();
    let anew = eventually("the lock is made anew", || {
        session.lock_within("phoenix", LONG).map_err(|error| error.to_string())
    });
    assert!(anew.token() > token);
}
