//! Calls and messages: what another process does for the asker.

use super::{Figure, MIB, Row, Sizes, Source, Target, row, ucx};
use crate::peers::probe::Probe;
use crate::peers::redis::Command;

/// How many calls are under way where rates are compared.
const WINDOW: u64 = 16;

/// The rows in their order.
pub fn rows(sizes: &Sizes) -> Vec<Row> {
    [round_trips(sizes), tails(sizes), rates(sizes), replies(sizes), messages(sizes)].concat()
}

fn round_trips(sizes: &Sizes) -> Vec<Row> {
    let name = "call, 8 B there and back";
    let line = Some(Source { probe: Probe::PingPong { iterations: sizes.small }, figure: Figure::RoundTrip });
    let tag = |figure| taking(figure, ucx("tag_lat", 8, sizes.small));
    let active = taking(Figure::RoundTrip, ucx("ucp_am_lat", 8, sizes.small));
    let redis = |command| redis(command, 1, sizes.socket, Figure::Latency);
    vec![
        row(name, "us", None, "bare word", line),
        row(name, "us", None, "UCX tag", tag(Figure::RoundTrip)).wants(Target::RatioAtMost(1.3)),
        row(&format!("{name}, mean"), "us", None, "UCX tag", tag(Figure::MeanRoundTrip)),
        row(name, "us", None, "UCX active message", active),
        row(name, "us", None, "gRPC", grpc(1, sizes.socket, Figure::Latency)),
        row(name, "us", None, "Redis PING", redis(Command::Ping)),
        row(name, "us", None, "Redis GET", redis(Command::Get)),
        row(name, "us", None, "Redis SET", redis(Command::Set)),
    ]
}

fn tails(sizes: &Sizes) -> Vec<Row> {
    let name = "call, 8 B there and back, 99th percentile";
    vec![
        row(name, "us", None, "gRPC", grpc(1, sizes.socket, Figure::P99)),
        row(name, "us", None, "Redis PING", redis(Command::Ping, 1, sizes.socket, Figure::P99)),
    ]
}

fn rates(sizes: &Sizes) -> Vec<Row> {
    let name = format!("calls, 8 B there and back, {WINDOW} under way");
    let redis = |command| redis(command, WINDOW, sizes.pipelined, Figure::Rate);
    vec![
        row(&name, "Mops", None, "gRPC", grpc(WINDOW, sizes.pipelined, Figure::Rate))
            .wants(Target::AtLeast(4.0)),
        row(&name, "Mops", None, "Redis GET", redis(Command::Get)),
        row(&name, "Mops", None, "Redis SET", redis(Command::Set)),
    ]
}

fn replies(sizes: &Sizes) -> Vec<Row> {
    let iterations = (sizes.bulk / 16).max(1);
    let name = "replies of 1 MiB";
    let memcpy = Probe::Memcpy { size: MIB as usize, iterations };
    let memcpy = Some(Source { probe: memcpy, figure: Figure::Bandwidth });
    let tag = taking(Figure::Bandwidth, ucx("tag_bw", MIB, iterations));
    vec![
        row(name, "MB/s", None, "memcpy", memcpy).wants(Target::RatioAtLeast(0.8)),
        row(name, "MB/s", None, "UCX tag", tag),
    ]
}

fn messages(sizes: &Sizes) -> Vec<Row> {
    vec![
        row("message of 8 B, half a ping-pong", "us", None, "UCX tag", ucx("tag_lat", 8, sizes.small)),
        row(
            "messages of 8 B, back to back",
            "Mops",
            None,
            "UCX tag",
            taking(Figure::Rate, ucx("tag_bw", 8, sizes.small)),
        ),
    ]
}

fn taking(figure: Figure, source: Option<Source>) -> Option<Source> {
    source.map(|source| Source { figure, ..source })
}

fn grpc(window: u64, iterations: u64, figure: Figure) -> Option<Source> {
    Some(Source { probe: Probe::Grpc { window, iterations }, figure })
}

fn redis(command: Command, window: u64, iterations: u64, figure: Figure) -> Option<Source> {
    Some(Source { probe: Probe::Redis { command, window, iterations }, figure })
}
