//! Writers of a log.

use std::ops::Range;

use halite::{AccessCause, Lh, SwapOp, WriteOp};

use super::error::LogError;
use super::handle::{Log, is_stale_or_down};
use super::layout::{LEN_BYTES, WORD, Word};

/// Maximum number of attempts to append a record whose slots followers skip. Each attempt delays the followers by their
/// patience.
pub(super) const ATTEMPTS_MAX: u32 = 64;

/// Appends records to a log.
pub struct Writer {
    pub(super) log: Log,
    /// Reserved slots that are not used yet.
    pub(super) reserved: Range<u64>,
    pub(super) batch: u64,
    /// Compare-swaps that make the records of one call visible, in order.
    pub(super) swaps: Vec<SwapOp>,
}

impl Writer {
    /// Creates a writer that reserves `batch` slots at a time, at least one. A larger batch takes fewer round trips,
    /// but a follower waits for twice its patience before it skips an unused slot.
    pub fn new(log: Log, batch: u64) -> Writer {
        Writer { log, reserved: 0..0, batch: batch.max(1), swaps: Vec::new() }
    }

    /// Returns the writer's handle of the log.
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// Appends a record, which is visible when this returns; returns its position. On an access error the record may be
    /// visible; on other errors it is not.
    pub async fn append(&mut self, record: &[u8]) -> Result<u64, LogError> {
        self.append_entry(record, false).await
    }

    /// Appends several records, which become visible together or not at all; returns their common position.
    pub async fn append_all(&mut self, records: &[&[u8]]) -> Result<u64, LogError> {
        let mut entry = Vec::with_capacity(records.iter().map(|record| LEN_BYTES + record.len()).sum());
        for record in records {
            let len = u32::try_from(record.len()).map_err(|_| self.too_long(record.len() as u64))?;
            entry.extend(len.to_le_bytes());
            entry.extend(*record);
        }
        self.append_entry(&entry, true).await
    }

    /// Marks all unused reserved slots as skipped, so that no follower waits for them.
    pub async fn close(mut self) -> Result<(), LogError> {
        self.void_reserved(self.reserved.end).await
    }

    async fn append_entry(&mut self, record: &[u8], is_transaction: bool) -> Result<u64, LogError> {
        if record.len() as u64 > self.log.record_bytes_max() {
            return Err(self.too_long(record.len() as u64));
        }
        let word = Word::of(record, is_transaction).encode();
        if record.len() > self.log.layout.payload_bytes() {
            return Box::pin(self.append_with_retries(record, word)).await;
        }
        // The common case is a slot of the current segment, which takes only a fetch-add, a write and a compare-swap.
        if self.reserved.is_empty() {
            self.reserve(1).await?;
        }
        let position = self.reserved.start;
        if let Some(lh) = self.log.current_segment(position) {
            // No later append may use this slot: after an error, bytes of this record may still arrive there.
            self.reserved.start = position + 1;
            let at = self.log.layout.offset_of(position);
            let is_visible = match self.log.session.write(lh, at + WORD, record).await {
                Ok(()) => self.commit(lh, position, word).await?,
                // Nothing was visible yet.
                Err(error) if is_stale_or_down(&error) => {
                    Box::pin(self.log.unmap_segment_at(position)).await;
                    false
                }
                Err(error) => return Err(error.into()),
            };
            if is_visible {
                if self.log.layout.crosses_middle(position..position + 1) {
                    self.prepare_next(position).await;
                }
                return Ok(position);
            }
            // A follower skipped the slot, or the segment was freed; see `append_with_retries`.
            self.reserved = 0..0;
        }
        Box::pin(self.append_with_retries(record, word)).await
    }

    /// Appends a record of any length, at the next place that has enough slots in one segment.
    async fn append_with_retries(&mut self, record: &[u8], word: u64) -> Result<u64, LogError> {
        let slots = self.log.layout.slots_of(record.len());
        for _ in 0..ATTEMPTS_MAX {
            let position = match self.reserved_place(slots) {
                Some(position) => position,
                None => self.reserve_place(slots, slots).await?,
            };
            self.reserved.start = position + slots;
            let outcome = self.try_append(position, record, word).await;
            if matches!(outcome, Err(LogError::Full { .. } | LogError::NoDirectory(_))) {
                // The segment does not exist, so nothing was written, and the next append may use the place.
                self.reserved.start = position;
            }
            if outcome? {
                if self.log.layout.crosses_middle(position..position + slots) {
                    self.prepare_next(position).await;
                }
                return Ok(position);
            }
            // A follower skipped the place. Other followers may have passed the rest of the reservation, so it is not
            // used.
            self.reserved = 0..0;
        }
        Err(LogError::Outpaced { attempts: ATTEMPTS_MAX })
    }

    pub(super) fn too_long(&self, len: u64) -> LogError {
        LogError::TooLong { len, max: self.log.record_bytes_max() }
    }

