//! The caller's side of requests: posts requests as soon as there is room, and waits for their replies.

use std::task::{Context, Poll};
use std::time::Duration;

use halite_fabric::PeerId;
use halite_tier::access::Count;
use halite_tier::ids::NodeId;
use halite_tier::rpc::{Kind, PAYLOAD_BYTES_MAX, ReplyState, Target};

use crate::driver::Driver;
use crate::rpc::{NotPosted, Posted, Reply, ReplyBuffer, Request, Rpc};
use crate::runtime::wait::Wakes;

/// A posted request. Dropping it before its reply is taken cancels it.
pub(crate) struct Pending<'c> {
    driver: &'c Driver,
    posted: Posted,
    open: bool,
}

/// Number of times that a spinning thread checks for its own reply after the arrival of other replies. After that, the
/// thread registers a waker, which only its own reply wakes, and checks its deadline.
const CHECKS_MAX: usize = 64;

/// Interval between attempts to post a request for which there is no room. The peer publishes its ring's head by a plain
/// write, which wakes no task.
const RETRY: Duration = Duration::from_millis(1);

/// Result of a spin for a reply.
pub(crate) enum SpinResult {
    Taken(Reply),
    Ended(ReplyState),
    /// No reply arrived; wait by waker. `has_spun` is true if the thread has spun for as long as that is likely to be
    /// faster than sleeping.
    NoReply {
        has_spun: bool,
    },
}

/// Reason why a request could not be posted, even after waiting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PostFailure {
    UnknownNode,
    PeerDown,
    /// The node was never connected.
    NotMet,
    Timeout,
    TooLong {
        len: u64,
    },
    NoMemory,
    TooManyCalls,
    NodeClosed(NodeId),
    /// This process is a fork of the node's process.
    Forked,
}

impl Driver {
    #[inline]
    pub(crate) fn count_posted(&self, kind: Kind, bytes: u64) {
        let (count, of_bytes) = match kind {
            Kind::Call => (Count::Calls, Count::CallBytes),
            _ => (Count::Messages, Count::MessageBytes),
        };
        self.shared.path.count_one(count, of_bytes, bytes);
    }

