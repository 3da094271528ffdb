//! Batches of requests to one node.

use halite_fabric::RemoteAddress;
use halite_tier::ids::NodeId;
use halite_tier::rpc::wire::{REPLY_HEADER_BYTES, REQUEST_HEADER_BYTES_MAX};
use halite_tier::rpc::{Imm, SlotId, Target};

use super::request::{Posted, Request, header_of};
use super::slots::{DEFAULT_SLOT_BYTES, DEFAULT_SLOTS};
use crate::rpc::Rpc;
use crate::rpc::shared::{Link, Outbound, PART_BYTES_MAX, Writes};
use crate::runtime::locks::lock;

/// A slot, with the address and length of its memory if that is not the default slot.
type OpenSlot = (SlotId, Option<(RemoteAddress, u32)>);

impl Rpc {
    /// Posts the first of `inputs`, at most `BATCH_MAX`, as one batch of requests with the parameters of `request`.
    /// Returns the posted requests, or `None` if no batch is possible. The caller posts the rest one by one, which
    /// reports the cause of a failure.
    pub(crate) fn try_request_batch(
        &self,
        node: NodeId,
        request: &Request<'_>,
        inputs: &[&[u8]],
    ) -> Option<Vec<Posted>> {
        self.peers.with_link_to(node, |link| self.try_post_batch(link, request, inputs)).flatten()
    }

    fn try_post_batch(&self, link: &Link, request: &Request<'_>, inputs: &[&[u8]]) -> Option<Vec<Posted>> {
        let mut outbound = lock(&link.outbound);
        let outbound = outbound.as_mut().filter(|_| link.has_sent_handshake())?;
        let mut posted = self.post_lines(link, outbound, request, inputs);
        if posted.is_empty() {
            let slots = self.post_batch(link, outbound, request, inputs).into_iter();
            posted = slots.map(|slot| Posted { target: link.target, slot, by_line: None }).collect();
        }
        (!posted.is_empty()).then_some(posted)
    }

    fn post_batch(
        &self,
        link: &Link,
        outbound: &mut Outbound,
        request: &Request<'_>,
        inputs: &[&[u8]],
    ) -> Vec<SlotId> {
        let Target::Peer(peer) = link.target else { return Vec::new() };
        let count = inputs.iter().take_while(|input| fits_batch(link, request, input)).count();
        let mut slots = self.open_slots(Target::Peer(peer), request, count);
        let before = outbound.ring.clone();
        let (mut writes, mut places) = (Writes::new(slots.len()), Vec::with_capacity(slots.len()));
        for ((slot, reply_at), input) in slots.iter().zip(inputs) {
            let request = Request { input, ..*request };
            let header = header_of(outbound, &request, *slot, *reply_at, None);
            let Ok(place) = outbound.place(header.request_bytes()) else { break };
            let mut head = [0; REQUEST_HEADER_BYTES_MAX];
            let len = header.emit(&mut head);
            let name = request.principal.0.as_bytes();
            writes.push(
                &[&head[..len], name, input],
                outbound.address(place),
                Imm::Request { offset: place.offset },
            );
            outbound.ring.take(place);
            places.push(place);
        }
        let (posted, _) = writes.post(&*self.poster.fabric, peer);
        if posted < places.len() {
            outbound.ring = before;
            places[..posted].iter().for_each(|place| outbound.ring.take(*place));
        }
        (0..posted).for_each(|_| outbound.record_request(request));
        slots.drain(posted..).for_each(|(slot, _)| self.client.free_slot(slot));
        slots.into_iter().map(|(slot, _)| slot).collect()
    }

    /// Opens `count` slots, or as many as are free if there are fewer.
    fn open_slots(&self, target: Target, request: &Request<'_>, count: usize) -> Vec<OpenSlot> {
        let reply_len = u64::from(request.reply_bytes_max) + REPLY_HEADER_BYTES as u64;
        if reply_len > DEFAULT_SLOT_BYTES && request.reply_in_place {
            return (0..count).map_while(|_| self.open_slot(target, request, None).ok()).collect();
        }
        let mut slots = lock(&self.client.slots);
        let mut opened = Vec::with_capacity(count);
        while opened.len() < count
            && let Some(slot) = slots.open(target)
        {
            if slot.index >= DEFAULT_SLOTS {
                slots.free(slot);
                break;
            }
            opened.push((slot, None));
        }
        opened.iter().for_each(|(slot, _)| self.keep_deadline(&mut slots, *slot, request.deadline_ns));
        opened
    }
}

fn fits_batch(link: &Link, request: &Request<'_>, input: &[u8]) -> bool {
    let len = REQUEST_HEADER_BYTES_MAX + request.principal.0.len() + input.len();
    len <= PART_BYTES_MAX.min(link.inline_bytes_max)
}
