//! Accesses to the bytes behind a handle, by any path.
//!
//! An access by loads and stores copies on the caller's own thread, without waiting. Other accesses wait for a region
//! that is changing, or for the completion of posted requests.

pub(crate) mod posted;

use halite_fabric::{Lane, PeerId, Status};
use halite_mem::Window;
use halite_tier::access::{Blocked, Count, Mapping, SlotRef, WORD_BYTES};
use halite_tier::ids::{NodeId, NodeIncarnation};
use halite_tier::permissions::Permissions;
use halite_tier::qos::Priority;

use crate::driver::transfer::{DirectResult, Failed, Kind, SinglePart, Stop, Transfer, peer_of};
use crate::error::{AccessCause, AccessError, BatchError};
use crate::posted::{Cursor, OperationResult};
use crate::runtime::lanes;
use crate::session::{Inner, Lh, ReadOp, WriteOp};

/// A list of reads, which are executed in order.
pub(crate) struct Reads<'r, 'b> {
    inner: &'r Inner,
    priority: Priority,
    ops: &'r mut [ReadOp<'b>],
}

/// A list of writes, which are executed in order.
pub(crate) struct Writes<'w, 'b> {
    inner: &'w Inner,
    priority: Priority,
    ops: &'w [WriteOp<'b>],
}

/// Reads, writes or atomics of a session, with their handles.
pub(crate) trait Accesses: Transfer {
    /// Returns the name by which errors name the operation.
    fn operation(&self) -> &'static str;

    /// Returns the handle and the offset of access `index`.
    fn place(&self, index: usize) -> (Lh, u64);
}

impl Transfer for Reads<'_, '_> {
    fn count(&self) -> usize {
        self.ops.len()
    }

    fn len(&self, index: usize) -> usize {
        self.ops[index].into.len()
    }

    fn step(&mut self, at: Cursor) -> Result<usize, Blocked> {
        let ReadOp { lh, offset, into } = &mut self.ops[at.index];
        // Cannot overflow: `done` bytes are copied already, or `done` is 0.
        let offset = *offset + at.done as u64;
        self.inner.path.read(self.inner.id, lh.slot, offset, &mut into[at.done..])
    }

    fn locate(&self, at: Cursor) -> Result<usize, Blocked> {
        let ReadOp { lh, offset, into } = &self.ops[at.index];
        let len = (into.len() - at.done) as u64;
        self.inner.path.locate(self.inner.id, lh.slot, Permissions::READ, offset + at.done as u64, len)
    }

    fn handle(&self, index: usize) -> SlotRef {
        self.ops[index].lh.slot
    }

    fn kind(&self) -> Kind {
        Kind::Read
    }

    fn priority(&self) -> Option<Priority> {
        Some(self.priority)
    }

    fn lane(&self) -> Lane {
        lanes::accesses(self.inner.id, self.priority)
    }

    fn target(&mut self, at: Cursor, len: usize) -> &mut [u8] {
        &mut self.ops[at.index].into[at.done..at.done + len]
    }
}

impl Transfer for Writes<'_, '_> {
    fn count(&self) -> usize {
        self.ops.len()
    }

    fn len(&self, index: usize) -> usize {
        self.ops[index].from.len()
    }

    fn step(&mut self, at: Cursor) -> Result<usize, Blocked> {
        let WriteOp { lh, offset, from } = &self.ops[at.index];
        self.inner.path.write(self.inner.id, lh.slot, offset + at.done as u64, &from[at.done..])
    }

    fn locate(&self, at: Cursor) -> Result<usize, Blocked> {
        let WriteOp { lh, offset, from } = &self.ops[at.index];
        let len = (from.len() - at.done) as u64;
        self.inner.path.locate(self.inner.id, lh.slot, Permissions::WRITE, offset + at.done as u64, len)
    }

    fn handle(&self, index: usize) -> SlotRef {
        self.ops[index].lh.slot
    }

    fn kind(&self) -> Kind {
        Kind::Write
    }

