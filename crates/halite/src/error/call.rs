//! Errors of calls and messages.

use super::{RegionCause, bytes};
use halite_tier::ids::NodeId;
use halite_tier::quota::QuotaExceeded;
use halite_tier::rpc::PAYLOAD_BYTES_MAX;
use serde::{Deserialize, Serialize};

/// A call of a function failed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[error("cannot call function {function} at node {node}: {cause}{}", run_note(*cause, *may_have_run))]
pub struct CallError {
    /// The node that serves the function.
    pub node: NodeId,
    /// Number of the function.
    pub function: u32,
    /// Cause of the failure.
    pub cause: CallCause,
    /// True if the handler may have run or may still run. If false, repeating the call cannot run it twice.
    pub may_have_run: bool,
}

fn run_note(cause: CallCause, may_have_run: bool) -> &'static str {
    match cause {
        CallCause::ReplyTooLong { .. } => " (the handler ran)",
        _ if may_have_run => " (the handler may have run)",
        _ => "",
    }
}

impl CallError {
    /// Returns the cause of the failure.
    pub fn cause(&self) -> &CallCause {
        &self.cause
    }
}

/// Cause of a failed call; [`CallError::may_have_run`] is true if the handler may have run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum CallCause {
    /// No node of the cluster has this number.
    #[error("the cluster has no such node; try again when it has joined")]
    UnknownNode,
    /// The server's node is down, or died or left before it answered.
    ///
    /// A call fails when the incarnation of the node to which it was sent ends. A repeated call goes to the next
    /// incarnation with this number, if one has started. Ephemeral numbers
    /// ([`EPHEMERAL_NODE_MIN`](crate::EPHEMERAL_NODE_MIN) and up) are never reused in the lifetime of a cluster.
    #[error("the node is down")]
    PeerDown,
    /// The first connection to the node could not be established: the node refuses connections, does not answer within
    /// a lease, or packets are lost. The call was not sent.
    #[error(
        "the first connection to the node failed, so the call was not sent; see `halite status`, or try again"
    )]
    NotMet,
    /// The timeout passed. A late answer is dropped.
    #[error("no reply within the deadline")]
    Timeout,
    /// No server serves the function at the called node.
    #[error("the node does not serve this function; try again when its server has started")]
    UnknownFunction,
    /// The function's queue is full; try again later.
    #[error("the queue of the function is full; try again later")]
    Busy,
    /// The principal may not call the function.
    #[error("permission denied; the server lists the principals that may call")]
    PermissionDenied,
    /// The handler ran, but its answer is longer than the caller accepts.
    #[error("the reply has {len} bytes; the caller's buffer has {max}")]
    ReplyTooLong {
        /// Length of the answer, in bytes.
        len: u64,
        /// Maximum length that the caller accepts, in bytes.
        max: u64,
    },
    /// The input exceeds the maximum length of inputs.
    #[error("the input has {len} bytes; the maximum is {PAYLOAD_BYTES_MAX}")]
    InputTooLong {
        /// Length of the input in bytes.
        len: u64,
    },
    /// The handler received the call and dropped it without a reply.
    #[error("the handler dropped the call without a reply")]
    NoReply,
    /// The server closed while the call was queued.
    #[error("the server closed before it received the call")]
    ServerClosed,
    /// The node is draining: it refuses new calls, and answers calls that it accepted earlier.
    #[error("the node is draining; call another")]
    Draining,
    /// There is no registered memory for a payload of this length, at the caller or the server.
    #[error(
        "no registered memory for a payload of this length; send less at a time, or see `ulimit -v -n -f`"
    )]
    NoMemory,
    /// The node has the maximum number of outstanding calls.
    #[error("too many calls of this node are outstanding; try again later")]
    TooManyCalls,
    /// The session's own node is leaving or has left.
    #[error("node {0}, which serves this session, has ended or has left the cluster")]
    NodeClosed(NodeId),
    /// This process is a fork of the process that joined the cluster.
    #[error("this process is a fork of the node's process; join the cluster anew after the fork")]
    Forked,
    /// The answer of the server's node is malformed.
    #[error("the reply is malformed; run the same version on all nodes")]
    NotUnderstood,
    /// The call exceeds a quota of the principal. If the handler has run, its answer exceeded the quota.
    #[error("{0}")]
    Quota(QuotaExceeded),
}