    /// Returns the first reserved slot if `slots` reserved slots from it on are in one segment.
    pub(super) fn reserved_place(&self, slots: u64) -> Option<u64> {
        let Range { start, end } = self.reserved;
        (slots <= (end - start).min(self.log.layout.room_at(start))).then_some(start)
    }

    pub(super) async fn reserve(&mut self, slots: u64) -> Result<(), LogError> {
        let count = self.batch.max(slots);
        let first = self.log.reserve(count).await?;
        self.reserved = first..first + count;
        Ok(())
    }

    /// Returns the first of `slots` reserved slots that are in one segment. Reserves at least `wanted` further slots if
    /// necessary, and marks unsuitable reserved slots as skipped.
    pub(super) async fn reserve_place(&mut self, slots: u64, wanted: u64) -> Result<u64, LogError> {
        loop {
            if self.reserved.end - self.reserved.start < slots {
                self.void_reserved(self.reserved.end).await?;
                self.reserve(wanted).await?;
            }
            let room = self.log.layout.room_at(self.reserved.start);
            if slots <= room {
                return Ok(self.reserved.start);
            }
            self.void_reserved(self.reserved.end.min(self.reserved.start + room)).await?;
        }
    }

    /// Writes a record and makes it visible. Returns false if its place was skipped.
    async fn try_append(&mut self, position: u64, record: &[u8], word: u64) -> Result<bool, LogError> {
        let at = self.log.layout.offset_of(position);
        let Some(lh) = self.segment_of_place(position).await? else { return Ok(false) };
        match self.write(lh, at, record).await {
            // Nothing was visible yet.
            Err(LogError::Access(error)) if is_stale_or_down(&error) => {
                self.log.unmap_segment_at(position).await;
                return Ok(false);
            }
            written => written?,
        }
        self.commit(lh, position, word).await
    }

    /// Returns the segment of a reserved place; `None` if the whole segment has been skipped.
    pub(super) async fn segment_of_place(&mut self, position: u64) -> Result<Option<Lh>, LogError> {
        match self.log.segment_or_create(position).await {
            Err(LogError::Trimmed { .. }) => Ok(None),
            Err(LogError::Lost { next, .. }) => {
                Box::pin(self.log.reserve_up_to(next)).await?;
                Ok(None)
            }
            found => found.map(Some),
        }
    }

    /// Makes a written record visible. Returns false if its place was skipped.
    pub(super) async fn commit(&mut self, lh: Lh, position: u64, word: u64) -> Result<bool, LogError> {
        let at = self.log.layout.offset_of(position);
        match self.log.session.compare_swap(lh, at, Word::Open.encode(), word).await {
            Ok(found) => Ok(found == Word::Open.encode()),
            Err(error) if *error.cause() == AccessCause::Stale => {
                self.log.unmap_segment_at(position).await;
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn write(&self, lh: Lh, at: u64, record: &[u8]) -> Result<(), LogError> {
        let session = &self.log.session;
        if record.len() <= self.log.layout.payload_bytes() {
            return Ok(session.write(lh, at + WORD, record).await?);
        }
        let piece = |(bytes, offset): (Range<usize>, usize)| WriteOp {
            lh,
            offset: at + offset as u64,
            from: &record[bytes],
        };
        let pieces: Vec<_> = self.log.layout.pieces(record.len()).map(piece).collect();
        Box::pin(session.write_batch(&pieces)).await.map_err(|error| LogError::Access(error.source))
    }

    /// Maps or creates the segment after that of `position` in advance.
    pub(super) async fn prepare_next(&mut self, position: u64) {
        let next = position + self.log.layout.room_at(position);
        // An error recurs when the segment is needed, and does not concern the record just appended.
        let _ = Box::pin(self.log.segment_or_create(next)).await;
    }

    /// Marks the reserved slots before `end` as skipped. If their segment does not exist, followers skip them later.
    async fn void_reserved(&mut self, end: u64) -> Result<(), LogError> {
        while self.reserved.start < end {
            match self.log.void_slot(self.reserved.start).await {
                Ok(_) => self.reserved.start += 1,
                // The other slots of the segment would fail, too.
                Err(
                    LogError::Trimmed { .. }
                    | LogError::Lost { .. }
                    | LogError::Full { .. }
                    | LogError::NoDirectory(_),
                ) => {
                    let room = self.log.layout.room_at(self.reserved.start);
                    self.reserved.start = end.min(self.reserved.start + room);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl Log {
    /// Marks a slot as skipped. Returns false if it was settled before.
    pub(crate) async fn void_slot(&mut self, position: u64) -> Result<bool, LogError> {
        let lh = self.segment_or_create(position).await?;
        let at = self.layout.offset_of(position);
        match self.session.compare_swap(lh, at, Word::Open.encode(), Word::Void.encode()).await {
            Ok(found) => Ok(found == Word::Open.encode()),
            Err(error) if is_stale_or_down(&error) => {
                self.unmap_segment_at(position).await;
                self.check_not_trimmed_at(position).await?;
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }
}
