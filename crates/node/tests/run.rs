//! Applications, as users of `halite run` see them.

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;
use support::{Running, Scratch, eventually};

/// What a run over a cluster of its own prints.
#[track_caller]
fn of_its_own(scratch: &Scratch, line: &str) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_halite"));
    command.args(line.split_whitespace()).env("TMPDIR", scratch.file("")).env_remove("HALITE_DIR");
    serde_json::from_str(&support::check_ok(line, &command.output().unwrap())).unwrap()
}

/// Two nodes, each in a process of its own.
fn up(scratch: &Scratch) -> Running {
    let line = format!("up --nodes 2 --arena 64M --parent {}", std::process::id());
    let mut up = Running::start(scratch, &line);
    while !up.line().contains("ctrl-C") {}
    up
}

/// Nothing is left of a run: no region, and no byte.
fn is_clean(scratch: &Scratch) -> bool {
    scratch.nodes().iter().all(|node| node["bytes_used"] == 0 && node["regions"] == 0)
}

#[test]
fn a_log_of_several_writers_is_the_same_for_all_readers() {
    let scratch = Scratch::new("run-log");
    let line = "run log --writers 3 --readers 2 --seconds 0.2 --size 100 --batch 8 --json";
    for (flags, fabric) in [("", "shm"), ("--nodes 3 --fabric roce", "roce")] {
        let told = of_its_own(&scratch, &format!("{line} {flags}"));
        assert_eq!(told["verified"], true, "{told}");
        assert_eq!(told["fabric"], fabric);
        let commits = told["commits"].as_u64().unwrap();
        assert!(commits > 0 && told["bytes"] == 100 * commits, "{told}");
        assert!(told["visible_p99_us"].as_f64().unwrap() > 0.0, "{told}");
    }
}

#[test]
fn a_log_without_readers_is_checked_afterwards() {
    let scratch = Scratch::new("run-log-unread");
    let told = of_its_own(&scratch, "run log --readers 0 --seconds 0.2 --json");
    assert_eq!(
        (&told["verified"], &told["visible_p99_us"]),
        (&true.into(), &serde_json::Value::Null),
        "{told}"
    );
}

#[test]
fn writers_wait_for_memory_until_readers_have_gone_on() {
    let scratch = Scratch::new("run-log-full");
    let told = of_its_own(&scratch, "run log --seconds 1 --arena 5M --size 4096 --json");
    assert_eq!(told["verified"], true, "{told}");
    assert!(told["bytes"].as_u64().unwrap() > 2 * (5 << 20), "more than fits: {told}");
}

#[test]
fn a_store_holds_what_was_set_under_each_workload() {
    let scratch = Scratch::new("run-ycsb");
    let line = "run ycsb --keys 300 --seconds 0.2 --json";
    for (flags, workload, fabric) in [
        ("--workload A --value 1000", "a", "shm"),
        ("--workload b --threads 3 --nodes 3 --fabric roce", "b", "roce"),
        ("--workload C", "c", "shm"),
    ] {
        let told = of_its_own(&scratch, &format!("{line} {flags}"));
        assert_eq!((&told["verified"], &told["workload"]), (&true.into(), &workload.into()), "{told}");
        assert_eq!(told["fabric"], fabric);
        let (reads, updates) = (told["reads"].as_u64().unwrap(), told["updates"].as_u64().unwrap());
        assert!(reads > 0 && told["operations"] == reads + updates, "{told}");
        assert_eq!(told["update_p50_us"].is_null(), workload == "c", "{told}");
        assert!(workload != "c" || updates == 0, "{told}");
    }
}

#[test]
fn a_run_over_a_cluster_leaves_it_as_it_was() {
    let scratch = Scratch::new("run-over");
    let _up = up(&scratch);
    for app in ["log", "ycsb --keys 100"] {
        let told = &scratch.json(&format!("run {app} --seconds 0.1 --json"))[0];
        assert_eq!((&told["verified"], &told["fabric"]), (&true.into(), &serde_json::Value::Null), "{told}");
        eventually(|| is_clean(&scratch));
    }
    // Somebody else's region is in the way.
    let file = scratch.write("file", b"somebody's");
    scratch.ok(&format!("put halite-run-log {}", file.display()));
    let complaint = scratch.fails("run log --seconds 0.1", 1);
    assert!(complaint.contains("cannot make the log \"halite-run-log\": "), "{complaint}");
    assert!(complaint.contains("the name is taken"), "{complaint}");
    scratch.ok("rm halite-run-log");
    assert!(is_clean(&scratch), "{:?}", scratch.nodes());
}

#[test]
fn a_run_is_over_a_cluster_that_is_named_or_runs_where_a_variable_says() {
    let scratch = Scratch::new("run-where");
    let complaint = scratch.fails("run log", 1);
    assert!(complaint.contains("node 0 does not run there; start it first"), "{complaint}");
    assert_eq!(complaint.lines().count(), 1, "{complaint}");
    let by_variable = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_halite"));
        command.args(["run", "log", "--seconds", "0.1", "--json"]);
        command.env("TMPDIR", scratch.file("")).env("HALITE_DIR", scratch.cluster());
        let told = support::check_ok("run log", &command.output().unwrap());
        serde_json::from_str::<Value>(&told).unwrap()
    };
    assert_eq!(by_variable()["fabric"], "shm", "a cluster of its own");
    let _up = up(&scratch);
    assert_eq!(by_variable()["fabric"], Value::Null, "the one that runs there");
}

