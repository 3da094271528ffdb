//! What can go wrong with calls and messages, for the person who reads it.

use super::bytes;
use halite_tier::ids::NodeId;
use halite_tier::rpc::PAYLOAD_BYTES_MAX;

/// A call has no answer.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("cannot call function {function} at node {node}: {cause}{}", carried_out(*cause, *may_have_run))]
pub struct CallError {
    /// Of which node.
    pub node: NodeId,
    /// Which function.
    pub function: u32,
    /// Why not.
    pub cause: CallCause,
    /// Whether the handler may have run, or may still run.  If not, to call again cannot do anything twice.
    pub may_have_run: bool,
}

fn carried_out(cause: CallCause, may_have_run: bool) -> &'static str {
    match cause {
        CallCause::ReplyTooLong { .. } => " (the handler ran)",
        _ if may_have_run => " (the handler may have run)",
        _ => "",
    }
}

impl CallError {
    /// Why it failed.
    pub fn cause(&self) -> &CallCause {
        &self.cause
    }
}

/// Why a call has no answer; whether its handler may have run says [`CallError::may_have_run`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallCause {
    /// No node of that number is in the cluster.
    #[error("the cluster has no such node; try again when it has joined")]
    UnknownNode,
    /// The server's node is down, or died or left before there was an answer.  A call ends with the incarnation of the node
    /// that it was sent to: to call again is to call the node that has the number then, a successor that was given it or
    /// nobody.  Numbers that nodes were given when they joined ([`EPHEMERAL_NODE_MIN`](crate::EPHEMERAL_NODE_MIN) and
    /// more) go to no other while the cluster lives.
    #[error("the node is down")]
    PeerDown,
    /// The time is over.  A late answer is dropped.
    #[error("no reply within the deadline")]
    Timeout,
    /// Nobody serves the function there.
    #[error("the node does not serve this function; try again when its server has started")]
    UnknownFunction,
    /// So many calls wait for a handler that one more was refused; try again later.
    #[error("the queue of the function is full; try again later")]
    Busy,
    /// The principal may not call it.
    #[error("permission denied; the server lists the principals that may call")]
    PermissionDenied,
    /// The handler ran, but its answer is longer than the caller takes.
    #[error("the reply has {len} bytes; the caller's buffer has {max}")]
    ReplyTooLong {
        /// Length of the answer in bytes.
        len: u64,
        /// What the caller takes at most.
        max: u64,
    },
    /// Longer than any input.
    #[error("the input has {len} bytes; the maximum is {PAYLOAD_BYTES_MAX}")]
    InputTooLong {
        /// Its length in bytes.
        len: u64,
    },
    /// The handler took the call and gave it up.
    #[error("the handler dropped the call without a reply")]
    NoReply,
    /// The server ended while the call waited for it.
    #[error("the server closed before it received the call")]
    ServerClosed,
    /// The node is about to leave, and takes no call any more; what it took before, it answers.
    #[error("the node is draining; call another")]
    Draining,
    /// There is no registered memory for a payload of this length, here or there.
    #[error("no registered memory for a payload of this length")]
    NoMemory,
    /// Too many calls are under way.
    #[error("too many calls of this node are outstanding; try again later")]
    TooManyCalls,
    /// The session's own node leaves or has left.
    #[error("the node has left the cluster")]
    NodeClosed,
    /// What came back is no answer.
    #[error("the reply is malformed; run the same version on all nodes")]
    NotUnderstood,
}

