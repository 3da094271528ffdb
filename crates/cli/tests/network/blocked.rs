//! Hosts between which TCP works and UDP is blocked, for example by a firewall without a rule for UDP.

use rustix::process::Signal;
use serde_json::Value;

use crate::cluster::{SECRET, line, share_secret, start};
use crate::support::eventually;
use crate::world::{Host, Processes, World};

#[test]
fn join_reports_blocked_udp() {
    let Some(world) = World::new(2, Processes::Shared) else { return };
    share_secret(&world);
    let _first = start(world.host(0), 0, None);
    let examine_at = |port: u32| {
        let doctor =
            format!("halite doctor --json --listen 10.0.0.2:7000 --join 10.0.0.1:{port} --secret-file");
        let text = String::from_utf8(world.host(1).run(&format!("{doctor} {SECRET}")).stdout).unwrap();
        let found = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        found
            .filter(|finding| finding["check"] == "join")
            .map(|finding| finding.to_string())
            .collect::<String>()
    };
    let examine = || examine_at(7000);
    assert!(examine().contains("pass in both directions, with up to"), "{}", examine());
    world.host(0).forward_tcp(7001, 7000);
    assert!(examine_at(7001).contains("pass in both directions"), "{}", examine_at(7001));
    // The result does not depend on which end drops packets.
    for deaf in world.hosts() {
        deaf.drop_udp();
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
        assert!(examine().contains("answers over TCP, but packets (UDP)"), "{}", examine());
        deaf.drop_no_packets();
    }
    assert_eq!(world.host(0).state(0), "alive");
    let _second = start(world.host(1), 1, Some("10.0.0.1"));
    eventually(|| world.are_alive(2));
}

/// Why a node is unreachable stands in the logs of others.
#[test]
fn logs_report_why_a_connection_ended() {
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
    second.signal(Signal::STOP);
    // The connection or the membership notices first.
    let silent = ["its connection has ended (it acknowledged nothing for a lease)", "longer than its lease"];
    eventually(|| silent.iter().any(|reason| log().contains(reason)));
    second.signal(Signal::CONT);
    eventually(|| log().contains("paired again with node 1"));
    second.kill();
    eventually(|| log().contains("closed without a farewell") || log().contains("reset by peer"));
    // The port of a dead node refuses connections.
    let reason = || world.host(0).nodes()[1]["reason"].to_string();
    eventually(|| reason().contains("10.0.0.2:7000: Connection refused"));
    second = begin(1, Some("10.0.0.1"));
    second.signal(Signal::INT);
    eventually(|| log().contains("has left"));
}

/// Packets are blocked or translated under running nodes: commands of either host, its status and its explanations say
/// so.
#[test]
fn commands_report_why_a_node_is_unreachable() {
    let Some(world) = World::new(2, Processes::Shared) else { return };
    share_secret(&world);
    let _nodes =
        [(0, None), (1, Some("10.0.0.1"))].map(|(number, join)| start(world.host(number), number, join));
    let hosts = world.hosts();
    hosts[1].ok("head -c 4096 /dev/zero | halite put theirs - --on 1");
    hosts[0].drop_udp();
    let asked = [
        (0, 1, "halite get theirs"),
        (0, 1, "halite put more /tmp/secret --on 1"),
        (1, 0, "halite rm theirs"),
        (1, 0, "halite ls"),
        (0, 1, "halite drain 1"),
    ];
    let check = |why: &str, (at, other, line): (usize, usize, &str)| {
        let here: &Host = &hosts[at];
        let why = |text: &str| text.contains(why);
        eventually(|| why(&here.ok(&format!("halite explain {other}"))));
        let explained = here.ok(&format!("halite explain {other}"));
        assert!(
            explained.contains("has been unreachable for") && !explained.contains("may still"),
            "{explained}"
        );
        let row = &here.nodes()[other];
        assert!(row["reason"].as_str().is_some_and(why), "{row}");
        let complaint = here.fails(line);
        assert!(complaint.contains("nothing was done") && why(&complaint), "{complaint}");
        assert!(!complaint.contains("lost regions"), "{complaint}");
    };
    asked.into_iter().for_each(|asked| check("answers over TCP, but packets (UDP)", asked));
    hosts[0].drop_no_packets();
    eventually(|| world.are_alive(2));
    assert!(hosts[0].nodes()[1]["reason"].is_null(), "they are connected again");
    hosts[1].translate_packets();
    asked.into_iter().for_each(|asked| check("a NAT translates the peer's address", asked));
}

/// The directory of names is out of reach of the only node on the command's host.
#[test]
fn node_is_drained_without_node_0() {
    let Some(world) = World::new(3, Processes::Shared) else { return };
    share_secret(&world);
    let _first = start(world.host(0), 0, None);
    let mut second = start(world.host(1), 1, Some("10.0.0.1"));
    let _third = start(world.host(2), 2, Some("10.0.0.1"));
    let host = world.host(1);
    host.ok("echo kept | halite put model - --on 1");
    host.drop_packets("ip saddr 10.0.0.1");
    eventually(|| host.ok("halite explain 0").contains("has been unreachable for"));
    let text = host.ok("halite drain 1");
    assert!(text.contains("moved 1 regions") && text.contains("node 1 has left"), "{text}");
    assert!(second.wait().success());
    eventually(|| world.host(2).run("halite get model").stdout == b"kept\n");
}
