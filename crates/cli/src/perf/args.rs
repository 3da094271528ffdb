//! The flags of `halite perf`, whose short options follow perftest.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use halite::{Policy, Provider};

use super::cores::Pinning;
use super::fan_in::{Initiator, Mode, Verb, Workload};
use super::table::{self, Test};
use crate::args::network;
use crate::bytes::ByteCount;

/// Returns the name of a value on the command line and in results.
pub fn name_of(value: &impl ValueEnum) -> String {
    value.to_possible_value().expect("none is hidden").get_name().to_owned()
}

fn whole_seconds(text: &str) -> Result<u64, &'static str> {
    let seconds = text.parse().ok().filter(|seconds| (1..=3600).contains(seconds));
    seconds.ok_or("it takes a whole number of seconds, from 1 to 3600")
}

/// Arguments of `halite perf`
#[derive(Args, Clone, Debug)]
pub struct PerfArgs {
    /// Test to run
    #[arg(value_parser = table::names())]
    pub test: &'static Test,
    /// Bytes of one operation [default: 8; *_bw: 64K; alloc_lat, map_lat, fill_lat, copy_lat: 4K; qos: 8K]
    #[arg(short = 's', long, value_name = "BYTES")]
    pub size: Option<ByteCount>,
    /// Operations per thread and size; rpc_load --all: fewer at lower rates [default: enough for a fraction of a second;
    /// rpc_load: for 2 s]
    #[arg(short = 'n', long = "iters", value_parser = clap::value_parser!(u64).range(1..))]
    pub iterations: Option<u64>,
    /// All sizes from 8 bytes to 64 MiB; rpc_load: all rates
    #[arg(short = 'a', long, conflicts_with = "size")]
    pub all: bool,
    /// Client threads; the server uses as many [default: 1; rpc_load: 8]
    #[arg(short = 't', long, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub threads: Option<u32>,
    /// Placement of the threads
    #[arg(long, value_enum, default_value_t = Pinning::Apart)]
    pub cores: Pinning,
    /// Network between the two ends
    #[arg(long, env = "HALITE_FABRIC", value_parser = network(), default_value_t = Provider::Shm)]
    pub fabric: Provider,
    /// Print one JSON object per size
    #[arg(long)]
    pub json: bool,
    /// write_lat: time the call and compare it with a bare memcpy, instead of timing a ping-pong
    #[arg(long)]
    pub completion: bool,
    /// alloc_lat: populate the memory during alloc, compared with bare page faults [default size: 4M]
    #[arg(long)]
    pub populate: bool,
    /// Access this many regions at random, compared with bare accesses to the same amount of memory
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1 << 24))]
    pub regions: Option<u64>,
    /// Access this much memory at random, compared with bare accesses to the same amount
    #[arg(long, value_name = "BYTES")]
    pub span: Option<ByteCount>,
    /// rpc_rate: outstanding calls per thread [default: 16]; read_bw, write_bw: operations that a thread starts
    /// together; over a network, they are outstanding together [default: 1]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub window: Option<u32>,
    /// rpc_rate: calls posted together; must divide --window [default: 1]. The server receives and answers up to this many
    /// together. Batches overlap only if --batch is smaller than --window. read_bw, write_bw: if given, must equal --window
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub batch: Option<u32>,
    /// rpc_lat, rpc_rate, fan_in with --verb call: bytes of each reply [default: same as -s]
    #[arg(long, value_name = "BYTES")]
    pub reply_size: Option<ByteCount>,
    /// rpc_rate: read replies in place instead of copying them
    #[arg(long)]
    pub lend: bool,
    /// rpc_load: calls per second over all threads [default: 1000]
    #[arg(long, value_name = "CALLS", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub rate: Option<u64>,
    /// Also measure the test's baseline in the same run, for example memcpy or page faults, if the test has one
    #[arg(long, default_value_t = true, num_args = 0..=1, default_missing_value = "true", require_equals = true,
          action = clap::ArgAction::Set, value_name = "BOOL")]
    pub check_memcpy: bool,
    /// fan_in: number of clients [default: 10]
    #[arg(long, value_name = "N")]
    pub clients: Option<u32>,
    /// fan_in: how the server identifies its clients [default: stateless]
    #[arg(long, value_enum)]
    pub mode: Option<Mode>,
    /// fan_in: side that starts the operations [default: client]
    #[arg(long, value_enum, value_name = "SIDE")]
    pub initiator: Option<Initiator>,
    /// fan_in: when operations begin [default: open]
    #[arg(long, value_enum)]
    pub workload: Option<Workload>,
    /// fan_in: operation of the clients [default: read]
    #[arg(long, value_enum)]
    pub verb: Option<Verb>,
    /// qos: policy of the node that sends [default: sw-pri]
    #[arg(long, value_name = "none|hw-sep|sw-pri")]
    pub policy: Option<Policy>,
    /// qos: seconds of each phase [default: 2]
    #[arg(long, value_name = "S", value_parser = whole_seconds)]
    pub seconds: Option<u64>,
    /// qos: rate of the link in bytes per second [default: hw-sep: as measured first; sw-pri: as the policy measures it]
    #[arg(long, value_name = "BYTES")]
    pub link_rate: Option<ByteCount>,
    /// networks: create this folder with a page of plots
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Write a plot of all measured sizes to this file. The plot also shows the baseline of --check-memcpy
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Overwrite existing files of --out and --svg
    #[arg(long)]
    pub force: bool,
    /// Measure a session that is attached to the other end's node, which executes each operation. Calls are served by
    /// a third process, which is attached too. Also measures the round trip of a word to the other core, or through all
    /// three processes (relay_us)
    #[arg(long)]
    pub attached: bool,
    /// Measure against this node of the cluster in --dir instead of a new process
    #[arg(long, value_name = "NODE")]
    pub peer: Option<u32>,
}

impl PerfArgs {
    /// Returns true if operations access random offsets.
    pub fn is_random(&self) -> bool {
        self.regions.is_some() || self.span.is_some()
    }

    pub fn threads(&self) -> u64 {
        u64::from(self.threads.unwrap_or(1))
    }
}

/// Arguments of `halite perf-server`, which `halite perf` starts.
#[derive(Args, Debug)]
pub struct ServerArgs {
    /// Pid of the parent; this process is killed when the parent ends
    #[arg(long)]
    pub parent: u32,
    /// Memory to contribute, in bytes
    #[arg(long)]
    pub arena: u64,
    /// Cores of its threads
    #[arg(long, value_enum)]
    pub cores: Pinning,
    /// Network of its node
    #[arg(long, value_parser = network())]
    pub fabric: Provider,
    /// Have no node: attach to node 0, and run on the cores of the client's threads
    #[arg(long)]
    pub attached: bool,
}
