//! The command line, with defaults from `HALITE_*` variables and the configuration file.

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgAction, Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};

use crate::addresses::{ip_address, socket_address};
use crate::apps;
use crate::bytes::ByteCount;
use crate::diagnostics;
use crate::figure;
use crate::letters;
use crate::limits::NODES_MAX;
use crate::metrics_at::MetricsAt;
use crate::perf;
use crate::quotas::SessionOptions;
use crate::settings::{self, Setting, Settings, UnknownVariable};
use crate::sim;
use halite::{Congestion, EtcdAddress, Permissions, Policy, Priority, Provider, Qos, ResponderMode};

/// Default time to drain in seconds; below the grace periods of supervisors: Kubernetes 30 s, systemd 90 s.
const DRAIN_WITHIN_S: u32 = 25;

/// The commands by purpose, in the order of `halite --help`.
const GROUPS: [(&str, &[&str]); 4] = [
    (
        "Cluster",
        &[
            "up",
            "node",
            "down",
            "status",
            "top",
            "drain",
            "forget",
            "secret",
            "directory",
            "set",
            "config",
            "doctor",
        ],
    ),
    ("Regions", &["put", "get", "ls", "stat", "explain", "rm", "mv", "grant", "revoke"]),
    ("Measure", &["perf", "figure"]),
    ("Run", &["run", "sim"]),
];

const HELP: &str = "{about}\n\n{usage-heading} {usage}\n\n{before-help}Options:\n{options}";

/// Formats the commands by purpose, because the parser lists them without headings.
fn command_groups() -> String {
    let commands = Command::augment_subcommands(clap::Command::new("halite"));
    let mut text = String::new();
    for (group, names) in GROUPS {
        text += &format!("{group}:\n");
        for name in names {
            let about = commands.find_subcommand(name).and_then(clap::Command::get_about);
            text += &format!("  {name:<10} {}\n", about.expect("commands of groups exist"));
        }
        text.push('\n');
    }
    text + "`halite COMMAND --help` shows the flags of a command."
}

/// Named, permissioned, movable memory that processes share
#[derive(Parser, Debug)]
#[command(name = "halite", version, max_term_width = 100, help_template = HELP, before_help = command_groups())]
pub struct Arguments {
    /// Directory of the cluster [default: $XDG_RUNTIME_DIR/halite if this user's, else /tmp/halite-UID]
    #[arg(long, global = true, env = "HALITE_DIR", value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// TOML file with defaults; a flag and a HALITE_* variable override it. Keys have the names of flags: arena, fabric, ...
    #[arg(long, global = true, env = "HALITE_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Log to standard error; repeat for more detail
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub verbose: u8,
    /// Log filter: error, warn, info, debug, trace, or per module, for example halite=debug [default: info for nodes,
    /// warn for nodes of `up` on a terminal, error for commands]
    #[arg(
        long,
        global = true,
        env = "HALITE_LOG",
        value_name = "FILTER",
        conflicts_with = "verbose",
        value_parser = diagnostics::checked_filter
    )]
    pub log: Option<String>,
    /// Log format
    #[arg(long, global = true, env = "HALITE_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
    /// Congestion control of the packets that this command's nodes send to other hosts over roce
    #[arg(
        long,
        global = true,
        env = "HALITE_CONGESTION",
        value_parser = one_of(Congestion::ALL, Congestion::name, Congestion::summary),
        value_name = "BY",
        default_value = "grant"
    )]
    pub congestion: Congestion,
    /// Lanes to each peer over roce, 1 to 4: queue pairs that all sessions of two nodes share. Calls use the first, and
    /// each session one of the others. Two nodes use the smaller of their numbers
    #[arg(
        long,
        global = true,
        env = "HALITE_LANES",
        value_name = "LANES",
        default_value_t = 2,
        value_parser = clap::value_parser!(u32).range(1..=4)
    )]
    pub lanes: u32,
    /// End that keeps state for requests over roce: both (stateful), or the requesting one alone (stateless), where both
    /// nodes permit it
    #[arg(
        long,
        global = true,
        env = "HALITE_RESPONDER",
        value_parser = one_of(ResponderMode::ALL, ResponderMode::name, ResponderMode::summary),
        value_name = "MODE",
        default_value = "stateful"
    )]
    pub responder: ResponderMode,
    /// Join the cluster as a node while the command runs, instead of attaching to a node of this host
    #[arg(long, global = true)]
    pub embed: bool,
    /// Priority of this command's operations, under the policy of its node (see `set qos`) [default: high where permitted]
    #[arg(long, global = true, env = "HALITE_PRIORITY", value_name = "high|low")]
    pub priority: Option<Priority>,
    /// The command to run.
    #[command(subcommand)]
    pub command: Command,
    /// True if `dir` comes from the flag.
    #[arg(skip)]
    pub dir_is_flag: bool,
    /// All settings and their sources, for `halite config`.
    #[arg(skip)]
    pub settings: Vec<Setting>,
    /// `HALITE_*` variables in the environment that belong to no flag.
    #[arg(skip)]
    pub unknown: Vec<UnknownVariable>,
    /// Variables with invalid values. `halite config` reports all of them; other commands report only the variables
    /// that they read.
    #[arg(skip)]
    pub refused: Vec<String>,
}

