//! Nodes: how a node joins a cluster, and how it leaves.
//!
//! This folder assembles a node: its files and networks ([`crate::cluster`]), its driver ([`crate::driver`]), its
//! sessions ([`crate::session`]) and its metrics. No other folder of this crate calls back into it. Its only locks are
//! file locks.

mod collect;
pub(crate) mod driven;
pub(crate) mod inner;
mod responder;
pub(crate) mod scout;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use halite_fabric::{ConnectFailure, ConnectTrouble, Fabric};
use halite_tier::engine::Engine;
use halite_tier::ids::{NodeId, NodeIncarnation};
use halite_tier::news::Over;
use halite_tier::qos::{BadQos, Qos};

use self::inner::{
    CheckedConfig, Files, FirstNode, KNOWN_FIRST_TIMEOUT, NodeInner, first_timeout, observer_timeout,
};
use self::responder::{Bound, Responder};
use crate::attach::{Attach, Policy};
use crate::blocking;
use crate::cluster::cluster_dir::{self, ClusterDir, JoinLock, Listeners, NodeLock, TakenNumbers};
use crate::cluster::config::{Config, EPHEMERAL_NODE_MIN, RANDOM_NODE_BIT};
use crate::cluster::etcd::{Announcement, EtcdAddress, FOUNDING, MEMBER_TTL};
use crate::cluster::networks::{self, HostSettings, NodeIdentity, Provider};
use crate::cluster::ways::{self, Ways};
use crate::driver::drained::DrainedNode;
use crate::driver::leaving::{self, Leaving};
use crate::driver::progress::ProgressThread;
use crate::driver::runner::Runner;
use crate::error::{EtcdError, JoinError};
use crate::metrics::Metrics;
use crate::runtime::env::NodeEnv;
use crate::runtime::headroom;
use crate::session::Session;

/// Number of nodes of its host that a joining node dials, if it does not dial all: those with the lowest numbers. They
/// know the address of the first node.
const LARGE_CLUSTER_DIALS: usize = 3;

/// The address of etcd, and the members that etcd lists for other hosts, with their addresses.
type EtcdMembers = (EtcdAddress, Vec<(NodeId, String)>);

/// Maximum wait for another node's join: each of its connections may take two seconds.
const JOIN_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum wait for the node that founds the cluster; `FOUNDER_PAUSE` is the interval between checks.
const FOUNDER_TIMEOUT: Duration = Duration::from_secs(60);
const FOUNDER_PAUSE: Duration = Duration::from_millis(100);

/// A node of the cluster, in this process. Dropping this value makes the node leave the cluster.
///
/// All nodes of the cluster directory trust a process that embeds a node.
pub struct Node {
    inner: NodeInner,
    /// `None` once the node has left. Dropped before `lock`.
    progress_thread: Option<ProgressThread>,
    /// `None` once the node has left.
    lock: Option<NodeLock>,
    responder: Option<Responder>,
    /// Serves attached sessions; `None` if the node accepts none.
    attach: Option<Attach>,
    lease: Duration,
    role: Role,
    addresses: Vec<SocketAddr>,
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node").field("incarnation", &self.inner.incarnation).finish_non_exhaustive()
    }
}

/// Role of a node. As soon as a node has joined, other nodes may send requests to a member, but not to a client or a
/// [scout].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Role {
    Member,
    Client,
    Scout,
}

/// Joining a cluster.
impl Node {
    /// Joins the cluster of `config.dir`, over the networks of `config`.
    pub fn embedded(config: Config) -> Result<Node, JoinError> {
        Node::wrap(config, |fabric| fabric)
    }

    /// Takes a number from the directory of names, for a permanent node of `config` that connects to other hosts. The
    /// directory assigns each number only once. So this method checks the configuration first: a node that this host
    /// cannot run takes no number.
    pub fn take_number(config: &Config) -> Result<NodeId, JoinError> {
        let mut config = config.clone();
        config.check()?;
        config.check_hosts()?;
        if config.hosts.is_some() {
            HostSettings::of(&config, &ClusterDir::found(&config.dir)?)?;
        }
        let begin = Instant::now();
        // No node is listed yet: one of the nodes that start now founds the cluster, and the others join it.
        while config.directory.is_some() && !join_by_etcd(&mut config)? && has_no_join(&config) {
            if other_founder(&config)?.is_none() {
                return Ok(NodeId::FIRST);
            }
            if begin.elapsed() > FOUNDER_TIMEOUT {
                break;
            }
            std::thread::sleep(FOUNDER_PAUSE);
        }
        scout::take_number(&config)
    }

