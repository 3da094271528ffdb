//! Appending several records by one call, each of which is visible by itself.

use halite::{Lh, WriteOp};

use super::error::LogError;
use super::handle::is_gone;
use super::layout::Word;
use super::writer::{ATTEMPTS_MAX, Writer};

/// Slots that one reservation takes for records of one call, at most: others wait no longer than these take to be written.
const SLOTS_MAX: u64 = 256;

impl Writer {
    /// Appends several records, in their order.  They are reserved and written together, and each becomes visible by itself; all are
    /// when this returns.  `positions` gets the position of each that is visible, one behind the other.  On an error of access, the
    /// one behind these may be there; on all others it is not, and nothing behind it ever is.
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
            let wanted = rest.iter().map(|record| layout.slots_of(record.len())).sum::<u64>().min(SLOTS_MAX);
            let slots = layout.slots_of(first.len());
            let begin = Box::pin(self.place_for_some(slots, wanted.max(slots))).await?;
            let count = Box::pin(self.append_run(begin, rest, positions)).await?;
            rest = &rest[count..];
            attempts = if count > 0 { 0 } else { attempts + 1 };
        }
        Ok(())
    }

    /// Appends the first of some records, as many as have room in what is reserved from `begin` on in one segment; how many of
    /// them are visible then.
    async fn append_run(
        &mut self,
        begin: u64,
        records: &[&[u8]],
        positions: &mut Vec<u64>,
    ) -> Result<usize, LogError> {
        let layout = self.log.layout;
        let end = self.reserved.end.min(begin + layout.room_at(begin));
        let (mut run, mut next) = (Vec::with_capacity(records.len()), begin);
        for record in records {
            let slots = layout.slots_of(record.len());
            if next + slots > end {
                break;
            }
            run.push((next, *record));
            next += slots;
        }
        // As in appending one: whatever becomes of it, nothing else is written there.
        self.reserved.start = next;
        let lh = match self.segment_for(begin).await {
            Err(LogError::Full) => {
                self.reserved.start = begin;
                return Err(LogError::Full);
            }
            found => found?,
        };
        let mut visible = 0;
        if let Some(lh) = lh
            && self.write_run(lh, &run).await?
        {
            for &(position, record) in &run {
                if !self.commit(lh, position, Word::of(record, false).encode()).await? {
                    break;
                }
                positions.push(position);
                visible += 1;
            }
        }
        if visible < run.len() {
            // Somebody took us for dead; see `append`.  The rest has its order only behind what is appended next.
            self.reserved = 0..0;
        }
        self.prepare_next(begin..next).await;
        Ok(visible)
    }

    /// Writes records behind their words; not if their segment has gone.
    async fn write_run(&mut self, lh: Lh, run: &[(u64, &[u8])]) -> Result<bool, LogError> {
        let layout = self.log.layout;
        let mut pieces = Vec::with_capacity(run.len());
        for &(position, record) in run {
            let at = layout.offset_of(position);
            let piece = |(bytes, offset)| WriteOp { lh, offset: at + offset as u64, from: &record[bytes] };
            pieces.extend(layout.pieces(record.len()).map(|(bytes, offset)| piece((bytes, offset))));
        }
        match self.log.session.write_batch(&pieces).await {
            Ok(()) => Ok(true),
            // Nobody has seen anything of it.
            Err(error) if is_gone(&error.source) => {
                self.log.forget_segment_at(run[0].0).await;
                Ok(false)
            }
            Err(error) => Err(error.source.into()),
        }
    }
}
