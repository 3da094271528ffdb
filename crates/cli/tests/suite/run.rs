//! Applications, as users of `halite run` see them.

use crate::support;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;
use support::{Process, Running, Scratch, eventually};

use crate::attach::as_user;

/// Returns a command that uses a private cluster.
fn private(scratch: &Scratch, line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_halite"));
    command.args(line.split_whitespace()).env("TMPDIR", scratch.file("")).env_remove("HALITE_DIR");
    command
}

/// Returns the JSON output of a run on a private cluster.
#[track_caller]
fn run_private(scratch: &Scratch, line: &str) -> Value {
    serde_json::from_str(&support::check_ok(line, &private(scratch, line).output().unwrap())).unwrap()
}

/// Returns true if a run has left no region and no allocated bytes.
fn is_clean(scratch: &Scratch) -> bool {
    scratch.nodes().iter().all(|node| node["bytes_used"] == 0 && node["regions"] == 0)
}

#[test]
fn log_is_equal_for_all_readers() {
    let scratch = Scratch::new("run-log");
    for (flags, fabric) in [("", "shm"), ("--nodes 3 --fabric roce", "roce")] {
        // A slow machine needs a longer run to commit anything.
        let run = |seconds| {
            let line = "run log --writers 3 --readers 2 --size 100 --batch 8 --json";
            run_private(&scratch, &format!("{line} --seconds {seconds} {flags}"))
        };
        let result = ["0.2", "2", "20"].into_iter().map(run).find(|result| result["commits"] != 0);
        let result = result.expect("the run commits records");
        assert_eq!(result["verified"], true, "{result}");
        assert_eq!(result["fabric"], fabric);
        let commits = result["commits"].as_u64().unwrap();
        assert!(commits > 0 && result["bytes"] == 100 * commits, "{result}");
    }
}

#[test]
fn ycsb_verifies_each_workload() {
    let scratch = Scratch::new("run-ycsb");
    for (flags, workload, fabric) in [
        ("--workload A --value 1000", "a", "shm"),
        ("--workload b --threads 3 --nodes 3 --fabric roce", "b", "roce"),
        ("--workload C", "c", "shm"),
    ] {
        // A slow machine needs a longer run to do some operations of each kind.
        let run = |seconds| {
            run_private(&scratch, &format!("run ycsb --keys 300 --seconds {seconds} --json {flags}"))
        };
        let has_all = |result: &Value| result["reads"] != 0 && (result["updates"] != 0 || workload == "c");
        let result = ["0.2", "2", "20"]
            .into_iter()
            .map(run)
            .find(has_all)
            .expect("the run does operations of each kind");
        assert_eq!((&result["verified"], &result["workload"]), (&true.into(), &workload.into()), "{result}");
        assert_eq!(result["fabric"], fabric);
        let (reads, updates) = (result["reads"].as_u64().unwrap(), result["updates"].as_u64().unwrap());
        assert!(result["operations"] == reads + updates && (workload != "c" || updates == 0), "{result}");
    }
}

#[test]
fn pagerank_and_components_are_correct() {
    let scratch = Scratch::new("run-graph");
    // A star, whose ranks are known, and a pair.
    let star = scratch.write("star", b"# who cites the survey\n1 7\n2 7\n3 7\n7 1\n20 30\n30 20\n");
    for flags in ["", "--nodes 3 --fabric roce"] {
        let line =
            format!("run pagerank {} --tolerance 1e-14 --iterations 1000 --json {flags}", star.display());
        let result = run_private(&scratch, &line);
        assert_eq!(
            (&result["verified"], &result["vertices"], &result["edges"]),
            (&true.into(), &6.into(), &6.into())
        );
        let (damping, base) = (0.85, 0.15 / 6.0);
        let centre = base * (1.0 + 3.0 * damping) / (1.0 - damping * damping);
        let top = &result["top"];
        assert_eq!((&top[0][0], &top[1][0]), (&7.into(), &1.into()), "{result}");
        let rank = top[0][1].as_f64().unwrap();
        assert!((rank - centre).abs() < 1e-9 * centre, "{rank}, not {centre}");
        let result = run_private(&scratch, &format!("run components {} --json {flags}", star.display()));
        assert_eq!(
            (&result["verified"], &result["components"], &result["edges"]),
            (&true.into(), &2.into(), &6.into())
        );
        assert_eq!(result["top"], serde_json::json!([[1, 4], [20, 2]]));
    }
}

/// Returns false, and tells why, where the system does not report page faults to this user.
fn can_share_pages(scratch: &Scratch) -> bool {
    let output = private(scratch, "run dsm --rounds 1").output().unwrap();
    let complaint = String::from_utf8(output.stderr).unwrap();
    let refused = complaint.lines().find(|line| line.contains("page faults"));
    refused.inspect(|why| eprintln!("skipped: {why}"));
    refused.is_none()
}

