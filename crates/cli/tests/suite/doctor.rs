//! Findings of `halite doctor` on a real host with faulty settings.

use crate::support;

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::process::Output;

use serde_json::Value;
use support::{Process, Scratch, eventually};

/// Returns all findings; checks that the exit status reports the worst severity.
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

/// Returns the worst severity of the findings of this check.
fn severity<'f>(found: &'f [Value], check: &str) -> &'f str {
    let of_check = found.iter().filter(|finding| finding["check"] == check);
    let worst = of_check.max_by_key(|finding| {
        ["ok", "note", "warning", "error"].iter().position(|word| finding["severity"] == *word)
    });
    worst.unwrap_or_else(|| panic!("no finding about {check}"))["severity"].as_str().unwrap()
}

#[test]
fn busy_ports_and_silent_hosts_are_errors() {
    let scratch = Scratch::new("ports");
    let secret = scratch.file("secret");
    scratch.ok(&format!("secret new {}", secret.display()));
    // No other test listens at this address, so the port stays free after it is closed.
    let taken = TcpListener::bind("127.0.0.77:0").unwrap();
    let at = taken.local_addr().unwrap();
    let doctor = |flags: String| {
        findings(&scratch.run(&format!("doctor --json --secret-file {} {flags}", secret.display())))
    };
    let found = doctor(format!("--listen {at} --join {at}"));
    assert_eq!((severity(&found, "ports"), severity(&found, "join")), ("error", "error"));
    assert_eq!(severity(&found, "secret"), "ok");
    let join = |found: &[Value]| {
        let join = found.iter().find(|finding| finding["check"] == "join").expect("there is a host to join");
        join["found"].as_str().unwrap().to_owned()
    };
    let text = join(&found);
    assert!(text.contains("answers over TCP, but a temporary node did not join"), "{text}");
    let text = join(&findings(&scratch.run(&format!("doctor --json --join {at}"))));
    assert!(
        text.contains("answers over TCP; UDP") && text.contains("is not tested: give --secret-file"),
        "{text}"
    );
    assert!(
        found.iter().any(|finding| finding["check"] == "mtu"),
        "the path to the host that answers is checked"
    );
    // A network that is reserved for documentation: no host has an address in it.
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
fn open_or_short_secret_is_an_error() {
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
fn files_of_dead_nodes_are_reported() {
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
fn open_or_foreign_directory_is_an_error() {
    let scratch = Scratch::new("directory");
    std::fs::create_dir(scratch.cluster()).unwrap();
    std::fs::set_permissions(scratch.cluster(), PermissionsExt::from_mode(0o755)).unwrap();
    assert_eq!(severity(&findings(&scratch.run("doctor --json")), "directory"), "error");
    std::fs::set_permissions(scratch.cluster(), PermissionsExt::from_mode(0o700)).unwrap();
    assert_eq!(severity(&findings(&scratch.run("doctor --json")), "directory"), "ok");
    std::fs::write(scratch.cluster().join("letter"), "dear").unwrap();
    assert_eq!(severity(&findings(&scratch.run("doctor --json")), "directory"), "error");
}
