//! What `halite doctor` finds on a real host where somebody has spoilt something.

use crate::support;

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

use serde_json::Value;
use support::{Process, Scratch, eventually};

/// All findings, whose worst severity is what the exit status says.
#[track_caller]
fn findings(output: &Output) -> Vec<Value> {
    let text = String::from_utf8_lossy(&output.stdout);
    let found: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(found.len() > 12, "{output:?}");
    for finding in &found {
        let keys: Vec<&str> = finding.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(keys, ["check", "found", "remedy", "severity", "verify"]);
        let is_bad = finding["severity"] == "warning" || finding["severity"] == "error";
        assert!(!is_bad || finding["remedy"] != "" && finding["verify"] != "", "{finding}");
    }
    let has = |severity: &str| found.iter().any(|finding| finding["severity"] == severity);
    let status = if has("error") {
        4
    } else if has("warning") {
        3
    } else {
        0
    };
    assert_eq!(output.status.code(), Some(status), "{text}");
    found
}

/// What is found about one thing, by what is said.
fn severity<'f>(found: &'f [Value], check: &str) -> &'f str {
    let of_check = found.iter().filter(|finding| finding["check"] == check);
    let worst = of_check.max_by_key(|finding| {
        ["ok", "note", "warning", "error"].iter().position(|word| finding["severity"] == *word)
    });
    worst.unwrap_or_else(|| panic!("nothing of {check}"))["severity"].as_str().unwrap()
}

/// Under limits that `sh` sets first.
fn limited(scratch: &Scratch, limit: &str) -> Output {
    let program = env!("CARGO_BIN_EXE_halite");
    let line = format!("{limit}; exec {program} --dir {} doctor --json", scratch.cluster().display());
    Command::new("sh").args(["-c", &line]).output().unwrap()
}

#[test]
fn a_host_where_nobody_has_spoilt_anything_has_no_errors() {
    let scratch = Scratch::new("well");
    let found = findings(&scratch.run("doctor --json --arena 64M"));
    assert!(found.iter().all(|finding| finding["severity"] != "error"), "{found:?}");
    for check in ["kernel", "pidfd", "memfd", "descriptors", "arena", "directory", "leftovers"] {
        assert_eq!(severity(&found, check), "ok");
    }
    assert!(!scratch.cluster().exists(), "it makes nothing");
    let _up = scratch.up(2);
    let found = findings(&scratch.run("doctor --json --arena 64M"));
    assert_eq!((severity(&found, "members"), severity(&found, "directory")), ("ok", "ok"));
    // For people, the same, each with what to do.
    let output = scratch.run("doctor --arena 64M");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("ok       members: 2 nodes answer\n"), "{text}");
}

#[test]
fn ports_that_are_taken_or_foreign_and_hosts_that_do_not_answer_are_errors() {
    let scratch = Scratch::new("ports");
    let secret = scratch.file("secret");
    scratch.ok(&format!("secret new {}", secret.display()));
    // An address that no other test listens at, so that the port is free once it is closed.
    let taken = TcpListener::bind("127.0.0.77:0").unwrap();
    let at = taken.local_addr().unwrap();
    let doctor = |flags: String| {
        findings(&scratch.run(&format!("doctor --json --secret-file {} {flags}", secret.display())))
    };
    let found = doctor(format!("--listen {at} --join {at}"));
    assert_eq!((severity(&found, "ports"), severity(&found, "join")), ("error", "ok"));
    assert_eq!(severity(&found, "secret"), "ok");
    assert!(found.iter().any(|finding| finding["check"] == "mtu"), "the way to who answers is known");
    let found = doctor(format!("--metrics {at}"));
    assert_eq!(severity(&found, "ports"), "error");
    // A network for documents, of which no host has an address.
    let found = doctor("--listen 192.0.2.1:7000".to_owned());
    assert_eq!((severity(&found, "ports"), severity(&found, "address")), ("error", "error"));
    drop(taken);
    let found = doctor(format!("--listen {at} --join {at}"));
    assert_eq!((severity(&found, "ports"), severity(&found, "join")), ("ok", "error"));
    assert_eq!(severity(&doctor("--join nowhere.invalid:7000".to_owned()), "join"), "error");
    for contradiction in ["--fabric shm", "--found"] {
        let found = doctor(format!("--listen {at} {contradiction}"));
        assert_eq!(severity(&found, "hosts"), "error", "{contradiction}");
    }
}

