//! Frees old segments.

use super::error::LogError;
use super::handle::Log;
use super::layout::{FREED_AT, KEPT_AT};

impl Log {
    /// Frees the segments that end before `position`, while writers and followers continue; returns their number.
    ///
    /// The caller must ensure that each follower that must see all records has reached `position`. Then each slot
    /// before `position` holds a visible record or was skipped, so no writer writes there any more. Followers that are
    /// further behind fail with [`LogError::Trimmed`]. If a trim is interrupted, or fails with
    /// [`LogError::NoDirectory`], the next one frees the remaining segments.
    pub async fn trim(&mut self, position: u64) -> Result<u64, LogError> {
        // From here on, a session that does not find such a segment reports `Trimmed`, and does not create it again.
        self.raise(KEPT_AT, self.layout.segment_of(position)).await?;
        let (begin, end) = (self.counter(FREED_AT).await?, self.counter(KEPT_AT).await?);
        let mut freed = 0;
        for segment in begin..end {
            freed += u64::from(self.free_segment(segment).await?);
        }
        if begin < end {
            self.raise(FREED_AT, end).await?;
        }
        Ok(freed)
    }

    /// Frees the log: its segments, then its head. The log must not be in use. If the directory of names is
    /// unavailable, another handle can free the rest later.
    pub async fn free(mut self) -> Result<(), LogError> {
        // The next segments may exist already.
        let end = self.end().await?.max(self.start().await?) + 2 * self.layout.segment_slots();
        self.trim(end).await?;
        self.free_head().await
    }
}
