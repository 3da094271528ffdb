//! Reads, writes and other accesses of an attached session.
//!
//! The node executes an access of up to [`SLICE_BYTES`] as one request. For a longer access, the client first requests
//! a check of the whole access, and then sends several slices at a time. A thread that waits for a short access uses
//! the fast path of the shared memory ([`Client::access`]).

use std::collections::VecDeque;

use halite_mem::exchange;
use halite_tier::access::WORD_BYTES;
use halite_tier::permissions::Permissions;
use halite_tier::qos::Priority;

use super::entry::{COPY_INSTEAD, INLINE_BYTES_MAX};
use super::wire::{BATCH_MAX, Request, SLICE_BYTES};
use super::{Access, Answer, Client, Pending, Unfinished, decoded};
use crate::error::{AccessError, BatchError, Gone};
use crate::session::{Lh, ReadOp, SwapOp, WriteOp, describe_slot};

/// Maximum number of slices of one access in flight.
const SLICES_MAX: usize = 16;
/// Length of a slice in bytes: with its request, it fits into a slot of the shared memory.
const PART_BYTES: usize = SLICE_BYTES - 1024;

/// Returns the error of an access to which the node sent no reply.
pub(crate) fn lost(operation: &'static str, lh: Lh, offset: u64, len: u64) -> impl Fn(Gone) -> AccessError {
    move |gone| AccessError {
        operation,
        region: describe_slot(lh),
        offset,
        len,
        cause: gone.into(),
        partly: gone.maybe_done(),
    }
}

/// Outcome of an access to a buffer.
enum InPlace {
    Done,
    /// The bytes must be copied: they are in no buffer, or the node cannot reach the region by loads and stores. `partly`
    /// is true if the node has done a part of the access.
    Refused {
        partly: bool,
    },
}

/// A slice in flight: the bytes of the access from `begin` to `end`.
struct Slice {
    begin: usize,
    end: usize,
    sent: Result<Pending, Gone>,
}

/// Returns the begin and end of each slice of an access of `len` bytes.
fn slices(len: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..len).step_by(PART_BYTES).map(move |begin| (begin, len.min(begin + PART_BYTES)))
}

/// Accesses of threads.
impl Client {
    /// Executes an access on the calling thread. Returns the old value of an atomic.
    #[inline]
    pub(crate) fn access(&self, lh: Lh, offset: u64, mut access: Access<'_>) -> Result<u64, AccessError> {
        match access.len() {
            // The lines of the shared memory have no priority.
            _ if self.priority == Priority::Low => self.block_on(self.access_by_message(lh, offset, access)),
            len if len > INLINE_BYTES_MAX && self.line.buffers.is_used() => {
                match self.access_in_place(lh, offset, &mut access)? {
                    InPlace::Done => Ok(0),
                    InPlace::Refused { partly } => {
                        let copied = self.access_by_copy(lh, offset, access);
                        copied.map_err(|error| whole(error, offset, len as u64, partly))
                    }
                }
            }
            _ => self.access_by_copy(lh, offset, access),
        }
    }

    /// Executes an access whose bytes pass through the slots of the shared memory.
    #[inline]
    fn access_by_copy(&self, lh: Lh, offset: u64, mut access: Access<'_>) -> Result<u64, AccessError> {
        match access.len() {
            ..=SLICE_BYTES => match self.line.access(lh, offset, &mut access) {
                Ok(old) => Ok(old),
                Err(unfinished) => self.finish_access(lh, offset, access, unfinished),
            },
            _ => self.long_access(lh, offset, access),
        }
    }

