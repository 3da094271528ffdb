//! Calls of a node to itself, which use no fabric.

use std::iter::once;
use std::sync::Arc;

use halite_tier::rpc::wire::REPLY_HEADER_BYTES;
use halite_tier::rpc::{Arrival, ReplyHeader, SlotId, Status, Target};

use super::Rpc;
use super::client::{DEFAULT_SLOT_BYTES, NotPosted, Request};
use super::server::{Answered, Bytes, DecodedRequest, DirectReceiver, Incoming, Payload, ReplyTo, Services};
use super::shared::Link;
use crate::runtime::locks::lock;
use crate::runtime::wait::Wakes;

impl Rpc {
    pub(super) fn deliver_own(
        &self,
        link: &Arc<Link>,
        services: &Services,
        request: &Request<'_>,
        wakes: &mut Wakes,
    ) -> Result<SlotId, NotPosted> {
        let (slot, reply_at) = self.open_slot(Target::Own, request, None)?;
        let (at, room) = reply_at.unwrap_or((self.client.addresses().0, DEFAULT_SLOT_BYTES as u32));
        let name = request.principal.0.as_bytes();
        let (id, caller) = {
            let mut inbound = lock(&link.inbound);
            let id = link.served.open(slot).expect("the slot was free");
            (id, inbound.caller(link, name).expect("names are text"))
        };
        let bytes_max = request.reply_bytes_max;
        let to = ReplyTo { caller, cancels: link.cancels(), id, at, room, bytes_max, by_line: false };
        let incoming = Incoming::new(to, Payload::Local(Bytes::from(request.input)));
        let decoded = DecodedRequest { kind: request.kind, number: request.number, incoming };
        self.deliver(|id| services.get(id), once(decoded), &mut DirectReceiver::default(), wakes);
        Ok(slot)
    }

    /// Writes an answer into the slot of a caller on this node. The caller sees the answer and the end of the call in
    /// one step.
    pub(super) fn send_own_answer(
        &self,
        to: &ReplyTo,
        status: Status,
        output: &[u8],
        wakes: &mut Wakes,
    ) -> Answered {
        self.client.write_own_slot(to.id.slot, &ReplyHeader { status }.emit(), output);
        let arrival = {
            let _inbound = lock(&to.link().inbound);
            let arrival = self.client.record_reply(Target::Own, to.id.slot);
            // If the call was cancelled, the late answer is its acknowledgement.
            to.link().served.end(to.id, true);
            arrival
        };
        // The node has ended, and with it all waits.
        let Ok(arrival) = arrival else { return Answered::Unwanted };
        let answered =
            if matches!(arrival, Arrival::Expected(_)) { Answered::Sent } else { Answered::Unwanted };
        self.handle_arrival(Target::Own, to.id.slot, arrival, wakes);
        answered
    }

    /// Allocates memory for a reply on this node, once the reply's length is known, and writes the answer to it.
    pub(super) fn answer_in_own_block(&self, to: &ReplyTo, output: &[u8], wakes: &mut Wakes) -> Answered {
        let Some(block) = self.poster.allocate((output.len() + REPLY_HEADER_BYTES) as u64) else {
            self.refuse(to, Status::NoMemory, wakes);
            return Answered::NoMemory;
        };
        if !self.client.give_slot_memory(to.id.slot, block) {
            return Answered::Unwanted;
        }
        self.send_answer(to, Status::Done(output.len() as u32), output, wakes)
    }
}
