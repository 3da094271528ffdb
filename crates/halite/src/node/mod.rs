//! Nodes: joining the cluster of a directory, and leaving it.
//!
//! Everything of a node is put together here: its files and networks ([`crate::cluster`]), what moves it ([`crate::driver`]), and what
//! it is asked for ([`crate::session`], metrics).  Nothing of this crate calls back.  The only locks are those of files.

mod collect;
pub(crate) mod driven;
pub(crate) mod inner;
mod responder;
pub(crate) mod scout;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use halite_fabric::{ConnectFailure, Fabric};
use halite_tier::ids::{NodeId, NodeLife};

use self::inner::{Checked, FIRST_PATIENCE, NodeInner};
use self::responder::{Bound, Responder};
use crate::blocking;
use crate::cluster::cluster_dir::{self, ClusterDir, JoinLock, Listeners, NodeLock, TakenNumbers};
use crate::cluster::config::{Config, EPHEMERAL_NODE_MIN};
use crate::cluster::etcd::{EtcdAddress, Registration};
use crate::cluster::networks::{self, MetHosts, NodeIdentity, Provider};
use crate::cluster::ways::{self, Ways};
use crate::driver::drained::DrainedNode;
use crate::driver::leaving::{self, Leaving};
use crate::driver::progress::ProgressThread;
use crate::driver::runner::Runner;
use crate::error::JoinError;
use crate::metrics::Metrics;
use crate::runtime::env::NodeEnv;
use crate::session::Session;

/// Numbers of passing nodes where there are other hosts have it, and are random else.
const PASSING_NODE_BIT: u32 = 1 << 31;

/// So many nodes, of those with the lowest numbers on its host, a node asks where the first one is, if that is not among them.
const GUIDES: usize = 3;

/// How long others may take to join: each of their connections has two seconds to come about.
const JOIN_PATIENCE: Duration = Duration::from_secs(10);

/// One node of the cluster, in this process.  Leaves when dropped.
///
/// A process that embeds a node is trusted by all nodes of its cluster directory.
pub struct Node {
    inner: NodeInner,
    /// Both are there until the node leaves; in this order.
    progress_thread: Option<ProgressThread>,
    lock: Option<NodeLock>,
    responder: Option<Responder>,
    lease: Duration,
    addresses: Vec<SocketAddr>,
    /// Its word in etcd, by which nodes of other hosts find it.
    registration: Option<Registration>,
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node").field("life", &self.inner.life).finish_non_exhaustive()
    }
}

/// Joining.
impl Node {
    /// Joins the cluster of `config.dir`, over the networks of `config`.
    pub fn embedded(config: Config) -> Result<Node, JoinError> {
        Node::wrap(config, |fabric| fabric)
    }

    /// A number for a node of `config`, which is to stay and meets other hosts: the directory gives each out once.
    pub fn take_number(config: &Config) -> Result<NodeId, JoinError> {
        let mut config = config.clone();
        if config.directory.is_some() && !join_by_etcd(&mut config)? && lacks_join(&config) {
            // Nobody is there yet.
            return Ok(NodeId::FIRST);
        }
        scout::take_number(&config)
    }

    /// As [`Node::embedded`], with middleware around the fabric.
    pub fn wrap(
        config: Config,
        wrap: impl FnOnce(Arc<dyn Fabric>) -> Arc<dyn Fabric>,
    ) -> Result<Node, JoinError> {
        let open = |config: &Config, providers: &[Provider], identity: &NodeIdentity| {
            networks::open(config, providers, identity).map(wrap)
        };
        Node::join(config, FIRST_PATIENCE, open)
    }

    /// As [`Node::embedded`], but what others say of where the first node is must come true in that time.
    pub(crate) fn embedded_within(config: Config, first_patience: Duration) -> Result<Node, JoinError> {
        Node::join(config, first_patience, networks::open)
    }