    /// Posts a request as soon as there is room for it; fails when its deadline passes first.
    pub(crate) async fn post_request(
        &self,
        node: NodeId,
        request: &Request<'_>,
    ) -> Result<Pending<'_>, PostFailure> {
        let mut request = *request;
        let (mut waits, mut has_dialled) = (false, false);
        loop {
            // The count and the mark come before the attempt, so that room made during it is not missed.
            let seen = self.shared.posted.progress_count();
            if waits {
                self.shared.rpc.client.set_ring_waiters();
            }
            match self.try_post_request(node, &request) {
                Err(None) if !waits => {
                    waits = true;
                    continue;
                }
                Err(None) => {}
                Err(Some(PostFailure::PeerDown | PostFailure::NotMet | PostFailure::UnknownNode))
                    if request.to.is_none() && !has_dialled =>
                {
                    // Connecting shows the state of the node.
                    has_dialled = true;
                    let left = Duration::from_nanos(request.deadline_ns.saturating_sub(self.now_ns()));
                    if self.within(left, self.connect(node)).await.is_none() {
                        // Closing this node ends all waits, in time or not.
                        let is_closed = self.is_closed();
                        return Err(if is_closed { self.closed_failure() } else { PostFailure::Timeout });
                    }
                    continue;
                }
                Err(Some(failure)) => return Err(failure),
                Ok(pending) => return Ok(pending),
            }
            let left = Duration::from_nanos(request.deadline_ns.saturating_sub(self.now_ns()));
            if left.is_zero() {
                return Err(PostFailure::Timeout);
            }
            request.to = request.to.or_else(|| self.look(|runner| runner.target_of(node)));
            if request.to.is_none() {
                return Err(PostFailure::PeerDown);
            }
            let turn_ns = self.request_delay(node, &request);
            let wait =
                turn_ns.map_or(RETRY, |turn_ns| Duration::from_nanos(turn_ns.saturating_sub(self.now_ns())));
            self.within(left.min(wait), self.shared.posted.progress_after(seen)).await;
        }
    }

    /// Connects to a member on its first use. Waits until it is connected or known to be unreachable. Returns true if
    /// it is connected.
    pub(crate) async fn connect(&self, node: NodeId) -> bool {
        let changes = &self.shared.member_changes;
        let mut seen = changes.count();
        let mut is_connecting = self.with(|runner, now| runner.use_node(now, node));
        while is_connecting && !self.is_closed() {
            changes.wait(seen).await;
            seen = changes.count();
            is_connecting = self.look(|runner| runner.is_connecting(node));
        }
        self.look(|runner| runner.target_of(node)).is_some()
    }

    /// Returns why a node has no link; `None` if the `wanted` connection exists and will soon have its link.
    #[cold]
    fn absence_of(&self, node: NodeId, wanted: Option<Target>) -> Option<PostFailure> {
        self.look(|runner| match runner.target_of(node) {
            Some(found) if wanted.is_none_or(|wanted| wanted == found) => None,
            None if !runner.knows(node) => Some(PostFailure::UnknownNode),
            None if wanted.is_none() && runner.is_unmet(node) => Some(PostFailure::NotMet),
            _ => Some(PostFailure::PeerDown),
        })
    }

    fn closed_failure(&self) -> PostFailure {
        self.closed_or_forked(PostFailure::NodeClosed(self.shared.node), PostFailure::Forked)
    }

    /// Posts a request. Returns `Err(None)` if there is no room for it now.
    #[inline]
    pub(crate) fn try_post_request(
        &self,
        node: NodeId,
        request: &Request<'_>,
    ) -> Result<Pending<'_>, Option<PostFailure>> {
        let len = request.input.len() as u64;
        if len > PAYLOAD_BYTES_MAX {
            return Err(Some(PostFailure::TooLong { len }));
        }
        if self.is_closed() {
            return Err(Some(self.closed_failure()));
        }
        if self.request_delay(node, request).is_some() {
            return Err(None);
        }
        match self.with_calls(|rpc, wakes| rpc.try_request(node, request, wakes)) {
            Ok(posted) => {
                self.count_posted(request.kind, len);
                self.record_request(node, request);
                Ok(Pending::new(self, posted))
            }
            Err(NotPosted::NoLink) => Err(self.absence_of(node, request.to)),
            Err(NotPosted::Full) => Err(None),
            Err(NotPosted::Gone) => Err(Some(PostFailure::PeerDown)),
            Err(NotPosted::NoMemory) => Err(Some(PostFailure::NoMemory)),
            Err(NotPosted::TooManyCalls) => Err(Some(PostFailure::TooManyCalls)),
            Err(NotPosted::Closed) => Err(Some(PostFailure::NodeClosed(self.shared.node))),
        }
    }

    /// Runs `change` on the state of calls, and lets the runner settle if the change requires it.
    #[inline]
    pub(crate) fn with_calls<R>(&self, change: impl FnOnce(&Rpc, &mut Wakes) -> R) -> R {
        let mut wakes = Wakes::default();
        let result = change(&self.shared.rpc, &mut wakes);
        wakes.wake_all();
        if self.shared.rpc.poster.is_dirty() {
            self.settle();
        }
        result
    }
}

