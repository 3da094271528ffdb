//! Applications, as users of `halite run` see them.

use crate::support;

use std::fs::File;
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
    up_with(scratch, "64M")
}

fn up_with(scratch: &Scratch, arena: &str) -> Running {
    let line = format!("up --nodes 2 --arena {arena} --parent {}", std::process::id());
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
    // A slow machine takes longer to write more than fits.
    let is_more_than_fits = |seconds: &u32| {
        let line = format!("run log --seconds {seconds} --arena 5M --size 4096 --json");
        let told = of_its_own(&scratch, &line);
        assert_eq!(told["verified"], true, "{told}");
        told["bytes"].as_u64().unwrap() > 2 * (5 << 20)
    };
    assert!([1, 5, 25].iter().any(is_more_than_fits));
}

#[test]
#[ignore = "slow: .ci/deep slow"]
fn without_room_a_run_ends_soon_says_so_and_leaves_nothing() {
    let scratch = Scratch::new("run-no-room");
    let no_segment = "there is no memory for another segment; trim the log, or enlarge the arenas";
    let no_value = "the node that holds the key's shard is out of memory";
    let mut own = Command::new(env!("CARGO_BIN_EXE_halite"));
    own.args("run log --nodes 1 --seconds 1000 --arena 1M --writers 3 --batch 64".split(' '));
    own.env("TMPDIR", scratch.file("")).env_remove("HALITE_DIR");
    let output = own.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert!(complaint.contains(no_segment), "{complaint}");
    // Others', in which there is room for something, and then for nothing.
    let _up = up_with(&scratch, "1M");
    let log = "run log --seconds 1000 --readers";
    for (line, why) in [
        (format!("{log} 0"), no_segment),
        (format!("{log} 1"), no_segment),
        (format!("{log} 2 --together 16"), no_segment),
        ("run ycsb --keys 1000000 --seconds 1000".to_owned(), no_value),
    ] {
        let complaint = scratch.fails(&line, 1);
        assert!(complaint.contains(why) && complaint.lines().count() == 1, "{line}: {complaint}");
        eventually(|| is_clean(&scratch));
    }
    let file = scratch.write("file", &[1; 1_048_000]);
    for node in 0..2 {
        scratch.ok(&format!("put file{node} {} --node {node}", file.display()));
    }
    for (app, why) in [("log", no_segment), ("ycsb", no_value), ("kv --listen 127.0.0.1:0", no_value)] {
        let complaint = scratch.fails(&format!("run {app}"), 1);
        assert!(complaint.contains(why) && complaint.lines().count() == 1, "{app}: {complaint}");
    }
    for node in 0..2 {
        scratch.ok(&format!("rm file{node}"));
    }
    eventually(|| is_clean(&scratch));
}