/// Format of the log.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogFormat {
    /// One line of text per event, on standard error
    Text,
    /// One JSON object per event, on standard error
    Json,
    /// To journald, with levels and fields
    Journald,
}

/// Creates the parser of an option with these values, each with a name and a help text.
fn one_of<T: Copy + Send + Sync + 'static, const N: usize>(
    values: [T; N],
    name: fn(T) -> &'static str,
    help: fn(T) -> &'static str,
) -> impl TypedValueParser<Value = T> {
    let possible = values.map(|value| PossibleValue::new(name(value)).help(help(value)));
    let find = move |text: String| values.into_iter().find(|value| name(*value) == text);
    PossibleValuesParser::new(possible).map(move |text| find(text).expect("one of the possible values"))
}

/// Creates the parser of a network's name.
pub fn network() -> impl TypedValueParser<Value = Provider> {
    one_of(Provider::ALL, Provider::name, Provider::summary)
}

/// Flags for the networks of a node.
#[derive(Args, Clone, Debug)]
pub struct Networks {
    /// Networks, for example shm,roce; two nodes of one host that both have shm use shm [default: the networks of the
    /// first node, else shm]
    #[arg(long, env = "HALITE_FABRIC", value_parser = network(), value_delimiter = ',')]
    pub fabric: Vec<Provider>,
    /// Address of this host for roce packets
    #[arg(long, env = "HALITE_ADDRESS", value_name = "IP", default_value = "127.0.0.1", value_parser = ip_address)]
    pub address: IpAddr,
    /// Threads that only receive and answer roce packets, for hosts with many cores and peers; 0: the polling thread
    /// does this
    #[arg(
        long,
        env = "HALITE_RECEIVERS",
        value_name = "THREADS",
        default_value_t = 0,
        value_parser = clap::value_parser!(u32).range(..=64)
    )]
    pub receivers: u32,
    /// Maximum number of nodes of a cluster in which each node connects to all others when it joins; in a larger
    /// cluster a node connects to node 0, and to another node on first use. Must be equal on all nodes
    #[arg(
        long,
        env = "HALITE_FULL_MESH_NODES_MAX",
        value_name = "NODES",
        default_value_t = halite::Config::FULL_MESH_NODES_MAX as u32,
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub full_mesh_nodes_max: u32,
    /// Policy for operations of high and low priority that leave the node over a network: none, hw-sep or sw-pri;
    /// `halite set qos` changes it later
    #[arg(long, env = "HALITE_QOS", value_name = "POLICY", default_value = "none")]
    pub qos: Policy,
    /// Rate of the node's link in bytes per second, for --qos; hw-sep needs it, sw-pri measures it by default
    #[arg(long, env = "HALITE_LINK_RATE", value_name = "BYTES")]
    pub link_rate: Option<ByteCount>,
}

impl Arguments {
    /// Returns true if another process of this program, which has printed the notes already, started this process.
    fn is_internal(&self) -> bool {
        match &self.command {
            Command::Up(up) => up.parent.is_some(),
            Command::Node(node) => node.parent.is_some() || node.detached,
            Command::PerfServer(_)
            | Command::PerfFanInServer(_)
            | Command::RunWorker(_)
            | Command::RunSweep(_) => true,
            _ => false,
        }
    }

