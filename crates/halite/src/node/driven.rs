//! Driven nodes: moved forward by their owner, and not by a thread of their own.

use std::cell::RefCell;
use std::sync::Arc;

use halite_fabric::Fabric;
use halite_tier::ids::{NodeIncarnation, RegionId};
use halite_tier::layout::Extent;

use crate::cluster::config::{Config, NodeId};
use crate::cluster::networks::NodeIdentity;
use crate::driver::leaving::{self, Leaving};
use crate::error::{JoinError, LockError};
use crate::node::inner::{self, Checked, NodeInner};
use crate::runtime::env::{Env, NodeEnv};
use crate::session::Session;

/// One node of a cluster that has no thread, looks at no clock and touches no file: for simulated time, and for
/// programs with an event loop of their own.
///
/// Its owner calls [`Driven::step`] whenever the fabric's doorbell has rung and when the time that the last step
/// returned has come.  Its sessions are used by tasks of the owner's; a blocking session would wait for ever, since
/// nobody else moves the node.
///
/// Dropped without having left, it is a node that has crashed: nobody is told, and its sessions' operations end with
/// `NodeClosed`.
pub struct Driven {
    inner: NodeInner,
    leaving: RefCell<Option<Leaving>>,
}

impl std::fmt::Debug for Driven {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driven").field("incarnation", &self.inner.incarnation).finish_non_exhaustive()
    }
}

/// What a driven node wants next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Another step, when the doorbell rings or at this time on its clock, in nanoseconds.
    Next(u64),
    /// Nothing: it has left.
    Left,
}

impl Driven {
    /// A node of `config`, whose `node` must be given and whose `dir` only names the cluster in errors, over the fabric
    /// that `open` opens.  It is alone until [`Driven::join`].
    pub fn new(
        config: Config,
        env: Arc<dyn Env>,
        open: impl FnOnce(&NodeIdentity) -> Result<Arc<dyn Fabric>, JoinError>,
    ) -> Result<Driven, JoinError> {
        let node =
            config.node.ok_or_else(|| JoinError::BadConfig("a driven node needs a number".to_owned()))?;
        let checked = Checked::new(config)?;
        let env = NodeEnv::Custom(env);
        let incarnation = NodeIncarnation { node, id: inner::new_incarnation(&env) };
        let (name, address) = (format!("node-{node}"), env.address());
        let identity =
            NodeIdentity { node, name, hosts: None, hello: checked.hello(incarnation, &env, &address) };
        let inner =
            NodeInner::new(&checked, incarnation, env, address, open(&identity)?, Default::default())?;
        Ok(Driven { inner, leaving: RefCell::new(None) })
    }

    /// Joins the other members of the cluster, which are at `addresses` of the fabric.
    pub async fn join(&self, config: &Config, addresses: &[String]) -> Result<(), JoinError> {
        if !self.inner.meet_all(addresses, Vec::new()).await {
            return Err(JoinError::NoCluster { dir: config.dir.clone() });
        }
        self.inner.be_known().await;
        Ok(())
    }

    /// Moves the node forward by all that can be done now.
    pub fn step(&self) -> Step {
        let driver = &self.inner.driver;
        let next_ns = driver.step();
        match self.leaving.borrow_mut().as_mut().map(|leaving| leaving.advance(driver)) {
            None => Step::Next(next_ns),
            Some(false) => Step::Next(next_ns.min(driver.now_ns() + LEAVING_LOOK_NS)),
            Some(true) => Step::Left,
        }
    }

    /// Which node this is.
    pub fn id(&self) -> NodeId {
        self.inner.incarnation.node
    }

    /// Whether that node is connected, as far as this one knows.
    pub fn is_connected_to(&self, node: NodeId) -> bool {
        self.inner.driver.look(|runner| runner.is_connected_to(node))
    }

    /// Whether that node is a member to which this one connects when one of the two first uses the other.
    pub fn is_unconnected_to(&self, node: NodeId) -> bool {
        self.inner.driver.look(|runner| runner.engine().is_some_and(|engine| engine.is_unconnected(node)))
    }

    /// How many calls to a node are under way, and how many answers are kept for it: what
    /// [`Session::explain_peer`] tells, without asking anybody.
    pub fn under_way(&self, node: NodeId) -> (usize, usize) {
        self.inner.driver.shared.rpc.under_way(node)
    }

    /// The memory that accesses of this node may touch now: the region that it is taken to belong to, and where it is.  For
    /// those who look whether two nodes take the same memory for parts of different regions.
    pub fn reached(&self) -> Vec<(RegionId, Extent)> {
        self.inner.driver.look(|runner| runner.engine().map_or_else(Vec::new, |engine| engine.reached()))
    }

    /// Whether `other` may touch memory of this node, as far as this one knows.
    pub fn is_reached_by(&self, other: &Driven) -> bool {
        let incarnation = other.inner.incarnation;
        self.inner
            .driver
            .look(|runner| runner.engine().is_some_and(|engine| engine.is_reached_by(incarnation)))
    }

    /// A new session, which acts as the node's principal.  Panics when 65,536 are open.
    pub fn session(&self) -> Session {
        self.inner.session(None)
    }

    /// A new session that acts as `principal`: the owner of a driven node is trusted to say for whom it works.
    pub fn session_of(&self, principal: &str) -> Result<Session, JoinError> {
        Ok(self.inner.session(Some(inner::principal(principal)?)))
    }

    /// Has the home of a lock told that `session` gives it up, although it does not hold it.  A session knows better; its
    /// home has the last word, and this asks for it.
    pub async fn unlock_unheld(&self, session: &Session, name: &str) -> Result<(), LockError> {
        session.unlock_unheld(name).await
    }

    /// Begins to leave the cluster; further steps end with [`Step::Left`].
    pub fn begin_to_leave(&self) {
        self.leaving.borrow_mut().get_or_insert_with(|| Leaving::begin(&self.inner.driver));
    }
}

/// How often it is looked whether leaving can go on.
const LEAVING_LOOK_NS: u64 = 200_000;

impl Drop for Driven {
    fn drop(&mut self) {
        let driver = &self.inner.driver;
        driver.set_closed();
        driver.with_unless_failed(|runner, _| runner.close());
        let stale = self.leaving.take().map(Leaving::into_stale);
        leaving::close(driver, stale.unwrap_or_default());
    }
}
