//! Clusters whose nodes communicate over UDP, from a shell.

use crate::support;

use halite::{NodeId, Permissions, Placement, blocking::Session};
use rustix::process::Signal;
use support::{Running, Scratch, bytes};

/// Starts a cluster of three nodes, each in its own process.
fn up(scratch: &Scratch, flags: &str) -> Running {
    scratch.up_with(&format!("--nodes 3 --arena 64M --fabric roce {flags}"))
}

#[test]
fn files_move_over_udp() {
    for receivers in [0, 2] {
        let scratch = Scratch::new("udp");
        let _up = up(&scratch, &format!("--receivers {receivers}"));
        for node in 0..3 {
            let tasks = std::fs::read_dir(format!("/proc/{}/task", scratch.pid(node))).unwrap();
            let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
            assert_eq!(names.filter(|name| name.starts_with("receiver-")).count(), receivers, "node {node}");
        }
        let file = scratch.write("model", &bytes(3_000_000));
        scratch.ok(&format!("put model {} --spread", file.display()));
        scratch.ok("mv model --to 2");
        let explained = scratch.ok("explain model");
        assert!(
            explained.contains("node 2: 3000032 bytes in 1 piece, from offset 0, over roce: posted"),
            "{explained}"
        );
        assert!(scratch.run("get model").stdout == bytes(3_000_000));
        scratch.ok(&format!("put 9 {}", file.display()));
        scratch.fails_with("explain 9", 1, "a region has this name: add --region");
        // A command's own connection would be new, and show a few packets.
        let explained = &scratch.json("explain 2 --json")[0];
        assert!(explained["path"]["arrived"].as_u64() > Some(3_000_000 / 4096), "{explained}");
    }
}

/// Files also go between nodes whose responders keep no state, and `explain` names the mode for each peer.
#[test]
fn files_move_over_udp_with_stateless_responders() {
    let scratch = Scratch::new("udp-stateless");
    let _up = up(&scratch, "--responder stateless");
    let mut others = [(7, "auto"), (8, "stateful")].map(|(id, mode)| {
        let mut node = Running::start(&scratch, &format!("node --id {id} --arena 64M --responder {mode}"));
        assert!(node.line().contains(&format!("node {id} ready")));
        node
    });
    let file = scratch.write("model", &bytes(3_000_000));
    scratch.ok(&format!("put model {} --spread", file.display()));
    for node in [2, 7, 8] {
        scratch.ok(&format!("mv model --to {node}"));
        assert!(scratch.run("get model").stdout == bytes(3_000_000));
    }
    for (node, mode) in [
        (2, "stateless (this node is set to stateless)"),
        (7, "stateless (this node is set to stateless)"),
        (8, "stateful (the peer is set to stateful, or its release has no other mode)"),
    ] {
        let explained = scratch.ok(&format!("explain {node}"));
        assert!(explained.contains(&format!("responder: {mode}\n")), "{explained}");
    }
    others.iter_mut().for_each(|node| node.signal(Signal::INT));
    assert!(others.iter_mut().all(|node| node.wait().success()));
}

/// Between two nodes there are as many queue pairs as the smaller `--lanes` of both, whether one session uses them or 50
/// of each node do.
#[test]
fn sessions_share_queue_pairs() {
    for (lanes, other, with_equal, with_other) in
        [(1, 4, "one lane", "2 lanes"), (4, 3, "4 lanes", "3 lanes")]
    {
        let scratch = Scratch::new("udp-lanes");
        let _up = up(&scratch, &format!("--lanes {lanes}"));
        let mut node = Running::start(&scratch, &format!("node --id 7 --arena 64M --lanes {other}"));
        assert!(node.line().contains("node 7 ready"));
        let from = [0, 7].map(|node| Session::attach_to(scratch.cluster(), NodeId(node)).unwrap());
        let queue_pairs = |from: &Session, node: u32| {
            let explained = from.explain_peer(NodeId(node)).unwrap().to_string();
            let (before, _) = explained.split_once(", which all sessions share").unwrap();
            before.rsplit("; ").next().unwrap().to_owned()
        };
        let all = || [queue_pairs(&from[0], 1), queue_pairs(&from[0], 7), queue_pairs(&from[1], 0)];
        let expected = [with_equal, with_other, with_other].map(str::to_owned);
        assert_eq!(all(), expected);
        let sessions: Vec<_> = (0..150)
            .map(|number: u64| {
                let (here, there) = [(0, 1), (0, 7), (7, 0)][number as usize % 3];
                let session = Session::attach_to(scratch.cluster(), NodeId(here)).unwrap();
                let there = Placement::On(NodeId(there));
                let lh = session.alloc(None, 8, there, Permissions::all()).unwrap();
                session.write(lh, 0, &number.to_le_bytes()).unwrap();
                (session, lh, number)
            })
            .collect();
        assert_eq!(all(), expected);
        for (session, lh, number) in sessions {
            let mut bytes = [0; 8];
            session.read(lh, 0, &mut bytes).unwrap();
            assert_eq!(u64::from_le_bytes(bytes), number);
        }
        node.signal(Signal::INT);
        assert!(node.wait().success());
    }
}

#[test]
fn node_of_another_network_is_refused() {
    let scratch = Scratch::new("udp-other");
    let _up = up(&scratch, "");
    scratch.fails_with("node --id 7 --fabric shm", 1, "it uses roce, this node uses shm");
    scratch.fails_with("node --id 7 --fabric roce --address 192.0.2.1", 1, "192.0.2.1");
    assert_eq!(scratch.states(), ["alive"; 3]);
}

#[test]
fn packets_are_captured_in_a_file() {
    let scratch = Scratch::new("udp-pcap");
    scratch.fails_with(
        "node --id 0 --fabric shm --pcap /nowhere",
        1,
        "a packet capture needs the roce network",
    );
    let _up = up(&scratch, "");
    let pcap = scratch.file("packets");
    let line = format!("node --id 7 --arena 64M --pcap {}", pcap.display());
    let mut node = Running::start(&scratch, &line);
    assert!(node.line().contains("node 7 ready"));
    let file = scratch.write("model", &bytes(1_000_000));
    scratch.ok(&format!("put model {} --node 7", file.display()));
    scratch.fails_with(
        &format!("node --id 8 --pcap {}", pcap.display()),
        1,
        &format!("cannot write packets to {}", pcap.display()),
    );
    node.signal(Signal::INT);
    assert!(node.wait().success());
    let packets = std::fs::read(pcap).unwrap();
    assert_eq!(packets[..4], 0xa1b2_3c4d_u32.to_le_bytes(), "nanosecond pcap");
    assert!(packets.len() > 1_000_000);
    let part = &bytes(1_000_000)[500..600];
    assert!(
        packets.windows(part.len()).any(|window| window == part),
        "the capture contains the bytes of the region"
    );
}
