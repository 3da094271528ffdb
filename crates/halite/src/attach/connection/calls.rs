//! Short calls, receives and answers of one client through shared memory.
//!
//! A call and its answer concern two clients, so the thread passes them on ([`Forward`]).

use std::collections::VecDeque;
use std::rc::Rc;

use halite_mem::exchange::{Line, SLOT_BYTES, SLOTS};
use halite_tier::ids::NodeId;
use halite_tier::qos::Priority;
use halite_tier::quota::Quota;

use super::{Connection, Over};
use crate::attach::desk::{Counted, Desk};
use crate::attach::direct::{DirectCall, Place, Received};
use crate::attach::requests::{answer_call, receive, unanswered};
use crate::error::{CallCause, CallError, ReplyError};
use crate::session::Embedded;
use crate::session::attached::entry::{
    self, CALL_BYTES_MAX, CallWords, INLINE_BYTES_MAX, Kind, NO_SERVER, OPERAND_BYTES_MAX, Status, id_of,
};
use crate::session::attached::wire::{self, Request};
use crate::session::calls::Server;

/// The calls and receives of one client, by slot.
#[derive(Default)]
pub(super) struct Calls {
    /// Receives that wait: their function, and its number.
    receives: [Option<(Rc<Counted<Server>>, u32)>; SLOTS],
    receiving: usize,
    /// Keys of the direct calls of this client.
    under_way: [Option<u64>; SLOTS],
    outstanding: usize,
    forwards: VecDeque<Forward>,
}

/// A line that concerns another client.
pub(in crate::attach) enum Forward {
    Call { slot: usize, words: CallWords, input: Payload },
    Answer { slot: usize, call: u64, server: u64, output: Payload },
}

/// The bytes of a line, copied.
pub(in crate::attach) enum Payload {
    Short(usize, [u8; OPERAND_BYTES_MAX]),
    Long(Vec<u8>),
}

impl Payload {
    pub(in crate::attach) fn bytes(&self) -> &[u8] {
        match self {
            Payload::Short(len, bytes) => &bytes[..*len],
            Payload::Long(bytes) => bytes,
        }
    }
}

impl Calls {
    /// Returns the number of receives that wait.
    pub(super) fn receives(&self) -> usize {
        self.receiving
    }

    /// Returns the number of direct calls of this client in progress.
    pub(super) fn under_way(&self) -> usize {
        self.outstanding
    }

    /// Ends a direct call that the client no longer awaits. Returns false if the slot has none.
    pub(super) fn forget(&self, desk: &Option<Rc<Desk>>, slot: usize) -> bool {
        let (Some(key), Some(desk)) = (self.under_way[slot], desk) else { return false };
        desk.direct.take(key).is_some()
    }
}

impl Connection {
    pub(in crate::attach) fn next_forward(&mut self) -> Option<Forward> {
        self.calls.forwards.pop_front()
    }

    #[inline]
    pub(in crate::attach) fn has_forwards(&self) -> bool {
        !self.calls.forwards.is_empty()
    }

    /// Executes the line of a call, a receive or an answer.
    pub(super) fn serve_call(&mut self, kind: Kind, line: &Line, slot: usize) -> Result<(), Over> {
        match kind {
            Kind::Receive => self.start_receive(slot, line[1]),
            Kind::Answer => {
                let output = self.payload(line, slot, line[3] as usize)?;
                let (call, server) = (line[1], line[2]);
                self.calls.forwards.push_back(Forward::Answer { slot, call, server, output });
                Ok(())
            }
            _ => {
                let words = CallWords::parse(line);
                let input = self.payload(line, slot, words.len)?;
                self.calls.forwards.push_back(Forward::Call { slot, words, input });
                Ok(())
            }
        }
    }

    fn payload(&self, line: &Line, slot: usize, len: usize) -> Result<Payload, Over> {
        match (len, &self.ring) {
            (..=OPERAND_BYTES_MAX, _) => {
                let mut bytes = [0; OPERAND_BYTES_MAX];
                entry::get(&line[4..], &mut bytes[..len]);
                Ok(Payload::Short(len, bytes))
            }
            (..=CALL_BYTES_MAX, Some(ring)) => {
                let mut bytes = vec![0; len];
                ring.memory.read(slot, &mut bytes).map_err(|_| Over)?;
                Ok(Payload::Long(bytes))
            }
            _ => Err(Over),
        }
    }

