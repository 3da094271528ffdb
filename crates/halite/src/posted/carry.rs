//! Carrying accesses out by posting: as many parts under way as keep the fabric busy, and what is left behind them.

use halite_fabric::{Local, Operation, PeerId, PostCause, PostError, Status, WorkRequest};
use halite_tier::access::Blocked;

use super::pipeline::{Part, Pipeline};
use super::{NoStaging, SLICE_BYTES_MAX};
use crate::driver::Core;

/// Accesses of one direction that are made in order.
pub(crate) trait Transfer {
    /// How many.
    fn count(&self) -> usize;

    /// Bytes of one of them.
    fn len(&self, index: usize) -> usize;

    /// Copies some bytes from `at` on, where loads and stores reach.
    fn step(&mut self, at: Cursor) -> Result<usize, Blocked>;

    /// Where the bytes from `at` on are; copies nothing.
    fn locate(&self, at: Cursor) -> Result<usize, Blocked>;

    /// `len` bytes from `at` on, of a write.
    fn source(&self, at: Cursor, len: usize) -> Option<&[u8]>;

    /// Where `len` bytes from `at` on go, of a read.
    fn target(&mut self, at: Cursor, len: usize) -> Option<&mut [u8]>;
}

/// How far a transfer has come.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub(crate) struct Cursor {
    /// Which access.
    pub(crate) index: usize,
    /// How many bytes of it are done.
    pub(crate) done: usize,
}

/// Which access failed, and why.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) index: usize,
    pub(crate) stop: Stop,
    /// Whether some of that access has been done, or may have been.
    pub(crate) partly: bool,
    /// Whether some of later ones has been, or may have been.
    pub(crate) later: bool,
}

/// Why a transfer does not go on.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The handle does not permit it, or leads nowhere.
    Blocked(Blocked),
    /// What was posted failed.
    Status(PeerId, Status),
    /// The connection is down.
    Unreachable(PeerId),
    NoStaging,
    /// The node is leaving.
    Closed,
}

/// What became of an attempt to post.
enum Attempt {
    Posted,
    /// The place has changed; look again.
    Again,
    /// The fabric's queue is full.
    Full,
    /// Staging memory is short, and there is some under way.
    Short,
    Stop(Stop),
}

impl Core {
    /// Makes all accesses from `at` on, waiting where it must.  When it fails, nothing of it is under way any more.
    pub(crate) async fn carry<T: Transfer>(&self, transfer: &mut T, at: Cursor) -> Result<(), Failed> {
        let mut carrying = Carrying { core: self, transfer, at, pipeline: Pipeline::default() };
        let mut result = carrying.go_on().await;
        if let Err(failed) = &mut result {
            carrying.end_others(failed).await;
        }
        result
    }

    /// The fabric's queue is full; `seen` is [`super::Posted::progress_count`] before it was tried.
    pub(crate) async fn wait_for_room(&self, seen: u64) {
        self.ground.posted.progress_after(seen).await;
    }
}

/// A transfer that is being carried out.
struct Carrying<'a, T> {
    core: &'a Core,
    transfer: &'a mut T,
    /// What comes before has been done or posted.
    at: Cursor,
    pipeline: Pipeline<'a>,
}

impl<'a, T: Transfer> Carrying<'a, T> {
    async fn go_on(&mut self) -> Result<(), Failed> {
        while self.at.index < self.transfer.count() {
            self.step().await?;
        }
        while !self.pipeline.is_empty() {
            self.land_oldest().await?;
        }
        Ok(())
    }

    /// Copies some bytes, or posts some, or waits until that may go on.
    async fn step(&mut self) -> Result<(), Failed> {
        let ground = &self.core.ground;
        // Read before the attempt, so that what happens during it is not missed.
        let changes = ground.changes.count();
        let progress = ground.posted.progress_count();
        let attempt = match self.transfer.step(self.at) {
            Ok(len) => {
                self.at = self.after(self.at, len);
                return Ok(());
            }
            Err(Blocked::Post { peer, .. }) => self.post_from(peer),
            Err(Blocked::Changing) => {
                self.check_open()?;
                ground.changes.after(changes).await;
                return Ok(());
            }
            Err(blocked) => Attempt::Stop(Stop::Blocked(blocked)),
        };
        match attempt {
            Attempt::Posted if self.pipeline.has_room_beside(0, 0) => return Ok(()),
            Attempt::Stop(stop) => return self.fail(stop).await,
            // The end of what is under way makes room.
            Attempt::Posted | Attempt::Full | Attempt::Short if !self.pipeline.is_empty() => {
                return self.land_oldest().await;
            }
            _ => self.check_open()?,
        }
        if let Attempt::Full = attempt {
            self.core.wait_for_room(progress).await;
        }
        Ok(())
    }

    fn check_open(&self) -> Result<(), Failed> {
        if self.core.is_closed() { Err(self.failed(Stop::Closed)) } else { Ok(()) }
    }

    /// What is under way comes first, and so does its failure.
    async fn fail(&mut self, stop: Stop) -> Result<(), Failed> {
        while !self.pipeline.is_empty() {
            self.land_oldest().await?;
        }
        Err(self.failed(stop))
    }

    fn failed(&self, stop: Stop) -> Failed {
        Failed { index: self.at.index, stop, partly: self.at.done > 0, later: false }
    }

    // Posting.

