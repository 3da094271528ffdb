//! What the laboratory starts must never outlive it: not its end, not even its being killed.

use crate::process;

use std::process::Command;

use process::{Process, Running, eventually};
use rustix::pipe::PipeFlags;

const BENCH: &str = env!("CARGO_BIN_EXE_halite-bench");

#[test]
fn a_tethered_program_dies_with_its_parent() {
    // A shell is the parent.  The program tells its pid when it is certain to run, and then waits for input that
    // never comes.
    let script = format!("exec 3<&0; {BENCH} tethered --parent $$ -- sh -c 'echo $$; cat' <&3 & wait");
    let mut command = Command::new("sh");
    // Kept by us, or the program would end by itself.
    let (input, _open) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).expect("a pipe");
    command.args(["-c", &script]).stdin(input);
    let mut shell = Running::of(command);
    let program = Process::open(shell.line().trim().parse().expect("a pid"));
    shell.kill();
    eventually(|| !program.lives());
}

#[test]
fn a_program_whose_parent_is_gone_already_does_not_begin() {
    let output = Command::new(BENCH)
        .args(["tethered", "--parent", "1", "--", "echo", "begun"])
        .output()
        .expect("halite-bench runs");
    assert!(!output.status.success());
    assert!(output.stdout.is_empty());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("is gone"), "{said}");
}

#[test]
fn a_program_that_cannot_run_is_named() {
    let parent = std::process::id().to_string();
    let output = Command::new(BENCH)
        .args(["tethered", "--parent", &parent, "--", "/no/such/program"])
        .output()
        .expect("halite-bench runs");
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("/no/such/program"), "{said}");
}
