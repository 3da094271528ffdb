//! Hosts between which TCP works and UDP is blocked, for example by a firewall without a rule for UDP.

use crate::cluster::{line, share_secret, start};
use crate::support::eventually;
use crate::world::{Processes, World};

#[test]
fn a_join_over_blocked_udp_says_so() {
    let Some(world) = World::new(2, Processes::Shared) else { return };
    share_secret(&world);
    let _first = start(world.host(0), 0, None);
    // The result does not depend on which end drops packets.
    for deaf in world.hosts() {
        deaf.mute_packets();
        for number in ["--id 1", "--id 0", ""] {
            let line = line(world.host(1), 1, Some("10.0.0.1")).replace("--id 1", number);
            let complaint = world.host(1).fails(&line);
            assert!(
                complaint.contains("no connection to 10.0.0.1:7000: it answers over TCP, but packets (UDP)"),
                "{line}: {complaint}"
            );
            let ends = ["between 10.0.0.2:", " here and 10.0.0.1:", " there do not get through"];
            assert!(ends.iter().all(|end| complaint.contains(end)), "{line}: {complaint}");
        }
        deaf.let_all_arrive();
    }
    assert_eq!(world.host(0).state(0), "alive");
    let _second = start(world.host(1), 1, Some("10.0.0.1"));
    eventually(|| world.hosts().iter().all(|host| host.state(0) == "alive" && host.state(1) == "alive"));
}

/// Why a node is unreachable stands in the logs of others.
#[test]
fn logs_say_why_a_connection_has_ended() {
    let Some(world) = World::new(2, Processes::Shared) else { return };
    share_secret(&world);
    let begin = |number: usize, join| {
        let host = world.host(number);
        host.start(&format!("{} 2>/tmp/log", line(host, number, join)), "ready")
    };
    let _first = begin(0, None);
    let mut second = begin(1, Some("10.0.0.1"));
    let log = || String::from_utf8(world.host(0).read("/tmp/log")).unwrap();
    eventually(|| log().contains("has joined"));
    second.kill();
    eventually(|| log().contains("its connection has ended ("));
    assert!(log().contains("closed without a farewell") || log().contains("reset by peer"), "{}", log());
}
