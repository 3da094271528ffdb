//! Scenarios of locks and barriers: the order of grants, and deaths.

use crate::common;

use common::{ARENA_BYTES, Cluster, Host, LEASE_NS};
use halite_tier::access::{Atomic, SlotRef};
use halite_tier::effect::{Command, CommandError, OpId, Outcome, Release};
use halite_tier::ids::Principal;
use halite_tier::lockword::{Holder, STATE_OFFSET};
use halite_tier::message::{ErrorReply, RegionCommand};
use halite_tier::names::Service;
use halite_tier::permissions::Permissions;

/// A name whose hash selects the home of these tests.
const NAME: &str = "lock";

fn anchor(cluster: &mut Cluster, host: usize, service: Service) -> SlotRef {
    let name = NAME.to_string();
    common::slot(cluster.command(host, Command::Anchor { service, name, everyone: Permissions::ATOMIC }))
}

/// Handles of the lock at all nodes, and its home.
fn lock_of_all(cluster: &mut Cluster) -> (Vec<SlotRef>, usize) {
    handles_of_all(cluster, Service::Lock)
}

fn handles_of_all(cluster: &mut Cluster, service: Service) -> (Vec<SlotRef>, usize) {
    let first = anchor(cluster, 0, service);
    let Ok(Outcome::Info(info)) = cluster.command(0, Command::StatHandle(first)) else { panic!("no info") };
    let mut slots = vec![first];
    for host in 1..cluster.hosts.len() {
        let map = Command::Map { name: service.region_name(NAME), wanted: Permissions::ATOMIC };
        slots.push(common::slot(cluster.command(host, map)));
    }
    (slots, info.home.0 as usize)
}

fn lock(slot: SlotRef) -> Command {
    Command::Lock { slot, wait: true, base_ns: 0 }
}

fn unlock(slot: SlotRef) -> Command {
    Command::Unlock { slot, release: Release::Used }
}

fn arrive(slot: SlotRef, participants: u32, timeout_ns: u64) -> Command {
    Command::Arrive { slot, participants, timeout_ns }
}

/// The token, and whether the lock was recovered.
fn locked(cluster: &mut Cluster, host: usize, op: OpId) -> (u64, bool) {
    match cluster.outcome(host, op) {
        Some(Ok(Outcome::Locked { token, recovered })) => (token, recovered),
        other => panic!("expected host {host} to hold the lock, not {other:?}"),
    }
}

fn submit_and_run(cluster: &mut Cluster, host: usize, command: Command) -> OpId {
    let op = cluster.submit(host, command);
    cluster.run();
    op
}

/// A session's own compare-and-swap on a reachable word.
fn swap(cluster: &Cluster, host: usize, slot: SlotRef, expected: u64, new: u64) -> u64 {
    let host = &cluster.hosts[host];
    let atomic = Atomic::CompareSwap { expected, new };
    host.path.atomic(host.session, slot, STATE_OFFSET, atomic).expect("the word is in reach")
}

fn holder(cluster: &Cluster, host: usize) -> u64 {
    Holder::new(cluster.hosts[host].incarnation, cluster.hosts[host].session).state()
}

/// Sessions of one node are as separate as those of two.
#[test]
fn only_the_holding_session_can_unlock() {
    let mut cluster = Cluster::of(3);
    let (slots, _) = lock_of_all(&mut cluster);
    let op = submit_and_run(&mut cluster, 2, lock(slots[2]));
    locked(&mut cluster, 2, op);
    let (owner, before) = (cluster.hosts[2].session, holder(&cluster, 2));
    let waiting = submit_and_run(&mut cluster, 1, lock(slots[1]));
    cluster.hosts[2].session = cluster.hosts[2].engine.open_session(Principal("ada".into())).unwrap();
    let wanted = Permissions::ATOMIC;
    let map = Command::Map { name: Service::Lock.region_name(NAME), wanted };
    let theirs = common::slot(cluster.command(2, map));
    for release in [Release::Used, Release::Unused, Release::Abandoned] {
        let refused = cluster.command(2, Command::Unlock { slot: theirs, release });
        assert_eq!(refused, Err(ErrorReply::NotHeld.into()), "{release:?}");
    }
    assert!(!cluster.has_ended(1, waiting), "the lock is held");
    cluster.hosts[2].session = owner;
    assert_eq!(holder(&cluster, 2), before);
    assert_eq!(cluster.command(2, unlock(slots[2])), Ok(Outcome::Done));
    locked(&mut cluster, 1, waiting);
}

