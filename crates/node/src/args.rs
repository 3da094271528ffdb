//! The command line, and the `HALITE_*` variables that stand in for flags that are not given.

use std::path::PathBuf;

use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};

use crate::bytes::ByteCount;
use crate::letters;
use crate::limits::NODES_MAX;
use crate::perf;
use crate::sim;
use halite::Permissions;

/// Named, permissioned, movable memory that processes share
#[derive(Parser, Debug)]
#[command(name = "halite", version, max_term_width = 100)]
pub struct Arguments {
    /// Directory of the cluster [default: $XDG_RUNTIME_DIR/halite, else /tmp/halite-UID]
    #[arg(long, global = true, env = "HALITE_DIR", value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Tells on standard error what happens in the cluster; twice, more of it
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub verbose: u8,
    /// What is told: error, warn, info, debug or trace, or filters as halite=debug [default: info for detached nodes,
    /// warn for others, error for commands]
    #[arg(long, global = true, env = "HALITE_LOG", value_name = "FILTER", conflicts_with = "verbose")]
    pub log: Option<String>,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The networks that a cluster can use.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fabric {
    /// Shared memory between the processes of one host
    Shm,
}

impl Fabric {
    /// As flags and results name it.
    pub fn name(self) -> &'static str {
        match self {
            Fabric::Shm => "shm",
        }
    }
}

/// One variant for each command.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Starts a cluster of several nodes on this host, and stops it again on ctrl-C
    Up(Up),
    /// Runs one node until it is asked to end
    Node(Node),
    /// Stops the nodes of the cluster and removes what they left; applications that joined it stay
    Down(Down),
    /// Shows the nodes; exits with status 3 if one is dead or silent
    Status(Listing),
    /// Forgets a dead node, and the names of what was lost with it
    Forget(Forget),
    /// Copies a file into a new region
    Put(Put),
    /// Copies a region into a file, or to standard output
    Get(Get),
    /// Lists the regions that have names
    Ls(Listing),
    /// Shows a region
    Stat(Stat),
    /// Tells which way bytes take to a region or a node, and why
    Explain(Explain),
    /// Frees a region, or forgets one that was lost
    Rm(Region),
    /// Moves a region to another node
    Mv(Move),
    /// Permits somebody something on a region
    Grant(Grant),
    /// Takes a permission back
    Revoke(Revoke),
    /// Measures
    Perf(perf::PerfArgs),
    /// Runs whole clusters in simulated time, with faults, and checks what each session sees
    Sim(sim::SimArgs),
    /// The other end of a measurement
    #[command(hide = true)]
    PerfServer(perf::ServerArgs),
}

/// `halite up`
#[derive(Args, Debug)]
pub struct Up {
    /// How many nodes
    #[arg(long, env = "HALITE_NODES", value_parser = clap::value_parser!(u32).range(1..=NODES_MAX))]
    pub nodes: u32,
    /// Memory that each node contributes, taken from the system as it is used, as 512M or 8G
    #[arg(long, env = "HALITE_ARENA", default_value = "1G", value_name = "BYTES")]
    pub arena: ByteCount,
    /// Network between the nodes
    #[arg(long, env = "HALITE_FABRIC", value_enum, default_value_t = Fabric::Shm)]
    pub fabric: Fabric,
    /// Returns as soon as all nodes are ready; they write to DIR/logs/node-ID.log
    #[arg(long)]
    pub detach: bool,
    /// The process to end with
    #[arg(long, hide = true)]
    pub parent: Option<u32>,
}

/// `halite node`
#[derive(Args, Debug)]
pub struct Node {
    /// Number of the node; 0 hosts the directory of names
    #[arg(long, env = "HALITE_NODE_ID", value_parser = clap::value_parser!(u32).range(..1000))]
    pub id: u32,
    /// Memory that the node contributes, taken from the system as it is used, as 512M or 8G
    #[arg(long, env = "HALITE_ARENA", default_value = "1G", value_name = "BYTES")]
    pub arena: ByteCount,
    /// The process to end with
    #[arg(long, hide = true)]
    pub parent: Option<u32>,
    /// Leaves the terminal alone
    #[arg(long, hide = true, conflicts_with = "parent")]
    pub detached: bool,
}

/// `halite down`
#[derive(Args, Debug)]
pub struct Down {
    /// Ends the applications that have joined, too
    #[arg(long)]
    pub all: bool,
}

/// `halite forget`
#[derive(Args, Debug)]
pub struct Forget {
    /// Number of the node
    pub node: u32,
}

