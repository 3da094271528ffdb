//! Followers of a log.

use halite::Lh;

use super::error::LogError;
use super::handle::{Log, is_stale_or_down};
use super::layout::{LEN_BYTES, Layout, WORD, Word, checksum};

/// Bytes per read, unless a slot is longer. A follower starts with the minimum, and doubles it, up to the maximum,
/// after each read that contains only settled slots.
const READ_BYTES: u64 = 4096;
const READ_BYTES_MAX: u64 = 64 << 10;
/// Time in ns that a follower waits for a slot before it checks whether the slot is reserved, and again before it skips
/// the slot.
const PATIENCE_NS: u64 = 500_000;

/// A record, or the records of a transaction.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// Position of the entry. Each entry has a higher position than the one before.
    pub position: u64,
    bytes: &'a [u8],
    is_transaction: bool,
}

impl<'a> Entry<'a> {
    /// Returns the records of the entry in order.
    pub fn records(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let (mut rest, is_transaction) = (Some(self.bytes), self.is_transaction);
        std::iter::from_fn(move || {
            let bytes = rest.take()?;
            if !is_transaction {
                return Some(bytes);
            }
            let (len, after) = bytes.split_first_chunk::<LEN_BYTES>()?;
            let (record, after) = after.split_at_checked(u32::from_le_bytes(*len) as usize)?;
            rest = Some(after);
            Some(record)
        })
    }
}

/// The reason why a follower makes no progress.
#[derive(Clone, Copy, Debug)]
enum Stall {
    /// No record has become visible since this time.
    Since(u64),
    /// Slots up to `end` have been reserved at least since `since_ns`.
    Reserved { since_ns: u64, end: u64 },
}

/// Reads a log from a position on.
pub struct Follower {
    log: Log,
    next: u64,
    stall: Option<Stall>,
    buffer: Vec<u8>,
    record: Vec<u8>,
    patience_ns: u64,
    /// Bytes of the next read.
    read_bytes: u64,
}

impl Follower {
    /// Starts at the first record of the log.
    pub async fn from_start(log: Log) -> Result<Follower, LogError> {
        let start = log.start().await?;
        Ok(Follower::from(log, start))
    }

    /// Starts at the first record appended after this call.
    pub async fn from_end(log: Log) -> Result<Follower, LogError> {
        let end = log.end().await?;
        Ok(Follower::from(log, end))
    }

    /// Starts at `position`, which [`Follower::position`] of any follower of this log has returned.
    pub fn from(log: Log, position: u64) -> Follower {
        let (buffer, record) = (Vec::new(), Vec::new());
        let (patience_ns, read_bytes) = (PATIENCE_NS, READ_BYTES);
        Follower { log, next: position, stall: None, buffer, record, patience_ns, read_bytes }
    }

    /// Sets the patience, in ns. The follower skips a reserved slot if its record is not visible after twice this time.
    pub fn with_patience(self, patience_ns: u64) -> Follower {
        Follower { patience_ns, ..self }
    }

    /// Returns the position from which the follower continues: that of the next record, or of an earlier slot.
    pub fn position(&self) -> u64 {
        self.next
    }

    /// Moves to a later position and skips the records before it. Has no effect if the position is not later.
    pub fn skip_to(&mut self, position: u64) {
        self.next = self.next.max(position);
        self.stall = None;
    }

    /// Reads the log once, and passes the visible records to `take`. Returns the number of slots by which the position
    /// advanced.
    ///
    /// `now_ns` is the time of any monotonic clock. Fails with [`LogError::Trimmed`] if the records have been freed,
    /// with [`LogError::Full`] if the next slots are abandoned and there is no memory to skip them, and with
    /// [`LogError::NoDirectory`] if the next segment is not mapped and the directory of names is unavailable. After the
    /// last two errors, the caller can retry.
    pub async fn poll(&mut self, now_ns: u64, mut take: impl FnMut(Entry<'_>)) -> Result<u64, LogError> {
        let begin = self.next;
        let mut has_entries = false;
        let pass = |entry: Entry<'_>| {
            has_entries = true;
            take(entry);
        };
        match self.read(pass).await {
            Err(LogError::Access(error)) if is_stale_or_down(&error) => {
                self.log.unmap_segment_at(self.next).await;
                self.log.check_not_trimmed_at(self.next).await?;
            }
            done => done?,
        }
        if self.next == begin {
            self.wait_or_skip(now_ns).await?;
        } else if has_entries || !self.is_skipping() {
            self.stall = None;
        }
        Ok(self.next - begin)
    }

    /// Returns true if the next slot was reserved as long ago as the slots just skipped, so the follower need not wait
    /// again.
    fn is_skipping(&self) -> bool {
        matches!(self.stall, Some(Stall::Reserved { end, .. }) if self.next < end)
    }

