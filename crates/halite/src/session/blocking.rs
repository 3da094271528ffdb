//! Sessions for threads.
//!
//! A waiting thread polls its node for a moment before it sleeps, so that an answer from an awake peer needs no thread
//! switch. An operation that need not wait runs none of this code.

/// Defines methods that run the [`crate::Session`] method with the same name and arguments, and block until it has
/// ended.
macro_rules! forward {
    ($(fn $method:ident($($argument:ident: $type:ty),*) -> $output:ty;)*) => {
        $(
            #[doc = concat!("Runs [`crate::Session::", stringify!($method), "`] and blocks until it has ended.")]
            pub fn $method(&self, $($argument: $type),*) -> $output {
                self.block_on(self.session.$method($($argument),*))
            }
        )*
    };
}

mod sync;
mod watch;

use std::io::{IoSlice, IoSliceMut};
use std::path::Path;
use std::time::Duration;

use halite_tier::effect::NamedServer;
use halite_tier::ids::NodeId;
use halite_tier::message::{Drained, NodeStatus, Reach, RegionInfo};
use halite_tier::permissions::Permissions;

use crate::cluster::config::EtcdAddress;
use crate::driver::transfer::DirectResult;
use crate::error::{
    AccessError, AttachError, BatchError, CallError, ListedRegions, LostRegion, NamedCallError, RegionError,
    ReplyError, SendError, ServeError,
};
use crate::metrics::{AttachedSession, PrincipalUse};
use crate::rpc::{ReplyBuffer, ServeOptions};
use crate::session::access::posted::Posted;
use crate::session::attached::Access;
use crate::session::calls::{self, Answer, Call, Function, Message, OutgoingCall, Port, RemoteCall};
use crate::session::{
    self, AllocOptions, Embedded, Kind, Lh, NamesMoved, Placement, ReadOp, SwapOp, Who, WriteOp, embedded,
};

pub use sync::Guard;
pub use watch::Watch;

/// A session whose methods block until they are done. It has every method of [`crate::Session`] under the same name.
#[derive(Clone, Debug)]
pub struct Session {
    session: session::Session,
}

impl Session {
    pub(crate) fn new(session: session::Session) -> Session {
        Session { session }
    }

    /// Returns this session as a session for tasks.
    pub fn as_async(&self) -> &session::Session {
        &self.session
    }

    /// Attaches to a living node of this host in the cluster directory. See [`crate::Session::attach`].
    pub fn attach(dir: impl AsRef<Path>) -> Result<Session, AttachError> {
        Ok(Session { session: session::Session::attach(dir)? })
    }

    /// Attaches to the node with this number. See [`crate::Session::attach_to`].
    pub fn attach_to(dir: impl AsRef<Path>, node: NodeId) -> Result<Session, AttachError> {
        Ok(Session { session: session::Session::attach_to(dir, node)? })
    }

    /// Returns the number of the session's node.
    pub fn node(&self) -> NodeId {
        self.session.node()
    }

    /// Returns the session of a node of this process; `None` for an attached session.
    #[inline]
    pub(crate) fn embedded(&self) -> Option<&Embedded> {
        match &self.session.kind {
            Kind::Embedded(session) => Some(session),
            Kind::Attached(_) => None,
        }
    }

    /// Polls the node once, as [`crate::Session::progress`] does.
    pub fn progress(&self) {
        self.session.progress();
    }

    /// Runs a future on this thread, which polls the node while it waits.
    #[inline]
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        // Pinned in place, so that the compiler need not copy it.
        self.session.block_on(std::pin::pin!(future))
    }
}