    /// As [`Node::embedded`], over the fabric that `open` opens.  It listens for the networks of `config`, of which the first
    /// is meant where an address says none.
    pub fn with_fabric(
        config: Config,
        open: impl FnOnce(&NodeIdentity) -> Result<Arc<dyn Fabric>, JoinError>,
    ) -> Result<Node, JoinError> {
        Node::join(config, FIRST_PATIENCE, |_, _, identity| open(identity))
    }

    fn join(
        config: Config,
        first_patience: Duration,
        open: impl FnOnce(&Config, &[Provider], &NodeIdentity) -> Result<Arc<dyn Fabric>, JoinError>,
    ) -> Result<Node, JoinError> {
        config.check()?;
        // Before anybody knows of the node: an address that cannot be had is an error that costs nobody anything.
        let bound = match config.metrics {
            Some(address) => {
                Some(Bound::at(address).map_err(|source| JoinError::Metrics { address, source })?)
            }
            None => None,
        };
        let mut checked = Checked::new(config)?;
        let is_by_etcd = join_by_etcd(&mut checked.config)?;
        let config = &checked.config;
        let join = config.hosts.as_ref().map(|hosts| hosts.join.clone()).unwrap_or_default();
        let found = match (&config.hosts, config.node) {
            // The first node is what others would be asked about.
            (Some(hosts), Some(NodeId::FIRST)) if !join.is_empty() => {
                scout::look_for_first(config, hosts)?;
                None
            }
            (Some(hosts), Some(node)) if !join.is_empty() => Some(scout::look(config, hosts, node)?),
            _ => None,
        };
        let dir = match config.node {
            Some(node) if node.0 >= EPHEMERAL_NODE_MIN => return Err(not_to_be_chosen(node)),
            Some(_) => ClusterDir::found(&config.dir)?,
            // Who comes to join leaves a place where nobody is as it is.
            None => ClusterDir::open(&config.dir)?,
        };
        let env = NodeEnv::process(config.clock_offset_s);
        let incarnation = inner::new_incarnation(&env);
        let etcd = etcd_of(config, &dir)?;
        let _joining = JoinLock::take(&dir, incarnation, JOIN_PATIENCE)?;
        dir.clean_residue()?;
        let hosts = MetHosts::of(config, &dir)?;
        // Of several hosts none can count for all: a number that nobody else has is one of many.
        let passing = hosts.as_ref().map(|_| NodeId(env.random() as u32 | PASSING_NODE_BIT));
        let lock = NodeLock::take(&dir, config.node.or(passing), incarnation)?;
        let life = NodeLife { node: lock.node(), incarnation };
        let name = cluster_dir::node_name(life.node);
        // Nobody else joins or leaves its number meanwhile.
        let others = dir.listeners_but(life.node)?;
        let providers = match &hosts {
            Some(_) => MetHosts::providers(config)?,
            None => networks::chosen(config, &others),
        };
        let greeted = to_dial(&others, life.node, config.full_mesh_nodes_max);
        let mut addresses = addresses(&dir, &providers, &greeted)?;
        let ways = match &hosts {
            Some(_) => Ways::between_hosts(&dir, &providers),
            None => Ways::on_one_host(&providers),
        };
        // Each of these in turn, until one of its addresses answers.
        let first = found.map(|found| found.first).filter(|first| !first.iter().any(|at| join.contains(at)));
        for hosts in [&join, &first.unwrap_or_default()] {
            addresses.extend(ways.to(&ways::list(hosts)));
        }
        let address = match &hosts {
            Some(hosts) => ways.shown(&hosts.address(), life.node),
            None => ways.shown_in_directory(life.node),
        };
        let numbers = match hosts.is_some() && life.node == NodeId::FIRST {
            true => Some(TakenNumbers::open(&dir)?),
            false => None,
        };
        let (dialled, is_spread) = (ways::hosts_of(&address), hosts.is_some());
        let hello = checked.hello(life, &env, &address);
        let known = config.hosts.as_ref().and(hosts.as_ref()).map(|hosts| hosts.known.clone());
        let identity = NodeIdentity { node: life.node, name, hello, hosts };
        let fabric = open(config, &providers, &identity)?;
        let inner = NodeInner::new(&checked, life, env, address, fabric, (ways, numbers, etcd.clone()))?;
        let progress_thread =
            ProgressThread::start(inner.driver.clone()).map_err(JoinError::io(&config.dir))?;
        if let Some(known) = known {
            dir.write_hosts(&known)?;
        }
        if let Some(etcd) = &etcd {
            dir.write_etcd(etcd)?;
        }
        let mut node = Node {
            inner,
            progress_thread: Some(progress_thread),
            lock: Some(lock),
            responder: None,
            lease: config.lease,
            addresses: dialled,
            registration: None,
        };
        // From here on, dropping the node is leaving.
        let mut is_joined = node.inner.driver.block_on(node.inner.meet_all(&addresses));
        // Where names are kept outside, a node may be alone, or find node 0 away.
        is_joined |= etcd.is_some();
        if !is_joined && is_spread {
            // Whom we have met tells where the first node is.
            is_joined = node.inner.driver.block_on(node.inner.meet_first(first_patience));
        }
        // A part of the cluster may be out of reach, but not because of what this process lacks: the next one to be
        // asked for memory would be that part.
        if let Some(lack) = node.shortage() {
            return Err(JoinError::Shortage {
                dir: dir.path().to_owned(),
                address: lack.address,
                lack: lack.reason,
            });
        }
        // The first node that was told to join founds nothing: the node that is there has a cluster.
        let has_lost = life.node == NodeId::FIRST && node.failed(&node.ways_to(&join)).is_some();
        if !is_joined || has_lost && !is_by_etcd {
            if is_spread {
                return Err(node.why_apart(&dir, &join));
            }
            let first = greeted.iter().position(|other| other.node == NodeId::FIRST);
            return Err(node.why_alone(&dir, first.map(|index| &addresses[index])));
        }
        node.inner.driver.block_on(node.inner.be_known());
        if is_spread {
            node.inner.driver.block_on(node.inner.meet_others());
        }
        if let (Some(etcd), true) = (&etcd, is_spread && life.node.0 < EPHEMERAL_NODE_MIN) {
            let registered = etcd.register(life.node.0, ways::list(&node.addresses));
            node.registration = Some(registered.map_err(JoinError::io(&config.dir))?);
        }
        if let Some(bound) = bound {
            let served = bound.serve(node.inner.driver.clone());
            node.responder = Some(served.map_err(JoinError::io(&config.dir))?);
        }
        tracing::info!("node {} has joined the cluster in {}", life.node, config.dir.display());
        Ok(node)
    }

