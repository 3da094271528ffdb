//! The same sessions for threads.
//!
//! A thread that waits moves its node forward itself for a moment before it sleeps, so that an answer from an
//! awake peer needs no switch to another thread.  What needs no waiting does not come near any of that.

mod sync;
mod watch;

use std::io::{IoSlice, IoSliceMut};
use std::time::Duration;

use halite_tier::ids::NodeId;
use halite_tier::message::{NodeStatus, Reach, RegionInfo};
use halite_tier::permissions::Permissions;

use crate::error::{AccessError, BatchError, LostRegion, RegionError, UnreachableRegion};
use crate::rpc::{
    self, Answer, Call, CallError, Calling, Function, Into, Message, Port, ReplyError, SendError, ServeError,
    ServeOptions,
};
use crate::session::{self, AllocOptions, Lh, Placement, ReadOp, Who, WriteOp};

pub use sync::Guard;
pub use watch::Watch;

/// A session whose methods return when they are done.  See [`crate::Session`], whose every method is here under
/// the same name.
#[derive(Clone, Debug)]
pub struct Session {
    session: session::Session,
}

impl Session {
    pub(crate) fn new(session: session::Session) -> Session {
        Session { session }
    }

    /// The same session for tasks.
    pub fn as_async(&self) -> &session::Session {
        &self.session
    }

    /// Runs any future on this thread, which helps to move the node forward while it waits.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.session.inner.driver.block_on(future)
    }
}

/// Regions.
impl Session {
    /// See [`crate::Session::alloc`].
    pub fn alloc(
        &self,
        name: Option<&str>,
        len: u64,
        placement: Placement,
        everyone: Permissions,
    ) -> Result<Lh, RegionError> {
        self.block_on(self.session.alloc(name, len, placement, everyone))
    }

    /// See [`crate::Session::alloc_with`].
    pub fn alloc_with(&self, name: Option<&str>, len: u64, options: AllocOptions) -> Result<Lh, RegionError> {
        self.block_on(self.session.alloc_with(name, len, options))
    }

    /// See [`crate::Session::map`].
    pub fn map(&self, name: &str, wanted: Permissions) -> Result<Lh, RegionError> {
        self.block_on(self.session.map(name, wanted))
    }

    /// See [`crate::Session::unmap`].
    pub fn unmap(&self, lh: Lh) -> Result<(), RegionError> {
        self.block_on(self.session.unmap(lh))
    }

    /// See [`crate::Session::free`].
    pub fn free(&self, lh: Lh) -> Result<(), RegionError> {
        self.block_on(self.session.free(lh))
    }

    /// See [`crate::Session::grant`].
    pub fn grant(&self, lh: Lh, who: Who, permissions: Permissions) -> Result<(), RegionError> {
        self.block_on(self.session.grant(lh, who, permissions))
    }

    /// See [`crate::Session::revoke`].
    pub fn revoke(&self, lh: Lh, who: Who, permissions: Permissions) -> Result<(), RegionError> {
        self.block_on(self.session.revoke(lh, who, permissions))
    }

    /// See [`crate::Session::add_master`].
    pub fn add_master(&self, lh: Lh, who: &str) -> Result<(), RegionError> {
        self.block_on(self.session.add_master(lh, who))
    }

    /// See [`crate::Session::seal`].
    pub fn seal(&self, lh: Lh) -> Result<(), RegionError> {
        self.block_on(self.session.seal(lh))
    }

    /// See [`crate::Session::move_to`].
    pub fn move_to(&self, lh: Lh, node: NodeId) -> Result<(), RegionError> {
        self.block_on(self.session.move_to(lh, node))
    }

    /// See [`crate::Session::set_name`].
    pub fn set_name(&self, lh: Lh, name: &str) -> Result<(), RegionError> {
        self.block_on(self.session.set_name(lh, name))
    }

    /// See [`crate::Session::stat`].
    pub fn stat(&self, name: &str) -> Result<RegionInfo, RegionError> {
        self.block_on(self.session.stat(name))
    }

    /// See [`crate::Session::stat_handle`].
    pub fn stat_handle(&self, lh: Lh) -> Result<RegionInfo, RegionError> {
        self.block_on(self.session.stat_handle(lh))
    }

    /// See [`crate::Session::list`].
    pub fn list(&self) -> Result<Vec<RegionInfo>, RegionError> {
        self.block_on(self.session.list())
    }

    /// See [`crate::Session::list_unreachable`].
    pub fn list_unreachable(&self) -> Result<Vec<UnreachableRegion>, RegionError> {
        self.block_on(self.session.list_unreachable())
    }

    /// See [`crate::Session::list_lost`].
    pub fn list_lost(&self) -> Result<Vec<LostRegion>, RegionError> {
        self.block_on(self.session.list_lost())
    }

    /// See [`crate::Session::forget_name`].
    pub fn forget_name(&self, name: &str) -> Result<(), RegionError> {
        self.block_on(self.session.forget_name(name))
    }