#[test]
fn a_secret_that_others_may_read_or_that_is_too_short_is_an_error() {
    let scratch = Scratch::new("secret");
    let secret = scratch.file("secret");
    scratch.ok(&format!("secret new {}", secret.display()));
    let doctor = || findings(&scratch.run(&format!("doctor --json --secret-file {}", secret.display())));
    assert_eq!(severity(&doctor(), "secret"), "ok");
    std::fs::set_permissions(&secret, PermissionsExt::from_mode(0o644)).unwrap();
    let found = doctor();
    assert_eq!(severity(&found, "secret"), "error");
    let finding = found.iter().find(|finding| finding["check"] == "secret").unwrap();
    assert!(finding["remedy"].as_str().unwrap().starts_with("chmod 600 "), "{finding}");
    std::fs::set_permissions(&secret, PermissionsExt::from_mode(0o600)).unwrap();
    std::fs::write(&secret, "abc\n").unwrap();
    assert_eq!(severity(&doctor(), "secret"), "error");
    std::fs::remove_file(&secret).unwrap();
    assert_eq!(severity(&doctor(), "secret"), "error");
}

#[test]
fn limits_of_the_shell_are_found() {
    let scratch = Scratch::new("limits");
    assert_eq!(severity(&findings(&limited(&scratch, "ulimit -n 300")), "descriptors"), "warning");
    assert_eq!(severity(&findings(&limited(&scratch, "ulimit -n 60")), "descriptors"), "error");
    assert_eq!(severity(&findings(&limited(&scratch, "ulimit -f 1000")), "file_size"), "warning");
    assert_eq!(severity(&findings(&limited(&scratch, "ulimit -l 64")), "locked_memory"), "note");
    assert_eq!(severity(&findings(&scratch.run("doctor --json --arena 1000T")), "arena"), "error");
}

#[test]
fn what_the_dead_have_left_and_a_first_node_that_is_gone_are_found() {
    let scratch = Scratch::new("dead");
    let _up = scratch.up(2);
    Process::open(scratch.pid(1)).kill();
    eventually(|| scratch.states() == ["alive", "dead"]);
    let found = findings(&scratch.run("doctor --json"));
    assert_eq!((severity(&found, "leftovers"), severity(&found, "members")), ("warning", "warning"));
    scratch.ok("forget 1");
    let found = findings(&scratch.run("doctor --json"));
    assert_eq!((severity(&found, "leftovers"), severity(&found, "members")), ("ok", "ok"));
}

#[test]
fn where_the_first_node_is_dead_nobody_answers() {
    let scratch = Scratch::new("first");
    let _up = scratch.up(2);
    Process::open(scratch.pid(0)).kill();
    assert_eq!(severity(&findings(&scratch.run("doctor --json")), "members"), "error");
}

#[test]
fn a_directory_that_others_may_enter_or_that_holds_other_things_is_an_error() {
    let scratch = Scratch::new("directory");
    std::fs::create_dir(scratch.cluster()).unwrap();
    std::fs::set_permissions(scratch.cluster(), PermissionsExt::from_mode(0o755)).unwrap();
    assert_eq!(severity(&findings(&scratch.run("doctor --json")), "directory"), "error");
    std::fs::set_permissions(scratch.cluster(), PermissionsExt::from_mode(0o700)).unwrap();
    assert_eq!(severity(&findings(&scratch.run("doctor --json")), "directory"), "ok");
    std::fs::write(scratch.cluster().join("letter"), "dear").unwrap();
    assert_eq!(severity(&findings(&scratch.run("doctor --json")), "directory"), "error");
}