impl<'c> Pending<'c> {
    #[inline]
    pub(crate) fn new(driver: &'c Driver, posted: Posted) -> Pending<'c> {
        Pending { driver, posted, open: true }
    }

    pub(crate) fn target(&self) -> Target {
        self.posted.target
    }

    /// Returns the posted request, which the caller must then finish or cancel; `None` if the request has ended.
    #[inline]
    pub(crate) fn into_open(mut self) -> Option<Posted> {
        std::mem::take(&mut self.open).then_some(self.posted)
    }

    /// Sets the deadline of a call that was posted without one.
    pub(crate) fn set_deadline(&mut self, deadline_ns: u64) {
        match &mut self.posted.by_line {
            Some(by_line) => by_line.deadline_ns = deadline_ns,
            None => self.driver.with_calls(|rpc, _| rpc.set_deadline(self.posted.slot, deadline_ns)),
        }
    }

    /// Returns the peer of the request; `None` if the request went to this node, or by a line.
    #[inline]
    pub(crate) fn distant(&self) -> Option<PeerId> {
        match self.posted {
            Posted { by_line: None, target: Target::Peer(peer), .. } => Some(peer),
            _ => None,
        }
    }

    /// Returns true if the reply may have arrived after `Client::arrivals` had the value `seen`.
    #[inline]
    pub(crate) fn may_have_arrived(&self, seen: u64) -> bool {
        let rpc = &self.driver.shared.rpc;
        match self.posted.by_line {
            Some(_) => rpc.client.has_line(self.posted.slot),
            None => rpc.client.arrivals() != seen,
        }
    }

    /// Takes the reply if it has arrived. Does not read the clock.
    #[inline]
    pub(crate) fn try_take(&mut self, into: ReplyBuffer<'_>) -> Result<Reply, ReplyState> {
        let rpc = &self.driver.shared.rpc;
        let reply = match self.posted.by_line {
            Some(_) => rpc.client.try_take_line(self.posted.slot, into).ok_or(ReplyState::Waiting)?,
            None => rpc.client.try_take(self.posted.slot, into)?,
        };
        self.open = reply.needs_slot();
        Ok(reply)
    }

    /// Spins for the reply while driving the node, for as long as that is likely to be faster than sleeping. Registers
    /// no waker and ignores the deadline.
    #[inline]
    pub(crate) fn spin(&mut self, mut into: ReplyBuffer<'_>) -> SpinResult {
        let driver = self.driver;
        if driver.is_forked() {
            return SpinResult::Ended(ReplyState::Overdue);
        }
        for _ in 0..CHECKS_MAX {
            // Read before the check, so that later arrivals are not missed.
            let seen = driver.shared.rpc.client.arrivals();
            match self.try_take(into.reborrow()) {
                Ok(reply) => return SpinResult::Taken(reply),
                Err(ReplyState::Waiting) => {
                    if let Some(peer) = self.distant() {
                        driver.expect_round_trip(peer);
                    }
                }
                Err(state) => return SpinResult::Ended(state),
            }
            if !driver.spin_until(|| self.may_have_arrived(seen)) {
                return SpinResult::NoReply { has_spun: true };
            }
        }
        SpinResult::NoReply { has_spun: false }
    }

    /// Waits for the reply, the end of the server's incarnation, or the deadline.
    pub(crate) async fn answered(&mut self) -> ReplyState {
        std::future::poll_fn(|context| self.poll(context)).await
    }

    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<ReplyState> {
        if self.driver.is_forked() {
            return Poll::Ready(ReplyState::Overdue);
        }
        let Posted { slot, target, by_line } = self.posted;
        let Some(by_line) = by_line else { return self.poll_table(context) };
        if self.driver.shared.rpc.client.has_line(slot) {
            return Poll::Ready(ReplyState::Replied);
        }
        self.posted.by_line = None;
        self.driver.with_calls(|rpc, wakes| {
            rpc.adopt(Posted { by_line: None, ..self.posted }, by_line);
            // A reply that came earlier is in the table by now.
            rpc.await_notification(target, slot, wakes);
        });
        self.poll_table(context)
    }

    fn poll_table(&self, context: &mut Context<'_>) -> Poll<ReplyState> {
        // Wakers are cloned and dropped outside of the lock, since they may run any code.
        let mut waker = Some(context.waker().clone());
        let state =
            self.driver.shared.rpc.client.wait_for(self.posted.slot, || self.driver.now_ns(), &mut waker);
        match state {
            ReplyState::Waiting => Poll::Pending,
            state => Poll::Ready(state),
        }
    }

    /// Takes the reply; the state must be [`ReplyState::Replied`].
    pub(crate) fn take(&mut self, into: ReplyBuffer<'_>) -> Reply {
        let rpc = &self.driver.shared.rpc;
        let slot = self.posted.slot;
        let reply = match self.posted.by_line {
            Some(_) => rpc.client.try_take_line(slot, into).expect("the reply has arrived"),
            None => rpc.client.take_reply(slot, into),
        };
        self.open = reply.needs_slot();
        reply
    }
}

impl Drop for Pending<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.open && !self.driver.is_forked() {
            self.driver.with_calls(|rpc, wakes| match self.posted.by_line {
                Some(by_line) => rpc.abandon_line(self.posted, by_line, wakes),
                None => rpc.abandon(self.posted.slot, wakes),
            });
        }
    }
}
