//! `halite perf`, in sizes that show that it works and not how fast it is.

use crate::support;

use rustix::process::{Pid, Signal};
use rustix::thread::{CpuSet, sched_getaffinity};
use serde_json::Value;
use support::{Process, Running, Scratch, children, eventually};

/// Runs a test of one size and checks what every result must have.
#[track_caller]
fn check(line: &str, size: u64, iterations: u64) -> Value {
    let scratch = Scratch::new("perf");
    let lines = scratch.json(&format!("perf {line} --json"));
    assert_eq!(lines.len(), 1, "{line}");
    let result = lines.into_iter().next().unwrap();
    assert_eq!(result["test"], *line.split(' ').next().unwrap());
    assert_eq!((result["fabric"].as_str(), result["mode"].as_str()), (Some("shm"), Some("embedded")));
    assert_eq!((result["size"].as_u64(), result["iters"].as_u64()), (Some(size), Some(iterations)));
    assert_eq!(result["errors"], 0);
    let quantiles = ["min", "p50", "p90", "p99", "p999", "max"].map(|name| positive(&result["lat_us"][name]));
    assert!(quantiles.is_sorted(), "{quantiles:?}");
    positive(&result["rate_Mops"]);
    if size > 0 {
        positive(&result["bw_MBps"]);
    }
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
fn a_ping_pong_of_writes() {
    check("write_lat -n 500", 8, 500);
    check("write_lat -n 20 -s 100000", 100_000, 20);
    check("write_lat -n 60 -s 64 -t 2", 64, 60);
}

#[test]
fn calls_beside_a_bare_memcpy() {
    for line in ["write_lat --completion -n 1000", "read_lat -n 1000"] {
        let baseline = check(line, 8, 1000)["baseline"].clone();
        positive(&baseline["memcpy_lat_us"]);
        assert!(baseline["overhead_ns"].is_number());
    }
    assert!(check("read_lat -n 100 --check-memcpy=false", 8, 100)["baseline"].is_null());
    // Bare memory does one after the other.
    assert!(check("read_bw -n 70 --window 4", 65_536, 70)["baseline"].is_null());
}

#[test]
fn bandwidth_beside_a_bare_memcpy() {
    for line in ["write_bw -n 70", "read_bw -n 70", "write_bw -n 70 -t 2"] {
        let baseline = check(line, 65_536, 70)["baseline"].clone();
        positive(&baseline["memcpy_MBps"]);
        positive(&baseline["ratio"]);
    }
}

#[test]
fn random_places_beside_bare_stores() {
    for line in ["write_lat --completion -n 2000 --regions 300", "write_lat --completion -n 2000 --span 8M"] {
        positive(&check(line, 8, 2000)["baseline"]["store_ns"]);
    }
    positive(&check("read_lat -n 2000 --regions 7 --span 1M", 8, 2000)["baseline"]["load_ns"]);
    check("write_bw -s 256 -n 200 --regions 5", 256, 200);
}

#[test]
fn more_than_a_word_at_random_places_stays_whole_and_is_compared_with_a_copy() {
    for (test, size) in
        [("write_bw", 4096), ("write_lat --completion", 64), ("read_bw", 1000), ("read_lat", 12)]
    {
        let baseline = check(&format!("{test} --span 4M -s {size} -n 200"), size, 200)["baseline"].clone();
        positive(&baseline["memcpy_lat_us"]);
        assert!(baseline.get("store_ns").or(baseline.get("load_ns")).is_none(), "{baseline}");
    }
    let scratch = Scratch::new("columns");
    assert!(scratch.ok("perf write_bw --span 4M -s 4K -n 20").contains("vs memcpy"));
    assert!(scratch.ok("perf write_bw --span 4M -s 8 -n 20").contains("vs store"));
    assert!(scratch.ok("perf read_lat --span 4M -n 20").contains(" load[usec]"));
}

#[test]
fn regions_are_made_and_mapped() {
    check("alloc_lat -n 50", 4096, 50);
    check("alloc_lat -n 20 -s 4G", 4 << 30, 20);
    let populated = check("alloc_lat -n 20 --populate", 4 << 20, 20);
    positive(&populated["baseline"]["pages_lat_us"]);
    check("map_lat -n 50", 4096, 50);
}

#[test]
fn calls_one_by_one_and_many_under_way() {
    check("rpc_lat -n 200", 8, 200);
    check("rpc_lat -n 20 -s 3 --reply-size 100000", 3, 20);
    // The input stays in the caller's memory, and so does the reply in the server's.
    check("rpc_lat -n 5 -s 1000000", 1_000_000, 5);
    check("rpc_rate -n 500 -t 2", 8, 500);
    let rows = check("rpc_rate -n 500 -t 2 --batch 8", 8, 500);
    assert_eq!([&rows["window"], &rows["batch"], &rows["reply_bytes"]], [16.0, 8.0, 8.0]);
    let replies = check("rpc_rate -n 20 --window 2 --reply-size 1M", 8, 20);
    // What counts for bandwidth is the longer way.
    let ratio = positive(&replies["bw_MBps"]) / positive(&replies["rate_Mops"]);
    assert!((ratio / f64::from(1 << 20) - 1.0).abs() < 1e-6, "{ratio}");
}

#[test]
fn calls_that_come_now_and_then_beside_polling_for_ever() {
    let result = check("rpc_load -t 2 -n 10 --rate 2000", 8, 10);
    assert_eq!(result["offered_per_s"], 2000.0);
    positive(&result["cpu_us_per_op"]);
    positive(&result["polling_cpu_us_per_op"]);
    let scratch = Scratch::new("sweep");
    let lines = scratch.json("perf rpc_load -a -n 16 --rate 4000 --json");
    let offered: Vec<f64> = lines.iter().map(|line| positive(&line["offered_per_s"])).collect();
    assert_eq!(offered, [4000.0, 2000.0, 1000.0, 500.0]);
}

#[test]
fn every_test_can_have_both_ends_on_one_core() {
    for test in [
        "write_lat",
        "read_lat",
        "write_bw",
        "alloc_lat",
        "map_lat",
        "rpc_lat",
        "rpc_rate",
        "rpc_load -t 2 --rate 4000",
        "rpc_memory",
        "send_lat",
        "publish_lat",
        "publish_rate",
        "fetch_add_lat",
        "cas_lat",
        "lock_lat",
        "barrier_lat",
        "fill_lat",
    ] {
        let scratch = Scratch::new("shared");
        let lines = scratch.json(&format!("perf {test} -n 20 --cores shared --json"));
        assert_eq!((&lines[0]["cores"], &lines[0]["errors"]), (&"shared".into(), &0.into()), "{test}");
    }
}

#[test]
fn progress_threads_are_on_the_cores_of_their_ends() {
    let all = sched_getaffinity(None).unwrap();
    let available: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|core| all.is_set(*core)).collect();
    let one = |index: usize| {
        let mut set = CpuSet::new();
        set.set(available[index % available.len()]);
        set
    };
    check_progress_threads("write_lat", [one(0), one(1)]);
    check_progress_threads("write_lat --cores shared", [one(0), one(0)]);
    check_progress_threads("write_lat --cores any", [all, all]);
}

