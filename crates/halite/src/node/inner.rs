//! The parts that [`Node`](super::Node) and [`Driven`](super::driven::Driven) have in common.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use halite_fabric::{Fabric, Key, PeerId};
use halite_mem::Window;
use halite_tier::access::DataPath;
use halite_tier::directory::EtcdDirectory;
use halite_tier::engine::{Engine, EngineConfig};
use halite_tier::hello::Hello;
use halite_tier::ids::{Incarnation, NodeId, NodeIncarnation, Principal, SessionId};
use halite_tier::mapper::Reach;
use halite_tier::qos::{BadQos, Qos};
use halite_tier::rpc::ring::is_ring_size;
use halite_tier::rpc::{RING_BYTES_MAX, RING_BYTES_MIN};

use crate::cluster::cluster_dir::TakenNumbers;
use crate::cluster::config::{AttachMode, Config};
use crate::cluster::etcd::{EtcdAddress, EtcdClient};
use crate::cluster::ways::Ways;
use crate::driver::Driver;
use crate::driver::drained::DrainedNode;
use crate::driver::runner::{Runner, Shared};
use crate::driver::shaping::Shaping;
use crate::error::JoinError;
use crate::metrics::Timings;
use crate::posted::InFlight;
use crate::rpc::Rpc;
use crate::rpc::peers::Peers;
use crate::runtime::env::NodeEnv;
use crate::runtime::event::Event;
use crate::session::Embedded;

/// Maximum wait for the first node by a permanent node that can join without it: the maximum time of one connection.
pub(crate) const KNOWN_FIRST_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum wait for the first node by any node.
const FIRST_TIMEOUT_MAX: Duration = Duration::from_secs(10);

/// Returns how long a joining node waits for a first node on another host, from the start of dialling: a lease. Within
/// a lease, nodes that lost their connection to the first node reconnect, or learn that it has ended.
pub(crate) fn first_timeout(lease: Duration) -> Duration {
    lease.clamp(KNOWN_FIRST_TIMEOUT, FIRST_TIMEOUT_MAX)
}

/// Returns how long an observer waits for a silent first node: three tenths of a lease, 1.5 s by default. A lost first
/// packet is repeated after a second, and the answer to it takes one more round trip.
pub(crate) fn observer_timeout(lease: Duration) -> Duration {
    (lease / 10 * 3).min(KNOWN_FIRST_TIMEOUT)
}

/// States whether a joining node needs the first node, and the maximum wait for the first node.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FirstNode {
    Required(Duration),
    /// The first node is not needed; any connected node suffices.
    Optional(Duration),
}

/// A configuration that passed its checks.
#[derive(Debug)]
pub(crate) struct CheckedConfig {
    pub(crate) config: Config,
    principal: Principal,
}

/// Data that a node reads from files of its host; empty for a node without files.
#[derive(Debug, Default)]
pub(crate) struct Files {
    pub(crate) ways: Ways,
    pub(crate) numbers: Option<TakenNumbers>,
    pub(crate) etcd: Option<EtcdAddress>,
    pub(crate) dir: Option<PathBuf>,
}

#[derive(Clone)]
pub(crate) struct NodeInner {
    pub(crate) driver: Arc<Driver>,
    pub(crate) incarnation: NodeIncarnation,
    principal: Principal,
    chunk_bytes: u64,
}

impl CheckedConfig {
    pub(crate) fn new(mut config: Config) -> Result<CheckedConfig, JoinError> {
        // Hosts without IPv6 could not dial an IPv4 address in IPv6 form.
        config.address = config.address.to_canonical();
        let hosts = config.hosts.iter_mut().flat_map(|hosts| hosts.listen.iter_mut().chain(&mut hosts.join));
        hosts.filter(|at| at.ip().to_canonical().is_ipv4()).for_each(|at| at.set_ip(at.ip().to_canonical()));
        let principal = checked_principal(&config)?;
        check_request_ring(&config)?;
        config.qos.check().map_err(bad_qos)?;
        Ok(CheckedConfig { config, principal })
    }

    /// Returns the hello for peers. `address` is the address at which peers dial the node after they have lost the
    /// connection.
    pub(crate) fn hello(&self, incarnation: NodeIncarnation, env: &NodeEnv, address: &str) -> Vec<u8> {
        let bytes_total = self.config.arena_bytes;
        let address = address.to_owned();
        Hello { incarnation, pid: env.pid(), bytes_total, address }.encode()
    }
}

/// Returns a random id that distinguishes this incarnation from the node's other ones.
pub(crate) fn new_incarnation(env: &NodeEnv) -> Incarnation {
    Incarnation(env.random().max(1))
}

