//! Scenarios of locks: withdrawals, silence and clocks.

use crate::common;

use common::{ARENA_BYTES, Cluster, Host, LEASE_NS};
use halite_tier::access::{Atomic, SlotRef};
use halite_tier::effect::{Command, CommandError, OpId, Outcome, Release};
use halite_tier::lockword::{Holder, STATE_OFFSET};
use halite_tier::message::{ErrorReply, RegionCommand};
use halite_tier::names::Service;
use halite_tier::permissions::Permissions;

/// A name whose hash selects the home of these tests.
const NAME: &str = "lock";

fn anchor(cluster: &mut Cluster, host: usize) -> SlotRef {
    let (service, name) = (Service::Lock, NAME.to_string());
    common::slot(cluster.command(host, Command::Anchor { service, name, everyone: Permissions::ATOMIC }))
}

/// Returns handles of the lock at all nodes, and its home.
pub fn lock_of_all(cluster: &mut Cluster) -> (Vec<SlotRef>, usize) {
    let first = anchor(cluster, 0);
    let Ok(Outcome::Info(info)) = cluster.command(0, Command::StatHandle(first)) else { panic!("no info") };
    let mut slots = vec![first];
    for host in 1..cluster.hosts.len() {
        slots.push(cluster.map_for(host, &Service::Lock.region_name(NAME), Permissions::ATOMIC));
    }
    (slots, info.home.0 as usize)
}

pub fn lock(slot: SlotRef) -> Command {
    Command::Lock { slot, wait: true, base_ns: 0 }
}

pub fn unlock(slot: SlotRef) -> Command {
    Command::Unlock { slot, release: Release::Used }
}

/// Returns the token, and true if the lock was recovered.
pub fn locked(cluster: &mut Cluster, host: usize, op: OpId) -> (u64, bool) {
    match cluster.outcome(host, op) {
        Some(Ok(Outcome::Locked { token, recovered })) => (token, recovered),
        other => panic!("expected host {host} to hold the lock, not {other:?}"),
    }
}

pub fn submit_and_run(cluster: &mut Cluster, host: usize, command: Command) -> OpId {
    let op = cluster.submit(host, command);
    cluster.run();
    op
}

/// Swaps the lock word as a session does that reaches the word.
fn swap(cluster: &Cluster, host: usize, slot: SlotRef, expected: u64, new: u64) -> u64 {
    let host = &cluster.hosts[host];
    let atomic = Atomic::CompareSwap { expected, new };
    host.path.atomic(host.session, slot, STATE_OFFSET, atomic).expect("the word is in reach")
}

fn holder(cluster: &Cluster, host: usize) -> u64 {
    Holder::new(cluster.hosts[host].incarnation, cluster.hosts[host].session).state()
}

#[test]
fn waits_behind_silent_holders_are_bounded() {
    let mut cluster = Cluster::of(4);
    cluster.kills = false;
    let (slots, home) = lock_of_all(&mut cluster);
    let others: Vec<usize> = (0..4).filter(|host| *host != home).collect();
    let (silent, next, late) = (others[0], others[1], others[2]);
    submit_and_run(&mut cluster, silent, lock(slots[silent]));
    let op = submit_and_run(&mut cluster, next, lock(slots[next]));
    cluster.stop(silent);
    cluster.sleep(2 * LEASE_NS);
    assert!(!cluster.has_ended(next, op), "the holder may still be cut off");
    cluster.sleep(LEASE_NS);
    let refused =
        Err(CommandError::Refused(ErrorReply::HeldBySilent(cluster.hosts[silent].incarnation.node)));
    assert_eq!(cluster.outcome(next, op), Some(refused.clone()));
    assert_eq!(cluster.command(late, lock(slots[late])), refused, "a new request is refused at once");
    let (me, unmarked) = (holder(&cluster, silent), 0);
    assert_eq!(swap(&cluster, silent, slots[silent], me, unmarked), me, "the word is unmarked");
    let op = submit_and_run(&mut cluster, next, lock(slots[next]));
    assert!(!locked(&mut cluster, next, op).1, "released, not recovered");
}