#[test]
fn a_store_holds_what_was_set_under_each_workload() {
    let scratch = Scratch::new("run-ycsb");
    // A slow machine takes longer to do some of each.
    let run = |flags: &str| {
        let run = |seconds| {
            of_its_own(&scratch, &format!("run ycsb --keys 300 --seconds {seconds} --json {flags}"))
        };
        let has_all = |told: &Value| told["reads"] != 0 && (told["updates"] != 0 || told["workload"] == "c");
        ["0.2", "2", "20"].into_iter().map(run).find(has_all).expect("it does something of each")
    };
    for (flags, workload, fabric) in [
        ("--workload A --value 1000", "a", "shm"),
        ("--workload b --threads 3 --nodes 3 --fabric roce", "b", "roce"),
        ("--workload C", "c", "shm"),
    ] {
        let told = run(flags);
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
    // Somebody else's region is in the way, and stays as it is.
    let file = scratch.write("file", b"somebody's");
    for (name, app) in [
        ("halite-run-log", "log"),
        ("halite-run-log.progress", "log"),
        ("halite-run-log/7", "log"),
        ("halite-run-ycsb/0/t1", "ycsb --keys 100"),
        ("halite-run-kv/1", "kv --listen 127.0.0.1:0"),
    ] {
        scratch.ok(&format!("put {name} {}", file.display()));
        let seconds = if app.starts_with("kv") { "" } else { " --seconds 0.1" };
        let complaint = scratch.fails(&format!("run {app}{seconds}"), 1);
        assert!(
            complaint.contains(&format!("the name is taken: a region is called {name:?}")),
            "{complaint}"
        );
        assert_eq!(scratch.ok(&format!("get {name}")), "somebody's");
        scratch.ok(&format!("rm {name}"));
    }
    eventually(|| is_clean(&scratch));
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
    let line = "run kv --listen 127.0.0.1:0 --json";
    for (flags, nodes) in [("", 2), ("--nodes 3 --fabric roce", 3), ("--nodes 1", 1)] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_halite"));
        command.args(format!("{line} --arena 64M {flags}").split_whitespace()).env_remove("HALITE_DIR");
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

/// Found with a run that ended well and left its regions: the first that was lost kept all others from being freed.
#[test]
fn a_store_of_which_a_node_was_lost_leaves_nothing_and_ends_with_the_reason_if_it_needs_that() {
    for is_needed in [false, true] {
        let scratch = Scratch::new(if is_needed { "run-kv-lost-needed" } else { "run-kv-lost" });
        let _up = up_with(&scratch, "16M");
        let mut command = scratch.command("run kv --listen 127.0.0.1:0 --json");
        command.stderr(File::create(scratch.file("complaint")).unwrap());
        let mut run = Running::of(command);
        let told: Value = serde_json::from_str(&run.line()).unwrap();
        let address = told["address"].as_str().unwrap();
        // More than one node has room for.
        let value = "v".repeat(1_000_000);
        let set = |key: usize| format!("*3\r\n$3\r\nset\r\n$2\r\n{key:02}\r\n$1000000\r\n{value}\r\n");
        (0..20).for_each(|key| ask(address, &set(key), "+OK\r\n"));
        let pid = scratch.nodes()[1]["pid"].as_i64().unwrap() as i32;
        rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
        eventually(|| scratch.states()[1] == "dead");
        if is_needed {
            let mut clients = (0..20).filter_map(|key| {
                let mut stream = TcpStream::connect(address).ok()?;
                stream.write_all(set(key).as_bytes()).ok()?;
                stream.read(&mut [0; 16]).ok()
            });
            while clients.next().is_some() {}
        } else {
            run.signal(Signal::TERM);
        }
        assert_eq!(run.wait().code(), Some(i32::from(is_needed)));
        let complaint = std::fs::read_to_string(scratch.file("complaint")).unwrap();
        assert_eq!(complaint.contains("the owner of a shard cannot go on: "), is_needed, "{complaint}");
        eventually(|| scratch.nodes()[0]["regions"] == 0);
    }
}

/// Bytes of memory that a process has for itself.
fn private_bytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[test]
#[ignore = "measures: .ci/deep slow"]
fn ten_thousand_clients_that_are_idle_take_less_than_100_mib() {
    const CLIENTS: usize = 10_000;
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    if files.maximum.is_some_and(|most| most < CLIENTS as u64 + 500) {
        eprintln!("left out: a process may have {:?} files here", files.maximum);
        return;
    }
    let soft = rustix::process::Rlimit { current: files.maximum, ..files };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, soft).unwrap();
    let scratch = Scratch::new("run-kv-idle");
    let _up = up(&scratch);
    let mut run = Running::start(&scratch, "run kv --listen 127.0.0.1:0 --json");
    let told: Value = serde_json::from_str(&run.line()).unwrap();
    let address = told["address"].as_str().unwrap();
    let of_all = || support::children(run.pid()).into_iter().map(private_bytes).sum::<u64>();
    ask(address, "set salt crystals\r\n", "+OK\r\n");
    let before = of_all();
    let mut clients: Vec<TcpStream> = (0..CLIENTS).map(|_| TcpStream::connect(address).unwrap()).collect();
    // Each has been used, with a request that came in pieces.
    for part in ["get ", "salt\r\n"] {
        clients.iter_mut().for_each(|client| client.write_all(part.as_bytes()).unwrap());
    }
    let expected = b"$8\r\ncrystals\r\n";
    for client in &mut clients {
        let mut told = [0; 14];
        client.read_exact(&mut told).unwrap();
        assert_eq!(&told, expected);
    }
    let more = of_all().saturating_sub(before);
    assert!(more < 100 << 20, "{CLIENTS} idle clients take {more} bytes");
    eprintln!("{CLIENTS} idle clients take {} KiB", more >> 10);
    run.signal(Signal::TERM);
    assert_eq!(run.wait().code(), Some(0));
    eventually(|| is_clean(&scratch));
}

/// Bytes that a process has had in memory at a time, at most.
fn peak_bytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[test]
#[ignore = "slow: .ci/deep slow"]
fn over_a_network_a_client_that_does_not_read_has_few_values_kept_for_it() {
    const VALUE_BYTES: usize = 1 << 20;
    const COUNT: usize = 100;
    let scratch = Scratch::new("run-kv-unread");
    let mut command = Command::new(env!("CARGO_BIN_EXE_halite"));
    command.args("run kv --listen 127.0.0.1:0 --json --arena 64M --fabric roce".split(' '));
    command.env("TMPDIR", scratch.file("")).env_remove("HALITE_DIR");
    let mut run = Running::of(command);
    let told: Value = serde_json::from_str(&run.line()).unwrap();
    let address = told["address"].as_str().unwrap();
    let mut client = TcpStream::connect(address).unwrap();
    let value = vec![b'v'; VALUE_BYTES];
    let mut reply = vec![0; format!("${VALUE_BYTES}\r\n").len() + VALUE_BYTES + 2];
    // Of these, some are in either process.
    let keys = ["m0", "m1", "m2", "m3", "m4", "m5", "m6", "m7"];
    for key in keys {
        write!(client, "*3\r\n$3\r\nset\r\n$2\r\n{key}\r\n${VALUE_BYTES}\r\n").unwrap();
        client.write_all(&value).unwrap();
        client.write_all(b"\r\n").unwrap();
        client.read_exact(&mut reply[..5]).unwrap();
        assert_eq!(&reply[..5], b"+OK\r\n");
        // What reading it takes has been taken.
        write!(client, "get {key}\r\n").unwrap();
        client.read_exact(&mut reply).unwrap();
    }
    let serving = support::children(run.pid())[0];
    let before = peak_bytes(serving);
    for key in keys {
        // A small one last, and one that is not there: they keep their order, too.
        let gets = format!("get {key}\r\n").repeat(COUNT);
        // At once, so that all of them may be read together.
        client.write_all(format!("{gets}strlen {key}\r\nget none\r\nstrlen none\r\n").as_bytes()).unwrap();
        for _ in 0..COUNT {
            client.read_exact(&mut reply).unwrap();
            let is_whole = reply.starts_with(b"$1048576\r\nv") && reply.ends_with(b"v\r\n");
            assert!(is_whole, "{}", reply[..100].escape_ascii());
        }
        let expected = b":1048576\r\n$-1\r\n:0\r\n";
        client.read_exact(&mut reply[..expected.len()]).unwrap();
        assert_eq!(&reply[..expected.len()], expected);
    }
    let more = peak_bytes(serving) - before;
    assert!(more < 20 * VALUE_BYTES as u64, "{COUNT} values take {more} bytes");
    run.signal(Signal::TERM);
    assert_eq!(run.wait().code(), Some(0));
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
fn a_run_over_a_cluster_of_its_own_tells_by_its_status_which_signal_has_ended_it() {
    let scratch = Scratch::new("run-signals");
    for app in ["run log", "run ycsb", "perf write_lat -n 1000000000"] {
        for (signal, status) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
            let mut command = Command::new(env!("CARGO_BIN_EXE_halite"));
            let seconds = if app.starts_with("run") { " --seconds 1000" } else { "" };
            command.args(format!("{app}{seconds}").split(' ')).env_remove("HALITE_DIR");
            command.env("TMPDIR", scratch.file(""));
            let mut run = Running::of(command);
            eventually(|| !support::children(run.pid()).is_empty());
            run.signal(signal);
            assert_eq!(run.wait().code(), Some(status), "{app}");
            assert_eq!(std::fs::read_dir(scratch.file("")).unwrap().count(), 0);
        }
    }
}

#[test]
fn what_cannot_be_run_is_refused() {
    let scratch = Scratch::new("run-refused");
    for (line, why) in [
        ("run log --size 15", "--size 15 is too little: a record has at least 16 bytes"),
        ("run log --size 1M", "--size 1048576 is too much: a record has at most 1048568 bytes"),
        ("run log --size 1M --nodes 1 --seconds 1", "at most 1048568 bytes"),
        (
            "run log --size 100K --together 700",
            "--together 700 is too many: one call appends at most 655 of 102400 bytes",
        ),
        (
            "run log --size 1K --batch 4000",
            "--batch 4000 is too many: a segment has 3855 slots for 1024 bytes",
        ),
        ("run log --seconds 0", "not from 0.01 to 86400"),
        ("run log --writers 0", "0 is not in 1..=1024"),
        ("run log --nodes 65", "65 is not in 1..=64"),
        ("run kv --clients-max 0", "0 is not in 1..="),
        ("run ycsb --value 15", "--value 15 is not from 16 to 1048576"),
        ("run ycsb --nodes 62", "--nodes 62 is too many: a store has at most 61 shards"),
        ("run ycsb --keys 0", "0 is not in 1..=4294967296"),
    ] {
        let complaint = scratch.fails(line, 2);
        assert!(complaint.contains(why), "{complaint}");
    }
}

#[test]
fn what_is_said_of_a_cluster_of_its_own_is_refused_over_one_that_runs() {
    let scratch = Scratch::new("run-own-flags");
    let _up = up(&scratch);
    for app in ["log", "ycsb", "kv --listen 127.0.0.1:0"] {
        for flag in ["--fabric roce", "--fabric shm", "--arena 1G"] {
            let name = flag.split(' ').next().unwrap();
            let expected =
                format!("{name} is for a cluster of the application's own, and this is over the one in");
            let complaint = scratch.fails(&format!("run {app} {flag}"), 2);
            assert!(complaint.contains(&expected), "{complaint}");
            let mut command = Command::new(env!("CARGO_BIN_EXE_halite"));
            command.args(format!("run {app} {flag}").split(' ')).env("HALITE_DIR", scratch.cluster());
            let output = command.output().unwrap();
            let complaint = String::from_utf8(output.stderr).unwrap();
            assert!(output.status.code() == Some(2) && complaint.contains(&expected), "{complaint}");
        }
    }
    assert!(is_clean(&scratch));
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
            let mut command = scratch.command(&format!("run {app}"));
            command.stderr(File::create(scratch.file("complaint")).unwrap());
            let mut run = Running::of(command);
            eventually(|| scratch.ok("ls").contains(region));
            let pid = support::children(run.pid())[number];
            let rows = || scratch.nodes().into_iter().filter(|node| node["pid"] == pid);
            eventually(|| rows().next().is_some());
            let node = rows().next().unwrap()["node"].clone();
            let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
            rustix::process::kill_process(pid, Signal::KILL).unwrap();
            assert_eq!(run.wait().code(), Some(1), "{app}, worker {number}");
            let complaint = std::fs::read_to_string(scratch.file("complaint")).unwrap();
            let expected =
                format!("halite: the worker process of node {node} has ended: signal: 9 (SIGKILL)\n");
            assert_eq!(complaint, expected, "{app}, worker {number}");
            eventually(|| is_clean(&scratch));
        }
    }
}
