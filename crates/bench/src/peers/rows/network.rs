//! Rows for two processes over RoCEv2 in user space, compared with bare sockets, and with iperf3, UCX and libfabric
//! over TCP.

use super::{Figure, MIB, Row, Sizes, Target, figure_of, halite, latency_of, row};
use crate::peers::probe::Probe;
use crate::peers::ucx::Transport;

/// Returns the rows of this section, in the order of the table.
pub fn rows(sizes: &Sizes) -> Vec<Row> {
    [small(sizes), large(sizes)].concat()
}

fn over_roce(arguments: &[&str], iterations: u64) -> Probe {
    halite(&[arguments, &["--fabric", "roce"]].concat(), iterations)
}

fn ucx_over_tcp(test: &'static str, size: u64, iterations: u64) -> Probe {
    Probe::Ucx { over: Transport::Tcp, test, size, iterations }
}

fn small(sizes: &Sizes) -> Vec<Row> {
    let udp = |figure| figure_of(&Probe::UdpPingPong { iterations: sizes.socket }, figure);
    let ours = |test| latency_of(&over_roce(&[test, "-s", "8"], sizes.socket));
    let call = over_roce(&["rpc_lat", "-s", "8"], sizes.socket);
    let (mean, p99) = (figure_of(&call, Figure::Mean), figure_of(&call, Figure::P99));
    let libfabric = figure_of(&Probe::Libfabric { size: 8, iterations: sizes.socket }, Figure::RoundTrip);
    let tag = figure_of(&ucx_over_tcp("tag_lat", 8, sizes.socket), Figure::RoundTrip);
    let together = &["write_bw", "-s", "64", "--window", "64", "--batch", "64"];
    vec![
        row(
            "writes of 64 B, 64 posted together",
            "Mops",
            figure_of(&over_roce(together, 64 * sizes.socket), Figure::Rate),
            "",
            None,
        )
        .target(Target::AtLeast(1.0)),
        row("call, 8 B there and back", "us", latency_of(&call), "bare UDP", udp(Figure::RoundTrip))
            .target(Target::RatioAtMost(1.25)),
        row("call, 8 B there and back, 99th percentile", "us", p99, "bare UDP", udp(Figure::P99RoundTrip))
            .target(Target::RatioAtMost(2.0)),
        row("call, 8 B there and back", "us", latency_of(&call), "UCX tag, over TCP", tag)
            .target(Target::RatioAtMost(1.0)),
        row("call, 8 B there and back, mean", "us", mean, "libfabric, over TCP", libfabric),
        row("write 8 B, half a ping-pong", "us", ours("write_lat"), "bare UDP", udp(Figure::Latency))
            .target(Target::RatioAtMost(1.5)),
        row("read 8 B, the call", "us", ours("read_lat"), "bare UDP", udp(Figure::RoundTrip))
            .target(Target::RatioAtMost(1.4)),
    ]
}

fn large(sizes: &Sizes) -> Vec<Row> {
    let iterations = sizes.bulk / 16;
    let tcp = || figure_of(&Probe::TcpStream { size: MIB as usize, iterations }, Figure::Bandwidth);
    let iperf3 = || figure_of(&Probe::Iperf3 { size: MIB, iterations }, Figure::Bandwidth);
    let ours = |test| figure_of(&over_roce(&[test, "-s", "1048576"], iterations), Figure::Bandwidth);
    let ucx = |test| figure_of(&ucx_over_tcp(test, MIB, iterations), Figure::Bandwidth);
    // The run is long, so that the start and end of the processes add little.
    let long = &["write_bw", "-s", "1048576", "--check-memcpy=false"];
    let ours_cpu = figure_of(&over_roce(long, 2 * iterations), Figure::ProcessesCpu);
    let iperf3_cpu = Probe::Iperf3 { size: MIB, iterations: 2 * iterations };
    let iperf3_cpu = figure_of(&iperf3_cpu, Figure::ProcessesCpu);
    let wanted = Target::RatioAtLeast(1.0);
    vec![
        row("write 1 MiB", "MB/s", ours("write_bw"), "iperf3, one stream of TCP", iperf3()).target(wanted),
        row("read 1 MiB", "MB/s", ours("read_bw"), "iperf3, one stream of TCP", iperf3()).target(wanted),
        row("write 1 MiB", "MB/s", ours("write_bw"), "UCX put, over TCP", ucx("ucp_put_bw"))
            .target(Target::RatioAtLeast(0.75)),
        row("read 1 MiB", "MB/s", ours("read_bw"), "UCX get, over TCP", ucx("ucp_get"))
            .target(Target::RatioAtLeast(0.75)),
        row("write 1 MiB, processor time", "us", ours_cpu, "iperf3, one stream of TCP", iperf3_cpu)
            .target(Target::RatioAtMost(1.3)),
        row("write 1 MiB", "MB/s", ours("write_bw"), "bare TCP, one stream", tcp()),
        row("read 1 MiB", "MB/s", ours("read_bw"), "bare TCP, one stream", tcp()),
    ]
}
