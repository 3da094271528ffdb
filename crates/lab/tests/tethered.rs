//! What the laboratory starts must never outlive it: not its end, not even its being killed.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

const LAB: &str = env!("CARGO_BIN_EXE_lab");

#[test]
fn a_tethered_program_dies_with_its_parent() {
    // A shell is the parent.  The program tells its pid when it is certain to run, and then waits for input that
    // never comes.
    let script = format!("exec 3<&0; {LAB} tethered --parent $$ -- sh -c 'echo $$; cat' <&3 & wait");
    let mut shell = Command::new("sh")
        .args(["-c", &script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("sh runs");
    // Kept by us: waiting for the shell would close it, and the program would end by itself.
    let _input = shell.stdin.take().expect("piped");
    let mut line = String::new();
    let mut stdout = BufReader::new(shell.stdout.take().expect("piped"));
    stdout.read_line(&mut line).expect("the program tells its pid");
    let pid = Pid::from_raw(line.trim().parse().expect("a pid")).expect("a pid is not zero");
    let program = pidfd_open(pid, PidfdFlags::empty()).expect("it runs");

    shell.kill().expect("the shell still runs");
    shell.wait().expect("the shell can be waited for");

    let limit = Timespec { tv_sec: 10, tv_nsec: 0 };
    let ended = poll(&mut [PollFd::new(&program, PollFlags::IN)], Some(&limit)).expect("poll");
    assert_eq!(ended, 1, "the program outlived its parent");
}

#[test]
fn a_program_whose_parent_is_gone_already_does_not_begin() {
    let output = Command::new(LAB)
        .args(["tethered", "--parent", "1", "--", "echo", "begun"])
        .output()
        .expect("lab runs");
    assert!(!output.status.success());
    assert!(output.stdout.is_empty());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("is gone"), "{said}");
}

#[test]
fn a_program_that_cannot_run_is_named() {
    let parent = std::process::id().to_string();
    let output = Command::new(LAB)
        .args(["tethered", "--parent", &parent, "--", "/no/such/program"])
        .output()
        .expect("lab runs");
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("/no/such/program"), "{said}");
}