/// Looks where the progress threads of the server and of the client may run.
#[track_caller]
fn check_progress_threads(line: &str, expected: [CpuSet; 2]) {
    let scratch = Scratch::new("cores");
    let mut perf = Running::start(&scratch, &format!("perf {line} -n 1000000000"));
    // The heading is printed when both ends are there.
    perf.line();
    let server = children(perf.pid())[0];
    // A thread has its name a moment after it has begun.
    let threads = || [server, perf.pid()].map(progress_thread);
    eventually(|| threads().iter().all(Option::is_some));
    let found = threads().map(|thread| sched_getaffinity(thread).unwrap());
    assert_eq!(found, expected, "{line}");
}

/// The progress thread among the threads of a process, of which others may end meanwhile.
fn progress_thread(pid: u32) -> Option<Pid> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let name = |thread: &std::fs::DirEntry| std::fs::read_to_string(thread.path().join("comm")).ok();
    let found = threads.flatten().find(|thread| name(thread).as_deref() == Some("halite-progress\n"))?;
    Pid::from_raw(found.file_name().to_str()?.parse().ok()?)
}

#[test]
fn a_ring_holds_more_requests_than_queues_of_buffers() {
    let result = check("rpc_memory -n 3000", 0, 3000);
    let queues = ["1_queue_share", "2_queues_share", "3_queues_share", "4_queues_share"];
    let shares = queues.map(|name| positive(&result[name]));
    assert!(shares.is_sorted(), "{shares:?}");
    let ring = positive(&result["ring_share"]);
    assert!((0.95..=1.0).contains(&ring) && shares[3] < ring, "{ring} {shares:?}");
    assert!(positive(&result["ring_payload_share"]) < ring);
}

