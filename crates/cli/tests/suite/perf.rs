//! `halite perf` with small sizes. These tests check that it works, not how fast it is.

use crate::support;

use std::process::Stdio;

use rustix::process::Signal;
use serde_json::Value;
use support::{Process, Running, Scratch, children, eventually};

/// Runs a test of one size, and checks the fields that each result must have.
#[track_caller]
fn check(line: &str, size: u64, iterations: u64) -> Value {
    let scratch = Scratch::new("perf");
    let lines = scratch.json(&format!("perf {line} --json"));
    assert_eq!(lines.len(), 1, "{line}");
    let result = lines.into_iter().next().unwrap();
    assert_eq!(result["test"], *line.split(' ').next().unwrap());
    assert_eq!((result["fabric"].as_str(), result["mode"].as_str()), (Some("shm"), Some("embedded")));
    assert_eq!((result["size"].as_u64(), result["iters"].as_u64()), (Some(size), Some(iterations)));
    assert_eq!(result["errors"], 0, "{line}");
    let quantiles = ["min", "p50", "p90", "p99", "p999", "max"].map(|name| positive(&result["lat_us"][name]));
    assert!(quantiles.is_sorted(), "{quantiles:?}");
    positive(&result["rate_Mops"]);
    assert!(size == 0 || positive(&result["bw_MBps"]) > 0.0);
    assert!(result["cpu_us_per_op"].is_number());
    result
}

#[track_caller]
fn positive(figure: &Value) -> f64 {
    let value = figure.as_f64().unwrap_or_else(|| panic!("no number: {figure}"));
    assert!(value > 0.0 && value.is_finite(), "{value}");
    value
}

#[test]
fn every_perf_test_verifies_and_reports() {
    for (line, size, iterations) in [
        ("write_lat -n 60 -s 64 -t 2", 64, 60),
        ("write_lat -n 20 --cores shared", 8, 20),
        ("read_bw -n 70 --window 4", 65_536, 70),
        ("alloc_lat -n 20 -s 4G", 4 << 30, 20),
        ("map_lat -n 50", 4096, 50),
        ("rpc_lat -n 5 -s 1000000 --reply-size 100000", 1_000_000, 5),
        ("rpc_rate -n 500 -t 2 --batch 8", 8, 500),
        ("rpc_load -t 2 -n 10 --rate 2000", 8, 10),
        ("rpc_memory -n 3000", 0, 3000),
        ("send_lat -n 20 -s 70000 -t 2", 70_000, 20),
        ("publish_lat -n 200", 8, 200),
        ("publish_rate -n 50 -s 70000 -t 2", 70_000, 50),
        ("lock_lat -n 30 -t 6", 0, 30),
        ("barrier_lat -n 10 -t 3", 0, 10),
    ] {
        check(line, size, iterations);
    }
}

#[test]
fn qos_measures_priorities_in_phases() {
    for fabric in ["roce", "shm"] {
        let scratch = Scratch::new("qos");
        let lines = scratch.json(&format!("perf qos --seconds 1 --fabric {fabric} --json"));
        assert_eq!(lines.len(), 1);
        let result = &lines[0];
        assert_eq!((&result["policy"], &result["errors"]), (&"sw-pri".into(), &0.into()));
        for figure in [
            "high_alone",
            "high_beside",
            "low_alone",
            "low_beside",
            "small_p99_us_beside",
            "small_rate_beside",
        ] {
            positive(&result[figure]);
        }
    }
}

