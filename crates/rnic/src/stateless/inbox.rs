//! Messages and calls that requesters send to the responder's process.
//!
//! ```text
//!   requester                                responder
//!     CALL: number, stamp, bytes ──────────────► pool of messages ──► process
//!     CALL, the same ──────────────────────────► known, without an answer
//!     ◄──────────────────── CALLA: in progress ┘
//!                                                record  ◄── answer ─ process
//!     ◄──────────────────── CALLA: the answer ─┘
//!     CALL, the same, if that was lost ────────► in the record
//!     ◄──────────────────── CALLA: the answer ─┘
//! ```
//!
//! All requesters share the pool. The responder never retransmits an answer by itself: if an answer is lost, the
//! requester repeats the call. A call longer than a packet arrives in parts (`inputs.rs`). Of an answer longer than a
//! packet, the CALLA contains the first bytes; the requester reads the others from the record by GDCs. Each GDC keeps the
//! answer in the record for another 2 T.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::SocketAddr;

use super::inputs::{Inputs, Part};
use super::record::{RequestId, requester_id};
use super::tag::Rights;
use super::wire::{CALL_BYTES_MAX, PAYLOAD_BYTES_FIRST, Status};
use crate::wire::Qpn;

/// Maximum number of messages that the responder's process has not polled, and of calls that it has not answered. The
/// responder refuses further ones as busy. So the pool has at most 16 MiB, and as much for inputs of several packets.
const MESSAGES_MAX: usize = 4_096;
/// Time in ns after which the responder forgets a call without an answer.
const CALL_LIFE_NS: u64 = 10_000_000_000;

/// A message of a requester, returned by [`Responder::poll_message`](super::Responder::poll_message).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Message {
    /// Number of the message, for [`Responder::answer`](super::Responder::answer).
    pub id: u64,
    /// Network address of the requester.
    pub from: SocketAddr,
    /// Number of the requester's queue pair.
    pub qpn: Qpn,
    /// Bytes of the message from `offset`: at most [`PAYLOAD_BYTES_MAX`](super::PAYLOAD_BYTES_MAX), or all of a call.
    pub bytes: Vec<u8>,
    /// Offset of `bytes` in the message. The responder keeps no parts; its process joins them. The parts of the
    /// requester's next message arrive only after all of this one.
    pub offset: u32,
    /// Length of the message in bytes.
    pub len: u32,
    /// Number of bytes that the same packet has written to memory, before the message.
    pub written_bytes: u32,
    /// True if the requester waits for an answer.
    pub is_call: bool,
}

/// The reason why [`Responder::answer`](super::Responder::answer) refused an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AnswerError {
    /// No requester waits for this answer.
    #[error("no requester waits for this answer: the call was answered already, or more than 10 s ago")]
    Unknown,
    /// The answer exceeds its maximum length.
    #[error("the answer is too long: it may have at most {CALL_BYTES_MAX} bytes")]
    TooLong,
    /// The responder has no room for another answer of more than one packet. The call can be answered later.
    #[error(
        "the record of effects is full: answer again when a few tens of ms have passed, or with {PAYLOAD_BYTES_FIRST} bytes"
    )]
    Busy,
}

/// The requester that waits for an answer, with the values of its [`Grant`](super::Grant).
#[derive(Clone, Copy, Debug)]
pub(super) struct Caller {
    pub(super) request_id: RequestId,
    pub(super) from: SocketAddr,
    pub(super) qpn: Qpn,
    pub(super) number: u64,
    pub(super) rkey: u32,
    pub(super) rights: Rights,
    pub(super) began_ns: u64,
}

/// Messages for the responder's process, and calls without an answer.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    arrived: VecDeque<Message>,
    /// Number of bytes of `arrived`.
    arrived_bytes: usize,
    inputs: Inputs,
    /// Calls without an answer; the oldest has the smallest id.
    calls: BTreeMap<u64, Caller>,
    /// The keys of `calls`, by request.
    open_calls: HashMap<RequestId, u64>,
    next_id: u64,
}

