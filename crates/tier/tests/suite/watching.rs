//! Scenarios of watchers: which ones a region's home lists, and where the list is.

use crate::common;

use common::{CHUNK_BYTES, Cluster};
use fastrand::Rng;
use halite_tier::access::SlotRef;
use halite_tier::effect::{Command, CommandError, OpId, Outcome, Placement};
use halite_tier::engine::WATCHERS_MAX;
use halite_tier::ids::{NodeId, Principal, RegionId, SessionId};
use halite_tier::message::{ErrorReply, RegionCommand};
use halite_tier::permissions::{Grantee, Permissions};

const PORT: u32 = 7;
/// About the number of random steps that a move of a three-chunk region takes.
const MOVE_STEPS: u64 = 400;

fn watch(cluster: &mut Cluster, host: usize, slot: SlotRef, port: u32) -> RegionId {
    match cluster.command(host, Command::Watch { slot, port }) {
        Ok(Outcome::Watching { region }) => region,
        other => panic!("expected host {host} to watch, not {other:?}"),
    }
}

/// The hosts and ports that `host` has to notify.
fn watchers(cluster: &mut Cluster, host: usize, slot: SlotRef) -> Vec<(usize, u32)> {
    match cluster.command(host, Command::ListWatchers(slot)) {
        Ok(Outcome::Watchers { watchers, .. }) => watchers
            .into_iter()
            .map(|(incarnation, port)| {
                (cluster.hosts.iter().position(|host| host.incarnation == incarnation).unwrap(), port)
            })
            .collect(),
        other => panic!("expected the watchers at host {host}, not {other:?}"),
    }
}

fn move_to(cluster: &mut Cluster, host: usize, slot: SlotRef, to: u32) {
    let order = RegionCommand::Move { to: NodeId(to) };
    assert_eq!(cluster.command(host, Command::RegionCommand(slot, order)), Ok(Outcome::Done));
}

/// A region homed at host 1, and the handles of hosts 1, 2 and 3.
fn salt(cluster: &mut Cluster) -> [SlotRef; 3] {
    let first = cluster.alloc(1, "salt", 3 * CHUNK_BYTES, Placement::Local);
    [first, cluster.map(2, "salt"), cluster.map(3, "salt")]
}

#[test]
fn watchers_are_listed_from_grant_to_unwatch() {
    let mut cluster = Cluster::of(4);
    let [home, second, third] = salt(&mut cluster);
    assert_eq!(watchers(&mut cluster, 3, third), []);
    let region = watch(&mut cluster, 2, second, PORT);
    watch(&mut cluster, 1, home, PORT);
    watch(&mut cluster, 2, second, PORT + 1);
    watch(&mut cluster, 2, second, PORT);
    assert_eq!(watchers(&mut cluster, 3, third), [(2, PORT), (1, PORT), (2, PORT + 1)]);
    assert_eq!(watchers(&mut cluster, 1, home).len(), 3, "the home lists the same");
    assert_eq!(cluster.command(2, Command::Unwatch { region, port: PORT }), Ok(Outcome::Done));
    assert_eq!(watchers(&mut cluster, 3, third), [(1, PORT), (2, PORT + 1)]);
}

#[test]
fn watcher_lists_move_with_the_home() {
    let mut cluster = Cluster::of(4);
    let [home, second, third] = salt(&mut cluster);
    let region = watch(&mut cluster, 2, second, PORT);
    watch(&mut cluster, 3, third, PORT);
    move_to(&mut cluster, 1, home, 0);
    assert_eq!(watchers(&mut cluster, 1, home), [(2, PORT), (3, PORT)]);
    cluster.command(2, Command::Unwatch { region, port: PORT }).unwrap();
    move_to(&mut cluster, 1, home, 1);
    assert_eq!(watchers(&mut cluster, 2, second), [(3, PORT)], "the former list is gone");
}

/// At any time: a writer that asks for the list after a watcher's request was granted finds it listed.
#[test]
fn no_watcher_is_lost_while_the_home_moves() {
    for seed in 1..2 * MOVE_STEPS {
        let mut cluster = Cluster::of(4);
        let [home, second, third] = salt(&mut cluster);
        let mut picks = Rng::with_seed(seed);
        let mut step = |cluster: &mut Cluster| cluster.step_one(picks.u64(..));
        cluster.submit(1, Command::RegionCommand(home, RegionCommand::Move { to: NodeId(0) }));
        for _ in 0..seed % MOVE_STEPS {
            step(&mut cluster);
        }
        let watching = cluster.submit(2, Command::Watch { slot: second, port: PORT });
        while !cluster.has_ended(2, watching) {
            assert!(step(&mut cluster), "seed {seed}: the watcher is never answered");
        }
        let asked = cluster.submit(3, Command::ListWatchers(third));
        while !cluster.has_ended(3, asked) {
            assert!(step(&mut cluster), "seed {seed}: the writer is never answered");
        }
        let incarnation = cluster.hosts[2].incarnation;
        match cluster.outcome(3, asked) {
            Some(Ok(Outcome::Watchers { watchers, .. })) => {
                assert_eq!(watchers, [(incarnation, PORT)], "seed {seed}");
            }
            other => panic!("seed {seed}: {other:?}"),
        }
    }
}