    /// Executes a read or write whose bytes are in a buffer that the node can access in place.
    #[inline(never)]
    fn access_in_place(&self, lh: Lh, offset: u64, access: &mut Access<'_>) -> Result<InPlace, AccessError> {
        let (operation, mut in_place) = match access {
            Access::Read(into) => {
                exchange::buffer::expose_mut(into);
                ("read", self.line.buffers.find(into).map(Access::ReadBuffer))
            }
            Access::Write(from) => {
                exchange::buffer::expose(from);
                ("write", self.line.buffers.find(from).map(Access::WriteBuffer))
            }
            _ => return Ok(InPlace::Refused { partly: false }),
        };
        let Some(in_place) = &mut in_place else { return Ok(InPlace::Refused { partly: false }) };
        let body = match self.line.access(lh, offset, in_place) {
            Ok(_) => Ok(vec![0]),
            Err(Unfinished::NotSent) => return Ok(InPlace::Refused { partly: false }),
            // The node may access the buffer until it replies.
            Err(Unfinished::Sent(pending)) => self.line.block_on_after(pending, true),
            Err(Unfinished::Ended(body)) => body,
        };
        if let Access::Read(into) = access {
            exchange::buffer::expose_mut(into);
        }
        match body.as_deref() {
            Ok([COPY_INSTEAD, partly]) => Ok(InPlace::Refused { partly: *partly == 1 }),
            Ok([0]) => Ok(InPlace::Done),
            _ => {
                let lost = lost(operation, lh, offset, access.len() as u64);
                Err(lost(body.err().unwrap_or(Gone::Lost(self.node()))))
            }
        }
    }

    /// Executes a read or write of more than [`SLICE_BYTES`]: checks the whole access, then executes its parts.
    fn long_access(&self, lh: Lh, offset: u64, mut access: Access<'_>) -> Result<u64, AccessError> {
        let (operation, wanted) = match access {
            Access::Read(_) => ("read", Permissions::READ),
            _ => ("write", Permissions::WRITE),
        };
        let len = access.len();
        self.block_on(self.check(operation, lh, wanted, offset, len as u64))?;
        let mut done = 0;
        while done < len {
            let rest_at = offset + done as u64;
            let Err((begin, end, unfinished)) =
                self.line.access_parts(lh, rest_at, &mut access.part(done, len))
            else {
                break;
            };
            let (begin, end) = (done + begin, done + end);
            let part = self.finish_access(lh, offset + begin as u64, access.part(begin, end), unfinished);
            // Later parts of a write may have been written too.
            let partly = begin > 0 || operation == "write";
            part.map_err(|error| whole(error, offset, len as u64, partly))?;
            done = end;
        }
        Ok(0)
    }

    #[cold]
    fn finish_access(
        &self,
        lh: Lh,
        offset: u64,
        access: Access<'_>,
        unfinished: Unfinished,
    ) -> Result<u64, AccessError> {
        let body = match unfinished {
            Unfinished::NotSent => return self.block_on(self.access_by_message(lh, offset, access)),
            Unfinished::Sent(pending) => self.line.block_on_after(pending, true),
            Unfinished::Ended(body) => body,
        };
        match access {
            Access::Read(into) => {
                let lost = lost("read", lh, offset, into.len() as u64);
                let answer = decoded(self.node(), body, &lost)?;
                take(&answer, into).ok_or_else(|| lost(Gone::Lost(self.node()))).map(|()| 0)
            }
            Access::Write(from) => {
                let written = decoded(self.node(), body, lost("write", lh, offset, from.len() as u64));
                written.map(|_: Answer<()>| 0)
            }
            Access::FetchAdd { .. } => self.old_of(body, lost("fetch_add", lh, offset, WORD_BYTES)),
            Access::CompareSwap { .. } => self.old_of(body, lost("compare_swap", lh, offset, WORD_BYTES)),
            Access::ReadBuffer(_) | Access::WriteBuffer(_) => {
                unreachable!("access_in_place() finishes these")
            }
        }
    }

    async fn access_by_message(&self, lh: Lh, offset: u64, access: Access<'_>) -> Result<u64, AccessError> {
        match access {
            Access::Read(into) => self.read(lh, offset, into).await.map(|()| 0),
            Access::Write(from) => self.write(lh, offset, from).await.map(|()| 0),
            Access::FetchAdd { add } => self.fetch_add(lh, offset, add).await,
            Access::CompareSwap { expected, new } => self.compare_swap(lh, offset, expected, new).await,
            Access::ReadBuffer(_) | Access::WriteBuffer(_) => unreachable!("a message names no buffer"),
        }
    }

    fn old_of(
        &self,
        body: Result<Vec<u8>, Gone>,
        lost: impl FnOnce(Gone) -> AccessError,
    ) -> Result<u64, AccessError> {
        decoded(self.node(), body, lost).map(|answer: Answer<u64>| answer.value)
    }
}

/// Accesses of tasks.
impl Client {
    pub(crate) async fn len(&self, lh: Lh) -> Result<u64, AccessError> {
        self.ask(&Request::Len(lh), lost("len", lh, 0, 0)).await
    }