    /// Starts a receive of a call. Another receiver of the same queue is an operation, and so is this one.
    pub(in crate::attach) fn start_receive(&mut self, slot: usize, server: u64) -> Result<(), Over> {
        let desk = self.desk.clone().ok_or(Over)?;
        let server = desk.server(server).ok_or(Over)?;
        if let Err(exceeded) = self.admit(0) {
            self.counts[1] += 1;
            self.answer_slot(slot, wire::refused(id_of(slot), exceeded));
            return Ok(());
        }
        let future = Box::pin(receive(desk.clone(), id_of(slot), server.clone()));
        self.start_future(id_of(slot), 0, future)?;
        if self.operations.contains_key(&id_of(slot))
            && let Some(number) = server.number()
        {
            self.calls.receives[slot] = Some((server, number));
            self.calls.receiving += 1;
            desk.direct.wait(number, Place { client: self.client, slot });
        }
        Ok(())
    }

    /// Ends the wait of a receive for direct calls.
    pub(super) fn stop_receiving(&mut self, slot: usize) {
        if let (Some((_, number)), Some(desk)) = (self.calls.receives[slot].take(), &self.desk) {
            self.calls.receiving -= 1;
            desk.direct.stop_waiting(number, Place { client: self.client, slot });
        }
    }

    /// Returns the session of the client.
    pub(in crate::attach) fn embedded(&self) -> Option<&Embedded> {
        Some(self.desk.as_ref()?.embedded(Priority::High))
    }

    /// Returns true if the receive in `slot` may get a call of `caller` directly.
    pub(in crate::attach) fn may_receive(&self, slot: usize, caller: &Embedded) -> bool {
        self.calls.receives[slot].as_ref().is_some_and(|(server, _)| server.lets_pass(caller))
    }

    /// Passes a direct call to the receive in `slot`. Returns the key of the call; `None` if the client has no room.
    pub(in crate::attach) fn receive_directly(
        &mut self,
        slot: usize,
        call: DirectCall,
        caller: &str,
        input: &[u8],
    ) -> Option<u64> {
        let desk = self.desk.clone()?;
        let key = desk.direct.open(call);
        let received = Rc::new(Received::new(desk.direct.clone(), key, call.node));
        let Some(id) = desk.keep_direct(received.clone()) else {
            desk.direct.take(key);
            return None;
        };
        // As a result with a list of one `served::Received`.
        let head = (0_u8, 1_u8, id, caller, call.node, input.len() as u32);
        let mut bytes = [0; INLINE_BYTES_MAX];
        match postcard::to_slice(&head, &mut bytes).map(|head| head.len()) {
            Ok(len) if len + input.len() <= INLINE_BYTES_MAX => {
                bytes[len..len + input.len()].copy_from_slice(input);
                let line = entry::reply(Status::Body, len + input.len(), &bytes[..len + input.len()]);
                self.complete(slot, line);
            }
            _ => self.answer_slot(slot, wire::message(id_of(slot), &head, &[input])),
        }
        self.embedded()?.count_received(input.len());
        // The reply is on its way, and the operation that waited for the queue is not needed.
        self.stop_receiving(slot);
        if let Some(operation) = self.operations.remove(&id_of(slot)) {
            self.end_operation(operation);
        }
        Some(key)
    }

    /// Records a direct call of this client.
    pub(in crate::attach) fn begin_call(&mut self, slot: usize, key: u64, len: usize) {
        self.calls.under_way[slot] = Some(key);
        self.calls.outstanding += 1;
        self.counts[0] += 1;
        if let Some(account) = &self.account {
            account.change(Quota::Operations, 0, 1);
        }
        if let Some(embedded) = self.embedded() {
            embedded.count_called(len);
        }
    }

