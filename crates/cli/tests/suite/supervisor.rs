//! Messages of a node to systemd, and the validity of its unit file.

use crate::support;

use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use support::{Running, Scratch};

/// Returns the next message.
fn receive(socket: &UnixDatagram) -> String {
    let mut bytes = [0; 4096];
    let len = socket.recv(&mut bytes).expect("the node sends a message");
    String::from_utf8(bytes[..len].to_vec()).unwrap()
}

#[test]
fn supervisor_gets_ready_watchdog_and_stopping() {
    let scratch = Scratch::new("supervisor");
    let path = scratch.file("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let line = format!("node --id 0 --arena 64M --parent {}", std::process::id());
    let mut command = scratch.command(&line);
    command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "40000").env_remove("WATCHDOG_PID");
    let mut node = Running::of(command);
    let ready = node.line();
    assert_eq!(receive(&socket), format!("READY=1\nSTATUS={ready}"));
    for _ in 0..3 {
        assert_eq!(receive(&socket), "WATCHDOG=1\n");
    }
    // A stopped node sends no watchdog message.
    node.signal(Signal::STOP);
    socket.set_nonblocking(true).unwrap();
    while socket.recv(&mut [0; 64]).is_ok() {}
    socket.set_nonblocking(false).unwrap();
    node.signal(Signal::CONT);
    assert_eq!(receive(&socket), "WATCHDOG=1\n");
    node.signal(Signal::TERM);
    let last = std::iter::repeat_with(|| receive(&socket)).find(|text| text != "WATCHDOG=1\n");
    assert_eq!(last.as_deref(), Some("STOPPING=1\n"));
    assert!(node.wait().success());
}

/// Expects that the other nodes know of a node's end before systemd starts the next incarnation.
#[test]
fn systemd_restarts_a_node_after_its_lease() {
    let text = include_str!("../../../../docs/halite-node.service");
    let seconds = text.lines().find_map(|line| line.strip_prefix("RestartSec=")).expect("the unit sets it");
    let pause = Duration::from_secs(seconds.parse().expect("it is a number of seconds"));
    assert!(pause > halite::Config::default().lease, "RestartSec={seconds}");
}

#[test]
fn systemd_accepts_the_unit() {
    let scratch = Scratch::new("unit");
    let text = include_str!("../../../../docs/halite-node.service");
    assert!(text.contains("\nType=notify\n") && text.contains("\nWatchdogSec="));
    // The files are installed where the unit expects them.
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
}