impl Inbox {
    pub(super) fn is_full(&self) -> bool {
        self.arrived.len().max(self.calls.len()) + self.inputs.len() >= MESSAGES_MAX
    }

    pub(super) fn is_open(&self, request_id: &RequestId) -> bool {
        self.open_calls.contains_key(request_id)
    }

    /// Returns true if a part of this call's input is missing.
    pub(super) fn has_input(&self, request_id: &RequestId) -> bool {
        self.inputs.has(request_id)
    }

    /// Reserves memory for the `len` bytes of a call's input, which begins with `first`.
    pub(super) fn begin_input(&mut self, now_ns: u64, caller: Caller, first: &[u8], len: usize) -> Status {
        self.inputs.begin(now_ns, caller, first, len, self.arrived_bytes)
    }

    /// Adds a part of a call's input; the part begins `rest` bytes before the end of the input. Returns `None` if this call
    /// lacks no part.
    pub(super) fn add_part(
        &mut self,
        now_ns: u64,
        call: &RequestId,
        rest: usize,
        part: &[u8],
    ) -> Option<Status> {
        match self.inputs.add_part(now_ns, call, rest, part) {
            Part::Unknown => None,
            Part::Misplaced => Some(Status::Refused),
            Part::Taken => Some(Status::Done),
            Part::Last(caller, bytes) => {
                let len = bytes.len() as u32;
                self.add(Caller { began_ns: now_ns, ..caller }, bytes, (0, len), 0, true);
                Some(Status::Done)
            }
        }
    }

    /// Adds a message of `len` bytes, or its part at `offset`.
    pub(super) fn add(
        &mut self,
        caller: Caller,
        bytes: Vec<u8>,
        (offset, len): (u32, u32),
        written_bytes: u32,
        is_call: bool,
    ) {
        let id = self.next_id;
        self.next_id += 1;
        let Caller { from, qpn, .. } = caller;
        self.arrived_bytes += bytes.len();
        self.arrived.push_back(Message { id, from, qpn, bytes, offset, len, written_bytes, is_call });
        if is_call {
            self.open_calls.insert(caller.request_id, id);
            self.calls.insert(id, caller);
        }
    }

    pub(super) fn poll(&mut self) -> Option<Message> {
        let message = self.arrived.pop_front()?;
        self.arrived_bytes -= message.bytes.len();
        Some(message)
    }

    pub(super) fn has_call(&self, id: u64) -> bool {
        self.calls.contains_key(&id)
    }

    /// Removes a call that now has an answer.
    pub(super) fn close(&mut self, id: u64) -> Option<Caller> {
        let caller = self.calls.remove(&id)?;
        self.open_calls.remove(&caller.request_id);
        Some(caller)
    }

    /// Removes the calls of a requester.
    pub(super) fn close_of(&mut self, from: SocketAddr, qpn: Qpn) {
        self.inputs.remove(&requester_id(from, qpn));
        let of_it = self.calls.extract_if(.., |_, caller| (caller.from, caller.qpn) == (from, qpn));
        for (_, caller) in of_it {
            self.open_calls.remove(&caller.request_id);
        }
    }

    /// Returns the time in ns at which [`Inbox::sweep`] may free memory; `None` if no call is open and no input is missing.
    pub(super) fn sweep_ns(&self) -> Option<u64> {
        let calls = self.calls.first_key_value().map(|(_, caller)| caller.began_ns + CALL_LIFE_NS);
        calls.into_iter().chain(self.inputs.sweep_ns()).min()
    }

    /// Removes calls that are older than [`CALL_LIFE_NS`], and inputs of which no part has arrived for `input_life_ns`.
    pub(super) fn sweep(&mut self, now_ns: u64, input_life_ns: u64) {
        self.inputs.sweep(now_ns, input_life_ns);
        while let Some((id, caller)) = self.calls.first_key_value() {
            if now_ns.saturating_sub(caller.began_ns) < CALL_LIFE_NS {
                return;
            }
            let id = *id;
            self.close(id);
        }
    }
}
