//! Accesses: from a handle to bytes, through whatever is in between.
//!
//! What loads and stores reach is copied on the caller's own thread, without waiting.  The rest waits here: for a
//! region that is changing, or for the completion of what had to be posted.

use halite_fabric::{Local, Operation, PeerId, PostCause, RemoteAddress, Status, WorkRequest};
use halite_tier::access::{Blocked, DataPath, SlotRef, WORD_BYTES};
use halite_tier::ids::{NodeLife, SessionId};
use halite_tier::permissions::Permissions;

use crate::error::{AccessCause, AccessError};
use crate::posted::{Operation as PostedOperation, SLICE_BYTES_MAX, Staged};
use crate::session::{Inner, Lh};

/// One direction of copying.
pub(crate) trait Transfer {
    /// What it is called in errors.
    const OPERATION: &'static str;
    /// What the caller must be permitted.
    const WANTED: Permissions;

    /// How many bytes are to be copied.
    fn len(&self) -> usize;

    /// Copies some bytes from `done` on; `offset` is where those are in the region.
    fn step(
        &mut self,
        path: &DataPath,
        session: SessionId,
        slot: SlotRef,
        offset: u64,
        done: usize,
    ) -> Result<usize, Blocked>;

    /// What is posted to copy `len` bytes from `done` on, through `staged` unless that is `None`.
    fn request(
        &self,
        remote: RemoteAddress,
        staged: Option<&Staged<'_>>,
        done: usize,
        len: usize,
    ) -> Operation<'_>;

    /// Whether `len` bytes need staging memory on a fabric that takes `inline_bytes_max` without.
    fn needs_staging(&self, len: usize, inline_bytes_max: usize) -> bool;

    /// What was posted has landed.
    fn land(&mut self, staged: Option<&Staged<'_>>, done: usize, len: usize);
}

/// From a region.
pub(crate) struct Reading<'a>(pub(crate) &'a mut [u8]);

/// To a region.
pub(crate) struct Writing<'a>(pub(crate) &'a [u8]);

impl Transfer for Reading<'_> {
    const OPERATION: &'static str = "read";
    const WANTED: Permissions = Permissions::READ;

    #[inline]
    fn len(&self) -> usize {
        self.0.len()
    }

    #[inline]
    fn step(
        &mut self,
        path: &DataPath,
        session: SessionId,
        slot: SlotRef,
        offset: u64,
        done: usize,
    ) -> Result<usize, Blocked> {
        path.read(session, slot, offset, &mut self.0[done..])
    }

    fn request(
        &self,
        remote: RemoteAddress,
        staged: Option<&Staged<'_>>,
        _: usize,
        len: usize,
    ) -> Operation<'_> {
        let staged = staged.expect("reads land in staging memory");
        Operation::Read { local: staged.local(len as u64), remote }
    }

    fn needs_staging(&self, _: usize, _: usize) -> bool {
        true
    }

    fn land(&mut self, staged: Option<&Staged<'_>>, done: usize, len: usize) {
        let staged = staged.expect("reads land in staging memory");
        staged.window().read(0, &mut self.0[done..done + len]).expect("as long as the slot");
    }
}

impl Transfer for Writing<'_> {
    const OPERATION: &'static str = "write";
    const WANTED: Permissions = Permissions::WRITE;

    #[inline]
    fn len(&self) -> usize {
        self.0.len()
    }

    #[inline]
    fn step(
        &mut self,
        path: &DataPath,
        session: SessionId,
        slot: SlotRef,
        offset: u64,
        done: usize,
    ) -> Result<usize, Blocked> {
        path.write(session, slot, offset, &self.0[done..])
    }

    fn request(
        &self,
        remote: RemoteAddress,
        staged: Option<&Staged<'_>>,
        done: usize,
        len: usize,
    ) -> Operation<'_> {
        let source = &self.0[done..done + len];
        let local = match staged {
            None => Local::Inline(source),
            Some(staged) => {
                staged.window().write(0, source).expect("as long as the slot");
                staged.local(len as u64)
            }
        };
        Operation::Write { local, remote }
    }

    fn needs_staging(&self, len: usize, inline_bytes_max: usize) -> bool {
        len > inline_bytes_max
    }

    fn land(&mut self, _: Option<&Staged<'_>>, _: usize, _: usize) {}
}

/// What became of the attempt to post a part.
pub(crate) enum Attempt<'p> {
    /// It is under way.
    Posted { peer: PeerId, len: usize, operation: PostedOperation<'p> },
    /// The place has changed; look again.
    Again,
    /// The queue is full.
    Full,
    /// The peer's connection is down.
    Unreachable(PeerId),
}

/// Why an access ended, and whether the part of it that was under way may have been done.
#[derive(Debug)]
pub(crate) struct Stopped {
    pub(crate) cause: AccessCause,
    pub(crate) maybe_done: bool,
}

impl From<AccessCause> for Stopped {
    fn from(cause: AccessCause) -> Stopped {
        Stopped { cause, maybe_done: false }
    }
}

