//! Memory operations: fill and copy, which run where the bytes are.
//!
//! The caller's own thread changes bytes that loads and stores reach. For other bytes, this module sends commands to the
//! owner (`halite_tier::engine`), one after the other, until all parts are done. The data does not travel to the caller.

use halite_tier::access::{Blocked, CopySide, DataPath, RegionOffset, Step};
use halite_tier::effect::{Command, CommandError, Outcome};
use halite_tier::ids::SessionId;
use halite_tier::message::ErrorReply;

use crate::blocking;
use crate::error::{AccessCause, AccessError, CopyEnd, CopyError};
use crate::runtime::wait::yield_now;
use crate::session::attached::lost;
use crate::session::attached::wire::Request;
use crate::session::{CommandFuture, Inner, Kind, Lh, Session, describe_slot, embedded};

/// Memory operations.
///
/// An operation checks all rights and bounds before it changes a byte. If its future is dropped, any part of the work
/// may be done; no part begins after the one in progress.
impl Session {
    /// Sets `len` bytes from `offset` to `byte`. Needs [`Permissions::WRITE`](crate::Permissions::WRITE).
    pub async fn fill(&self, lh: Lh, offset: u64, len: u64, byte: u8) -> Result<(), AccessError> {
        let session = embedded!(self, client => {
            client.ask(&Request::Fill { lh, offset, len, byte }, lost("fill", lh, offset, len)).await
        });
        session
            .inner
            .finish_fill(FillWork { at: region_offset(lh, offset), len, byte }, lh, offset, len)
            .await
    }

    /// Copies `len` bytes within a region or between two regions. Needs [`Permissions::READ`](crate::Permissions::READ)
    /// on the source and [`Permissions::WRITE`](crate::Permissions::WRITE) on the target. The two ranges may overlap,
    /// as with `memmove`.
    pub async fn copy(
        &self,
        to: Lh,
        to_offset: u64,
        from: Lh,
        from_offset: u64,
        len: u64,
    ) -> Result<(), CopyError> {
        let session = embedded!(self, client => {
            client.ask(&Request::Copy { to, to_offset, from, from_offset, len }, |gone| CopyError {
                len,
                from: CopyEnd { region: describe_slot(from), offset: from_offset },
                to: CopyEnd { region: describe_slot(to), offset: to_offset },
                side: CopySide::Target,
                cause: gone.into(),
                partly: gone.maybe_done(),
            }).await
        });
        let copy = CopyWork { to: region_offset(to, to_offset), from: region_offset(from, from_offset), len };
        session.inner.finish_copy(copy, (to, to_offset), (from, from_offset), len).await
    }
}

/// Memory operations for threads.
impl blocking::Session {
    /// Sets a range of bytes to a value; blocks until this is done. See [`crate::Session::fill`].
    pub fn fill(&self, lh: Lh, offset: u64, len: u64, byte: u8) -> Result<(), AccessError> {
        let Kind::Embedded(session) = &self.as_async().kind else {
            return self.block_on(self.as_async().fill(lh, offset, len, byte));
        };
        let inner = &*session.inner;
        let mut fill = FillWork { at: region_offset(lh, offset), len, byte };
        if inner.owns(lh) && inner.run_now(&mut fill).is_ok() {
            return Ok(());
        }
        self.block_on(inner.finish_fill(fill, lh, offset, len))
    }

    /// Copies bytes within a region or between two; blocks until this is done. See [`crate::Session::copy`].
    pub fn copy(
        &self,
        to: Lh,
        to_offset: u64,
        from: Lh,
        from_offset: u64,
        len: u64,
    ) -> Result<(), CopyError> {
        let Kind::Embedded(session) = &self.as_async().kind else {
            return self.block_on(self.as_async().copy(to, to_offset, from, from_offset, len));
        };
        let inner = &*session.inner;
        let mut copy =
            CopyWork { to: region_offset(to, to_offset), from: region_offset(from, from_offset), len };
        if inner.owns(to) && inner.owns(from) && inner.run_now(&mut copy).is_ok() {
            return Ok(());
        }
        self.block_on(inner.finish_copy(copy, (to, to_offset), (from, from_offset), len))
    }
}

