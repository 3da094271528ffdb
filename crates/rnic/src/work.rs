//! What is posted to a queue pair, and what it tells.

use crate::wire::Nak;

/// A place in a peer's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Remote {
    /// The key that the peer gave out.
    pub rkey: u32,
    /// The first byte, in the addresses of that key.
    pub address: u64,
}

/// A place in our own memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Local {
    /// The key.
    pub key: u32,
    /// The first byte, in the addresses of that key.
    pub address: u64,
}

/// Where a write takes its bytes from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Source {
    /// They came along.
    Inline(Vec<u8>),
    /// From our memory, as it is whenever a packet leaves: again, where one is repeated.
    Registered {
        /// Where.
        local: Local,
        /// How many.
        len: u32,
    },
}

/// What a request does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Operation {
    /// A message: the peer receives these bytes.
    Send {
        /// The message.
        bytes: Vec<u8>,
        /// Told along with it.
        imm: Option<u32>,
    },
    /// Copies into the peer's memory.
    Write {
        /// From where.
        source: Source,
        /// Where to.
        remote: Remote,
        /// Told to the peer when the bytes have landed.
        imm: Option<u32>,
    },
    /// Copies out of the peer's memory.
    Read {
        /// Where to.
        local: Local,
        /// From where.
        remote: Remote,
        /// How many bytes.
        len: u32,
    },
    /// Adds to an aligned word, wrapping.
    FetchAdd {
        /// The word.
        remote: Remote,
        /// What is added.
        add: u64,
    },
    /// Replaces an aligned word if it has a certain value.
    CompareSwap {
        /// The word.
        remote: Remote,
        /// What it must hold.
        expected: u64,
        /// What it then becomes.
        new: u64,
    },
}

/// One entry of a send queue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// Comes back in the completion.
    pub id: u64,
    /// What to do.
    pub operation: Operation,
    /// Whether a completion is wanted on success.  Failures always complete.
    pub signalled: bool,
    /// Whether a message or an immediate rings the peer's doorbell.
    pub solicited: bool,
}

impl Operation {
    /// Bytes that it moves; a word for an atomic.
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

    /// Whether the peer answers it by more than an acknowledgement.
    pub(crate) fn is_answered(&self) -> bool {
        matches!(self, Operation::Read { .. } | Operation::FetchAdd { .. } | Operation::CompareSwap { .. })
    }
}

/// Why a request was not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PostError {
    /// As many are posted as the queue holds.
    #[error("the send queue is full")]
    QueueFull,
    /// The queue pair cannot send yet, or not any more.
    #[error("the queue pair is not ready to send")]
    NotReady,
    /// A message or an inline source that is too long.
    #[error("the request could never be carried out")]
    Malformed,
}

/// How a request ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    /// Done.
    Success,
    /// Our own memory is not what the request says.
    LocalAccess,
    /// The peer refused: the key or range may not be used so.
    RemoteAccess,
    /// The peer refused: the request made no sense to it.
    RemoteInvalidRequest,
    /// The peer failed to carry it out.
    RemoteOperation,
    /// The peer did not answer for as long as is tried.  It may be done in part or in whole.
    RetryExceeded,
    /// The peer had no receive for as often as is tried.
    RnrRetryExceeded,
    /// Under way when the connection ended: it may be done in part or in whole.
    Aborted,
    /// Not begun when the connection ended: nothing was done.
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

/// Why a connection ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// The peer refused one of our requests.
    Refused(Nak),
    /// The peer's request was refused.
    PeerErred(Nak),
    /// The peer did not answer for as long as is tried.
    RetryExceeded,
    /// The peer had no receive for as often as is tried.
    RnrRetryExceeded,
    /// A request of ours named memory that is not there.
    LocalAccess,
    /// We ended it.
    Closed,
}

/// What a queue pair tells.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A request of ours has ended.
    Completed {
        /// Which.
        id: u64,
        /// How.
        status: Status,
        /// What the word held before, for an atomic that was done.
        old: Option<u64>,
    },
    /// A message of the peer.
    Received {
        /// Its bytes.
        bytes: Vec<u8>,
        /// Told along with it.
        imm: Option<u32>,
        /// Whether the doorbell is to ring.
        solicited: bool,
    },
    /// A write with immediate of the peer has landed.
    Notified {
        /// What it tells.
        imm: u32,
        /// Whether the doorbell is to ring.
        solicited: bool,
    },
    /// The connection has ended; completions of what was posted come before this, and nothing behind it.
    Broken {
        /// Why.
        cause: Cause,
    },
}