    /// Returns the variables that are probably misspelt.
    pub fn notes(&self) -> impl Iterator<Item = &UnknownVariable> {
        let is_shown = !self.is_internal() && !matches!(self.command, Command::Config(_));
        self.unknown.iter().filter(move |unknown| is_shown && unknown.is_misspelt)
    }
}

impl Networks {
    /// Returns the policy for operations of different priority.
    pub fn qos(&self) -> Qos {
        Qos { policy: self.qos, rate: self.link_rate.map(|rate| rate.0) }
    }

    pub fn flags(&self) -> Vec<String> {
        let mut flags = vec!["--address".to_owned(), self.address.to_string()];
        flags.extend(["--receivers".to_owned(), self.receivers.to_string()]);
        flags.extend(["--full-mesh-nodes-max".to_owned(), self.full_mesh_nodes_max.to_string()]);
        flags.extend(["--qos".to_owned(), self.qos.to_string()]);
        flags.extend(
            self.link_rate.into_iter().flat_map(|rate| ["--link-rate".to_owned(), rate.0.to_string()]),
        );
        if !self.fabric.is_empty() {
            let names: Vec<&str> = self.fabric.iter().map(|fabric| fabric.name()).collect();
            flags.extend(["--fabric".to_owned(), names.join(",")]);
        }
        flags
    }
}

/// Flag for the directory of names.
#[derive(Args, Clone, Debug)]
pub struct Directory {
    /// etcd that holds the names: etcd://[USER[:PASSWORD]@]HOST:PORT[,HOST:PORT...][/PREFIX][?ca=FILE&cert=FILE&key=FILE&password-file=FILE] [default: node 0 holds them]
    #[arg(long, env = "HALITE_DIRECTORY", value_name = "ETCD", hide_env_values = true)]
    pub directory: Option<EtcdAddress>,
}

/// Checks the address of another host, whose name may be given instead of an IP address.
fn host_and_port(text: &str) -> Result<String, String> {
    let (host, port) = text.rsplit_once(':').unwrap_or((text, ""));
    let is_bare = host.contains(':') && !text.starts_with('[');
    match (host, port.parse::<u16>()) {
        _ if is_bare => Err(format!("put an IPv6 address in brackets before the port, as in [{text}]:7000")),
        (_, Ok(0) | Err(_)) => {
            Err("the port is missing: give the port of --listen on that host, as in HOST:7000".to_owned())
        }
        ("", Ok(_)) => Err("the host is missing before the port".to_owned()),
        (_, Ok(_)) => Ok(text.to_owned()),
    }
}

/// Flags for connections to nodes on other hosts.
#[derive(Args, Clone, Debug)]
pub struct Hosts {
    /// TCP addresses on which this node accepts nodes of other hosts; packets use the same address. Peers try them in this order
    #[arg(long, env = "HALITE_LISTEN", value_name = "IP:PORT", value_delimiter = ',', value_parser = socket_address)]
    pub listen: Vec<SocketAddr>,
    /// TCP addresses of nodes of the cluster on other hosts, tried in this order
    #[arg(long, env = "HALITE_JOIN", value_name = "HOST:PORT", value_delimiter = ',', value_parser = host_and_port)]
    pub join: Vec<String>,
    /// Found a new cluster as node 0 if every host of --join refuses the connection, which shows that no node runs
    /// there; if a host does not answer, fail
    #[arg(long, env = "HALITE_FOUND")]
    pub found: bool,
    /// File with the secret that all hosts share; `halite secret new FILE` creates it
    #[arg(long, env = "HALITE_SECRET_FILE", value_name = "FILE")]
    pub secret_file: Option<PathBuf>,
}

impl Hosts {
    /// Returns true if the node joins other hosts without an address for them. `own` is the address for packets.
    fn lacks_own_address(&self, own: IpAddr) -> bool {
        let is_elsewhere =
            |host: &String| !["127.", "[::1]", "localhost"].iter().any(|here| host.starts_with(here));
        self.listen.is_empty() && own.is_loopback() && self.join.iter().any(is_elsewhere)
    }
}

