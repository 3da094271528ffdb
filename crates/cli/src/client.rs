//! Connects a command to the cluster: attaches it to a node of this host, or joins as an ephemeral node without memory.

use std::error::Error;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Once, OnceLock};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use halite::cluster_dir::{self, ClusterDirError, Presence};
use halite::{
    AccessCause, AccessError, AttachError, Config, CopyError, EPHEMERAL_NODE_MIN, JoinError, Node, NodeId,
    Policy, Priority, QosError, RegionCause, RegionError, blocking,
};
use halite_providers::private_dir::DirError;

use crate::output;
use crate::threads;
use crate::transport;

/// Time after which a command says that it waits for a node.
const SILENCE_NOTED: Duration = Duration::from_secs(1);

/// Name of node 0 in errors about connections.
const NODE_0: &str = "node 0";

/// True if commands do not attach.
static EMBEDS: OnceLock<bool> = OnceLock::new();
/// Priority of the command's operations; by default the highest that the principal may have.
static PRIORITY: OnceLock<Priority> = OnceLock::new();

/// Set by the warning about a priority without effect.
static HAS_WARNED: Once = Once::new();

/// Sets the values of `--embed` and `--priority` once, before the command runs.
pub fn set_options(embeds: bool, priority: Option<Priority>) {
    EMBEDS.get_or_init(|| embeds);
    priority.map(|priority| PRIORITY.get_or_init(|| priority));
}

/// Returns the value of `--priority`.
pub fn priority() -> Option<Priority> {
    PRIORITY.get().copied()
}

/// Returns the flags that give another process of the command the same priority.
pub fn priority_flags() -> Vec<String> {
    priority().map_or(Vec::new(), |priority| vec!["--priority".to_owned(), priority.to_string()])
}

/// Returns the session with the command's priority. Fails if the principal may not have it. Warns once if the priority
/// has no effect.
pub fn with_priority(session: blocking::Session) -> Result<blocking::Session, QosError> {
    let Some(priority) = priority() else { return Ok(session) };
    let session = session.with_priority(priority)?;
    let now = session.qos()?;
    if now.qos.policy == Policy::None {
        HAS_WARNED.call_once(|| {
            let node = now.node;
            output::note(&format!("`--priority {priority}` has no effect: node {node}, which executes the operations of this command, has the policy none"));
        });
    }
    Ok(session)
}

/// Attaches to a node of this host in the cluster directory, or joins the cluster as a node if no node accepts sessions.
pub fn attach(dir: &Path) -> anyhow::Result<Client> {
    if EMBEDS.get() != Some(&true) && !must_join(dir)? {
        match attach_to_any(dir) {
            Ok(session) => return Ok(Client::attached(session)?),
            Err(AttachError::NoNode { .. }) if belongs_to_other_user(dir) => {
                let (dir, owner) = (dir.display(), std::fs::metadata(dir)?.uid());
                bail!("no node runs in {dir}, which belongs to user {owner}: only this user can start one");
            }
            // Joining then either reports the same reason or succeeds.
            Err(AttachError::NoNode { .. } | AttachError::Io { .. }) => {}
            Err(refused) => return Err(refused.into()),
        }
    }
    Client::join(dir)
}

/// Attaches to a node of this host. Prints a note if the node does not answer soon.
fn attach_to_any(dir: &Path) -> Result<blocking::Session, AttachError> {
    std::thread::scope(|scope| {
        let (attached, is_attached) = channel::<()>();
        let _ = threads::spawn_in(scope, move || {
            if is_attached.recv_timeout(SILENCE_NOTED) == Err(RecvTimeoutError::Timeout) {
                let dir = dir.display();
                output::note(&format!(
                    "a node in {dir} does not answer; its process may be stopped; trying for 10 s each"
                ));
            }
        });
        let session = blocking::Session::attach(dir);
        drop(attached);
        session
    })
}

/// Returns true if the cluster directory belongs to another user, so that this command can only attach.
pub fn belongs_to_other_user(dir: &Path) -> bool {
    let own = rustix::process::geteuid().as_raw();
    EMBEDS.get() != Some(&true) && std::fs::metadata(dir).is_ok_and(|found| found.uid() != own)
}