#[test]
fn dsm_graphs_have_equal_results() {
    let scratch = Scratch::new("run-graph-dsm");
    if !can_share_pages(&scratch) {
        return;
    }
    for flags in ["", "--nodes 3 --fabric roce"] {
        let line =
            format!("run pagerank --kronecker 9 --iterations 15 --tolerance 0 --top 600 --json {flags}");
        let (ordinary, shared) =
            (run_private(&scratch, &line), run_private(&scratch, &format!("{line} --dsm")));
        assert_eq!((&shared["verified"], &shared["dsm"]), (&true.into(), &true.into()), "{shared}");
        assert_eq!(ordinary["dsm"], false);
        let ranks = |result: &Value| -> BTreeMap<u64, f64> {
            let top = result["top"].as_array().unwrap().iter();
            top.map(|pair| (pair[0].as_u64().unwrap(), pair[1].as_f64().unwrap())).collect()
        };
        let (ordinary, shared) = (ranks(&ordinary), ranks(&shared));
        assert!(!ordinary.is_empty() && shared.keys().eq(ordinary.keys()));
        for (id, rank) in shared {
            assert!(
                (rank - ordinary[&id]).abs() < 1e-9 * ordinary[&id],
                "{id}: {rank}, not {}",
                ordinary[&id]
            );
        }
        let line = format!("run components --kronecker 9 --json {flags}");
        let (ordinary, shared) =
            (run_private(&scratch, &line), run_private(&scratch, &format!("{line} --dsm")));
        assert_eq!((&shared["top"], &shared["verified"]), (&ordinary["top"], &true.into()), "{shared}");
    }
}

#[test]
fn dsm_loses_no_update() {
    let scratch = Scratch::new("run-dsm");
    if !can_share_pages(&scratch) {
        return;
    }
    for flags in ["--nodes 1 --fabric shm", "--nodes 3 --fabric shm", "--fabric roce"] {
        let result = run_private(&scratch, &format!("run dsm --pages 200 --rounds 50 --json {flags}"));
        assert_eq!((&result["verified"], &result["pages"]), (&true.into(), &200.into()), "{result}");
        assert_eq!(result["sections"], 100 * result["nodes"].as_u64().unwrap(), "{result}");
        assert!(result["latencies_us"]["read_random"]["samples"].as_u64() > Some(0), "{result}");
        assert_eq!(result["published_us"]["commit"], 74.3);
    }
}

#[test]
fn run_leaves_a_cluster_unchanged() {
    let scratch = Scratch::new("run-over");
    let _up = scratch.up(2);
    for app in ["log", "ycsb --keys 100"] {
        let result = &scratch.json(&format!("run {app} --seconds 0.1 --json"))[0];
        assert_eq!(
            (&result["verified"], &result["fabric"]),
            (&true.into(), &serde_json::Value::Null),
            "{result}"
        );
        eventually(|| is_clean(&scratch));
    }
    let result = &scratch.json("run pagerank --kronecker 8 --json")[0];
    assert_eq!(result["verified"], true, "{result}");
    eventually(|| is_clean(&scratch));
    let wrong = scratch.write("wrong", b"1 2\n2 3 4\n5\n");
    scratch.fails_with(
        &format!("run pagerank {}", wrong.display()),
        1,
        "wrong:3: expected two vertex ids from 0 to 2^64-1, found \"5\"",
    );
    eventually(|| is_clean(&scratch));
    // A region with the same name exists already; the run must not change it.
    let file = scratch.write("file", b"foreign");
    for (name, app) in [
        ("mine", "log --name mine"),
        ("mine/0/t1", "ycsb --keys 100 --name mine"),
        ("mine/1", "kv --listen 127.0.0.1:0 --name mine"),
    ] {
        scratch.ok(&format!("put {name} {}", file.display()));
        let seconds = if app.starts_with("kv") { "" } else { " --seconds 0.1" };
        scratch.fails_with(
            &format!("run {app}{seconds}"),
            1,
            &format!("the name is taken: the region {name:?} exists already"),
        );
        assert_eq!(scratch.ok(&format!("get {name}")), "foreign");
        scratch.ok(&format!("rm {name}"));
    }
    eventually(|| is_clean(&scratch));
}

