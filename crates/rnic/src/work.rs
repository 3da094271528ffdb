//! Requests posted to a queue pair, and the events that a queue pair returns.

use crate::wire::Nak;

/// An address in a peer's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Remote {
    /// The remote key of the memory (verbs' rkey).
    pub rkey: u32,
    /// Address of the first byte, in the address space of the key.
    pub address: u64,
}

/// An address in local memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Local {
    /// The local key of the memory.
    pub key: u32,
    /// Address of the first byte, in the address space of the key.
    pub address: u64,
}

/// The source of a write.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Source {
    /// Bytes that the request itself contains.
    Inline(Vec<u8>),
    /// Local memory. The queue pair reads the bytes each time it sends a packet, so a retransmitted packet may carry
    /// newer bytes.
    Registered {
        /// Address of the first byte.
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
        /// The bytes of the message.
        bytes: Vec<u8>,
        /// Immediate data, delivered with the message.
        imm: Option<u32>,
    },
    /// Copies from `source` to the peer's memory.
    Write {
        /// The bytes to write.
        source: Source,
        /// The target in the peer's memory.
        remote: Remote,
        /// Immediate data, delivered after the bytes have landed.
        imm: Option<u32>,
    },
    /// Copies from the peer's memory to local memory.
    Read {
        /// The target in local memory.
        local: Local,
        /// The source in the peer's memory.
        remote: Remote,
        /// Length in bytes.
        len: u32,
    },
    /// Adds to an aligned 8-byte word of the peer's memory, wrapping at overflow.
    FetchAdd {
        /// Address of the word.
        remote: Remote,
        /// The addend.
        add: u64,
    },
    /// Replaces an aligned 8-byte word of the peer's memory if the word equals `expected`.
    CompareSwap {
        /// Address of the word.
        remote: Remote,
        /// The value that the word must have for the replacement.
        expected: u64,
        /// The replacement.
        new: u64,
    },
}

/// A request: one entry of a send queue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// Id that the poster chooses and the completion returns.
    pub id: u64,
    /// The operation to execute.
    pub operation: Operation,
    /// True if the request produces a completion when it succeeds. A failed request always produces a completion.
    pub signalled: bool,
    /// True if the message or the immediate rings the peer's doorbell.
    pub solicited: bool,
}

impl Operation {
    /// Returns the number of payload bytes that the operation transfers; 8 for an atomic.
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

    /// Returns true for reads and atomics, whose responses carry data.
    pub(crate) fn returns_data(&self) -> bool {
        matches!(self, Operation::Read { .. } | Operation::FetchAdd { .. } | Operation::CompareSwap { .. })
    }
}

/// The reason why [`QueuePair::post`](crate::QueuePair::post) refused a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PostError {
    /// The send queue is full.
    #[error("the send queue is full; post again after a request has completed")]
    QueueFull,
    /// The queue pair is not in the state [`State::ReadyToSend`](crate::State::ReadyToSend): the queue pair is not
    /// connected yet, or its connection has ended.
    #[error("the queue pair is not ready to send: it is not connected yet, or its connection has ended")]
    NotReady,
    /// The message is longer than [`Config::send_bytes_max`](crate::Config::send_bytes_max), or the inline source has 4
    /// GiB or more.
    #[error("the message is longer than the configured maximum, or the inline source has 4 GiB or more")]
    Malformed,
}

/// The outcome of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    /// The request was executed.
    Success,
    /// The request names local memory that is not registered.
    LocalAccess,
    /// The peer refused the access: the key does not exist, does not permit the access, or does not cover the range.
    RemoteAccess,
    /// The peer refused the request as invalid.
    RemoteInvalidRequest,
    /// The peer failed to execute the request.
    RemoteOperation,
    /// The peer did not respond before the retry limit. The peer may have executed the request in part or in full.
    RetryExceeded,
    /// The RNR retry limit was reached: the peer had no posted receive at any retry.
    RnrRetryExceeded,
    /// The request was in flight when the connection ended. The peer may have executed the request in part or in full.
    Aborted,
    /// The request was not executed: this end had not sent the request when the connection ended, or the peer refused
    /// an earlier request.
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
    /// The peer refused a request of this end.
    Refused(Nak),
    /// This end refused a request of the peer, which ended the connection.
    PeerErred(Nak),
    /// The peer did not respond before the retry limit.
    RetryExceeded,
    /// The RNR retry limit was reached: the peer had no posted receive at any retry.
    RnrRetryExceeded,
    /// A request of this end named local memory that is not registered.
    LocalAccess,
    /// This end closed the connection.
    Closed,
}

/// An event of a queue pair.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A request of this end completed.
    Completed {
        /// The request's id.
        id: u64,
        /// The outcome.
        status: Status,
        /// The previous value of the word after a successful atomic; otherwise `None`.
        old: Option<u64>,
    },
    /// A message arrived.
    Received {
        /// The bytes of the message.
        bytes: Vec<u8>,
        /// Immediate data; `None` if the message has none.
        imm: Option<u32>,
        /// True if the receiving process must ring its doorbell.
        solicited: bool,
    },
    /// A write with immediate has landed.
    Notified {
        /// Immediate data.
        imm: u32,
        /// True if the receiving process must ring its doorbell.
        solicited: bool,
    },
    /// The connection ended. This is the last event, after the completions of all posted requests.
    Broken {
        /// The cause.
        cause: Cause,
    },
}
