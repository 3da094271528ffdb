//! Atomics: changes of aligned 8-byte words in one piece, whatever else changes them.
//!
//! What loads and stores reach is changed on the caller's own thread.  The rest is posted; where what the fabric offers would
//! not be in one piece with what the owner's processors do, a call is posted, which the owner's processor carries out
//! ([`halite_tier::rpc::atomic`]).  An atomic is never repeated: one whose completion or answer was lost fails, and has
//! happened or not.

use halite_fabric::{Fabric, Operation, PeerId, PostCause, RemoteAddress, Status, WorkId, WorkRequest};
use halite_tier::access::{Atomic, Blocked, WORD_BYTES};
use halite_tier::permissions::Permissions;
use halite_tier::rpc::AtomicCall;
use halite_tier::rpc::atomic::ATOMIC_IMM;

use crate::access::Stopped;
use crate::blocking;
use crate::error::{AccessCause, AccessError};
use crate::session::{Inner, Lh, Session};

/// Atomics.  They order what their caller did before with what others do after they have seen the new value.  A
/// future that is dropped may have changed the word.
impl Session {
    /// Adds to the 8-byte word at `offset`, wrapping; returns what it held before.  Needs
    /// [`ATOMIC`](crate::Permissions::ATOMIC).
    ///
    /// ```
    /// # use halite::{Config, Node, NodeId, Permissions, Placement};
    /// # let dir = std::env::temp_dir().join(format!("halite-doc-atomic-{}", std::process::id()));
    /// # let node = Node::embedded(Config { dir: dir.clone(), node: Some(NodeId(0)), ..Config::default() })?;
    /// let session = node.blocking_session();
    /// let tickets = session.alloc(None, 8, Placement::Local, Permissions::empty())?;
    /// assert_eq!(session.fetch_add(tickets, 0, 3)?, 0);
    /// assert_eq!(session.compare_swap(tickets, 0, 3, 10)?, 3);
    /// assert_eq!(session.fetch_add(tickets, 0, 1)?, 10);
    /// # drop((session, node));
    /// # std::fs::remove_dir_all(dir)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn fetch_add(&self, lh: Lh, offset: u64, add: u64) -> Result<u64, AccessError> {
        self.inner.atomic(lh, offset, Atomic::FetchAdd { add }).await
    }

    /// Replaces the 8-byte word at `offset` by `new` if it holds `expected`; returns what it held before, so that
    /// it was replaced exactly if that equals `expected`.  Needs [`ATOMIC`](crate::Permissions::ATOMIC).
    pub async fn compare_swap(
        &self,
        lh: Lh,
        offset: u64,
        expected: u64,
        new: u64,
    ) -> Result<u64, AccessError> {
        self.inner.atomic(lh, offset, Atomic::CompareSwap { expected, new }).await
    }
}

/// Atomics.
impl blocking::Session {
    /// See [`crate::Session::fetch_add`].
    #[inline]
    pub fn fetch_add(&self, lh: Lh, offset: u64, add: u64) -> Result<u64, AccessError> {
        self.atomic(lh, offset, Atomic::FetchAdd { add })
    }

    /// See [`crate::Session::compare_swap`].
    #[inline]
    pub fn compare_swap(&self, lh: Lh, offset: u64, expected: u64, new: u64) -> Result<u64, AccessError> {
        self.atomic(lh, offset, Atomic::CompareSwap { expected, new })
    }

    #[inline]
    fn atomic(&self, lh: Lh, offset: u64, atomic: Atomic) -> Result<u64, AccessError> {
        let inner = &*self.as_async().inner;
        if inner.owns(lh)
            && let Ok(old) = inner.path.atomic(inner.id, lh.slot, offset, atomic)
        {
            return Ok(old);
        }
        self.finish_atomic(lh, offset, atomic)
    }

    #[cold]
    fn finish_atomic(&self, lh: Lh, offset: u64, atomic: Atomic) -> Result<u64, AccessError> {
        self.block_on(self.as_async().inner.atomic(lh, offset, atomic))
    }
}