/// Operations on regions.
impl Session {
    forward! {
        fn alloc(name: Option<&str>, len: u64, placement: Placement, everyone: Permissions) -> Result<Lh, RegionError>;
        fn alloc_with(name: Option<&str>, len: u64, options: AllocOptions) -> Result<Lh, RegionError>;
        fn map(name: &str, wanted: Permissions) -> Result<Lh, RegionError>;
        fn unmap(lh: Lh) -> Result<(), RegionError>;
        fn free(lh: Lh) -> Result<(), RegionError>;
        fn grant(lh: Lh, who: Who, permissions: Permissions) -> Result<(), RegionError>;
        fn revoke(lh: Lh, who: Who, permissions: Permissions) -> Result<(), RegionError>;
        fn add_master(lh: Lh, who: &str) -> Result<(), RegionError>;
        fn seal(lh: Lh) -> Result<(), RegionError>;
        fn move_to(lh: Lh, node: NodeId) -> Result<(), RegionError>;
        fn set_name(lh: Lh, name: &str) -> Result<(), RegionError>;
        fn stat(name: &str) -> Result<RegionInfo, RegionError>;
        fn stat_handle(lh: Lh) -> Result<RegionInfo, RegionError>;
        fn list() -> Result<Vec<RegionInfo>, RegionError>;
        fn list_all() -> Result<ListedRegions, RegionError>;
        fn list_page(after: Option<&str>) -> Result<ListedRegions, RegionError>;
        fn list_lost() -> Result<Vec<LostRegion>, RegionError>;
        fn forget_name(name: &str) -> Result<(), RegionError>;
        fn forget_node(node: NodeId) -> Result<(), RegionError>;
        fn drain(node: NodeId, within: Duration, destroy: bool) -> Result<Drained, RegionError>;
        fn move_names(to: &EtcdAddress) -> Result<NamesMoved, RegionError>;
        fn move_names_back() -> Result<NamesMoved, RegionError>;
        fn reach(node: NodeId, owner: NodeId) -> Result<Reach, RegionError>;
        fn status() -> Result<Vec<NodeStatus>, RegionError>;
        fn sessions() -> Result<Vec<AttachedSession>, RegionError>;
        fn principals() -> Result<Vec<PrincipalUse>, RegionError>;
    }

    /// Blocks until `is_reached` accepts the word at `offset`, and returns the word. See
    /// [`crate::Session::wait_until`].
    pub fn wait_until(
        &self,
        lh: Lh,
        offset: u64,
        mut is_reached: impl FnMut(u64) -> bool,
    ) -> Result<u64, AccessError> {
        let spun = self.embedded().filter(|_| offset.is_multiple_of(8));
        match spun.and_then(|session| session.spin_until(lh, offset, &mut is_reached)) {
            Some(word) => Ok(word),
            None => self.block_on(self.session.wait_until(lh, offset, is_reached)),
        }
    }

    /// Returns the length of a region in bytes, as [`crate::Session::len`] does.
    pub fn len(&self, lh: Lh) -> Result<u64, AccessError> {
        self.session.len(lh)
    }
}

/// Reads and writes for threads.
impl Session {
    /// Reads `into.len()` bytes from `offset`; blocks until they have arrived. See [`crate::Session::read`].
    #[inline]
    pub fn read(&self, lh: Lh, offset: u64, into: &mut [u8]) -> Result<(), AccessError> {
        let session = match &self.session.kind {
            Kind::Embedded(session) => session,
            Kind::Attached(client) => return client.access(lh, offset, Access::Read(into)).map(|_| ()),
        };
        match session.inner.read_now(lh, offset, into) {
            Ok(done) if done == into.len() => Ok(()),
            reached => self.finish_read(session, lh, offset, into, reached),
        }
    }

    /// Writes `from` at `offset`; blocks until the bytes are written. See [`crate::Session::write`].
    #[inline]
    pub fn write(&self, lh: Lh, offset: u64, from: &[u8]) -> Result<(), AccessError> {
        let session = match &self.session.kind {
            Kind::Embedded(session) => session,
            Kind::Attached(client) => return client.access(lh, offset, Access::Write(from)).map(|_| ()),
        };
        match session.inner.write_now(lh, offset, from) {
            Ok(done) if done == from.len() => Ok(()),
            reached => self.finish_write(session, lh, offset, from, reached),
        }
    }