/// Checks a held lock with a waiter while messages are lost in the direction `first`, and after `apart_after_ns` in
/// both directions between the holder and the home.
fn check_lock_without_contact(first: impl Fn(usize, usize) -> (usize, usize), apart_after_ns: u64) {
    let mut cluster = Cluster::of(4);
    cluster.adapters = true;
    let (slots, home) = lock_of_all(&mut cluster);
    let others: Vec<usize> = (0..4).filter(|host| *host != home).collect();
    let (holder, next) = (others[1], others[2]);
    submit_and_run(&mut cluster, holder, lock(slots[holder]));
    let waiting = submit_and_run(&mut cluster, next, lock(slots[next]));
    let is_kept = |cluster: &Cluster| {
        let Host { engine, session, .. } = &cluster.hosts[holder];
        engine.lock_is_kept_until_ns(*session, slots[holder]) > Some(cluster.now_ns)
    };
    for _ in 0..40 {
        cluster.sleep(LEASE_NS / 8);
        assert!(is_kept(&cluster), "the home hears the holder");
    }
    cluster.cut.insert(first(home, holder));
    let begin_ns = cluster.now_ns;
    while !cluster.has_ended(next, waiting) {
        cluster.sleep(LEASE_NS / 16);
        if cluster.now_ns >= begin_ns + apart_after_ns {
            cluster.part(&[home], &[holder]);
        }
        let is_recovered = cluster.has_ended(next, waiting);
        assert!(!(is_recovered && is_kept(&cluster)), "two holders at {} ns", cluster.now_ns - begin_ns);
        assert!(cluster.now_ns < begin_ns + 3 * LEASE_NS, "recovered in time");
    }
    assert!(locked(&mut cluster, next, waiting).1, "recovered");
    cluster.cut.clear();
    cluster.sleep(2 * LEASE_NS);
    assert!(!is_kept(&cluster), "a lost guard stays lost");
    assert_eq!(cluster.command(holder, unlock(slots[holder])), Err(CommandError::Stale));
    assert_eq!(cluster.command(next, unlock(slots[next])), Ok(Outcome::Done), "the new holder keeps it");
}

#[test]
fn guards_expire_before_the_lock_is_recovered() {
    for apart_after_ns in [0, LEASE_NS / 2, 3 * LEASE_NS / 4, 3 * LEASE_NS] {
        check_lock_without_contact(|home, holder| (home, holder), apart_after_ns);
        check_lock_without_contact(|home, holder| (holder, home), apart_after_ns);
    }
}

/// A new lock's tokens start at the time of day, which differs on each node that makes it.
#[test]
fn tokens_rise_across_clocks_hours_apart() {
    const HOUR_NS: u64 = 3_600_000_000_000;
    const NOW_NS: u64 = 1 << 60;
    let mut cluster = Cluster::of(0);
    for (node, hours) in (0..).zip([1, 5, 2, 3, 0]) {
        cluster.epochs_ns.insert(node, NOW_NS + hours * HOUR_NS);
        cluster.add(node, ARENA_BYTES);
    }
    let (slots, _) = lock_of_all(&mut cluster);
    let mut before = NOW_NS + 5 * HOUR_NS;
    for host in [1, 4] {
        let op = submit_and_run(&mut cluster, host, lock(slots[host]));
        let (token, _) = locked(&mut cluster, host, op);
        assert!(token > before, "{token} by host {host} after {before}");
        before = token;
        assert_eq!(cluster.command(host, unlock(slots[host])), Ok(Outcome::Done));
    }
    assert_eq!(cluster.command(0, Command::RegionCommand(slots[0], RegionCommand::Free)), Ok(Outcome::Done));
    // Tokens rise more slowly than time passes.
    cluster.sleep(LEASE_NS);
    // The node with the fastest clock dies; a later node with a slower one has learned the time from others.
    cluster.kill(1);
    let late = cluster.add(5, 0);
    let anew = anchor(&mut cluster, late);
    let op = submit_and_run(&mut cluster, late, lock(anew));
    let (token, _) = locked(&mut cluster, late, op);
    assert!(token > before, "{token} after {before}");
}

#[test]
fn grants_that_cross_a_withdrawal_are_returned() {
    let mut cluster = Cluster::of(3);
    let (slots, home) = lock_of_all(&mut cluster);
    let (withdrawing, next) = ((home + 1) % 3, (home + 2) % 3);
    submit_and_run(&mut cluster, home, lock(slots[home]));
    let crossing = submit_and_run(&mut cluster, withdrawing, lock(slots[withdrawing]));
    let waiting = submit_and_run(&mut cluster, next, lock(slots[next]));
    cluster.held = vec![(home, withdrawing)];
    assert_eq!(cluster.command(home, unlock(slots[home])), Ok(Outcome::Done));
    assert!(!cluster.has_ended(withdrawing, crossing), "granted, but not told yet");
    cluster.submit(withdrawing, Command::Withdraw(crossing));
    cluster.run();
    locked(&mut cluster, next, waiting);
    cluster.held.clear();
    let again = submit_and_run(&mut cluster, withdrawing, lock(slots[withdrawing]));
    assert!(!cluster.has_ended(withdrawing, again), "the late grant does not answer the new request");
    assert_eq!(cluster.command(next, unlock(slots[next])), Ok(Outcome::Done));
    locked(&mut cluster, withdrawing, again);
}