impl Inner {
    /// Copies all that can be copied without waiting.  The caller has checked whose the handle is.
    #[inline]
    pub(crate) fn copy<T: Transfer>(
        &self,
        transfer: &mut T,
        lh: Lh,
        offset: u64,
        done: &mut usize,
    ) -> Result<(), Blocked> {
        loop {
            // The sum cannot overflow: bytes were copied there already, or nothing is added.
            *done += transfer.step(&self.path, self.id, lh.slot, offset + *done as u64, *done)?;
            if *done == transfer.len() {
                return Ok(());
            }
        }
    }

    /// Copies what is missing, waiting where it must.
    pub(crate) async fn finish<T: Transfer>(
        &self,
        mut transfer: T,
        lh: Lh,
        offset: u64,
        mut done: usize,
    ) -> Result<(), AccessError> {
        let len = transfer.len() as u64;
        self.finish_from(&mut transfer, lh, offset, &mut done).await.map_err(|stopped| {
            let error = self.access_error(T::OPERATION, lh, offset, len, stopped.cause);
            AccessError { partly: done > 0 || stopped.maybe_done, ..error }
        })
    }

    async fn finish_from<T: Transfer>(
        &self,
        transfer: &mut T,
        lh: Lh,
        offset: u64,
        done: &mut usize,
    ) -> Result<(), Stopped> {
        if !self.owns(lh) {
            return Err(AccessCause::ForeignHandle.into());
        }
        loop {
            // Read before the attempt, so that a change during it is not missed.
            let seen = self.core.ground.changes.count();
            match self.copy(transfer, lh, offset, done) {
                Ok(()) => return Ok(()),
                Err(Blocked::Changing) => self.wait_for_change(seen).await?,
                Err(Blocked::Post { len, .. }) => {
                    let len = len.min(SLICE_BYTES_MAX as u64) as usize;
                    *done += self.transfer_posted(transfer, lh, offset, *done, len).await?;
                    if *done == transfer.len() {
                        return Ok(());
                    }
                }
                Err(blocked) => return Err(self.cause_of(blocked, offset, transfer.len() as u64).into()),
            }
        }
    }

    /// Checks the right to an access as a whole before any part of it is made.
    pub(crate) async fn check(
        &self,
        operation: &'static str,
        lh: Lh,
        wanted: Permissions,
        offset: u64,
        len: u64,
    ) -> Result<(), AccessError> {
        let failed = |cause| self.access_error(operation, lh, offset, len, cause);
        if !self.owns(lh) {
            return Err(failed(AccessCause::ForeignHandle));
        }
        loop {
            let seen = self.core.ground.changes.count();
            match self.path.check(self.id, lh.slot, wanted, offset, len) {
                Ok(()) => return Ok(()),
                Err(Blocked::Changing) => self.wait_for_change(seen).await.map_err(failed)?,
                Err(blocked) => return Err(failed(self.cause_of(blocked, offset, len))),
            }
        }
    }

    pub(crate) async fn wait_for_change(&self, seen: u64) -> Result<(), AccessCause> {
        if self.core.is_closed() {
            return Err(AccessCause::NodeClosed);
        }
        self.core.ground.changes.after(seen).await;
        Ok(())
    }

    /// Copies up to `len` bytes from `done` on by posting; returns how many it were.
    async fn transfer_posted<T: Transfer>(
        &self,
        transfer: &mut T,
        lh: Lh,
        offset: u64,
        done: usize,
        len: usize,
    ) -> Result<usize, Stopped> {
        let ground = &self.core.ground;
        // The slot comes first, since nothing may wait between the look-up and the post.
        let staged = match transfer.needs_staging(len, ground.fabric.capabilities().inline_bytes_max) {
            true => {
                let staged = ground.posted.stage(&*ground.fabric, len).await;
                Some(staged.map_err(|_| AccessCause::NoStaging)?)
            }
            false => None,
        };
        let seen = ground.posted.progress_count();
        match self.try_post(transfer, staged.as_ref(), lh, offset, done, len) {
            Attempt::Posted { peer, len, operation } => {
                let (ended, staged) = operation.posted(staged).await;
                self.check_status(peer, ended.status)?;
                transfer.land(staged.as_ref(), done, len);
                Ok(len)
            }
            Attempt::Again => Ok(0),
            Attempt::Full => Ok(self.wait_for_room(seen).await.map(|()| 0)?),
            Attempt::Unreachable(peer) => Err(self.cause_of_peer(peer).into()),
        }
    }

    /// The fabric's queue is full; `seen` is [`crate::posted::Posted::progress_count`] before it was tried.
    pub(crate) async fn wait_for_room(&self, seen: u64) -> Result<(), AccessCause> {
        if self.core.is_closed() {
            return Err(AccessCause::NodeClosed);
        }
        self.core.with(|machine, now| machine.note_full(now));
        self.core.ground.posted.progress_after(seen).await;
        Ok(())
    }