    pub(crate) async fn read(&self, lh: Lh, offset: u64, into: &mut [u8]) -> Result<(), AccessError> {
        let len = into.len() as u64;
        let lost = lost("read", lh, offset, len);
        if into.len() <= SLICE_BYTES {
            let request = Request::Read { lh, offset, len: len as u32 };
            let answer = self.ask_with(&request, &[], None, &lost).await?;
            return take(&answer, into).ok_or_else(|| lost(Gone::Lost(self.node())));
        }
        self.check("read", lh, Permissions::READ, offset, len).await?;
        let send = |begin: usize, end: usize| {
            let request = Request::Read { lh, offset: offset + begin as u64, len: (end - begin) as u32 };
            Slice { begin, end, sent: self.post_request(&request, &[], None) }
        };
        let mut rest = slices(into.len());
        let mut under_way: VecDeque<Slice> =
            rest.by_ref().take(SLICES_MAX).map(|(begin, end)| send(begin, end)).collect();
        while let Some(Slice { begin, end, sent }) = under_way.pop_front() {
            let reply = match sent {
                Ok(pending) => pending.await,
                Err(gone) => Err(gone),
            };
            let read = decoded(self.node(), reply, &lost);
            let read = read.and_then(|answer| {
                take(&answer, &mut into[begin..end]).ok_or_else(|| lost(Gone::Lost(self.node())))
            });
            read.map_err(|error| whole(error, offset, len, begin > 0))?;
            under_way.extend(rest.next().map(|(begin, end)| send(begin, end)));
        }
        Ok(())
    }

    pub(crate) async fn write(&self, lh: Lh, offset: u64, from: &[u8]) -> Result<(), AccessError> {
        let len = from.len() as u64;
        let lost = lost("write", lh, offset, len);
        if from.len() <= SLICE_BYTES {
            let written = self.ask_with(&Request::Write { lh, offset }, &[from], None, &lost).await;
            return written.map(|answer: Answer<()>| answer.value);
        }
        self.check("write", lh, Permissions::WRITE, offset, len).await?;
        let send = |begin: usize, end: usize| {
            let request = Request::Write { lh, offset: offset + begin as u64 };
            Slice { begin, end, sent: self.post_request(&request, &[&from[begin..end]], None) }
        };
        let mut rest = slices(from.len());
        let mut under_way: VecDeque<Slice> =
            rest.by_ref().take(SLICES_MAX).map(|(begin, end)| send(begin, end)).collect();
        while let Some(Slice { sent, .. }) = under_way.pop_front() {
            let reply = match sent {
                Ok(pending) => pending.await,
                Err(gone) => Err(gone),
            };
            let written: Result<Answer<()>, AccessError> = decoded(self.node(), reply, &lost);
            // Later slices may have been written too.
            written.map_err(|error| whole(error, offset, len, true))?;
            under_way.extend(rest.next().map(|(begin, end)| send(begin, end)));
        }
        Ok(())
    }

    /// Checks rights and bounds of a whole access.
    pub(crate) async fn check(
        &self,
        operation: &'static str,
        lh: Lh,
        wanted: Permissions,
        offset: u64,
        len: u64,
    ) -> Result<(), AccessError> {
        self.ask(&Request::Check { lh, wanted, offset, len }, lost(operation, lh, offset, len)).await
    }