#[test]
fn locks_are_granted_in_order_without_overtaking() {
    let mut cluster = Cluster::of(4);
    let (slots, _) = lock_of_all(&mut cluster);
    let ops: Vec<OpId> =
        [2, 0, 3, 1].map(|host| submit_and_run(&mut cluster, host, lock(slots[host]))).to_vec();
    let mut before = 0;
    for (turn, host) in [2, 0, 3, 1].into_iter().enumerate() {
        let (token, recovered) = locked(&mut cluster, host, ops[turn]);
        assert!(token > before && !recovered);
        before = token;
        for (later, other) in [2, 0, 3, 1].into_iter().enumerate().skip(turn + 1) {
            assert!(!cluster.has_ended(other, ops[later]), "{other} waits for {host}");
        }
        assert_ne!(swap(&cluster, 1, slots[1], 0, 7), 0, "a new session cannot take it alone");
        assert_eq!(cluster.command(host, unlock(slots[host])), Ok(Outcome::Done));
    }
    assert_eq!(swap(&cluster, 3, slots[3], 0, holder(&cluster, 3)), 0, "the lock is free");
}

#[test]
fn homes_pass_on_locks_taken_by_the_word() {
    let mut cluster = Cluster::of(3);
    let (slots, _) = lock_of_all(&mut cluster);
    let me = holder(&cluster, 1);
    assert_eq!(swap(&cluster, 1, slots[1], 0, me), 0);
    let op = submit_and_run(&mut cluster, 2, lock(slots[2]));
    assert_ne!(swap(&cluster, 1, slots[1], me, 0), me, "contended, so the home must be asked");
    assert_eq!(cluster.command(1, unlock(slots[1])), Ok(Outcome::Done));
    locked(&mut cluster, 2, op);
    assert_eq!(
        cluster.command(1, unlock(slots[1])),
        Err(CommandError::Refused(ErrorReply::NotHeld)),
        "released once"
    );
}