    /// Joins as [`Node::embedded`] does, over the fabric that `wrap` returns for the node's own fabric.
    pub fn wrap(
        config: Config,
        wrap: impl FnOnce(Arc<dyn Fabric>) -> Arc<dyn Fabric>,
    ) -> Result<Node, JoinError> {
        let open = |config: &Config, providers: &[Provider], identity: &NodeIdentity| {
            networks::open(config, providers, identity).map(wrap)
        };
        let first = FirstNode::Required(first_timeout(config.lease));
        Node::join(config, first, Role::Member, open)
    }

    /// Joins as [`Node::embedded`] does, for a process that uses other nodes and serves none, such as a command. On a
    /// host other than node 0's, the new node does not wait until all nodes know it. This saves two round trips, but
    /// some nodes may not know the new node's number for a moment.
    pub fn client(config: Config) -> Result<Node, JoinError> {
        let first = FirstNode::Required(first_timeout(config.lease));
        Node::join(config, first, Role::Client, networks::open)
    }

    /// Joins as [`Node::client`] does, for a process that observes nodes ([`Session::status`]). The observer joins even
    /// if the first node is unreachable; this takes three tenths of a lease if the first node is silent. Then
    /// another node ([`Node::membership_source`]) lists the members, and sessions cannot find regions by name unless
    /// the names are in etcd.
    pub fn observer(config: Config) -> Result<Node, JoinError> {
        let first = FirstNode::Optional(observer_timeout(config.lease));
        Node::join(config, first, Role::Client, networks::open)
    }

    /// Joins as [`Node::client`] does, and waits for the first node for at most `first_timeout`.
    pub(crate) fn embedded_within(config: Config, first_timeout: Duration) -> Result<Node, JoinError> {
        Node::join(config, FirstNode::Required(first_timeout), Role::Scout, networks::open)
    }

