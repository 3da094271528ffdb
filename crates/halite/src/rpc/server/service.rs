//! A function or port of this node: a bounded queue, the receivers that wait for a request, and the senders that wait
//! for room.
//!
//! A function whose queue is full refuses calls. If a port's queue is full, senders wait in order and keep their
//! messages; the port reserves room for a sender before it asks the sender to send again. Published messages (those of
//! a [`Sender`](crate::Sender)) wait at the port with their bytes, in the same order; their sender gets the answer when
//! the message is queued.

use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, Waker};

use halite_tier::ids::Principal;
use halite_tier::rpc::{Kind, Status, Target};

use super::admission::{Admission, Closed, EndedService, Promoted, Taken};
use super::incoming::{DecodedRequest, Incoming, ServiceId};
use super::queue::{Parked, QueueState};
use crate::runtime::locks::lock;

/// Options of a served function or port.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct ServeOptions {
    /// Maximum number of queued requests. Further calls are refused; further messages wait at their senders.
    pub requests_max: usize,
    /// Maximum total length of queued inputs, in bytes. An input longer than a quarter of a ring stays at its caller
    /// and does not count.
    pub bytes_max: usize,
    /// Principals that may call or send, in addition to the server's own principal; `None` for all.
    pub callers: Option<Vec<String>>,
    /// True if other servers may serve the same [name](crate::Session::serve_named); calls then alternate between these
    /// servers. Has no effect on ports, or on functions served by number.
    pub shared: bool,
}

impl Default for ServeOptions {
    fn default() -> ServeOptions {
        ServeOptions { requests_max: 4096, bytes_max: 16 << 20, callers: None, shared: false }
    }
}

#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) id: ServiceId,
    pub(crate) owner: Principal,
    options: ServeOptions,
    state: Mutex<QueueState>,
    /// Number of queued requests. Read without the lock.
    waiting: AtomicUsize,
    /// True if a sender waits for room or has a grant. Read without the lock.
    senders_waiting: AtomicBool,
    /// True if the service has ended. Read without the lock.
    ended: AtomicBool,
}

impl Service {
    #[inline]
    pub(crate) fn new(id: ServiceId, owner: Principal, options: ServeOptions) -> Service {
        let state = Mutex::new(QueueState::with_server());
        let (senders_waiting, ended) = (AtomicBool::new(false), AtomicBool::new(false));
        Service { id, owner, options, state, waiting: AtomicUsize::new(0), senders_waiting, ended }
    }

    /// Returns true if the principal may use the service.
    #[inline]
    pub(crate) fn admits(&self, principal: &Principal) -> bool {
        match &self.options.callers {
            None => true,
            Some(names) => *principal == self.owner || names.iter().any(|name| **name == *principal.0),
        }
    }

    /// Queues or refuses a batch of requests. Returns the results that need further action.
    pub(crate) fn push_all(&self, batch: impl Iterator<Item = DecodedRequest>) -> Vec<Admission> {
        let mut state = lock(&self.state);
        batch.map(|decoded| self.push(&mut state, decoded)).filter(|admission| !admission.is_done()).collect()
    }

    #[inline]
    fn push(
        &self,
        state: &mut QueueState,
        DecodedRequest { kind, mut incoming, .. }: DecodedRequest,
    ) -> Admission {
        if !self.admits(&incoming.to.caller.principal) {
            return Admission::Refused(incoming.to, Status::Denied);
        }
        let target = incoming.to.target();
        let granted = matches!(kind, Kind::GrantedSend(grant) if state.use_grant(grant, target));
        if !state.closed && (granted || self.has_room(state, kind, &incoming)) {
            let accepted = incoming.accept(kind);
            return Admission::Queued { waker: self.enqueue(state, incoming), accepted };
        }
        let bytes = incoming.input.local_bytes();
        match kind {
            _ if state.closed => Admission::Refused(incoming.to, Status::Unknown),
            Kind::Call => Admission::Refused(incoming.to, Status::Busy),
            Kind::Publish if !state.may_park(target, bytes) => {
                Admission::Refused(incoming.to, Status::WouldBlock)
            }
            Kind::TrySend => Admission::Refused(incoming.to, Status::WouldBlock),
            Kind::Send | Kind::GrantedSend(_) | Kind::Publish => {
                let reply = incoming.to.clone();
                let message = (kind == Kind::Publish).then_some(incoming);
                state.park(Parked { reply, bytes, message });
                self.senders_waiting.store(true, Relaxed);
                Admission::Parked
            }
        }
    }