#[test]
fn locks_of_dead_holders_are_recovered_after_cut_off() {
    let mut cluster = Cluster::of(4);
    cluster.kills = false;
    let (slots, home) = lock_of_all(&mut cluster);
    let others: Vec<usize> = (0..4).filter(|host| *host != home && *host != 0).collect();
    let (dead, next) = (others[0], others[1]);
    submit_and_run(&mut cluster, dead, lock(slots[dead]));
    let op = submit_and_run(&mut cluster, next, lock(slots[next]));
    cluster.stop(dead);
    cluster.sleep(2 * LEASE_NS);
    assert!(!cluster.has_ended(next, op), "dead for all nodes, but may still write");
    cluster.kill(dead);
    cluster.run();
    assert!(locked(&mut cluster, next, op).1, "recovered");
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

/// A held lock and its waiters, while messages are lost on `first`, and after a time between holder and home in either
/// direction.
fn lose_sight(first: impl Fn(usize, usize) -> (usize, usize), apart_after_ns: u64) {
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
        lose_sight(|home, holder| (home, holder), apart_after_ns);
        lose_sight(|home, holder| (holder, home), apart_after_ns);
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
    let anew = anchor(&mut cluster, late, Service::Lock);
    let op = submit_and_run(&mut cluster, late, lock(anew));
    let (token, _) = locked(&mut cluster, late, op);
    assert!(token > before, "{token} after {before}");
}

#[test]
fn dead_holders_are_found_by_the_next_request() {
    let mut cluster = Cluster::of(4);
    let (slots, home) = lock_of_all(&mut cluster);
    let others: Vec<usize> = (0..4).filter(|host| *host != home && *host != 0).collect();
    submit_and_run(&mut cluster, others[0], lock(slots[others[0]]));
    cluster.kill(others[0]);
    cluster.run();
    let try_lock = Command::Lock { slot: slots[others[1]], wait: false, base_ns: 0 };
    let op = submit_and_run(&mut cluster, others[1], try_lock);
    assert!(locked(&mut cluster, others[1], op).1, "recovered");
}

#[test]
fn dead_and_withdrawn_waiters_are_skipped() {
    let mut cluster = Cluster::of(4);
    let (slots, home) = lock_of_all(&mut cluster);
    let others: Vec<usize> = (1..4).filter(|host| *host != home).collect();
    submit_and_run(&mut cluster, home, lock(slots[home]));
    submit_and_run(&mut cluster, others[0], lock(slots[others[0]]));
    let quitter = submit_and_run(&mut cluster, 0, lock(slots[0]));
    let last = submit_and_run(&mut cluster, others[1], lock(slots[others[1]]));
    cluster.kill(others[0]);
    cluster.submit(0, Command::Withdraw(quitter));
    cluster.run();
    assert_eq!(cluster.outcome(0, quitter), Some(Err(CommandError::Withdrawn)));
    assert_eq!(cluster.command(home, unlock(slots[home])), Ok(Outcome::Done));
    assert!(!locked(&mut cluster, others[1], last).1);
}

#[test]
fn grants_that_cross_a_withdrawal_are_returned() {
    let mut cluster = Cluster::of(3);
    let (slots, home) = lock_of_all(&mut cluster);
    let (quitter, next) = ((home + 1) % 3, (home + 2) % 3);
    submit_and_run(&mut cluster, home, lock(slots[home]));
    let crossing = submit_and_run(&mut cluster, quitter, lock(slots[quitter]));
    let waiting = submit_and_run(&mut cluster, next, lock(slots[next]));
    cluster.held = vec![(home, quitter)];
    assert_eq!(cluster.command(home, unlock(slots[home])), Ok(Outcome::Done));
    assert!(!cluster.has_ended(quitter, crossing), "granted, but not told yet");
    cluster.submit(quitter, Command::Withdraw(crossing));
    cluster.run();
    locked(&mut cluster, next, waiting);
    cluster.held.clear();
    let again = submit_and_run(&mut cluster, quitter, lock(slots[quitter]));
    assert!(!cluster.has_ended(quitter, again), "the late grant does not answer the new request");
    assert_eq!(cluster.command(next, unlock(slots[next])), Ok(Outcome::Done));
    locked(&mut cluster, quitter, again);
}

#[test]
fn unused_recovered_locks_stay_recovered() {
    let mut cluster = Cluster::of(4);
    let (slots, home) = lock_of_all(&mut cluster);
    let others: Vec<usize> = (0..4).filter(|host| *host != home).collect();
    submit_and_run(&mut cluster, others[2], lock(slots[others[2]]));
    let quitter = submit_and_run(&mut cluster, others[0], lock(slots[others[0]]));
    let last = submit_and_run(&mut cluster, others[1], lock(slots[others[1]]));
    cluster.held = vec![(home, others[0])];
    cluster.kill(others[2]);
    cluster.run();
    cluster.submit(others[0], Command::Withdraw(quitter));
    cluster.run();
    assert!(locked(&mut cluster, others[1], last).1, "recovered");
}

#[test]
fn waiters_learn_of_the_end_of_home_or_lock() {
    let mut cluster = Cluster::of(4);
    let (slots, home) = lock_of_all(&mut cluster);
    let others: Vec<usize> = (0..4).filter(|host| *host != home).collect();
    submit_and_run(&mut cluster, others[0], lock(slots[others[0]]));
    let op = submit_and_run(&mut cluster, others[1], lock(slots[others[1]]));
    assert_eq!(cluster.command(0, Command::RegionCommand(slots[0], RegionCommand::Free)), Ok(Outcome::Done));
    assert_eq!(cluster.outcome(others[1], op), Some(Err(CommandError::Refused(ErrorReply::NotFound))));

    let (slots, home) = lock_of_all(&mut cluster);
    submit_and_run(&mut cluster, others[0], lock(slots[others[0]]));
    let op = submit_and_run(&mut cluster, others[1], lock(slots[others[1]]));
    let down = cluster.hosts[home].incarnation.node;
    cluster.kill(home);
    cluster.run();
    assert_eq!(cluster.outcome(others[1], op), Some(Err(CommandError::Refused(ErrorReply::PeerDown(down)))));
}

#[test]
fn ended_sessions_leave_recovered_locks() {
    let mut cluster = Cluster::of(3);
    let (slots, _) = lock_of_all(&mut cluster);
    submit_and_run(&mut cluster, 1, lock(slots[1]));
    let unlock = Command::Unlock { slot: slots[1], release: Release::Abandoned };
    assert_eq!(cluster.command(1, unlock), Ok(Outcome::Done));
    assert_ne!(swap(&cluster, 2, slots[2], 0, holder(&cluster, 2)), 0, "the next must learn of the recovery");
    let op = submit_and_run(&mut cluster, 2, lock(slots[2]));
    assert!(locked(&mut cluster, 2, op).1);
}

#[test]
fn barriers_release_all_and_count_rounds() {
    let mut cluster = Cluster::of(3);
    let (slots, _) = handles_of_all(&mut cluster, Service::Barrier);
    for round in 1..4 {
        let early = [0, 1].map(|host| submit_and_run(&mut cluster, host, arrive(slots[host], 3, LEASE_NS)));
        assert!(!cluster.has_ended(0, early[0]) && !cluster.has_ended(1, early[1]));
        let passed = Ok(Outcome::Passed { round });
        assert_eq!(cluster.command(2, arrive(slots[2], 3, LEASE_NS)), passed);
        assert_eq!(cluster.outcome(0, early[0]), Some(passed.clone()));
        assert_eq!(cluster.outcome(1, early[1]), Some(passed));
    }
}

#[test]
fn the_first_timeout_ends_the_round_for_all() {
    let mut cluster = Cluster::of(3);
    let (slots, _) = handles_of_all(&mut cluster, Service::Barrier);
    let patient = submit_and_run(&mut cluster, 0, arrive(slots[0], 3, 100 * LEASE_NS));
    let hasty = submit_and_run(&mut cluster, 1, arrive(slots[1], 3, 2 * LEASE_NS));
    cluster.sleep(LEASE_NS);
    assert!(!cluster.has_ended(0, patient) && !cluster.has_ended(1, hasty));
    cluster.sleep(2 * LEASE_NS);
    let timeout = Some(Err(CommandError::Refused(ErrorReply::Timeout)));
    assert_eq!((cluster.outcome(0, patient), cluster.outcome(1, hasty)), (timeout.clone(), timeout));
}

#[test]
fn dead_and_withdrawn_participants_do_not_count() {
    let mut cluster = Cluster::of(4);
    let (slots, home) = handles_of_all(&mut cluster, Service::Barrier);
    let others: Vec<usize> = (1..4).filter(|host| *host != home).collect();
    submit_and_run(&mut cluster, others[0], arrive(slots[others[0]], 2, 100 * LEASE_NS));
    cluster.kill(others[0]);
    let waiting = submit_and_run(&mut cluster, home, arrive(slots[home], 2, 100 * LEASE_NS));
    assert!(!cluster.has_ended(home, waiting), "dead participants do not count");
    cluster.submit(home, Command::Withdraw(waiting));
    let waiting = submit_and_run(&mut cluster, 0, arrive(slots[0], 2, 100 * LEASE_NS));
    assert!(!cluster.has_ended(0, waiting), "participants that left do not count");
    let refused = Err(CommandError::Refused(ErrorReply::Participants { expected: 2 }));
    assert_eq!(cluster.command(others[1], arrive(slots[others[1]], 3, LEASE_NS)), refused);
    let passed = cluster.command(others[1], arrive(slots[others[1]], 2, LEASE_NS));
    assert_eq!(passed, Ok(Outcome::Passed { round: 1 }));
}