    fn join(
        config: Config,
        first_node: FirstNode,
        role: Role,
        open: impl FnOnce(&Config, &[Provider], &NodeIdentity) -> Result<Arc<dyn Fabric>, JoinError>,
    ) -> Result<Node, JoinError> {
        config.check()?;
        headroom::check_descriptors().map_err(JoinError::Resource)?;
        // First, because an unavailable address should fail before any other node knows of this one.
        let bound = bind_metrics(&config)?;
        let mut checked = CheckedConfig::new(config)?;
        checked.config.check_hosts()?;
        warn_if_found_has_no_effect(&checked.config);
        remove_own_address(&mut checked.config)?;
        let is_by_etcd = join_by_etcd(&mut checked.config)?;
        let config = &checked.config;
        if config.node == Some(NodeId::FIRST) && has_no_join(config) {
            refuse_if_founded(config)?;
        }
        let mut join = config.hosts.as_ref().map(|hosts| hosts.join.clone()).unwrap_or_default();
        let found = match (&config.hosts, config.node) {
            // The first node itself cannot ask the first node for its address.
            (Some(hosts), Some(NodeId::FIRST)) if !join.is_empty() => {
                match scout::check_first_is_free(config, hosts) {
                    Err(_) if config.found && scout::all_refuse(&join) => join.clear(),
                    checked => checked?,
                }
                None
            }
            (Some(hosts), Some(node)) if !join.is_empty() => Some(scout::find_cluster(config, hosts, node)?),
            _ => None,
        };
        let dir = match config.node {
            Some(node) if node.0 >= EPHEMERAL_NODE_MIN => return Err(reserved_number(node)),
            Some(_) => ClusterDir::found(&config.dir)?,
            // A joining node does not create the cluster directory.
            None => ClusterDir::open(&config.dir)?,
        };
        let env = NodeEnv::process(config.clock_offset_s);
        let incarnation = inner::new_incarnation(&env);
        let (etcd, by_etcd) = find_etcd(config, &dir)?.unzip();
        let _joining = JoinLock::take(&dir, incarnation, JOIN_TIMEOUT)?;
        dir.clean_residue()?;
        let hosts = HostSettings::of(config, &dir)?;
        let place = ways::cluster_of(&dir, hosts.is_some());
        if let (Some(etcd), Some(_)) = (&etcd, config.node) {
            refuse_if_taken(etcd, &place)?;
        }
        // No counter covers several hosts, so the number is random.
        let ephemeral = hosts.as_ref().map(|_| NodeId(env.random() as u32 | RANDOM_NODE_BIT));
        let lock = NodeLock::take(&dir, config.node.or(ephemeral), incarnation)?;
        let incarnation = NodeIncarnation { node: lock.node(), id: incarnation };
        let name = cluster_dir::node_name(incarnation.node);
        // Under the join lock, so no other node joins or releases its number meanwhile.
        let others = dir.listeners_except(incarnation.node)?;
        let providers = match &hosts {
            Some(_) => HostSettings::providers(config)?,
            None => networks::choose(config, &others),
        };
        let greeted = to_dial(&others, incarnation.node, config.full_mesh_nodes_max);
        let mut addresses = addresses(&dir, &providers, &greeted)?;
        let ways = match &hosts {
            Some(_) => Ways::between_hosts(&dir, &providers),
            None => Ways::on_one_host(&providers),
        };
        // The node tries these hosts in turn, until an address of one answers.
        let first = found.map(|found| found.first).filter(|first| !first.iter().any(|at| join.contains(at)));
        for hosts in [&join, &first.unwrap_or_default()] {
            addresses.extend(ways.to(&ways::list(hosts)));
        }
        let listed = by_etcd.clone().filter(|_| hosts.is_some()).unwrap_or_default();
        if hosts.is_some() {
            let is_known = |node: NodeId| others.iter().any(|other| other.node == node);
            let is_joined = |at: &str| at.parse().is_ok_and(|at| join.contains(&at));
            let mut members = by_etcd.unwrap_or_default();
            members.retain(|(node, at)| !is_known(*node) && !at.split(',').any(is_joined));
            // An ephemeral node dials the members of its own host, and connects to others on first use; one of those
            // may be down.
            let announced = match incarnation.node.is_ephemeral() && !others.is_empty() {
                true => Vec::new(),
                false => to_dial_by_etcd(members, incarnation.node, config.full_mesh_nodes_max),
            };
            addresses.extend(announced.iter().flat_map(|address| ways.to(address)));
        }
        let address = match &hosts {
            Some(hosts) => ways.announced_address(&hosts.address(), incarnation.node),
            None => ways.announced_in_directory(incarnation.node),
        };
        let numbers = match hosts.is_some() && incarnation.node == NodeId::FIRST {
            true => Some(TakenNumbers::open(&dir)?),
            false => None,
        };
        let (own_addresses, is_spread) = (ways::hosts_of(&address), hosts.is_some());
        let hello = checked.hello(incarnation, &env, &address);
        let known = config.hosts.as_ref().and(hosts.as_ref()).map(|hosts| hosts.known.clone());
        let identity = NodeIdentity { node: incarnation.node, name, hello, hosts };
        let fabric = open(config, &providers, &identity)?;
        let files = Files { ways, numbers, etcd: etcd.clone(), dir: Some(config.dir.clone()) };
        let inner = NodeInner::new(&checked, incarnation, env, address, fabric, files)?;
        let progress_thread = ProgressThread::start(inner.driver.clone());
        let progress_thread = progress_thread.map_err(|refused| JoinError::Resource(refused.into()))?;
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
            attach: None,
            lease: config.lease,
            role,
            addresses: own_addresses,
        };
        // From here on, dropping `node` leaves the cluster.
        let is_joined = node.connect(&addresses, listed, first_node, (etcd.is_some(), is_spread));
        // Parts of the cluster may be unreachable, but not because this process lacks resources: the next request for
        // memory could go to a node in such a part.
        if let Some(shortage) = node.shortage() {
            return Err(JoinError::Shortage {
                dir: dir.path().to_owned(),
                address: shortage.address,
                lack: shortage.reason,
            });
        }
        // With names in etcd, a node that is connected to no other must not join a cluster whose nodes speak another
        // protocol version.
        let is_unconnected = !is_joined || node.inner.driver.look(Runner::is_alone);
        if let Some(theirs) = node.inner.driver.look(|runner| runner.other_version).filter(|_| is_unconnected)
        {
            return Err(JoinError::OtherVersion { dir: dir.path().to_owned(), theirs });
        }
        // A first node with addresses to join founds no cluster: the nodes at these addresses already have one.
        let failed = node.failed(&node.ways_to(&join));
        let has_lost = incarnation.node == NodeId::FIRST && failed.is_some();
        // A member that does not answer may be gone; one with another secret belongs to another cluster.
        let is_other_cluster =
            is_unconnected && failed.is_some_and(|failed| failed.trouble == ConnectTrouble::Stranger);
        if !is_joined || is_other_cluster || has_lost && !is_by_etcd {
            if is_spread {
                return Err(node.multi_host_join_error(&dir, &join));
            }
            let first = greeted.iter().position(|other| other.node == NodeId::FIRST);
            return Err(node.single_host_join_error(&dir, first.map(|index| &addresses[index])));
        }
        // A client's requests follow its hello, at node 0 and at each node that it dials, so node 0's connection
        // suffices.
        let needs_only_first = role != Role::Member && is_spread && etcd.is_none();
        if !(needs_only_first && node.inner.driver.look(|runner| runner.is_connected_to(NodeId::FIRST))) {
            node.inner.driver.block_on(node.inner.wait_until_admitted());
        }
        let hosts = is_spread.then(|| ways::list(&node.addresses));
        let announced = node.inner.driver.shared.etcd_client.announce(Announcement {
            node: incarnation.node,
            place,
            hosts,
        });
        announced.map_err(JoinError::Resource)?;
        node.serve(config, &dir, bound)?;
        let text = format!("node {} has joined the cluster in {}", incarnation.node, config.dir.display());
        match role {
            Role::Member | Role::Client => tracing::info!("{text}"),
            Role::Scout => tracing::debug!("{text}"),
        }
        Ok(node)
    }

    /// Connects to the nodes at `addresses` and, between hosts, to the first node. Returns true if the node has joined.
    fn connect(
        &self,
        addresses: &[String],
        listed: Vec<(NodeId, String)>,
        first_node: FirstNode,
        (has_etcd, is_spread): (bool, bool),
    ) -> bool {
        let (driver, begin_ns) = (&self.inner.driver, self.inner.driver.now_ns());
        // With names in etcd, a node may be alone, or node 0 may be unavailable.
        let mut is_joined = driver.block_on(self.inner.connect_to_all(addresses, listed)) || has_etcd;
        if !is_joined && is_spread {
            // Connected nodes announce the address of the first node.
            let waited = Duration::from_nanos(driver.now_ns() - begin_ns);
            is_joined = match first_node {
                FirstNode::Required(timeout) => {
                    driver.block_on(self.inner.connect_to_first(timeout.saturating_sub(waited)))
                }
                FirstNode::Optional(timeout) => {
                    driver.block_on(self.inner.connect_to_first_if_announced(timeout, self.lease));
                    !driver.look(Runner::is_alone)
                }
            };
        }
        if has_etcd && is_spread {
            // An ephemeral node needs node 0 for little, and continues to dial it.
            let is_ephemeral = self.inner.incarnation.node.is_ephemeral();
            let timeout = if is_ephemeral { observer_timeout(self.lease) } else { KNOWN_FIRST_TIMEOUT };
            driver.block_on(self.inner.connect_to_first_if_announced(timeout, self.lease));
        }
        is_joined
    }

    /// Starts to serve metrics and attached sessions, as far as `config` asks for them.
    fn serve(&mut self, config: &Config, dir: &ClusterDir, bound: Option<Bound>) -> Result<(), JoinError> {
        let driver = &self.inner.driver;
        if let Some(bound) = bound {
            self.responder = Some(bound.serve(driver.clone()).map_err(JoinError::Resource)?);
        }
        if let Some(mode) = config.attach {
            let node = self.inner.incarnation.node;
            let (socket, opener) = (dir.listen_for_sessions(node, mode)?, self.inner.clone());
            let open = Box::new(move |principal| opener.try_session(principal));
            let policy = Policy { principals: config.principals.clone(), quotas: config.quotas };
            let sessions = driver.shared.attached.clone();
            let served = Attach::serve(socket, node, (driver.clone(), open), (sessions, policy));
            self.attach = Some(served.map_err(JoinError::Resource)?);
        }
        Ok(())
    }

    /// Returns why the node did not join a cluster of several hosts, which it dialled at `join`, or at its own host's
    /// addresses if `join` is empty.
    fn multi_host_join_error(&self, dir: &ClusterDir, join: &[SocketAddr]) -> JoinError {
        if join.is_empty() {
            let met = "it has the directory of names and is unreachable from here";
            let reason = match self.inner.driver.look(|runner| runner.dialling.last_failure.clone()) {
                Some(ConnectFailure { address, reason, .. }) => format!("{met} ({address}: {reason})"),
                None => met.to_owned(),
            };
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

    /// Returns the first failed connection to one of `ways`; `None` if none failed.
    fn failed(&self, ways: &[String]) -> Option<ConnectFailure> {
        self.inner.driver.look(|runner| {
            runner.dialling.failed.iter().find(|failed| ways.contains(&failed.address)).cloned()
        })
    }

    /// Returns a connection that failed because this process lacked resources; `None` if there is none.
    fn shortage(&self) -> Option<ConnectFailure> {
        self.inner.driver.look(|runner| {
            runner.dialling.failed.iter().find(|failed| failed.trouble == ConnectTrouble::Ours).cloned()
        })
    }

    /// Returns why the node joined no cluster of one host. Only an unreachable first node prevents a join. `first` is
    /// the first node's address.
    fn single_host_join_error(&self, dir: &ClusterDir, first: Option<&String>) -> JoinError {
        let nodes = match dir.nodes() {
            Ok(nodes) => nodes,
            Err(error) => return error.into(),
        };
        let runs = nodes.iter().any(|presence| presence.node == NodeId::FIRST && presence.alive);
        let failed = self.inner.driver.look(|runner| {
            // Other connections may have failed earlier; the first node's failure is the one that counts.
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

/// Returns the nodes of this host that a joining node dials: all of them, or, in a large cluster, the first node, which
/// lists the others, and some nodes that know its address. The first node itself dials all nodes.
fn to_dial(others: &[Listeners], own: NodeId, full_mesh_nodes_max: usize) -> Vec<Listeners> {
    if own == NodeId::FIRST || others.len() < full_mesh_nodes_max {
        return others.to_vec();
    }
    others.iter().take(LARGE_CLUSTER_DIALS).cloned().collect()
}

fn has_no_join(config: &Config) -> bool {
    config.hosts.as_ref().is_none_or(|hosts| hosts.join.is_empty())
}

/// Returns the host that founds the cluster with names in the same etcd, if this node may not found it.
fn other_founder(config: &Config) -> Result<Option<String>, JoinError> {
    let (Some(etcd), Some(hosts)) = (&config.directory, &config.hosts) else { return Ok(None) };
    let own: Vec<String> = hosts.listen.iter().map(ToString::to_string).collect();
    etcd.other_founder(&own.join(",")).map_err(|error| etcd_error(etcd, error))
}

/// Fails if another host is founding or has founded the cluster as node 0, because two hosts may both be configured as
/// node 0.
fn refuse_if_founded(config: &Config) -> Result<(), JoinError> {
    match (other_founder(config)?, &config.directory) {
        (Some(by), Some(etcd)) => {
            Err(JoinError::Founding { address: format!("{etcd:?}"), by, kept_s: FOUNDING.as_secs() })
        }
        _ => Ok(()),
    }
}

/// Sets the addresses to join from etcd, if the node has etcd's address and no other. Returns true if etcd lists any.
fn join_by_etcd(config: &mut Config) -> Result<bool, JoinError> {
    let Some(etcd) = config.directory.as_ref().filter(|_| config.hosts.is_some() && has_no_join(config))
    else {
        return Ok(false);
    };
    let members = etcd.members().map_err(|error| etcd_error(etcd, error))?;
    let addresses = members.iter().flat_map(|(_, member)| member.split(',')).filter_map(|at| at.parse().ok());
    let mut join: Vec<SocketAddr> = addresses.collect();
    let mut is_any = false;
    if let Some(hosts) = &mut config.hosts {
        // The entry of an earlier incarnation of this node may still be there.
        join.retain(|at| !hosts.listen.contains(at));
        is_any = !join.is_empty();
        hosts.join = join;
    }
    Ok(is_any)
}

/// Binds the address for metrics. Returns `None` if none is configured.
fn bind_metrics(config: &Config) -> Result<Option<Bound>, JoinError> {
    let bind = |address| Bound::at(address).map_err(|source| JoinError::Metrics { address, source });
    config.metrics.map(bind).transpose()
}

/// Warns if `found` has no effect. This is no error, because one configuration may serve all hosts.
fn warn_if_found_has_no_effect(config: &Config) {
    match config.node {
        Some(node) if config.found && node != NodeId::FIRST => {
            tracing::warn!("--found has no effect on node {node}; only node 0 founds a cluster");
        }
        _ if config.found && config.hosts.is_none() => {
            tracing::warn!("--found has no effect on a node without other hosts")
        }
        _ => {}
    }
}

/// Removes this node's own addresses from the addresses to join, so that one list serves all hosts. Fails if no address
/// is left.
fn remove_own_address(config: &mut Config) -> Result<(), JoinError> {
    let Some(hosts) = &mut config.hosts else { return Ok(()) };
    let had_any = !hosts.join.is_empty();
    hosts.join.retain(|at| !hosts.listen.contains(at));
    match had_any && hosts.join.is_empty() && config.node != Some(NodeId::FIRST) {
        true => Err(JoinError::BadConfig("--join names only this node".to_owned())),
        false => Ok(()),
    }
}

/// Returns the address of etcd, and the members that etcd lists. The address comes from the configuration or the
/// cluster directory. Returns `None` if the names are not in etcd.
fn find_etcd(config: &Config, dir: &ClusterDir) -> Result<Option<EtcdMembers>, JoinError> {
    let recorded = match dir.nodes()?.iter().any(|presence| presence.alive) {
        true => dir.etcd()?,
        false => None,
    };
    let etcd = match (&config.directory, recorded) {
        (Some(configured), Some(recorded)) if *configured != recorded => {
            return Err(JoinError::BadConfig(format!(
                "the nodes in {} have their names at {recorded:?}, not at {configured:?}",
                dir.path().display()
            )));
        }
        (Some(configured), None) if dir.nodes()?.iter().any(|presence| presence.alive) => {
            return Err(JoinError::BadConfig(format!(
                "the nodes in {} keep their names at node 0, not at {configured:?}",
                dir.path().display()
            )));
        }
        (configured, recorded) => configured.clone().or(recorded),
    };
    let Some(etcd) = etcd else { return Ok(None) };
    if etcd.is_closed().map_err(|error| etcd_error(&etcd, error))? {
        if config.directory.is_some() {
            return Err(JoinError::BadConfig(format!(
                "the names at {etcd:?} were moved back to node 0: start without an address of etcd, or choose another prefix, or remove these keys if no node of that cluster is left (etcdctl del --prefix {}/)",
                etcd.prefix()
            )));
        }
        // No node of this host was alive when the names moved back.
        dir.forget_etcd()?;
        return Ok(None);
    }
    let members = etcd.members().map_err(|error| etcd_error(&etcd, error))?;
    Ok(Some((etcd, members)))
}

/// Returns the addresses of the members in etcd that a joining node dials. It dials them itself because node 0, which
/// announces members, may be unavailable.
fn to_dial_by_etcd(members: Vec<(NodeId, String)>, own: NodeId, full_mesh_nodes_max: usize) -> Vec<String> {
    let most = if members.len() < full_mesh_nodes_max { usize::MAX } else { LARGE_CLUSTER_DIALS };
    members.into_iter().filter(|(node, _)| *node != own).map(|(_, address)| address).take(most).collect()
}

/// Fails if another cluster uses the same etcd prefix. Each of the two clusters would take the other's nodes for
/// earlier incarnations of its own nodes, and their regions for lost.
fn refuse_if_taken(etcd: &EtcdAddress, place: &str) -> Result<(), JoinError> {
    let places = etcd.places().map_err(|error| etcd_error(etcd, error))?;
    match places.into_iter().find(|(_, other)| other != place) {
        Some((node, _)) => {
            let (address, kept_s) = (format!("{etcd:?}"), MEMBER_TTL.as_secs());
            Err(JoinError::EtcdTaken { address, node, kept_s })
        }
        None => Ok(()),
    }
}

fn etcd_error(etcd: &EtcdAddress, source: EtcdError) -> JoinError {
    JoinError::Etcd { address: format!("{etcd:?}"), source }
}

/// Returns the addresses of the other nodes. Fails if this node shares no network with one of them, because this node
/// would then reach only a part of the cluster.
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
                reason: format!("it uses {}, this node uses {}", names(&other.providers), names(providers)),
            }
        })
    };
    others.iter().map(address).collect()
}