    /// See [`crate::Session::forget_node`].
    pub fn forget_node(&self, node: NodeId) -> Result<(), RegionError> {
        self.block_on(self.session.forget_node(node))
    }

    /// See [`crate::Session::reach`].
    pub fn reach(&self, node: NodeId, owner: NodeId) -> Result<Reach, RegionError> {
        self.block_on(self.session.reach(node, owner))
    }

    /// See [`crate::Session::status`].
    pub fn status(&self) -> Result<Vec<NodeStatus>, RegionError> {
        self.block_on(self.session.status())
    }

    /// See [`crate::Session::len`].
    pub fn len(&self, lh: Lh) -> Result<u64, AccessError> {
        self.session.len(lh)
    }
}

/// Calls and messages.
impl Session {
    /// See [`crate::Session::serve`].
    pub fn serve(&self, function: Function, options: ServeOptions) -> Result<Server, ServeError> {
        Ok(Server { server: self.session.serve(function, options)? })
    }

    /// See [`crate::Session::call`].
    pub fn call(
        &self,
        node: NodeId,
        function: Function,
        input: &[u8],
        timeout: Duration,
    ) -> Result<Vec<u8>, CallError> {
        let mut output = Vec::new();
        let calling = Calling::new(&self.session, node, function, timeout).unlimited();
        calling.run_blocking(input, Into::Vec(&mut output))?;
        Ok(output)
    }

    /// See [`crate::Session::call_into`].
    pub fn call_into(
        &self,
        node: NodeId,
        function: Function,
        input: &[u8],
        output: &mut [u8],
        timeout: Duration,
    ) -> Result<usize, CallError> {
        let calling = Calling::new(&self.session, node, function, timeout).limited(output.len());
        calling.run_blocking(input, Into::Slice(output))
    }

    /// See [`crate::Session::post_call`].
    pub fn post_call(
        &self,
        node: NodeId,
        function: Function,
        input: &[u8],
        answer_bytes_max: usize,
        timeout: Duration,
    ) -> Result<PendingCall, CallError> {
        let calling = Calling::new(&self.session, node, function, timeout).limited(answer_bytes_max);
        Ok(PendingCall { pending: calling.post_blocking(input)? })
    }

    /// See [`crate::Session::post_calls`].
    pub fn post_calls<I: AsRef<[u8]>>(
        &self,
        node: NodeId,
        function: Function,
        inputs: &[I],
        answer_bytes_max: usize,
        timeout: Duration,
    ) -> Vec<Result<PendingCall, CallError>> {
        let calling = Calling::new(&self.session, node, function, timeout).limited(answer_bytes_max);
        let posted = calling.post_all_blocking(inputs).into_iter();
        posted.map(|call| call.map(|pending| PendingCall { pending })).collect()
    }

    /// See [`crate::Session::call_many`].
    pub fn call_many(
        &self,
        nodes: &[NodeId],
        function: Function,
        input: &[u8],
        timeout: Duration,
    ) -> Vec<Result<Vec<u8>, CallError>> {
        self.block_on(self.session.call_many(nodes, function, input, timeout))
    }

    /// See [`crate::Session::open_port`].
    pub fn open_port(&self, port: Port, options: ServeOptions) -> Result<Mailbox, ServeError> {
        Ok(Mailbox { mailbox: self.session.open_port(port, options)? })
    }

    /// See [`crate::Session::send`].
    pub fn send(&self, node: NodeId, port: Port, bytes: &[u8]) -> Result<(), SendError> {
        self.block_on(self.session.send(node, port, bytes))
    }

    /// See [`crate::Session::try_send`].
    pub fn try_send(&self, node: NodeId, port: Port, bytes: &[u8]) -> Result<(), SendError> {
        self.block_on(self.session.try_send(node, port, bytes))
    }
}

/// A call that has been posted, for threads; see [`crate::PendingCall`].
#[derive(Debug)]
pub struct PendingCall {
    pending: rpc::PendingCall,
}

impl PendingCall {
    /// See [`crate::PendingCall::answer`].
    pub fn answer(self) -> Result<Vec<u8>, CallError> {
        let mut output = Vec::new();
        self.pending.answer_blocking(Into::Vec(&mut output))?;
        Ok(output)
    }

    /// See [`crate::PendingCall::answer_into`].
    pub fn answer_into(self, output: &mut [u8]) -> Result<usize, CallError> {
        self.pending.answer_blocking(Into::Slice(output))
    }

    /// See [`crate::PendingCall::lend_answer`].
    pub fn lend_answer(self) -> Result<Answer, CallError> {
        self.pending.lend_answer_blocking()
    }
}

/// A function that is served, for threads; see [`crate::Server`].
#[derive(Clone, Debug)]
pub struct Server {
    server: rpc::Server,
}

impl Server {
    /// The same server for tasks.
    pub fn as_async(&self) -> &rpc::Server {
        &self.server
    }

