//! Batches of answers to calls over one link.

use halite_fabric::PostCause;
use halite_tier::rpc::wire::REPLY_HEADER_BYTES;
use halite_tier::rpc::{Imm, ReplyHeader, Status, Target};

use super::answer::{Answered, ReplyTo};
use crate::rpc::Rpc;
use crate::rpc::shared::{Link, PART_BYTES_MAX, Writes};
use crate::runtime::wait::Wakes;

impl Rpc {
    /// Answers at most [`BATCH_MAX`](crate::rpc::BATCH_MAX) calls that came over one link, with their handlers'
    /// outputs.
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

    /// Posts the answers that are short enough for a batch. Returns `None` for each of the others.
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
        let (posted, result) = writes.post(&*self.poster.fabric, peer);
        let full = result == Err(PostCause::QueueFull);
        let (over, held_back) = written.split_at(if full { posted } else { writes.len() });
        over[posted..].iter().for_each(|index| answered[*index] = Some(Answered::Unwanted));
        self.end_answers(link, over.iter().map(|index| batch[*index].0));
        for (to, output) in held_back.iter().map(|index| batch[*index]) {
            self.defer_answer(to, Status::Done(output.len() as u32), output);
        }
        answered
    }
}

fn is_short(to: &ReplyTo, output: &[u8]) -> bool {
    if to.by_line {
        return false;
    }
    let len = output.len() + REPLY_HEADER_BYTES;
    let room = (to.room as usize).min(PART_BYTES_MAX).min(to.link().inline_bytes_max);
    output.len() <= to.bytes_max as usize && len <= room
}