    /// Looks the place up once more, under an operation that whoever changes it will wait for, and posts.
    fn try_post<T: Transfer>(
        &self,
        transfer: &mut T,
        staged: Option<&Staged<'_>>,
        lh: Lh,
        offset: u64,
        done: usize,
        len_max: usize,
    ) -> Attempt<'_> {
        let ground = &self.core.ground;
        let operation = ground.posted.begin();
        let found = transfer.step(&self.path, self.id, lh.slot, offset + done as u64, done);
        let Err(Blocked::Post { peer, address, len }) = found else { return Attempt::Again };
        let len = len.min(len_max as u64) as usize;
        self.post(peer, operation, transfer.request(address, staged, done, len), len)
    }

    /// Posts what was looked up under `operation`.
    pub(crate) fn post<'p>(
        &self,
        peer: PeerId,
        operation: PostedOperation<'p>,
        what: Operation<'_>,
        len: usize,
    ) -> Attempt<'p> {
        let request = WorkRequest { id: operation.id(), operation: what, signalled: true, solicited: true };
        match self.core.ground.fabric.post(peer, &[request]) {
            Ok(()) => Attempt::Posted { peer, len, operation },
            Err(error) => match error.cause {
                PostCause::QueueFull => Attempt::Full,
                PostCause::NotConnected => Attempt::Unreachable(peer),
                PostCause::Malformed => unreachable!("requests keep to the fabric's limits"),
            },
        }
    }

    pub(crate) fn check_status(&self, peer: PeerId, status: Status) -> Result<(), Stopped> {
        let (cause, maybe_done) = match status {
            Status::Success => return Ok(()),
            // The peer does not know the segment any more: it was given up between the look-up and the copy.
            Status::RemoteAccess => (AccessCause::Stale, false),
            Status::Unmapped => (self.cause_of_unmapped(peer), false),
            Status::Flushed if self.core.is_closed() => (AccessCause::NodeClosed, false),
            Status::Flushed => (self.cause_of_peer(peer), false),
            // Others may reach the peer that we do not reach, and see what was done there.
            Status::PeerGone | Status::RetryExceeded => (self.cause_of_peer(peer), true),
        };
        Err(Stopped { cause, maybe_done })
    }

    #[cold]
    pub(crate) fn cause_of_peer(&self, peer: PeerId) -> AccessCause {
        match self.core.look(|machine| machine.life_of_peer(peer)) {
            Some(life) => self.cause_of_down(life),
            // Forgotten when it was cut off: nothing that it held can come back.
            None => AccessCause::Stale,
        }
    }

    fn cause_of_unmapped(&self, peer: PeerId) -> AccessCause {
        let life = self.core.look(|machine| machine.life_of_peer(peer));
        life.map_or(AccessCause::Stale, |life| AccessCause::Unmapped(life.node))
    }

    /// A node that was restarted has lost what it held; one that is down may only be out of reach.
    fn cause_of_down(&self, life: NodeLife) -> AccessCause {
        match self.core.look(|machine| machine.life_of(life.node)) {
            Some(current) if current != life => AccessCause::Stale,
            _ => AccessCause::PeerDown(life.node),
        }
    }

    #[cold]
    pub(crate) fn cause_of(&self, blocked: Blocked, offset: u64, len: u64) -> AccessCause {
        match blocked {
            Blocked::Unknown => AccessCause::UnknownHandle,
            Blocked::Stale if self.core.is_closed() => AccessCause::NodeClosed,
            Blocked::Stale => AccessCause::Stale,
            Blocked::Denied(missing) => AccessCause::PermissionDenied { missing },
            Blocked::Sealed => AccessCause::Sealed,
            Blocked::OutOfRange { .. } if offset.checked_add(len).is_none() => AccessCause::Overflow,
            Blocked::OutOfRange { region_len } => AccessCause::OutOfRange { region_len },
            Blocked::Unaligned => AccessCause::Unaligned { alignment: WORD_BYTES },
            Blocked::Down(life) => self.cause_of_down(life),
            Blocked::Changing | Blocked::Post { .. } => unreachable!("waited for before"),
        }
    }

    #[cold]
    pub(crate) fn access_error(
        &self,
        operation: &'static str,
        lh: Lh,
        offset: u64,
        len: u64,
        cause: AccessCause,
    ) -> AccessError {
        AccessError { operation, region: self.describe(lh), offset, len, cause, partly: false }
    }

    /// Length in bytes of the region behind a handle.
    pub(crate) fn len(&self, lh: Lh) -> Result<u64, AccessError> {
        let failed = |cause| self.access_error("len", lh, 0, 0, cause);
        if !self.owns(lh) {
            return Err(failed(AccessCause::ForeignHandle));
        }
        loop {
            match self.path.len(self.id, lh.slot) {
                Ok(len) => return Ok(len),
                // The length is the same before and after any change.
                Err(Blocked::Changing) => {
                    let looked_at = self.path.slots().inspect(lh.slot.index, |mapping| mapping.view.len());
                    if let Some(len) = looked_at {
                        return Ok(len);
                    }
                }
                Err(blocked) => return Err(failed(self.cause_of(blocked, 0, 0))),
            }
        }
    }
}