impl CallCause {
    /// Whether the handler of a call that was posted and ended like this may have run.
    pub(crate) fn may_have_run_once_posted(self) -> bool {
        match self {
            CallCause::PeerDown
            | CallCause::Timeout
            | CallCause::ReplyTooLong { .. }
            | CallCause::NoReply
            | CallCause::NoMemory
            | CallCause::NodeClosed
            | CallCause::NotUnderstood => true,
            CallCause::UnknownNode
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

/// A message was not sent.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("cannot send {} to port {port} at node {node}: {cause}{}", bytes(*len), received(*may_have_arrived))]
pub struct SendError {
    /// To which node.
    pub node: NodeId,
    /// To which port.
    pub port: u32,
    /// How many bytes.
    pub len: u64,
    /// Why not.
    pub cause: SendCause,
    /// Whether it may have been received.  If not, it never will be.
    pub may_have_arrived: bool,
}

fn received(may_have_arrived: bool) -> &'static str {
    if may_have_arrived { " (it may have been received)" } else { "" }
}

impl SendError {
    /// Why it failed.
    pub fn cause(&self) -> &SendCause {
        &self.cause
    }
}

/// Why a message was not sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SendCause {
    /// No node of that number is in the cluster.
    #[error("the cluster has no such node; try again when it has joined")]
    UnknownNode,
    /// The receiver's node is down, or died or left before it had answered.
    #[error("the node is down")]
    PeerDown,
    /// Nobody has opened the port.
    #[error("the port is not open there")]
    UnknownPort,
    /// Ports of such numbers are kept for watching.
    #[error("ports from 2^31 on are reserved for watches; use `write_notify`")]
    Reserved,
    /// The receiver is slow, and its queue is full.
    #[error("the port is full; `send` waits until there is room")]
    WouldBlock,
    /// The principal may not.
    #[error("permission denied; the port's owner lists the principals that may send")]
    PermissionDenied,
    /// Longer than any message.
    #[error("the message exceeds the maximum of {PAYLOAD_BYTES_MAX} bytes")]
    TooLong,
    /// There is no registered memory for a message of this length.
    #[error("no registered memory for a message of this length")]
    NoMemory,
    /// Too many calls and messages are under way.
    #[error("too many calls and messages of this node are outstanding; try again later")]
    TooManyCalls,
    /// The session's own node leaves or has left.
    #[error("the node has left the cluster")]
    NodeClosed,
    /// What came back is no answer.
    #[error("the reply is malformed; run the same version on all nodes")]
    NotUnderstood,
}

/// A function or port cannot be served, or not any longer.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("cannot serve {what}: {cause}")]
pub struct ServeError {
    /// `function 7`, or `port 7`.
    pub what: String,
    /// Why not.
    pub cause: ServeCause,
}

impl ServeError {
    /// Why it failed.
    pub fn cause(&self) -> &ServeCause {
        &self.cause
    }
}

/// Why a function or port cannot be served.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeCause {
    /// Somebody serves it at this node; clone that server to have several receivers.
    #[error("{owner} already serves it at this node")]
    Taken {
        /// The principal that does.
        owner: String,
    },
    /// Ports of such numbers are kept for watching.
    #[error("ports from 2^31 on are reserved for watches; use `watch`")]
    Reserved,
    /// It was closed.
    #[error("it was closed")]
    Closed,
    /// The session's own node leaves or has left.
    #[error("the node has left the cluster")]
    NodeClosed,
}

/// An answer did not reach its caller, who has been told so unless it has gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("cannot reply to the caller at node {node} with {}: {cause}", bytes(*len))]
pub struct ReplyError {
    /// The caller's node.
    pub node: NodeId,
    /// Length of the answer in bytes.
    pub len: u64,
    /// Why not.
    pub cause: ReplyCause,
}

impl ReplyError {
    /// Why it failed.
    pub fn cause(&self) -> &ReplyCause {
        &self.cause
    }
}

/// Why an answer did not reach its caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplyCause {
    /// Its time was over, it lost interest, or its node is down.
    #[error("the caller no longer waits")]
    CallerGone,
    /// It is longer than what the caller takes.
    #[error("the caller's buffer has {max} bytes")]
    TooLong {
        /// What the caller takes at most, in bytes.
        max: u64,
    },
    /// There is no registered memory to keep it in until the caller has read it.
    #[error("no registered memory for a reply of this length")]
    NoMemory,
}
