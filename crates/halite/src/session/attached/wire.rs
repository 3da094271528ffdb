//! Messages between an attached session and its node.
//!
//! ```text
//!   | length of the body, u32 | id, u64 | body: request or result (postcard) | data |       all numbers little-endian
//! ```
//!
//! The first message of each end is a hello with id 0: [`MAGIC`], the version, and in the node's hello a
//! `Result<Welcome, Refusal>`, with the two descriptors of an [exchange](halite_mem::exchange) if the node has memory
//! for one ([`entry`](super::entry) has its lines). Each request then gets exactly one reply with its id, in any order: a
//! result, or [`refused`]. The reply to a cancelled request is empty. Both ends have the same version, so requests and
//! results may change with it; the hello may not.

use std::time::Duration;

use halite_tier::ids::NodeId;
use halite_tier::permissions::Permissions;
use halite_tier::qos::{Priority, Qos};
use halite_tier::quota::QuotaExceeded;
use serde::{Deserialize, Serialize};

use crate::rpc::ServeOptions;
use crate::session::lock::Wait;
use crate::session::{AllocOptions, Lh, SwapOp, Who};

/// First bytes of each hello.
pub(crate) const MAGIC: [u8; 8] = *b"halite\0s";
/// Version of this protocol; changes with every change of a message.
pub(crate) const VERSION: u16 = 10;
/// Length of a message's header, in bytes.
pub(crate) const HEADER_BYTES: usize = 12;
/// Maximum length of the data of one access request, in bytes. The client splits longer accesses, so that the node can
/// serve other clients in between.
pub(crate) const SLICE_BYTES: usize = 64 << 10;
/// Maximum length of the payload of a call, an answer or a message, in bytes.
pub(crate) const PAYLOAD_BYTES_MAX: usize = 16 << 20;
/// Maximum length of a request without its data, in bytes.
pub(crate) const REQUEST_BYTES_MAX: usize = 256 << 10;
/// Maximum length of a message's body, in bytes: a payload and its request.
pub(crate) const BODY_BYTES_MAX: usize = PAYLOAD_BYTES_MAX + REQUEST_BYTES_MAX;
/// First byte of a reply that refuses a request; results begin with 0 or 1.
const REFUSED: u8 = 2;
/// Maximum length of the body of a hello, in bytes.
pub(crate) const HELLO_BYTES_MAX: usize = 4096;
/// Maximum number of accesses in one request.
pub(crate) const BATCH_MAX: usize = 1024;

/// Contents of the hello with which a node accepts a session.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Welcome {
    /// The node's number.
    pub(crate) node: NodeId,
    /// The principal as which the session acts.
    pub(crate) principal: String,
    /// The highest priority of the principal. The node limits requests of a higher one to it.
    pub(crate) highest: Priority,
    /// Why the node shares no memory with the client; `None` if it does.
    pub(crate) socket_reason: Option<String>,
}

/// Reason why a node refuses a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Refusal {
    /// The node, or the user, has the maximum number of sessions.
    TooManySessions { max: u32, of_user_only: bool },
}

