//! libfabric, the network library of MPI: its `fi_pingpong` over TCP, with reliable datagram endpoints (`ofi_rxm`).

use std::net::Ipv4Addr;
use std::path::Path;

use super::child::query;
use super::ports::{free_port, run_pair};
use super::probe::{ProbeError, Sample};

/// Program of both ends.
pub const PROGRAM: &str = "fi_pingpong";

/// Returns the line of `fi_info --version` with the version of the library, such as `libfabric: 1.17.0`.
pub fn version() -> Option<String> {
    let text = query(Path::new("fi_info"), "--version")?;
    text.lines().find(|line| line.starts_with("libfabric:")).map(str::to_owned)
}

/// Returns the arguments of both ends without address and port.
pub fn arguments(size: u64, iterations: u64) -> Vec<String> {
    ["-p", "tcp;ofi_rxm", "-e", "rdm", "-S", &size.to_string(), "-I", &iterations.to_string()]
        .map(str::to_owned)
        .to_vec()
}

/// Runs a server and its client, and parses the client's output.
pub fn run(size: u64, iterations: u64) -> Result<Sample, ProbeError> {
    let port = free_port()?;
    let arguments_with = |end: &[&str]| {
        let end = end.iter().map(|argument| (*argument).to_owned());
        arguments(size, iterations).into_iter().chain(end).collect::<Vec<_>>()
    };
    let (on_port, address) = (port.to_string(), Ipv4Addr::LOCALHOST.to_string());
    let (server, client) = (arguments_with(&["-B", &on_port]), arguments_with(&["-P", &on_port, &address]));
    let output = run_pair(PROGRAM, port, &server, &client, &[])?;
    parse(&output).ok_or(ProbeError::Unreadable { program: PROGRAM, output })
}

/// Parses the last line. The latency of the sample is the mean time of a one-way transfer, because no median is
/// printed.
///
/// ```text
/// bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec
/// ```
fn parse(output: &str) -> Option<Sample> {
    let columns: Vec<&str> = output.lines().last()?.split_whitespace().collect();
    let [_bytes, _sent, _acknowledged, _total, _time, _mb_per_s, us, _rate] = columns[..] else {
        return None;
    };
    let us: f64 = us.parse().ok()?;
    (us.is_finite() && us > 0.0).then_some(Sample { latency_us: Some(us), ..Sample::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_transfer_is_parsed() {
        // Output of version 1.17.0.
        let output = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n\
                      8       20k     =20k     312k        0.30s      1.08       7.44       0.13\n";
        assert_eq!(parse(output).unwrap().latency_us, Some(7.44));
        assert!(parse("").is_none());
        assert!(parse(output.lines().next().unwrap()).is_none(), "the heading alone");
    }
}
