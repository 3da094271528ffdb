//! `halite perf`, in sizes that show that it works and not how fast it is.

mod support;

use rustix::process::Signal;
use serde_json::Value;
use support::{Process, Running, Scratch, children};

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
    for figure in ["bw_MBps", "rate_Mops"] {
        positive(&result[figure]);
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
    check("map_lat -n 50", 4096, 50);
}

#[test]
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
    assert_eq!(scratch.json("ls --json").len(), 0);
}

#[test]
fn whoever_is_killed_while_measuring_takes_the_server_along() {
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