/// How a list is printed.
#[derive(Args, Debug)]
pub struct Listing {
    /// Prints one JSON object per line
    #[arg(long)]
    pub json: bool,
}

/// `halite put`
#[derive(Args, Debug)]
pub struct Put {
    /// Name of the new region
    pub name: String,
    /// The file; - for standard input
    pub file: PathBuf,
    /// Node to hold the bytes [default: one with room]
    #[arg(long, value_name = "NODE")]
    pub node: Option<u32>,
    /// Spreads the bytes over all nodes that contribute memory
    #[arg(long, conflicts_with = "node")]
    pub spread: bool,
}

/// `halite get`
#[derive(Args, Debug)]
pub struct Get {
    /// Name of the region
    pub name: String,
    /// Where to write; the file appears when all bytes are there and verified [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// A command that needs to know the region only.
#[derive(Args, Debug)]
pub struct Region {
    /// Name of the region
    pub name: String,
}

/// `halite stat`
#[derive(Args, Debug)]
pub struct Stat {
    /// Name of the region
    pub name: String,
    /// How to print.
    #[command(flatten)]
    pub listing: Listing,
}

/// `halite explain`
#[derive(Args, Debug)]
pub struct Explain {
    /// Name of a region, or number of a node
    #[arg(value_name = "NAME|NODE")]
    pub what: String,
    /// How to print.
    #[command(flatten)]
    pub listing: Listing,
}

/// `halite mv`
#[derive(Args, Debug)]
pub struct Move {
    /// Name of the region
    pub name: String,
    /// Where to
    #[arg(long, value_name = "NODE")]
    pub to: u32,
}

/// `halite grant`
#[derive(Args, Debug)]
pub struct Grant {
    /// Name of the region
    pub name: String,
    /// A principal (by default, Unix user), or `everyone` for those who are not named
    pub who: String,
    /// Letters: r read, w write, a atomic, m master; or `none`, which takes everything
    #[arg(value_parser = letters::parse, value_name = "rwam|none")]
    pub permissions: Permissions,
}

/// `halite revoke`
#[derive(Args, Debug)]
pub struct Revoke {
    /// Name of the region
    pub name: String,
    /// A principal (by default, Unix user), or `everyone` for those who are not named
    pub who: String,
    /// Letters: r read, w write, a atomic, m master
    #[arg(value_parser = letters::parse_some, value_name = "rwam")]
    pub permissions: Permissions,
}

/// Reads the command line; prints help or complaints and exits if that is all there is to do.
pub fn parse() -> Arguments {
    Arguments::parse()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn command(line: &str) -> Result<Command, clap::Error> {
        let words = std::iter::once("halite").chain(line.split_whitespace());
        Arguments::try_parse_from(words).map(|arguments| arguments.command)
    }

    #[test]
    fn the_command_line_contradicts_itself_nowhere() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn the_directory_may_stand_before_or_after_the_command() {
        for line in ["halite --dir /d status", "halite status --dir /d"] {
            let arguments = Arguments::try_parse_from(line.split_whitespace()).unwrap();
            assert_eq!(arguments.dir, Some(PathBuf::from("/d")), "{line}");
        }
    }

    #[test]
    fn up_wants_a_number_of_nodes_and_reads_sizes() {
        let Ok(Command::Up(up)) = command("up --nodes 3 --arena 8G --detach") else { panic!() };
        assert_eq!((up.nodes, up.arena, up.detach, up.fabric), (3, ByteCount(8 << 30), true, Fabric::Shm));
        assert!(command("up --nodes 0").is_err());
        assert!(command("up --nodes 256").is_ok());
        assert!(command("up --nodes 257").is_err());
        assert!(command("up --nodes 3 --arena much").is_err());
        assert!(command("up --nodes 3 --fabric pigeon").is_err());
    }

    #[test]
    fn numbers_of_passing_nodes_cannot_be_taken() {
        assert!(command("node --id 999").is_ok());
        assert!(command("node --id 1000").is_err());
    }

    #[test]
    fn permissions_are_letters() {
        let Ok(Command::Grant(grant)) = command("grant model everyone r") else { panic!() };
        assert_eq!((grant.who.as_str(), grant.permissions), ("everyone", Permissions::READ));
        assert!(command("grant model bob none").is_ok());
        assert!(command("grant model bob x").is_err());
        assert!(command("revoke model bob none").is_err());
    }

    #[test]
    fn a_file_goes_to_one_node_or_to_all() {
        assert!(command("put name - --node 2").is_ok());
        assert!(command("put name file --spread").is_ok());
        assert!(command("put name file --spread --node 2").is_err());
    }
}