    /// Why it has not joined a cluster of several hosts, by these addresses or by those of this host.
    fn why_apart(&self, dir: &ClusterDir, join: &[SocketAddr]) -> JoinError {
        if join.is_empty() {
            let reason = "it has the directory of names, and no node of this host reaches it".to_owned();
            return JoinError::Unreachable {
                dir: dir.path().to_owned(),
                address: "node 0".to_owned(),
                reason,
            };
        }
        let address = ways::list(join);
        let failed = self.failed(&self.ways_to(join));
        let dir = dir.path().to_owned();
        match failed {
            Some(ConnectFailure { reason, .. }) => JoinError::Unreachable { dir, address, reason },
            None => JoinError::NoFirst { dir, address, node: self.id() },
        }
    }

    fn ways_to(&self, hosts: &[SocketAddr]) -> Vec<String> {
        self.inner.driver.shared.ways.to(&ways::list(hosts))
    }

    /// A connection to one of these that has not come about.
    fn failed(&self, ways: &[String]) -> Option<ConnectFailure> {
        self.inner.driver.look(|runner| {
            runner.dialling.failed.iter().find(|failed| ways.contains(&failed.address)).cloned()
        })
    }

    /// What this process lacked to connect to all.
    fn shortage(&self) -> Option<ConnectFailure> {
        self.inner.driver.look(|runner| runner.dialling.failed.iter().find(|failed| failed.is_ours).cloned())
    }