impl NodeInner {
    /// Creates a node without peers.
    pub(crate) fn new(
        checked: &CheckedConfig,
        incarnation: NodeIncarnation,
        env: NodeEnv,
        address: String,
        fabric: Arc<dyn Fabric>,
        Files { ways, numbers, etcd, dir }: Files,
    ) -> Result<NodeInner, JoinError> {
        let config = &checked.config;
        let path = Arc::new(DataPath::default());
        let reach = Arc::new(FabricReach(fabric.clone()));
        let now_ns = env.now_ns();
        let engine_config = engine_config(config, incarnation, &env, address, &*fabric);
        let mut engine = match &etcd {
            Some(etcd) => {
                let directory = EtcdDirectory::new(incarnation, etcd.prefix(), engine_config.epoch_ns);
                Engine::with_directory(engine_config, path.clone(), reach, Box::new(directory), now_ns)
            }
            None => Engine::new(engine_config, path.clone(), reach, now_ns),
        };
        if config.attach == Some(AttachMode::Everyone) {
            engine.limit_regions(checked.principal.clone(), config.quotas);
        }
        if let Some(numbers) = &numbers {
            engine.restore_numbers(numbers.next);
        }
        let posted = Arc::new(InFlight::new(env.parallelism()));
        let peers = Arc::new(Peers::new(incarnation.node));
        let (pins, ring_bytes) = (path.pins().clone(), config.request_ring_bytes);
        let rpc = Rpc::new(fabric.clone(), posted.clone(), peers.clone(), pins, ring_bytes);
        let rpc = rpc.ok_or(JoinError::NoMemory)?;
        if let Some(etcd) = etcd.as_ref().filter(|etcd| !etcd.has_password()) {
            engine.set_names_at(etcd.names_at());
        }
        let (drained, etcd_client) = (DrainedNode::default(), EtcdClient::default());
        let (timings, member_changes) = (Timings::default(), Event::default());
        let handle_changes = Event::default();
        let shaping = Shaping::default();
        shaping.set(now_ns, config.qos).map_err(bad_qos)?;
        shaping.limit_to_low(config.low_priority.clone());
        let shared = Shared {
            node: incarnation.node,
            fabric,
            path,
            posted,
            peers,
            rpc,
            timings,
            shaping,
            ways,
            numbers,
            member_changes,
            handle_changes,
            drained,
            attached: Arc::default(),
            etcd_client,
            dir,
        };
        let driver = Driver::new(Arc::new(shared), env, engine);
        driver.shared.etcd_client.set_receiver(Arc::downgrade(&driver), |driver: &Driver, message| {
            driver.with_unless_failed(|runner, now| runner.handle_etcd(now, message))
        });
        if let Some(etcd) = &etcd {
            let etcd_client = &driver.shared.etcd_client;
            etcd_client
                .open(etcd)
                .and_then(|()| etcd_client.set_address(etcd))
                .map_err(JoinError::Resource)?;
        }
        Ok(NodeInner {
            driver,
            incarnation,
            principal: checked.principal.clone(),
            chunk_bytes: config.chunk_bytes,
        })
    }

    /// Replaces the node's policy for operations of different priority.
    pub(crate) fn set_qos(&self, qos: Qos) -> Result<(), BadQos> {
        // A fork must not take the lock.
        if self.driver.is_forked() {
            qos.check()
        } else {
            self.driver.shared.shaping.set(self.driver.now_ns(), qos)
        }
    }

    /// Opens a session that acts as `principal`, or as the node's principal if that is `None`. Panics if 65,536
    /// sessions are open.
    pub(crate) fn session(&self, principal: Option<Principal>) -> Embedded {
        self.try_session(principal).expect("a node has at most 65,536 sessions at a time")
    }

    /// Opens a session as [`NodeInner::session`] does; returns `None` if 65,536 sessions are open.
    pub(crate) fn try_session(&self, principal: Option<Principal>) -> Option<Embedded> {
        let principal = principal.unwrap_or_else(|| self.principal.clone());
        let id = match self.driver.is_forked() {
            // In a fork, all operations of the session fail.
            true => Some(SessionId(0)),
            false => self.driver.with(|runner, _| runner.open_session(principal.clone())),
        };
        let random = self.driver.env().random();
        Some(Embedded::new(self.driver.clone(), self.incarnation, id?, principal, random, self.chunk_bytes))
    }

