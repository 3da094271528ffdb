//! The sessions of other processes that are attached to a node.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

/// A session that is attached to a node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AttachedSession {
    /// The principal as which the session acts.
    pub principal: String,
    /// Id of the process that attached the session, as the node's host numbers it.
    pub pid: u32,
    /// Number of operations under way.
    pub operations: u64,
    /// Memory of the node that the session's requests and unsent replies take, in bytes.
    pub bytes: u64,
}

/// The attached sessions of a node, by the number of their connection.
#[derive(Debug, Default)]
pub(crate) struct AttachedSessions(Mutex<BTreeMap<u64, AttachedSession>>);

impl AttachedSessions {
    fn sessions(&self) -> MutexGuard<'_, BTreeMap<u64, AttachedSession>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets what is known about a session; with `None`, the session has ended.
    pub(crate) fn set(&self, connection: u64, session: Option<AttachedSession>) {
        match session {
            Some(session) => drop(self.sessions().insert(connection, session)),
            None => drop(self.sessions().remove(&connection)),
        }
    }

    /// Sets the figures of a session.
    pub(crate) fn update(&self, connection: u64, operations: u64, bytes: u64) {
        if let Some(session) = self.sessions().get_mut(&connection) {
            (session.operations, session.bytes) = (operations, bytes);
        }
    }

    pub(crate) fn list(&self) -> Vec<AttachedSession> {
        self.sessions().values().cloned().collect()
    }
}