/// Checks requirements between flags here, because the parser treats values from the file as absent.
impl Node {
    fn missing_flag(&self) -> Option<&'static str> {
        let is_spread = !self.hosts.listen.is_empty() || !self.hosts.join.is_empty();
        match (self.id, is_spread, &self.hosts.secret_file) {
            (None, false, _) => {
                Some("a node needs --id <ID>; or --listen or --join, and the cluster assigns the number")
            }
            (_, true, None) => {
                Some("--listen and --join need --secret-file <FILE>: `halite secret new FILE` creates it")
            }
            (_, true, Some(_)) if self.hosts.lacks_own_address(self.networks.address) => Some(
                "--join needs --listen <IP:PORT>, or --address <IP> for a node that accepts no connections: an address of this host that the others reach",
            ),
            _ => None,
        }
    }
}

/// The commands. Each variant has the arguments of its command.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Start a cluster of several nodes on this host; ctrl-C stops it
    Up(Up),
    /// Run one node until SIGTERM or SIGINT
    Node(Node),
    /// Stop the cluster's nodes on this host and remove their files; applications keep running unless --all is given
    Down(Down),
    /// Show the nodes; exits with status 3 if a node is dead or silent
    Status(Status),
    /// Show nodes and, with --scrape, their operations, refreshed on a terminal
    Top(Top),
    /// Move all regions of a node to other nodes, then stop the node; if a region cannot be moved, the node keeps
    /// running and the exit status is 3
    Drain(Drain),
    /// Forget a dead node and the names of its lost regions
    Forget(Forget),
    /// Copy a file into a new region
    Put(Put),
    /// Copy a region to a file or to standard output
    Get(Get),
    /// List the named regions
    Ls(Ls),
    /// Show a region's length, chunks, permissions and mappers
    Stat(Stat),
    /// Show which network, verb and path an access to a region or node takes, and why
    Explain(Explain),
    /// Free a region, or forget a lost one
    Rm(Region),
    /// Move a region to another node
    Mv(Move),
    /// Grant a permission on a region to a principal
    Grant(Grant),
    /// Revoke a permission
    Revoke(Revoke),
    /// Show each setting and its source: flag, variable, file or default
    Config(Listing),
    /// Check this host and the cluster against the configuration; exits with status 3 after warnings, 4 after errors
    Doctor(Doctor),
    /// Create the secret that authenticates the nodes of several hosts
    #[command(subcommand)]
    Secret(Secret),
    /// Show where the names of regions are stored, or move them to etcd
    #[command(subcommand)]
    Directory(DirectoryCommand),
    /// Change a setting of a running node
    #[command(subcommand)]
    Set(SetCommand),
    /// Measure latency, throughput and processor time of one operation
    Perf(perf::PerfArgs),
    /// Simulate published measurements of RDMA adapters, and show the error of each point
    Figure(figure::FigureArgs),
    /// Run an application on the cluster in --dir or on a private cluster, and verify the result
    Run(apps::RunArgs),
    /// Run whole clusters in simulated time, with faults, and check what each session observes
    Sim(sim::SimArgs),
    /// Run the server process of `halite perf`
    #[command(hide = true)]
    PerfServer(perf::ServerArgs),
    /// Run the server process of `halite perf fan_in`
    #[command(hide = true)]
    PerfFanInServer(perf::FanInArgs),
    /// Run a worker process of `halite run`
    #[command(hide = true)]
    RunWorker(apps::WorkerArgs),
    /// Free the regions of a killed `halite run`
    #[command(hide = true)]
    RunSweep(apps::SweepArgs),
}

/// Arguments of `halite up`
#[derive(Args, Debug)]
pub struct Up {
    /// Number of nodes
    #[arg(long, env = "HALITE_NODES", value_parser = clap::value_parser!(u32).range(1..=NODES_MAX))]
    pub nodes: u32,
    /// Memory that each node contributes, allocated as it is used, for example 512M or 8G
    #[arg(long, env = "HALITE_ARENA", default_value = "1G", value_name = "BYTES")]
    pub arena: ByteCount,
    /// Options for the directory of names.
    #[command(flatten)]
    pub names: Directory,
    /// Options for the networks of the nodes.
    #[command(flatten)]
    pub networks: Networks,
    /// Address for node 0's metrics (Prometheus); each next node uses the next port; port 0: the system chooses
    #[arg(long, env = "HALITE_METRICS", value_name = "IP:PORT|none", default_value_t = MetricsAt(None))]
    pub metrics: MetricsAt,
    /// Options for attached sessions.
    #[command(flatten)]
    pub sessions: SessionOptions,
    /// Return when all nodes are ready; the nodes log to DIR/logs/node-ID.log
    #[arg(long)]
    pub detach: bool,
    /// Pid of the parent; this process is killed when the parent ends
    #[arg(long, hide = true)]
    pub parent: Option<u32>,
}

