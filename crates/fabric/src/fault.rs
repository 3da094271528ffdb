//! Middleware that injects faults reproducibly.
//!
//! A [`FaultInjector`] wraps any fabric and applies rules, without randomness: the same sequence of calls gives the
//! same faults. The injector disables direct access to peers' memory, because loads and stores would bypass the rules.
//! Without rules, the injector changes nothing else. It does not corrupt data, because fabrics guarantee integrity.

mod plan;

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use halite_mem::{Sleeper, Window};

pub use plan::{Fault, FaultPlan, Rule};

use crate::kind::OperationKind;
use crate::middleware::Middleware;
use crate::{
    Atomics, Capabilities, Completion, CompletionKind, Event, Fabric, Key, Lane, PeerId, PostCause,
    PostError, Status, WorkId, WorkRequest,
};

/// A fabric that wraps another fabric and fails according to a plan.
///
/// ```
/// # use std::sync::Arc;
/// # use halite_fabric::fault::{Fault, FaultInjector, FaultPlan, Rule};
/// # use halite_fabric::kind::OperationKind;
/// # use halite_fabric::Fabric;
/// # fn wrap(fabric: Arc<dyn Fabric>) -> Arc<dyn Fabric> {
/// // The first ten writes complete five polls late.
/// let late = Rule::new(OperationKind::Write, Fault::Delay { polls: 5 }).times(10);
/// Arc::new(FaultInjector::new(fabric, FaultPlan::default().rule(late)))
/// # }
/// ```
pub struct FaultInjector {
    inner: Arc<dyn Fabric>,
    /// Offers no atomics, even if the inner fabric does.
    without_atomics: bool,
    state: Mutex<FaultState>,
}

#[derive(Debug)]
struct FaultState {
    plan: FaultPlan,
    /// Requests posted to the inner fabric, under unique ids of the injector, because callers' ids need not be unique.
    pending: BTreeMap<WorkId, Pending>,
    next_id: u64,
    polls: u64,
    /// Withheld events, in order. Events behind a delayed event of the same peer wait until it is released, as on a
    /// queue pair. All lanes of a peer count as one, because an arrival does not name its lane.
    held: BTreeMap<PeerId, VecDeque<Withheld>>,
}

/// A request whose completion has not been polled from the inner fabric yet.
#[derive(Debug)]
struct Pending {
    id: WorkId,
    signalled: bool,
    delay_polls: u64,
}

#[derive(Debug)]
struct Withheld {
    /// Number of the poll from which the event may be returned.
    due: u64,
    event: Event,
}

impl FaultInjector {
    /// Creates a fabric that wraps `inner` and applies the rules of `plan`.
    pub fn new(inner: Arc<dyn Fabric>, plan: FaultPlan) -> FaultInjector {
        FaultInjector {
            inner,
            without_atomics: false,
            state: Mutex::new(FaultState {
                plan,
                pending: BTreeMap::new(),
                next_id: 0,
                polls: 0,
                held: BTreeMap::new(),
            }),
        }
    }

    /// Hides the atomics of the inner fabric. The injector then refuses posted atomics as malformed.
    pub fn without_atomics(self) -> FaultInjector {
        FaultInjector { without_atomics: true, ..self }
    }

    fn lock(&self) -> MutexGuard<'_, FaultState> {
        self.state.lock().expect("no thread panics while it holds this lock")
    }

    fn post_one(&self, peer: PeerId, lane: Lane, request: &WorkRequest<'_>) -> Result<(), PostCause> {
        let kind = OperationKind::of(&request.operation);
        if self.without_atomics && kind.is_atomic() {
            return Err(PostCause::Malformed);
        }
        let fault = self.lock().plan.draw(kind);
        let delay_polls = match fault {
            None => 0,
            Some(Fault::Delay { polls }) => polls,
            Some(Fault::Fail { status }) => {
                self.fail_at_once(peer, request.id, status);
                return Ok(());
            }
            Some(Fault::QueueFull) => {
                self.promise_room(peer);
                return Err(PostCause::QueueFull);
            }
        };
        self.forward(peer, lane, request, delay_polls)
    }

    fn fail_at_once(&self, peer: PeerId, id: WorkId, status: Status) {
        let kind = CompletionKind::Done { id };
        self.lock().hold(peer, Event::Completed(Completion { peer, status, kind }), 0);
        self.inner.wake();
    }

    /// Reports room for a peer after the next poll.
    fn promise_room(&self, peer: PeerId) {
        self.lock().hold(peer, Event::Room { peer }, 0);
        self.inner.wake();
    }

    fn forward(
        &self,
        peer: PeerId,
        lane: Lane,
        request: &WorkRequest<'_>,
        delay_polls: u64,
    ) -> Result<(), PostCause> {
        // The request is entered before the post, because another thread may poll its completion at once.
        let ours = self.lock().enter(request, delay_polls);
        let renamed = WorkRequest { id: ours, signalled: true, ..*request };
        self.inner.post(peer, lane, &[renamed]).map_err(|error| {
            self.lock().pending.remove(&ours);
            error.cause
        })
    }
}

