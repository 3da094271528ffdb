//! The log of a node has a line for each peer that joins, is lost, is paired again or ends, with the reason.

use std::time::Instant;

use crate::cluster::{line, share_secret};
use crate::support::{Running, eventually};
use crate::world::{Host, Processes, World};

/// Starts a node whose log is kept beside it.
fn start(host: &Host, number: usize, join: Option<&str>) -> Running {
    let line = line(host, number, join).replace(":7000 --secret", &format!(":{} --secret", 7000 + number));
    host.start(&format!("{line} 2>/tmp/log-{number}"), "ready")
}

/// Waits until the log of a node has a line with all of these.
#[track_caller]
fn tells(host: &Host, number: usize, parts: &[&str]) {
    let log = || String::from_utf8(host.read(&format!("/tmp/log-{number}"))).unwrap();
    let begin = Instant::now();
    while !log().lines().any(|line| parts.iter().all(|part| line.contains(part))) {
        assert!(begin.elapsed().as_secs() < 60, "{parts:?} is not told:\n{}", log());
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[test]
fn a_log_has_a_line_for_each_joining_loss_of_sight_pairing_and_death_with_its_reason() {
    let Some(world) = World::new(2, Processes::Shared) else { return };
    let [one, two] = [world.host(0), world.host(1)];
    share_secret(&world);
    let _first = start(one, 0, None);
    let second_node = start(two, 1, Some("10.0.0.1"));
    let mut beside = start(two, 2, Some("10.0.0.1"));
    let [second, third] = [&second_node, &beside].map(|node| format!("(process {})", node.pid()));
    for node in [&second, &third] {
        tells(one, 0, &[" INFO ", node, "has joined"]);
    }

    world.unplug(1);
    tells(one, 0, &[" WARN ", &second, "is unreachable for this node: "]);
    tells(two, 1, &[" WARN ", "node 0 (process ", "is unreachable for this node: "]);
    world.plug(1);
    for node in ["node 1 ", "node 2 "] {
        tells(one, 0, &[" INFO ", &format!("paired again with {node}"), "pairing 2"]);
    }
    tells(two, 1, &[" INFO ", "paired again with node 0 ", "pairing 2"]);

    // Who is on its host sees how it ended; others lose its connection.
    beside.kill();
    tells(two, 1, &["node 2 ", &third, "has exited"]);
    tells(one, 0, &[" WARN ", &third, "is unreachable for this node: its connection has ended"]);
}

/// A dial is three quarters of a lease behind the one before at most, so that two dials are within two leases; virtual time holds that to the
/// nanosecond (`halite_trials::peace`).
#[test]
#[ignore = "slow: .ci/deep slow"]
fn after_a_long_outage_all_are_paired_again_by_the_dial_under_way_or_the_next() {
    let Some(world) = World::new(3, Processes::Shared) else { return };
    let host = |number: usize| world.host(number);
    share_secret(&world);
    let join = |number: usize| (number > 0).then_some("10.0.0.1");
    let nodes: Vec<Running> = (0..3).map(|number| start(host(number), number, join(number))).collect();
    let called = |number: usize| format!("node {number} (process {})", nodes[number].pid());
    tells(host(1), 1, &[&called(2), "has joined"]);

    world.unplug(2);
    for (number, other) in [(0, 2), (1, 2), (2, 0), (2, 1)] {
        tells(host(number), number, &[" WARN ", &called(other), "is unreachable for this node: "]);
    }
    // So long that its dials have become rare: the first two are a quarter of a lease apart, later ones up to three.
    host(2).count_dials("oifname cable");
    eventually(|| host(2).dials() >= 9);
    world.plug(2);
    let before = host(2).dials();
    for (number, other) in [(0, 2), (1, 2), (2, 0), (2, 1)] {
        tells(host(number), number, &[&format!("paired again with {}", called(other))]);
    }
    // To each of two nodes, of which TCP may have said the first one twice again.
    let since = host(2).dials() - before;
    assert!(since <= 2 * (1 + 2 + 1), "{since}");
}
