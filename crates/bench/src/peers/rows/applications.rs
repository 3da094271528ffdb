//! Rows for the applications, compared with their usual alternatives: Redis, a hash map in one process, and a file.

use super::{Figure, Row, Sizes, Source, Target, figure_of, row};
use crate::peers::probe::Probe;
use crate::peers::redis::Command;
use crate::peers::redis_benchmark::Server;

/// Keys in the store and in the map.
const KEYS: u64 = 10_000;
/// Records per batch.
const BATCH: u64 = 64;

/// Returns the rows of this section, in the order of the table.
pub fn rows(sizes: &Sizes) -> Vec<Row> {
    [store(sizes), redis_clients(sizes), log(sizes)].concat()
}

fn run(arguments: &[&str], sizes: &Sizes) -> Option<Source> {
    let seconds = sizes.application_s.to_string();
    let arguments = [arguments, &["--seconds", &seconds]].concat();
    let arguments = arguments.into_iter().map(str::to_owned).collect();
    figure_of(&Probe::HaliteRun { arguments }, Figure::Rate)
}

fn redis(command: Command, window: u64, sizes: &Sizes) -> Option<Source> {
    let iterations = if window == 1 { sizes.socket } else { sizes.pipelined };
    figure_of(&Probe::Redis { command, window, iterations }, Figure::Rate)
}

fn store(sizes: &Sizes) -> Vec<Row> {
    let name = "YCSB C, 10,000 keys of 64 B, one thread, half of the keys remote";
    let ours = || run(&["ycsb", "--workload", "c", "--keys", &KEYS.to_string(), "--threads", "1"], sizes);
    let map = figure_of(&Probe::DashMap { keys: KEYS, iterations: sizes.small }, Figure::Rate);
    vec![
        row(name, "Mops", ours(), "dashmap in one process", map).target(Target::RatioAtLeast(0.25)),
        row(name, "Mops", ours(), "Redis GET", redis(Command::Get, 1, sizes))
            .target(Target::RatioAtLeast(10.0)),
    ]
}

fn redis_clients(sizes: &Sizes) -> Vec<Row> {
    let rate = |server, command, window| {
        let iterations = if window == 1 { sizes.pipelined } else { 4 * sizes.pipelined };
        figure_of(&Probe::RedisBenchmark { server, command, window, iterations }, Figure::Rate)
    };
    let row = |command: Command, nodes: u32, window: u64| {
        let processes = if nodes == 1 { "one process" } else { "two processes" };
        let name =
            format!("{} of 64 B by redis-benchmark, {processes}, {window} sent together", command.name());
        let ours = rate(Server::Halite { nodes }, command, window);
        row(&name, "Mops", ours, "Redis", rate(Server::Redis, command, window))
    };
    let mut rows = Vec::new();
    for command in [Command::Set, Command::Get] {
        rows.push(row(command, 1, 1).target(Target::RatioAtLeast(0.95)));
        rows.push(row(command, 1, 16).target(Target::RatioAtLeast(1.0)));
        rows.push(row(command, 2, 16));
    }
    rows
}

fn log(sizes: &Sizes) -> Vec<Row> {
    let log = |option: &str, count: u64| {
        let count = count.to_string();
        run(&["log", "--writers", "2", "--readers", "0", "--size", "16", option, &count], sizes)
    };
    let file = |together| figure_of(&Probe::File { together, iterations: sizes.small }, Figure::Rate);
    let (single, reserved) =
        ("log, records of 16 B, two writers", "log, records of 16 B, two writers, 64 reserved together");
    let appended = "log, records of 16 B, two writers, 64 appended by one call";
    let wanted = Target::RatioAtLeast(1.0);
    vec![
        row(single, "Mops", log("--batch", 1), "Redis XADD", redis(Command::Append, 1, sizes)).target(wanted),
        row(single, "Mops", log("--batch", 1), "file, one writer, a write for each", file(1)).target(wanted),
        row(
            reserved,
            "Mops",
            log("--batch", BATCH),
            "Redis XADD, 16 sent together",
            redis(Command::Append, 16, sizes),
        )
        .target(wanted),
        row(reserved, "Mops", log("--batch", BATCH), "file, one writer, a write for each", file(1))
            .target(wanted),
        row(reserved, "Mops", log("--batch", BATCH), "file, one writer, a write for 64", file(BATCH)),
        row(appended, "Mops", log("--together", BATCH), "file, one writer, a write for 64", file(BATCH))
            .target(Target::AtLeast(10.0)),
    ]
}
