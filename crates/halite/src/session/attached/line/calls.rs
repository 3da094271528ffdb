//! Short calls, receives and answers of threads through shared memory, without the table of requests.

use std::sync::Arc;

use halite_mem::exchange::{Claim, WORDS};

use super::{Line, Unfinished};
use crate::session::attached::entry::{
    self, CALL_BYTES_MAX, Head, INLINE_BYTES_MAX, Kind, OPERAND_BYTES_MAX, Status,
};

impl Line {
    /// Sends a request of its own format, with up to [`CALL_BYTES_MAX`] bytes of `payload`, and spins for its reply.
    /// Passes the status and the bytes of the reply to `take`, which returns `None` to get the bytes as the body of a
    /// reply ([`Unfinished::Ended`]).
    pub(crate) fn exchange<T>(
        self: &Arc<Line>,
        kind: Kind,
        words: [u64; 3],
        payload: &[u8],
        take: impl FnOnce(Status, &[u8]) -> Option<T>,
    ) -> Result<T, Unfinished> {
        let (Some(claim), Some(memory)) = (self.submit(kind, words, payload), &self.memory) else {
            return Err(Unfinished::NotSent);
        };
        let line = self.await_line(claim, kind)?;
        let done = match entry::status(&line) {
            // The reply arrives over the socket.
            (Status::Socket, _) => return Err(Unfinished::Sent(self.wait_longer(claim, kind))),
            (status, len) if len <= INLINE_BYTES_MAX => {
                let mut bytes = [0; INLINE_BYTES_MAX];
                let bytes = &mut bytes[..len];
                entry::get(&line[1..], bytes);
                take(status, bytes).ok_or_else(|| Unfinished::Ended(Ok(bytes.to_vec())))
            }
            (status, len) => {
                let bytes = self.bytes_of(claim, &line, len);
                take(status, &bytes).ok_or(Unfinished::Ended(Ok(bytes)))
            }
        };
        memory.release(claim);
        done
    }

    fn submit(&self, kind: Kind, words: [u64; 3], payload: &[u8]) -> Option<Claim> {
        let memory = self.memory.as_ref()?;
        if payload.len() > CALL_BYTES_MAX || self.is_forked() {
            return None;
        }
        let mut state = self.state();
        let ring = state.ring()?;
        let claim = ring.claims.claim(memory, false)?;
        let mut line = [0; WORDS];
        line[1..4].copy_from_slice(&words);
        match payload.len() <= OPERAND_BYTES_MAX {
            true => entry::put(&mut line[4..], payload),
            false => memory.write(claim, payload).expect("the length was checked"),
        }
        line[0] = Head { kind, slot: claim.slot, len: payload.len().max(1), after: ring.sent }.pack();
        ring.claims.submit(memory, line, entry::words(4, payload.len().min(OPERAND_BYTES_MAX)));
        drop(state);
        if let Some(nap) = memory.nap() {
            self.wake_node(&mut self.state(), nap);
        }
        Some(claim)
    }
}