/// Arguments of `halite node`
#[derive(Args, Debug)]
pub struct Node {
    /// Node number; node 0 holds the directory of names [default: 0 with --listen; with --join the cluster assigns a new one]
    #[arg(long, env = "HALITE_NODE_ID", value_parser = clap::value_parser!(u32).range(..1000))]
    pub id: Option<u32>,
    /// Memory that the node contributes, allocated as it is used, for example 512M or 8G
    #[arg(long, env = "HALITE_ARENA", default_value = "1G", value_name = "BYTES")]
    pub arena: ByteCount,
    /// Options for the directory of names.
    #[command(flatten)]
    pub names: Directory,
    /// Options for the networks of the node.
    #[command(flatten)]
    pub networks: Networks,
    /// Address for metrics (Prometheus, HTTP at /metrics); port 0: the system chooses
    #[arg(long, env = "HALITE_METRICS", value_name = "IP:PORT|none", default_value_t = MetricsAt(None))]
    pub metrics: MetricsAt,
    /// Options for attached sessions.
    #[command(flatten)]
    pub sessions: SessionOptions,
    /// Write roce packets to a pcap file for Wireshark, at most 1 GiB
    #[arg(long, value_name = "FILE")]
    pub pcap: Option<PathBuf>,
    /// Options for connections to other hosts.
    #[command(flatten)]
    pub hosts: Hosts,
    /// Seconds to move regions to other nodes after SIGTERM; SIGINT stops the node at once
    #[arg(long, env = "HALITE_DRAIN_WITHIN", value_name = "SECONDS", default_value_t = DRAIN_WITHIN_S)]
    pub drain_within: u32,
    /// Add this number of seconds to the node's wall clock, to test clusters in which the clocks of hosts differ
    #[arg(
        long,
        env = "HALITE_CLOCK_OFFSET_S",
        value_name = "SECONDS",
        default_value_t = 0,
        allow_negative_numbers = true,
        hide = true
    )]
    pub clock_offset_s: i64,
    /// Pid of the parent; this process is killed when the parent ends
    #[arg(long, hide = true)]
    pub parent: Option<u32>,
    /// Starts a new session without a terminal
    #[arg(long, hide = true, conflicts_with = "parent")]
    pub detached: bool,
}

/// Arguments of `halite status`
#[derive(Args, Debug)]
pub struct Status {
    /// Show each principal's resource use and quotas on the nodes of this host, instead of the nodes
    #[arg(long)]
    pub principals: bool,
    /// Output format.
    #[command(flatten)]
    pub listing: Listing,
}

/// Arguments of `halite top`
#[derive(Args, Debug)]
pub struct Top {
    /// Metrics addresses of nodes or applications, to show operations and peers
    #[arg(long, value_name = "IP:PORT", value_delimiter = ',')]
    pub scrape: Vec<SocketAddr>,
    /// Print once; the default if standard output is not a terminal
    #[arg(long)]
    pub once: bool,
    /// Seconds between two updates
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=3600))]
    pub interval: u16,
}

/// Arguments of `halite doctor`
#[derive(Args, Debug)]
#[command(
    after_help = "With --secret-file it joins through each host in --join as a temporary node, which tests UDP in both directions. Without, it tests TCP only."
)]
pub struct Doctor {
    /// Memory that the node contributes, for example 512M or 8G
    #[arg(long, env = "HALITE_ARENA", default_value = "1G", value_name = "BYTES")]
    pub arena: ByteCount,
    /// Options for the networks of the node.
    #[command(flatten)]
    pub networks: Networks,
    /// Address for the node's metrics
    #[arg(long, env = "HALITE_METRICS", value_name = "IP:PORT|none", default_value_t = MetricsAt(None))]
    pub metrics: MetricsAt,
    /// Options for the directory of names.
    #[command(flatten)]
    pub names: Directory,
    /// Options for connections to other hosts.
    #[command(flatten)]
    pub hosts: Hosts,
    /// Output format.
    #[command(flatten)]
    pub listing: Listing,
}