fn reserved_number(node: NodeId) -> JoinError {
    JoinError::BadConfig(format!(
        "as node {node}: numbers from {EPHEMERAL_NODE_MIN} on are reserved for nodes without a configured number"
    ))
}

/// Properties, sessions and the end of a node.
impl Node {
    /// Returns the node's number.
    pub fn id(&self) -> NodeId {
        self.inner.incarnation.node
    }

    /// Returns the first address at which other hosts dial the node; `None` if they cannot dial it.
    pub fn address(&self) -> Option<SocketAddr> {
        self.addresses().first().copied()
    }

    /// Returns the addresses at which other hosts dial the node, in the order in which they try them.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Returns the node that lists the members for this node: the first node, or, if it is unreachable, the permanent
    /// node with the lowest number among this node and its peers. Returns the first node in a fork of the process.
    pub fn membership_source(&self) -> NodeId {
        let source = |runner: &Runner| runner.engine().map(Engine::membership_source);
        self.look_unless_forked(source).unwrap_or(NodeId::FIRST)
    }

    /// Returns the node's metrics at this moment. Returns none in a fork of the process.
    pub fn metrics(&self) -> Metrics {
        Metrics::collect(&self.inner.driver)
    }

    /// Returns true if the node makes progress. For watchdogs; does not block.
    ///
    /// Returns false after the node has failed. Also returns false while work that was due a lease ago has not run, for
    /// example because the node's threads get no core or one of them hangs. Other nodes then count the node as silent.
    pub fn is_well(&self) -> bool {
        let driver = &self.inner.driver;
        !driver.is_closed() && driver.overdue() < self.lease
    }

