//! What two processes do over RoCEv2 in user space, beside bare sockets.

use super::{Figure, MIB, Row, Sizes, Source, Target, figure_of, halite, latency_of, row};
use crate::peers::probe::Probe;

/// The rows in their order.
pub fn rows(sizes: &Sizes) -> Vec<Row> {
    [small(sizes), large(sizes)].concat()
}

fn over_roce(arguments: &[&str], iterations: u64) -> Probe {
    halite(&[arguments, &["--fabric", "roce"]].concat(), iterations)
}

fn small(sizes: &Sizes) -> Vec<Row> {
    let udp = |figure| Some(Source { probe: Probe::UdpPingPong { iterations: sizes.socket }, figure });
    let ours = |test| latency_of(&over_roce(&[test, "-s", "8"], sizes.socket));
    let together = &["write_bw", "-s", "64", "--window", "64", "--batch", "64"];
    vec![
        row(
            "roce: writes of 64 B, 64 begun together",
            "Mops",
            figure_of(&over_roce(together, 64 * sizes.socket), Figure::Rate),
            "",
            None,
        )
        .wants(Target::AtLeast(1.0)),
        row("roce: call, 8 B there and back", "us", ours("rpc_lat"), "bare UDP", udp(Figure::RoundTrip))
            .wants(Target::RatioAtMost(1.35)),
        row("roce: write 8 B, half a ping-pong", "us", ours("write_lat"), "bare UDP", udp(Figure::Latency)),
        row("roce: read 8 B, the call", "us", ours("read_lat"), "bare UDP", udp(Figure::RoundTrip)),
    ]
}

fn large(sizes: &Sizes) -> Vec<Row> {
    let iterations = sizes.bulk / 16;
    let tcp = || figure_of(&Probe::TcpStream { size: MIB as usize, iterations }, Figure::Bandwidth);
    let iperf3 = || figure_of(&Probe::Iperf3 { size: MIB, iterations }, Figure::Bandwidth);
    let ours = |test| figure_of(&over_roce(&[test, "-s", "1048576"], iterations), Figure::Bandwidth);
    let wanted = Target::RatioAtLeast(1.3);
    vec![
        row("roce: write 1 MiB", "MB/s", ours("write_bw"), "iperf3, one stream of TCP", iperf3())
            .wants(wanted),
        row("roce: read 1 MiB", "MB/s", ours("read_bw"), "iperf3, one stream of TCP", iperf3()).wants(wanted),
        row("roce: write 1 MiB", "MB/s", ours("write_bw"), "bare TCP, one stream", tcp()),
        row("roce: read 1 MiB", "MB/s", ours("read_bw"), "bare TCP, one stream", tcp()),
    ]
}
