//! Appends several records in one call; each becomes visible separately.

use halite::{AccessCause, AccessError, BatchError, Lh, SwapOp, WriteOp};

use super::error::LogError;
use super::handle::is_stale_or_down;
use super::layout::{WORD, Word};
use super::writer::{ATTEMPTS_MAX, Writer};

/// Maximum number of slots per reservation of `append_each`. Followers pass later slots only once these are settled, so
/// it bounds the delay of other writers' records.
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
            let begin = match self.reserved_place(slots) {
                Some(begin) => begin,
                // Boxed, because it is rare, and so the future of an append stays small.
                None => Box::pin(self.reserve_place(slots, wanted.max(slots))).await?,
            };
            let count = self.append_in_segment(begin, rest, positions).await?;
            rest = &rest[count..];
            attempts = if count > 0 { 0 } else { attempts + 1 };
        }
        Ok(())
    }

    /// Appends the first records, as many as fit into the reserved slots from `begin` to the end of their segment.
    /// Returns the number of visible records.
    async fn append_in_segment(
        &mut self,
        begin: u64,
        records: &[&[u8]],
        positions: &mut Vec<u64>,
    ) -> Result<usize, LogError> {
        let found = match self.log.current_segment(begin) {
            Some(lh) => Some(lh),
            None => Box::pin(self.segment_of_place(begin)).await?,
        };
        let Some(lh) = found else {
            // The whole segment was skipped.
            self.reserved = 0..0;
            return Ok(0);
        };
        let (pieces, slots) = self.plan_writes(lh, begin, records);
        // As in `append`: nothing else is ever written to these slots.
        self.reserved.start = begin + slots;
        let written = self.log.session.write_batch(&pieces).await;
        drop(pieces);
        let (count, error_after) = match written {
            Ok(()) => self.make_visible(lh, begin).await,
            // Nothing was visible yet.
            Err(error) if is_stale_or_down(&error.source) => {
                self.log.unmap_segment_at(begin).await;
                (0, None)
            }
            Err(error) => (0, Some(error.source)),
        };
        let mut next = begin;
        for record in &records[..count] {
            positions.push(next);
            next += self.log.layout.slots_of(record.len());
        }
        if let Some(error) = error_after {
            return Err(error.into());
        }
        if count < self.swaps.len() {
            // A follower skipped a slot, as in `append`. The remaining records need new slots, which follow these, to
            // stay in order.
            self.reserved = 0..0;
        }
        if self.log.layout.crosses_middle(begin..begin + slots) {
            self.prepare_next(begin).await;
        }
        Ok(count)
    }

    /// Makes written records visible from `begin` on, in order, up to the first one whose slot was skipped. Returns
    /// their number, and the error after which the next record may or may not be visible.
    async fn make_visible(&mut self, lh: Lh, begin: u64) -> (usize, Option<AccessError>) {
        match self.log.session.compare_swap_while(lh, &self.swaps).await {
            Ok(count) => (count, None),
            Err(error) if *error.source.cause() == AccessCause::Stale => {
                self.log.unmap_segment_at(begin).await;
                (error.index, None)
            }
            Err(BatchError { index, source, .. }) => (index, Some(source)),
        }
    }

    /// Returns the writes of as many records as fit into the reserved slots from `begin` on, and the number of their
    /// slots. `swaps` receives the compare-swaps that make them visible.
    fn plan_writes<'r>(&mut self, lh: Lh, begin: u64, records: &[&'r [u8]]) -> (Vec<WriteOp<'r>>, u64) {
        let layout = self.log.layout;
        let room = (self.reserved.end - begin).min(layout.room_at(begin));
        let (first, mut slots) = (layout.offset_of(begin), 0);
        let mut pieces = Vec::with_capacity(records.len());
        self.swaps.clear();
        for record in records {
            let record_slots = layout.slots_of(record.len());
            if slots + record_slots > room {
                break;
            }
            let at = first + slots * layout.slot_bytes();
            let word = Word::of(record, false).encode();
            self.swaps.push(SwapOp { offset: at, expected: Word::Open.encode(), new: word });
            if record_slots == 1 {
                pieces.push(WriteOp { lh, offset: at + WORD, from: record });
            } else {
                let piece =
                    |(bytes, offset)| WriteOp { lh, offset: at + offset as u64, from: &record[bytes] };
                pieces.extend(layout.pieces(record.len()).map(piece));
            }
            slots += record_slots;
        }
        (pieces, slots)
    }
}