    /// Returns why the node's incarnation has ended, if another node has reported that end. Otherwise, and in a fork of
    /// the process, returns `None`. After such a report, the node's operations fail as if the node had left, and
    /// [`DrainedNode::wait`] returns.
    pub fn over(&self) -> Option<Over> {
        self.look_unless_forked(|runner| runner.over)
    }

    /// Returns a handle with which a thread waits until the node has been drained ([`Session::drain`]) or its
    /// incarnation has ended ([`Node::over`]). The process should then call [`Node::leave`].
    pub fn drained(&self) -> DrainedNode {
        self.inner.driver.shared.drained.clone()
    }

    /// Returns the address at which the node serves its metrics; `None` if [`Config::metrics`] is not set.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.responder.as_ref().map(Responder::address)
    }

    /// Opens a session that acts as the node's principal.
    ///
    /// Panics if 65,536 sessions are open.
    pub fn session(&self) -> Session {
        self.inner.session(None).into()
    }

    /// Opens a session for threads that acts as the node's principal. Panics if 65,536 sessions are open.
    pub fn blocking_session(&self) -> blocking::Session {
        self.session().blocking()
    }

    /// Returns the result of `look`; `None` in a fork of the process, where the node's locks may be held forever.
    fn look_unless_forked<R>(&self, look: impl FnOnce(&Runner) -> Option<R>) -> Option<R> {
        let driver = &self.inner.driver;
        if driver.is_forked() { None } else { driver.look(look) }
    }

    /// Returns the addresses of a node on another host; empty if they are unknown, and in a fork of the process.
    pub(crate) fn addresses_of(&self, node: NodeId) -> Vec<SocketAddr> {
        let announced = |runner: &Runner| runner.engine()?.address_of(node).map(ways::hosts_of);
        self.look_unless_forked(announced).unwrap_or_default()
    }

    /// Replaces the node's policy for operations of different priority ([`Session::with_priority`]). Operations that wait
    /// follow the new policy within 100 ms.
    pub fn set_qos(&self, qos: Qos) -> Result<(), BadQos> {
        self.inner.set_qos(qos)
    }

    /// Leaves the cluster. Operations of the node's sessions fail with `NodeClosed`. The regions whose bytes are on
    /// this node are lost, unless the node was drained ([`Session::drain`]).
    pub fn leave(self) {
        drop(self);
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if self.inner.driver.is_forked() {
            // The sockets, files and threads belong to the parent: closing the node here would end it there.
            std::mem::forget((self.responder.take(), self.progress_thread.take(), self.lock.take()));
            std::mem::forget(self.attach.take());
            std::mem::forget(self.inner.driver.clone());
            return;
        }
        match self.role {
            Role::Member | Role::Client => {
                tracing::info!("node {} is leaving the cluster", self.inner.incarnation.node)
            }
            Role::Scout => tracing::debug!("node {} is leaving the cluster", self.inner.incarnation.node),
        }
        self.responder = None;
        let driver = &self.inner.driver;
        driver.shared.etcd_client.withdraw();
        let mut leaving = Leaving::begin(driver);
        while !leaving.advance(driver) {
            driver.drive_briefly();
        }
        self.progress_thread = None;
        leaving::close(driver, leaving.into_stale());
        // Attached sessions get the same errors as those of this process.
        self.attach = None;
        leaving::finish_retransmissions(&*driver.shared.fabric);
        self.lock = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AccessCause, Permissions, Placement, RegionCause};

    #[test]
    fn is_well_is_false_while_threads_hang() {
        let dir = crate::runtime::scratch();
        let config =
            |node| Config { dir: dir.path().to_owned(), node: Some(NodeId(node)), ..Config::default() };
        // The other node's long lease keeps it from declaring this one dead.
        let node = Node::embedded(Config { lease: Duration::from_secs(2), ..config(0) }).unwrap();
        let other = Node::embedded(Config { lease: Duration::from_secs(60), ..config(1) }).unwrap();
        let wait_until_well = |is_well: bool| {
            let begin = std::time::Instant::now();
            while node.is_well() != is_well {
                assert!(begin.elapsed() < Duration::from_secs(60), "is_well() stays {}", !is_well);
                std::thread::yield_now();
            }
        };
        wait_until_well(true);
        node.inner.driver.look(|_| wait_until_well(false));
        wait_until_well(true);
        drop((node, other));
    }

    /// In a fork, every lock that a thread of the parent held stays locked.
    #[test]
    fn a_fork_waits_for_no_lock_of_its_parent() {
        let dir = crate::runtime::scratch();
        let config = Config { dir: dir.path().to_owned(), node: Some(NodeId(0)), ..Config::default() };
        let node = Node::embedded(config).unwrap();
        let session = node.blocking_session();
        let region = session.alloc(Some("salt"), 8, Placement::Local, Permissions::READ).unwrap();
        let ended = node.inner.driver.look(|_| {
            halite_mem::fork::run_in_fork(|| {
                let answers = [
                    node.over().is_none(),
                    node.metrics().to_string().is_empty(),
                    node.membership_source() == NodeId::FIRST,
                    node.addresses_of(NodeId::FIRST).is_empty(),
                    node.drained().wait() == 0,
                    !node.is_well(),
                    session.len(region).is_err_and(|error| error.cause == AccessCause::Forked),
                    session.check_lock("till").is_err(),
                    session.as_async().seen(NodeId::FIRST).is_none(),
                    session.explain(region).is_err_and(|error| error.cause == RegionCause::Forked),
                    session
                        .explain_peer(NodeId::FIRST)
                        .is_err_and(|error| error.cause == RegionCause::Forked),
                    session.status().is_err_and(|error| error.cause == RegionCause::Forked),
                ];
                session.progress();
                answers.iter().position(|is_right| !is_right).map_or(0, |wrong| wrong as u8 + 1)
            })
        });
        assert_eq!(ended.unwrap(), Some(0), "the status is the number of the first wrong answer");
    }
}
