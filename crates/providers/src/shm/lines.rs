//! Lines (64 bytes each) in a peer's memory. Threads of this process write lines by stores, and the peer polls them.

use std::sync::Arc;

use halite_fabric::{LINE_BYTES, LINE_WORDS, Lines};
use halite_mem::{Doorbell, Window};

/// An array of lines in a peer's memory, which stays mapped as long as this value exists.
#[derive(Debug)]
pub(super) struct PeerLines {
    window: Window,
    /// The doorbell of the peer.
    mailbox: Arc<Doorbell>,
}

impl PeerLines {
    /// Creates the array of `count` lines at `offset` bytes in a segment, whose window is `whole`. Returns `None` if
    /// the segment does not contain these lines, or if `offset` is misaligned.
    pub(super) fn new(whole: Window, offset: u64, count: u32, mailbox: Arc<Doorbell>) -> Option<PeerLines> {
        let window = whole.slice(offset, u64::from(count) * LINE_BYTES as u64)?;
        window.atomic_u64(0).ok()?;
        Some(PeerLines { window, mailbox })
    }
}

impl Lines for PeerLines {
    #[inline]
    fn put(&self, index: u32, words: &[u64]) {
        assert!(words.len() <= LINE_WORDS, "{} words exceed a line of {LINE_WORDS} words", words.len());
        self.window.publish_words(offset(index), words).expect("the array contains the line");
    }

    #[inline]
    fn last_word(&self, index: u32) -> u64 {
        let last = (LINE_WORDS - 1) * size_of::<u64>();
        self.window.load_u64(offset(index) + last as u64).expect("the array contains the line")
    }

    #[inline]
    fn ring(&self) {
        self.mailbox.ring();
    }
}

fn offset(index: u32) -> u64 {
    u64::from(index) * LINE_BYTES as u64
}
