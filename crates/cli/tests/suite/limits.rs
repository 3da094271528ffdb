//! Behaviour of the program where the limits of the host are low.

use crate::support;

use std::process::{Command, Stdio};

use support::Scratch;

/// Runs a command in a shell that has first lowered its limits by `ulimit`.
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
fn too_many_nodes_are_refused_with_a_working_number() {
    let scratch = Scratch::new("descriptors");
    let (status, _, complaint) = limited(&scratch, "ulimit -n 100", "up --nodes 64 --detach");
    assert_eq!(status, Some(1), "{complaint}");
    assert!(complaint.contains("hard limit here is 100"), "{complaint}");
    assert!(complaint.contains("10 nodes work"), "{complaint}");
    assert!(!scratch.cluster().exists());
}

#[test]
fn nodes_raise_a_low_soft_limit_of_descriptors() {
    let scratch = Scratch::new("soft");
    let (status, _, complaint) = limited(&scratch, "ulimit -Sn 20", "up --nodes 4 --arena 16M --detach");
    assert_eq!(status, Some(0), "{complaint}");
    assert_eq!(scratch.states(), ["alive"; 4]);
    scratch.ok("down");
}
