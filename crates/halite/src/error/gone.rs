//! Errors of sessions that attach to a node: attaching itself, and the loss of the connection.

use std::io;
use std::path::PathBuf;

use halite_tier::ids::NodeId;
use halite_tier::quota::QuotaExceeded;

use super::{
    AccessCause, BarrierCause, CallCause, LockCause, RegionCause, ReplyCause, SendCause, ServeCause,
};

/// A session could not attach to a node.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// No living node of this host accepts sessions in the cluster directory.
    #[error(
        "cannot attach: no node in {} accepts sessions; start one with `halite up` or `halite node`", dir.display()
    )]
    NoNode {
        /// The cluster directory.
        dir: PathBuf,
    },
    /// The wanted node does not run on this host, or accepts no sessions.
    #[error(
        "cannot attach: node {node} does not run on this host, or accepts no sessions in {}; `halite status` lists all nodes",
        dir.display()
    )]
    NotHere {
        /// The cluster directory.
        dir: PathBuf,
        /// The wanted node.
        node: NodeId,
    },
    /// The cluster directory does not admit this user. Either no node runs there, or nodes that accept no sessions of this
    /// user.
    #[error(
        "cannot attach: {} does not admit this user: no node runs there, it accepts only its own user (its owner can start one with `--attach-mode 0666`), or a folder above is closed to others (`chmod a+x` opens it)",
        path.display()
    )]
    NotAdmitted {
        /// The directory or socket that refused this process.
        path: PathBuf,
    },
    /// Another user than the owner of the cluster directory listens at the socket.
    #[error(
        "cannot attach: user {uid} listens in {}, which belongs to user {owner}; do not use this directory",
        dir.display()
    )]
    Stranger {
        /// The cluster directory.
        dir: PathBuf,
        /// User id of the listening process.
        uid: u32,
        /// User id of the owner of the directory.
        owner: u32,
    },
    /// The directory that this user uses by default belongs to another user, who could read what this process sends.
    #[error(
        "cannot attach: {}, the default directory of this user, belongs to user {owner}; choose another directory with `HALITE_DIR` or `--dir`",
        dir.display()
    )]
    ForeignDefault {
        /// The cluster directory.
        dir: PathBuf,
        /// User id of the owner of the directory.
        owner: u32,
    },
    /// The node speaks another version of the protocol between nodes and attached sessions.
    #[error(
        "cannot attach to the node in {}: it speaks version {theirs} of the protocol of sessions, this process version {ours}; use the same version of Halite",
        dir.display()
    )]
    OtherVersion {
        /// The cluster directory.
        dir: PathBuf,
        /// The version of the node.
        theirs: u16,
        /// The version of this process.
        ours: u16,
    },
    /// The node serves the maximum number of sessions.
    #[error("cannot attach to the node in {}: it already serves {max} sessions{}, the maximum", dir.display(), of_user(*of_user_only))]
    TooManySessions {
        /// The cluster directory.
        dir: PathBuf,
        /// Maximum number of sessions.
        max: u32,
        /// True if the maximum applies to the sessions of this user.
        of_user_only: bool,
    },
    /// The node accepted the connection, but did not answer: its process is stopped, or lacks processor time.
    #[error("cannot attach to the node in {}: it has not answered within {waited_s} s; is its process stopped?", dir.display())]
    Silent {
        /// The cluster directory.
        dir: PathBuf,
        /// Time that this process waited, in seconds.
        waited_s: u64,
    },
    /// The node ended the connection, or sent data that this process cannot decode.
    #[error("cannot attach to the node in {}: it ended the connection", dir.display())]
    Refused {
        /// The cluster directory.
        dir: PathBuf,
    },
    /// The operating system refused an operation on a path.
    #[error("cannot attach: {}: {source}", path.display())]
    Io {
        /// Path of the directory or socket.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
}

fn of_user(of_user_only: bool) -> &'static str {
    if of_user_only { " of this user" } else { "" }
}

/// Reason why an attached session gets no reply from its node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Gone {
    /// The connection to this node had ended before the client sent the request.
    Closed(NodeId),
    /// The connection to this node ended after the client sent the request, so the node may have executed it.
    Lost(NodeId),
    /// This process is a fork of the process that attached.
    Forked,
    /// The client did not send the request, because it exceeds the maximum length. Only a name longer than any valid
    /// name can cause this.
    TooLong {
        /// The node of the session.
        node: NodeId,
        /// Length of the request in bytes.
        len: usize,
    },
    /// The node refused the request, because it exceeds a quota.
    Quota(QuotaExceeded),
}

impl Gone {
    /// Returns true if the node may have executed the request.
    pub(crate) fn maybe_done(self) -> bool {
        matches!(self, Gone::Lost(_))
    }
}

macro_rules! causes {
    ($($cause:ident)*) => {
        $(
            impl From<Gone> for $cause {
                fn from(gone: Gone) -> $cause {
                    match gone {
                        Gone::Closed(node) | Gone::Lost(node) | Gone::TooLong { node, .. } => {
                            $cause::NodeClosed(node)
                        }
                        Gone::Forked => $cause::Forked,
                        Gone::Quota(exceeded) => $cause::Quota(exceeded),
                    }
                }
            }
        )*
    };
}

causes! { AccessCause CallCause SendCause }

impl From<Gone> for ReplyCause {
    fn from(gone: Gone) -> ReplyCause {
        match gone {
            Gone::Forked => ReplyCause::Forked,
            Gone::Quota(exceeded) => ReplyCause::Quota(exceeded),
            Gone::Closed(_) | Gone::Lost(_) | Gone::TooLong { .. } => ReplyCause::CallerGone,
        }
    }
}

impl From<Gone> for RegionCause {
    fn from(gone: Gone) -> RegionCause {
        match gone {
            Gone::Closed(node) | Gone::Lost(node) => RegionCause::NodeClosed(node),
            Gone::Forked => RegionCause::Forked,
            Gone::TooLong { len, .. } => RegionCause::NameTooLong { len },
            Gone::Quota(exceeded) => RegionCause::Quota(exceeded),
        }
    }
}

impl From<Gone> for ServeCause {
    fn from(gone: Gone) -> ServeCause {
        match gone {
            Gone::Closed(node) | Gone::Lost(node) => ServeCause::NodeClosed(node),
            Gone::Forked => ServeCause::Forked,
            Gone::TooLong { .. } => ServeCause::Name(gone.into()),
            Gone::Quota(exceeded) => ServeCause::Quota(exceeded),
        }
    }
}

impl From<Gone> for LockCause {
    fn from(gone: Gone) -> LockCause {
        LockCause::Region(gone.into())
    }
}

impl From<Gone> for BarrierCause {
    fn from(gone: Gone) -> BarrierCause {
        BarrierCause::Region(gone.into())
    }
}