    #[inline]
    fn has_room(&self, state: &mut QueueState, kind: Kind, incoming: &Incoming) -> bool {
        let more = incoming.input.local_bytes();
        if !self.fits(state, more) && state.may_be_unwanted(incoming.to.link().drops()) {
            // Unwanted requests must not take up room.
            state.drop_unwanted();
            self.waiting.store(state.queue.len(), Relaxed);
        }
        // Parked senders are not overtaken.
        let in_turn = kind == Kind::Call || state.parked.is_empty();
        in_turn && self.fits(state, more)
    }

    /// Returns true if the queue has room for `more` bytes. An empty queue has room for a single request of any length.
    #[inline]
    fn fits(&self, state: &QueueState, more: usize) -> bool {
        let promised = state.queue.len() + state.grants.len();
        let bytes = state.bytes + state.granted_bytes + more;
        let has_bytes = promised == 0 || bytes <= self.options.bytes_max;
        promised < self.options.requests_max.max(1) && has_bytes
    }

    #[inline]
    fn enqueue(&self, state: &mut QueueState, incoming: Box<Incoming>) -> Option<Waker> {
        state.bytes += incoming.input.local_bytes();
        state.queue.push_back(incoming);
        self.waiting.store(state.queue.len(), Relaxed);
        // Each polling receiver takes one request; for the rest, a sleeping receiver must be woken.
        if state.queue.len() > state.receivers.awake { state.receivers.pop() } else { None }
    }

    pub(crate) fn waiting(&self) -> usize {
        // Relaxed: the number is only for display.
        self.waiting.load(Relaxed)
    }

    /// Returns true if a request is queued. Reads without the lock, so the result may be out of date.
    #[inline]
    pub(crate) fn is_waiting(&self) -> bool {
        self.waiting.load(Relaxed) > 0
    }

    /// Returns true if messages must wait behind parked senders. Reads without the lock, so the result may be out of
    /// date.
    #[inline]
    pub(crate) fn has_waiting_senders(&self) -> bool {
        self.senders_waiting.load(Relaxed)
    }