impl FaultState {
    fn enter(&mut self, request: &WorkRequest<'_>, delay_polls: u64) -> WorkId {
        let ours = WorkId(self.next_id);
        self.next_id += 1;
        let pending = Pending { id: request.id, signalled: request.signalled, delay_polls };
        self.pending.insert(ours, pending);
        ours
    }

    /// Handles an event of the inner fabric.
    fn take(&mut self, event: Event, events: &mut Vec<Event>) {
        match event {
            Event::Completed(completion) => self.take_completion(completion),
            Event::ConnectFailed(_) | Event::Deregistered { .. } => events.push(event),
            Event::Connected { peer, .. }
            | Event::Room { peer }
            | Event::Disconnected { peer }
            | Event::CutOff { peer, .. } => self.hold(peer, event, 0),
        }
    }

    /// Forwards a completion of the inner fabric under the caller's id, if the request was signalled or failed.
    fn take_completion(&mut self, mut completion: Completion) {
        let ours = match completion.kind {
            CompletionKind::Done { id } | CompletionKind::Atomic { id, .. } => id,
            CompletionKind::Received { .. } | CompletionKind::Notified { .. } => {
                return self.hold(completion.peer, Event::Completed(completion), 0);
            }
        };
        let pending = self.pending.remove(&ours);
        let Pending { id, signalled, delay_polls } =
            pending.expect("every pending request was entered under a unique id");
        let succeeded = completion.status == Status::Success;
        completion.kind = match completion.kind {
            CompletionKind::Atomic { old, .. } if succeeded => CompletionKind::Atomic { id, old },
            _ => CompletionKind::Done { id },
        };
        if signalled || !succeeded {
            self.hold(completion.peer, Event::Completed(completion), delay_polls);
        }
    }

    fn hold(&mut self, peer: PeerId, event: Event, polls: u64) {
        let due = self.polls + polls;
        self.held.entry(peer).or_default().push_back(Withheld { due, event });
    }

    /// Moves due events to `events`.
    fn release(&mut self, events: &mut Vec<Event>) {
        let polls = self.polls;
        for held in self.held.values_mut() {
            while held.front().is_some_and(|front| front.due <= polls) {
                events.extend(held.pop_front().map(|front| front.event));
            }
        }
        self.held.retain(|_, held| !held.is_empty());
    }
}

impl Middleware for FaultInjector {
    fn inner(&self) -> &dyn Fabric {
        &*self.inner
    }

    fn capabilities(&self, peer: PeerId) -> Capabilities {
        let inner = self.inner.capabilities(peer);
        let atomics = if self.without_atomics { Atomics::None } else { inner.atomics };
        Capabilities { direct: false, atomics, ..inner }
    }

    fn post(&self, peer: PeerId, lane: Lane, requests: &[WorkRequest<'_>]) -> Result<(), PostError> {
        for (posted, request) in requests.iter().enumerate() {
            self.post_one(peer, lane, request).map_err(|cause| PostError { peer, posted, cause })?;
        }
        Ok(())
    }

    fn poll(&self, events: &mut Vec<Event>) -> usize {
        let before = events.len();
        self.lock().polls += 1;
        let mut happened = Vec::new();
        // After a batch without events for the caller, polls again: the caller could sleep while events wait.
        while events.len() == before && self.inner.poll(&mut happened) > 0 {
            let mut state = self.lock();
            for event in happened.drain(..) {
                state.take(event, events);
            }
            state.release(events);
        }
        if events.len() == before {
            self.lock().release(events);
        }
        events.len() - before
    }

    fn direct(&self, _: PeerId, _: Key) -> Option<Window> {
        None
    }

    /// Always returns `None`: a descriptor would not show withheld events, so threads sleep in [`Fabric::wait`].
    fn descriptor(&self, _: Sleeper) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Sleeps as the inner fabric does, but returns at once while the injector withholds events, because only further
    /// polls release these events.
    fn wait(&self, sleeper: Sleeper, seen: u32, timeout: Option<Duration>) {
        if self.lock().held.is_empty() {
            self.inner.wait(sleeper, seen, timeout);
        }
    }
}
