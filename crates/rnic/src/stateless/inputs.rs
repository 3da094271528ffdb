//! Inputs of calls that take several packets.
//!
//! ```text
//!   requester                                       responder
//!     CALL: number, length, the first bytes ────────────► reserves memory for all
//!     ◄───────────────────────── CALLA: in progress ───┘
//!     RDC: the call's number, the bytes of a part ──────► copies them
//!     ◄────────────────────────────────────── RDA ─────┘
//!     ...                                                 all have arrived: pool of messages ──► process
//! ```
//!
//! The responder copies each part once, and only if it has reserved memory for the call. So the record need not keep the
//! effects of parts. A requester has at most one such input, because it has at most one call in progress. The responder
//! forgets an input of which no part has arrived for 2 T. A repeated CALL does not extend this time, because any host can
//! repeat the packet.

use std::collections::HashMap;

use super::inbox::Caller;
use super::record::{RequestId, RequesterId};
use super::wire::{CALL_BYTES_MAX, PART_BYTES, Status};

/// Maximum number of bytes of incomplete inputs, and of messages that the responder's process has not polled. The
/// responder refuses further inputs as busy.
const INPUT_BYTES_MAX: usize = 16 << 20;

/// The incomplete inputs, at most one per requester.
#[derive(Debug, Default)]
pub(super) struct Inputs {
    inputs: HashMap<RequesterId, Input>,
    /// Sum of the lengths of all inputs.
    bytes: usize,
    sweep_ns: Option<u64>,
}

#[derive(Debug)]
pub(super) struct Input {
    caller: Caller,
    bytes: Vec<u8>,
    /// Bit n is set if the part at offset n times [`PART_BYTES`] is missing.
    missing: u128,
    heard_ns: u64,
}

const _: () = assert!(CALL_BYTES_MAX.div_ceil(PART_BYTES) == u128::BITS as usize);

/// The outcome of a part.
#[derive(Debug)]
pub(super) enum Part {
    /// The responder has no incomplete input of this call.
    Unknown,
    /// The input has no part at this place.
    Misplaced,
    /// Other parts are missing.
    Taken,
    /// The input is complete.
    Last(Caller, Vec<u8>),
}

impl Inputs {
    pub(super) fn len(&self) -> usize {
        self.inputs.len()
    }

    /// Reserves memory for an input of `len` bytes, which begins with `first`. `other_bytes` is the length of the messages
    /// in the pool. Removes the requester's earlier input.
    pub(super) fn begin(
        &mut self,
        now_ns: u64,
        caller: Caller,
        first: &[u8],
        len: usize,
        other_bytes: usize,
    ) -> Status {
        let [requester @ .., number] = caller.request_id;
        if self.inputs.get(&requester).is_some_and(|input| input.caller.number > number) {
            // The requester has abandoned this call, and posted a later one.
            return Status::Expired;
        }
        self.remove(&requester);
        if self.bytes + other_bytes + len > INPUT_BYTES_MAX {
            return Status::Busy;
        }
        self.bytes += len;
        let mut bytes = Vec::with_capacity(len);
        bytes.extend_from_slice(first);
        bytes.resize(len, 0);
        let (parts, arrived) = (len.div_ceil(PART_BYTES), first.len() / PART_BYTES);
        let missing = (u128::MAX >> (u128::BITS as usize - parts)) & (u128::MAX << arrived);
        self.inputs.insert(requester, Input { caller, bytes, missing, heard_ns: now_ns });
        self.sweep_ns.get_or_insert(now_ns);
        Status::InProgress
    }

    /// Copies a part of a call's input; the part begins `rest` bytes before the end of the input.
    pub(super) fn add_part(&mut self, now_ns: u64, call: &RequestId, rest: usize, part: &[u8]) -> Part {
        let [requester @ .., number] = *call;
        let input = self.inputs.get_mut(&requester).filter(|input| input.caller.number == number);
        let Some(input) = input else { return Part::Unknown };
        let len = input.bytes.len();
        let is_whole = part.len() == rest || part.len().is_multiple_of(PART_BYTES);
        let Some(begin) = len.checked_sub(rest).filter(|begin| is_whole && begin.is_multiple_of(PART_BYTES))
        else {
            return Part::Misplaced;
        };
        input.heard_ns = now_ns;
        for (index, bytes) in part.chunks(PART_BYTES).enumerate() {
            let (at, bit) = (begin + index * PART_BYTES, 1 << (begin / PART_BYTES + index));
            if input.missing & bit != 0 {
                input.bytes[at..at + bytes.len()].copy_from_slice(bytes);
                input.missing &= !bit;
            }
        }
        if input.missing != 0 {
            return Part::Taken;
        }
        self.remove(&requester).map_or(Part::Unknown, |input| Part::Last(input.caller, input.bytes))
    }

    /// Removes and returns the input of a requester.
    pub(super) fn remove(&mut self, requester: &RequesterId) -> Option<Input> {
        let input = self.inputs.remove(requester)?;
        self.bytes -= input.bytes.len();
        Some(input)
    }

    /// Returns true if a part of this call's input is missing.
    pub(super) fn has(&self, call: &RequestId) -> bool {
        let [requester @ .., number] = *call;
        self.inputs.get(&requester).is_some_and(|input| input.caller.number == number)
    }

    pub(super) fn sweep_ns(&self) -> Option<u64> {
        self.sweep_ns
    }

    /// Removes the inputs of which no part has arrived for `life_ns`. Runs twice in this time.
    pub(super) fn sweep(&mut self, now_ns: u64, life_ns: u64) {
        if self.sweep_ns.is_none_or(|at_ns| now_ns < at_ns) {
            return;
        }
        let bytes = &mut self.bytes;
        self.inputs.retain(|_, input| {
            let is_kept = now_ns.saturating_sub(input.heard_ns) < life_ns;
            *bytes -= if is_kept { 0 } else { input.bytes.len() };
            is_kept
        });
        self.sweep_ns = Some(now_ns + life_ns / 2);
        if self.inputs.is_empty() {
            *self = Inputs::default();
        }
    }
}