#[test]
fn run_uses_the_named_or_a_private_cluster() {
    let scratch = Scratch::new("run-where");
    let complaint = scratch.fails("run log", 1);
    assert!(complaint.contains("node 0 is not running; start it first"), "{complaint}");
    assert_eq!(complaint.lines().count(), 1, "{complaint}");
    let by_variable = || {
        let mut command = private(&scratch, "run log --seconds 0.1 --json");
        command.env("HALITE_DIR", scratch.cluster());
        let result = support::check_ok("run log", &command.output().unwrap());
        serde_json::from_str::<Value>(&result).unwrap()
    };
    assert_eq!(by_variable()["fabric"], "shm", "a private cluster");
    let _up = scratch.up(2);
    assert_eq!(by_variable()["fabric"], Value::Null, "the running cluster");
}

/// Sends a request to a served store, and checks the reply.
fn check_reply(address: &str, request: &str, expected: &str) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut result = vec![0; expected.len()];
    stream.read_exact(&mut result).unwrap();
    assert_eq!(String::from_utf8(result).unwrap(), expected);
}

/// Uses a served store, then ends it with a signal.
fn use_and_stop(mut run: Running, nodes: u32, signal: Signal) {
    let result: Value = serde_json::from_str(&run.line()).unwrap();
    assert_eq!((&result["app"], &result["nodes"]), (&"kv".into(), &nodes.into()), "{result}");
    let address = result["address"].as_str().unwrap();
    check_reply(address, "mset a 1 b 2 c 3 d 4\r\nincr a\r\ndbsize\r\n", "+OK\r\n:2\r\n:4\r\n");
    check_reply(address, "mget a b c none\r\n", "*4\r\n$1\r\n2\r\n$1\r\n2\r\n$1\r\n3\r\n$-1\r\n");
    run.signal(signal);
    assert_eq!(run.wait().code(), (signal != Signal::KILL).then_some(0));
    eventually(|| TcpStream::connect(address).is_err());
}

#[test]
fn stopped_store_leaves_nothing() {
    let scratch = Scratch::new("run-kv");
    let line = "run kv --listen 127.0.0.1:0 --json";
    for (flags, nodes) in [("", 2), ("--nodes 3 --fabric roce", 3), ("--nodes 1", 1)] {
        let run = Running::of(private(&scratch, &format!("{line} --arena 64M {flags}")));
        use_and_stop(run, nodes, Signal::TERM);
        assert_eq!(std::fs::read_dir(scratch.file("")).unwrap().count(), 0);
    }
    let _up = scratch.up(2);
    for signal in [Signal::INT, Signal::KILL] {
        use_and_stop(Running::start(&scratch, line), 2, signal);
        eventually(|| is_clean(&scratch));
    }
    scratch.fails_with("run kv --listen nowhere", 1, "cannot listen at nowhere");
    eventually(|| is_clean(&scratch));
}

/// A shard that does not answer delays the end, so users ask again.
#[test]
fn store_ended_by_a_second_signal_leaves_nothing() {
    let scratch = Scratch::new("run-kv-twice");
    let mut run = Running::of(private(&scratch, "run kv --listen 127.0.0.1:0 --json --arena 64M"));
    run.line();
    Process::open(support::children(run.pid())[1]).stop();
    let process = Process::open(run.pid());
    eventually(|| {
        run.signal(Signal::TERM);
        !process.lives()
    });
    run.wait();
    assert_eq!(std::fs::read_dir(scratch.file("")).unwrap().count(), 0);
}

#[test]
#[ignore = "slow: .ci/deep slow"]
fn log_reports_disconnected_clients() {
    let scratch = Scratch::new("run-kv-log");
    let log = scratch.write("log", b"");
    let mut command = private(&scratch, "run kv --listen 127.0.0.1:0 --json --arena 64M");
    command.stderr(File::create(&log).unwrap());
    let mut run = Running::of(command);
    let result: Value = serde_json::from_str(&run.line()).unwrap();
    let mut stream = TcpStream::connect(result["address"].as_str().unwrap()).unwrap();
    // The client sends requests without end, and reads no reply.
    let echo = format!("*2\r\n$4\r\necho\r\n$1000000\r\n{}\r\n", "x".repeat(1_000_000));
    while stream.write_all(echo.as_bytes()).is_ok() {}
    let log = std::fs::read_to_string(log).unwrap();
    assert!(log.contains("is disconnected: it has"), "{log}");
    run.signal(Signal::TERM);
    assert!(run.wait().success());
}

/// The processes of a run share the end of one log, also if a process writes on behalf of one that it kills.
#[test]
#[ignore = "slow: .ci/deep slow"]
fn log_lines_are_whole_after_a_kill() {
    let scratch = Scratch::new("run-kv-lines");
    let log = scratch.write("log", b"");
    let mut command = private(&scratch, "run kv --listen 127.0.0.1:0 --json --arena 64M");
    command.stderr(File::create(&log).unwrap());
    let mut run = Running::of(command);
    run.line();
    Process::open(support::children(run.pid())[1]).stop();
    let text = || std::fs::read_to_string(&log).unwrap();
    eventually(|| text().contains("takes its place, without its keys\n"));
    let text = text();
    let warned = |line: &str| line.starts_with("halite: this process was stopped or silent for ");
    let warning = text.lines().find(|line| warned(line)).unwrap_or_else(|| panic!("{text}"));
    assert!(warning.ends_with("(see Config::fence)"), "{text}");
    run.signal(Signal::TERM);
    assert!(run.wait().success());
}

