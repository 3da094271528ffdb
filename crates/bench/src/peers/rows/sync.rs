//! Rows for atomics, locks, barriers and memory operations.

use super::{Figure, KIB, MIB, Row, Sizes, Target, baseline_of, figure_of, halite, latency_of, row, ucx};
use crate::peers::probe::Probe;

/// Returns the rows of this section, in the order of the table.
pub fn rows(sizes: &Sizes) -> Vec<Row> {
    [atomics(sizes), locks(sizes), memory_operations(sizes)].concat()
}

fn atomics(sizes: &Sizes) -> Vec<Row> {
    let add = halite(&["fetch_add_lat"], sizes.small);
    let swap = halite(&["cas_lat"], sizes.small);
    let beyond = |probe| figure_of(probe, Figure::Overhead);
    let ucx = |test| latency_of(&ucx(test, 8, sizes.small));
    vec![
        row("fetch-add 8 B", "us", latency_of(&add), "UCX fadd", ucx("ucp_fadd")),
        row("fetch-add 8 B", "us", latency_of(&add), "bare atomic", baseline_of(&add)),
        row("fetch-add 8 B, beyond the bare atomic", "ns", beyond(&add), "", None)
            .target(Target::AtMost(60.0)),
        row("compare-swap 8 B", "us", latency_of(&swap), "UCX cswap", ucx("ucp_cswap")),
        row("compare-swap 8 B, beyond the bare atomic", "ns", beyond(&swap), "", None),
    ]
}

fn locks(sizes: &Sizes) -> Vec<Row> {
    let free = halite(&["lock_lat"], sizes.calls);
    let barrier = halite(&["barrier_lat"], sizes.control);
    let rate = |waiters| figure_of(&contended(sizes, waiters), Figure::Rate);
    vec![
        row("free lock, acquire and release", "us", latency_of(&free), "", None).target(Target::AtMost(1.0)),
        row("lock contended by 4, against 64", "Mops", rate(4), "Halite", rate(64))
            .target(Target::RatioAtMost(1.5)),
        row("barrier of two processes", "us", latency_of(&barrier), "", None),
    ]
}

fn contended(sizes: &Sizes, waiters: u64) -> Probe {
    halite(&["lock_lat", "-t", &waiters.to_string()], (sizes.contended / waiters).max(1))
}

fn memory_operations(sizes: &Sizes) -> Vec<Row> {
    let bulk = (sizes.bulk / 16).max(1);
    let fill = halite(&["fill_lat", "-s", &MIB.to_string()], bulk);
    let filled = figure_of(&fill, Figure::PrintedBandwidth);
    let memset = figure_of(&fill, Figure::BaselineBandwidth);
    let copies =
        [(4 * KIB, "4 KiB", sizes.small / 8), (64 * KIB, "64 KiB", sizes.bulk), (MIB, "1 MiB", bulk)];
    let copy = |(size, label, iterations): (u64, &str, u64)| {
        let probe = halite(&["copy_lat", "-s", &size.to_string()], iterations.max(1));
        compared_with_caller(&format!("copy {label} at the peer"), &probe)
    };
    let fill = row("fill 1 MiB", "MB/s", filled, "memset", memset).target(Target::RatioAtLeast(0.95));
    [vec![fill], copies.map(copy).to_vec()].concat()
}

/// Returns a row that compares a copy at the peer with a read and a write by the caller.
fn compared_with_caller(name: &str, probe: &Probe) -> Row {
    row(name, "us", latency_of(probe), "read, then write", baseline_of(probe))
        .target(Target::RatioAtMost(1.0))
}