    /// See [`crate::Server::recv`].
    pub fn recv(&self) -> Result<Call, ServeError> {
        self.server.recv_blocking()
    }

    /// See [`crate::Server::try_recv`].
    pub fn try_recv(&self) -> Result<Option<Call>, ServeError> {
        self.server.try_recv()
    }

    /// See [`crate::Server::reply_and_recv`].
    pub fn reply_and_recv(&self, call: Call, output: &[u8]) -> Result<Call, ServeError> {
        self.server.reply_and_recv_blocking(call, output)
    }

    /// See [`crate::Server::recv_many`].
    pub fn recv_many(&self, max: usize) -> Result<Vec<Call>, ServeError> {
        self.server.recv_many_blocking(max)
    }

    /// See [`crate::Server::reply_all`].
    pub fn reply_all<O: AsRef<[u8]>>(
        &self,
        answers: impl IntoIterator<Item = (Call, O)>,
    ) -> Vec<Result<(), ReplyError>> {
        self.server.reply_all(answers)
    }

    /// See [`crate::Server::close`].
    pub fn close(&self) {
        self.server.close();
    }
}

/// A port that is open, for threads; see [`crate::Mailbox`].
#[derive(Clone, Debug)]
pub struct Mailbox {
    mailbox: rpc::Mailbox,
}

impl Mailbox {
    /// The same port for tasks.
    pub fn as_async(&self) -> &rpc::Mailbox {
        &self.mailbox
    }

    /// See [`crate::Mailbox::recv`].
    pub fn recv(&self) -> Result<Message, ServeError> {
        self.mailbox.recv_blocking()
    }

    /// See [`crate::Mailbox::try_recv`].
    pub fn try_recv(&self) -> Result<Option<Message>, ServeError> {
        self.mailbox.try_recv()
    }

    /// See [`crate::Mailbox::close`].
    pub fn close(&self) {
        self.mailbox.close();
    }
}

/// Bytes.
impl Session {
    /// See [`crate::Session::read`].
    #[inline]
    pub fn read(&self, lh: Lh, offset: u64, into: &mut [u8]) -> Result<(), AccessError> {
        let inner = &*self.session.inner;
        let read = inner.owns(lh).then(|| inner.path.read(inner.id, lh.slot, offset, into));
        match read {
            Some(Ok(done)) if done == into.len() => Ok(()),
            read => self.finish_read(lh, offset, into, read.and_then(Result::ok).unwrap_or(0)),
        }
    }

    /// See [`crate::Session::write`].
    #[inline]
    pub fn write(&self, lh: Lh, offset: u64, from: &[u8]) -> Result<(), AccessError> {
        let inner = &*self.session.inner;
        let written = inner.owns(lh).then(|| inner.path.write(inner.id, lh.slot, offset, from));
        match written {
            Some(Ok(done)) if done == from.len() => Ok(()),
            written => self.finish_write(lh, offset, from, written.and_then(Result::ok).unwrap_or(0)),
        }
    }

    /// See [`crate::Session::read_vectored`].
    pub fn read_vectored(&self, lh: Lh, offset: u64, into: &mut [IoSliceMut<'_>]) -> Result<(), AccessError> {
        self.block_on(self.session.read_vectored(lh, offset, into))
    }

    /// See [`crate::Session::write_vectored`].
    pub fn write_vectored(&self, lh: Lh, offset: u64, from: &[IoSlice<'_>]) -> Result<(), AccessError> {
        self.block_on(self.session.write_vectored(lh, offset, from))
    }

    /// See [`crate::Session::read_batch`].
    pub fn read_batch(&self, batch: &mut [ReadOp<'_>]) -> Result<(), BatchError> {
        self.block_on(self.session.read_batch(batch))
    }

    /// See [`crate::Session::write_batch`].
    pub fn write_batch(&self, batch: &[WriteOp<'_>]) -> Result<(), BatchError> {
        self.block_on(self.session.write_batch(batch))
    }

    /// See [`crate::Session::read_owned`].
    pub fn read_owned(&self, lh: Lh, offset: u64, mut into: Vec<u8>) -> (Vec<u8>, Result<(), AccessError>) {
        let done = self.read(lh, offset, &mut into);
        (into, done)
    }

    /// See [`crate::Session::write_owned`].
    pub fn write_owned(&self, lh: Lh, offset: u64, from: Vec<u8>) -> (Vec<u8>, Result<(), AccessError>) {
        let done = self.write(lh, offset, &from);
        (from, done)
    }

    #[cold]
    fn finish_read(&self, lh: Lh, offset: u64, into: &mut [u8], done: usize) -> Result<(), AccessError> {
        self.block_on(self.session.inner.read(lh, offset, into, done))
    }

    #[cold]
    fn finish_write(&self, lh: Lh, offset: u64, from: &[u8], done: usize) -> Result<(), AccessError> {
        self.block_on(self.session.inner.write(lh, offset, from, done))
    }
}