impl CallCause {
    /// Returns true if the handler of a posted call may have run although the call failed with this cause.
    pub(crate) fn may_have_run_once_posted(self) -> bool {
        match self {
            CallCause::PeerDown
            | CallCause::Timeout
            | CallCause::ReplyTooLong { .. }
            | CallCause::NoReply
            | CallCause::NoMemory
            | CallCause::NodeClosed(_)
            | CallCause::Forked
            | CallCause::NotUnderstood
            | CallCause::Quota(_) => true,
            CallCause::UnknownNode
            | CallCause::NotMet
            | CallCause::UnknownFunction
            | CallCause::Busy
            | CallCause::PermissionDenied
            | CallCause::InputTooLong { .. }
            | CallCause::ServerClosed
            | CallCause::Draining
            | CallCause::TooManyCalls => false,
        }
    }
}

/// A message could not be sent.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[error("cannot send {} to port {port} at node {node}: {cause}{}", bytes(*len), arrival_note(*may_have_arrived))]
pub struct SendError {
    /// The node that has the port.
    pub node: NodeId,
    /// Number of the port.
    pub port: u32,
    /// Length of the message, in bytes.
    pub len: u64,
    /// Cause of the failure.
    pub cause: SendCause,
    /// True if the message may have been received. If false, the message has not been received and never will be.
    pub may_have_arrived: bool,
}

fn arrival_note(may_have_arrived: bool) -> &'static str {
    if may_have_arrived { " (it may have been received)" } else { "" }
}

impl SendError {
    /// Returns the cause of the failure.
    pub fn cause(&self) -> &SendCause {
        &self.cause
    }
}

/// Cause of a failed message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum SendCause {
    /// No node of the cluster has this number.
    #[error("the cluster has no such node; try again when it has joined")]
    UnknownNode,
    /// The receiver's node is down, or died or left before it answered.
    #[error("the node is down")]
    PeerDown,
    /// The first connection to the receiver's node could not be established: the node refuses connections, does not
    /// answer within a lease, or packets are lost. The message was not sent.
    #[error(
        "the first connection to the node failed, so the message was not sent; see `halite status`, or try again"
    )]
    NotMet,
    /// No port with this number is open at the receiver's node.
    #[error("the node has no open port with this number; try again when its receiver has started")]
    UnknownPort,
    /// The port's number is reserved for watches.
    #[error("ports from 2^31 on are reserved for watches; use `write_notify`")]
    Reserved,
    /// The receiver's queue is full.
    #[error("the port is full; `send` waits until there is room")]
    WouldBlock,
    /// The principal may not send to the port.
    #[error("permission denied; the port's owner lists the principals that may send")]
    PermissionDenied,
    /// The message exceeds the maximum length.
    #[error("the message exceeds the maximum of {PAYLOAD_BYTES_MAX} bytes")]
    TooLong,
    /// There is no registered memory for a message of this length.
    #[error(
        "no registered memory for a message of this length; send less at a time, or see `ulimit -v -n -f`"
    )]
    NoMemory,
    /// The node has the maximum number of outstanding calls and messages.
    #[error("too many calls and messages of this node are outstanding; try again later")]
    TooManyCalls,
    /// The session's own node is leaving or has left.
    #[error("node {0}, which serves this session, has ended or has left the cluster")]
    NodeClosed(NodeId),
    /// This process is a fork of the process that joined the cluster.
    #[error("this process is a fork of the node's process; join the cluster anew after the fork")]
    Forked,
    /// The answer of the receiver's node is malformed.
    #[error("the reply is malformed; run the same version on all nodes")]
    NotUnderstood,
    /// The message exceeds a quota of the principal.
    #[error("{0}")]
    Quota(QuotaExceeded),
}