fn region_offset(lh: Lh, offset: u64) -> RegionOffset {
    RegionOffset { slot: lh.slot, offset }
}

/// The remaining part of a memory operation.
trait MemoryOperation {
    /// Returns the number of remaining bytes.
    fn len(&self) -> u64;

    /// Returns the offset of the remaining bytes in the region of `side`.
    fn offset(&self, side: CopySide) -> u64;

    /// Executes the next part by loads and stores.
    fn step(&self, path: &DataPath, session: SessionId) -> Result<Step, (CopySide, Blocked)>;

    /// Returns the command to the owner, for bytes that loads and stores do not reach.
    fn command(&self) -> Command;

    /// Removes a completed part from the range.
    fn advance(&mut self, step: Step);
}

struct FillWork {
    at: RegionOffset,
    len: u64,
    byte: u8,
}

struct CopyWork {
    to: RegionOffset,
    from: RegionOffset,
    len: u64,
}

impl MemoryOperation for FillWork {
    fn len(&self) -> u64 {
        self.len
    }

    fn offset(&self, _: CopySide) -> u64 {
        self.at.offset
    }

    fn step(&self, path: &DataPath, session: SessionId) -> Result<Step, (CopySide, Blocked)> {
        let step = path.fill(session, self.at, self.len, self.byte);
        step.map_err(|blocked| (CopySide::Target, blocked))
    }

    fn command(&self) -> Command {
        Command::Fill { at: self.at, len: self.len, byte: self.byte }
    }

    fn advance(&mut self, step: Step) {
        self.at.offset += step.len;
        self.len -= step.len;
    }
}

impl MemoryOperation for CopyWork {
    fn len(&self) -> u64 {
        self.len
    }

    fn offset(&self, side: CopySide) -> u64 {
        match side {
            CopySide::Source => self.from.offset,
            CopySide::Target => self.to.offset,
        }
    }

    fn step(&self, path: &DataPath, session: SessionId) -> Result<Step, (CopySide, Blocked)> {
        path.copy(session, self.to, self.from, self.len)
    }

    fn command(&self) -> Command {
        Command::Copy { to: self.to, from: self.from, len: self.len }
    }

    fn advance(&mut self, step: Step) {
        if !step.backward {
            self.to.offset += step.len;
            self.from.offset += step.len;
        }
        self.len -= step.len;
    }
}

/// A failed operation. `side` is the region that failed; `partly` is true if a part of the operation may be done.
struct Failure {
    side: CopySide,
    cause: AccessCause,
    partly: bool,
}

impl Failure {
    #[cold]
    fn into_access_error(self, inner: &Inner, lh: Lh, offset: u64, len: u64) -> AccessError {
        let error = inner.access_error("fill", lh, offset, len, self.cause);
        AccessError { partly: self.partly, ..error }
    }

    #[cold]
    fn into_copy_error(
        self,
        inner: &Inner,
        (to, to_offset): (Lh, u64),
        (from, from_offset): (Lh, u64),
        len: u64,
    ) -> CopyError {
        let from = CopyEnd { region: inner.describe(from), offset: from_offset };
        let to = CopyEnd { region: inner.describe(to), offset: to_offset };
        CopyError { len, from, to, side: self.side, cause: self.cause, partly: self.partly }
    }
}

impl Inner {
    /// Fills the rest of `len` bytes; waits for owners and for changes of the region.
    async fn finish_fill(&self, fill: FillWork, lh: Lh, offset: u64, len: u64) -> Result<(), AccessError> {
        let filled = self.run(fill, &[(CopySide::Target, lh)], len).await;
        filled.map_err(|failure| failure.into_access_error(self, lh, offset, len))
    }

