//! A program that `halite-bench` starts ends when `halite-bench` ends, even if `halite-bench` is killed.

use crate::process;

use std::process::Command;

use process::{Process, Running, eventually};
use rustix::pipe::PipeFlags;

const BENCH: &str = env!("CARGO_BIN_EXE_halite-bench");

#[test]
fn a_tethered_program_dies_with_its_parent() {
    // The parent is a shell. The program prints its pid once it runs, and then blocks on its input.
    let script = format!("exec 3<&0; {BENCH} tethered --parent $$ -- sh -c 'echo $$; cat' <&3 & wait");
    let mut command = Command::new("sh");
    // This process keeps the other end of the pipe open, or the program would end by itself.
    let (input, _open) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).expect("a pipe is created");
    command.args(["-c", &script]).stdin(input);
    let mut shell = Running::of(command);
    let program = Process::open(shell.line().trim().parse().expect("the line is a pid"));
    shell.kill();
    eventually(|| !program.lives());
}

#[test]
fn a_program_without_its_parent_is_not_executed() {
    let output = Command::new(BENCH)
        .args(["tethered", "--parent", "1", "--", "echo", "begun"])
        .output()
        .expect("halite-bench runs");
    assert!(!output.status.success());
    assert!(output.stdout.is_empty());
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("has ended"), "{stderr}");
}

#[test]
fn the_error_names_a_program_that_cannot_run() {
    let parent = std::process::id().to_string();
    let output = Command::new(BENCH)
        .args(["tethered", "--parent", &parent, "--", "/no/such/program"])
        .output()
        .expect("halite-bench runs");
    assert!(!output.status.success());
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("/no/such/program"), "{stderr}");
}