#[test]
fn store_memory_is_limited() {
    let scratch = Scratch::new("run-kv-limited");
    // The tables of the shards have more than this limit.
    let line =
        "run kv --listen 127.0.0.1:0 --json --arena 64M --maxmemory 1K --maxmemory-policy volatile-ttl";
    let mut run = Running::of(private(&scratch, line));
    let result: Value = serde_json::from_str(&run.line()).unwrap();
    let (limit, policy) =
        ("$9\r\nmaxmemory\r\n$4\r\n1024\r\n", "$16\r\nmaxmemory-policy\r\n$12\r\nvolatile-ttl\r\n");
    check_reply(
        result["address"].as_str().unwrap(),
        "config get maxmemory*\r\nset a 1\r\n",
        &format!("*4\r\n{limit}{policy}-OOM command not allowed"),
    );
    run.signal(Signal::TERM);
    assert!(run.wait().success());
}

#[test]
fn store_replaces_a_killed_process() {
    let scratch = Scratch::new("run-kv-killed");
    let up = scratch.up(2);
    for is_own in [true, false] {
        let mut command = private(&scratch, "run kv --listen 127.0.0.1:0 --json");
        match is_own {
            true => command.args(["--arena", "64M"]),
            false => command.env("HALITE_DIR", scratch.cluster()),
        };
        let mut run = Running::of(command);
        let result: Value = serde_json::from_str(&run.line()).unwrap();
        let address = result["address"].as_str().unwrap();
        check_reply(address, "mset a 1 b 2 c 3 d 4 e 5 f 6 g 7 h 8\r\ndbsize\r\n", "+OK\r\n:8\r\n");
        Process::open(support::children(run.pid())[1]).kill();
        // Some keys stay; the others are refused, then absent, then set again.
        eventually(|| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(b"mset a 1 b 2 c 3 d 4 e 5 f 6 g 7 h 8\r\n").unwrap();
            let mut result = [0; 5];
            stream.read_exact(&mut result).unwrap();
            result == *b"+OK\r\n"
        });
        check_reply(address, "dbsize\r\nmget a h\r\n", ":8\r\n*2\r\n$1\r\n1\r\n$1\r\n8\r\n");
        run.signal(Signal::TERM);
        assert_eq!(run.wait().code(), Some(0));
    }
    eventually(|| is_clean(&scratch));
    drop(up);
}

#[test]
fn exit_status_contains_the_signal() {
    let scratch = Scratch::new("run-signals");
    for app in ["run log --seconds 1000", "perf write_lat -n 1000000000"] {
        for (signal, status) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
            let mut run = Running::of(private(&scratch, app));
            eventually(|| !support::children(run.pid()).is_empty());
            run.signal(signal);
            assert_eq!(run.wait().code(), Some(status), "{app}");
            assert_eq!(std::fs::read_dir(scratch.file("")).unwrap().count(), 0);
        }
    }
}

#[test]
fn invalid_run_options_are_refused() {
    let scratch = Scratch::new("run-refused");
    for (line, why) in [
        ("run log --size 15", "--size 15 is too small: a record has at least 16 bytes"),
        ("run log --size 1M", "--size 1048576 is too large: a record has at most 1048568 bytes"),
        (
            "run log --size 1K --batch 4000",
            "--batch 4000 is too large: a segment has 3855 slots for records of 1024 bytes",
        ),
        ("run log --seconds 0", "must be from 0.01 to 86400"),
        ("run log --writers 0", "0 is not in 1..=1024"),
        ("run log --nodes 65", "65 is not in 1..=64"),
        ("run kv --clients-max 0", "0 is not in 1..="),
        ("run kv --listen 0.0.0.0:0", "clients of other hosts could do everything; give a password"),
        ("run kv --listen [::]:0", "clients of other hosts could do everything; give a password"),
        (
            "run kv --listen [::ffff:10.0.0.1]:0",
            "clients of other hosts could do everything; give a password",
        ),
        ("run kv --maxmemory-policy allkeys-lru", "noeviction, allkeys-random, volatile-ttl"),
        ("run kv --password-file /dev/null", "--password-file /dev/null: other users may access the file"),
        ("run ycsb --value 15", "--value 15 is out of range: a value has 16 to 1048576 bytes"),
        ("run ycsb --nodes 62", "--nodes 62 is too large: a store has at most 61 shards"),
        ("run pagerank", "name FILE, an edge list, or generate one with --kronecker SCALE"),
        ("run components", "name FILE, an edge list, or generate one with --kronecker SCALE"),
        ("run dsm --pages 127", "127 is not in 128..=16777216"),
        ("run ycsb --keys 0", "0 is not in 1..=4294967296"),
    ] {
        scratch.fails_with(line, 2, why);
    }
}