/// A request to the node's session. Strings are borrowed from the message.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) enum Request<'a> {
    /// Drops the request with the id of this message.
    Cancel,
    Alloc {
        #[serde(borrow)]
        name: Option<&'a str>,
        len: u64,
        options: AllocOptions,
    },
    Map {
        name: &'a str,
        wanted: Permissions,
    },
    Unmap(Lh),
    Free(Lh),
    Grant {
        lh: Lh,
        who: Who,
        permissions: Permissions,
    },
    Revoke {
        lh: Lh,
        who: Who,
        permissions: Permissions,
    },
    Seal(Lh),
    MoveTo {
        lh: Lh,
        node: NodeId,
    },
    SetName {
        lh: Lh,
        name: &'a str,
    },
    Stat(&'a str),
    StatHandle(Lh),
    ListPage(#[serde(borrow)] Option<&'a str>),
    ListLost,
    ForgetName(&'a str),
    ForgetNode(NodeId),
    Drain {
        node: NodeId,
        within: Duration,
        destroy: bool,
    },
    Reach {
        node: NodeId,
        owner: NodeId,
    },
    Status,
    Len(Lh),
    /// Checks rights and bounds of a whole access; `wanted` is `READ` or `WRITE`.
    Check {
        lh: Lh,
        wanted: Permissions,
        offset: u64,
        len: u64,
    },
    /// The data of the reply are the bytes read.
    Read {
        lh: Lh,
        offset: u64,
        len: u32,
    },
    /// The data of the request are the bytes to write.
    Write {
        lh: Lh,
        offset: u64,
    },
    /// The data of the reply are the bytes of all reads.
    ReadBatch(Vec<(Lh, u64, u32)>),
    /// The data of the request are the bytes of all writes.
    WriteBatch(Vec<(Lh, u64, u32)>),
    Fill {
        lh: Lh,
        offset: u64,
        len: u64,
        byte: u8,
    },
    Copy {
        to: Lh,
        to_offset: u64,
        from: Lh,
        from_offset: u64,
        len: u64,
    },
    FetchAdd {
        lh: Lh,
        offset: u64,
        add: u64,
    },
    CompareSwap {
        lh: Lh,
        offset: u64,
        expected: u64,
        new: u64,
    },
    SwapWhile {
        lh: Lh,
        swaps: Vec<SwapOp>,
    },
    /// Waits until the word differs from `not`; without `not`, returns the word at once.
    WaitWord {
        lh: Lh,
        offset: u64,
        not: Option<u64>,
    },
    Barrier {
        name: &'a str,
        participants: u32,
        timeout: Duration,
    },
    FreeBarrier(&'a str),
    CreateBarrier {
        name: &'a str,
        everyone: Permissions,
    },
    GrantBarrier {
        name: &'a str,
        who: Who,
        permissions: Permissions,
    },
    RevokeBarrier {
        name: &'a str,
        who: Who,
        permissions: Permissions,
    },
    Lock {
        name: &'a str,
        wait: Wait,
    },
    /// Checks that the guard with `token` holds the lock; without a token, that any guard does.
    CheckLock {
        name: &'a str,
        token: Option<u64>,
    },
    Unlock {
        name: &'a str,
        token: Option<u64>,
    },
    CreateLock {
        name: &'a str,
        everyone: Permissions,
    },
    GrantLock {
        name: &'a str,
        who: Who,
        permissions: Permissions,
    },
    RevokeLock {
        name: &'a str,
        who: Who,
        permissions: Permissions,
    },
    FreeLock(&'a str),
    /// Notifies the watchers of a region, after a write.
    Notify {
        lh: Lh,
        offset: u64,
        len: u64,
        value: u64,
    },
    Explain(Lh),
    ExplainPeer(NodeId),
    Seen(NodeId),
    Sessions,
    Principals,
    /// The data of the request are the input, and the data of the reply are the answer.
    Call {
        node: NodeId,
        function: u32,
        answer_bytes_max: Option<u32>,
        timeout: Duration,
    },
    CallNamed {
        name: &'a str,
        timeout: Duration,
    },
    Servers(#[serde(borrow)] Option<&'a str>),
    /// The data of the request are the message.
    Send {
        node: NodeId,
        port: u32,
        waits: bool,
    },
    // Requests that create objects. The result is the object's id, which the requests below take.
    /// Creates a buffer of this length. The result also has the number of the descriptor that comes with it: the node
    /// counts those of a connection from 0.
    Buffer(u64),
    Watch(Lh),
    Serve {
        function: u32,
        options: ServeOptions,
    },
    ServeNamed {
        name: &'a str,
        options: ServeOptions,
    },
    OpenPort {
        port: u32,
        options: ServeOptions,
    },
    OpenSender {
        node: NodeId,
        port: u32,
    },
    /// Ends an object: a buffer, watch, server, port, sender, or a call that gets no answer.
    End(u64),
    /// Ends a function or port, and keeps its object.
    Close(u64),
    RecvNotification(u64),
    TryRecvNotification(u64),
    /// The data of the reply are the inputs.
    RecvCalls {
        server: u64,
        max: u64,
    },
    TryRecvCall(u64),
    /// The data of the request are the answer. The call ends.
    Reply(u64),
    IsWanted(u64),
    /// The data of the reply are the message.
    RecvMessage(u64),
    TryRecvMessage(u64),
    /// The data of the request are the message.
    Publish(u64),
    Flush(u64),
    /// The request that follows in the same message has low priority.
    Low,
    /// Sets the policy of the node; only for the user of the node.
    SetQos(Qos),
    Qos,
}

impl Request<'_> {
    /// Returns true if the request releases a resource of the client. Quotas do not refuse such requests.
    pub(crate) fn is_release(&self) -> bool {
        matches!(
            self,
            Request::Cancel
                | Request::Unmap(_)
                | Request::Free(_)
                | Request::Unlock { .. }
                | Request::FreeLock(_)
                | Request::FreeBarrier(_)
                | Request::End(_)
                | Request::Close(_)
        )
    }
}

/// Returns true if the body is a [`Request::Cancel`].
pub(crate) fn is_cancel(body: &[u8]) -> bool {
    body.len() == 1 && matches!(decode(body), Some((Request::Cancel, [])))
}

/// Decodes a request. Returns it with its priority and its data, or `None` if the body contains no request. Decodes
/// only the first bytes, which bounds the memory of the decoded request.
pub(crate) fn decode_request(body: &[u8]) -> Option<(Priority, Request<'_>, &[u8])> {
    let head = &body[..body.len().min(REQUEST_BYTES_MAX)];
    let (priority, (request, rest)) = match decode(head)? {
        (Request::Low, rest) => (Priority::Low, decode(rest)?),
        high => (Priority::High, high),
    };
    Some((priority, request, &body[head.len() - rest.len()..]))
}

/// Returns an encoded message, with the length in its header.
pub(crate) fn message(id: u64, value: &impl Serialize, data: &[&[u8]]) -> Vec<u8> {
    let data_len: usize = data.iter().map(|slice| slice.len()).sum();
    let mut bytes = Vec::with_capacity(HEADER_BYTES + 128 + data_len);
    bytes.resize(HEADER_BYTES, 0);
    let mut bytes = postcard::to_extend(value, bytes).expect("numbers and texts can be encoded");
    data.iter().for_each(|slice| bytes.extend_from_slice(slice));
    finish(&mut bytes, id);
    bytes
}

/// Returns the reply that refuses a request because of a quota.
pub(crate) fn refused(id: u64, exceeded: QuotaExceeded) -> Vec<u8> {
    message(id, &(REFUSED, exceeded), &[])
}

/// Returns the quota that a request exceeded; `None` if the reply has a result.
pub(crate) fn refusal_of(reply: &[u8]) -> Option<QuotaExceeded> {
    (reply.first() == Some(&REFUSED)).then(|| Some(decode(&reply[1..])?.0))?
}

/// Returns the body of a message without data.
pub(crate) fn body(value: &impl Serialize) -> Vec<u8> {
    postcard::to_stdvec(value).expect("numbers and texts can be encoded")
}

/// Writes the header of a message whose body is complete.
pub(crate) fn finish(bytes: &mut [u8], id: u64) {
    let len = u32::try_from(bytes.len() - HEADER_BYTES).expect("bodies have a maximum length");
    bytes[..4].copy_from_slice(&len.to_le_bytes());
    bytes[4..HEADER_BYTES].copy_from_slice(&id.to_le_bytes());
}

/// A received message.
pub(crate) struct Message<'a> {
    pub(crate) id: u64,
    pub(crate) body: &'a [u8],
    /// Length of the whole message, in bytes.
    pub(crate) len: usize,
}

/// Splits the first message off. Returns `None` if the message is incomplete, and an error if its body is too long.
pub(crate) fn split(bytes: &[u8]) -> Result<Option<Message<'_>>, TooLong> {
    let Some((id, len)) = peek(bytes)? else { return Ok(None) };
    Ok(bytes.get(HEADER_BYTES..len).map(|body| Message { id, body, len }))
}

/// Returns the id and the length of the first message, which may be incomplete. Returns `None` if its header is
/// incomplete, and an error if its body is too long.
pub(crate) fn peek(bytes: &[u8]) -> Result<Option<(u64, usize)>, TooLong> {
    let Some(header) = bytes.get(..HEADER_BYTES) else { return Ok(None) };
    let len = u32::from_le_bytes(header[..4].try_into().expect("four bytes")) as usize;
    if len > BODY_BYTES_MAX {
        return Err(TooLong);
    }
    let id = u64::from_le_bytes(header[4..].try_into().expect("eight bytes"));
    Ok(Some((id, HEADER_BYTES + len)))
}

/// The body of a message exceeds [`BODY_BYTES_MAX`].
#[derive(Debug)]
pub(crate) struct TooLong;

/// Decodes a value. Returns it with the data that follow, or `None` if the bytes contain no such value.
pub(crate) fn decode<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Option<(T, &'a [u8])> {
    postcard::take_from_bytes(body).ok()
}

/// Returns the version in a hello and the rest of the hello; `None` if the body is not a hello.
pub(crate) fn version_of(body: &[u8]) -> Option<(u16, &[u8])> {
    let (magic, rest) = body.split_at_checked(MAGIC.len())?;
    let (version, rest) = rest.split_at_checked(2)?;
    (magic == MAGIC).then(|| (u16::from_le_bytes([version[0], version[1]]), rest))
}

/// Returns a hello, followed by `rest`.
pub(crate) fn hello_message(rest: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; HEADER_BYTES];
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(rest);
    finish(&mut bytes, 0);
    bytes
}

/// Checks the message format on arbitrary bytes, for `fuzz/fuzz_targets/session_message.rs`. However the bytes are cut
/// into pieces, they contain the same messages, and each request survives encoding and decoding.
#[cfg(fuzzing)]
pub fn check_messages(bytes: &[u8]) {
    let mut at = 0;
    while let Ok(Some(Message { id, body, len })) = split(&bytes[at..]) {
        let whole = &bytes[at..at + len];
        let is_incomplete = |cut: usize| matches!(split(&whole[..cut]), Ok(None));
        assert!(
            [0, 1, HEADER_BYTES - 1, HEADER_BYTES, len - 1]
                .into_iter()
                .filter(|cut| *cut < len)
                .all(is_incomplete)
        );
        if let Some((priority, request, data)) = decode_request(body) {
            let again = match priority {
                Priority::High => message(id, &request, &[data]),
                Priority::Low => message(id, &(Request::Low, &request), &[data]),
            };
            let again = split(&again).expect("it is not longer").expect("it is complete");
            assert_eq!(decode_request(again.body), Some((priority, request, data)));
        }
        let _ = (version_of(body), refusal_of(body), decode::<Result<Welcome, Refusal>>(body));
        let _ = decode::<Result<Vec<halite_tier::message::RegionInfo>, crate::error::RegionError>>(body);
        at += len;
    }
}
