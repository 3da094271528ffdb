//! The priority of a session's operations, and the policy of its node.

use halite_tier::ids::NodeId;
use halite_tier::qos::{BadQos, Priority, Qos};
use serde::{Deserialize, Serialize};

use crate::blocking;
use crate::session::attached::wire::Request;
use crate::session::{Embedded, Kind, Session, embedded};

/// The policy of a node could not be read or changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum QosError {
    /// The settings are inconsistent or out of range.
    #[error(transparent)]
    Bad(#[from] BadQos),
    /// The node belongs to another user.
    #[error("only the user who runs the node may change its policy")]
    NotOwner,
    /// The node's configuration gives the principal low priority (`low_priority`).
    #[error(
        "the node gives this principal low priority only; the user who runs the node may change `low_priority`"
    )]
    HighDenied,
    /// The node of the session has left, or this process is a fork of the node's.
    #[error(
        "node {0}, which serves this session, has ended or has left the cluster, or this process is a fork of the node's process"
    )]
    NodeClosed(NodeId),
}

/// The policy of a node, and its current limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct QosNow {
    /// Number of the session's node.
    pub node: NodeId,
    /// Policy of this node for operations of different priority.
    pub qos: Qos,
    /// Limits of high priority, for bytes that leave the node and for bytes that come to it, in bytes per second; `None`
    /// for no limit.
    pub high: [Option<u64>; 2],
    /// Limits of low priority, in the same form as [`QosNow::high`].
    pub low: [Option<u64>; 2],
}

/// Priorities of a session's operations.
impl Session {
    /// Returns this session, with the same handles, whose operations have `priority`. To give a single operation a
    /// priority, use the returned session once.
    ///
    /// A session begins with the highest priority of its principal: low if
    /// [`Config::low_priority`](crate::Config::low_priority) lists the principal, otherwise high. If the principal's
    /// highest priority is low, a request for high priority fails with [`QosError::HighDenied`].
    ///
    /// Priorities matter only under a policy ([`Session::set_qos`]), and only to reads, writes, calls and messages that
    /// leave the node over a network. Loads and stores in memory of this host, atomics, locks and barriers are never
    /// delayed. A delayed call may fail with its timeout. A posted access that is delayed starts when it is awaited, so
    /// posted accesses of low priority keep their order only if they are awaited in order. Accesses of different
    /// priority have no order among each other. Atomics have an order only with accesses of the session's first
    /// priority. Where order matters, await one access before the next.
    ///
    /// ```
    /// # use halite::{Config, Node, NodeId, Permissions, Placement, Policy, Priority, Qos};
    /// # let dir = std::env::temp_dir().join(format!("halite-doc-priority-{}", std::process::id()));
    /// # let node = Node::embedded(Config { dir: dir.clone(), node: Some(NodeId(0)), ..Config::default() })?;
    /// let session = node.blocking_session();
    /// session.set_qos(Qos { policy: Policy::SwPri, rate: None })?;
    /// let backup = session.alloc(None, 1 << 20, Placement::Local, Permissions::empty())?;
    /// session.with_priority(Priority::Low)?.write(backup, 0, &[7; 1 << 16])?;
    /// # drop(node);
    /// # std::fs::remove_dir_all(dir)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with_priority(&self, priority: Priority) -> Result<Session, QosError> {
        let highest = match &self.kind {
            Kind::Embedded(session) => session.inner.highest,
            Kind::Attached(client) => client.highest(),
        };
        if (priority, highest) == (Priority::High, Priority::Low) {
            return Err(QosError::HighDenied);
        }
        Ok(match &self.kind {
            Kind::Embedded(session) => Embedded { inner: session.inner.clone(), priority }.into(),
            Kind::Attached(client) => Session { kind: Kind::Attached(client.with_priority(priority).into()) },
        })
    }

    /// Replaces the policy of this session's node for operations of different priority. Operations that wait follow the
    /// new policy within 100 ms. An attached session may do this only if it belongs to the user who runs the node;
    /// otherwise this fails with [`QosError::NotOwner`].
    pub async fn set_qos(&self, qos: Qos) -> Result<(), QosError> {
        qos.check()?;
        let session = embedded!(self, client => client.ask(&Request::SetQos(qos), |_| QosError::NodeClosed(client.node())).await);
        let driver = &session.inner.driver;
        if driver.is_closed() {
            return Err(QosError::NodeClosed(session.inner.node));
        }
        Ok(driver.shared.shaping.set(driver.now_ns(), qos)?)
    }

    /// Returns the policy of this session's node, and its current limits.
    pub async fn qos(&self) -> Result<QosNow, QosError> {
        let session = embedded!(self, client => client.ask(&Request::Qos, |_| QosError::NodeClosed(client.node())).await);
        let driver = &session.inner.driver;
        if driver.is_closed() {
            return Err(QosError::NodeClosed(session.inner.node));
        }
        let shaping = &driver.shared.shaping;
        let [high, low] = [Priority::High, Priority::Low].map(|priority| shaping.limits(priority));
        Ok(QosNow { node: driver.shared.peers.own().node, qos: shaping.qos(), high, low })
    }
}

/// Priorities, for threads.
impl blocking::Session {
    /// Returns this session with a priority for its operations. See [`crate::Session::with_priority`].
    pub fn with_priority(&self, priority: Priority) -> Result<blocking::Session, QosError> {
        Ok(self.as_async().with_priority(priority)?.blocking())
    }

    /// Replaces the policy of this session's node. See [`crate::Session::set_qos`].
    pub fn set_qos(&self, qos: Qos) -> Result<(), QosError> {
        self.block_on(self.as_async().set_qos(qos))
    }

    /// Returns the policy of this session's node, and its current limits.
    pub fn qos(&self) -> Result<QosNow, QosError> {
        self.block_on(self.as_async().qos())
    }
}
