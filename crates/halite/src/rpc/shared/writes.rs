//! Batches: requests or answers to one node that are posted together.
//!
//! A post has fixed costs: locks, the fence before the doorbell, and the wait for the peer's cache lines. A batch pays
//! these costs once. It contains only short requests and answers; others are posted one by one.

use halite_fabric::{Fabric, Local, Operation, PeerId, PostCause, RemoteAddress};
use halite_tier::rpc::Imm;

use super::poster::{CALL_WORK, LINE_BYTES, work_request};
use crate::runtime::lanes::CALLS;

/// Maximum length of a batch: it is posted under a lock, and the peer sees its writes one after the other.
pub(crate) const BATCH_MAX: usize = 16;

/// Writes with immediates that are posted together, in order.
pub(in crate::rpc) struct Writes {
    bytes: Vec<u8>,
    /// For each write: the offset at which its bytes end, its remote address and its immediate.
    writes: Vec<(usize, RemoteAddress, u32)>,
}

impl Writes {
    /// Reserves room for `count` writes of a cache line each.
    pub(in crate::rpc) fn new(count: usize) -> Writes {
        Writes { bytes: Vec::with_capacity(count * LINE_BYTES), writes: Vec::with_capacity(count) }
    }

    pub(in crate::rpc) fn push(&mut self, parts: &[&[u8]], at: RemoteAddress, imm: Imm) {
        parts.iter().for_each(|part| self.bytes.extend_from_slice(part));
        self.writes.push((self.bytes.len(), at, imm.emit()));
    }

    pub(in crate::rpc) fn len(&self) -> usize {
        self.writes.len()
    }

    /// Posts all writes. Returns how many were posted, and why the others were refused.
    pub(in crate::rpc) fn post(&self, fabric: &dyn Fabric, peer: PeerId) -> (usize, Result<(), PostCause>) {
        if self.writes.is_empty() {
            return (0, Ok(()));
        }
        let mut begin = 0;
        let requests: Vec<_> = (self.writes.iter())
            .map(|(end, at, imm)| {
                let local = Local::Inline(&self.bytes[begin..*end]);
                begin = *end;
                let operation = Operation::WriteImm { local, remote: *at, imm: *imm };
                work_request(CALL_WORK, operation)
            })
            .collect();
        match fabric.post(peer, CALLS, &requests) {
            Ok(()) => (requests.len(), Ok(())),
            Err(error) => (error.posted, Err(error.cause)),
        }
    }
}
