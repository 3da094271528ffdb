//! Hosts whose clocks differ: no operation depends on equal clocks, and fencing tokens increase nevertheless.

use std::time::{Duration, SystemTime};

use crate::application::Application;
use crate::cluster::Cluster;
use crate::support::eventually;
use crate::world::{Processes, World};

const HOUR_S: i64 = 3600;

/// Takes the lock on a host and releases it; returns the token.
#[track_caller]
fn token(cluster: &Cluster, host: usize) -> u64 {
    let text = cluster.host(host).ok(&Application::line("lock-once"));
    let (_, token) = text.split_once("by token ").unwrap_or_else(|| panic!("{text}"));
    token.split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn tokens_increase_with_clocks_an_hour_apart() {
    let offsets_s = [-HOUR_S, 0, HOUR_S];
    let Some(mut world) = World::new(3, Processes::Shared) else { return };
    world.set_clocks(&offsets_s);
    let mut cluster = Cluster::on(world);
    eventually(|| cluster.is_whole());
    let mut last = 0;
    let hand_around = |cluster: &Cluster, last: &mut u64| {
        for host in [0, 1, 2, 2, 1, 0] {
            let token = token(cluster, host);
            assert!(token > *last, "clocks {offsets_s:?}: token {token} of host {host} after {last}");
            *last = token;
        }
    };
    hand_around(&cluster, &mut last);
    // The clocks are set as intended: tokens start at the time of day of the fastest clock.
    let now_s = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    let fastest_s = now_s.saturating_add_signed(offsets_s.into_iter().max().unwrap());
    assert!(last / 1_000_000_000 > fastest_s - HOUR_S as u64 / 2, "{last}");
    // The lock is created again on any node: one of them is its home.
    for restarted in [2, 1, 0] {
        cluster.nodes[restarted].kill();
        cluster.restart(restarted, [None, Some(0), Some(0)][restarted]);
        eventually(|| cluster.is_whole());
        hand_around(&cluster, &mut last);
    }

    // A holder keeps its lock for longer than a lease, and loses it when it is unreachable.
    let mut holding = Application::start(cluster.host(0), "lock");
    // The test must wait for longer than a lease here.
    std::thread::sleep(Duration::from_secs(6));
    let refused = cluster.host(2).ok(&Application::line("try-lock"));
    assert!(refused.contains("it is held"), "{refused}");
    cluster.world.unplug(0);
    holding.end();
    cluster.world.plug(0);
    hand_around(&cluster, &mut last);
    eventually(|| cluster.is_whole());
}
