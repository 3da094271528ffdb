//! Driven nodes: nodes without threads, which the application runs step by step.

use std::cell::RefCell;
use std::sync::Arc;

use halite_fabric::Fabric;
use halite_tier::ids::{NodeIncarnation, RegionId};
use halite_tier::layout::Extent;

use crate::cluster::config::{Config, NodeId};
use crate::cluster::networks::NodeIdentity;
use crate::driver::leaving::{self, Leaving};
use crate::error::{JoinError, LockError};
use crate::node::inner::{self, CheckedConfig, NodeInner};
use crate::runtime::env::{Env, NodeEnv};
use crate::session::{Kind, Session};

/// A node without threads, clock or files, for simulated time and for programs with their own event loop.
///
/// The application calls [`Driven::step`] when the fabric's doorbell rings, and at the time that the previous step
/// returned. The application's tasks use the node's async sessions. A blocking session would wait forever, because no
/// other thread drives the node.
///
/// Dropping the node without leaving acts like a crash: the node does not inform other nodes, and the operations of its
/// sessions fail with `NodeClosed`.
pub struct Driven {
    inner: NodeInner,
    leaving: RefCell<Option<Leaving>>,
}

impl std::fmt::Debug for Driven {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driven").field("incarnation", &self.inner.incarnation).finish_non_exhaustive()
    }
}

/// The result of a step of a driven node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// The node waits. The application calls [`Driven::step`] again when the doorbell rings, or at this time on the
    /// node's clock, in nanoseconds.
    Next(u64),
    /// The node has left, and needs no further step.
    Left,
}

impl Driven {
    /// Creates a node of `config` over the fabric that `open` returns. `config.node` must be set; errors use
    /// `config.dir` as the cluster's name. The node has no peers until [`Driven::join`].
    pub fn new(
        config: Config,
        env: Arc<dyn Env>,
        open: impl FnOnce(&NodeIdentity) -> Result<Arc<dyn Fabric>, JoinError>,
    ) -> Result<Driven, JoinError> {
        let node =
            config.node.ok_or_else(|| JoinError::BadConfig("a driven node needs a number".to_owned()))?;
        let checked = CheckedConfig::new(config)?;
        let env = NodeEnv::Custom(env);
        let incarnation = NodeIncarnation { node, id: inner::new_incarnation(&env) };
        let (name, address) = (format!("node-{node}"), env.address());
        let identity =
            NodeIdentity { node, name, hosts: None, hello: checked.hello(incarnation, &env, &address) };
        let inner =
            NodeInner::new(&checked, incarnation, env, address, open(&identity)?, Default::default())?;
        Ok(Driven { inner, leaving: RefCell::new(None) })
    }

    /// Connects to the other members of the cluster at their fabric addresses `addresses`.
    pub async fn join(&self, config: &Config, addresses: &[String]) -> Result<(), JoinError> {
        if !self.inner.connect_to_all(addresses, Vec::new()).await {
            return Err(JoinError::NoCluster { dir: config.dir.clone() });
        }
        self.inner.wait_until_admitted().await;
        Ok(())
    }

    /// Does all work that can be done now. Returns what to wait for before the next step.
    pub fn step(&self) -> Step {
        let driver = &self.inner.driver;
        let next_ns = driver.step();
        match self.leaving.borrow_mut().as_mut().map(|leaving| leaving.advance(driver)) {
            None => Step::Next(next_ns),
            Some(false) => Step::Next(next_ns.min(driver.now_ns() + LEAVING_CHECK_NS)),
            Some(true) => Step::Left,
        }
    }

    /// Returns the node's number.
    pub fn id(&self) -> NodeId {
        self.inner.incarnation.node
    }

    /// Returns true if this node is connected to `node`.
    pub fn is_connected_to(&self, node: NodeId) -> bool {
        self.inner.driver.look(|runner| runner.is_connected_to(node))
    }

    /// Returns true if `node` is a member to which this node connects on first use.
    pub fn is_unconnected_to(&self, node: NodeId) -> bool {
        self.inner.driver.look(|runner| runner.engine().is_some_and(|engine| engine.is_unconnected(node)))
    }

    /// Returns the number of calls in progress to `node`, and the number of long answers kept for `node`, as
    /// [`Session::explain_peer`] reports them, but without a message.
    pub fn under_way(&self, node: NodeId) -> (usize, usize) {
        self.inner.driver.shared.rpc.under_way(node)
    }

    /// Returns the memory that accesses of this node may touch now, each piece with its region. With this, tests check
    /// that no two nodes use the same memory for different regions.
    pub fn reached(&self) -> Vec<(RegionId, Extent)> {
        self.inner.driver.look(|runner| runner.engine().map_or_else(Vec::new, |engine| engine.reached()))
    }

    /// Returns true if `other` may touch memory of this node, as far as this node knows.
    pub fn is_reached_by(&self, other: &Driven) -> bool {
        let incarnation = other.inner.incarnation;
        self.inner
            .driver
            .look(|runner| runner.engine().is_some_and(|engine| engine.is_reached_by(incarnation)))
    }

    /// Opens a session that acts as the node's principal. Panics if 65,536 sessions are open.
    pub fn session(&self) -> Session {
        self.inner.session(None).into()
    }

    /// Opens a session that acts as `principal`. The node trusts the application to choose the principal.
    pub fn session_of(&self, principal: &str) -> Result<Session, JoinError> {
        Ok(self.inner.session(Some(inner::principal(principal)?)).into())
    }

    /// Asks the home of a lock to release the lock for `session`, which does not hold it. For tests: a session normally
    /// refuses this itself, but this request must be refused by the home.
    pub async fn unlock_unheld(&self, session: &Session, name: &str) -> Result<(), LockError> {
        match &session.kind {
            Kind::Embedded(session) => session.unlock_unheld(name).await,
            Kind::Attached(_) => unreachable!("a driven node has no attached sessions"),
        }
    }

    /// Starts to leave the cluster. One of the next steps returns [`Step::Left`].
    pub fn begin_to_leave(&self) {
        self.leaving.borrow_mut().get_or_insert_with(|| Leaving::begin(&self.inner.driver));
    }
}

/// Interval between checks whether leaving can continue, in nanoseconds.
const LEAVING_CHECK_NS: u64 = 200_000;

impl Drop for Driven {
    fn drop(&mut self) {
        let driver = &self.inner.driver;
        if driver.is_forked() {
            return std::mem::forget(driver.clone());
        }
        driver.set_closed();
        driver.with_unless_failed(|runner, _| runner.close());
        let stale = self.leaving.take().map(Leaving::into_stale);
        leaving::close(driver, stale.unwrap_or_default());
    }
}