/// A call by name failed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[error("cannot call the server named {name:?}: {cause}")]
pub struct NamedCallError {
    /// Name of the server.
    pub name: String,
    /// Cause of the failure.
    pub cause: NamedCallCause,
}

impl NamedCallError {
    /// Returns the cause of the failure.
    pub fn cause(&self) -> &NamedCallCause {
        &self.cause
    }

    /// Returns true if the handler may have run or may still run. If false, repeating the call cannot run it twice.
    pub fn may_have_run(&self) -> bool {
        matches!(&self.cause, NamedCallCause::Call(error) if error.may_have_run)
    }
}

/// Cause of a failed call by name.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum NamedCallCause {
    /// No server has the name.
    #[error("no server has this name; try again when it has started")]
    NoServer,
    /// The deadline passed before the name was resolved.
    #[error("the directory of names does not answer within the deadline")]
    Timeout,
    /// The name is invalid, or cannot be resolved.
    #[error(transparent)]
    Name(RegionCause),
    /// The last server that the session tried did not answer the call, or refused it.
    #[error(transparent)]
    Call(CallError),
}

/// A function or port cannot be served, or is no longer served.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[error("cannot serve {what}: {cause}")]
pub struct ServeError {
    /// The object to serve: `function 7`, `port 7`, or `the name "words"`.
    pub what: String,
    /// Cause of the failure.
    pub cause: ServeCause,
}

impl ServeError {
    /// Returns the cause of the failure.
    pub fn cause(&self) -> &ServeCause {
        &self.cause
    }
}

/// Cause of a failure to serve.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum ServeCause {
    /// The function or port already has a server at this node; clone that server to receive with several threads.
    #[error("principal {owner} already serves this number at the node")]
    Taken {
        /// The principal of the existing server.
        owner: String,
    },
    /// The number of the port or function is reserved.
    #[error("numbers from 2^31 on are reserved: ports for `watch`, functions for `serve_named`")]
    Reserved,
    /// Another server has this name, and at least one of the two servers does not set `shared`.
    #[error("another server has this name; several servers may have it if all set `shared`")]
    NameTaken,
    /// The name is invalid, or cannot be registered.
    #[error(transparent)]
    Name(RegionCause),
    /// The server or port was closed.
    #[error("the server or port was closed")]
    Closed,
    /// The session's own node is leaving or has left.
    #[error("node {0}, which serves this session, has ended or has left the cluster")]
    NodeClosed(NodeId),
    /// This process is a fork of the process that joined the cluster.
    #[error("this process is a fork of the node's process; join the cluster anew after the fork")]
    Forked,
    /// The function, port or receive exceeds a quota of the principal.
    #[error("{0}")]
    Quota(QuotaExceeded),
}

/// An answer did not reach its caller. The call fails at the caller too, unless the caller no longer waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[error("cannot reply to the caller at node {node} with {}: {cause}", bytes(*len))]
pub struct ReplyError {
    /// The node of the caller.
    pub node: NodeId,
    /// Length of the answer, in bytes.
    pub len: u64,
    /// Cause of the failure.
    pub cause: ReplyCause,
}

impl ReplyError {
    /// Returns the cause of the failure.
    pub fn cause(&self) -> &ReplyCause {
        &self.cause
    }
}

/// Cause of a failed answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum ReplyCause {
    /// The call timed out or was abandoned, or the caller's node is down.
    #[error("the caller no longer waits")]
    CallerGone,
    /// The answer is longer than the caller accepts.
    #[error("the caller's buffer has {max} bytes")]
    TooLong {
        /// Maximum length that the caller accepts, in bytes.
        max: u64,
    },
    /// There is no registered memory to keep the answer in until the caller has read it.
    #[error("no registered memory for a reply of this length; reply with less, or see `ulimit -v -n -f`")]
    NoMemory,
    /// This process is a fork of the process that joined the cluster.
    #[error("this process is a fork of the node's process; join the cluster anew after the fork")]
    Forked,
    /// The answer exceeds a quota of the principal that serves the function.
    #[error("{0}")]
    Quota(QuotaExceeded),
}