#[test]
fn private_cluster_options_need_a_private_cluster() {
    let scratch = Scratch::new("run-own-flags");
    let _up = scratch.up(2);
    for app in ["log", "ycsb", "kv --listen 127.0.0.1:0"] {
        let expected = "--fabric configures a private cluster, but --dir or HALITE_DIR names the cluster in";
        scratch.fails_with(&format!("run {app} --fabric roce"), 2, expected);
    }
    assert!(is_clean(&scratch));
}

/// Returns arguments with which a run computes for as long as it takes.
fn endless_pagerank(scratch: &Scratch) -> String {
    // Ranks alternate between the two vertices.
    let graph = scratch.write("graph", b"1 2\n2 1\n3 1\n");
    format!("pagerank {} --damping 0.999999999 --iterations 10000000000 --tolerance 0", graph.display())
}

#[test]
fn stopped_run_frees_only_its_regions() {
    let scratch = Scratch::new("run-stopped");
    let _up = scratch.up(2);
    scratch.ok(&format!("put foreign {}", scratch.write("file", b"foreign").display()));
    let before = scratch.ok("ls");
    let pagerank = endless_pagerank(&scratch);
    let apps = [
        (&*pagerank, "run pagerank --kronecker 6 --json", "/values.1"),
        (&format!("{pagerank} --dsm"), "run pagerank --kronecker 6 --dsm --json", "/shared/pages.1"),
        ("dsm --rounds 1000000000", "run dsm --rounds 5 --json", "/pages.1"),
    ];
    let can_share_pages = can_share_pages(&scratch);
    for (app, beside, region) in apps {
        if app.contains("dsm") && !can_share_pages {
            continue;
        }
        for (signal, status) in [(Signal::INT, Some(130)), (Signal::TERM, Some(143)), (Signal::KILL, None)] {
            let mut run = Running::start(&scratch, &format!("run {app}"));
            eventually(|| scratch.ok("ls").contains(region));
            let result = &scratch.json(beside)[0];
            assert_eq!(result["verified"], true, "{result}");
            run.signal(signal);
            assert_eq!(run.wait().code(), status, "{app}");
            if status.is_none() {
                // The workers free the regions.
                eventually(|| scratch.ok("ls") == before);
            }
            assert_eq!(scratch.ok("ls"), before, "{app}");
        }
    }
}

#[test]
fn concurrent_runs_have_distinct_names() {
    let scratch = Scratch::new("run-names");
    let _up = scratch.up(2);
    let pagerank = endless_pagerank(&scratch);
    let complaint = |number: usize| scratch.file(&format!("complaint{number}"));
    let mut runs: Vec<Running> = (0..3)
        .map(|number| {
            let mut command = scratch.command(&format!("run {pagerank} --name mine"));
            command.stderr(File::create(complaint(number)).unwrap());
            Running::of(command)
        })
        .collect();
    let is_refused = |number: &usize| {
        let message = std::fs::read_to_string(complaint(*number)).unwrap();
        if !message.ends_with('\n') {
            return false; // The run may have written only a part.
        }
        assert!(message.contains("the name is taken: another run uses \"mine\""), "{message}");
        true
    };
    eventually(|| (0..3).filter(is_refused).count() == 2 && scratch.ok("ls").contains("mine/values.1"));
    let going = (0..3).find(|number| !is_refused(number)).unwrap();
    runs[going].signal(Signal::INT);
    assert_eq!(runs[going].wait().code(), Some(130));
    assert!(is_clean(&scratch));
    // If a run and its workers are killed together, the next run frees what they left.
    let mut run = Running::start(&scratch, &format!("run {pagerank}"));
    eventually(|| scratch.ok("ls").contains("/values.1"));
    let workers = support::children(run.pid());
    run.signal(Signal::STOP);
    workers.into_iter().for_each(|pid| Process::open(pid).kill());
    run.signal(Signal::KILL);
    run.wait();
    assert!(scratch.ok("ls").contains("/values.1"));
    scratch.ok("run pagerank --kronecker 6");
    assert!(is_clean(&scratch));
    for name in ["", "a/b"] {
        let mut command = scratch.command("run pagerank --kronecker 6 --name");
        assert_eq!(command.arg(name).output().unwrap().status.code(), Some(2), "{name:?}");
    }
}

