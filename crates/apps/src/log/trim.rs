//! Freeing what everybody is done with.

use super::error::LogError;
use super::handle::Log;
use super::layout::{FREED_AT, KEPT_AT};

impl Log {
    /// Frees the segments that end before `position`, while writers and followers go on; returns how many.  All followers
    /// that matter must have come to `position`: what they have passed is settled, so no writer comes back to it.  Who is
    /// further behind gets [`LogError::Trimmed`].
    ///
    /// A cleaner that ends in the middle of this leaves segments to the next one; so does one that fails with [`LogError::NoDirectory`].
    pub async fn trim(&mut self, position: u64) -> Result<u64, LogError> {
        // A process that finds no segment there from here on knows why, and makes none.
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

    /// Frees the log: its segments, and then its head.  Nobody else should use it any more.  Where the directory of names is away, what is left
    /// can be freed by another handle later.
    pub async fn free(mut self) -> Result<(), LogError> {
        // The next ones may have been made already.
        let end = self.end().await?.max(self.start().await?) + 2 * self.layout.segment_slots();
        self.trim(end).await?;
        self.free_head().await
    }
}
