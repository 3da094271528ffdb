//! The directory: maps names to regions and their homes.
//!
//! All requests to it go through one trait, in the form in which nodes send them, so that another store can replace the
//! embedded one ([`Embedded`]).  Sans-IO like the rest: requests and events go in; answers come out, at once or later.

mod embedded;
mod etcd;
mod lost;

use std::fmt;

use crate::ids::{Epoch, NodeId, NodeIncarnation, RegionId, Requester};
use crate::members::Parting;
use crate::message::{ErrorReply, Reply, Request};
use crate::news::News;

pub use embedded::Embedded;
pub use etcd::{Compare, EtcdDirectory, MoveJob, Pair, Step, StoreFailure, Stored, Transaction};
pub use lost::LOST_NAMES_MAX;

/// Maximum names in one answer, so that it stays a small message.
pub const NAMES_PER_ANSWER_MAX: usize = 1024;

/// One node's part of a directory.  It never gives one name to two regions.
pub trait Directory: fmt::Debug + Send {
    /// The node that lists members and ended incarnations.  Unless the directory [is outside](Directory::is_outside),
    /// all nodes send their requests, and the names of their regions, there as well.
    fn seat(&self) -> NodeId;

    /// Whether names and numbers are kept outside of the cluster, and each node asks its own part for them.
    fn is_outside(&self) -> bool {
        false
    }

    /// Whether the outside store cannot be written to, as far as is known.
    fn lacks_store(&self) -> bool {
        false
    }

    /// Handles a request to claim, release, find, list or forget names.  [`DirectoryOutput::Answer`] follows.
    fn ask(&mut self, now_ns: u64, requester: Requester, question: Request);

    /// Handles an event that names may depend on.
    fn tell(&mut self, now_ns: u64, event: DirectoryEvent);

    /// Handles the result of a transaction ([`DirectoryOutput::Store`]).
    fn handle_stored(&mut self, _now_ns: u64, _id: u64, _result: Result<Stored, StoreFailure>) {}

    /// Frees a name that leads to a region that this node does not have, unless the region is about to have it.
    /// [`DirectoryOutput::Answer`] follows.  Called only if the directory is outside.
    fn free_leftover(&mut self, _now_ns: u64, _requester: Requester, _name: &str, _region: RegionId) {}

    /// Handles the reply to [`DirectoryOutput::AskHome`].
    fn handle_home_reply(&mut self, _now_ns: u64, _id: u64, _reply: HomeReply) {}

    /// Starts to move the names to an outside store, by transactions; [`DirectoryOutput::Moved`] or
    /// [`DirectoryOutput::NotMoved`] follows.  After `Moved` it answers no requests.
    fn begin_move(&mut self, now_ns: u64, job: MoveJob);

    /// Takes, after a move, the waiting requesters, and the events since the names were written.
    fn take_rest(&mut self) -> (Vec<Requester>, Vec<DirectoryEvent>) {
        (Vec::new(), Vec::new())
    }

    /// This node leaves: removes what is no longer needed outside.
    fn sign_off(&mut self, _now_ns: u64) {}

    /// Whether the removal has ended.
    fn is_signed_off(&self) -> bool {
        true
    }

    /// When `handle_timeout` is due, in ns.
    fn poll_timeout(&self) -> u64 {
        u64::MAX
    }

    /// Handles the timeout.
    fn handle_timeout(&mut self, _now_ns: u64) {}

    /// The next output.
    fn poll(&mut self) -> Option<DirectoryOutput>;

    /// Its figures, if this node answers requests and they are known here.
    fn figures(&self) -> Option<DirectoryFigures> {
        None
    }
}

/// The size of a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DirectoryFigures {
    /// Names that lead to a region; in an outside store, those homed at this node.
    pub names: u64,
    /// Names whose regions were lost with their homes; `None` for an outside store.
    pub lost: Option<u64>,
    /// Requests not answered yet, until all homes have reported their names, or the store has answered.
    pub waiting: u64,
    /// Whether requests are answered.
    pub is_ready: bool,
}

/// A home's reply about a name that leads to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HomeReply {
    /// The region has the name.
    Has,
    /// There is no such region, and the name is free now.
    Freed,
    /// No reply: the home is unreachable.
    Silent,
    /// No reply: no node of this cluster knows a node of that number.
    Unknown,
}

/// An event for a directory.
#[derive(Clone, PartialEq, Debug)]
pub enum DirectoryEvent {
    /// Connections to all earlier nodes are about to start: unknown homes may appear.
    Meeting,
    /// All those connections are up, or failed.
    AllMet,
    /// This node was there first and will report the names of its regions.
    Expected(NodeIncarnation),
    /// The home of these regions reports their names and epochs; complete once `done`.
    Names {
        /// The home.
        from: NodeIncarnation,
        /// Names, regions and epochs.
        names: Vec<(String, RegionId, Epoch)>,
        /// Whether these are the last.
        done: bool,
    },
    /// A region's former home has handed it over.  The next home may have released the name by now.
    Moved {
        /// The name.
        name: String,
        /// The region.
        region: RegionId,
        /// The epoch of the handover.
        epoch: Epoch,
        /// The next home.
        to: NodeIncarnation,
    },
    /// A node was paired with this one.
    Paired(NodeIncarnation),
    /// A node is no longer paired with this one.
    Parted {
        /// The node.
        incarnation: NodeIncarnation,
        /// Whether it is expected to connect and report its names.
        is_expected: bool,
    },
    /// An incarnation has ended, and its regions are lost.
    Ended {
        /// The incarnation.
        incarnation: NodeIncarnation,
        /// How it ended.
        parting: Parting,
    },
    /// The cause of an incarnation's end was corrected.
    Corrected {
        /// The incarnation.
        incarnation: NodeIncarnation,
        /// How it ended.
        parting: Parting,
    },
    /// Another node kills a process, or has killed it.
    Killed {
        /// The killed node.
        incarnation: NodeIncarnation,
        /// The killing node.
        by: NodeId,
        /// Whether this was reported as news.
        is_reported: bool,
    },
    /// A node was forgotten by request.
    Forgotten {
        /// The node.
        node: NodeId,
        /// The requester, to answer.
        requester: Requester,
    },
}

/// An output of a directory.
#[derive(Clone, PartialEq, Debug)]
pub enum DirectoryOutput {
    /// The answer to a request.
    Answer {
        /// The requester.
        requester: Requester,
        /// The result.
        body: Result<Reply, ErrorReply>,
    },
    /// To a home: another region has this name.
    NameLost {
        /// The home.
        home: NodeIncarnation,
        /// The name.
        name: String,
        /// The region that loses it.
        region: RegionId,
    },
    /// To a home: does the region have that name?  If not, the home frees it; [`Directory::handle_home_reply`] follows.
    AskHome {
        /// Passed to [`Directory::handle_home_reply`].
        id: u64,
        /// The home.
        home: NodeIncarnation,
        /// The name.
        name: String,
        /// The region.
        region: RegionId,
    },
    /// Execute a transaction in the outside store; [`Directory::handle_stored`] follows in any case.
    Store {
        /// Passed to [`Directory::handle_stored`].
        id: u64,
        /// The transaction.
        transaction: Transaction,
    },
    /// All names were moved.
    Moved {
        /// Number of names.
        names: u64,
        /// Number of lost names.
        lost: u64,
    },
    /// The names were not moved, and requests are answered here as before.
    NotMoved {
        /// The reason.
        reason: String,
    },
    /// An event for the log.
    News(News),
}
