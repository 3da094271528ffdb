//! The directory: which region has which name, and where its home is.
//!
//! All that nodes ask of it goes through one trait, as the same questions that they send each other, so that another
//! store can take the place of the one that they keep by themselves ([`Embedded`]).  Sans-IO like the rest: questions and
//! what becomes of nodes go in, answers come out, at once or later.

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

/// Most names in one answer, so that it stays a small message.
pub const NAMES_PER_ANSWER_MAX: usize = 1024;

/// A directory, as one node takes part in it.  It never gives one name to two regions.
pub trait Directory: fmt::Debug + Send {
    /// Which node tells the others who the members are and whose incarnations have ended.  Unless the directory [is
    /// outside](Directory::is_outside), all send their questions, and the names of their regions, there as well.
    fn seat(&self) -> NodeId;

    /// Whether names and numbers are kept outside of the cluster, and each node asks its own part for them.
    fn is_outside(&self) -> bool {
        false
    }

    /// Whether nothing can be written where names are kept outside, as far as is known.
    fn lacks_store(&self) -> bool {
        false
    }

    /// Somebody asks: to claim, release or find a name, to list names, or what was lost, or to forget that.
    /// [`Said::Answer`] follows.
    fn ask(&mut self, now_ns: u64, requester: Requester, question: Request);

    /// Something has happened that names may depend on.
    fn tell(&mut self, now_ns: u64, word: Word);

    /// What has come of a transaction that it wanted carried out ([`Said::Store`]).
    fn handle_stored(&mut self, _now_ns: u64, _id: u64, _result: Result<Stored, StoreFailure>) {}

    /// Somebody has found a name that leads to a region of this node, which it does not have: it is to be free, unless the region is about to
    /// have it.  [`Said::Answer`] follows.  Only one that is outside is asked.
    fn free_left_over(&mut self, _now_ns: u64, _requester: Requester, _name: &str, _region: RegionId) {}

    /// What has come of [`Said::AskHome`].
    fn handle_home_says(&mut self, _now_ns: u64, _id: u64, _says: HomeSays) {}

    /// Its names are to be brought to a store outside, by transactions; [`Said::Moved`] or [`Said::NotMoved`] follows.  From the one on
    /// it answers no questions.
    fn begin_move(&mut self, now_ns: u64, job: MoveJob);

    /// It has been moved: who waits for answers, and what it was told since its names were written down.
    fn take_rest(&mut self) -> (Vec<Requester>, Vec<Word>) {
        (Vec::new(), Vec::new())
    }

    /// This node leaves: nothing is left behind outside that nobody needs.
    fn sign_off(&mut self, _now_ns: u64) {}

    /// Whether nothing of that is under way any more.
    fn is_signed_off(&self) -> bool {
        true
    }

    /// When it wants to hear of the time, in ns.
    fn poll_timeout(&self) -> u64 {
        u64::MAX
    }

    /// That time has come.
    fn handle_timeout(&mut self, _now_ns: u64) {}

    /// What it has to say next.
    fn poll(&mut self) -> Option<Said>;

    /// How much it holds, where it is this node that answers, and that can be told here.
    fn figures(&self) -> Option<DirectoryFigures> {
        None
    }
}

/// How much a directory holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DirectoryFigures {
    /// Names that lead to a region; where a store outside has them, to one whose home is this node.
    pub names: u64,
    /// Names whose regions were lost with their homes; `None` where a store outside has them.
    pub lost: Option<u64>,
    /// Questions that are not answered yet: until all homes have told their names, or the store has answered.
    pub waiting: u64,
    /// Whether questions are answered.
    pub is_ready: bool,
}

/// What is known at a home of a name that leads to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HomeSays {
    /// The region has it.
    Has,
    /// There is no such region, and the name is free.
    Freed,
    /// Nothing, for it is not reached.
    Silent,
    /// Nothing, for nobody of this cluster knows a node of that number.
    Unknown,
}

/// What a directory is told.
#[derive(Clone, PartialEq, Debug)]
pub enum Word {
    /// Connections to all who are there before us are about to be begun: homes may be found that nobody has met yet.
    Meeting,
    /// All those have come about, or failed.
    AllMet,
    /// This node was there before us and will tell the names of its regions.
    Expected(NodeIncarnation),
    /// The home of these regions tells their names, and as of which change it is their home; all of them, once it is `done`.
    Names {
        /// Which node.
        from: NodeIncarnation,
        /// Names, regions and changes.
        names: Vec<(String, RegionId, Epoch)>,
        /// Whether these were the last.
        done: bool,
    },
    /// A region's former home has handed it over.  Its next home may have released the name by now.
    Moved {
        /// The name.
        name: String,
        /// The region that has it.
        region: RegionId,
        /// The change that made the next one its home.
        epoch: Epoch,
        /// The next home.
        to: NodeIncarnation,
    },
    /// This node and we hear each other.
    Paired(NodeIncarnation),
    /// This node hears nothing from us any more, and we nothing from it.
    Parted {
        /// Which node.
        incarnation: NodeIncarnation,
        /// Whether it is about to come, and to tell its names.
        is_expected: bool,
    },
    /// The incarnation of a node is over, and its regions are lost.
    Ended {
        /// Whose.
        incarnation: NodeIncarnation,
        /// How.
        parting: Parting,
    },
    /// More is known by now of how an incarnation ended.
    Corrected {
        /// Whose.
        incarnation: NodeIncarnation,
        /// How.
        parting: Parting,
    },
    /// Another node ends that one's process, or has ended it.
    Killed {
        /// Whose.
        incarnation: NodeIncarnation,
        /// By whom.
        by: NodeId,
        /// Whether people have been told.
        is_told: bool,
    },
    /// Nobody misses that node any more.
    Forgotten {
        /// Which.
        node: NodeId,
        /// Who has asked for that, and is answered.
        requester: Requester,
    },
}

/// What a directory says.
#[derive(Clone, PartialEq, Debug)]
pub enum Said {
    /// The answer to a question.
    Answer {
        /// Who asked.
        requester: Requester,
        /// What came of it.
        body: Result<Reply, ErrorReply>,
    },
    /// To a home: another region has this name already.
    NameLost {
        /// Which node.
        home: NodeIncarnation,
        /// The name.
        name: String,
        /// The region that is to have it no more.
        region: RegionId,
    },
    /// To a home: has the region that name?  What leads to no region is cleared by who would know of that;
    /// [`Directory::handle_home_says`] follows.
    AskHome {
        /// To be told again then.
        id: u64,
        /// Which home.
        home: NodeIncarnation,
        /// The name.
        name: String,
        /// The region.
        region: RegionId,
    },
    /// A transaction is to be carried out by the store outside; [`Directory::handle_stored`] follows, whatever comes of it.
    Store {
        /// To be told again then.
        id: u64,
        /// What is to be done.
        transaction: Transaction,
    },
    /// All names are where they were to be brought.
    Moved {
        /// How many.
        names: u64,
        /// How many that were lost.
        lost: u64,
    },
    /// They are not, and questions are answered here as before.
    NotMoved {
        /// Why.
        reason: String,
    },
    /// People may want to know.
    News(News),
}