    /// A node that cannot be reached now must not keep others from joining, unless it is the first, which is at that address.
    fn why_alone(&self, dir: &ClusterDir, first: Option<&String>) -> JoinError {
        let nodes = match dir.nodes() {
            Ok(nodes) => nodes,
            Err(error) => return error.into(),
        };
        let runs = nodes.iter().any(|presence| presence.node == NodeId::FIRST && presence.alive);
        let failed = self.inner.driver.look(|runner| {
            // Others may have failed, too, and sooner: the first node is the one that counts.
            let failed = &runner.dialling.failed;
            failed.iter().find(|failed| Some(&failed.address) == first).or(failed.first()).cloned()
        });
        let dir = dir.path().to_owned();
        match failed.filter(|_| runs) {
            Some(ConnectFailure { address, reason, .. }) => JoinError::Unreachable { dir, address, reason },
            None => JoinError::NoCluster { dir },
        }
    }
}

/// Those of this host whom a node dials that joins: all, or in a large cluster the first node, which tells of the others, and some who know
/// where that is.  The first node itself is to find all.
fn to_dial(others: &[Listeners], own: NodeId, full_mesh_nodes_max: usize) -> Vec<Listeners> {
    if own == NodeId::FIRST || others.len() < full_mesh_nodes_max {
        return others.to_vec();
    }
    others.iter().take(GUIDES).cloned().collect()
}

fn lacks_join(config: &Config) -> bool {
    config.hosts.as_ref().is_none_or(|hosts| hosts.join.is_empty())
}

/// A node that is told of no other host asks etcd, if it knows that; whether any is there.
fn join_by_etcd(config: &mut Config) -> Result<bool, JoinError> {
    let Some(etcd) = config.directory.as_ref().filter(|_| config.hosts.is_some() && lacks_join(config))
    else {
        return Ok(false);
    };
    let members = etcd.members().map_err(|reason| does_not_answer(etcd, reason))?;
    let addresses = members.iter().flat_map(|member| member.split(',')).filter_map(|at| at.parse().ok());
    let join: Vec<SocketAddr> = addresses.collect();
    let is_any = !join.is_empty();
    if let Some(hosts) = &mut config.hosts {
        hosts.join = join;
    }
    Ok(is_any)
}

/// Where the names are, if they are in etcd, which answers then: as the node is told, or as others of this host have written down.
fn etcd_of(config: &Config, dir: &ClusterDir) -> Result<Option<EtcdAddress>, JoinError> {
    let known = match dir.nodes()?.iter().any(|presence| presence.alive) {
        true => dir.etcd()?,
        false => None,
    };
    let etcd = match (&config.directory, known) {
        (Some(told), Some(known)) if *told != known => {
            return Err(JoinError::BadConfig(format!(
                "the nodes in {} have their names at {known:?}, and not at {told:?}",
                dir.path().display()
            )));
        }
        (Some(told), None) if dir.nodes()?.iter().any(|presence| presence.alive) => {
            return Err(JoinError::BadConfig(format!(
                "the nodes in {} keep their names by themselves, and not at {told:?}",
                dir.path().display()
            )));
        }
        (told, known) => told.clone().or(known),
    };
    if let Some(etcd) = &etcd {
        etcd.members().map_err(|reason| does_not_answer(etcd, reason))?;
    }
    Ok(etcd)
}

fn does_not_answer(etcd: &EtcdAddress, reason: String) -> JoinError {
    JoinError::Etcd { address: format!("{etcd:?}"), reason }
}