    pub(crate) async fn read_batch(&self, ops: &mut [ReadOp<'_>]) -> Result<(), BatchError> {
        let mut begin = 0;
        while begin < ops.len() {
            let count = group(ops[begin..].iter().map(|op| op.into.len()));
            let done = match &mut ops[begin..begin + count] {
                [] => unreachable!("a group has an operation"),
                [ReadOp { lh, offset, into }] => self.read(*lh, *offset, into).await.map_err(single),
                group => self.read_group(group).await,
            };
            done.map_err(|error| BatchError { index: begin + error.index, ..error })?;
            begin += count;
        }
        Ok(())
    }

    async fn read_group(&self, ops: &mut [ReadOp<'_>]) -> Result<(), BatchError> {
        let (lh, offset, len) = (ops[0].lh, ops[0].offset, ops[0].into.len());
        let lost = |gone| single(lost("read", lh, offset, len as u64)(gone));
        let places = ops.iter().map(|op| (op.lh, op.offset, op.into.len() as u32)).collect();
        let request = Request::ReadBatch(places);
        let answer: Answer<Option<BatchError>> = self.ask_with(&request, &[], None, lost).await?;
        let mut data = answer.data();
        for op in ops.iter_mut() {
            // The reply to a failed batch contains the bytes of the reads before the failed one.
            let Some((bytes, rest)) = data.split_at_checked(op.into.len()) else { break };
            op.into.copy_from_slice(bytes);
            data = rest;
        }
        answer.value.map_or(Ok(()), Err)
    }

    pub(crate) async fn write_batch(&self, ops: &[WriteOp<'_>]) -> Result<(), BatchError> {
        let mut begin = 0;
        while begin < ops.len() {
            let count = group(ops[begin..].iter().map(|op| op.from.len()));
            let done = match &ops[begin..begin + count] {
                [] => unreachable!("a group has an operation"),
                [WriteOp { lh, offset, from }] => self.write(*lh, *offset, from).await.map_err(single),
                group => {
                    let (lh, offset, len) = (group[0].lh, group[0].offset, group[0].from.len());
                    let places = group.iter().map(|op| (op.lh, op.offset, op.from.len() as u32)).collect();
                    let data: Vec<&[u8]> = group.iter().map(|op| op.from).collect();
                    let lost = |gone| single(lost("write", lh, offset, len as u64)(gone));
                    let answer = self.ask_with(&Request::WriteBatch(places), &data, None, lost).await;
                    answer.map(|answer: Answer<()>| answer.value)
                }
            };
            done.map_err(|error| BatchError { index: begin + error.index, ..error })?;
            begin += count;
        }
        Ok(())
    }

    pub(crate) async fn fetch_add(&self, lh: Lh, offset: u64, add: u64) -> Result<u64, AccessError> {
        let lost = lost("fetch_add", lh, offset, WORD_BYTES);
        self.ask(&Request::FetchAdd { lh, offset, add }, lost).await
    }

    pub(crate) async fn compare_swap(
        &self,
        lh: Lh,
        offset: u64,
        expected: u64,
        new: u64,
    ) -> Result<u64, AccessError> {
        let lost = lost("compare_swap", lh, offset, WORD_BYTES);
        self.ask(&Request::CompareSwap { lh, offset, expected, new }, lost).await
    }

    pub(crate) async fn swap_while(&self, lh: Lh, swaps: &[SwapOp]) -> Result<usize, BatchError> {
        let mut index = 0;
        for some in swaps.chunks(BATCH_MAX) {
            let first = some[0].offset;
            let lost = |gone| single(lost("compare_swap", lh, first, WORD_BYTES)(gone));
            let asked = self.ask(&Request::SwapWhile { lh, swaps: some.to_vec() }, lost).await;
            let made: usize =
                asked.map_err(|error: BatchError| BatchError { index: index + error.index, ..error })?;
            index += made;
            if made < some.len() {
                break;
            }
        }
        Ok(index)
    }

    /// Waits until `is_reached` accepts a word. The node waits for each change of the word.
    pub(crate) async fn wait_until(
        &self,
        lh: Lh,
        offset: u64,
        mut is_reached: impl FnMut(u64) -> bool,
    ) -> Result<u64, AccessError> {
        let mut not = None;
        loop {
            let lost = lost("wait for", lh, offset, WORD_BYTES);
            let word = self.ask(&Request::WaitWord { lh, offset, not }, lost).await?;
            if is_reached(word) {
                return Ok(word);
            }
            not = Some(word);
        }
    }
}

/// Copies the data of a read. Returns `None` if the node sent a different number of bytes.
fn take(answer: &Answer<()>, into: &mut [u8]) -> Option<()> {
    (answer.data().len() == into.len()).then(|| into.copy_from_slice(answer.data()))
}

/// Converts the error of a slice into the error of the whole access.
fn whole(error: AccessError, offset: u64, len: u64, partly: bool) -> AccessError {
    AccessError { offset, len, partly: partly || error.partly, ..error }
}

fn single(source: AccessError) -> BatchError {
    BatchError { index: 0, source, later: false }
}

/// Returns the number of accesses, counted from the first, that one request carries: at least one.
fn group(lens: impl Iterator<Item = usize>) -> usize {
    let mut bytes = 0;
    let fits = |len: &usize| {
        bytes += len;
        bytes <= SLICE_BYTES
    };
    lens.take(BATCH_MAX).take_while(fits).count().max(1)
}
