//! Clusters whose nodes talk over UDP, as a user at a shell sees them.

use crate::support;

use rustix::process::Signal;
use support::{Process, Running, Scratch, bytes, eventually};

/// Three nodes, each in a process of its own.
fn up(scratch: &Scratch) -> Running {
    up_with(scratch, "")
}

fn up_with(scratch: &Scratch, flags: &str) -> Running {
    let line = format!("up --nodes 3 --arena 64M --fabric roce {flags} --parent {}", std::process::id());
    let mut up = Running::start(scratch, &line);
    while !up.line().contains("ctrl-C") {}
    up
}

#[test]
fn what_is_put_over_udp_is_got_back_moved_and_explained() {
    put_move_and_get("udp", 0);
}

#[test]
fn what_is_put_is_got_back_where_nodes_receive_by_threads_of_their_own() {
    put_move_and_get("udp-receivers", 2);
}

fn put_move_and_get(name: &str, receivers: usize) {
    let scratch = Scratch::new(name);
    let _up = up_with(&scratch, &format!("--receivers {receivers}"));
    for node in 0..3 {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", scratch.pid(node))).unwrap();
        let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
        assert_eq!(names.filter(|name| name.starts_with("receiver-")).count(), receivers, "node {node}");
    }
    assert!(scratch.nodes().iter().all(|row| row["provider"] == "roce"));
    let file = scratch.write("model", &bytes(3_000_000));
    scratch.ok(&format!("put model {} --spread", file.display()));
    scratch.ok("mv model --to 2");
    let explained = scratch.ok("explain model");
    assert!(
        explained.contains("node 2: 3000032 bytes in 1 piece, from offset 0, over roce: posted"),
        "{explained}"
    );
    let copy = scratch.file("copy");
    scratch.ok(&format!("get model -o {}", copy.display()));
    assert!(std::fs::read(copy).unwrap() == bytes(3_000_000));
    let explained = scratch.ok("explain 1");
    assert!(explained.contains("provider roce: accesses are posted"), "{explained}");
    assert!(explained.contains("path MTU: 4096 bytes; window: "), "{explained}");
    let explained = &scratch.json("explain 1 --json")[0];
    assert!(explained["path"]["sent"].as_u64().unwrap() > 0, "{explained}");
    assert!(explained["path"]["arrived"].as_u64().unwrap() > 0, "{explained}");
    scratch.ok("rm model");
}

#[test]
fn a_killed_node_is_dead_to_the_others_and_comes_back_as_a_new_one() {
    let scratch = Scratch::new("udp-killed");
    let _up = up(&scratch);
    let file = scratch.write("model", &bytes(100_000));
    scratch.ok(&format!("put model {} --node 1", file.display()));
    Process::open(scratch.pid(1)).kill();
    eventually(|| scratch.states() == ["alive", "dead", "alive"]);
    // On its own host the end of its process is seen, as over shared memory.
    let complaint = scratch.fails("get model", 1);
    assert!(complaint.contains("lost with node 1 (exited "), "{complaint}");
    scratch.ok(&format!("put other {} --node 2", file.display()));
    let mut back = Running::start(&scratch, "node --id 1 --arena 64M");
    assert!(back.line().contains("node 1 ready"));
    eventually(|| scratch.states() == ["alive"; 3]);
    assert_eq!(scratch.nodes()[1]["provider"], "roce", "it takes the network of the cluster");
    back.signal(Signal::INT);
    assert!(back.wait().success());
}

#[test]
fn a_node_of_another_network_is_refused_with_both_names() {
    let scratch = Scratch::new("udp-other");
    let _up = up(&scratch);
    let complaint = scratch.fails("node --id 7 --fabric shm", 1);
    assert!(complaint.contains("it uses roce, and this node shm"), "{complaint}");
    let complaint = scratch.fails("node --id 7 --fabric roce --address 192.0.2.1", 1);
    assert!(complaint.contains("192.0.2.1"), "{complaint}");
    assert_eq!(scratch.states(), ["alive"; 3]);
}

#[test]
fn nodes_with_both_networks_share_memory_and_reach_one_with_udp_alone_by_that() {
    let scratch = Scratch::new("udp-both");
    let line = format!("up --nodes 2 --arena 64M --fabric shm,roce --parent {}", std::process::id());
    let mut both = Running::start(&scratch, &line);
    while !both.line().contains("ctrl-C") {}
    let mut third = Running::start(&scratch, "node --id 2 --arena 64M --fabric roce");
    assert!(third.line().contains("ready"));
    let file = scratch.write("model", &bytes(100_000));
    for (node, network) in [(1, "shm"), (2, "roce")] {
        scratch.ok(&format!("put on-{node} {} --node {node}", file.display()));
        // A command is a node for a moment, with the networks of the first one.
        let explained = scratch.ok(&format!("explain {node}"));
        assert!(explained.contains(&format!("provider {network}:")), "{explained}");
    }
    third.signal(Signal::INT);
    assert!(third.wait().success());
    eventually(|| scratch.states() == ["alive", "alive", "left"]);
}

#[test]
fn a_node_writes_its_packets_to_a_file() {
    let scratch = Scratch::new("udp-pcap");
    let _up = up(&scratch);
    let pcap = scratch.file("packets");
    let line = format!("node --id 7 --arena 64M --pcap {}", pcap.display());
    let mut node = Running::start(&scratch, &line);
    assert!(node.line().contains("node 7 ready"));
    let file = scratch.write("model", &bytes(1_000_000));
    scratch.ok(&format!("put model {} --node 7", file.display()));
    let complaint = scratch.fails(&format!("node --id 8 --pcap {}", pcap.display()), 1);
    assert!(complaint.contains(&format!("cannot write packets to {}", pcap.display())), "{complaint}");
    node.signal(Signal::INT);
    assert!(node.wait().success());
    let packets = std::fs::read(pcap).unwrap();
    assert_eq!(packets[..4], 0xa1b2_3c4d_u32.to_le_bytes(), "nanosecond pcap");
    assert!(packets.len() > 1_000_000);
    let part = &bytes(1_000_000)[500..600];
    assert!(packets.windows(part.len()).any(|window| window == part), "what was put is among them");
}

#[test]
fn a_node_without_packets_says_so() {
    let scratch = Scratch::new("shm-pcap");
    let file = scratch.file("packets");
    let complaint = scratch.fails(&format!("node --id 0 --fabric shm --pcap {}", file.display()), 1);
    assert!(complaint.contains("only nodes that use roce have packets"), "{complaint}");
    assert!(!file.exists());
}
