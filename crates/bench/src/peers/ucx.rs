//! UCX, a widely used communication library: its `ucx_perftest` over POSIX shared memory or TCP.

use std::net::Ipv4Addr;
use std::path::Path;

use super::child::query;
use super::ports::{free_port, run_pair};
use super::probe::{ProbeError, Sample};

/// Transport of UCX.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transport {
    /// Shared memory only.
    Memory,
    /// TCP over loopback only.
    Tcp,
}

impl Transport {
    /// Returns the environment variables that select the transport.
    pub fn environment(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Transport::Memory => &[("UCX_TLS", "posix,self")],
            Transport::Tcp => &[("UCX_TLS", "tcp,self"), ("UCX_NET_DEVICES", "lo")],
        }
    }
}

/// Program of both ends.
pub const PROGRAM: &str = "ucx_perftest";

/// Returns the first line of `ucx_info -v`, such as `Version 1.13.1`.
pub fn version() -> Option<String> {
    let text = query(Path::new("ucx_info"), "-v")?;
    text.lines().next().map(|line| line.trim_start_matches(['#', ' ']).to_owned())
}

/// Returns the client's arguments for a test without address and port.
pub fn arguments(test: &str, size: u64, iterations: u64) -> Vec<String> {
    ["-t", test, "-s", &size.to_string(), "-n", &iterations.to_string()].map(str::to_owned).to_vec()
}

/// Runs a server and its client, and parses the last line of the client's output.
pub fn run(over: Transport, test: &str, size: u64, iterations: u64) -> Result<Sample, ProbeError> {
    let port = free_port()?;
    let on_port = ["-p".to_owned(), port.to_string()];
    let to_server =
        [&[Ipv4Addr::LOCALHOST.to_string()], &on_port[..], &arguments(test, size, iterations)].concat();
    let output = run_pair(PROGRAM, port, &on_port, &to_server, over.environment())?;
    parse_final(&output).ok_or(ProbeError::Unreadable { program: PROGRAM, output })
}

/// Parses the last line that begins with `Final:`. The latency is the median, as for Halite, and the rate is that of
/// the whole run.
///
/// ```text
/// Final:  iterations  50.0%ile  average  overall(us)  average  overall(MB/s)  average  overall(msg/s)
/// ```
///
/// Bandwidth is computed from the rate, which has more digits and no ambiguous unit.
pub fn parse_final(output: &str) -> Option<Sample> {
    let line = output.lines().rev().find_map(|line| line.trim_start().strip_prefix("Final:"))?;
    let columns: Vec<f64> = line.split_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
    let [_iterations, latency_us, _mean, _overall, _mb_mean, _mb, _rate_mean, rate_per_s] = columns[..]
    else {
        return None;
    };
    (latency_us.is_finite() && rate_per_s > 0.0).then_some(Sample {
        latency_us: Some(latency_us),
        rate_per_s: Some(rate_per_s),
        ..Sample::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Output of version 1.13.1 for `-t ucp_put_lat -s 8 -n 20000`.
    const PUT_LATENCY: &str = "\
+--------------+--------------+------------------------------+---------------------+-----------------------+
|              |              |        latency (usec)        |   bandwidth (MB/s)  |  message rate (msg/s) |
+--------------+--------------+----------+---------+---------+----------+----------+-----------+-----------+
|    Stage     | # iterations | 50.0%ile | average | overall |  average |  overall |  average  |  overall  |
+--------------+--------------+----------+---------+---------+----------+----------+-----------+-----------+
Final:                 20000      0.055     0.058     0.058      130.57     130.57    17114369    17114369
";

    /// Output of version 1.13.1 for `-t ucp_put_bw -s 1048576`, with an intermediate line before the final one.
    const PUT_BANDWIDTH: &str = "\
+--------------+--------------+------------------------------+---------------------+-----------------------+
|              |              |       overhead (usec)        |   bandwidth (MB/s)  |  message rate (msg/s) |
+--------------+--------------+----------+---------+---------+----------+----------+-----------+-----------+
|    Stage     | # iterations | 50.0%ile | average | overall |  average |  overall |  average  |  overall  |
+--------------+--------------+----------+---------+---------+----------+----------+-----------+-----------+
[thread 0]               480     21.101    21.300    21.300    46948.00   46948.00       46948       46948
Final:                   500     21.694    22.142    22.150    45163.17   45150.00       45163       45150
";

    #[track_caller]
    fn check(output: &str, latency_us: f64, rate_per_s: f64) {
        let sample = parse_final(output).expect("the output has a final line");
        assert_eq!((sample.latency_us, sample.rate_per_s), (Some(latency_us), Some(rate_per_s)));
    }

    #[test]
    fn the_final_line_has_the_median_latency_and_the_rate() {
        check(PUT_LATENCY, 0.055, 17_114_369.0);
        check(PUT_BANDWIDTH, 21.694, 45_150.0);
    }

    #[test]
    fn an_incomplete_final_line_is_refused() {
        assert!(parse_final("").is_none());
        assert!(parse_final("Final:  500  21.694  22.142").is_none());
        assert!(parse_final(&PUT_LATENCY.replace("17114369", "0")).is_none());
        assert!(parse_final(&PUT_LATENCY.replace("Final:", "Failed:")).is_none());
    }
}