    /// Connects to all members at `addresses`. Returns true if the first node is among them, or is this node. Records
    /// the members that are `listed` in etcd.
    pub(crate) async fn connect_to_all(&self, addresses: &[String], listed: Vec<(NodeId, String)>) -> bool {
        self.driver.with(|runner, _| runner.begin_join_dials(addresses));
        let hello = self.driver.look(|runner| runner.hello());
        for address in addresses {
            self.driver.shared.fabric.connect(address, &hello);
        }
        self.wait_for_dials().await;
        self.driver.with(|runner, now| {
            if !listed.is_empty() {
                runner.handle_listed_members(now, listed);
            }
            runner.end_join_dials(now)
        });
        let is_joined = |runner: &Runner| runner.is_connected_to(NodeId::FIRST);
        self.incarnation.node == NodeId::FIRST || self.driver.look(is_joined)
    }

    /// Waits until this node is connected to the first node, at the address that peers announce. Returns false if
    /// `timeout` passes first.
    pub(crate) async fn connect_to_first(&self, timeout: Duration) -> bool {
        let is_over = |runner: &Runner| runner.is_connected_to(NodeId::FIRST) || runner.is_alone();
        self.driver.within(timeout, self.until(is_over)).await;
        self.driver.look(|runner| runner.is_connected_to(NodeId::FIRST))
    }

    /// Waits for the first node as `connect_to_first` does, but only if connected nodes announce the first node's
    /// address. They announce it unless they have lost that node. Used by a node that can join without the first node.
    /// If the first node answers, extends the wait to `lease`.
    pub(crate) async fn connect_to_first_if_announced(&self, timeout: Duration, lease: Duration) {
        if self.driver.look(|runner| runner.is_connected_to(NodeId::FIRST)) {
            return;
        }
        // The first message of a peer precedes its answer.
        self.wait_until_admitted().await;
        if self.driver.look(Runner::knows_first_node) {
            let is_met = self.connect_to_first(timeout).await;
            // The peer may be far away.
            let awaits_words = self.driver.look(Runner::awaits_first_words);
            if !is_met && (awaits_words || self.driver.shared.fabric.is_being_answered()) {
                self.connect_to_first(first_timeout(lease).saturating_sub(timeout)).await;
            }
        }
    }

    async fn wait_for_dials(&self) {
        self.until(|runner| runner.has_ended_join_dials()).await;
    }

    /// Waits until `condition` holds or the node is closed.
    async fn until(&self, condition: impl Fn(&Runner) -> bool) {
        let changes = &self.driver.shared.member_changes;
        loop {
            let seen = changes.count();
            if self.driver.is_closed() || self.driver.look(&condition) {
                return;
            }
            changes.wait(seen).await;
        }
    }

    /// Waits until the directory has admitted this node, and all paired nodes have answered. A node that has answered
    /// can handle requests about this node's memory. This node connects to other nodes on first use, and a node that
    /// dies during the wait does not prevent the join.
    pub(crate) async fn wait_until_admitted(&self) {
        self.session(None).greet().await;
    }
}

fn bad_qos(error: BadQos) -> JoinError {
    JoinError::BadConfig(format!("priorities: {error}"))
}

fn check_request_ring(config: &Config) -> Result<(), JoinError> {
    let bytes = config.request_ring_bytes;
    if is_ring_size(bytes) {
        return Ok(());
    }
    Err(JoinError::BadConfig(format!(
        "request rings have {bytes} bytes; the size must be a power of two from {RING_BYTES_MIN} to {RING_BYTES_MAX}"
    )))
}

fn checked_principal(config: &Config) -> Result<Principal, JoinError> {
    principal(&config.principal())
}

/// Parses the name of a principal; fails if it is empty or too long.
pub(crate) fn principal(name: &str) -> Result<Principal, JoinError> {
    match name.len() {
        0 => Err(JoinError::BadConfig("the principal's name is empty".to_owned())),
        len if len > Principal::BYTES_MAX => {
            let most = Principal::BYTES_MAX;
            Err(JoinError::BadConfig(format!("the principal's name has {len} bytes; the maximum is {most}")))
        }
        _ => Ok(Principal(name.into())),
    }
}

fn engine_config(
    config: &Config,
    incarnation: NodeIncarnation,
    env: &NodeEnv,
    address: String,
    fabric: &dyn Fabric,
) -> EngineConfig {
    EngineConfig {
        incarnation,
        pid: env.pid(),
        lease_ns: config.lease.as_nanos() as u64,
        bytes_total: config.arena_bytes,
        segment_bytes: config.segment_bytes.min(config.arena_bytes),
        epoch_ns: env.since_1970_ns().saturating_sub(env.now_ns()),
        address,
        provider: fabric.providers().join("+"),
        full_mesh_nodes_max: config.full_mesh_nodes_max,
    }
}

/// Access to peers' memory through the fabric.
struct FabricReach(Arc<dyn Fabric>);

impl Reach for FabricReach {
    fn window(&self, peer: PeerId, key: Key) -> Option<Window> {
        self.0.direct(peer, key)
    }
}
