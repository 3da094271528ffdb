//! Passes calls and answers from one client to another.

use super::super::connection::{Connection, Forward, Over};
use super::super::direct::{DirectCall, Ended, Place};
use super::Server;
use crate::session::attached::entry::CallWords;

/// Longest sleep in ms that calls with long timeouts cause.
const MS_MAX: i64 = 3_600_000;

impl Server {
    /// Passes the calls and answers on that lines of a client contain.
    pub(super) fn forward(&mut self, client: u64) {
        while let Some(forward) = self.clients.get_mut(&client).and_then(Connection::next_forward) {
            let (peer, done) = match forward {
                Forward::Call { slot, words, input } => {
                    self.forward_call(Place { client, slot }, words, input.bytes())
                }
                Forward::Answer { slot, call, server, output } => {
                    self.forward_answer(Place { client, slot }, (call, server), output.bytes())
                }
            };
            if done.is_err() {
                return self.with(client, |_, _| Err(Over));
            }
            self.send_to(peer.unwrap_or(client));
            self.send_to(client);
        }
    }

    /// Sends what waits for the socket of a client.
    pub(super) fn send_to(&mut self, client: u64) {
        if self.clients.get(&client).is_some_and(Connection::has_output) {
            self.with(client, |_, _| Ok(()));
        }
    }

    /// Passes a call to a receive that waits, or else to the queue of its function. Returns the receiving client.
    fn forward_call(
        &mut self,
        from: Place,
        words: CallWords,
        input: &[u8],
    ) -> (Option<u64>, Result<(), Over>) {
        if let Some(receiver) = self.pass(from, words, input) {
            return (Some(receiver), Ok(()));
        }
        let Some(caller) = self.clients.get_mut(&from.client) else { return (None, Ok(())) };
        (None, caller.start_call(from.slot, words, input))
    }

    /// Passes a call to a receive that waits. Returns `None` if there is none, or if the call must use the queue.
    fn pass(&mut self, from: Place, words: CallWords, input: &[u8]) -> Option<u64> {
        let receive = self.direct.receive_of(words.function).filter(|_| words.node == self.node.0)?;
        let caller = self.clients.get(&from.client).filter(|caller| caller.admits_call(input.len()))?;
        let embedded = caller.embedded()?.clone();
        let server = self.clients.get_mut(&receive.client)?;
        if !server.may_receive(receive.slot, &embedded) {
            return None;
        }
        let deadline_ns = self.rings.now_ns().saturating_add(words.timeout_ns);
        let CallWords { function, output_max, .. } = words;
        let call = DirectCall { caller: from, node: self.node, function, output_max, deadline_ns };
        let key = server.receive_directly(receive.slot, call, &embedded.inner.principal.0, input)?;
        let caller = self.clients.get_mut(&from.client).expect("it was just there");
        caller.begin_call(from.slot, key, input.len());
        Some(receive.client)
    }

    /// Passes an answer to its caller. Returns the calling client.
    fn forward_answer(
        &mut self,
        from: Place,
        (call, server): (u64, u64),
        output: &[u8],
    ) -> (Option<u64>, Result<(), Over>) {
        let Some(answering) = self.clients.get_mut(&from.client) else { return (None, Ok(())) };
        let (caller, answered) = match answering.take_direct(call) {
            None => match answering.answer_queued(call, output) {
                Ok(answered) => (None, answered),
                Err(over) => return (None, Err(over)),
            },
            Some(received) => match received.take(output.len()) {
                Err(error) => (None, Err(error)),
                Ok(call) => {
                    let (result, answered) = match call.check_len(output.len()) {
                        Ok(()) => (Ok(output), Ok(())),
                        Err((cause, error)) => (Err(cause), Err(error)),
                    };
                    if let Some(caller) = self.clients.get_mut(&call.caller.client) {
                        caller.finish_call(&call, result);
                    }
                    (Some(call.caller.client), answered)
                }
            },
        };
        let answering = self.clients.get_mut(&from.client).expect("it was just there");
        (caller, answering.end_answer(from.slot, server, answered))
    }

    /// Ends the direct calls that are overdue.
    pub(super) fn end_overdue_calls(&mut self) {
        if self.direct.next_search_ns().is_some() {
            self.direct.end_overdue(self.rings.now_ns());
            self.finish_calls();
        }
    }

    /// Returns the time in ms until the next search for overdue direct calls; `None` if there are none.
    pub(super) fn ms_to_search(&self) -> Option<i64> {
        let left_ns = self.direct.next_search_ns()?.saturating_sub(self.rings.now_ns());
        // Rounded up, so that the thread does not wake just before.
        Some(i64::try_from(left_ns / 1_000_000 + 1).unwrap_or(i64::MAX).min(MS_MAX))
    }

    /// Passes the ends of direct calls to their callers.
    pub(super) fn finish_calls(&mut self) {
        // Sending may end a caller, and so the calls that it serves, and so on: a chain of clients must not use up the
        // stack.
        if std::mem::replace(&mut self.finishes_calls, true) {
            return;
        }
        loop {
            let ended = self.direct.take_ended();
            if ended.is_empty() {
                break;
            }
            for (call, ended) in ended {
                let Some(caller) = self.clients.get_mut(&call.caller.client) else { continue };
                match &ended {
                    Ended::Answered(output) => caller.finish_call(&call, Ok(output)),
                    Ended::Failed(cause) => caller.finish_call(&call, Err(*cause)),
                }
                self.send_to(call.caller.client);
            }
        }
        self.finishes_calls = false;
    }
}