/// Arguments of `halite down`
#[derive(Args, Debug)]
pub struct Down {
    /// Also end the applications that have joined
    #[arg(long)]
    pub all: bool,
}

/// Subcommands of `halite secret`
#[derive(Subcommand, Debug)]
pub enum Secret {
    /// Write a new secret to a new file with mode 0600
    New {
        /// File to create
        file: PathBuf,
    },
}

/// Subcommands of `halite directory`
#[derive(Subcommand, Debug)]
pub enum DirectoryCommand {
    /// Show where the names of regions are stored
    Show,
    /// Move all names from node 0 to etcd while the cluster runs; all nodes use etcd from then on
    Move {
        /// etcd://[USER@]HOST:PORT[,HOST:PORT...][/PREFIX][?ca=FILE&cert=FILE&key=FILE&password-file=FILE]; each host needs these files
        #[arg(value_name = "ETCD")]
        to: EtcdAddress,
    },
    /// Move all names from etcd back to node 0 while the cluster runs; all nodes ask node 0 from then on
    Back,
}

/// Subcommands of `halite set`
#[derive(Subcommand, Debug)]
pub enum SetCommand {
    /// Set the policy for operations of high and low priority, and show it with its current limits
    Qos(SetQos),
}

/// Arguments of `halite set qos`
#[derive(Args, Debug)]
pub struct SetQos {
    /// Policy: none, hw-sep (fixed shares) or sw-pri (limits low priority while high priority needs the link) [default:
    /// show the current policy]
    pub policy: Option<Policy>,
    /// Rate of the node's link in bytes per second [default: sw-pri: as the policy measures it; otherwise the rate
    /// that the node has]
    #[arg(long, value_name = "BYTES", requires = "policy")]
    pub rate: Option<ByteCount>,
    /// A node of this host [default: any node that accepts sessions]
    #[arg(long, value_name = "NODE")]
    pub node: Option<u32>,
    #[command(flatten)]
    pub listing: Listing,
}

/// Arguments of `halite drain`
#[derive(Args, Debug)]
pub struct Drain {
    /// Number of the node
    pub node: u32,
    /// Seconds to move regions to other nodes
    #[arg(long, value_name = "SECONDS", default_value_t = DRAIN_WITHIN_S)]
    pub within: u32,
    /// Stop the node even if some regions could not be moved; those regions are lost
    #[arg(long)]
    pub destroy: bool,
}

/// Arguments of `halite forget`
#[derive(Args, Debug)]
pub struct Forget {
    /// Number of the node
    pub node: u32,
}

