//! Start, status and end of a cluster, from a shell.

use crate::support;

use std::os::unix::fs::MetadataExt;
use std::process::Stdio;

use rustix::process::Signal;
use support::{MARKER, Process, Running, Scratch};

#[test]
fn detached_cluster_runs_until_down() {
    let scratch = Scratch::new("detached");
    let printed = scratch.ok("up --nodes 3 --arena 64M --detach");
    assert!(printed.contains("halite down"), "{printed}");
    assert_eq!(scratch.states(), ["alive"; 3]);
    let processes: Vec<Process> = (0..3).map(|node| Process::open(scratch.pid(node))).collect();
    let printed = scratch.ok("down");
    assert_eq!(printed.lines().filter(|line| line.ends_with("stopped")).count(), 3, "{printed}");
    processes.iter().for_each(Process::await_end);
    assert_eq!(scratch.entries(), [MARKER, "logs"]);
    let logs = || std::fs::read_dir(scratch.cluster().join("logs")).unwrap().count();
    assert_eq!(logs(), 3);
    scratch.fails_with("status", 1, "halite up");
    scratch.ok("down");
    // The logs of the next cluster replace them.
    scratch.ok("up --nodes 1 --arena 64M --detach");
    assert_eq!(logs(), 1);
}

#[test]
fn one_of_many_concurrent_ups_succeeds() {
    let scratch = Scratch::new("at-once");
    for _ in 0..2 {
        let up = || scratch.command("up --nodes 2 --arena 64M --detach");
        let started: Vec<_> =
            (0..6).map(|_| up().stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()).collect();
        let outputs: Vec<_> = started.into_iter().map(|up| up.wait_with_output().unwrap()).collect();
        let (done, refused): (Vec<_>, Vec<_>) = outputs.iter().partition(|output| output.status.success());
        assert_eq!(done.len(), 1);
        for output in refused {
            let complaint = String::from_utf8_lossy(&output.stderr);
            let is_expected =
                complaint.contains("is starting a cluster") || complaint.contains("is running in");
            assert!(is_expected, "{complaint}");
        }
        for node in [0, 1] {
            let stderr = std::fs::metadata(format!("/proc/{}/fd/2", scratch.pid(node))).unwrap();
            let log = std::fs::metadata(scratch.cluster().join(format!("logs/node-{node}.log"))).unwrap();
            assert_eq!(stderr.ino(), log.ino(), "node {node} writes to its log");
        }
        scratch.ok("down");
    }
}

#[test]
fn ctrl_c_stops_a_cluster_in_the_foreground() {
    let scratch = Scratch::new("ctrl-c");
    let mut up = scratch.up(2);
    let node = Process::open(scratch.pid(1));
    up.signal(Signal::INT);
    assert!(up.wait().success());
    node.await_end();
    assert_eq!(scratch.entries(), [MARKER]);
}

#[test]
fn killed_up_leaves_no_process() {
    let scratch = Scratch::new("killed");
    let mut up = scratch.up(2);
    let nodes = [0, 1].map(|node| Process::open(scratch.pid(node)));
    up.signal(Signal::KILL);
    up.wait();
    nodes.iter().for_each(Process::await_end);
    assert_eq!(scratch.states(), ["dead"; 2]);
    let _up = scratch.up(1);
    assert_eq!(scratch.states(), ["alive"]);
}

#[test]
fn status_works_without_node_0() {
    let scratch = Scratch::new("first");
    let _up = scratch.up(2);
    Process::open(scratch.pid(0)).kill();
    let output = scratch.run("status --json");
    assert!(String::from_utf8_lossy(&output.stderr).contains("node 0 is not running"));
    assert_eq!(scratch.states(), ["dead", "alive"]);
    let complaint = scratch.fails("ls", 1);
    assert!(complaint.contains("node 0") && complaint.contains("halite node --id 0 --dir"), "{complaint}");
    assert!(!complaint.contains("halite up"), "{complaint}");
}

#[test]
fn down_all_ends_applications() {
    let scratch = Scratch::new("applications");
    scratch.ok("up --nodes 2 --arena 64M --detach");
    let text = scratch.write("text", "salt\n".repeat(1 << 20).as_bytes());
    scratch.ok(&format!("put region {}", text.display()));
    // The test does not read the output, so the application blocks with most of its bytes unwritten.
    let mut application = Running::start(&scratch, "--embed get region");
    assert_eq!(application.line(), "salt\n");

    let output = scratch.run("down");
    let notice = String::from_utf8_lossy(&output.stderr);
    let expected = format!("1 application is still joined: process {}", application.pid());
    assert!(output.status.success() && notice.contains(&expected), "{notice}");
    assert_eq!(String::from_utf8_lossy(&output.stdout).matches("stopped").count(), 2);
    assert_eq!(scratch.entries().iter().filter(|name| name.ends_with("1000.lock")).count(), 1);
    scratch.fails_with("up --nodes 1", 1, "down --all");

    scratch.ok("down --all");
    application.wait();
    assert_eq!(scratch.entries(), [MARKER, "logs"]);
}

#[test]
fn second_cluster_in_a_directory_is_refused() {
    let scratch = Scratch::new("second");
    let _up = scratch.up(1);
    let complaint = scratch.fails("up --nodes 1", 1);
    assert!(complaint.contains("running") && complaint.contains("halite down"), "{complaint}");
    scratch.fails_with("node --id 0", 1, "choose another number or stop it");
    assert_eq!(scratch.states(), ["alive"]);
}

#[test]
fn up_reports_a_failed_node_once() {
    let scratch = Scratch::new("reason");
    // No host has this address, which is reserved for documentation.
    for line in ["up --nodes 1", "up --nodes 1 --detach"] {
        let complaint = scratch.fails(&format!("{line} --fabric roce --address 192.0.2.7"), 1);
        assert!(
            complaint.contains("node 0 did not start: ") && complaint.contains("Cannot assign requested"),
            "{complaint}"
        );
        let dir = scratch.cluster();
        let (times, lines) = (complaint.matches(dir.to_str().unwrap()).count(), complaint.lines().count());
        assert_eq!((times, lines), (1, 1), "{complaint}");
    }
}

#[test]
fn logs_have_time_and_level() {
    let scratch = Scratch::new("told");
    scratch.ok("up --nodes 1 --arena 64M --detach");
    let log = std::fs::read_to_string(scratch.cluster().join("logs/node-0.log")).unwrap();
    let line = log.lines().find(|line| line.contains("node 0 has joined")).expect("it is logged by default");
    let (time, rest) = line.split_once(' ').unwrap();
    assert!(time.len() == "2026-01-31T12:00:00.000+00:00".len() && time.as_bytes()[10] == b'T', "{line}");
    assert!(rest.trim_start().starts_with("INFO "), "{line}");

    let text = |line: &str| String::from_utf8(scratch.run(line).stderr).unwrap();
    assert_eq!(text("ls"), "");
    assert!(text("ls -v").contains(" INFO attached in "));
    assert!(text("--embed ls -v").contains(" INFO node 1000 has joined"));
    let log = std::fs::read_to_string(scratch.cluster().join("logs/node-0.log")).unwrap();
    assert!(!log.contains("node 1000"), "commands do not make logs grow: {log}");
    let mut command = scratch.command("ls");
    let output = command.env("HALITE_LOG", "halite=info").output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains(" INFO "), "{output:?}");
    scratch.fails_with("ls --log halite=much", 2, "halite=much");
}