/// Runs of the node's user join the cluster, those of another user attach.
#[test]
fn the_next_run_frees_the_regions_of_a_run_whose_processes_were_all_killed() {
    let scratch = Scratch::new("run-killed");
    scratch.ok("up --nodes 1 --arena 128M --detach --attach-mode 0666");
    let is_root = rustix::process::geteuid().is_root();
    for user in [None, is_root.then_some(65_534)] {
        let command = |line: &str| match user {
            Some(other) => as_user(other, &scratch.command(line)),
            None => scratch.command(line),
        };
        let long = "run log --writers 1 --readers 1 --size 16 --seconds 600";
        let mut run = Running::of(command(long));
        eventually(|| scratch.ok("ls").contains("halite-run-log-"));
        let workers = support::children(run.pid());
        run.signal(Signal::STOP);
        workers.into_iter().for_each(|pid| Process::open(pid).kill());
        run.signal(Signal::KILL);
        run.wait();
        assert!(scratch.ok("ls").contains("halite-run-log-"), "{user:?}");
        let next = command("run wordcount /etc/passwd --top 1").output().unwrap();
        assert!(next.status.success(), "{user:?}: {next:?}");
        assert!(is_clean(&scratch), "{user:?}: {}", scratch.ok("ls"));
    }
    scratch.ok("down");
}

/// Without `--arena`, the shards are in the memory of different nodes of the cluster; with it, in that of their processes.
#[test]
fn store_shards_are_spread_over_the_cluster() {
    let scratch = Scratch::new("run-kv-spread");
    let _up = scratch.up(2);
    for (flags, is_in_cluster) in [("", true), ("--arena 64M", false)] {
        let mut run =
            Running::start(&scratch, &format!("run kv --listen 127.0.0.1:0 --name store --json {flags}"));
        let result: Value = serde_json::from_str(&run.line()).unwrap();
        check_reply(result["address"].as_str().unwrap(), "mset a 1 b 2 c 3 d 4\r\n", "+OK\r\n");
        let homes = ["store/0/t0", "store/1/t0"]
            .map(|table| scratch.json(&format!("stat {table} --json"))[0]["home"].as_u64().unwrap());
        assert_ne!(homes[0], homes[1], "{flags}");
        assert!(homes.iter().all(|home| (*home < 2) == is_in_cluster), "{homes:?} {flags}");
        run.signal(Signal::TERM);
        assert!(run.wait().success());
        eventually(|| is_clean(&scratch));
    }
}

/// Nodes of the cluster that hold all shards and the list of shards are killed, one after the other: the keys are lost, and
/// the store goes on.
#[test]
fn store_continues_after_loss_of_memory() {
    let scratch = Scratch::new("run-kv-moved");
    scratch.ok("up --nodes 3 --arena 64M --detach");
    let complaints = scratch.file("complaints");
    let mut command = scratch.command("run kv --listen 127.0.0.1:0 --json");
    command.stderr(File::create(&complaints).unwrap());
    let mut run = Running::of(command);
    let result: Value = serde_json::from_str(&run.line()).unwrap();
    let address = result["address"].as_str().unwrap();
    check_reply(address, "mset a 1 b 2 c 3 d 4\r\n", "+OK\r\n");
    for node in [1, 2] {
        Process::open(scratch.pid(node)).kill();
        for key in ["a", "b", "c", "d"] {
            // A shard may store a key in the memory of the killed node, before it knows of the node's end.
            eventually(|| {
                let mut client = TcpStream::connect(address).unwrap();
                write!(client, "set {key} {node}\r\nget {key}\r\nquit\r\n").unwrap();
                let mut replies = String::new();
                client.read_to_string(&mut replies).unwrap();
                let is_lost = replies.contains("-CLUSTERDOWN") || replies.contains("$-1\r\n");
                assert!(is_lost || replies == format!("+OK\r\n$1\r\n{node}\r\n+OK\r\n"), "{replies}");
                !is_lost
            });
        }
    }
    run.signal(Signal::TERM);
    assert!(run.wait().success(), "{}", std::fs::read_to_string(complaints).unwrap());
    eventually(|| scratch.nodes()[0]["regions"] == 0);
    let listed = scratch.ok("ls");
    assert!(!listed.contains("halite-run-kv"), "{listed}");
}