/// Where the others are dialled.  Who shares no network with one of them would be in a cluster of which it reaches a part.
fn addresses(
    dir: &ClusterDir,
    providers: &[Provider],
    others: &[Listeners],
) -> Result<Vec<String>, JoinError> {
    let address = |other: &Listeners| {
        networks::address(providers, other).ok_or_else(|| {
            let names = |providers: &[Provider]| {
                providers.iter().map(|provider| provider.name()).collect::<Vec<_>>().join(" and ")
            };
            JoinError::Unreachable {
                dir: dir.path().to_owned(),
                address: format!("node {}", other.node),
                reason: format!("it uses {}, and this node {}", names(&other.providers), names(providers)),
            }
        })
    };
    others.iter().map(address).collect()
}

fn not_to_be_chosen(node: NodeId) -> JoinError {
    JoinError::BadConfig(format!(
        "as node {node}: numbers from {EPHEMERAL_NODE_MIN} on are given out, each once, to nodes that ask for none"
    ))
}

/// Using.
impl Node {
    /// Which node this is.
    pub fn id(&self) -> NodeId {
        self.inner.life.node
    }

    /// Where nodes of other hosts dial it, if they can; the first that they try.
    pub fn address(&self) -> Option<SocketAddr> {
        self.addresses().first().copied()
    }

    /// Where nodes of other hosts dial it, if they can, in the order in which they try.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// What it has counted and how it is, at this moment.
    pub fn metrics(&self) -> Metrics {
        Metrics::collect(&self.inner.driver)
    }

    /// Whether it gets on: false once it has failed, and while what was due a lease ago has not been seen to, as where its
    /// threads have no processor, or one of them hangs.  Others take it for silent then.  Waits for nobody: for watchdogs.
    pub fn is_well(&self) -> bool {
        let driver = &self.inner.driver;
        !driver.is_closed() && driver.overdue() < self.lease
    }

    /// To hear when somebody has had this node drained ([`Session::drain`]): it is to leave then.
    pub fn drained(&self) -> DrainedNode {
        self.inner.driver.shared.drained.clone()
    }

    /// Where Prometheus may ask for its metrics, if [`Config::metrics`] says so.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.responder.as_ref().map(Responder::address)
    }

    /// A new session, which acts as the node's principal.
    ///
    /// Panics when 65,536 sessions are open.
    pub fn session(&self) -> Session {
        self.inner.session(None)
    }

    /// A new session for threads.
    pub fn blocking_session(&self) -> blocking::Session {
        self.session().blocking()
    }

    /// Where a node of another host is dialled, if that is known.
    pub(crate) fn addresses_of(&self, node: NodeId) -> Vec<SocketAddr> {
        let shown = |runner: &Runner| runner.engine()?.address_of(node).map(ways::hosts_of);
        self.inner.driver.look(shown).unwrap_or_default()
    }

    /// Leaves the cluster.  Its sessions' operations then end with `NodeClosed`, and the regions whose bytes are
    /// on this node are lost, unless it is drained before ([`Session::drain`]).
    pub fn leave(self) {
        drop(self);
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        tracing::info!("node {} leaves", self.inner.life.node);
        self.responder = None;
        self.registration = None;
        let driver = &self.inner.driver;
        let mut leaving = Leaving::begin(driver);
        while !leaving.advance(driver) {
            driver.drive_for_a_moment();
        }
        self.progress_thread = None;
        leaving::close(driver, leaving.into_stale());
        leaving::see_out(&*driver.shared.fabric);
        self.lock = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_whose_threads_do_not_get_on_says_so_and_is_well_again_when_they_do() {
        let dir = std::env::temp_dir().join(format!("halite-well-{}", std::process::id()));
        let config = |node| Config { dir: dir.clone(), node: Some(NodeId(node)), ..Config::default() };
        // The other one is more patient, so that it does not take this one for dead.
        let node = Node::embedded(Config { lease: Duration::from_millis(100), ..config(0) }).unwrap();
        let other = Node::embedded(config(1)).unwrap();
        assert!(node.is_well());
        node.inner.driver.look(|_| {
            while node.is_well() {
                std::thread::yield_now();
            }
        });
        while !node.is_well() {
            std::thread::yield_now();
        }
        drop((node, other));
        std::fs::remove_dir_all(dir).unwrap();
    }
}
