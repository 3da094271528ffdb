//! Puts requests into the queues of their functions and ports, wakes receivers, and answers or refuses senders.

use std::collections::VecDeque;
use std::iter::{from_fn, once};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use halite_tier::rpc::{Cancelling, SlotId, Status, Target};

use super::admission::{Admission, Promoted};
use super::answer::Answered;
use super::direct::DirectReceiver;
use super::incoming::{DecodedRequest, ServiceId};
use super::service::Service;
use crate::rpc::Rpc;
use crate::rpc::shared::Link;
use crate::runtime::locks::lock;
use crate::runtime::wait::Wakes;

impl Rpc {
    pub(in crate::rpc) fn deliver<'s>(
        &self,
        find: impl Fn(ServiceId) -> Option<&'s Arc<Service>>,
        requests: impl Iterator<Item = DecodedRequest>,
        direct: &mut DirectReceiver<'_>,
        wakes: &mut Wakes,
    ) {
        let mut requests = requests.peekable();
        while let Some(first) = requests.next() {
            let id = first.service();
            let Some(service) = find(id) else {
                self.refuse(&first.incoming.to, Status::Unknown, wakes);
                continue;
            };
            if self.server.draining.load(Relaxed) && matches!(id, ServiceId::Function(_)) {
                self.refuse(&first.incoming.to, Status::Draining, wakes);
                continue;
            }
            let Some(first) = service.deliver_directly(first, direct) else { continue };
            let others = from_fn(|| requests.next_if(|next| next.service() == id));
            for admission in service.push_all(once(first).chain(others)) {
                self.handle_admission(admission, wakes);
            }
        }
    }

    /// Wakes a receiver, answers the sender or refuses the request, as the queue has decided.
    fn handle_admission(&self, admission: Admission, wakes: &mut Wakes) {
        match admission {
            Admission::Queued { waker, accepted } => {
                wakes.add(waker);
                if let Some(reply) = accepted {
                    self.answer(&reply, &[], wakes);
                }
            }
            Admission::Parked => {}
            Admission::Refused(reply, status) => self.refuse(&reply, status, wakes),
        }
    }

    /// Tells parked senders that they have room, or that their messages are queued.
    pub(crate) fn handle_promoted(&self, service: &Service, promoted: Vec<Promoted>, wakes: &mut Wakes) {
        let mut promoted = VecDeque::from(promoted);
        while let Some(next) = promoted.pop_front() {
            match next {
                Promoted::Admitted(admission) => self.handle_admission(admission, wakes),
                Promoted::Granted(reply, grant) => {
                    let from = reply.target();
                    if self.send_answer(&reply, Status::Granted(grant), &[], wakes) == Answered::Unwanted {
                        // The sender has just cancelled, and will not decline a grant that it never saw.
                        promoted.extend(service.decline(from, grant));
                    }
                }
            }
        }
    }

    /// Cancels the request of the caller that waits in `slot` behind `link`.
    pub(in crate::rpc) fn cancel(&self, link: &Link, slot: SlotId) {
        // Releasing much memory takes long, so it is not done under the lock.
        let (cancelling, kept) = {
            let inbound = &mut *lock(&link.inbound);
            link.record_cancel();
            (link.served.cancel(slot), inbound.kept.remove(&slot))
        };
        link.record_drop();
        drop(kept);
        if cancelling == Cancelling::Acknowledge {
            self.acknowledge(link, slot);
        }
    }

    pub(in crate::rpc) fn decline(&self, port: u32, from: Target, grant: u32, wakes: &mut Wakes) {
        let service = self.peers.read().services.get(ServiceId::Port(port)).cloned();
        if let Some(service) = service {
            self.handle_promoted(&service, service.decline(from, grant), wakes);
        }
    }
}
