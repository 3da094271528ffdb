//! Requests posted to a queue pair, and the events that it returns.

use crate::wire::Nak;

/// An address in a peer's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Remote {
    /// The remote key.
    pub rkey: u32,
    /// The first byte, relative to the key.
    pub address: u64,
}

/// An address in local memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Local {
    /// The local key.
    pub key: u32,
    /// The first byte, relative to the key.
    pub address: u64,
}

/// The source of a write.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Source {
    /// Bytes copied into the request.
    Inline(Vec<u8>),
    /// Local memory. It is read each time a packet is sent, so a retransmitted packet may carry newer bytes.
    Registered {
        /// The first byte.
        local: Local,
        /// Length in bytes.
        len: u32,
    },
}

/// The operation of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Sends a message.
    Send {
        /// The message.
        bytes: Vec<u8>,
        /// Immediate data, delivered with the message.
        imm: Option<u32>,
    },
    /// Copies from `source` to the peer's memory.
    Write {
        /// The source.
        source: Source,
        /// The target.
        remote: Remote,
        /// Immediate data, delivered after the bytes have landed.
        imm: Option<u32>,
    },
    /// Copies from the peer's memory to local memory.
    Read {
        /// The target.
        local: Local,
        /// The source.
        remote: Remote,
        /// Length in bytes.
        len: u32,
    },
    /// Adds to an aligned 8-byte word of the peer's memory, wrapping at overflow.
    FetchAdd {
        /// The word.
        remote: Remote,
        /// The addend.
        add: u64,
    },
    /// Replaces an aligned 8-byte word of the peer's memory if it equals `expected`.
    CompareSwap {
        /// The word.
        remote: Remote,
        /// The value to compare with.
        expected: u64,
        /// The replacement.
        new: u64,
    },
}

/// One entry of a send queue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// Id of the request, returned in its completion.
    pub id: u64,
    /// The operation.
    pub operation: Operation,
    /// True if the request produces a completion when it succeeds. A failed request always does.
    pub signalled: bool,
    /// True if the message or the immediate rings the peer's doorbell.
    pub solicited: bool,
}

impl Operation {
    /// Returns the number of bytes that the request transfers; 8 for an atomic.
    pub fn len_bytes(&self) -> u32 {
        match self {
            Operation::Send { bytes, .. } | Operation::Write { source: Source::Inline(bytes), .. } => {
                bytes.len() as u32
            }
            Operation::Write { source: Source::Registered { len, .. }, .. } | Operation::Read { len, .. } => {
                *len
            }
            Operation::FetchAdd { .. } | Operation::CompareSwap { .. } => 8,
        }
    }

    /// Returns true if the response carries data: reads and atomics.
    pub(crate) fn returns_data(&self) -> bool {
        matches!(self, Operation::Read { .. } | Operation::FetchAdd { .. } | Operation::CompareSwap { .. })
    }
}

/// The reason why a request was refused when it was posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PostError {
    /// The send queue is full.
    #[error("the send queue is full")]
    QueueFull,
    /// The queue pair is not in [`State::ReadyToSend`](crate::State::ReadyToSend): it is not connected yet,
    /// or the connection has ended.
    #[error("the queue pair is not ready to send")]
    NotReady,
    /// The message or the inline source is too long.
    #[error("the message or the inline source is too long")]
    Malformed,
}

/// The outcome of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    /// The request was executed.
    Success,
    /// The request's local memory is not registered.
    LocalAccess,
    /// The peer refused the access: its key does not exist, does not permit the access, or does not cover the range.
    RemoteAccess,
    /// The peer refused an invalid request.
    RemoteInvalidRequest,
    /// The peer failed to execute the request.
    RemoteOperation,
    /// The peer did not respond before the retry limit. The request may be partly or fully executed.
    RetryExceeded,
    /// The RNR retry limit was reached: at no retry did the peer have a posted receive.
    RnrRetryExceeded,
    /// The request was in flight when the connection ended. It may be partly or fully executed.
    Aborted,
    /// The request was not executed: it was not sent before the connection ended, or the peer refused an earlier
    /// request.
    Flushed,
}

impl From<Nak> for Status {
    fn from(nak: Nak) -> Status {
        match nak {
            Nak::RemoteAccess => Status::RemoteAccess,
            Nak::InvalidRequest => Status::RemoteInvalidRequest,
            Nak::RemoteOperation | Nak::Sequence => Status::RemoteOperation,
        }
    }
}

/// The reason why a connection ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// The peer refused a local request.
    Refused(Nak),
    /// This end refused a request of the peer.
    PeerErred(Nak),
    /// The peer did not respond before the retry limit.
    RetryExceeded,
    /// The RNR retry limit was reached: at no retry did the peer have a posted receive.
    RnrRetryExceeded,
    /// A local request named memory that is not registered.
    LocalAccess,
    /// This end closed the connection.
    Closed,
}

/// An event of a queue pair.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A local request completed.
    Completed {
        /// The request's id.
        id: u64,
        /// The outcome.
        status: Status,
        /// The previous value of the word, for a successful atomic.
        old: Option<u64>,
    },
    /// A message arrived.
    Received {
        /// The message.
        bytes: Vec<u8>,
        /// Immediate data, if any.
        imm: Option<u32>,
        /// True if the doorbell must ring.
        solicited: bool,
    },
    /// A write with immediate has landed.
    Notified {
        /// Immediate data.
        imm: u32,
        /// True if the doorbell must ring.
        solicited: bool,
    },
    /// The connection ended. This is the last event, after the completions of all posted requests.
    Broken {
        /// The cause.
        cause: Cause,
    },
}