#[test]
fn baselines_are_measured() {
    for (line, size, iterations, figure) in [
        ("write_lat --completion -n 1000", 8, 1000, "memcpy_lat_us"),
        ("write_bw -n 70 -t 2", 65_536, 70, "ratio"),
        ("write_lat --completion -n 2000 --regions 300", 8, 2000, "store_ns"),
        ("read_lat -n 2000 --regions 7 --span 1M", 8, 2000, "load_ns"),
        ("read_bw --span 4M -s 1000 -n 200", 1000, 200, "memcpy_lat_us"),
        ("alloc_lat -n 20 --populate", 4 << 20, 20, "pages_lat_us"),
        ("fetch_add_lat -n 1000 -t 3", 8, 1000, "atomic_ns"),
        ("cas_lat -n 1000", 8, 1000, "atomic_ns"),
        ("fill_lat -n 50", 4096, 50, "memset_MBps"),
        ("copy_lat -n 50 -s 5000000", 5_000_000, 50, "read_write_lat_us"),
    ] {
        positive(&check(line, size, iterations)["baseline"][figure]);
    }
    assert!(check("read_lat -n 100 --check-memcpy=false", 8, 100)["baseline"].is_null());
}

#[test]
fn running_node_can_be_measured() {
    let scratch = Scratch::new("peer");
    let _up = scratch.up(2);
    for test in ["write_lat --completion", "fetch_add_lat", "copy_lat"] {
        assert_eq!(scratch.json(&format!("perf {test} --peer 1 -n 100 --json"))[0]["errors"], 0);
    }
    scratch.fails_with("perf read_lat --peer 9 -n 100", 1, "node 9");
    assert_eq!(scratch.json("ls --json").len(), 0);
}

#[test]
fn the_heading_has_the_mode_of_the_responder() {
    let scratch = Scratch::new("perf-responder");
    let heading = |flags: &str| scratch.ok(&format!("perf read_lat -n 10 {flags}"));
    let stateful = heading("--fabric roce");
    assert!(stateful.starts_with("read_lat over roce (stateful):"), "{stateful}");
    let stateless = heading("--fabric roce --responder stateless");
    assert!(stateless.starts_with("read_lat over roce (stateless):"), "{stateless}");
    let shm = scratch.run("perf read_lat -n 10 --responder stateless");
    let note = String::from_utf8_lossy(&shm.stderr).into_owned();
    assert!(note.contains("--responder stateless has no effect over shm"), "{note}");
}

#[test]
fn killed_perf_client_ends_its_server() {
    let scratch = Scratch::new("killed-perf");
    let mut perf = Running::start(&scratch, "perf write_lat -n 1000000000");
    // The header is printed when both ends are ready.
    perf.line();
    let servers: Vec<Process> = children(perf.pid()).into_iter().map(Process::open).collect();
    assert_eq!(servers.len(), 1);
    perf.signal(Signal::KILL);
    perf.wait();
    servers[0].await_end();

    // The next run removes the directory of the killed one.
    scratch.ok("perf read_lat -n 10");
    let left = std::fs::read_dir(scratch.file("")).unwrap();
    assert_eq!(left.count(), 0);
}

/// Each operation is checked: reads compare what they read, and all that was written is read at the end.
#[test]
fn many_clients_share_one_server() {
    let scratch = Scratch::new("perf-fan-in");
    let works = [
        "--verb read",
        "--verb write",
        "--verb call",
        "--verb call --reply-size 1024",
        "--verb call --reply-size 5000",
        "--verb call -s 5000 --reply-size 8",
        "--initiator server",
        "--initiator server --verb write",
        "--initiator server --verb write --workload rounds",
    ];
    for mode in ["stateless", "stateful", "grouped"] {
        for work in works {
            // More than a group; rounds are complete.
            let line = format!("perf fan_in --clients 50 -n 500 --mode {mode} {work} --json");
            let report = scratch.json(&line).remove(0);
            assert_eq!((&report["iters"], &report["errors"]), (&500.into(), &0.into()), "{line}");
            assert!(report["server_ns_per_op"].as_f64().is_some_and(|ns| ns > 0.0), "{report}");
            assert!(report["server_heap_bytes"].as_u64().is_some_and(|bytes| bytes > 1 << 20), "{report}");
        }
    }
    let svg = scratch.file("plot.svg");
    let lines = scratch.json(&format!("perf fan_in --clients 20 -n 500 --json --svg {}", svg.display()));
    let clients: Vec<_> = lines.iter().map(|line| &line["clients"]).collect();
    assert_eq!(clients, [10, 20]);
    assert!(std::fs::read_to_string(&svg).unwrap().contains("clients"));
}

