//! Nodes of this process with names in a private etcd from Debian's package.

use halite::{Config, EtcdAddress, JoinError, Node, NodeId};
use tempfile::TempDir;

use super::cluster::{Harness, Nodes, Place, Sessions};
use super::embedded::{self, Embedded};
use daemon::Daemon;

/// Starts the etcd daemon. The tests of the `halite` program share this file.
#[path = "../../../cli/tests/support/etcd/daemon.rs"]
mod daemon;

/// Nodes that reach each other's memory by loads and stores, as [`Direct`](embedded::Direct) does, but with names in
/// etcd.
pub struct NamesInEtcd;

impl Harness for NamesInEtcd {
    fn cannot(&self, case: &str) -> Option<&'static str> {
        embedded::cannot(case).or_else(lacks_etcd)
    }

    fn create(&self) -> Box<dyn Place> {
        Box::new(Beside { nodes: Embedded::new(Node::embedded), etcd: Etcd::start() })
    }
}

fn lacks_etcd() -> Option<&'static str> {
    (!daemon::is_installed()).then_some("etcd is not installed (`apt-get install etcd-server`)")
}

/// Nodes, and the etcd with their names.
struct Beside {
    // Dropped before their etcd.
    nodes: Embedded,
    etcd: Etcd,
}

impl Nodes for Beside {
    fn start(&self, config: Config) -> Result<(), JoinError> {
        self.nodes.start(Config { directory: Some(self.etcd.address()), ..config })
    }

    fn leave(&self, node: NodeId) {
        self.nodes.leave(node);
    }

    fn kill(&self, node: NodeId) {
        self.nodes.kill(node);
    }

    fn pid(&self, node: NodeId) -> u32 {
        self.nodes.pid(node)
    }
}

impl Sessions for Beside {
    fn session(&self, node: NodeId) -> halite::Session {
        self.nodes.session(node)
    }
}

/// An etcd with its files in memory.
struct Etcd {
    #[expect(dead_code, reason = "dropping it stops the daemon")]
    daemon: Daemon,
    port: u16,
    #[expect(dead_code, reason = "dropping it removes the directory")]
    data: TempDir,
}

impl Etcd {
    fn start() -> Etcd {
        let data = tempfile::tempdir_in("/dev/shm").expect("a temporary directory is created");
        // Short timeouts, so that it elects itself at once.
        let flags = ["--heartbeat-interval=10", "--election-timeout=50"].map(str::to_owned);
        let (daemon, ports) = Daemon::start(&data.path().join("data"), "http", &flags);
        Etcd { daemon, port: ports.clients, data }
    }

    fn address(&self) -> EtcdAddress {
        format!("etcd://127.0.0.1:{}/case", self.port).parse().expect("the address is valid")
    }
}