#[test]
fn watchers_that_die_leave_or_unmap_are_removed() {
    let mut cluster = Cluster::of(5);
    let [home, second, third] = salt(&mut cluster);
    let fourth = cluster.map(4, "salt");
    for (host, slot) in [(1, home), (2, second), (3, third), (4, fourth)] {
        watch(&mut cluster, host, slot, PORT);
    }
    cluster.kill(2);
    cluster.run();
    assert_eq!(watchers(&mut cluster, 1, home), [(1, PORT), (3, PORT), (4, PORT)]);
    cluster.hosts[3].engine.leave(cluster.now_ns);
    cluster.run();
    assert_eq!(watchers(&mut cluster, 1, home), [(1, PORT), (4, PORT)]);
    cluster.command(4, Command::Unmap(fourth)).unwrap();
    assert_eq!(watchers(&mut cluster, 1, home), [(1, PORT)]);
    let again = cluster.map(4, "salt");
    assert_eq!(watchers(&mut cluster, 4, again), [(1, PORT)], "earlier watches are gone");
    cluster.add(2, common::ARENA_BYTES);
    assert_eq!(watchers(&mut cluster, 1, home), [(1, PORT)], "a restarted node is another incarnation");
}

#[test]
fn watchers_that_die_during_a_move_are_removed() {
    for seed in 1..2 * MOVE_STEPS {
        let mut cluster = Cluster::of(4);
        let [home, second, third] = salt(&mut cluster);
        watch(&mut cluster, 2, second, PORT);
        watch(&mut cluster, 3, third, PORT);
        cluster.submit(1, Command::RegionCommand(home, RegionCommand::Move { to: NodeId(0) }));
        let mut picks = Rng::with_seed(seed);
        for _ in 0..seed % MOVE_STEPS {
            cluster.step_one(picks.u64(..));
        }
        cluster.kill(2);
        cluster.run();
        assert_eq!(watchers(&mut cluster, 1, home), [(3, PORT)], "seed {seed}");
    }
}

/// A session of another principal at a host, with a handle for reading and writing.
fn other_principal(cluster: &mut Cluster, host: usize) -> (SessionId, SlotRef) {
    let session = cluster.hosts[host].engine.open_session(Principal("bob".into())).unwrap();
    let wanted = Permissions::READ | Permissions::WRITE;
    let slot = common::slot(command_as(cluster, host, session, Command::Map { name: "salt".into(), wanted }));
    (session, slot)
}

fn command_as(
    cluster: &mut Cluster,
    host: usize,
    session: SessionId,
    command: Command,
) -> Result<Outcome, CommandError> {
    let op: OpId = cluster.hosts[host].engine.submit(cluster.now_ns, session, command);
    cluster.run();
    cluster.outcome(host, op).expect("with everything delivered, the command has ended")
}

fn denied(missing: Permissions) -> Result<Outcome, CommandError> {
    Err(ErrorReply::PermissionDenied { missing }.into())
}

#[test]
fn readers_watch_and_writers_list_watchers() {
    let mut cluster = Cluster::of(4);
    let [home, ..] = salt(&mut cluster);
    let (bob, slot) = other_principal(&mut cluster, 2);
    command_as(&mut cluster, 2, bob, Command::Watch { slot, port: PORT }).unwrap();
    let mut revoke = |permissions| {
        let order = RegionCommand::Revoke { who: Grantee::Everyone, permissions };
        cluster.command(1, Command::RegionCommand(home, order)).unwrap();
    };
    revoke(Permissions::WRITE);
    revoke(Permissions::READ);
    let refused = command_as(&mut cluster, 2, bob, Command::ListWatchers(slot));
    assert_eq!(refused, denied(Permissions::WRITE));
    let refused = command_as(&mut cluster, 2, bob, Command::Watch { slot, port: PORT + 1 });
    assert_eq!(refused, denied(Permissions::READ));
    assert_eq!(watchers(&mut cluster, 1, home), [], "watchers without READ are not notified");
}

#[test]
fn freed_regions_have_no_watchers() {
    let mut cluster = Cluster::of(4);
    let [home, second, third] = salt(&mut cluster);
    watch(&mut cluster, 2, second, PORT);
    // A mapper that does not answer delays the free.
    cluster.held.push((3, 1));
    let free = cluster.submit(1, Command::RegionCommand(home, RegionCommand::Free));
    let late = cluster.submit(2, Command::Watch { slot: second, port: PORT });
    cluster.run();
    assert!(!cluster.has_ended(1, free));
    assert_eq!(cluster.outcome(2, late), Some(Err(ErrorReply::NotFound.into())));
    cluster.held.clear();
    cluster.run();
    assert_eq!(cluster.outcome(1, free), Some(Ok(Outcome::Done)));
    assert_eq!(cluster.command(3, Command::ListWatchers(third)), Err(CommandError::Stale));
}

#[test]
fn watchers_of_a_region_are_bounded() {
    let mut cluster = Cluster::of(2);
    let slot = cluster.alloc(1, "salt", CHUNK_BYTES, Placement::Local);
    let mut region = None;
    for port in 0..WATCHERS_MAX as u32 {
        region = Some(watch(&mut cluster, 1, slot, port));
    }
    let full = ErrorReply::TooManyWatchers { max: WATCHERS_MAX as u64 };
    let again = Command::Watch { slot, port: u32::MAX };
    assert_eq!(cluster.command(1, again.clone()), Err(full.into()));
    cluster.command(1, Command::Unwatch { region: region.unwrap(), port: 0 }).unwrap();
    assert!(cluster.command(1, again).is_ok());
}