    forward! {
        fn read_vectored(lh: Lh, offset: u64, into: &mut [IoSliceMut<'_>]) -> Result<(), AccessError>;
        fn write_vectored(lh: Lh, offset: u64, from: &[IoSlice<'_>]) -> Result<(), AccessError>;
        fn read_batch(batch: &mut [ReadOp<'_>]) -> Result<(), BatchError>;
        fn write_batch(batch: &[WriteOp<'_>]) -> Result<(), BatchError>;
        fn compare_swap_while(lh: Lh, swaps: &[SwapOp]) -> Result<usize, BatchError>;
    }

    /// Fills a buffer with bytes from `offset` on, and returns the buffer. See [`crate::Session::read_owned`].
    pub fn read_owned(&self, lh: Lh, offset: u64, mut into: Vec<u8>) -> (Vec<u8>, Result<(), AccessError>) {
        let done = self.read(lh, offset, &mut into);
        (into, done)
    }

    /// Writes the bytes of a buffer at `offset`, and returns the buffer. See [`crate::Session::write_owned`].
    pub fn write_owned(&self, lh: Lh, offset: u64, from: Vec<u8>) -> (Vec<u8>, Result<(), AccessError>) {
        let done = self.write(lh, offset, &from);
        (from, done)
    }

    /// Posts a read and returns without waiting for the bytes. See [`crate::Session::post_read`].
    pub fn post_read<B: AsMut<[u8]> + Send + 'static>(&self, lh: Lh, offset: u64, into: B) -> Posted<B> {
        self.session.post_read(lh, offset, into)
    }

    /// Posts a write and returns without waiting for its completion. See [`crate::Session::post_write`].
    pub fn post_write<B: AsRef<[u8]> + Send + 'static>(&self, lh: Lh, offset: u64, from: B) -> Posted<B> {
        self.session.post_write(lh, offset, from)
    }

    #[cold]
    fn finish_read(
        &self,
        session: &Embedded,
        lh: Lh,
        offset: u64,
        into: &mut [u8],
        reached: DirectResult,
    ) -> Result<(), AccessError> {
        self.block_on(session.inner.read(session.priority, lh, offset, into, reached))
    }

    #[cold]
    fn finish_write(
        &self,
        session: &Embedded,
        lh: Lh,
        offset: u64,
        from: &[u8],
        reached: DirectResult,
    ) -> Result<(), AccessError> {
        self.block_on(session.inner.write(session.priority, lh, offset, from, reached))
    }
}

/// Calls and messages for threads.
impl Session {
    /// Serves a function of this session's node. See [`crate::Session::serve`].
    pub fn serve(&self, function: Function, options: ServeOptions) -> Result<Server, ServeError> {
        self.session.serve(function, options).map(Server::from)
    }

    /// Serves calls to a name; blocks until the directory has registered the name. See [`crate::Session::serve_named`].
    pub fn serve_named(&self, name: &str, options: ServeOptions) -> Result<Server, ServeError> {
        self.block_on(self.session.serve_named(name, options)).map(Server::from)
    }

    forward! {
        fn call_named(name: &str, input: &[u8], timeout: Duration) -> Result<Vec<u8>, NamedCallError>;
        fn servers(name: Option<&str>) -> Result<Vec<NamedServer>, RegionError>;
    }

    /// Calls a function; blocks until its answer arrives, and returns the answer. See [`crate::Session::call`].
    pub fn call(
        &self,
        node: NodeId,
        function: Function,
        input: &[u8],
        timeout: Duration,
    ) -> Result<Vec<u8>, CallError> {
        let mut output = Vec::new();
        let session = embedded!(self.session, client => {
            RemoteCall::new(client, node, function, timeout).run_blocking(input, ReplyBuffer::Vec(&mut output))?;
            Ok(output)
        });
        let calling = OutgoingCall::new(session, node, function, timeout).unlimited();
        calling.run_blocking(input, ReplyBuffer::Vec(&mut output))?;
        Ok(output)
    }

    /// Calls a function; blocks until its answer is in `output`, and returns the answer's length in bytes. See
    /// [`crate::Session::call_into`].
    #[inline]
    pub fn call_into(
        &self,
        node: NodeId,
        function: Function,
        input: &[u8],
        output: &mut [u8],
        timeout: Duration,
    ) -> Result<usize, CallError> {
        let session = embedded!(self.session, client => {
            let call = RemoteCall::new(client, node, function, timeout).limited(output.len());
            call.run_blocking(input, ReplyBuffer::Slice(output))
        });
        let calling = OutgoingCall::new(session, node, function, timeout).limited(output.len());
        calling.run_blocking(input, ReplyBuffer::Slice(output))
    }

    /// Posts a call and returns without waiting for its answer. See [`crate::Session::post_call`].
    #[inline]
    pub fn post_call(
        &self,
        node: NodeId,
        function: Function,
        input: &[u8],
        answer_bytes_max: usize,
        timeout: Duration,
    ) -> Result<PendingCall, CallError> {
        let Some(session) = self.embedded() else {
            let posted = self.session.post_call(node, function, input, answer_bytes_max, timeout);
            return Ok(PendingCall { pending: self.block_on(posted)? });
        };
        let calling = OutgoingCall::new(session, node, function, timeout).limited(answer_bytes_max);
        Ok(PendingCall { pending: calling.post_blocking(input)? })
    }

    /// Posts a call for each input and returns without waiting for the answers. See [`crate::Session::post_calls`].
    pub fn post_calls<I: AsRef<[u8]>>(
        &self,
        node: NodeId,
        function: Function,
        inputs: &[I],
        answer_bytes_max: usize,
        timeout: Duration,
    ) -> Vec<Result<PendingCall, CallError>> {
        let posted = match self.embedded() {
            Some(session) => {
                let calling = OutgoingCall::new(session, node, function, timeout).limited(answer_bytes_max);
                calling.post_all_blocking(inputs)
            }
            None => self.block_on(self.session.post_calls(node, function, inputs, answer_bytes_max, timeout)),
        };
        posted.into_iter().map(|call| call.map(|pending| PendingCall { pending })).collect()
    }

    /// Opens a port of this session's node. See [`crate::Session::open_port`].
    pub fn open_port(&self, port: Port, options: ServeOptions) -> Result<Mailbox, ServeError> {
        Ok(Mailbox { mailbox: self.session.open_port(port, options)? })
    }

    forward! {
        fn call_many(nodes: &[NodeId], function: Function, input: &[u8], timeout: Duration) -> Vec<Result<Vec<u8>, CallError>>;
    }

    /// Sends a message; blocks until it is in the port's queue. See [`crate::Session::send`].
    #[inline]
    pub fn send(&self, node: NodeId, port: Port, bytes: &[u8]) -> Result<(), SendError> {
        match self.embedded() {
            Some(session) => session.send_blocking(node, port, bytes),
            None => self.block_on(self.session.send(node, port, bytes)),
        }
    }

    /// Creates a sender of messages to a port. See [`crate::Session::sender`].
    pub fn sender(&self, node: NodeId, port: Port) -> Sender {
        Sender { sender: self.session.sender(node, port) }
    }

    /// Sends a message, but fails if the port is full. See [`crate::Session::try_send`].
    #[inline]
    pub fn try_send(&self, node: NodeId, port: Port, bytes: &[u8]) -> Result<(), SendError> {
        match self.embedded() {
            Some(session) => session.try_send_blocking(node, port, bytes),
            None => self.block_on(self.session.try_send(node, port, bytes)),
        }
    }
}

/// A sender of messages to one port. Its methods block; [`crate::Sender`] has the same ones for tasks.
#[derive(Debug)]
pub struct Sender {
    sender: calls::Sender,
}

impl Sender {
    /// Publishes a message; blocks only while too many earlier messages are in progress. See [`crate::Sender::send`].
    #[inline]
    pub fn send(&mut self, bytes: &[u8]) -> Result<(), SendError> {
        self.sender.send_blocking(bytes)
    }

    /// Blocks until all messages are in the port's queue. See [`crate::Sender::flush`].
    pub fn flush(&mut self) -> Result<(), SendError> {
        self.sender.flush_blocking()
    }
}

/// A posted call. Its methods block; [`crate::PendingCall`] has the same ones for tasks.
#[derive(Debug)]
pub struct PendingCall {
    pending: calls::PendingCall,
}

impl PendingCall {
    /// Blocks until the answer arrives, and returns it. See [`crate::PendingCall::answer`].
    pub fn answer(self) -> Result<Vec<u8>, CallError> {
        let mut output = Vec::new();
        self.pending.answer_blocking(ReplyBuffer::Vec(&mut output))?;
        Ok(output)
    }

    /// Blocks until the answer is in `output`, and returns its length in bytes. See
    /// [`crate::PendingCall::answer_into`].
    #[inline]
    pub fn answer_into(self, output: &mut [u8]) -> Result<usize, CallError> {
        self.pending.answer_blocking(ReplyBuffer::Slice(output))
    }

    /// Blocks until the answer arrives, and lends it in place. See [`crate::PendingCall::lend_answer`].
    pub fn lend_answer(self) -> Result<Answer, CallError> {
        self.pending.lend_answer_blocking()
    }
}

/// A served function. Its methods block; [`crate::Server`] has the same ones for tasks.
#[derive(Clone, Debug)]
pub struct Server {
    server: calls::Server,
}

impl From<calls::Server> for Server {
    fn from(server: calls::Server) -> Server {
        Server { server }
    }
}

impl Server {
    /// Returns this server as a server for tasks.
    pub fn as_async(&self) -> &calls::Server {
        &self.server
    }

    /// Blocks until the next call arrives, and returns it. See [`crate::Server::recv`].
    #[inline]
    pub fn recv(&self) -> Result<Call, ServeError> {
        self.server.recv_blocking()
    }

    /// Returns the next call, or `None` if none is queued. See [`crate::Server::try_recv`].
    pub fn try_recv(&self) -> Result<Option<Call>, ServeError> {
        self.server.try_recv()
    }

    /// Answers a call; blocks until the next call arrives, and returns it. See [`crate::Server::reply_and_recv`].
    #[inline]
    pub fn reply_and_recv(&self, call: Call, output: &[u8]) -> Result<Call, ServeError> {
        self.server.reply_and_recv_blocking(call, output)
    }

    /// Blocks until a call arrives; returns it with at most `max - 1` queued calls. See [`crate::Server::recv_many`].
    pub fn recv_many(&self, max: usize) -> Result<Vec<Call>, ServeError> {
        self.server.recv_many_blocking(max)
    }

    /// Answers several calls without waiting. See [`crate::Server::reply_all`].
    pub fn reply_all<O: AsRef<[u8]>>(
        &self,
        answers: impl IntoIterator<Item = (Call, O)>,
    ) -> Vec<Result<(), ReplyError>> {
        self.server.reply_all(answers)
    }

    /// Ends the function for all clones of this server. See [`crate::Server::close`].
    pub fn close(&self) {
        self.server.close();
    }
}

/// An open port. Its methods block; [`crate::Mailbox`] has the same ones for tasks.
#[derive(Clone, Debug)]
pub struct Mailbox {
    mailbox: calls::Mailbox,
}

impl Mailbox {
    /// Returns this port as a port for tasks.
    pub fn as_async(&self) -> &calls::Mailbox {
        &self.mailbox
    }

    /// Blocks until the next message arrives, and returns it. See [`crate::Mailbox::recv`].
    #[inline]
    pub fn recv(&self) -> Result<Message, ServeError> {
        self.mailbox.recv_blocking()
    }

    /// Returns the next message, or `None` if none is queued. See [`crate::Mailbox::try_recv`].
    pub fn try_recv(&self) -> Result<Option<Message>, ServeError> {
        self.mailbox.try_recv()
    }

    /// Closes the port for all its receivers. See [`crate::Mailbox::close`].
    pub fn close(&self) {
        self.mailbox.close();
    }
}