/// Format of a list.
#[derive(Args, Debug)]
pub struct Listing {
    /// Print one JSON object per line
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `halite ls`
#[derive(Args, Debug)]
pub struct Ls {
    /// List the servers that have names, instead of the regions
    #[arg(long)]
    pub services: bool,
    #[command(flatten)]
    pub listing: Listing,
}

/// Arguments of `halite put`
#[derive(Args, Debug)]
pub struct Put {
    /// Name of the new region
    pub name: String,
    /// File; - for standard input
    pub file: PathBuf,
    /// Node that holds the bytes [default: the node that executes the command, until another one has clearly more room]
    #[arg(long, visible_alias = "on", value_name = "NODE")]
    pub node: Option<u32>,
    /// Spread the bytes over all nodes that contribute memory
    #[arg(long, conflicts_with = "node")]
    pub spread: bool,
}

/// Arguments of `halite get`
#[derive(Args, Debug)]
pub struct Get {
    /// Name of the region
    pub name: String,
    /// File to write; it appears when all bytes are written and verified [default: standard output]
    pub file: Option<PathBuf>,
    /// The same
    #[arg(short, long, value_name = "FILE", conflicts_with = "file")]
    pub output: Option<PathBuf>,
}

impl Get {
    /// Returns the file to write; `None` for standard output.
    pub fn target(&self) -> Option<&Path> {
        self.output.as_deref().or(self.file.as_deref())
    }
}

/// Flags of commands that take only the name of a region.
#[derive(Args, Debug)]
pub struct Region {
    /// Name of the region
    pub name: String,
}

/// Arguments of `halite stat`
#[derive(Args, Debug)]
pub struct Stat {
    /// Name of the region
    pub name: String,
    /// Output format.
    #[command(flatten)]
    pub listing: Listing,
}

/// Arguments of `halite explain`
#[derive(Args, Debug)]
pub struct Explain {
    /// Name of a region, or number of a node
    #[arg(value_name = "NAME|NODE")]
    pub what: String,
    /// The argument is the name of a region, even if it is a number
    #[arg(long)]
    pub region: bool,
    /// Output format.
    #[command(flatten)]
    pub listing: Listing,
}

/// Arguments of `halite mv`
#[derive(Args, Debug)]
pub struct Move {
    /// Name of the region
    pub name: String,
    /// Target node
    #[arg(long, value_name = "NODE")]
    pub to: u32,
}

/// Arguments of `halite grant`
#[derive(Args, Debug)]
pub struct Grant {
    /// Name of the region
    pub name: String,
    /// Principal (by default a Unix user name), or `everyone` for all principals without a grant
    pub who: String,
    /// Letters: r read, w write, a atomic, m master; or `none` for no access
    #[arg(value_parser = letters::parse, value_name = "rwam|none")]
    pub permissions: Permissions,
}

/// Arguments of `halite revoke`
#[derive(Args, Debug)]
pub struct Revoke {
    /// Name of the region
    pub name: String,
    /// Principal (by default a Unix user name), or `everyone` for all principals without a grant
    pub who: String,
    /// Letters: r read, w write, a atomic, m master
    #[arg(value_parser = letters::parse_some, value_name = "rwam")]
    pub permissions: Permissions,
}

/// Parses the command line, with defaults from the environment and the configuration file. Prints help or an error and
/// exits if there is no command to run.
pub fn parse() -> Arguments {
    let words: Vec<OsString> = std::env::args_os().collect();
    // A name that is not UTF-8 cannot be one of this program's variables.
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let unknown = settings::unknown_variables(&Arguments::command(), names);
    match parse_from(words, |variable| Some(std::env::var_os(variable)?.to_string_lossy().into_owned())) {
        Ok(arguments) => Arguments { unknown, ..arguments },
        Err(error) => error.exit(),
    }
}

/// Parses `words` as [`parse`] does. `environment` returns the value of a variable; the parser also reads variables by
/// itself.
fn parse_from(
    words: Vec<OsString>,
    environment: impl Fn(&str) -> Option<String>,
) -> Result<Arguments, clap::Error> {
    let command = Arguments::command();
    let settings = Settings::find(&command, words.clone())
        .map_err(|error| Arguments::command().error(ErrorKind::Io, error))?;
    let with_defaults = match &settings {
        Some(settings) => settings.apply(command.clone()),
        None => command.clone(),
    };
    let file_source =
        |error: &clap::Error| settings.as_ref().and_then(|settings| settings.source_of_error(error));
    let variable_source = |error: &clap::Error| match error.kind() {
        // The parser's error does not name the variable.
        ErrorKind::InvalidUtf8 => settings::refused_variables(&command, &environment).into_iter().next(),
        _ => settings::variable_of_error(&command, error, &environment),
    };
    let add_source = |error: clap::Error| {
        let line = first_line(&error);
        let text = settings::without_password(&error, &line);
        match file_source(&error).or_else(|| variable_source(&error)) {
            Some(source) => Arguments::command().error(error.kind(), format!("{text}\n  {source}")),
            None if text != line => Arguments::command().error(error.kind(), text),
            None => error,
        }
    };
    let matches = with_defaults.try_get_matches_from(words).map_err(add_source)?;
    let mut arguments = Arguments::from_arg_matches(&matches)?;
    if let Command::Node(node) = &arguments.command
        && let Some(missing) = node.missing_flag()
    {
        return Err(Arguments::command().error(ErrorKind::MissingRequiredArgument, missing));
    }
    arguments.dir_is_flag = matches.value_source("dir") == Some(ValueSource::CommandLine);
    if let Command::Config(_) = arguments.command {
        arguments.settings = settings::effective(&command, &matches, settings.as_ref(), &environment);
        arguments.refused = settings::refused_variables(&command, &environment);
    }
    Ok(arguments)
}

/// Returns the first line of the message, without the hints that follow.
fn first_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let lines: Vec<&str> = text.lines().take_while(|line| !line.is_empty()).collect();
    let text = lines.join("\n");
    text.strip_prefix("error: ").unwrap_or(&text).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(line: &str) -> Result<Command, clap::Error> {
        let words = std::iter::once("halite").chain(line.split_whitespace());
        Arguments::try_parse_from(words).map(|arguments| arguments.command)
    }

