//! The directory: maps names to regions and their homes.
//!
//! All requests go through one trait, in the form in which nodes send them ([`Request`]), so that another store can
//! replace the embedded directory ([`Embedded`]). Sans-IO like the rest of the crate: requests and events go in,
//! answers come out.

mod embedded;
mod etcd;
mod lost;

use std::fmt;

use crate::ids::{Epoch, NodeId, NodeIncarnation, RegionId, Requester};
use crate::members::NodeLoss;
use crate::message::{ErrorReply, Reply, Request};
use crate::news::News;

pub use embedded::Embedded;
pub use etcd::{Compare, EtcdDirectory, MoveJob, Pair, Returned, Step, StoreFailure, Stored, Transaction};
pub use lost::LOST_NAMES_MAX;

/// Maximum number of names in one answer, which keeps the message small.
pub const NAMES_PER_ANSWER_MAX: usize = 1024;

/// One node's part of a directory. A directory never gives one name to two regions.
pub trait Directory: fmt::Debug + Send {
    /// Returns the seat: the node that lists members and ended incarnations. Unless the directory [is
    /// outside](Directory::is_outside), all nodes also send their requests and the names of their regions to it.
    fn seat(&self) -> NodeId;

    /// Returns true if names and node numbers are kept in a store outside the cluster (etcd). Each node then accesses
    /// the store itself, instead of asking the [seat](Directory::seat).
    fn is_outside(&self) -> bool {
        self.prefix().is_some()
    }

    /// Returns the prefix of the keys in the outside store; `None` if the directory is not outside.
    fn prefix(&self) -> Option<&str> {
        None
    }

    /// Returns true if this node found that it cannot write to the outside store.
    fn lacks_store(&self) -> bool {
        false
    }

    /// Handles a request to claim, release, find, list or forget names. A [`DirectoryOutput::Answer`] to `requester`
    /// follows.
    fn handle_request(&mut self, now_ns: u64, requester: Requester, request: Request);

    /// Handles an event that may affect names.
    fn handle_event(&mut self, now_ns: u64, event: DirectoryEvent);

    /// Handles the result of a transaction that [`DirectoryOutput::Store`] requested.
    fn handle_stored(&mut self, _now_ns: u64, _id: u64, _result: Result<Stored, StoreFailure>) {}

    /// Frees a name that is recorded for a region of this node which does not exist, unless the region is about to get
    /// the name. [`DirectoryOutput::Answer`] follows. Called only if the directory is outside.
    fn free_leftover(&mut self, _now_ns: u64, _requester: Requester, _name: &str, _region: RegionId) {}

    /// Handles the reply of a home that [`DirectoryOutput::AskHome`] asked.
    fn handle_home_reply(&mut self, _now_ns: u64, _id: u64, _reply: HomeReply) {}

    /// Starts to move the names to an outside store, by transactions. [`DirectoryOutput::Moved`] or
    /// [`DirectoryOutput::NotMoved`] follows. After `Moved`, this part answers no requests.
    fn begin_move(&mut self, now_ns: u64, job: MoveJob);

    /// Starts to move the names from the outside store back to this node. [`DirectoryOutput::Returned`],
    /// [`DirectoryOutput::Closed`] or [`DirectoryOutput::NotMoved`] follows.
    fn begin_return(&mut self, _now_ns: u64) {}

    /// Returns the id of the last transaction that was sent to the store.
    fn last_id(&self) -> u64 {
        0
    }

    /// After the names have moved, removes and returns the requesters that wait for the end of the move, and the events
    /// that arrived while they waited.
    fn take_pending(&mut self) -> (Vec<Requester>, Vec<DirectoryEvent>) {
        (Vec::new(), Vec::new())
    }

    /// Removes this node's entries that no other node needs from the outside store. Called when this node leaves.
    fn deregister(&mut self, _now_ns: u64) {}

    /// Returns true if the removal by [`Directory::deregister`] has ended.
    fn is_deregistered(&self) -> bool {
        true
    }

    /// Returns the time in ns at which [`Directory::handle_timeout`] is due; `u64::MAX` if no timeout is set.
    fn poll_timeout(&self) -> u64 {
        u64::MAX
    }

    /// Does the work that is due at `now_ns`, such as retries.
    fn handle_timeout(&mut self, _now_ns: u64) {}

    /// Removes and returns the next output; `None` if there is no output.
    fn poll(&mut self) -> Option<DirectoryOutput>;

    /// Returns the directory's metrics; `None` if this node does not answer requests.
    fn figures(&self) -> Option<DirectoryFigures> {
        None
    }
}