#[test]
fn a_ping_pong_of_messages() {
    check("send_lat -n 200", 8, 200);
    check("send_lat -n 20 -s 70000 -t 2", 70_000, 20);
    check("publish_lat -n 200", 8, 200);
    check("publish_lat -n 20 -s 70000 -t 2", 70_000, 20);
}

#[test]
fn messages_that_are_published_back_to_back() {
    check("publish_rate -n 500", 8, 500);
    check("publish_rate -n 50 -s 70000 -t 2", 70_000, 50);
}

#[test]
fn words_beside_the_bare_atomic() {
    for line in ["fetch_add_lat -n 1000", "fetch_add_lat -n 1000 -t 3", "cas_lat -n 1000 -t 2"] {
        positive(&check(line, 8, 1000)["baseline"]["atomic_ns"]);
    }
}

#[test]
fn fills_and_copies_beside_what_they_save() {
    positive(&check("fill_lat -n 50", 4096, 50)["baseline"]["memset_MBps"]);
    positive(&check("copy_lat -n 50 -s 5000000", 5_000_000, 50)["baseline"]["read_write_lat_us"]);
    check("copy_lat -n 50 -s 64K -t 2 --check-memcpy=false", 65_536, 50);
}

#[test]
fn locks_and_barriers() {
    check("lock_lat -n 100", 0, 100);
    check("lock_lat -n 30 -t 6", 0, 30);
    check("barrier_lat -n 30", 0, 30);
    check("barrier_lat -n 10 -t 3", 0, 10);
}

#[test]
#[ignore = "slow: .ci/deep slow"]
fn all_sizes_are_a_row_each_for_people_too() {
    let scratch = Scratch::new("all");
    let printed = scratch.ok("perf write_bw -a -n 2");
    let rows: Vec<&str> = printed.lines().filter(|line| !line.contains('#')).skip(2).collect();
    assert_eq!(rows.len(), 24, "{printed}");
    assert!(
        rows[0].trim_start().starts_with("8 ") && rows[23].trim_start().starts_with("67108864 "),
        "{printed}"
    );
}

#[test]
fn a_node_that_runs_already_can_be_measured() {
    let scratch = Scratch::new("peer");
    let _up = scratch.up(2);
    let lines = scratch.json("perf write_lat --completion --peer 1 -n 100 --json");
    assert_eq!((lines[0]["errors"].as_u64(), lines.len()), (Some(0), 1));
    let complaint = scratch.fails("perf read_lat --peer 9 -n 100", 1);
    assert!(complaint.contains("node 9"), "{complaint}");
    for test in ["fetch_add_lat", "fill_lat", "copy_lat"] {
        assert_eq!(scratch.json(&format!("perf {test} --peer 1 -n 100 --json"))[0]["errors"], 0);
    }
    assert_eq!(scratch.json("ls --json").len(), 0);
}

#[test]
fn a_client_that_is_killed_while_measuring_takes_the_server_along() {
    let scratch = Scratch::new("killed-perf");
    let mut perf = Running::start(&scratch, "perf write_lat -n 1000000000");
    // The heading is printed when both ends are there.
    perf.line();
    let servers: Vec<Process> = children(perf.pid()).into_iter().map(Process::open).collect();
    assert_eq!(servers.len(), 1);
    perf.signal(Signal::KILL);
    perf.wait();
    servers[0].await_end();

    // The next run removes what it left.
    scratch.ok("perf read_lat -n 10");
    let left = std::fs::read_dir(scratch.file("")).unwrap();
    assert_eq!(left.count(), 0);
}
