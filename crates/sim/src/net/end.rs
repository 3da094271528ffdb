//! Ends of connections. An end is the state that one fabric keeps about a peer, for all lanes together.
//!
//! Each lane is a pair of queue pairs, one at either end. All lanes of a connection share the wire, and are closed
//! together.
//!
//! ```text
//!   end 4 ── qp 6 ═════ lane 0 ═════ qp 7 ── end 5
//!        └── qp 8 ═════ lane 1 ═════ qp 9 ──┘
//! ```

use std::collections::VecDeque;
use std::ops::{Index, IndexMut};

use halite_fabric::PeerId;

use super::direct::Mappings;
use crate::hardware::Reach;

/// The index of an end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct EndId(pub(super) u32);

impl EndId {
    /// Returns the other end of the connection.
    pub(super) fn other(self) -> EndId {
        EndId(self.0 ^ 1)
    }
}

/// The state of a connection at one end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum EndState {
    /// The peer has opened its end, but this one is not open yet.
    Opening,
    Open,
    /// This end is closed for posts; outstanding requests are still sent.
    Closing,
    Closed,
}

/// One end of a connection.
#[derive(Debug)]
pub(super) struct End {
    pub(super) endpoint: u32,
    /// Id that this end's fabric gave the peer; set when the end opens.
    pub(super) peer: PeerId,
    /// The other end's hello, until this end is open.
    pub(super) hello: Vec<u8>,
    /// The dialled address, until this end is open.
    pub(super) dialled: Option<String>,
    pub(super) state: EndState,
    /// True if the peer can no longer access the memory here.
    pub(super) is_cut_off: bool,
    pub(super) from_host: u32,
    pub(super) to_host: u32,
    /// Relation of the two processes.
    pub(super) reach: Reach,
    /// The end's queue pair of the first lane.
    pub(super) first_qp: u32,
    /// Number of lanes.
    pub(super) lanes: u32,
    /// The receiving queue pair of each message or immediate of the peer that waits to be polled.
    pub(super) unpolled: VecDeque<u32>,
    /// Time of the last packet from the peer's process; maintained only if processes acknowledge in software.
    pub(super) heard_ns: u64,
    /// Number of the peer's keys that are known here.
    pub(super) keys_known: u32,
    /// Number of this end's keys that were announced to the peer.
    pub(super) keys_announced: u32,
    /// Mappings of the peer's memory, for direct access.
    pub(super) mappings: Mappings,
}

impl End {
    /// Returns true if outstanding requests are still executed.
    pub(super) fn is_active(&self) -> bool {
        matches!(self.state, EndState::Open | EndState::Closing)
    }

    /// Returns the end's queue pairs, by lane.
    pub(super) fn qps(&self) -> impl Iterator<Item = u32> + use<> {
        let first = self.first_qp;
        (0..self.lanes).map(move |lane| first + 2 * lane)
    }
}

/// All ends of a world.
#[derive(Debug, Default)]
pub(super) struct Ends(Vec<End>);

impl Ends {
    pub(super) fn push(&mut self, end: End) -> EndId {
        self.0.push(end);
        EndId(self.0.len() as u32 - 1)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = EndId> + use<> {
        (0..self.0.len() as u32).map(EndId)
    }
}

impl Index<EndId> for Ends {
    type Output = End;

    fn index(&self, end: EndId) -> &End {
        &self.0[end.0 as usize]
    }
}

impl IndexMut<EndId> for Ends {
    fn index_mut(&mut self, end: EndId) -> &mut End {
        &mut self.0[end.0 as usize]
    }
}