#[test]
fn store_continues_without_node_0() {
    let scratch = Scratch::new("run-kv-without-0");
    scratch.ok("up --nodes 1 --arena 64M --detach");
    let mut run = Running::start(&scratch, "run kv --listen 127.0.0.1:0 --json --arena 64M");
    let result: Value = serde_json::from_str(&run.line()).unwrap();
    let address = result["address"].as_str().unwrap();
    check_reply(address, "mset a 1 b 2 c 3 d 4\r\n", "+OK\r\n");
    Process::open(scratch.pid(0)).kill();
    // The server has read nothing from the other shard yet, and cannot map it without the directory of names.
    for (key, value) in [("a", 1), ("b", 2), ("c", 3), ("d", 4)] {
        check_reply(address, &format!("get {key}\r\n"), &format!("$1\r\n{value}\r\n"));
    }
    check_reply(address, "mget a b c d\r\n", "*4\r\n$1\r\n1\r\n$1\r\n2\r\n$1\r\n3\r\n$1\r\n4\r\n");
    check_reply(address, "incr a\r\nincr b\r\n", ":2\r\n:3\r\n");
    run.signal(Signal::KILL);
    run.wait();
    eventually(|| TcpStream::connect(address).is_err());
}

#[test]
fn run_fails_if_a_worker_is_killed() {
    let scratch = Scratch::new("run-killed");
    let _up = scratch.up(2);
    let pagerank = endless_pagerank(&scratch);
    let apps = [
        ("log --writers 2 --readers 2 --seconds 1000", "halite-run-log-"),
        ("ycsb --workload a --keys 100 --seconds 1000", "/1/h0"),
        ("kv --listen 127.0.0.1:0", "/1/t0"),
        (&pagerank, "/values.1"),
        ("dsm --rounds 1000000000", "/pages.1"),
    ];
    let can_share_pages = can_share_pages(&scratch);
    for (app, region) in apps.into_iter().filter(|(app, _)| can_share_pages || !app.starts_with("dsm")) {
        // The store goes on without its second worker.
        for number in 0..if app.starts_with("kv") { 1 } else { 2 } {
            let mut command = scratch.command(&format!("run {app}"));
            command.stderr(File::create(scratch.file("complaint")).unwrap());
            let mut run = Running::of(command);
            eventually(|| scratch.ok("ls").contains(region));
            let pid = support::children(run.pid())[number];
            let rows = || scratch.nodes().into_iter().filter(|node| node["pid"] == pid);
            eventually(|| rows().next().is_some());
            let node = rows().next().unwrap()["node"].clone();
            Process::open(pid).kill();
            assert_eq!(run.wait().code(), Some(1), "{app}, worker {number}");
            let complaint = std::fs::read_to_string(scratch.file("complaint")).unwrap();
            let expected =
                format!("halite: the worker process of node {node} has ended: signal: 9 (SIGKILL)\n");
            assert_eq!(complaint, expected, "{app}, worker {number}");
            eventually(|| is_clean(&scratch));
        }
    }
}

/// A text with words of several lengths, and how often each occurs.
fn text() -> (String, BTreeMap<String, u64>) {
    let mut random = fastrand::Rng::with_seed(3);
    let (mut text, mut counts) = (String::new(), BTreeMap::new());
    for _ in 0..20_000 {
        let word = match random.u32(..500) {
            number if number < 20 => format!("Über{}", "ö".repeat(number as usize)),
            number => format!(
                "word{}",
                "abcdefghij".repeat(1 + number as usize % 3)[..number as usize % 11].to_owned()
            ),
        };
        *counts.entry(word.to_lowercase()).or_default() += 1;
        text += &word;
        text += ["\n", " ", "-", "1"][random.usize(..4)];
    }
    (text + "\n", counts)
}

/// The words in the order in which they are printed.
fn ranked(counts: &BTreeMap<String, u64>, times: u64) -> Value {
    let mut words: Vec<_> = counts.iter().map(|(word, count)| (word, count * times)).collect();
    words.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    serde_json::to_value(words).unwrap()
}

#[test]
fn wordcount_counts_files_and_folders() {
    let scratch = Scratch::new("run-words");
    let (text, counts) = text();
    let dir = scratch.file("input");
    std::fs::create_dir_all(dir.join("deeper")).unwrap();
    // More than one split, files without a final separator, and none at all.
    std::fs::write(dir.join("large"), text.repeat(7)).unwrap();
    std::fs::write(dir.join("deeper/small"), text.trim_end()).unwrap();
    std::fs::write(dir.join("empty"), "").unwrap();
    std::os::unix::fs::symlink("large", dir.join("link")).unwrap();
    let dir = dir.display();
    let result = run_private(&scratch, &format!("run wordcount {dir} --top 1000000 --json"));
    assert_eq!(
        (&result["verified"], &result["fabric"], &result["nodes"]),
        (&true.into(), &"shm".into(), &2.into())
    );
    assert_eq!(result["top"], ranked(&counts, 8));
    assert_eq!((&result["words"], &result["distinct"]), (&160_000.into(), &counts.len().into()), "{result}");
    let result = run_private(&scratch, &format!("run wordcount {dir}/empty --nodes 3 --fabric roce --json"));
    assert_eq!((&result["words"], &result["verified"]), (&0.into(), &true.into()), "{result}");
    let _up = scratch.up(2);
    scratch.fails_with("run wordcount /nowhere", 1, "cannot read /nowhere: No such file or directory");
    eventually(|| is_clean(&scratch));
}

