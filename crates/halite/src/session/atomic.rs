//! Atomics: indivisible changes of aligned 8-byte words.
//!
//! If loads and stores reach the word, the caller's own thread changes it. Other atomics are posted; if the fabric's
//! atomics are not coherent with the owner's processors, they travel as a call that the owner's processor executes
//! ([`halite_tier::rpc::atomic`]). An atomic is never repeated: if its completion or answer is lost, the atomic fails
//! and may have taken effect.

use halite_fabric::{Lane, PeerId};
use halite_tier::access::{Atomic, Blocked, SlotRef, WORD_BYTES};
use halite_tier::permissions::Permissions;

use crate::blocking;
use crate::driver::transfer::{Kind, Transfer, peer_of};
use crate::error::{AccessError, BatchError};
use crate::posted::Cursor;
use crate::runtime::lanes;
use crate::session::access::Accesses;
use crate::session::attached::Access;
use crate::session::{self, Embedded, Inner, Lh, Session, SwapOp, embedded};

/// Atomics.
///
/// An atomic orders its caller's earlier accesses before all later accesses of each session that has seen the new
/// value. Dropping the future of an atomic may leave the word changed or unchanged.
impl Session {
    /// Adds `add` to the 8-byte word at `offset`, wrapping at 2^64. Returns the old value. Needs
    /// [`ATOMIC`](crate::Permissions::ATOMIC).
    ///
    /// ```
    /// # use halite::{Config, Node, NodeId, Permissions, Placement, SwapOp};
    /// # let dir = std::env::temp_dir().join(format!("halite-doc-atomic-{}", std::process::id()));
    /// # let node = Node::embedded(Config { dir: dir.clone(), node: Some(NodeId(0)), ..Config::default() })?;
    /// let session = node.blocking_session();
    /// let tickets = session.alloc(None, 8, Placement::Local, Permissions::empty())?;
    /// assert_eq!(session.fetch_add(tickets, 0, 3)?, 0);
    /// assert_eq!(session.compare_swap(tickets, 0, 3, 10)?, 3);
    /// assert_eq!(session.fetch_add(tickets, 0, 1)?, 10);
    /// let swap = |expected, new| SwapOp { offset: 0, expected, new };
    /// assert_eq!(session.compare_swap_while(tickets, &[swap(11, 12), swap(13, 14), swap(12, 15)])?, 1);
    /// # drop((session, node));
    /// # std::fs::remove_dir_all(dir)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn fetch_add(&self, lh: Lh, offset: u64, add: u64) -> Result<u64, AccessError> {
        let session = embedded!(self, client => Box::pin(client.fetch_add(lh, offset, add)).await);
        session.inner.change(lh, offset, Atomic::FetchAdd { add }).await
    }

    /// Replaces the 8-byte word at `offset` by `new` if the word equals `expected`. Returns the old value: the word was
    /// replaced if and only if the old value equals `expected`. Needs [`ATOMIC`](crate::Permissions::ATOMIC).
    pub async fn compare_swap(
        &self,
        lh: Lh,
        offset: u64,
        expected: u64,
        new: u64,
    ) -> Result<u64, AccessError> {
        let session =
            embedded!(self, client => Box::pin(client.compare_swap(lh, offset, expected, new)).await);
        session.inner.change(lh, offset, Atomic::CompareSwap { expected, new }).await
    }

    /// Executes compare-swaps in order until one does not find its expected value. Returns how many succeeded.
    ///
    /// The first swap that fails changes nothing, and later swaps are not tried. If loads and stores reach the words,
    /// the batch costs little more than the swaps themselves; otherwise each swap waits for the previous one.
    pub async fn compare_swap_while(&self, lh: Lh, swaps: &[SwapOp]) -> Result<usize, BatchError> {
        let session = embedded!(self, client => client.swap_while(lh, swaps).await);
        let mut index = 0;
        while let Some(&SwapOp { offset, expected, new }) = swaps.get(index) {
            let (made, is_refused) = session.inner.swap_now(lh, &swaps[index..]);
            index += made;
            if is_refused {
                break;
            }
            if made == 0 {
                match session.inner.change(lh, offset, Atomic::CompareSwap { expected, new }).await {
                    Ok(found) if found == expected => index += 1,
                    Ok(_) => break,
                    Err(source) => return Err(BatchError { index, source, later: false }),
                }
            }
        }
        Ok(index)
    }
}

/// Atomics for threads.
impl blocking::Session {
    /// Adds to an 8-byte word and returns its old value, as [`crate::Session::fetch_add`] does.
    #[inline]
    pub fn fetch_add(&self, lh: Lh, offset: u64, add: u64) -> Result<u64, AccessError> {
        self.atomic(lh, offset, Atomic::FetchAdd { add })
    }

    /// Replaces an 8-byte word if it has the expected value, as [`crate::Session::compare_swap`] does.
    #[inline]
    pub fn compare_swap(&self, lh: Lh, offset: u64, expected: u64, new: u64) -> Result<u64, AccessError> {
        self.atomic(lh, offset, Atomic::CompareSwap { expected, new })
    }