    /// Copies the rest of `len` bytes; waits for owners and for changes of the regions.
    async fn finish_copy(
        &self,
        copy: CopyWork,
        to: (Lh, u64),
        from: (Lh, u64),
        len: u64,
    ) -> Result<(), CopyError> {
        let copied = self.run(copy, &[(CopySide::Source, from.0), (CopySide::Target, to.0)], len).await;
        copied.map_err(|failure| failure.into_copy_error(self, to, from, len))
    }

    /// Executes the rest of an operation on `whole` bytes.
    async fn run<B: MemoryOperation>(
        &self,
        mut operation: B,
        handles: &[(CopySide, Lh)],
        whole: u64,
    ) -> Result<(), Failure> {
        let operation = &mut operation;
        if let Some((side, _)) = handles.iter().find(|(_, lh)| !self.owns(*lh)) {
            return Err(Failure { side: *side, cause: self.unowned_cause(), partly: false });
        }
        loop {
            // Read before the attempt, so that no change during it is missed.
            let seen = self.driver.shared.handle_changes.count();
            let stopped = match operation.step(&self.path, self.id) {
                Ok(step) => {
                    operation.advance(step);
                    if operation.len() == 0 {
                        return Ok(());
                    }
                    // Lets other tasks of this thread run.
                    yield_now().await;
                    continue;
                }
                Err((_, Blocked::Post { .. })) => match self.command_step(operation).await {
                    Ok(()) if operation.len() == 0 => return Ok(()),
                    Ok(()) => continue,
                    Err(error) => self.stop_for(error),
                },
                Err((side, blocked)) => Stop::Access(side, blocked),
            };
            let partly = operation.len() < whole;
            match stopped {
                Stop::Access(side, Blocked::Changing) => {
                    let (_, lh) = handles.iter().find(|(of, _)| *of == side).expect("each side has a handle");
                    let waited = self.wait_for_change(seen, *lh).await;
                    waited.map_err(|cause| Failure { side, cause, partly })?;
                }
                Stop::Access(side, blocked) => {
                    let cause = self.cause_of(blocked, operation.offset(side), operation.len());
                    return Err(Failure { side, cause, partly });
                }
                Stop::Partly(side, cause) => return Err(Failure { side, cause, partly: true }),
            }
        }
    }

    /// Executes all parts by loads and stores. Fails at the first part that cannot be executed without waiting.
    fn run_now<B: MemoryOperation>(&self, operation: &mut B) -> Result<(), (CopySide, Blocked)> {
        loop {
            let step = operation.step(&self.path, self.id)?;
            operation.advance(step);
            if operation.len() == 0 {
                return Ok(());
            }
        }
    }

    async fn command_step<B: MemoryOperation>(&self, operation: &mut B) -> Result<(), CommandError> {
        match CommandFuture::new(self, operation.command()).await? {
            Outcome::Stepped(step) => operation.advance(step),
            _ => unreachable!("the command returns a step"),
        }
        Ok(())
    }

    #[cold]
    fn stop_for(&self, error: CommandError) -> Stop {
        match error {
            CommandError::Access { side, blocked } => Stop::Access(side, blocked),
            CommandError::Broken { side, refusal } => Stop::Partly(side, self.cause_of_refusal(refusal)),
            CommandError::Refused(refusal) => Stop::Partly(CopySide::Target, self.cause_of_refusal(refusal)),
            _ => Stop::Partly(CopySide::Target, AccessCause::Stale),
        }
    }

    fn cause_of_refusal(&self, refusal: ErrorReply) -> AccessCause {
        match refusal {
            ErrorReply::PeerDown(node) | ErrorReply::NotMet(node) | ErrorReply::UnknownNode(node) => {
                self.cause_of_absence(node)
            }
            ErrorReply::NodeClosed(node) => AccessCause::NodeClosed(node),
            ErrorReply::Unmapped { node, owner } => AccessCause::UnmappedBy { node, owner },
            // The owner of the bytes no longer knows the region.
            _ => AccessCause::Stale,
        }
    }
}

/// Reason why a memory operation could not continue.
enum Stop {
    Access(CopySide, Blocked),
    Partly(CopySide, AccessCause),
}
