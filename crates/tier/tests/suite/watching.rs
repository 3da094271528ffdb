//! Stories of watchers: who is on the list of a region's home, and where the list is.

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
/// About as many random steps as it takes to move a region of three chunks.
const MOVE_STEPS: u64 = 400;

fn watch(cluster: &mut Cluster, host: usize, slot: SlotRef, port: u32) -> RegionId {
    match cluster.command(host, Command::Watch { slot, port }) {
        Ok(Outcome::Watching { region }) => region,
        other => panic!("host {host} should watch: {other:?}"),
    }
}

/// The hosts and ports that `host` is to tell.
fn watchers(cluster: &mut Cluster, host: usize, slot: SlotRef) -> Vec<(usize, u32)> {
    match cluster.command(host, Command::ListWatchers(slot)) {
        Ok(Outcome::Watchers { watchers, .. }) => watchers
            .into_iter()
            .map(|(incarnation, port)| {
                (cluster.hosts.iter().position(|host| host.incarnation == incarnation).unwrap(), port)
            })
            .collect(),
        other => panic!("host {host} should hear who watches: {other:?}"),
    }
}

fn move_to(cluster: &mut Cluster, host: usize, slot: SlotRef, to: u32) {
    let order = RegionCommand::Move { to: NodeId(to) };
    assert_eq!(cluster.command(host, Command::RegionCommand(slot, order)), Ok(Outcome::Done));
}

/// A region at home at host 1, and the handles of hosts 1, 2 and 3.
fn salt(cluster: &mut Cluster) -> [SlotRef; 3] {
    let first = cluster.alloc(1, "salt", 3 * CHUNK_BYTES, Placement::Local);
    [first, cluster.map(2, "salt"), cluster.map(3, "salt")]
}

#[test]
fn a_watcher_is_on_the_list_from_when_it_is_told_so_until_it_watches_no_more() {
    let mut cluster = Cluster::of(4);
    let [home, second, third] = salt(&mut cluster);
    assert_eq!(watchers(&mut cluster, 3, third), []);
    let region = watch(&mut cluster, 2, second, PORT);
    watch(&mut cluster, 1, home, PORT);
    watch(&mut cluster, 2, second, PORT + 1);
    watch(&mut cluster, 2, second, PORT);
    assert_eq!(watchers(&mut cluster, 3, third), [(2, PORT), (1, PORT), (2, PORT + 1)]);
    assert_eq!(watchers(&mut cluster, 1, home).len(), 3, "the home hears the same");
    assert_eq!(cluster.command(2, Command::Unwatch { region, port: PORT }), Ok(Outcome::Done));
    assert_eq!(watchers(&mut cluster, 3, third), [(1, PORT), (2, PORT + 1)]);
}

#[test]
fn the_list_moves_with_the_home_of_its_region() {
    let mut cluster = Cluster::of(4);
    let [home, second, third] = salt(&mut cluster);
    let region = watch(&mut cluster, 2, second, PORT);
    watch(&mut cluster, 3, third, PORT);
    move_to(&mut cluster, 1, home, 0);
    assert_eq!(watchers(&mut cluster, 1, home), [(2, PORT), (3, PORT)]);
    cluster.command(2, Command::Unwatch { region, port: PORT }).unwrap();
    move_to(&mut cluster, 1, home, 1);
    assert_eq!(watchers(&mut cluster, 2, second), [(3, PORT)], "nothing is left of what was there before");
}

/// Whenever the watcher asks, a writer that asks for the list after the watcher was told that it watches finds it there.
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
fn who_dies_leaves_or_unmaps_the_region_is_off_the_list() {
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
    assert_eq!(watchers(&mut cluster, 4, again), [(1, PORT)], "what it asked for before is over");
    cluster.add(2, common::ARENA_BYTES);
    assert_eq!(watchers(&mut cluster, 1, home), [(1, PORT)], "the restarted node is another one");
}

#[test]
fn who_dies_while_the_list_travels_is_not_on_it() {
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

/// A session of somebody else at a host, with a handle for reading and writing.
fn stranger(cluster: &mut Cluster, host: usize) -> (SessionId, SlotRef) {
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
fn only_readers_watch_and_only_writers_hear_who_does() {
    let mut cluster = Cluster::of(4);
    let [home, ..] = salt(&mut cluster);
    let (bob, slot) = stranger(&mut cluster, 2);
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
    assert_eq!(watchers(&mut cluster, 1, home), [], "who may not read any more is not told any more");
}

#[test]
fn a_freed_region_is_watched_by_nobody() {
    let mut cluster = Cluster::of(4);
    let [home, second, third] = salt(&mut cluster);
    watch(&mut cluster, 2, second, PORT);
    // A mapper that does not answer keeps the region from being gone at once.
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
fn a_region_has_so_many_watchers_and_no_more() {
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