    #[test]
    fn command_line_definition_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn help_lists_every_command() {
        for command in Arguments::command().get_subcommands().filter(|command| !command.is_hide_set()) {
            assert!(GROUPS.iter().any(|(_, names)| names.contains(&command.get_name())), "{command}");
        }
    }

    /// Parses a line with `text` in the configuration file.
    fn with_file(text: &str, line: &str) -> Result<Arguments, clap::Error> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let line = line.replace("FILE", file.path().to_str().unwrap());
        let environment = |variable: &str| (variable == "HALITE_FABRIC").then(|| "shm".to_owned());
        parse_from(line.split_whitespace().map(OsString::from).collect(), environment)
    }

    #[test]
    fn required_flags_may_be_in_the_file() {
        let node = |text, line| match with_file(text, line).map(|arguments| arguments.command) {
            Ok(Command::Node(node)) => Ok((node.id, node.hosts.listen.len())),
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err(error.to_string()),
        };
        let both = "listen = '127.0.0.1:0'\nsecret_file = '/s'";
        assert_eq!(node(both, "halite node --config FILE"), Ok((None, 1)));
        assert_eq!(node("secret_file = '/s'", "halite node --config FILE --listen [::1]:0"), Ok((None, 1)));
        assert_eq!(node("node_id = 3", "halite node --config FILE"), Ok((Some(3), 0)));
        let lacks = |text, line| node(text, line).unwrap_err();
        assert!(
            lacks("", "halite node --config FILE").contains("a node needs --id <ID>; or --listen or --join")
        );
        // --listen comes from the file, which the parser treats as absent.
        let alone = lacks("listen = '127.0.0.1:0'", "halite node --config FILE --id 0");
        assert!(alone.contains("need --secret-file <FILE>"), "{alone}");
        assert!(lacks("", "halite node --config FILE --join x:1").contains("need --secret-file <FILE>"));
        let no_address = lacks("secret_file = '/s'", "halite node --config FILE --join x:1");
        assert!(no_address.contains("--join needs --listen <IP:PORT>"), "{no_address}");
        // Nodes that accept no connections, or join only nodes of their own host.
        node("secret_file = '/s'", "halite node --config FILE --join x:1 --address 10.0.0.2").unwrap();
        node("secret_file = '/s'", "halite node --config FILE --join 127.0.0.2:1").unwrap();
    }

    #[test]
    fn lists_may_be_tables_in_the_file() {
        let text = "[quotas]\nwaits = 64\nmemory = '256M'\n[principals]\nuser.ada = 'a'\ngroup.dev = 'team'";
        let sessions = |text| match with_file(text, "halite node --id 0 --config FILE") {
            Ok(Arguments { command: Command::Node(node), .. }) => Ok(node.sessions.flags()[2..].join(" ")),
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err(error.to_string()),
        };
        let flags = "--quotas memory=268435456,waits=64 --principals group.dev=team,user.ada=a";
        assert_eq!(sessions(text).as_deref(), Ok(flags));
        let refused = sessions("[quotas]\nwalls = 64").unwrap_err();
        assert!(refused.contains("one of the names sessions, memory"), "{refused}");
        assert!(sessions("[principals]\nada = ''").unwrap_err().contains("user.NAME=PRINCIPAL"));
    }

    #[test]
    fn join_takes_hosts_with_ports() {
        let join = |host: &str| {
            let line = format!("halite node --secret-file /s --listen 127.0.0.1:0 --join {host}");
            command(line.strip_prefix("halite ").unwrap()).map(drop).map_err(|error| error.to_string())
        };
        for host in ["10.0.0.1:7000", "[fd00::1]:7000", "ten:7000,eleven:7000"] {
            join(host).unwrap();
        }
        for (host, why) in [
            ("ten:7000,eleven", "the port is missing"),
            ("10.0.0.1:0", "the port is missing"),
            ("[fd00::1]", "the port is missing"),
            ("fd00::1", "as in [fd00::1]:7000"),
            (":7000", "the host is missing"),
        ] {
            let complaint = join(host).unwrap_err();
            assert!(complaint.contains(why), "{host}: {complaint}");
        }
    }
}