    fn priority(&self) -> Option<Priority> {
        Some(self.priority)
    }

    fn lane(&self) -> Lane {
        lanes::accesses(self.inner.id, self.priority)
    }

    fn source(&self, at: Cursor, len: usize) -> &[u8] {
        &self.ops[at.index].from[at.done..at.done + len]
    }
}

impl Accesses for Reads<'_, '_> {
    fn operation(&self) -> &'static str {
        "read"
    }

    fn place(&self, index: usize) -> (Lh, u64) {
        (self.ops[index].lh, self.ops[index].offset)
    }
}

impl Accesses for Writes<'_, '_> {
    fn operation(&self) -> &'static str {
        "write"
    }

    fn place(&self, index: usize) -> (Lh, u64) {
        (self.ops[index].lh, self.ops[index].offset)
    }
}

/// The cause that ended an access. `maybe_done` is true if the part in progress may have taken effect.
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

/// Accesses by tasks. Loads and stores run on the caller's thread. The slower paths are boxed, because a future is as
/// large as its longest path and is copied when it starts.
impl Inner {
    /// Reads as many bytes from the offset as loads reach. Returns their number, or the peer that has them.
    #[inline]
    pub(crate) fn read_now(&self, lh: Lh, offset: u64, into: &mut [u8]) -> DirectResult {
        if !self.owns(lh) {
            return Err(None);
        }
        self.path.read(self.id, lh.slot, offset, into).map_err(|blocked| peer_of(&blocked, into.len()))
    }

    /// Writes as many bytes from the offset as stores reach. Returns their number, or the peer that has them.
    #[inline]
    pub(crate) fn write_now(&self, lh: Lh, offset: u64, from: &[u8]) -> DirectResult {
        if !self.owns(lh) {
            return Err(None);
        }
        self.path.write(self.id, lh.slot, offset, from).map_err(|blocked| peer_of(&blocked, from.len()))
    }

    /// Reads as [`Inner::read_now`] does, into the memory of an attached session's client. `into` is the client's
    /// window and the offset in it; `place` is the region's offset and the length.
    pub(crate) fn read_into_memory(&self, lh: Lh, place: (u64, u64), into: (&Window, u64)) -> Option<usize> {
        if self.owns(lh) { self.path.read_into(self.id, lh.slot, place, into).ok() } else { None }
    }

    /// Writes as [`Inner::write_now`] does, from the memory of an attached session's client. `from` is the client's
    /// window and the offset in it; `place` is the region's offset and the length.
    pub(crate) fn write_from_memory(&self, lh: Lh, place: (u64, u64), from: (&Window, u64)) -> Option<usize> {
        if self.owns(lh) { self.path.write_from(self.id, lh.slot, place, from).ok() } else { None }
    }

    /// Returns true if this session may execute an access to the whole range now.
    pub(crate) fn may_access(&self, lh: Lh, wanted: Permissions, offset: u64, len: u64) -> bool {
        self.owns(lh) && self.path.check(self.id, lh.slot, wanted, offset, len).is_ok()
    }

    #[inline]
    pub(crate) async fn read_all(
        &self,
        priority: Priority,
        lh: Lh,
        offset: u64,
        into: &mut [u8],
    ) -> Result<(), AccessError> {
        let reached = match self.read_now(lh, offset, into) {
            Ok(done) if done == into.len() => return Ok(()),
            reached => reached,
        };
        let ops = &mut [ReadOp { lh, offset, into }];
        if let Some(mut single) =
            self.driver.post_single(&Reads { inner: self, priority, ops }, &reached, true)
        {
            let ended = single.ended().await;
            return self.land_single(&mut Reads { inner: self, priority, ops }, &single, ended);
        }
        let [ReadOp { into, .. }] = ops;
        Box::pin(self.read(priority, lh, offset, into, reached)).await
    }

