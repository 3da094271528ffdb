//! Acknowledgements of requests that processors copy. An acknowledgement gives the requester the result of a request.
//!
//! Most acknowledgements are *lazy*: they have no event of their own. The world records each with its request, and
//! processes it at the next post. So a large cluster needs far fewer events.

use halite_fabric::{Completion, CompletionKind, Status};

use super::end::EndState;
use super::qp::Work;
use super::{Event, Net};
use crate::link::Transit;

impl Net {
    /// Schedules the acknowledgement of an executed or refused request after `delay_ns`.
    pub(super) fn acknowledge(&mut self, qp: u32, number: u64, status: Status, delay_ns: u64) {
        let (from, to) = self.hosts_of(qp);
        // The request may have been flushed.
        let Some(work) = self.qps[qp as usize].work(number) else {
            return;
        };
        work.is_executed = true;
        work.status = status;
        self.send_ack(qp, number, to, from, self.now_ns + delay_ns);
    }

    fn send_ack(&mut self, qp: u32, number: u64, from: u32, to: u32, ready_ns: u64) {
        match self.transmit(from, to, ready_ns, 0) {
            Transit::Lost => self.await_ack(qp, number),
            Transit::Sent { arrives_ns, .. } => {
                if !self.record_lazy_ack(qp, number, arrives_ns) {
                    self.schedule(arrives_ns, Event::Acknowledge { qp, number });
                }
            }
        }
    }

    /// Records a lazy acknowledgement, which arrives at `at_ns`. Returns false if this acknowledgement, or an earlier
    /// one, needs an event.
    fn record_lazy_ack(&mut self, qp: u32, number: u64, at_ns: u64) -> bool {
        let queue = &mut self.qps[qp as usize];
        let has_predecessor = number > queue.first;
        if self.ends[queue.end].state != EndState::Open
            || queue.wants_room
            || has_predecessor && queue.work(number - 1).is_none_or(|before| before.lazy_ack_ns.is_none())
        {
            return false;
        }
        match queue.work(number) {
            Some(work) if !work.signalled && work.status == Status::Success && !work.verb.has_response() => {
                work.lazy_ack_ns = Some(at_ns);
                true
            }
            _ => false,
        }
    }

    /// Processes the lazy acknowledgements that have arrived.
    pub(super) fn process_lazy_acks(&mut self, qp: u32) {
        let now_ns = self.now_ns;
        let arrived = |work: &Work| work.lazy_ack_ns.is_some_and(|at_ns| at_ns <= now_ns);
        while let Some(front) = self.qps[qp as usize].outstanding.front_mut().filter(|work| arrived(work)) {
            front.is_acknowledged = true;
            let work = self.pop_acknowledged(qp).expect("the first request is acknowledged");
            self.complete_work(qp, work);
        }
        self.report_room(qp);
    }

    /// Schedules an event for the last lazy acknowledgement among the first `count` requests. It also acknowledges the
    /// requests before it.
    pub(super) fn schedule_lazy_ack(&mut self, qp: u32, count: usize) {
        let queue = &self.qps[qp as usize];
        let lazy = queue.outstanding.iter().take(count).map_while(|work| work.lazy_ack_ns);
        if let Some((step, at_ns)) = lazy.enumerate().last() {
            let number = queue.first + step as u64;
            self.schedule(at_ns.max(self.now_ns), Event::Acknowledge { qp, number });
        }
    }

    /// Schedules the timeout of a request whose acknowledgement was lost.
    pub(super) fn await_ack(&mut self, qp: u32, number: u64) {
        let at_ns = self.now_ns + self.profile_of(qp).retransmit_ns;
        self.schedule(at_ns, Event::AckTimeout { qp, number });
    }

    pub(super) fn handle_acknowledge(&mut self, qp: u32, number: u64) {
        let queue = &mut self.qps[qp as usize];
        let first = queue.first;
        let Some(work) = queue.work(number) else {
            return;
        };
        work.is_acknowledged = true;
        if number > first {
            self.acknowledge_earlier(qp, number);
        }
        while let Some(work) = self.pop_acknowledged(qp) {
            self.complete_work(qp, work);
        }
        self.report_room(qp);
        self.close_when_sent(self.end_of(qp));
    }

    /// Acknowledges all earlier requests, except those that return data.
    fn acknowledge_earlier(&mut self, qp: u32, number: u64) {
        let queue = &mut self.qps[qp as usize];
        let count = number.saturating_sub(queue.first) as usize;
        for work in queue.outstanding.iter_mut().take(count) {
            work.is_acknowledged |= work.is_executed && !work.verb.has_response();
        }
    }

    fn pop_acknowledged(&mut self, qp: u32) -> Option<Work> {
        let queue = &mut self.qps[qp as usize];
        if !queue.outstanding.front()?.is_acknowledged {
            return None;
        }
        queue.first += 1;
        queue.outstanding.pop_front()
    }

    pub(super) fn complete_work(&mut self, qp: u32, work: Work) {
        let Work { id, signalled, verb, status, old, inline, .. } = work;
        self.packets.recycle(inline);
        let end = &self.ends[self.end_of(qp)];
        if !signalled && status == Status::Success {
            return;
        }
        let is_atomic = verb.has_response() && !matches!(verb, super::qp::Verb::Read { .. });
        let kind = if is_atomic && status == Status::Success {
            CompletionKind::Atomic { id, old }
        } else {
            CompletionKind::Done { id }
        };
        let (endpoint, peer) = (end.endpoint, end.peer);
        self.complete(endpoint, Completion { peer, status, kind });
    }

    /// Retransmits the last packet of a request whose acknowledgement may be lost. The target discards the packet by
    /// its number, and acknowledges again.
    pub(super) fn handle_ack_timeout(&mut self, qp: u32, number: u64) {
        let is_waiting = self.qps[qp as usize].work(number).is_some_and(|work| !work.is_acknowledged);
        if !is_waiting || !self.count_retry(qp, number) {
            return;
        }
        let (from, to) = self.hosts_of(qp);
        match self.transmit(from, to, self.now_ns, 0) {
            // A target that has not executed the request has dropped it, and accepts no more packets.
            Transit::Sent { arrives_ns, .. } if self.accepts_copies(self.end_of(qp).other()) => {
                self.counters.duplicated += 1;
                self.send_ack(qp, number, to, from, arrives_ns);
            }
            _ => self.await_ack(qp, number),
        }
    }

    /// Counts a retry of a request. If the limit is reached, breaks the connection and returns false.
    pub(super) fn count_retry(&mut self, qp: u32, number: u64) -> bool {
        let retries_max = self.profile_of(qp).retries_max;
        let Some(work) = self.qps[qp as usize].work(number) else {
            return false;
        };
        work.attempts += 1;
        if work.attempts > retries_max {
            self.break_connection(self.end_of(qp), Status::RetryExceeded);
            return false;
        }
        self.counters.retransmitted += 1;
        true
    }

    /// Completes all requests of a closing end: with `status` if a part of the request may have been executed,
    /// otherwise as flushed.
    pub(super) fn flush(&mut self, qp: u32, status: Status) {
        self.close_lane(qp);
        self.process_lazy_acks(qp);
        for mut work in self.qps[qp as usize].take_outstanding() {
            // An acknowledged request was executed, and waits only for an earlier one to complete.
            if !work.is_acknowledged {
                work.status = if work.has_departed { status } else { Status::Flushed };
            }
            self.complete_work(qp, work);
        }
    }
}
