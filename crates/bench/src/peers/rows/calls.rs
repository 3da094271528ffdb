//! Rows for calls and messages.

use super::{Figure, MIB, Row, Sizes, Source, Target, figure_of, halite, latency_of, row, ucx};
use crate::peers::probe::Probe;
use crate::peers::redis::Command;

/// Calls in flight in the rows about rates.
const WINDOW: u64 = 16;
/// Calls posted together.
const BATCH: u64 = 8;

/// Returns the rows of this section, in the order of the table.
pub fn rows(sizes: &Sizes) -> Vec<Row> {
    let rows =
        [round_trips(sizes), tails(sizes), rates(sizes), replies(sizes), messages(sizes), resources(sizes)];
    rows.concat()
}

fn round_trips(sizes: &Sizes) -> Vec<Row> {
    let name = "call, 8 B there and back";
    let word = figure_of(&Probe::PingPong { iterations: sizes.small }, Figure::RoundTrip);
    let tag = |figure| figure_of(&ucx("tag_lat", 8, sizes.small), figure);
    let active = figure_of(&ucx("ucp_am_lat", 8, sizes.small), Figure::RoundTrip);
    let redis = |command| redis(command, 1, sizes.socket, Figure::Latency);
    let ours = || latency_of(&one_call(sizes));
    let mean = figure_of(&one_call(sizes), Figure::Mean);
    vec![
        row(name, "us", ours(), "bare word", word),
        row(name, "us", ours(), "UCX tag", tag(Figure::RoundTrip)).target(Target::RatioAtMost(1.3)),
        row(&format!("{name}, mean"), "us", mean, "UCX tag", tag(Figure::MeanRoundTrip)),
        row(name, "us", ours(), "UCX active message", active),
        row(name, "us", ours(), "gRPC", grpc(1, sizes.socket, Figure::Latency)),
        row(name, "us", ours(), "Redis PING", redis(Command::Ping)),
        row(name, "us", ours(), "Redis GET", redis(Command::Get)),
        row(name, "us", ours(), "Redis SET", redis(Command::Set)),
    ]
}

fn one_call(sizes: &Sizes) -> Probe {
    halite(&["rpc_lat", "-s", "8"], sizes.calls)
}

fn tails(sizes: &Sizes) -> Vec<Row> {
    let name = "call, 8 B there and back, 99th percentile";
    let ours = || figure_of(&one_call(sizes), Figure::P99);
    vec![
        row(name, "us", ours(), "gRPC", grpc(1, sizes.socket, Figure::P99)),
        row(name, "us", ours(), "Redis PING", redis(Command::Ping, 1, sizes.socket, Figure::P99)),
    ]
}

fn rates(sizes: &Sizes) -> Vec<Row> {
    let name = format!("calls, 8 B there and back, {WINDOW} in flight");
    let batched_name = format!("{name}, {BATCH} posted together");
    let redis = |command| redis(command, WINDOW, sizes.pipelined, Figure::Rate);
    let one_by_one = || figure_of(&many_calls(1, sizes), Figure::Rate);
    let together = || figure_of(&many_calls(BATCH, sizes), Figure::Rate);
    let wanted = Target::AtLeast(4.0);
    vec![
        row(&name, "Mops", one_by_one(), "gRPC", grpc(WINDOW, sizes.pipelined, Figure::Rate)).target(wanted),
        row(&name, "Mops", one_by_one(), "Redis GET", redis(Command::Get)),
        row(&name, "Mops", one_by_one(), "Redis SET", redis(Command::Set)),
        row(&batched_name, "Mops", together(), "Redis GET", redis(Command::Get)).target(wanted),
        row(&batched_name, "Mops", together(), "Redis SET", redis(Command::Set)),
    ]
}

fn many_calls(batch: u64, sizes: &Sizes) -> Probe {
    let (window, batch) = (WINDOW.to_string(), batch.to_string());
    halite(&["rpc_rate", "-s", "8", "--window", &window, "--batch", &batch], 4 * sizes.calls)
}

fn replies(sizes: &Sizes) -> Vec<Row> {
    let iterations = (sizes.bulk / 16).max(1);
    let name = "replies of 1 MiB";
    let memcpy = figure_of(&Probe::Memcpy { size: MIB as usize, iterations }, Figure::Bandwidth);
    let tag = figure_of(&ucx("tag_bw", MIB, iterations), Figure::Bandwidth);
    let replies = ["rpc_rate", "-s", "8", "--window", "1", "--lend", "--reply-size", &MIB.to_string()];
    let ours = || figure_of(&halite(&replies, iterations), Figure::Bandwidth);
    vec![
        row(name, "MB/s", ours(), "memcpy", memcpy).target(Target::RatioAtLeast(0.8)),
        row(name, "MB/s", ours(), "UCX tag", tag),
    ]
}

fn messages(sizes: &Sizes) -> Vec<Row> {
    let sent = latency_of(&halite(&["send_lat", "-s", "8"], sizes.calls));
    let published = latency_of(&halite(&["publish_lat", "-s", "8"], sizes.calls));
    let stream = figure_of(&halite(&["publish_rate", "-s", "8"], sizes.small), Figure::Rate);
    let tag = || latency_of(&ucx("tag_lat", 8, sizes.small));
    let tags = figure_of(&ucx("tag_bw", 8, sizes.small), Figure::Rate);
    vec![
        row("message of 8 B, half a ping-pong", "us", sent, "UCX tag", tag()),
        row("message of 8 B, published, half a ping-pong", "us", published, "UCX tag", tag()),
        row("messages of 8 B, published back to back", "Mops", stream, "UCX tag", tags),
    ]
}

/// Rows for other costs of calls: processor time at a low rate, and memory at the server.
fn resources(sizes: &Sizes) -> Vec<Row> {
    let load = ["rpc_load", "-t", "8", "--rate", "1000"];
    let apart = halite(&load, sizes.load);
    let shared = halite(&[&load[..], &["--cores", "shared"]].concat(), sizes.load);
    let memory = halite(&["rpc_memory"], sizes.calls / 4);
    vec![
        processor_time("both ends on one core", &shared),
        processor_time("ends on two cores", &apart),
        row(
            "memory for requests, share in use",
            "%",
            figure_of(&memory, Figure::Used),
            "4 receive queues",
            figure_of(&memory, Figure::UsedByQueues),
        )
        .target(Target::AtLeast(95.0)),
    ]
}

fn processor_time(placement: &str, load: &Probe) -> Row {
    let name = format!("processor time of a call, 1,000 a second, {placement}");
    let polling = figure_of(load, Figure::PollingCpu);
    row(&name, "us", figure_of(load, Figure::Cpu), "endless polling", polling).target(Target::AtMost(75.0))
}

fn grpc(window: u64, iterations: u64, figure: Figure) -> Option<Source> {
    figure_of(&Probe::Grpc { window, iterations }, figure)
}

fn redis(command: Command, window: u64, iterations: u64, figure: Figure) -> Option<Source> {
    figure_of(&Probe::Redis { command, window, iterations }, figure)
}