/// Metrics of a directory, for monitoring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DirectoryFigures {
    /// Number of names that have a region. With an outside store, only names of regions homed at this node count.
    pub names: u64,
    /// Number of names whose regions were lost with their homes; `None` for an outside store.
    pub lost: Option<u64>,
    /// Number of requests that wait for homes to report their names, or for the store to answer.
    pub waiting: u64,
    /// True if the directory answers requests now, false if requests wait.
    pub is_ready: bool,
}

/// A home's reply to the question whether its region has a given name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HomeReply {
    /// The region has the name.
    Has,
    /// The home has no such region, and has freed the name.
    Freed,
    /// The home did not reply, because it is unreachable.
    Silent,
    /// The home did not reply, because the cluster knows no node with its number.
    Unknown,
}

/// An event for a directory.
#[derive(Clone, PartialEq, Debug)]
pub enum DirectoryEvent {
    /// This node starts to connect to all nodes that joined before it. Some of them may be homes that this node does
    /// not know.
    Connecting,
    /// This node has finished connecting: each connection to a node that joined before it is up or has failed.
    AllConnected,
    /// This incarnation will report the names of its regions. It joined before the directory's node.
    Expected(NodeIncarnation),
    /// A home reports the names and epochs of its regions.
    Names {
        /// The reporting home.
        from: NodeIncarnation,
        /// Names with their regions and the regions' epochs.
        names: Vec<(String, RegionId, Epoch)>,
        /// True if these are the last names of the home.
        done: bool,
    },
    /// A region's former home has handed the region over to the next home, which may already have released the name.
    Moved {
        /// The name of the moved region.
        name: String,
        /// The moved region.
        region: RegionId,
        /// The region's epoch at the handover.
        epoch: Epoch,
        /// The next home of the region.
        to: NodeIncarnation,
    },
    /// A node has paired with this node.
    Paired(NodeIncarnation),
    /// The pairing of a node with this node has ended.
    Disconnected {
        /// The node whose pairing has ended.
        incarnation: NodeIncarnation,
        /// True if the node is expected to connect and report its names.
        is_expected: bool,
    },
    /// An incarnation has ended, and its regions are lost.
    Ended {
        /// The ended incarnation.
        incarnation: NodeIncarnation,
        /// Cause and time of the end.
        loss: NodeLoss,
    },
    /// The cause of an incarnation's end was corrected.
    Corrected {
        /// The ended incarnation.
        incarnation: NodeIncarnation,
        /// Corrected cause and time of the end.
        loss: NodeLoss,
    },
    /// Another node is killing a node's process, or has killed it.
    Killed {
        /// The killed node.
        incarnation: NodeIncarnation,
        /// The killing node.
        by: NodeId,
        /// True if the engine has already reported the kill as [`News`].
        is_reported: bool,
    },
    /// A node was forgotten at a user's request.
    Forgotten {
        /// The forgotten node.
        node: NodeId,
        /// The requester, which waits for an answer.
        requester: Requester,
    },
}

/// An output of a directory.
#[derive(Clone, PartialEq, Debug)]
pub enum DirectoryOutput {
    /// The answer to a request.
    Answer {
        /// The requester to answer.
        requester: Requester,
        /// The result of the request.
        body: Result<Reply, ErrorReply>,
    },
    /// Notifies a home that its region lost its name to another region.
    NameLost {
        /// The home to notify.
        home: NodeIncarnation,
        /// The lost name.
        name: String,
        /// The region that loses the name.
        region: RegionId,
    },
    /// Asks a home whether its region has that name; if the region lacks the name, the home frees the name.
    /// [`Directory::handle_home_reply`] receives the reply.
    AskHome {
        /// Identifies the question in [`Directory::handle_home_reply`].
        id: u64,
        /// The home to ask.
        home: NodeIncarnation,
        /// The name in question.
        name: String,
        /// The region that has the name according to the directory.
        region: RegionId,
    },
    /// Executes a transaction in the outside store. [`Directory::handle_stored`] receives the result, or the failure.
    Store {
        /// Identifies the transaction in [`Directory::handle_stored`].
        id: u64,
        /// The transaction to execute.
        transaction: Transaction,
    },
    /// All names have moved to the outside store.
    Moved {
        /// Number of names that have moved.
        names: u64,
        /// Number of lost names that have moved.
        lost: u64,
    },
    /// The names were not moved, and this node still answers requests.
    NotMoved {
        /// The reason, for display.
        reason: String,
    },
    /// All names of the outside store were read; this node answers requests from now on.
    Returned(Box<Returned>),
    /// The outside store is closed, because its names have moved back to node 0.
    Closed,
    /// An event for the log.
    News(News),
}