    /// Posts what comes next, and what may follow it to the same peer, in one go.
    fn post_from(&mut self, peer: PeerId) -> Attempt {
        let first = match self.prepare(self.at, peer, self.pipeline.is_empty()) {
            Ok(part) => part,
            Err(attempt) => return attempt,
        };
        let next = self.after(first.at, first.len);
        if next.index == self.transfer.count() || !self.pipeline.has_room_beside(1, first.len) {
            let posted = self.core.ground.fabric.post(peer, &[self.request(&first)]);
            let (count, attempt) = attempt_of(peer, posted, 1);
            self.launch([first], count);
            return attempt;
        }
        let parts = self.prepare_run(first, next);
        let requests: Vec<WorkRequest<'_>> = parts.iter().map(|part| self.request(part)).collect();
        let posted = self.core.ground.fabric.post(peer, &requests);
        let (count, attempt) = attempt_of(peer, posted, requests.len());
        drop(requests);
        self.launch(parts, count);
        attempt
    }

    fn prepare_run(&self, first: Part<'a>, mut next: Cursor) -> Vec<Part<'a>> {
        let (peer, mut bytes) = (first.peer, first.len);
        let mut parts = vec![first];
        while next.index < self.transfer.count() && self.pipeline.has_room_beside(parts.len(), bytes) {
            let Ok(part) = self.prepare(next, peer, false) else { break };
            next = self.after(next, part.len);
            bytes += part.len;
            parts.push(part);
        }
        parts
    }

    /// Begins a part at a place that whoever changes it will wait for, if it is still one of `peer`.  Whether it is the
    /// `only` one: others wait where staging memory is short.
    fn prepare(&self, at: Cursor, peer: PeerId, only: bool) -> Result<Part<'a>, Attempt> {
        let ground = &self.core.ground;
        let mut operation = ground.posted.begin(peer);
        let (address, len) = match self.transfer.locate(at) {
            Err(Blocked::Post { peer: found, address, len }) if found == peer => (address, len),
            _ => return Err(Attempt::Again),
        };
        let len = len.min(SLICE_BYTES_MAX as u64) as usize;
        let is_inline = self.transfer.source(at, len).is_some()
            && len <= ground.fabric.capabilities(peer).inline_bytes_max;
        if !is_inline {
            match operation.stage(&*ground.fabric, len, only) {
                Ok(true) => {}
                Ok(false) => return Err(Attempt::Short),
                Err(NoStaging) => return Err(Attempt::Stop(Stop::NoStaging)),
            }
        }
        Ok(Part { operation, peer, address, at, len })
    }

    fn request<'s>(&'s self, part: &Part<'_>) -> WorkRequest<'s> {
        let remote = part.address;
        let operation = match self.transfer.source(part.at, part.len) {
            Some(source) => {
                let local = part.operation.staged_source(source).unwrap_or(Local::Inline(source));
                Operation::Write { local, remote }
            }
            None => {
                let local = part.operation.staged_target(part.len);
                Operation::Read { local: local.expect("reads land in staging memory"), remote }
            }
        };
        WorkRequest { id: part.operation.id(), operation, signalled: true, solicited: true }
    }

    /// The first `count` of `parts` have been posted.
    fn launch(&mut self, parts: impl IntoIterator<Item = Part<'a>>, count: usize) {
        for part in parts.into_iter().take(count) {
            self.at = self.after(part.at, part.len);
            self.pipeline.push(part);
        }
    }

    /// Where `len` bytes from `at` on end.
    fn after(&self, at: Cursor, len: usize) -> Cursor {
        let done = at.done + len;
        if done == self.transfer.len(at.index) {
            Cursor { index: at.index + 1, done: 0 }
        } else {
            Cursor { index: at.index, done }
        }
    }

    // Landing.

    /// Waits for what is under way behind a part that has failed, and notes what of it others may see.
    async fn end_others(&mut self, failed: &mut Failed) {
        while let Some((part, ended)) = self.pipeline.pop().await {
            let is_write = self.transfer.source(part.at, 0).is_some();
            if is_write && may_be_done(ended.status) {
                let is_later = part.at.index > failed.index;
                failed.later |= is_later;
                failed.partly |= !is_later;
            }
        }
    }

    async fn land_oldest(&mut self) -> Result<(), Failed> {
        let Some((part, ended)) = self.pipeline.pop().await else { return Ok(()) };
        if ended.status != Status::Success {
            let Cursor { index, done } = part.at;
            let stop = Stop::Status(part.peer, ended.status);
            return Err(Failed { index, stop, partly: done > 0, later: false });
        }
        if let Some(target) = self.transfer.target(part.at, part.len) {
            part.operation.unstage(target);
        }
        Ok(())
    }
}

/// Whether a request that ended so has been done, or may have been.
fn may_be_done(status: Status) -> bool {
    match status {
        Status::Success | Status::PeerGone | Status::RetryExceeded => true,
        Status::RemoteAccess | Status::Unmapped | Status::Flushed => false,
    }
}

/// How many of `count` requests were posted, and what is to be made of that.
fn attempt_of(peer: PeerId, posted: Result<(), PostError>, count: usize) -> (usize, Attempt) {
    let Err(PostError { posted, cause, .. }) = posted else { return (count, Attempt::Posted) };
    let attempt = match cause {
        PostCause::QueueFull => Attempt::Full,
        PostCause::NotConnected => Attempt::Stop(Stop::Unreachable(peer)),
        PostCause::Malformed => unreachable!("requests keep to the fabric's limits"),
    };
    (posted, attempt)
}
