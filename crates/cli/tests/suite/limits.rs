//! What the program does where the host's limits are low.

use crate::support;

use std::process::{Command, Stdio};

use halite::{AllocOptions, Config, Node, NodeId, Placement};
use support::Scratch;

/// Runs a command in a shell that has set its own limits by `ulimit` before.
#[track_caller]
fn limited(scratch: &Scratch, ulimit: &str, line: &str) -> (Option<i32>, String, String) {
    let script = format!("{ulimit} || exit 99; exec \"$@\"");
    let mut command = Command::new("sh");
    command.args(["-c", &script, "sh", env!("CARGO_BIN_EXE_halite"), "--dir"]);
    command.arg(scratch.cluster()).args(line.split_whitespace()).stdin(Stdio::null());
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn more_nodes_than_descriptors_allow_are_refused_at_once_with_the_number_that_works() {
    let scratch = Scratch::new("descriptors");
    let (status, _, complaint) = limited(&scratch, "ulimit -n 100", "up --nodes 64 --detach");
    assert_eq!(status, Some(1), "{complaint}");
    assert!(complaint.contains("hard limit here is 100"), "{complaint}");
    assert!(complaint.contains("10 nodes work"), "{complaint}");
    assert!(!scratch.cluster().exists());
}

#[test]
fn as_many_nodes_as_are_said_to_work_have_room_for_sixteen_applications() {
    let scratch = Scratch::new("room");
    let (status, _, complaint) = limited(&scratch, "ulimit -n 81", "up --nodes 5 --detach");
    assert_eq!(status, Some(1), "{complaint}");
    assert!(complaint.contains("4 nodes work"), "{complaint}");
    let (status, _, complaint) = limited(&scratch, "ulimit -n 81", "up --nodes 4 --arena 16M --detach");
    assert_eq!(status, Some(0), "{complaint}");
    let nodes: Vec<_> = (0..4).map(NodeId).collect();
    let mut applications = Vec::new();
    for index in 0..16 {
        let config = Config { dir: scratch.cluster(), arena_bytes: 0, ..Config::default() };
        let node = Node::embedded(config).unwrap_or_else(|error| panic!("application {index}: {error}"));
        applications.push(node);
    }
    for node in &applications {
        let session = node.blocking_session();
        let options = AllocOptions { populate: true, ..Default::default() };
        for on in &nodes {
            let placement = Placement::On(*on);
            let lh =
                session.alloc_with(None, 1 << 16, AllocOptions { placement, ..options.clone() }).unwrap();
            session.write(lh, 0, b"here").unwrap();
        }
    }
    drop(applications);
    scratch.ok("down");
}

#[test]
fn a_low_soft_limit_of_descriptors_is_raised_by_the_nodes_themselves() {
    let scratch = Scratch::new("soft");
    let (status, _, complaint) = limited(&scratch, "ulimit -Sn 20", "up --nodes 4 --arena 16M --detach");
    assert_eq!(status, Some(0), "{complaint}");
    assert_eq!(scratch.states(), ["alive"; 4]);
    scratch.ok("down");
}