#[test]
fn grep_finds_lines_with_numbers() {
    let scratch = Scratch::new("run-grep");
    let _up = scratch.up(2);
    // The matches lie in the first and in the last split.
    let large = format!("a needle\n{}é needles", ("no ".repeat(33) + "\n").repeat(30_000));
    let large = scratch.write("large", large.as_bytes());
    let small = scratch.write("small", b"\xff\n\na needle \xff\r\n");
    let line = format!("run grep ^.+needle {} {}", large.display(), small.display());
    let (large, small) = (large.display(), small.display());
    let result = scratch.ok(&line);
    let expected = format!(
        "{large}:1:a needle\n{large}:30002:é needles\n{small}:3:a needle \u{fffd}\r\nmatches   3 in 2 of 2 files\n"
    );
    assert!(result.starts_with(&expected) && result.ends_with("verified  yes\n"), "{result}");
    let result = scratch.ok(&format!("{line} --lines 1"));
    assert!(result.starts_with(&format!("{large}:1:a needle\n... and 2 more lines")), "{result}");
    let result = &scratch.json(&format!("{line} --json"))[0];
    assert_eq!(
        result["matches_by_file"],
        serde_json::json!([[large.to_string(), 2], [small.to_string(), 1]])
    );
    assert_eq!((&result["matches"], &result["verified"]), (&3.into(), &true.into()), "{result}");
    scratch.fails_with(&format!("run grep ( {small}"), 2, "unclosed group");
    eventually(|| is_clean(&scratch));
}

#[test]
fn wordcount_survives_an_early_killed_worker() {
    const WORKERS: usize = 5;
    let scratch = Scratch::new("run-words-early");
    let _up = scratch.up(2);
    let (text, counts) = text();
    let file = scratch.write("text", text.repeat(20).as_bytes());
    for has_joined in [true, false] {
        let mut run = Running::start(
            &scratch,
            &format!("run wordcount {} --nodes {WORKERS} --top 1000000 --json", file.display()),
        );
        let (starter, pid) = (Process::open(run.pid()), run.pid());
        eventually(|| support::children(pid).len() > 1);
        starter.stop();
        let workers = support::children(pid);
        assert!(workers.len() < WORKERS, "tasks are given out once all workers have joined");
        let killed = *workers.last().unwrap();
        if has_joined {
            eventually(|| scratch.nodes().iter().any(|node| node["pid"] == killed));
        }
        Process::open(killed).kill();
        starter.resume();
        let result: Value = serde_json::from_str(&run.line()).unwrap();
        assert_eq!(result["top"], ranked(&counts, 20));
        assert_eq!((&result["lost_workers"], &result["verified"]), (&1.into(), &true.into()), "{result}");
        assert_eq!(run.wait().code(), Some(0));
        eventually(|| is_clean(&scratch));
    }
}

/// Returns true if a process has a file open.
fn has_open(pid: u32, file: &Path) -> bool {
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    open.filter_map(|entry| std::fs::read_link(entry.path()).ok()).any(|path| path == file)
}

#[test]
fn wordcount_survives_a_killed_worker() {
    const REPEATS: u64 = 200;
    let scratch = Scratch::new("run-words-killed");
    let _up = scratch.up(2);
    let (text, counts) = text();
    let file = scratch.write("text", text.repeat(REPEATS as usize).as_bytes());
    for number in [1, 0] {
        let mut command = scratch.command(&format!("run wordcount {} --top 1000000 --json", file.display()));
        command.stderr(File::create(scratch.file("complaint")).unwrap());
        let mut run = Running::of(command);
        let worker = || support::children(run.pid()).get(number).copied();
        eventually(|| worker().is_some_and(|pid| has_open(pid, &file)));
        Process::open(worker().unwrap()).kill();
        let complaint = || std::fs::read_to_string(scratch.file("complaint")).unwrap();
        if number == 1 {
            let result: Value = serde_json::from_str(&run.line()).unwrap();
            assert_eq!(result["top"], ranked(&counts, REPEATS), "{}", complaint());
            assert_eq!((&result["lost_workers"], &result["verified"]), (&1.into(), &true.into()), "{result}");
            assert_eq!(run.wait().code(), Some(0));
        } else {
            assert_eq!(run.wait().code(), Some(1), "the master's worker");
            assert!(complaint().contains("has ended: signal: 9 (SIGKILL)"), "{}", complaint());
        }
        eventually(|| is_clean(&scratch));
    }
}