#[test]
fn many_clients_end_with_their_server() {
    let scratch = Scratch::new("perf-fan-in-killed");
    let mut command = scratch.command("perf fan_in --clients 20 -n 1000000000");
    let perf = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    eventually(|| !children(perf.id()).is_empty());
    let server = children(perf.id())[0];
    // After so much processor time, the server serves operations.
    let ticks = || {
        let stat = std::fs::read_to_string(format!("/proc/{server}/stat")).unwrap();
        let fields = stat.rsplit_once(") ").unwrap().1.split(' ').skip(11).take(2);
        fields.map(|ticks| ticks.parse::<u64>().unwrap()).sum::<u64>()
    };
    eventually(|| ticks() > 30);
    Process::open(server).kill();
    let output = perf.wait_with_output().unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(complaint.contains("the server process has ended: signal: 9"), "{complaint}");
}

#[test]
fn contradicting_flags_are_refused() {
    let scratch = Scratch::new("perf-refused");
    for (line, reason) in [
        ("perf write_lat -s 12", "-s must be a multiple of 8"),
        ("perf write_lat --peer 1", "this test needs its own server process"),
        ("perf read_bw -s 65M", "-s must be from 1 byte to 64 MiB"),
        ("perf alloc_lat --regions 3", "--regions and --span apply only to reads and writes"),
        ("perf map_lat --populate", "--populate applies only to alloc_lat"),
        ("perf read_lat --span 32 --regions 16", "--span must have room for -s bytes in each region"),
        ("perf write_bw --window 4 --batch 2", "set --batch to the value of --window"),
        ("perf rpc_rate --window 4 --batch 8", "4 is not a multiple of 8"),
        ("perf rpc_load -s 16", "this test has no sizes"),
        ("perf cas_lat -a", "this test has no sizes"),
        ("perf read_lat --reply-size 8", "--reply-size applies only to rpc_lat, rpc_rate and fan_in"),
        ("perf fetch_add_lat --rate 5", "--rate applies only to rpc_load"),
        ("perf fan_in --clients 0", "--clients must be from 1 to 1000000"),
        (
            "perf fan_in --clients 10001 --mode stateful",
            "not 10001: each has a queue pair; --mode stateless takes up to",
        ),
        ("perf fan_in --clients 10001 --mode grouped", "--clients must be from 1 to 10000"),
        ("perf fan_in --workload rounds", "--workload rounds needs --initiator server"),
        ("perf fan_in -s 2K", "-s must be from 1 to 1024 bytes"),
        ("perf fan_in -t 2", "fan_in has its own processes, threads and sizes"),
        ("perf fan_in --reply-size 8", "--reply-size needs --verb call"),
        ("perf fan_in --verb call --reply-size 65537", "--reply-size must be from 1 to 65536 bytes"),
        (
            "perf fan_in --initiator server --verb call",
            "--initiator server reads or writes memory of the clients",
        ),
        (
            "perf read_lat --clients 3",
            "--clients, --mode, --verb, --initiator and --workload apply only to fan_in",
        ),
        (
            "perf read_lat --initiator server",
            "--clients, --mode, --verb, --initiator and --workload apply only to fan_in",
        ),
        ("perf networks -s 8", "networks has its own sizes"),
        ("perf qos -s 8", "qos writes 65 B to 64 MiB"),
        ("perf qos -t 2", "qos has its own threads"),
        ("--priority low perf qos", "qos writes with both priorities"),
        ("perf qos --policy none --link-rate 1G", "omit --link-rate"),
        ("perf read_lat --policy none", "apply only to qos"),
        ("perf read_lat --out page", "--out applies only to networks"),
    ] {
        scratch.fails_with(line, 2, reason);
    }
}
