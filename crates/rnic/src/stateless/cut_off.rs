//! The requesters that a responder no longer serves.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use super::record::{RequesterId, requester_id};
use crate::wire::Qpn;

/// Maximum number of requesters that are cut off.
const CUT_OFF_MAX: usize = 4_096;

/// The error if the maximum number of requesters is cut off already.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "this responder already has {CUT_OFF_MAX} requesters cut off, the maximum; readmit one, or end all grants by a new epoch"
)]
pub struct CutOffFull;

/// The requesters whose packets have no effect.
#[derive(Debug, Default)]
pub(super) struct CutOff(BTreeSet<RequesterId>);

impl CutOff {
    pub(super) fn insert(&mut self, from: SocketAddr, qpn: Qpn) -> Result<(), CutOffFull> {
        let id = requester_id(from, qpn);
        if self.0.len() >= CUT_OFF_MAX && !self.0.contains(&id) {
            return Err(CutOffFull);
        }
        self.0.insert(id);
        Ok(())
    }

    pub(super) fn remove(&mut self, from: SocketAddr, qpn: Qpn) -> bool {
        self.0.remove(&requester_id(from, qpn))
    }

    pub(super) fn contains(&self, from: SocketAddr, qpn: Qpn) -> bool {
        !self.0.is_empty() && self.0.contains(&requester_id(from, qpn))
    }
}