/// What somebody says to a store that is served, and is told.
fn ask(address: &str, request: &str, expected: &str) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut told = vec![0; expected.len()];
    stream.read_exact(&mut told).unwrap();
    assert_eq!(String::from_utf8(told).unwrap(), expected);
}

/// Uses a store that is served, and ends it.
fn use_and_end(mut run: Running, nodes: u32, signal: Signal) {
    let told: Value = serde_json::from_str(&run.line()).unwrap();
    assert_eq!((&told["app"], &told["nodes"]), (&"kv".into(), &nodes.into()), "{told}");
    let address = told["address"].as_str().unwrap();
    ask(address, "mset a 1 b 2 c 3 d 4\r\nincr a\r\ndbsize\r\n", "+OK\r\n:2\r\n:4\r\n");
    ask(address, "mget a b c none\r\n", "*4\r\n$1\r\n2\r\n$1\r\n2\r\n$1\r\n3\r\n$-1\r\n");
    run.signal(signal);
    assert_eq!(run.wait().code(), (signal != Signal::KILL).then_some(0));
    eventually(|| TcpStream::connect(address).is_err());
}

#[test]
fn a_store_is_served_to_clients_of_redis_until_it_is_ended_and_nothing_is_left() {
    let scratch = Scratch::new("run-kv");
    let line = "run kv --listen 127.0.0.1:0 --json --arena 64M";
    for (flags, nodes) in [("", 2), ("--nodes 3 --fabric roce", 3), ("--nodes 1", 1)] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_halite"));
        command.args(format!("{line} {flags}").split_whitespace()).env_remove("HALITE_DIR");
        let run = Running::of({
            command.env("TMPDIR", scratch.file(""));
            command
        });
        use_and_end(run, nodes, Signal::TERM);
        assert_eq!(std::fs::read_dir(scratch.file("")).unwrap().count(), 0);
    }
    let _up = up(&scratch);
    for signal in [Signal::INT, Signal::KILL] {
        use_and_end(Running::start(&scratch, line), 2, signal);
        eventually(|| is_clean(&scratch));
    }
    let complaint = scratch.fails("run kv --listen nowhere", 1);
    assert!(complaint.contains("cannot listen at nowhere"), "{complaint}");
    eventually(|| is_clean(&scratch));
}

#[test]
fn nothing_is_left_of_a_run_that_is_ended() {
    let scratch = Scratch::new("run-ended");
    let _up = up(&scratch);
    // Of a log, what all readers have passed is gone again.
    for (app, region) in [("log", "halite-run-log/"), ("ycsb", "halite-run-ycsb/1/h0")] {
        for signal in [Signal::INT, Signal::KILL] {
            let mut run = Running::start(&scratch, &format!("run {app} --seconds 1000"));
            eventually(|| scratch.ok("ls").contains(region));
            run.signal(signal);
            assert!(!run.wait().success());
            eventually(|| is_clean(&scratch));
        }
    }
}

#[test]
fn what_cannot_be_run_is_refused() {
    let scratch = Scratch::new("run-refused");
    for (line, why) in [
        ("run log --size 15", "--size 15 is too little: a record has at least 16 bytes"),
        ("run log --size 2M", "--size 2097152 is too much: a record has at most 1048576 bytes"),
        ("run log --seconds 0", "not from 0.01 to 86400"),
        ("run log --writers 0", "0 is not in 1..=1024"),
        ("run log --nodes 65", "65 is not in 1..=64"),
        ("run ycsb --value 15", "--value 15 is not from 16 to 1048576"),
        ("run ycsb --nodes 62", "--nodes 62 is too many: a store has at most 61 shards"),
        ("run ycsb --keys 0", "0 is not in 1..=4294967296"),
    ] {
        let complaint = scratch.fails(line, 2);
        assert!(complaint.contains(why), "{complaint}");
    }
}

#[test]
fn a_run_of_which_a_writer_reader_or_owner_is_killed_fails_with_the_reason_and_leaves_nothing() {
    let scratch = Scratch::new("run-killed");
    let _up = up(&scratch);
    let apps = [
        ("log --writers 2 --readers 2 --seconds 1000", "halite-run-log/"),
        ("ycsb --workload a --keys 100 --seconds 1000", "halite-run-ycsb/1/h0"),
        ("kv --listen 127.0.0.1:0", "halite-run-kv/1/t0"),
    ];
    for (app, region) in apps {
        for number in 0..2 {
            let mut run = Running::start(&scratch, &format!("run {app}"));
            eventually(|| scratch.ok("ls").contains(region));
            let pid = support::children(run.pid())[number];
            let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
            rustix::process::kill_process(pid, Signal::KILL).unwrap();
            assert_eq!(run.wait().code(), Some(1), "{app}, worker {number}");
            eventually(|| is_clean(&scratch));
        }
    }
}
