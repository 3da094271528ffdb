//! Rows for regions: one-sided reads and writes, allocation and mapping.

use super::{
    Figure, GIB, KIB, MIB, Row, Sizes, Target, baseline_of, figure_of, halite, latency_of, row, ucx,
};
use crate::peers::probe::Probe;

/// Returns the rows of this section, in the order of the table.
pub fn rows(sizes: &Sizes) -> Vec<Row> {
    let mut rows = latency(sizes);
    for size in [64 * KIB, MIB] {
        rows.extend(bandwidth(sizes, size));
    }
    rows.extend(control(sizes));
    rows.extend(random_access(sizes));
    rows.push(threads(sizes));
    rows
}

fn latency(sizes: &Sizes) -> Vec<Row> {
    let small = sizes.small;
    let ping_pong = latency_of(&Probe::PingPong { iterations: small });
    let [put, get] = ["ucp_put_lat", "ucp_get"].map(|test| latency_of(&ucx(test, 8, small)));
    let write = halite(&["write_lat", "-s", "8"], small);
    let completion = halite(&["write_lat", "--completion", "-s", "8"], small);
    let read = halite(&["read_lat", "-s", "8"], small);
    vec![
        row("write 8 B, half a ping-pong", "us", latency_of(&write), "bare word", ping_pong),
        row("write 8 B, half a ping-pong", "us", latency_of(&write), "UCX put", put)
            .target(Target::RatioAtMost(1.0)),
        row("write 8 B, the call", "us", latency_of(&completion), "memcpy", baseline_of(&completion)),
        row("write 8 B, the call beyond memcpy", "ns", figure_of(&completion, Figure::Overhead), "", None)
            .target(Target::AtMost(50.0)),
        row("read 8 B, the call", "us", latency_of(&read), "UCX get", get),
    ]
}

fn bandwidth(sizes: &Sizes, size: u64) -> Vec<Row> {
    let iterations = (sizes.bulk * 64 * KIB / size).max(1);
    let label = if size < MIB { format!("{} KiB", size / KIB) } else { format!("{} MiB", size / MIB) };
    let memcpy = figure_of(&Probe::Memcpy { size: size as usize, iterations }, Figure::Bandwidth);
    let mut rows = vec![row(&format!("copy {label} within a process"), "MB/s", None, "memcpy", memcpy)];
    let tests = [("write", "write_bw", "UCX put", "ucp_put_bw"), ("read", "read_bw", "UCX get", "ucp_get")];
    for (verb, test, peer, ucx_test) in tests {
        let name = format!("{verb} {label}");
        let probe = halite(&[test, "-s", &size.to_string()], iterations);
        let theirs = figure_of(&ucx(ucx_test, size, iterations), Figure::Bandwidth);
        let printed = figure_of(&probe, Figure::PrintedBandwidth);
        let baseline = figure_of(&probe, Figure::BaselineBandwidth);
        rows.push(row(&name, "MB/s", printed, "memcpy", baseline).target(Target::RatioAtLeast(0.95)));
        let ours = figure_of(&probe, Figure::Bandwidth);
        rows.push(row(&name, "MB/s", ours, peer, theirs));
    }
    rows
}

fn control(sizes: &Sizes) -> Vec<Row> {
    let map = halite(&["map_lat"], sizes.control);
    let small = halite(&["alloc_lat", "-s", &(4 * KIB).to_string()], sizes.control);
    let large = halite(&["alloc_lat", "-s", &(4 * GIB).to_string()], sizes.control);
    let populated =
        halite(&["alloc_lat", "--populate", "-s", &(4 * MIB).to_string()], sizes.control.min(1000));
    vec![
        row("map", "us", latency_of(&map), "", None).target(Target::AtMost(20.0)),
        // Pages are provided on first use, so the time must not depend on the size.
        row("alloc 4 GiB, against 4 KiB", "us", latency_of(&large), "Halite", latency_of(&small))
            .target(Target::RatioAtMost(2.0)),
        row("alloc 4 MiB, populated", "us", latency_of(&populated), "bare pages", baseline_of(&populated)),
    ]
}

fn random_access(sizes: &Sizes) -> Vec<Row> {
    let regions = sizes.regions.to_string();
    let over_regions = halite(&["write_lat", "--completion", "-s", "8", "--regions", &regions], sizes.small);
    let mut rows = compared_with_stores(&format!("write 8 B at random in {regions} regions"), over_regions);
    for span in &sizes.spans {
        let over_span =
            halite(&["write_lat", "--completion", "-s", "8", "--span", &span.to_string()], sizes.small);
        rows.extend(compared_with_stores(&format!("write 8 B at random in {} MiB", span / MIB), over_span));
    }
    rows
}

/// Returns rows that compare random writes with bare stores to the same addresses. The bare stores have the same cache
/// misses, so the difference is the cost of Halite.
fn compared_with_stores(name: &str, probe: Probe) -> Vec<Row> {
    let beyond = format!("{name}, beyond a bare store");
    vec![
        row(name, "us", latency_of(&probe), "bare store", baseline_of(&probe)),
        row(&beyond, "ns", figure_of(&probe, Figure::Overhead), "", None).target(Target::AtMost(200.0)),
    ]
}

fn threads(sizes: &Sizes) -> Row {
    let one = halite(&["write_lat", "--completion", "-s", "8", "-t", "1"], sizes.small);
    let two = halite(&["write_lat", "--completion", "-s", "8", "-t", "2"], sizes.small);
    let (ours, theirs) = (figure_of(&two, Figure::Rate), figure_of(&one, Figure::Rate));
    row("write 8 B, two threads against one", "Mops", ours, "Halite", theirs)
        .target(Target::RatioAtLeast(1.9))
}