    /// Returns true if the service has ended. Reads without the lock, so the result may be out of date.
    #[inline]
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Relaxed)
    }

    /// Ends this thread's polling, because the thread got a request directly. Returns the receiver to wake for the
    /// queued requests.
    pub(crate) fn stop_polling(&self) -> Option<Waker> {
        let mut state = lock(&self.state);
        state.receivers.awake -= 1;
        if state.queue.len() > state.receivers.awake { state.receivers.pop() } else { None }
    }

    /// Takes the next request whose sender still waits. Returns an error once the service has ended.
    pub(crate) fn try_take(&self) -> Result<Option<Taken>, Closed> {
        self.take(&mut lock(&self.state))
    }

    /// Takes at most `max` requests, and stops before one whose input must still be read. Used for functions only,
    /// where no sender waits for room.
    #[expect(clippy::vec_box, reason = "requests are too large to move")]
    pub(crate) fn take_batch(&self, max: usize) -> Vec<Box<Incoming>> {
        let mut state = lock(&self.state);
        let mut batch = Vec::with_capacity(max.min(state.queue.len()));
        while batch.len() < max
            && let Some(next) = state.queue.pop_front_if(|next| next.is_local())
        {
            state.bytes -= next.input.local_bytes();
            batch.extend(Some(next).filter(|next| next.is_wanted()));
        }
        self.waiting.store(state.queue.len(), Relaxed);
        batch
    }

    /// Takes a request, if one is queued. Otherwise counts this thread as polling.
    pub(crate) fn take_or_poll(&self) -> Result<Option<Taken>, Closed> {
        let mut state = lock(&self.state);
        let taken = self.take(&mut state)?;
        state.receivers.awake += usize::from(taken.is_none());
        Ok(taken)
    }

    /// Ends this thread's polling and takes a request. Also returns the receiver to wake for other queued requests.
    pub(crate) fn take_after_poll(&self) -> (Result<Option<Taken>, Closed>, Option<Waker>) {
        let mut state = lock(&self.state);
        state.receivers.awake -= 1;
        let taken = self.take(&mut state);
        let next = if state.queue.len() > state.receivers.awake { state.receivers.pop() } else { None };
        (taken, next)
    }

    /// Takes a request and promotes parked senders. Inlined, which saves a move of the request.
    #[inline(always)]
    fn take(&self, state: &mut QueueState) -> Result<Option<Taken>, Closed> {
        let found = state.pop_open();
        self.waiting.store(state.queue.len(), Relaxed);
        if found.is_none() && state.closed {
            return Err(Closed);
        }
        let taken = Taken { incoming: found, promoted: self.promote(state) };
        if self.has_waiting_senders() {
            self.senders_waiting.store(!(state.parked.is_empty() && state.grants.is_empty()), Relaxed);
        }
        Ok(Some(taken).filter(|taken| taken.incoming.is_some() || !taken.promoted.is_empty()))
    }

    /// Puts a request back at the front of the queue. Returns the request as an `Err` once the service has ended.
    pub(crate) fn requeue(&self, incoming: Box<Incoming>) -> Result<Option<Waker>, Box<Incoming>> {
        let mut state = lock(&self.state);
        if state.closed {
            return Err(incoming);
        }
        state.bytes += incoming.input.local_bytes();
        state.queue.push_front(incoming);
        self.waiting.store(state.queue.len(), Relaxed);
        Ok(state.receivers.pop())
    }

    /// Takes a request, if one is queued. Otherwise registers the waker of `context`; `id` identifies the waiter across
    /// polls.
    pub(crate) fn poll_take(
        &self,
        id: &mut Option<u64>,
        context: &mut Context<'_>,
    ) -> Poll<Result<Taken, Closed>> {
        let mut state = lock(&self.state);
        if let Some(id) = id.take() {
            state.receivers.forget(id);
        }
        match self.take(&mut state) {
            Ok(Some(taken)) => Poll::Ready(Ok(taken)),
            Ok(None) => {
                *id = Some(state.receivers.push(context.waker().clone()));
                Poll::Pending
            }
            Err(closed) => Poll::Ready(Err(closed)),
        }
    }

    /// Removes a waiter. If the waiter had been woken for a request, returns another receiver to wake for this request.
    pub(crate) fn stop_waiting(&self, id: u64) -> Option<Waker> {
        let mut state = lock(&self.state);
        let woken = !state.receivers.forget(id);
        if woken && state.queue.len() > state.receivers.awake { state.receivers.pop() } else { None }
    }

    /// Releases the room of a grant that its sender does not need. Returns the senders that get room.
    pub(crate) fn decline(&self, from: Target, grant: u32) -> Vec<Promoted> {
        let mut state = lock(&self.state);
        state.use_grant(grant, from);
        self.promote(&mut state)
    }

    /// Drops the parked senders and grants of a peer that is down. Returns the senders that get room.
    pub(crate) fn handle_down(&self, peer: Target) -> Vec<Promoted> {
        let mut state = lock(&self.state);
        state.grants.retain(|_, grant| grant.target != peer);
        state.granted_bytes = state.grants.values().map(|grant| grant.bytes).sum();
        state.parked.retain(|parked| parked.reply.target() != peer);
        state.published.remove(&peer);
        self.promote(&mut state)
    }

    /// Gives room to parked senders, in order. Returns these senders.
    fn promote(&self, state: &mut QueueState) -> Vec<Promoted> {
        let mut promoted = Vec::new();
        while let Some(Parked { bytes, .. }) = state.parked.front()
            && self.fits(state, *bytes)
            && let Some(Parked { reply, bytes, message }) = state.unpark()
        {
            match message {
                Some(mut incoming) => {
                    let accepted = incoming.accept(Kind::Publish);
                    let waker = self.enqueue(state, incoming);
                    promoted.push(Promoted::Admitted(Admission::Queued { waker, accepted }));
                }
                None => promoted.extend(state.grant(reply, bytes)),
            }
        }
        promoted
    }

    // Servers.

    /// Adds a server. Returns false if the service has ended.
    pub(crate) fn join(&self) -> bool {
        let mut state = lock(&self.state);
        state.servers += usize::from(!state.closed);
        !state.closed
    }

    /// Removes a server; the service ends with its last server.
    pub(crate) fn leave(&self) -> Option<EndedService> {
        let mut state = lock(&self.state);
        state.servers -= 1;
        (state.servers == 0 && !state.closed).then(|| self.end(&mut state))
    }

    /// Ends the service. Returns the receivers to wake and the callers to answer; `None` if the service had ended
    /// before.
    pub(crate) fn close(&self) -> Option<EndedService> {
        let mut state = lock(&self.state);
        (!state.closed).then(|| self.end(&mut state))
    }

    fn end(&self, state: &mut QueueState) -> EndedService {
        state.closed = true;
        self.ended.store(true, Relaxed);
        self.waiting.store(0, Relaxed);
        state.bytes = 0;
        state.grants.clear();
        state.granted_bytes = 0;
        let waiting = state.queue.drain(..).filter(|incoming| !incoming.answered).map(|incoming| incoming.to);
        state.published.clear();
        let unanswered = waiting.chain(state.parked.drain(..).map(|parked| parked.reply)).collect();
        EndedService {
            wakers: state.receivers.asleep.drain(..).map(|(_, waker)| waker).collect(),
            unanswered,
        }
    }
}

#[cfg(test)]
mod tests;