/// Joins the cluster in `dir`, or attaches to a node of another user.
pub fn join_or_attach(dir: &Path) -> anyhow::Result<Client> {
    match belongs_to_other_user(dir) {
        true => attach(dir),
        false => Client::join(dir),
    }
}

/// Joins the cluster in `dir` for a command that only reads, or attaches to a node of another user. Joining succeeds
/// even if node 0 is unreachable.
pub fn observe(dir: &Path) -> anyhow::Result<Client> {
    match belongs_to_other_user(dir) {
        true => attach(dir),
        false => Client::join_as_observer(dir),
    }
}

/// Attaches to a node of this host other than `node`, so that the command sees that node's connection to `node`. Calls
/// [`join_or_attach`] if no other node of this host accepts sessions.
pub fn attach_to_other(dir: &Path, node: NodeId) -> anyhow::Result<Client> {
    match attach_where(dir, |other| other != node) {
        Some(session) => Ok(Client::attached(session)?),
        None => join_or_attach(dir),
    }
}

/// Attaches to `node`, if it is a node of this host that accepts sessions.
pub fn attach_to(dir: &Path, node: NodeId) -> Option<Client> {
    Client::attached(attach_where(dir, |other| other == node)?).ok()
}

/// Attaches to the first permanent node of this host for which `accept` returns true. Returns `None` if none accepts a
/// session, if the cluster directory belongs to another user, and with `--embed`.
pub fn attach_where(dir: &Path, accept: impl Fn(NodeId) -> bool) -> Option<blocking::Session> {
    if EMBEDS.get() == Some(&true) {
        return None;
    }
    let is_accepted =
        |found: &Presence| found.alive && found.node.0 < EPHEMERAL_NODE_MIN && accept(found.node);
    let nodes = cluster_dir::nodes(dir).unwrap_or_default().into_iter().filter(is_accepted);
    nodes.map(|found| blocking::Session::attach_to(dir, found.node)).find_map(Result::ok)
}

/// Adds to an error about an unreachable node the reason that a node of this host knows.
pub fn add_reason(dir: &Path, error: anyhow::Error) -> anyhow::Error {
    let reason_of = |node| {
        let session = match EMBEDS.get() {
            Some(true) => None,
            _ => blocking::Session::attach(dir).ok(),
        };
        session?.seen(node)?.reason
    };
    match error.chain().find_map(unreachable_node).and_then(reason_of) {
        Some(reason) => anyhow!("{} ({reason})", output::error_chain(&error)),
        None => error,
    }
}

