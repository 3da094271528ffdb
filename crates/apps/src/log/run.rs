//! Appends several records in one call; each becomes visible separately.

use halite::{AccessCause, AccessError, BatchError, Lh, SwapOp, WriteOp};

use super::error::LogError;
use super::handle::is_gone;
use super::layout::{WORD, Word};
use super::writer::{ATTEMPTS_MAX, Writer};

/// Maximum number of slots that one reservation takes for the records of one call; other records wait at most until
/// these are written.
const SLOTS_MAX: u64 = 256;

impl Writer {
    /// Appends several records in order.
    ///
    /// Reserves and writes the records together. Each record becomes visible separately, and all are visible when this
    /// returns. `positions` receives the position of each visible record. On an access error, the first record without
    /// a position may be visible; on other errors it is not. The records after it are not visible in any case.
    pub async fn append_each(&mut self, records: &[&[u8]], positions: &mut Vec<u64>) -> Result<(), LogError> {
        let max = self.log.record_bytes_max();
        if let Some(record) = records.iter().find(|record| record.len() as u64 > max) {
            return Err(self.too_long(record.len() as u64));
        }
        let (mut rest, mut attempts) = (records, 0);
        while let Some(first) = rest.first() {
            if attempts == ATTEMPTS_MAX {
                return Err(LogError::Outpaced { attempts });
            }
            let layout = self.log.layout;
            let slots = layout.slots_of(first.len());
            let wanted = rest.iter().map(|record| layout.slots_of(record.len())).sum::<u64>().min(SLOTS_MAX);
            if self.reserved.is_empty() {
                self.reserve(wanted.max(slots)).await?;
            }
            let begin = match self.place_at_hand(slots) {
                Some(begin) => begin,
                // Rare and long, so boxed: the future of appending stays small.
                None => Box::pin(self.place_for_some(slots, wanted.max(slots))).await?,
            };
            let count = self.append_run(begin, rest, positions).await?;
            rest = &rest[count..];
            attempts = if count > 0 { 0 } else { attempts + 1 };
        }
        Ok(())
    }

    /// Appends the first records, as many as fit into the slots reserved from `begin` on in one segment; returns how
    /// many of them are visible.
    async fn append_run(
        &mut self,
        begin: u64,
        records: &[&[u8]],
        positions: &mut Vec<u64>,
    ) -> Result<usize, LogError> {
        let found = match self.log.segment_at_hand(begin) {
            Some(lh) => Some(lh),
            None => Box::pin(self.segment_for(begin)).await?,
        };
        let Some(lh) = found else {
            // Skipped with its whole segment.
            self.reserved = 0..0;
            return Ok(0);
        };
        let (pieces, slots) = self.lay_out(lh, begin, records);
        // As in `append`: nothing else is ever written to these slots.
        self.reserved.start = begin + slots;
        let written = self.log.session.write_batch(&pieces).await;
        drop(pieces);
        let (count, failed) = match written {
            Ok(()) => self.make_visible(lh, begin).await,
            // Nothing was visible yet.
            Err(error) if is_gone(&error.source) => {
                self.log.forget_segment_at(begin).await;
                (0, None)
            }
            Err(error) => (0, Some(error.source)),
        };
        let mut next = begin;
        for record in &records[..count] {
            positions.push(next);
            next += self.log.layout.slots_of(record.len());
        }
        if let Some(error) = failed {
            return Err(error.into());
        }
        if count < self.swaps.len() {
            // A follower took this writer for dead; see `append`. The remaining records stay in order only behind the
            // next append.
            self.reserved = 0..0;
        }
        if self.log.layout.passes_middle(begin..begin + slots) {
            self.prepare_next(begin).await;
        }
        Ok(count)
    }

    /// Makes written records visible from `begin` on, in order, until one was skipped; returns how many, and the error
    /// that leaves the next one uncertain.
    async fn make_visible(&mut self, lh: Lh, begin: u64) -> (usize, Option<AccessError>) {
        match self.log.session.compare_swap_while(lh, &self.swaps).await {
            Ok(count) => (count, None),
            Err(error) if *error.source.cause() == AccessCause::Stale => {
                self.log.forget_segment_at(begin).await;
                (error.index, None)
            }
            Err(BatchError { index, source, .. }) => (index, Some(source)),
        }
    }

    /// Returns the writes of the first records from `begin` on, as many as fit, and the number of their slots. `swaps`
    /// receives the compare-swaps that make them visible.
    fn lay_out<'r>(&mut self, lh: Lh, begin: u64, records: &[&'r [u8]]) -> (Vec<WriteOp<'r>>, u64) {
        let layout = self.log.layout;
        let room = (self.reserved.end - begin).min(layout.room_at(begin));
        let (first, mut slots) = (layout.offset_of(begin), 0);
        let mut pieces = Vec::with_capacity(records.len());
        self.swaps.clear();
        for record in records {
            let more = layout.slots_of(record.len());
            if slots + more > room {
                break;
            }
            let at = first + slots * layout.slot_bytes();
            let word = Word::of(record, false).encode();
            self.swaps.push(SwapOp { offset: at, expected: Word::Open.encode(), new: word });
            if more == 1 {
                pieces.push(WriteOp { lh, offset: at + WORD, from: record });
            } else {
                let piece =
                    |(bytes, offset)| WriteOp { lh, offset: at + offset as u64, from: &record[bytes] };
                pieces.extend(layout.pieces(record.len()).map(piece));
            }
            slots += more;
        }
        (pieces, slots)
    }
}