    pub(super) fn end_call(&mut self, slot: usize) {
        if self.calls.under_way[slot].take().is_some() {
            self.calls.outstanding -= 1;
            if let Some(account) = &self.account {
                account.change(Quota::Operations, 1, 0);
            }
        }
    }

    /// Returns true if the quotas allow a direct call with an input of `len` bytes.
    pub(in crate::attach) fn admits_call(&self, len: usize) -> bool {
        self.admit(len).is_ok()
    }

    /// Starts a call as an operation, which uses the queue of the function.
    pub(in crate::attach) fn start_call(
        &mut self,
        slot: usize,
        words: CallWords,
        input: &[u8],
    ) -> Result<(), Over> {
        let request = Request::Call {
            node: NodeId(words.node),
            function: words.function,
            answer_bytes_max: (words.output_max < u32::MAX).then_some(words.output_max),
            timeout: std::time::Duration::from_nanos(words.timeout_ns),
        };
        let mut body = wire::body(&request);
        body.extend_from_slice(input);
        if let Err(exceeded) = self.admit(body.len()) {
            self.counts[1] += 1;
            self.answer_slot(slot, wire::refused(id_of(slot), exceeded));
            return Ok(());
        }
        self.start(id_of(slot), body, 0)
    }

    /// Passes the answer of a direct call to this client.
    pub(in crate::attach) fn finish_call(&mut self, call: &DirectCall, output: Result<&[u8], CallCause>) {
        let slot = call.caller.slot;
        let failed = |error: CallError| wire::message(id_of(slot), &Err::<(), _>(error), &[]);
        self.end_call(slot);
        match output {
            Ok(output) if output.len() <= INLINE_BYTES_MAX => {
                self.complete(slot, entry::reply(Status::Value, output.len(), output));
            }
            // Otherwise answers that the client does not receive would use much memory of the node.
            Ok(output) if output.len() > SLOT_BYTES / 2 && self.is_stalled() => {
                self.answer_slot(slot, failed(call.error(CallCause::NoMemory)));
            }
            Ok(output) => match self.desk.as_ref().map(|desk| desk.admit_answer(output.len())) {
                Some(Err(exceeded)) => {
                    self.answer_slot(slot, failed(unanswered(call.node, call.function, exceeded)));
                }
                _ => {
                    let message = wire::message(id_of(slot), &Ok::<(), CallError>(()), &[output]);
                    self.answer_slot(slot, message);
                }
            },
            Err(cause) => {
                if let Some(embedded) = self.embedded() {
                    embedded.count_failed();
                }
                self.answer_slot(slot, failed(call.error(cause)));
            }
        }
    }

    /// Returns the direct call among this client's objects; `None` if the object is no direct call.
    pub(in crate::attach) fn take_direct(&self, call: u64) -> Option<Rc<Received>> {
        self.desk.as_ref()?.take_direct(call)
    }

    /// Answers a call that came through the queue.
    pub(in crate::attach) fn answer_queued(
        &self,
        call: u64,
        output: &[u8],
    ) -> Result<Result<(), ReplyError>, Over> {
        answer_call(self.desk.as_ref().ok_or(Over)?, call, output).ok_or(Over)
    }

    /// Ends the line of an answer: receives the next call, or replies with the result.
    pub(in crate::attach) fn end_answer(
        &mut self,
        slot: usize,
        server: u64,
        answered: Result<(), ReplyError>,
    ) -> Result<(), Over> {
        match (server, answered) {
            (NO_SERVER, Ok(())) => self.complete(slot, entry::reply(Status::Value, 0, &[])),
            (NO_SERVER, Err(_)) => self.answer_slot(slot, wire::message(id_of(slot), &answered, &[])),
            // The next call is received even if the caller of this one is gone.
            (server, _) => self.start_receive(slot, server)?,
        }
        Ok(())
    }

    /// Ends the receives and direct calls of a connection that ends.
    pub(super) fn drop_calls(&mut self) {
        (0..SLOTS).for_each(|slot| self.stop_receiving(slot));
        for slot in 0..SLOTS {
            self.calls.forget(&self.desk, slot);
        }
    }
}
