//! The table of all tests.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

use super::access::{READS, WRITES};
use super::barriers::Member;
use super::bulk::{COPIES, FILLS};
use super::end::End;
use super::messages::{Published, Sent, Streamed};
use super::pairs::follow;
use super::pingpong::Player;
use super::server::{Follower, Part};
use super::words::{ADDS, SWAPS};
use super::workload::{PerfArgs, Planned};
use super::{access, barriers, bulk, calls, echo, load, locks, occupancy, pingpong, regions, words};

/// What can be measured.
#[derive(Debug)]
pub struct Test {
    /// As it is called on the command line and in results.
    pub name: &'static str,
    /// Whether bytes or operations per second are what matters.
    pub is_bandwidth: bool,
    /// What the client does, by the flags.
    pub plan: fn(&PerfArgs) -> Planned,
    /// What threads of the server do meanwhile.
    pub follow: fn(&End, &Part) -> anyhow::Result<Vec<Follower>>,
    /// What the help says.
    help: &'static str,
}

/// All tests, in the order of the help.
#[rustfmt::skip]
pub static TESTS: [Test; 19] = [
    time("read_lat", access::plan::<READS>, alone, "Time of a read"),
    rate("read_bw", access::plan::<READS>, alone, "Reads back to back"),
    time("write_lat", pingpong::plan, follow::<Player>,
         "Half a ping-pong of writes, each side polling its own memory; with --completion, time of a write"),
    rate("write_bw", access::plan::<WRITES>, alone, "Writes back to back"),
    time("alloc_lat", regions::plan_alloc, alone, "Time to make a region of -s bytes; freeing it is not timed"),
    time("map_lat", regions::plan_map, alone, "Time to map a region of -s bytes; unmapping it is not timed"),
    time("rpc_lat", calls::plan_one_by_one, echo::follow, "Time of a call: -s bytes there, --reply-size back"),
    rate("rpc_rate", calls::plan_under_way, echo::follow, "Calls with --window of them under way in each thread"),
    time("rpc_load", load::plan, echo::follow,
         "Processor time of calls that come at a given --rate, beside two processes that poll for ever; with -a also at \
          a half, a quarter and an eighth of the rate"),
    time("rpc_memory", occupancy::plan, echo::follow,
         "How much of the memory for requests holds requests, with keys and values of the sizes that a Facebook pool has"),
    time("send_lat", Sent::plan, follow::<Sent>,
         "Half a ping-pong of messages, each of which is sent when it is in the port's queue"),
    time("publish_lat", Published::plan, follow::<Published>,
         "Half a ping-pong of messages that are published"),
    rate("publish_rate", Streamed::plan, follow::<Streamed>, "Messages published back to back"),
    time("fetch_add_lat", words::plan::<ADDS>, alone, "Time to add to a word, the same one for all threads"),
    time("cas_lat", words::plan::<SWAPS>, alone, "Time to swap a word, another one for each thread"),
    time("lock_lat", locks::plan, alone,
         "Time to take and give up a lock; with -t, to pass it on among as many sessions that want it"),
    time("barrier_lat", barriers::plan, follow::<Member>,
         "Time to pass a barrier at which -t threads of either process wait"),
    time("fill_lat", bulk::plan::<FILLS>, alone, "Time to fill -s bytes"),
    time("copy_lat", bulk::plan::<COPIES>, alone, "Time to copy -s bytes from one region of the peer to another"),
];

type MakePlan = fn(&PerfArgs) -> Planned;
type MakeFollowers = fn(&End, &Part) -> anyhow::Result<Vec<Follower>>;

const fn time(name: &'static str, plan: MakePlan, follow: MakeFollowers, help: &'static str) -> Test {
    Test { name, is_bandwidth: false, plan, follow, help }
}

const fn rate(name: &'static str, plan: MakePlan, follow: MakeFollowers, help: &'static str) -> Test {
    Test { is_bandwidth: true, ..time(name, plan, follow, help) }
}

/// For the server has nothing to do.
fn alone(_: &End, _: &Part) -> anyhow::Result<Vec<Follower>> {
    Ok(Vec::new())
}

/// The test of this name.
pub fn named(name: &str) -> Option<&'static Test> {
    TESTS.iter().find(|test| test.name == name)
}

/// Names as the command line has them.
pub fn names() -> impl TypedValueParser<Value = &'static Test> {
    let names = TESTS.iter().map(|test| PossibleValue::new(test.name).help(test.help));
    PossibleValuesParser::new(names).map(|name| named(&name).expect("one of the possible values"))
}