fn unreachable_node(error: &(dyn Error + 'static)) -> Option<NodeId> {
    let of_access = |cause: &AccessCause| match cause {
        AccessCause::LinkLost(node) | AccessCause::PeerDown(node) => Some(*node),
        _ => None,
    };
    if let Some(error) = error.downcast_ref::<RegionError>() {
        return match error.cause {
            RegionCause::PeerDown(node) | RegionCause::NotMet(node) => Some(node),
            RegionCause::DirectoryUnreachable { .. } => Some(NodeId(0)),
            _ => None,
        };
    }
    let cause = error.downcast_ref::<AccessCause>();
    let access = cause.or_else(|| error.downcast_ref::<AccessError>().map(AccessError::cause));
    let copy = || error.downcast_ref::<CopyError>().map(CopyError::cause);
    access.or_else(copy).and_then(of_access)
}

/// A session of a node of this host, or of a node that exists for the length of one command.
pub struct Client {
    pub session: blocking::Session,
    // Leaves when dropped, after the session.
    node: Option<Node>,
}

impl Client {
    /// Joins the cluster in `dir` as a node.
    pub fn join(dir: &Path) -> anyhow::Result<Client> {
        Client::joined(Node::client(config(dir)), dir)
    }

    /// Joins the cluster in `dir` as a node that only reads. Succeeds even if node 0 is unreachable.
    fn join_as_observer(dir: &Path) -> anyhow::Result<Client> {
        Client::joined(Node::observer(config(dir)), dir)
    }

    fn joined(node: Result<Node, JoinError>, dir: &Path) -> anyhow::Result<Client> {
        let node = node.map_err(|error| explain(error, dir))?;
        Ok(Client { session: with_priority(node.blocking_session())?, node: Some(node) })
    }

    fn attached(session: blocking::Session) -> Result<Client, QosError> {
        Ok(Client { session: with_priority(session)?, node: None })
    }

    /// Returns the number of the command's own node, if it has joined as one.
    pub fn own_node(&self) -> Option<NodeId> {
        self.node.as_ref().map(Node::id)
    }

    /// Returns the node that lists the members in place of an unreachable node 0. Returns `None` if node 0 lists them,
    /// and for an attached session.
    pub fn membership_source(&self) -> Option<NodeId> {
        self.node.as_ref().map(Node::membership_source).filter(|node| *node != NodeId(0))
    }
}

/// Returns the nodes that are alive and contribute memory, in the order of their numbers.
pub fn memory_nodes(session: &blocking::Session) -> anyhow::Result<Vec<NodeId>> {
    let nodes = session.status().context("cannot list the nodes")?;
    let with_memory = nodes.into_iter().filter(|node| node.state.is_there() && node.bytes_total > 0);
    Ok(with_memory.map(|node| node.node).collect())
}

fn config(dir: &Path) -> Config {
    Config { dir: dir.to_owned(), node: None, arena_bytes: 0, ..transport::config() }
}

/// Formats the command that restarts node 0 while other nodes run.
pub fn restart_advice(dir: &Path) -> String {
    let hosts = match cluster_dir::has_hosts(dir) {
        true => " --listen IP:PORT --secret-file FILE --join HOST:PORT",
        false => "",
    };
    format!("`halite node --id 0{hosts} --dir {}` starts it again", dir.display())
}

/// Formats the message that there is no cluster, with commands that start or join one.
pub fn no_cluster(dir: &Path) -> String {
    format!(
        "there is no cluster in {0}: `halite up --nodes 2 --dir {0}` starts one on this host, and `halite node --listen IP:PORT --secret-file FILE --join HOST:PORT --dir {0}` joins one of other hosts; --dir or HALITE_DIR names another directory, such as that of another user",
        dir.display()
    )
}

/// Returns true if the command must join rather than attach, because joining reports what to do: node 0, which has the
/// names, has ended, or this host has lost its addresses. Fails if the directory holds a file that is not Halite's.
fn must_join(dir: &Path) -> anyhow::Result<bool> {
    match cluster_dir::nodes(dir) {
        Ok(nodes) => {
            let is_cut_off = match cluster_dir::has_hosts(dir) {
                true => cluster_dir::has_lost_addresses(dir),
                false => !nodes.iter().any(|node| node.node == NodeId(0) && node.alive),
            };
            Ok(nodes.iter().any(|node| node.alive) && is_cut_off)
        }
        Err(error @ ClusterDirError::Dir(DirError::Foreign { .. })) => Err(error.into()),
        // The directory belongs to another user, whose nodes may still accept sessions.
        Err(_) => Ok(false),
    }
}

fn has_living_node(dir: &Path) -> bool {
    cluster_dir::nodes(dir).is_ok_and(|nodes| nodes.iter().any(|node| node.alive))
}

/// Adds the next step for the user, if it is known.
fn explain(error: JoinError, dir: &Path) -> anyhow::Error {
    match error {
        // Living nodes wait for node 0; a new cluster cannot start until they have ended.
        JoinError::NoCluster { .. } if has_living_node(dir) => {
            anyhow!("node 0 of the cluster in {0} is not running: {1}", dir.display(), restart_advice(dir))
        }
        JoinError::NoCluster { .. } => {
            anyhow!(no_cluster(dir))
        }
        JoinError::Unreachable { ref address, .. } if address == NODE_0 && cluster_dir::has_hosts(dir) => {
            anyhow!("{error}; if node 0 has ended, {}", restart_advice(dir))
        }
        other => other.into(),
    }
}