    #[inline]
    pub(crate) async fn write_all(
        &self,
        priority: Priority,
        lh: Lh,
        offset: u64,
        from: &[u8],
    ) -> Result<(), AccessError> {
        let reached = match self.write_now(lh, offset, from) {
            Ok(done) if done == from.len() => return Ok(()),
            reached => reached,
        };
        let mut access = Writes { inner: self, priority, ops: &[WriteOp { lh, offset, from }] };
        if let Some(mut single) = self.driver.post_single(&access, &reached, true) {
            let ended = single.ended().await;
            return self.land_single(&mut access, &single, ended);
        }
        Box::pin(self.write(priority, lh, offset, from, reached)).await
    }

    pub(crate) async fn read_each(
        &self,
        priority: Priority,
        ops: &mut [ReadOp<'_>],
    ) -> Result<(), BatchError> {
        let mut index = 0;
        while index < ops.len() {
            let own = ops[index..].iter_mut().take_while(|op| self.owns(op.lh));
            match self.path.read_each(self.id, own.map(|op| (op.lh.slot, op.offset, &mut *op.into))) {
                0 => {
                    let read = Box::pin(self.read_from(priority, &mut ops[index..], Ok(0))).await;
                    return read.map_err(|error| BatchError { index: index + error.index, ..error });
                }
                read => index += read,
            }
        }
        Ok(())
    }

    pub(crate) async fn write_each(&self, priority: Priority, ops: &[WriteOp<'_>]) -> Result<(), BatchError> {
        let mut index = 0;
        while index < ops.len() {
            let own = ops[index..].iter().take_while(|op| self.owns(op.lh));
            match self.path.write_each(self.id, own.map(|op| (op.lh.slot, op.offset, op.from))) {
                0 => {
                    let written = Box::pin(self.write_from(priority, &ops[index..], Ok(0))).await;
                    return written.map_err(|error| BatchError { index: index + error.index, ..error });
                }
                written => index += written,
            }
        }
        Ok(())
    }
}

impl Inner {
    /// Continues a read after [`Inner::read_now`].
    pub(crate) async fn read(
        &self,
        priority: Priority,
        lh: Lh,
        offset: u64,
        into: &mut [u8],
        reached: DirectResult,
    ) -> Result<(), AccessError> {
        let ops = &mut [ReadOp { lh, offset, into }];
        self.read_from(priority, ops, reached).await.map_err(|error| error.source)
    }

    /// Continues a write after [`Inner::write_now`].
    pub(crate) async fn write(
        &self,
        priority: Priority,
        lh: Lh,
        offset: u64,
        from: &[u8],
        reached: DirectResult,
    ) -> Result<(), AccessError> {
        self.write_from(priority, &[WriteOp { lh, offset, from }], reached)
            .await
            .map_err(|error| error.source)
    }

    /// Executes reads. `reached` is the result of the first read by loads; `Ok(0)` if there was no attempt.
    pub(crate) async fn read_from(
        &self,
        priority: Priority,
        ops: &mut [ReadOp<'_>],
        reached: DirectResult,
    ) -> Result<(), BatchError> {
        let own = ops.iter().take_while(|op| self.owns(op.lh)).count();
        self.execute(&mut Reads { inner: self, priority, ops: &mut ops[..own] }, reached).await?;
        match ops.get(own) {
            None => Ok(()),
            Some(ReadOp { lh, offset, into }) => {
                Err(self.foreign_handle("read", own, *lh, *offset, into.len()))
            }
        }
    }

    /// Executes writes. `reached` is the result of the first write by stores; `Ok(0)` if there was no attempt.
    pub(crate) async fn write_from(
        &self,
        priority: Priority,
        ops: &[WriteOp<'_>],
        reached: DirectResult,
    ) -> Result<(), BatchError> {
        let own = ops.iter().take_while(|op| self.owns(op.lh)).count();
        self.execute(&mut Writes { inner: self, priority, ops: &ops[..own] }, reached).await?;
        match ops.get(own) {
            None => Ok(()),
            Some(WriteOp { lh, offset, from }) => {
                Err(self.foreign_handle("write", own, *lh, *offset, from.len()))
            }
        }
    }

    /// Completes an access that [`Driver::post_single`](crate::driver::Driver::post_single) posted.
    pub(crate) fn land_single<A: Accesses>(
        &self,
        access: &mut A,
        single: &SinglePart<'_>,
        ended: OperationResult,
    ) -> Result<(), AccessError> {
        let landed = self.driver.land_single(access, single, ended);
        landed.map_err(|failed| self.batch_error(access, failed).source)
    }

    /// Executes accesses. `reached` is the result of the first access by loads and stores; `Ok(0)` if there was no
    /// attempt.
    pub(crate) async fn execute<A: Accesses>(
        &self,
        accesses: &mut A,
        reached: DirectResult,
    ) -> Result<(), BatchError> {
        if accesses.count() == 0 {
            return Ok(());
        }
        let executed = match self.driver.post_single(accesses, &reached, true) {
            Some(mut single) => {
                let ended = single.ended().await;
                self.driver.land_single(accesses, &single, ended)
            }
            None => self.driver.run_transfer(accesses, Cursor { index: 0, done: reached.unwrap_or(0) }).await,
        };
        executed.map_err(|failed| self.batch_error(accesses, failed))
    }

    #[cold]
    fn foreign_handle(
        &self,
        operation: &'static str,
        index: usize,
        lh: Lh,
        offset: u64,
        len: usize,
    ) -> BatchError {
        let source = self.access_error(operation, lh, offset, len as u64, self.unowned_cause());
        BatchError { index, source, later: false }
    }

    #[cold]
    fn batch_error<A: Accesses>(&self, accesses: &A, failed: Failed) -> BatchError {
        let Failed { index, stop, partly, later } = failed;
        let ((lh, offset), len) = (accesses.place(index), accesses.len(index) as u64);
        let Stopped { cause, maybe_done } = self.cause_of_stop(stop, offset, len);
        let source = self.access_error(accesses.operation(), lh, offset, len, cause);
        BatchError { index, source: AccessError { partly: partly || maybe_done, ..source }, later }
    }

    /// Converts the reason why an access of `len` bytes from `offset` stopped into the error's cause.
    pub(crate) fn cause_of_stop(&self, stop: Stop, offset: u64, len: u64) -> Stopped {
        match stop {
            Stop::Blocked(blocked) => self.cause_of(blocked, offset, len).into(),
            Stop::Status(peer, status) => self.cause_of_status(peer, status),
            Stop::Unreachable(peer) => self.cause_of_peer(peer).into(),
            Stop::NoStaging => AccessCause::NoStaging.into(),
            Stop::Closed => self.closed_cause().into(),
        }
    }

    fn closed_cause(&self) -> AccessCause {
        self.driver.closed_or_forked(AccessCause::NodeClosed(self.node), AccessCause::Forked)
    }

    /// Checks rights and bounds of a whole access, before any part of it is executed.
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
            return Err(failed(self.unowned_cause()));
        }
        loop {
            let seen = self.driver.shared.handle_changes.count();
            match self.path.check(self.id, lh.slot, wanted, offset, len) {
                Ok(()) => return Ok(()),
                Err(Blocked::Changing) => self.wait_for_change(seen, lh).await.map_err(failed)?,
                Err(blocked) => return Err(failed(self.cause_of(blocked, offset, len))),
            }
        }
    }

    /// Waits until a handle changes. Returns at once if a handle has changed since the count of changes was `seen`.
    pub(crate) async fn wait_for_change(&self, seen: u64, lh: Lh) -> Result<(), AccessCause> {
        if self.driver.is_closed() {
            return Err(self.closed_cause());
        }
        self.driver.shared.handle_changes.wait_for(seen, lh.slot.index).await;
        Ok(())
    }

    /// Converts the status of a failed request into the error's cause.
    pub(crate) fn cause_of_status(&self, peer: PeerId, status: Status) -> Stopped {
        let (cause, maybe_done) = match status {
            Status::Success => unreachable!("a successful request needs no error"),
            // The peer no longer knows the segment: it was released between the lookup and the copy.
            Status::RemoteAccess => (AccessCause::Stale, false),
            Status::Unmapped => (self.cause_of_unmapped(peer), false),
            Status::Flushed if self.driver.is_closed() => (self.closed_cause(), false),
            Status::Flushed => (self.cause_of_peer(peer), false),
            // This node is closed, but other nodes may reach the peer, and see the effect of this access.
            Status::PeerGone | Status::RetryExceeded if self.driver.is_closed() => {
                (self.closed_cause(), true)
            }
            Status::PeerGone | Status::RetryExceeded => (self.cause_of_peer(peer), true),
        };
        Stopped { cause, maybe_done }
    }

    #[cold]
    pub(crate) fn cause_of_peer(&self, peer: PeerId) -> AccessCause {
        match self.driver.shared.peers.incarnation_of(peer) {
            Some(incarnation) => self.cause_of_down(incarnation),
            // The peer left so long ago that this node has forgotten its incarnation.
            None => AccessCause::Stale,
        }
    }

    fn cause_of_unmapped(&self, peer: PeerId) -> AccessCause {
        let incarnation = self.driver.shared.peers.incarnation_of(peer);
        incarnation.map_or(AccessCause::Stale, |incarnation| AccessCause::Unmapped(incarnation.node))
    }

    /// Returns [`AccessCause::Stale`] if the node was restarted, because its chunks are then lost.
    fn cause_of_down(&self, incarnation: NodeIncarnation) -> AccessCause {
        match self.driver.look(|runner| runner.incarnation_of(incarnation.node)) {
            Some(current) if current != incarnation => AccessCause::Stale,
            // The nodes are connected again; handles from before the loss stay invalid.
            Some(_) => AccessCause::LinkLost(incarnation.node),
            None => self.cause_of_absence(incarnation.node),
        }
    }

    pub(crate) fn cause_of_absence(&self, node: NodeId) -> AccessCause {
        match self.driver.out_of_reach(node) {
            Some(_) => AccessCause::LinkLost(node),
            None => AccessCause::PeerDown(node),
        }
    }

    #[cold]
    pub(crate) fn cause_of(&self, blocked: Blocked, offset: u64, len: u64) -> AccessCause {
        match blocked {
            Blocked::Unknown => AccessCause::UnknownHandle,
            Blocked::Stale if self.driver.is_closed() => self.closed_cause(),
            Blocked::Stale => AccessCause::Stale,
            Blocked::Denied(missing) => AccessCause::PermissionDenied { missing },
            Blocked::Sealed => AccessCause::Sealed,
            Blocked::OutOfRange { .. } if offset.checked_add(len).is_none() => AccessCause::Overflow,
            Blocked::OutOfRange { region_len } => AccessCause::OutOfRange { region_len },
            Blocked::Unaligned => AccessCause::Unaligned { alignment: WORD_BYTES },
            Blocked::Down(incarnation) => self.cause_of_down(incarnation),
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
        if !self.driver.is_forked() {
            self.path.count(Count::AccessFailures, 1);
        }
        AccessError { operation, region: self.describe(lh), offset, len, cause, partly: false }
    }

    /// Returns the length in bytes of the region behind a handle.
    pub(crate) fn len(&self, lh: Lh) -> Result<u64, AccessError> {
        let failed = |cause| self.access_error("len", lh, 0, 0, cause);
        if !self.owns(lh) {
            return Err(failed(self.unowned_cause()));
        }
        loop {
            match self.path.len(self.id, lh.slot) {
                Ok(len) => return Ok(len),
                // A change does not affect the length.
                Err(Blocked::Changing) => {
                    let own = |mapping: &Mapping| (mapping.session == self.id).then(|| mapping.view.len());
                    match self.path.slots().inspect(lh.slot.index, own) {
                        Some(Some(len)) => return Ok(len),
                        Some(None) => return Err(failed(AccessCause::UnknownHandle)),
                        None => {}
                    }
                }
                Err(blocked) => return Err(failed(self.cause_of(blocked, 0, 0))),
            }
        }
    }
}
