//! What systemd hears of a node, and whether its unit is one.

use crate::support;

use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use support::{Running, Scratch};

/// The next thing that is said, whole.
fn heard(socket: &UnixDatagram) -> String {
    let mut bytes = [0; 4096];
    let len = socket.recv(&mut bytes).expect("the node says something");
    String::from_utf8(bytes[..len].to_vec()).unwrap()
}

#[test]
fn a_supervisor_hears_that_a_node_is_ready_gets_on_and_ends() {
    let scratch = Scratch::new("supervisor");
    let path = scratch.file("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let line = format!("node --id 0 --arena 64M --parent {}", std::process::id());
    let mut command = scratch.command(&line);
    command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "40000").env_remove("WATCHDOG_PID");
    let mut node = Running::of(command);
    let ready = node.line();
    assert_eq!(heard(&socket), format!("READY=1\nSTATUS={ready}"));
    for _ in 0..3 {
        assert_eq!(heard(&socket), "WATCHDOG=1\n");
    }
    // One that stands still says nothing.
    node.signal(Signal::STOP);
    socket.set_nonblocking(true).unwrap();
    while socket.recv(&mut [0; 64]).is_ok() {}
    socket.set_nonblocking(false).unwrap();
    node.signal(Signal::CONT);
    assert_eq!(heard(&socket), "WATCHDOG=1\n");
    node.signal(Signal::TERM);
    let last = std::iter::repeat_with(|| heard(&socket)).find(|said| said != "WATCHDOG=1\n");
    assert_eq!(last.as_deref(), Some("STOPPING=1\n"));
    assert!(node.wait().success());
}

#[test]
fn without_a_supervisor_nobody_is_told_and_one_that_is_gone_is_no_reason_to_fail() {
    let scratch = Scratch::new("nobody");
    let line = format!("node --id 0 --arena 64M --parent {}", std::process::id());
    let mut command = scratch.command(&line);
    command.env("NOTIFY_SOCKET", scratch.file("gone"));
    let mut node = Running::of(command);
    assert!(node.line().starts_with("node 0 ready"));
    node.signal(Signal::TERM);
    assert!(node.wait().success());
}

#[test]
fn the_unit_is_one_that_systemd_takes() {
    let scratch = Scratch::new("unit");
    let text = include_str!("../../../../docs/halite-node.service");
    assert!(text.contains("\nType=notify\n") && text.contains("\nWatchdogSec="));
    // What is installed is where the unit looks for it.
    let text = text.replace("/usr/local/bin/halite", env!("CARGO_BIN_EXE_halite"));
    let unit = scratch.write("halite-node.service", text.as_bytes());
    let Ok(verified) = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&unit).output()
    else {
        eprintln!("skipped: systemd-analyze is not installed");
        return;
    };
    let complaints = String::from_utf8_lossy(&verified.stderr).into_owned();
    let of_ours: Vec<&str> = complaints.lines().filter(|line| line.contains("halite-node")).collect();
    assert!(of_ours.is_empty(), "{complaints}");
    // Exposure goes from 0 to 100; those before 252 have no such look at a file.
    let mut look = Command::new("systemd-analyze");
    let look = look.args(["security", "--offline=true", "--threshold=40"]).arg(&unit).output().unwrap();
    let said = String::from_utf8_lossy(&look.stderr).into_owned() + &String::from_utf8_lossy(&look.stdout);
    assert!(look.status.success() || said.contains("unrecognized option"), "{said}");
}
