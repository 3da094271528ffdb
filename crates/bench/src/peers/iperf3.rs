//! iperf3, the usual tool for measuring networks: one stream of TCP over loopback.

use std::net::Ipv4Addr;
use std::path::Path;

use serde_json::Value;

use super::child::query;
use super::ports::{free_port, run_pair};
use super::probe::{ProbeError, Sample};

/// Program of both ends.
pub const PROGRAM: &str = "iperf3";

/// Returns the first line of `iperf3 --version`, such as `iperf 3.12 (cJSON 1.7.15)`.
pub fn version() -> Option<String> {
    query(Path::new(PROGRAM), "--version")?.lines().next().map(str::to_owned)
}

/// Returns the client's arguments without address and port.
pub fn arguments(size: u64, iterations: u64) -> Vec<String> {
    let bytes = size * iterations;
    ["-n", &bytes.to_string(), "-l", &size.to_string(), "-J"].map(str::to_owned).to_vec()
}

/// Runs a server and its client, and parses the server's figures in the client's output.
pub fn run(size: u64, iterations: u64) -> Result<Sample, ProbeError> {
    let port = free_port()?;
    let on_port = ["-p".to_owned(), port.to_string()];
    let server_arguments = [&["-s", "-1"].map(str::to_owned)[..], &on_port].concat();
    let to_server = ["-c".to_owned(), Ipv4Addr::LOCALHOST.to_string()];
    let client_arguments = [&to_server[..], &on_port, &arguments(size, iterations)].concat();
    let output = run_pair(PROGRAM, port, &server_arguments, &client_arguments, &[])?;
    parse(&output, size).ok_or(ProbeError::Unreadable { program: PROGRAM, output })
}

/// Parses the output. An operation of the sample is a transfer of `size` bytes.
fn parse(output: &str, size: u64) -> Option<Sample> {
    let report: Value = serde_json::from_str(output).ok()?;
    let received = &report["end"]["sum_received"];
    let (bytes, seconds) = (received["bytes"].as_f64()?, received["seconds"].as_f64()?);
    Sample::of_rate(bytes / size as f64 / seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_servers_figures_are_parsed() {
        // Output of version 3.12, shortened.
        let output = r#"{ "end": { "sum_sent": { "seconds": 0.02, "bytes": 9 },
            "sum_received": { "start": 0, "end": 0.04, "seconds": 0.04, "bytes": 104857600 } } }"#;
        assert_eq!(parse(output, 1 << 20).unwrap().rate_per_s, Some(2500.0));
        assert!(parse(r#"{ "error": "unable to connect to server" }"#, 1).is_none());
        assert!(parse("", 1).is_none());
    }
}