impl Inner {
    /// Changes a word, waiting where it must.
    pub(crate) async fn atomic(&self, lh: Lh, offset: u64, atomic: Atomic) -> Result<u64, AccessError> {
        let failed = |cause| self.access_error(name(atomic), lh, offset, WORD_BYTES, cause);
        let stopped = |stopped: Stopped| AccessError { partly: stopped.maybe_done, ..failed(stopped.cause) };
        if !self.owns(lh) {
            return Err(failed(AccessCause::ForeignHandle));
        }
        loop {
            // Read before the attempt, so that a change during it is not missed.
            let seen = self.core.ground.changes.count();
            match self.path.atomic(self.id, lh.slot, offset, atomic) {
                Ok(old) => return Ok(old),
                Err(Blocked::Changing) => self.wait_for_change(seen).await.map_err(failed)?,
                Err(Blocked::Post { peer, .. }) => {
                    if let Some(old) = self.atomic_posted(peer, lh, offset, atomic).await.map_err(stopped)? {
                        return Ok(old);
                    }
                }
                Err(blocked) => return Err(failed(self.cause_of(blocked, offset, WORD_BYTES))),
            }
        }
    }

    /// Changes a word of `peer` by posting; `None` if nothing was posted and the place must be looked up again.
    async fn atomic_posted(
        &self,
        peer: PeerId,
        lh: Lh,
        offset: u64,
        atomic: Atomic,
    ) -> Result<Option<u64>, Stopped> {
        let ground = &self.core.ground;
        let seen = ground.posted.progress_count();
        // Begun before the place is looked up once more, so that whoever changes that will wait for it.
        let is_call = !ground.fabric.capabilities(peer).atomics.are_coherent();
        let begun = if is_call { ground.posted.begin_call(peer) } else { Some(ground.posted.begin(peer)) };
        let Some(mut posted) = begun else {
            // Of ends of calls nobody tells who waits for one.
            self.core.with(|machine, now| machine.look_again_soon(now));
            return self.wait_for_room(seen).await;
        };
        let place = self.path.locate(self.id, lh.slot, Permissions::ATOMIC, offset, WORD_BYTES);
        let address = match place {
            Err(Blocked::Post { peer: found, address, .. }) if found == peer => address,
            _ => return Ok(None),
        };
        let post = if is_call { post_call } else { post_atomic };
        match post(&*ground.fabric, peer, posted.id(), address, atomic) {
            Ok(()) => {
                posted.set_posted();
                let ended = posted.ended().await;
                match ended.status {
                    Status::Success => Ok(Some(ended.old)),
                    status => Err(self.stopped_by(peer, status)),
                }
            }
            Err(PostCause::QueueFull) => {
                drop(posted);
                self.wait_for_room(seen).await
            }
            Err(PostCause::NotConnected) => Err(self.cause_of_peer(peer).into()),
            Err(PostCause::Malformed) => unreachable!("the word is aligned"),
        }
    }

    /// Nothing could be posted; `seen` is what the progress was before that was tried.
    async fn wait_for_room(&self, seen: u64) -> Result<Option<u64>, Stopped> {
        if self.core.is_closed() {
            return Err(AccessCause::NodeClosed.into());
        }
        self.core.wait_for_room(seen).await;
        Ok(None)
    }
}

fn name(atomic: Atomic) -> &'static str {
    match atomic {
        Atomic::FetchAdd { .. } => "fetch_add",
        Atomic::CompareSwap { .. } => "compare_swap",
    }
}

fn post_atomic(
    fabric: &dyn Fabric,
    peer: PeerId,
    id: WorkId,
    remote: RemoteAddress,
    atomic: Atomic,
) -> Result<(), PostCause> {
    let operation = match atomic {
        Atomic::FetchAdd { add } => Operation::FetchAdd { remote, add },
        Atomic::CompareSwap { expected, new } => Operation::CompareSwap { remote, expected, new },
    };
    let request = WorkRequest { id, operation, signalled: true, solicited: true };
    fabric.post(peer, &[request]).map_err(|error| error.cause)
}

/// The answer ends the operation, or the failure of the send, which alone completes.
fn post_call(
    fabric: &dyn Fabric,
    peer: PeerId,
    id: WorkId,
    word: RemoteAddress,
    atomic: Atomic,
) -> Result<(), PostCause> {
    let bytes = AtomicCall { id, word, atomic }.emit();
    let operation = Operation::Send { bytes: &bytes, imm: ATOMIC_IMM };
    let request = WorkRequest { id, operation, signalled: false, solicited: true };
    fabric.post(peer, &[request]).map_err(|error| error.cause)
}