    async fn read(&mut self, mut take: impl FnMut(Entry<'_>)) -> Result<(), LogError> {
        let layout = self.log.layout;
        // A follower does not create segments.
        let Some(lh) = self.log.existing_segment(self.next).await? else {
            return self.log.check_not_trimmed_at(self.next).await;
        };
        let slots = (self.read_bytes / layout.slot_bytes()).clamp(1, layout.room_at(self.next));
        let at = layout.offset_of(self.next);
        self.buffer.resize((slots * layout.slot_bytes()) as usize, 0);
        self.log.session.read(lh, at, &mut self.buffer).await?;
        let end = self.next + slots;
        let begin = self.next;
        while self.next < end {
            let slot = ((self.next - begin) * layout.slot_bytes()) as usize;
            let word = self.buffer[slot..].first_chunk().expect("the slot is whole");
            match Word::decode(u64::from_le_bytes(*word)) {
                Word::Open => break,
                Word::Void => self.next += 1,
                Word::Entry { len, is_transaction, sum } => {
                    let found = FoundRecord { slot, len: len as usize, sum };
                    let position = self.next;
                    if let Some(bytes) = found.bytes_in_slot(&self.buffer, layout) {
                        take(Entry { position, bytes, is_transaction });
                    } else {
                        self.read_whole_record(lh, found).await?;
                        take(Entry { position, bytes: &self.record, is_transaction });
                    }
                    self.next += layout.slots_of(len as usize);
                }
            }
        }
        let may_have_more = self.next >= end;
        self.read_bytes = if may_have_more { (2 * self.read_bytes).min(READ_BYTES_MAX) } else { READ_BYTES };
        Ok(())
    }

    /// Copies a record whose word is visible to `self.record`. Reads its slots again if necessary.
    async fn read_whole_record(&mut self, lh: Lh, found: FoundRecord) -> Result<(), LogError> {
        let layout = self.log.layout;
        let damaged = LogError::Damaged { position: self.next };
        let slots = layout.slots_of(found.len);
        if slots > layout.room_at(self.next) {
            return Err(damaged);
        }
        let bytes = (slots * layout.slot_bytes()) as usize;
        if found.slot + bytes <= self.buffer.len() {
            collect(&mut self.record, &self.buffer[found.slot..], layout, found.len);
            if checksum(&self.record) == found.sum {
                return Ok(());
            }
        }
        // The read did not contain the whole record, or read its bytes before they were written. They were written
        // before the word became visible, so a second read finds them.
        let mut whole = vec![0; bytes];
        self.log.session.read(lh, layout.offset_of(self.next), &mut whole).await?;
        collect(&mut self.record, &whole, layout, found.len);
        if checksum(&self.record) == found.sum { Ok(()) } else { Err(damaged) }
    }

    /// Handles a poll without records: after some time, checks whether the next slot is reserved, and skips abandoned
    /// slots.
    async fn wait_or_skip(&mut self, now_ns: u64) -> Result<(), LogError> {
        let is_over = |since_ns| now_ns.saturating_sub(since_ns) >= self.patience_ns;
        match self.stall {
            None => self.stall = Some(Stall::Since(now_ns)),
            Some(Stall::Since(since_ns)) if is_over(since_ns) => {
                let end = self.log.end().await?;
                let reserved = Stall::Reserved { since_ns: now_ns, end };
                self.stall = Some(if end > self.next { reserved } else { Stall::Since(now_ns) });
            }
            Some(Stall::Reserved { since_ns, end }) if is_over(since_ns) => {
                if self.next < end {
                    return self.skip(end).await;
                }
                self.stall = Some(Stall::Since(now_ns));
            }
            Some(_) => {}
        }
        Ok(())
    }

    /// Marks the next open slots before `end` as skipped; their writers have had enough time. Stops at a slot that was
    /// settled meanwhile, which the next poll reads.
    async fn skip(&mut self, end: u64) -> Result<(), LogError> {
        let end = end.min(self.next + self.log.layout.room_at(self.next));
        let slots_max = (READ_BYTES / self.log.layout.slot_bytes()).max(1);
        for position in self.next..end.min(self.next + slots_max) {
            match self.log.void_slot(position).await {
                Ok(true) => {}
                // The writer has settled the slot, or another follower has skipped it.
                Ok(false) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// A record in the buffer: the start of its slot, and the content of its word.
#[derive(Clone, Copy, Debug)]
struct FoundRecord {
    slot: usize,
    len: usize,
    sum: u32,
}

impl FoundRecord {
    /// Returns the bytes of the record if it takes one slot and the buffer contains all of it, as usual.
    fn bytes_in_slot(self, buffer: &[u8], layout: Layout) -> Option<&[u8]> {
        if self.len > layout.payload_bytes() {
            return None;
        }
        let bytes = &buffer[self.slot + WORD as usize..][..self.len];
        (checksum(bytes) == self.sum).then_some(bytes)
    }
}

fn collect(record: &mut Vec<u8>, slots: &[u8], layout: Layout, len: usize) {
    record.clear();
    for (bytes, offset) in layout.pieces(len) {
        record.extend(&slots[offset..offset + bytes.len()]);
    }
}