    #[inline]
    fn atomic(&self, lh: Lh, offset: u64, atomic: Atomic) -> Result<u64, AccessError> {
        let session = match &self.as_async().kind {
            session::Kind::Embedded(session) => session,
            session::Kind::Attached(client) => {
                let access = match atomic {
                    Atomic::FetchAdd { add } => Access::FetchAdd { add },
                    Atomic::CompareSwap { expected, new } => Access::CompareSwap { expected, new },
                };
                return client.access(lh, offset, access);
            }
        };
        match session.inner.atomic_now(lh, offset, atomic) {
            Ok(old) => Ok(old),
            Err(peer) => self.finish_atomic(session, lh, offset, atomic, peer),
        }
    }

    #[cold]
    fn finish_atomic(
        &self,
        session: &Embedded,
        lh: Lh,
        offset: u64,
        atomic: Atomic,
        peer: Option<PeerId>,
    ) -> Result<u64, AccessError> {
        self.block_on(session.inner.atomic(lh, offset, atomic, peer))
    }
}

impl Inner {
    /// Changes a word by loads and stores. Returns its old value, or the peer that has the word.
    #[inline]
    pub(crate) fn atomic_now(&self, lh: Lh, offset: u64, atomic: Atomic) -> Result<u64, Option<PeerId>> {
        if !self.owns(lh) {
            return Err(None);
        }
        let changed = self.path.atomic(self.id, lh.slot, offset, atomic);
        changed.map_err(|blocked| peer_of(&blocked, WORD_BYTES as usize))
    }

    /// Executes compare-swaps by loads and stores while they succeed. Returns how many succeeded, and true if one found
    /// a value other than the expected one.
    #[inline]
    fn swap_now(&self, lh: Lh, swaps: &[SwapOp]) -> (usize, bool) {
        let swaps = swaps.iter().map(|swap| (swap.offset, swap.expected, swap.new));
        if self.owns(lh) { self.path.swap_while(self.id, lh.slot, swaps) } else { (0, false) }
    }

    /// Changes a word for a task; [`Inner::read_all`] explains why the slower path is boxed.
    #[inline]
    async fn change(&self, lh: Lh, offset: u64, atomic: Atomic) -> Result<u64, AccessError> {
        let peer = match self.atomic_now(lh, offset, atomic) {
            Ok(old) => return Ok(old),
            Err(peer) => peer,
        };
        let mut change = AtomicAccess { inner: self, lh, offset, atomic, old: 0 };
        if let Some(mut single) = self.driver.post_single(&change, &Err(peer), true) {
            let ended = single.ended().await;
            return self.land_single(&mut change, &single, ended).map(|()| change.old);
        }
        Box::pin(self.atomic(lh, offset, atomic, peer)).await
    }

    /// Changes a word, and waits if necessary. `peer` is the error of [`Inner::atomic_now`].
    pub(crate) async fn atomic(
        &self,
        lh: Lh,
        offset: u64,
        atomic: Atomic,
        peer: Option<PeerId>,
    ) -> Result<u64, AccessError> {
        if !self.owns(lh) {
            return Err(self.access_error(name(atomic), lh, offset, WORD_BYTES, self.unowned_cause()));
        }
        let mut change = AtomicAccess { inner: self, lh, offset, atomic, old: 0 };
        self.execute(&mut change, Err(peer)).await.map_err(|error| error.source)?;
        Ok(change.old)
    }
}

struct AtomicAccess<'i> {
    inner: &'i Inner,
    lh: Lh,
    offset: u64,
    atomic: Atomic,
    old: u64,
}

impl Transfer for AtomicAccess<'_> {
    fn count(&self) -> usize {
        1
    }

    fn len(&self, _: usize) -> usize {
        WORD_BYTES as usize
    }

    fn step(&mut self, _: Cursor) -> Result<usize, Blocked> {
        self.old = self.inner.path.atomic(self.inner.id, self.lh.slot, self.offset, self.atomic)?;
        Ok(WORD_BYTES as usize)
    }

    fn locate(&self, _: Cursor) -> Result<usize, Blocked> {
        if !self.offset.is_multiple_of(WORD_BYTES) {
            return Err(Blocked::Unaligned);
        }
        self.inner.path.locate(self.inner.id, self.lh.slot, Permissions::ATOMIC, self.offset, WORD_BYTES)
    }

    fn handle(&self, _: usize) -> SlotRef {
        self.lh.slot
    }

    fn kind(&self) -> Kind {
        Kind::Atomic(self.atomic)
    }

    fn lane(&self) -> Lane {
        lanes::accesses(self.inner.id, self.inner.highest)
    }

    fn set_old(&mut self, old: u64) {
        self.old = old;
    }
}

impl Accesses for AtomicAccess<'_> {
    fn operation(&self) -> &'static str {
        name(self.atomic)
    }

    fn place(&self, _: usize) -> (Lh, u64) {
        (self.lh, self.offset)
    }
}

fn name(atomic: Atomic) -> &'static str {
    match atomic {
        Atomic::FetchAdd { .. } => "fetch_add",
        Atomic::CompareSwap { .. } => "compare_swap",
    }
}
