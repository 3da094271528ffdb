//! Batches: requests, or answers, that go to one node together.
//!
//! What a post costs however short it is (locks, the fence before the doorbell, the wait for the peer's cache lines) is
//! paid once for all of a batch.  Only what is short goes in a batch; the rest goes by itself.

use halite_fabric::{Fabric, Local, Operation, PeerId, PostCause, RemoteAddress, WorkRequest};
use halite_tier::ids::NodeId;
use halite_tier::rpc::wire::{REPLY_HEADER_BYTES, REQUEST_HEADER_BYTES_MAX};
use halite_tier::rpc::{Imm, ReplyHeader, SlotId, Status, Target};

use super::answer::{Answered, LINE_BYTES, ReplyTo};
use super::link::{Link, Outbound};
use super::request::{Posted, Request, header_of};
use super::{CALL_WORK, DEFAULT_SLOT_BYTES, DEFAULT_SLOTS, PART_BYTES_MAX, Rpc};
use crate::runtime::lanes::CALLS;
use crate::runtime::locks::lock;
use crate::runtime::wait::Wakes;

/// Longest batch: what is posted is under a lock meanwhile, and seen by its peer only little by little.
pub(crate) const BATCH_MAX: usize = 16;

/// A slot, and the place of its memory and how many bytes it has, if that is not the default slot.
type OpenSlot = (SlotId, Option<(RemoteAddress, u32)>);

/// Writes with immediates, one behind the other.
struct Writes {
    bytes: Vec<u8>,
    /// Where the bytes of each end, where they go, and its immediate.
    writes: Vec<(usize, RemoteAddress, u32)>,
}

impl Writes {
    /// Room for `count` of them, of a cache line each: more is made for longer ones.
    fn new(count: usize) -> Writes {
        Writes { bytes: Vec::with_capacity(count * LINE_BYTES), writes: Vec::with_capacity(count) }
    }

    fn push(&mut self, parts: &[&[u8]], at: RemoteAddress, imm: Imm) {
        parts.iter().for_each(|part| self.bytes.extend_from_slice(part));
        self.writes.push((self.bytes.len(), at, imm.emit()));
    }

    fn len(&self) -> usize {
        self.writes.len()
    }

    /// Posts them; how many were, and why the others were not.
    fn post(&self, fabric: &dyn Fabric, peer: PeerId) -> (usize, Result<(), PostCause>) {
        if self.writes.is_empty() {
            return (0, Ok(()));
        }
        let mut begin = 0;
        let requests: Vec<_> = (self.writes.iter())
            .map(|(end, at, imm)| {
                let local = Local::Inline(&self.bytes[begin..*end]);
                begin = *end;
                let operation = Operation::WriteImm { local, remote: *at, imm: *imm };
                WorkRequest { id: CALL_WORK, operation, signalled: false, solicited: true }
            })
            .collect();
        match fabric.post(peer, CALLS, &requests) {
            Ok(()) => (requests.len(), Ok(())),
            Err(error) => (error.posted, Err(error.cause)),
        }
    }
}

/// Requests.
impl Rpc {
    /// Posts the first of `inputs`, at most [`BATCH_MAX`], each as `request` says, as far as they go in a batch now.  The slots of
    /// those that were posted, if any were; the rest is to be tried one by one, which tells why.
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
        let count = inputs.iter().take_while(|input| goes_in_batch(link, request, input)).count();
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
        let (posted, _) = writes.post(&*self.fabric, peer);
        if posted < places.len() {
            outbound.ring = before;
            places[..posted].iter().for_each(|place| outbound.ring.take(*place));
        }
        (0..posted).for_each(|_| outbound.note_request(request));
        slots.drain(posted..).for_each(|(slot, _)| self.free_slot(slot));
        slots.into_iter().map(|(slot, _)| slot).collect()
    }

    /// As many slots as there are, up to `count`, and where their memory is if not in the default slot.
    fn open_slots(&self, target: Target, request: &Request<'_>, count: usize) -> Vec<OpenSlot> {
        let reply_len = u64::from(request.reply_bytes_max) + REPLY_HEADER_BYTES as u64;
        if reply_len > DEFAULT_SLOT_BYTES && request.reply_in_place {
            return (0..count).map_while(|_| self.open_slot(target, request, None).ok()).collect();
        }
        let mut slots = lock(&self.slots);
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

/// Answers.
impl Rpc {
    /// Answers calls that came over the same link, at most [`BATCH_MAX`], with the outputs of their handlers.
    pub(crate) fn answer_batch(&self, batch: &[(&ReplyTo, &[u8])], wakes: &mut Wakes) -> Vec<Answered> {
        let Some((first, _)) = batch.first() else { return Vec::new() };
        let mut answered = match batch.iter().all(|(to, _)| to.by_line) {
            true => self.answer_lines(batch),
            false => self.answer_short(first.link(), batch),
        };
        for ((to, output), answered) in batch.iter().zip(&mut answered) {
            if answered.is_none() {
                *answered = Some(self.answer(to, output, wakes));
            }
        }
        answered.into_iter().flatten().collect()
    }

    /// Posts those that go in a batch; `None` for the others.
    fn answer_short(&self, link: &Link, batch: &[(&ReplyTo, &[u8])]) -> Vec<Option<Answered>> {
        let Target::Peer(peer) = link.target else { return vec![None; batch.len()] };
        let (mut writes, mut written) = (Writes::new(batch.len()), Vec::with_capacity(batch.len()));
        let mut answered: Vec<_> = (batch.iter().enumerate())
            .map(|(index, (to, output))| {
                if !is_short(to, output) {
                    return None;
                }
                if link.is_gone() || !link.served.begin(to.id) {
                    return Some(Answered::Unwanted);
                }
                let header = ReplyHeader { status: Status::Done(output.len() as u32) }.emit();
                writes.push(&[&header, output], to.at, Imm::Reply(to.id.slot));
                written.push(index);
                Some(Answered::Sent)
            })
            .collect();
        let (posted, result) = writes.post(&*self.fabric, peer);
        let full = result == Err(PostCause::QueueFull);
        let (over, held_back) = written.split_at(if full { posted } else { writes.len() });
        over[posted..].iter().for_each(|index| answered[*index] = Some(Answered::Unwanted));
        self.end_answers(link, over.iter().map(|index| batch[*index].0));
        for (to, output) in held_back.iter().map(|index| batch[*index]) {
            self.hold_back(to, Status::Done(output.len() as u32), output);
        }
        answered
    }
}

fn goes_in_batch(link: &Link, request: &Request<'_>, input: &[u8]) -> bool {
    let len = REQUEST_HEADER_BYTES_MAX + request.principal.0.len() + input.len();
    len <= PART_BYTES_MAX.min(link.inline_bytes_max)
}

fn is_short(to: &ReplyTo, output: &[u8]) -> bool {
    if to.by_line {
        return false;
    }
    let len = output.len() + REPLY_HEADER_BYTES;
    let room = (to.room as usize).min(PART_BYTES_MAX).min(to.link().inline_bytes_max);
    output.len() <= to.bytes_max as usize && len <= room
}
