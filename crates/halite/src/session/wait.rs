//! Waits for words: the session reads a word, drives the node, and reads the word again at growing intervals.

use std::future::pending;
use std::time::Duration;

use halite_tier::access::WORD_BYTES;

use crate::error::{AccessCause, AccessError};
use crate::session::{Embedded, Lh, Session, embedded};

/// Number of reads before the first pause. A peer on another core often writes the word during these reads.
const READS_BEFORE_PAUSE: u32 = 256;
const PAUSE_MIN: Duration = Duration::from_micros(10);
const PAUSE_MAX: Duration = Duration::from_millis(1);

/// Waits until a word has a value.
impl Session {
    /// Waits until `is_reached` accepts the 8-byte word at `offset`, and returns that word. Needs
    /// [`READ`](crate::Permissions::READ).
    ///
    /// A store through shared memory and an RDMA write raise no event, so this method polls the word: first without a
    /// pause, then at intervals that grow from 10 us to 1 ms. A [`Session::write_notify`] to the region ends a pause
    /// at once. When this method returns, everything that the writing session wrote to the region before the word is
    /// visible.
    ///
    /// Continues while the region moves. Fails as [`Session::read`] does, also if the region is freed, the permission is
    /// revoked or the owner goes down during the wait. The offset must be a multiple of 8.
    ///
    /// ```
    /// # use halite::{Config, Node, NodeId, Permissions, Placement};
    /// # let dir = std::env::temp_dir().join(format!("halite-doc-wait-{}", std::process::id()));
    /// # let node = Node::embedded(Config { dir: dir.clone(), node: Some(NodeId(0)), ..Config::default() })?;
    /// let session = node.blocking_session();
    /// let flag = session.alloc(Some("flag"), 8, Placement::Local, Permissions::all())?;
    /// # let peer = node.blocking_session();
    /// # let peers_flag = peer.map("flag", Permissions::WRITE)?;
    /// # let raising = std::thread::spawn(move || peer.write(peers_flag, 0, &7u64.to_ne_bytes()));
    /// assert_eq!(session.wait_until(flag, 0, |word| word != 0)?, 7);
    /// # raising.join().unwrap()?;
    /// # drop(node);
    /// # std::fs::remove_dir_all(dir)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn wait_until(
        &self,
        lh: Lh,
        offset: u64,
        mut is_reached: impl FnMut(u64) -> bool,
    ) -> Result<u64, AccessError> {
        let session = embedded!(self, client => client.wait_until(lh, offset, is_reached).await);
        if !offset.is_multiple_of(WORD_BYTES) {
            let cause = AccessCause::Unaligned { alignment: WORD_BYTES };
            return Err(session.inner.access_error("wait for", lh, offset, WORD_BYTES, cause));
        }
        if let Some(word) = session.spin_until(lh, offset, &mut is_reached) {
            return Ok(word);
        }
        // Best effort: if the region has too many watchers, only the interval ends a pause.
        let mut watch = self.watch(lh).await.ok();
        let mut pause = PAUSE_MIN;
        loop {
            let word = self.read_word(lh, offset).await?;
            if is_reached(word) {
                return Ok(word);
            }
            let driver = &session.inner.driver;
            let has_ended = match &watch {
                Some(watch) => {
                    driver.within(pause, watch.recv()).await.is_some_and(|received| received.is_err())
                }
                None => driver.within(pause, pending::<()>()).await.is_some(),
            };
            if has_ended {
                watch = None;
            }
            pause = (2 * pause).min(PAUSE_MAX);
        }
    }

    async fn read_word(&self, lh: Lh, offset: u64) -> Result<u64, AccessError> {
        let mut word = [0; WORD_BYTES as usize];
        self.read(lh, offset, &mut word).await?;
        Ok(u64::from_ne_bytes(word))
    }
}

impl Embedded {
    /// Reads the word repeatedly, without a pause. Returns `None` if none of the values is accepted, or if loads do not
    /// reach the word.
    #[inline]
    pub(crate) fn spin_until(
        &self,
        lh: Lh,
        offset: u64,
        is_reached: &mut impl FnMut(u64) -> bool,
    ) -> Option<u64> {
        // Where stores do not reach this node, the word arrives in packets, which the node must receive.
        let receives = self.inner.driver.polls_by_system_calls();
        for _ in 0..READS_BEFORE_PAUSE {
            let mut word = [0; WORD_BYTES as usize];
            self.inner.read_now(lh, offset, &mut word).ok().filter(|read| *read == word.len())?;
            let word = u64::from_ne_bytes(word);
            if is_reached(word) {
                return Some(word);
            }
            match receives {
                true => self.inner.driver.poll_once(),
                false => std::hint::spin_loop(),
            }
        }
        None
    }
}
