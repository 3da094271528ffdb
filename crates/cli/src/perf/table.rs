//! The table of all tests of `halite perf`.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

use super::access::{READS, WRITES};
use super::barriers::Member;
use super::bulk::{COPIES, FILLS};
use super::end::End;
use super::messages::{Published, Sent, Streamed};
use super::pairs::server_threads;
use super::pingpong::Player;
use super::server::{ServerTask, ServerThread};
use super::words::{ADDS, SWAPS};
use super::workload::{PerfArgs, Planned};
use super::{access, barriers, bulk, calls, echo, load, locks, occupancy, pingpong, regions, words};

/// A test of `halite perf`.
#[derive(Debug)]
pub struct Test {
    /// Name of the test on the command line and in results.
    pub name: &'static str,
    /// True if the results are rates, not latencies.
    pub is_bandwidth: bool,
    /// Creates the client's plan from the flags.
    pub plan: fn(&PerfArgs) -> Planned,
    /// Creates the server's threads, which have not started yet.
    pub server_threads: fn(&End, &ServerTask) -> anyhow::Result<Vec<ServerThread>>,
    /// Description of the test for `halite perf --help`.
    help: &'static str,
}

/// All tests, in the order of the help.
#[rustfmt::skip]
pub static TESTS: [Test; 22] = [
    time("read_lat", access::plan::<READS>, no_threads, "Latency of a read"),
    rate("read_bw", access::plan::<READS>, no_threads, "Throughput of reads"),
    time("write_lat", pingpong::plan, server_threads::<Player>,
         "Half the round trip of a ping-pong of writes, both sides polling memory; --completion: latency of a write"),
    rate("write_bw", access::plan::<WRITES>, no_threads, "Throughput of writes"),
    time("alloc_lat", regions::plan_alloc, no_threads, "Latency of alloc of -s bytes; free is not timed"),
    time("map_lat", regions::plan_map, no_threads, "Latency of map of a region of -s bytes; unmap is not timed"),
    time("rpc_lat", calls::plan_one_by_one, echo::server_threads, "Latency of a call: -s bytes in, --reply-size bytes out"),
    rate("rpc_rate", calls::plan_outstanding, echo::server_threads, "Calls per second with --window outstanding per thread"),
    time("rpc_load", load::plan, echo::server_threads,
         "Processor time of calls at a given --rate, next to two busy-polling processes; -a: also at 1/2, 1/4 and 1/8 of it"),
    time("rpc_memory", occupancy::plan, echo::server_threads,
         "Share of request memory that holds requests, for key and value sizes of a Facebook memcached pool"),
    time("send_lat", Sent::plan, server_threads::<Sent>,
         "Half the round trip of a ping-pong of messages; send returns when the message is queued at the port"),
    time("publish_lat", Published::plan, server_threads::<Published>,
         "Half the round trip of a ping-pong of published messages"),
    rate("publish_rate", Streamed::plan, server_threads::<Streamed>, "Messages published per second"),
    time("fetch_add_lat", words::plan::<ADDS>, no_threads, "Latency of fetch_add; all threads use one word"),
    time("cas_lat", words::plan::<SWAPS>, no_threads, "Latency of compare_swap; each thread uses its own word"),
    time("lock_lat", locks::plan, no_threads,
         "Latency of lock and unlock; -t: of passing the lock between that many waiting sessions"),
    time("barrier_lat", barriers::plan, server_threads::<Member>,
         "Latency of a barrier of -t threads in each of two processes"),
    time("fill_lat", bulk::plan::<FILLS>, no_threads, "Latency of fill of -s bytes"),
    time("copy_lat", bulk::plan::<COPIES>, no_threads, "Latency of copy of -s bytes between two regions of the peer"),
    time(FAN_IN, access::plan::<READS>, no_threads,
         "Reads or writes of many --clients at one server, which has a queue pair for each or no connection state"),
    rate(QOS, access::plan::<WRITES>, no_threads,
         "Sessions of two priorities beside each other, as in LITE's figure 16; set --policy, --seconds and --link-rate"),
    time(NETWORKS, access::plan::<READS>, no_threads,
         "TCP and UDP over loopback, and Halite over roce and shm, 32 B to 32 MiB, beside published networks; takes a minute"),
];

/// Name of the test with many clients, which needs no cluster.
pub const FAN_IN: &str = "fan_in";
/// Name of the test of priorities.
pub const QOS: &str = "qos";
/// Name of the test that measures several networks by running other tests.
pub const NETWORKS: &str = "networks";

type MakePlan = fn(&PerfArgs) -> Planned;
type MakeThreads = fn(&End, &ServerTask) -> anyhow::Result<Vec<ServerThread>>;

const fn time(name: &'static str, plan: MakePlan, threads: MakeThreads, help: &'static str) -> Test {
    Test { name, is_bandwidth: false, plan, server_threads: threads, help }
}

const fn rate(name: &'static str, plan: MakePlan, threads: MakeThreads, help: &'static str) -> Test {
    Test { is_bandwidth: true, ..time(name, plan, threads, help) }
}

/// Creates no server threads; for tests that need none.
fn no_threads(_: &End, _: &ServerTask) -> anyhow::Result<Vec<ServerThread>> {
    Ok(Vec::new())
}

pub fn named(name: &str) -> Option<&'static Test> {
    TESTS.iter().find(|test| test.name == name)
}

/// Parses the name of a test.
pub fn names() -> impl TypedValueParser<Value = &'static Test> {
    let names = TESTS.iter().map(|test| PossibleValue::new(test.name).help(test.help));
    PossibleValuesParser::new(names).map(|name| named(&name).expect("one of the possible values"))
}
