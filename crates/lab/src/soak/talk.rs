//! Calls and messages to other workers.

use std::time::Duration;

use halite::blocking::{PendingCall, Server};
use halite::{Function, NodeId, Port, ReplyCause, SendCause, ServeCause};

use super::board::Note;
use super::excuse::excuse;
use super::mailbox::encode;
use super::worker::Worker;
use super::{Failure, Result, ensure, mix};

/// Answers with a checksum of its input, and the input.
pub const ECHO: Function = Function(1);
/// Takes messages, in order.
pub const PORT: Port = Port(1);
/// Far beyond what any answer needs.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest input.
const INPUT_MAX: u64 = 200 << 10;
/// About as many calls go at once.
const BATCH_MAX: usize = 16;
/// Longest input of those; longer ones than half a kilobyte go by themselves.
const ROW_INPUT_MAX: u64 = 1 << 10;
/// Longest message.
const MESSAGE_MAX: u64 = 100 << 10;

/// A checksum in which every bit and its place counts.
pub fn checksum(bytes: &[u8]) -> u64 {
    let words = bytes.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    });
    words.fold(bytes.len() as u64, |sum, word| mix(sum ^ word))
}

/// Bytes that a seed stands for.
pub fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let words = (0..len.div_ceil(8) as u64).flat_map(|place| mix(seed ^ place << 40).to_le_bytes());
    words.take(len).collect()
}

/// Answers calls until the server is closed, by turns one and as many as wait.
pub fn answer(server: &Server) -> Result<()> {
    for round in 0_usize.. {
        let calls = match server.recv_many(1 + round % 2 * BATCH_MAX) {
            Ok(calls) => calls,
            Err(error) if error.cause == ServeCause::Closed => return Ok(()),
            // The caller was killed while its input was fetched.
            Err(error) if error.cause == ServeCause::NodeClosed => continue,
            Err(error) => return Err(Failure(format!("a server: {error}"))),
        };
        let answers = calls.into_iter().map(|call| {
            let mut output = checksum(call.input()).to_le_bytes().to_vec();
            output.extend_from_slice(call.input());
            (call, output)
        });
        for answered in server.reply_all(answers) {
            match answered {
                Err(error) if error.cause != ReplyCause::CallerGone => {
                    return Err(Failure(format!("an answer: {error}")));
                }
                _ => {}
            }
        }
    }
    unreachable!("rounds do not end by themselves")
}

/// Whether an answer is what [`answer`] gives to `input`.
fn check(node: u32, input: &[u8], output: &[u8]) -> Result<()> {
    let (sum, echo) = output.split_at(8.min(output.len()));
    ensure!(sum == checksum(input).to_le_bytes(), "node {node} summed {} bytes wrongly", input.len());
    ensure!(echo == input, "node {node} answered {} bytes for {}, and not these", echo.len(), input.len());
    Ok(())
}

impl Worker {
    /// Calls another worker.
    pub(super) fn call(&mut self) -> Result<()> {
        let Some((node, _)) = self.peer()? else { return Ok(()) };
        let cast = self.board.cast(1 << node)?;
        let len = self.length(INPUT_MAX);
        let input = bytes(self.random.u64(..), len);
        let answered = self.session.call(NodeId(node), ECHO, &input, CALL_TIMEOUT);
        let Some(output) = excuse(&self.board, &cast, "call", answered)? else { return self.excused() };
        check(node, &input, &output)
    }

    /// Calls another worker many times at once.  Calls that are given up are no matter of the others.
    pub(super) fn call_in_batches(&mut self) -> Result<()> {
        let Some((node, _)) = self.peer()? else { return Ok(()) };
        let cast = self.board.cast(1 << node)?;
        let count = self.random.u64(0..2 * BATCH_MAX as u64);
        let inputs: Vec<_> = (0..count)
            .map(|_| {
                let len = self.length(ROW_INPUT_MAX);
                bytes(self.random.u64(..), len)
            })
            .collect();
        let session = self.session.clone();
        let answer_bytes_max = ROW_INPUT_MAX as usize + 8;
        let posted = session.post_calls(NodeId(node), ECHO, &inputs, answer_bytes_max, CALL_TIMEOUT);
        ensure!(posted.len() == inputs.len(), "{} of {count} calls were posted", posted.len());
        for (input, call) in inputs.iter().zip(posted) {
            if self.random.u64(0..10) == 0 {
                continue;
            }
            let answered = call.and_then(PendingCall::answer);
            let Some(output) = excuse(&self.board, &cast, "calls in a batch", answered)? else {
                return self.excused();
            };
            check(node, input, &output)?;
        }
        Ok(())
    }

    /// Sends a message to another worker; the next of a row to that incarnation of it.
    pub(super) fn send(&mut self) -> Result<()> {
        let Some((node, incarnation)) = self.peer()? else { return Ok(()) };
        let cast = self.board.cast(1 << node)?;
        let (known, sent) = self.sent[node as usize];
        let sequence = if known == incarnation { sent + 1 } else { 1 };
        let len = self.length(MESSAGE_MAX);
        let message =
            encode([self.incarnation, u64::from(self.node), incarnation, sequence], self.random.u64(..), len);
        let to = NodeId(node);
        let ended = match self.random.u64(0..2) {
            0 => self.session.send(to, PORT, &message),
            _ => self.session.try_send(to, PORT, &message),
        };
        if ended.as_ref().is_err_and(|error| error.cause == SendCause::WouldBlock) {
            return Ok(());
        }
        if excuse(&self.board, &cast, "send", ended)?.is_none() {
            return self.excused();
        }
        self.sent[node as usize] = (incarnation, sequence);
        // Nobody trusts the number before the incarnation is there.
        self.board.set_note(self.incarnation, Note::Sent(node), 0)?;
        self.board.set_note(self.incarnation, Note::SentIncarnation(node), incarnation)?;
        self.board.set_note(self.incarnation, Note::Sent(node), sequence)
    }

    /// Mostly short, rarely up to `max`.
    fn length(&mut self, max: u64) -> usize {
        let max = match self.random.u64(0..100) {
            0 => max,
            1..10 => max.min(16 << 10),
            _ => 256,
        };
        self.random.u64(0..max + 1) as usize
    }
}
