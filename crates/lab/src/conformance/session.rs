//! Sessions as stories use them.
//!
//! Over real nodes these are blocking sessions, and add nothing.  In a simulated world their waits let virtual time pass.

use std::io::{IoSlice, IoSliceMut};
use std::time::Duration;

use halite::{
    AccessError, AllocOptions, Answer, BarrierError, BatchError, Call, CallError, CopyError, Function, Lh,
    LockError, LostRegion, Message, NodeId, NodeStatus, Notification, NotifyError, PeerExplained,
    Permissions, Placement, Port, Reach, ReadOp, RegionError, RegionExplained, RegionInfo, ReplyError,
    SendError, ServeError, ServeOptions, UnreachableRegion, Who, WriteOp, blocking,
};

use super::turns::{is_simulated, wait, wait_for_bytes};

/// See [`blocking::Session`].
#[derive(Clone, Debug)]
pub struct Session(blocking::Session);

/// See [`blocking::Server`].
#[derive(Clone, Debug)]
pub struct Server(blocking::Server);

/// See [`blocking::Mailbox`].
#[derive(Clone, Debug)]
pub struct Mailbox(blocking::Mailbox);

/// One of what threads have, and what tasks have.
#[derive(Debug)]
enum Kind<B, A> {
    Blocking(B),
    Async(A),
}
use Kind::{Async, Blocking};

/// See [`blocking::PendingCall`].
#[derive(Debug)]
pub struct PendingCall(Kind<blocking::PendingCall, halite::PendingCall>);

/// See [`blocking::Guard`].
#[derive(Debug)]
#[must_use = "the lock is given up when its guard is dropped"]
pub struct Guard(Kind<blocking::Guard, halite::Guard>);

/// See [`blocking::Watch`].
#[derive(Debug)]
pub struct Watch(Kind<blocking::Watch, halite::Watch>);

/// Waits as this thread does.
macro_rules! either {
    ($object:expr, $method:ident($($argument:expr),*)) => {
        if is_simulated() {
            wait($object.as_async().$method($($argument),*))
        } else {
            $object.$method($($argument),*)
        }
    };
}

/// Methods of the same name, arguments and result.
macro_rules! same {
    ($(fn $method:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {
        $(
            #[doc = concat!("See [`halite::Session::", stringify!($method), "`].")]
            pub fn $method(&self, $($argument: $type),*) -> $result {
                either!(self.0, $method($($argument),*))
            }
        )*
    };
}

impl Session {
    /// A session as stories use it.
    pub fn new(session: &halite::Session) -> Session {
        Session(session.blocking())
    }

    /// The same session for tasks.
    pub fn as_async(&self) -> &halite::Session {
        self.0.as_async()
    }

    /// Waits for a future.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        block_on(self.as_async(), future)
    }

    /// See [`halite::Session::len`].
    pub fn len(&self, lh: Lh) -> Result<u64, AccessError> {
        self.0.len(lh)
    }

    same! {
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
        fn list_unreachable() -> Result<Vec<UnreachableRegion>, RegionError>;
        fn list_lost() -> Result<Vec<LostRegion>, RegionError>;
        fn forget_name(name: &str) -> Result<(), RegionError>;
        fn forget_node(node: NodeId) -> Result<(), RegionError>;
        fn reach(node: NodeId, owner: NodeId) -> Result<Reach, RegionError>;
        fn status() -> Result<Vec<NodeStatus>, RegionError>;
        fn explain(lh: Lh) -> Result<RegionExplained, RegionError>;
        fn explain_peer(node: NodeId) -> Result<PeerExplained, RegionError>;
    }

    /// See [`halite::Session::read`].
    pub fn read(&self, lh: Lh, offset: u64, into: &mut [u8]) -> Result<(), AccessError> {
        match is_simulated() {
            true => wait_for_bytes(into.len() as u64, self.as_async().read(lh, offset, into)),
            false => self.0.read(lh, offset, into),
        }
    }

    /// See [`halite::Session::check_lock`].
    pub fn check_lock(&self, name: &str) -> Result<(), LockError> {
        self.0.check_lock(name)
    }

    /// See [`halite::Session::write`].
    pub fn write(&self, lh: Lh, offset: u64, from: &[u8]) -> Result<(), AccessError> {
        match is_simulated() {
            true => wait_for_bytes(from.len() as u64, self.as_async().write(lh, offset, from)),
            false => self.0.write(lh, offset, from),
        }
    }

    /// See [`halite::Session::fill`].
    pub fn fill(&self, lh: Lh, offset: u64, len: u64, byte: u8) -> Result<(), AccessError> {
        match is_simulated() {
            true => wait_for_bytes(len, self.as_async().fill(lh, offset, len, byte)),
            false => self.0.fill(lh, offset, len, byte),
        }
    }

    /// See [`halite::Session::copy`].
    pub fn copy(
        &self,
        to: Lh,
        to_offset: u64,
        from: Lh,
        from_offset: u64,
        len: u64,
    ) -> Result<(), CopyError> {
        match is_simulated() {
            true => wait_for_bytes(len, self.as_async().copy(to, to_offset, from, from_offset, len)),
            false => self.0.copy(to, to_offset, from, from_offset, len),
        }
    }

    same! {
        fn read_vectored(lh: Lh, offset: u64, into: &mut [IoSliceMut<'_>]) -> Result<(), AccessError>;
        fn write_vectored(lh: Lh, offset: u64, from: &[IoSlice<'_>]) -> Result<(), AccessError>;
        fn read_batch(batch: &mut [ReadOp<'_>]) -> Result<(), BatchError>;
        fn write_batch(batch: &[WriteOp<'_>]) -> Result<(), BatchError>;
        fn read_owned(lh: Lh, offset: u64, into: Vec<u8>) -> (Vec<u8>, Result<(), AccessError>);
        fn write_owned(lh: Lh, offset: u64, from: Vec<u8>) -> (Vec<u8>, Result<(), AccessError>);
        fn fetch_add(lh: Lh, offset: u64, add: u64) -> Result<u64, AccessError>;
        fn compare_swap(lh: Lh, offset: u64, expected: u64, new: u64) -> Result<u64, AccessError>;
        fn write_notify(lh: Lh, offset: u64, from: &[u8], value: u64) -> Result<(), NotifyError>;
    }

    same! {
        fn call(node: NodeId, function: Function, input: &[u8], timeout: Duration) -> Result<Vec<u8>, CallError>;
        fn call_into(node: NodeId, function: Function, input: &[u8], output: &mut [u8], timeout: Duration) -> Result<usize, CallError>;
        fn call_many(nodes: &[NodeId], function: Function, input: &[u8], timeout: Duration) -> Vec<Result<Vec<u8>, CallError>>;
        fn send(node: NodeId, port: Port, bytes: &[u8]) -> Result<(), SendError>;
        fn try_send(node: NodeId, port: Port, bytes: &[u8]) -> Result<(), SendError>;
    }

    same! {
        fn unlock(name: &str) -> Result<(), LockError>;
        fn create_lock(name: &str, everyone: Permissions) -> Result<(), LockError>;
        fn grant_lock(name: &str, who: Who, permissions: Permissions) -> Result<(), LockError>;
        fn revoke_lock(name: &str, who: Who, permissions: Permissions) -> Result<(), LockError>;
        fn free_lock(name: &str) -> Result<(), LockError>;
        fn barrier(name: &str, participants: u32, timeout: Duration) -> Result<u64, BarrierError>;
        fn free_barrier(name: &str) -> Result<(), BarrierError>;
    }
}

/// What gives something out.
impl Session {
    /// See [`halite::Session::serve`].
    pub fn serve(&self, function: Function, options: ServeOptions) -> Result<Server, ServeError> {
        self.0.serve(function, options).map(Server)
    }

    /// See [`halite::Session::open_port`].
    pub fn open_port(&self, port: Port, options: ServeOptions) -> Result<Mailbox, ServeError> {
        self.0.open_port(port, options).map(Mailbox)
    }

    /// See [`halite::Session::post_call`].
    pub fn post_call(
        &self,
        node: NodeId,
        function: Function,
        input: &[u8],
        answer_bytes_max: usize,
        timeout: Duration,
    ) -> Result<PendingCall, CallError> {
        if is_simulated() {
            let posting = self.as_async().post_call(node, function, input, answer_bytes_max, timeout);
            return wait(posting).map(PendingCall::of_task);
        }
        self.0.post_call(node, function, input, answer_bytes_max, timeout).map(PendingCall::of_thread)
    }

    /// See [`halite::Session::post_calls`].
    pub fn post_calls<I: AsRef<[u8]>>(
        &self,
        node: NodeId,
        function: Function,
        inputs: &[I],
        answer_bytes_max: usize,
        timeout: Duration,
    ) -> Vec<Result<PendingCall, CallError>> {
        if is_simulated() {
            let posting = self.as_async().post_calls(node, function, inputs, answer_bytes_max, timeout);
            return wait(posting).into_iter().map(|call| call.map(PendingCall::of_task)).collect();
        }
        let posted = self.0.post_calls(node, function, inputs, answer_bytes_max, timeout).into_iter();
        posted.map(|call| call.map(PendingCall::of_thread)).collect()
    }

    /// See [`halite::Session::watch`].
    pub fn watch(&self, lh: Lh) -> Result<Watch, RegionError> {
        match is_simulated() {
            true => wait(self.as_async().watch(lh)).map(|watch| Watch(Async(watch))),
            false => self.0.watch(lh).map(|watch| Watch(Blocking(watch))),
        }
    }

    /// See [`halite::Session::lock`].
    pub fn lock(&self, name: &str) -> Result<Guard, LockError> {
        match is_simulated() {
            true => wait(self.as_async().lock(name)).map(Guard::of_task),
            false => self.0.lock(name).map(Guard::of_thread),
        }
    }

    /// See [`halite::Session::try_lock`].
    pub fn try_lock(&self, name: &str) -> Result<Guard, LockError> {
        match is_simulated() {
            true => wait(self.as_async().try_lock(name)).map(Guard::of_task),
            false => self.0.try_lock(name).map(Guard::of_thread),
        }
    }

    /// See [`halite::Session::lock_within`].
    pub fn lock_within(&self, name: &str, timeout: Duration) -> Result<Guard, LockError> {
        match is_simulated() {
            true => wait(self.as_async().lock_within(name, timeout)).map(Guard::of_task),
            false => self.0.lock_within(name, timeout).map(Guard::of_thread),
        }
    }
}

/// Waits for a future on a thread of `session`, which helps to move its node meanwhile.
pub fn block_on<F: Future>(session: &halite::Session, future: F) -> F::Output {
    if is_simulated() { wait(future) } else { session.blocking().block_on(future) }
}

impl PendingCall {
    fn of_task(call: halite::PendingCall) -> PendingCall {
        PendingCall(Async(call))
    }

    fn of_thread(call: blocking::PendingCall) -> PendingCall {
        PendingCall(Blocking(call))
    }

    /// See [`halite::PendingCall::answer`].
    pub fn answer(self) -> Result<Vec<u8>, CallError> {
        match self.0 {
            Blocking(call) => call.answer(),
            Async(call) => wait(call.answer()),
        }
    }

    /// See [`halite::PendingCall::answer_into`].
    pub fn answer_into(self, output: &mut [u8]) -> Result<usize, CallError> {
        match self.0 {
            Blocking(call) => call.answer_into(output),
            Async(call) => wait(call.answer_into(output)),
        }
    }

    /// See [`halite::PendingCall::lend_answer`].
    pub fn lend_answer(self) -> Result<Answer, CallError> {
        match self.0 {
            Blocking(call) => call.lend_answer(),
            Async(call) => wait(call.lend_answer()),
        }
    }
}

impl Guard {
    fn of_task(guard: halite::Guard) -> Guard {
        Guard(Async(guard))
    }

    fn of_thread(guard: blocking::Guard) -> Guard {
        Guard(Blocking(guard))
    }

    /// See [`halite::Guard::token`].
    pub fn token(&self) -> u64 {
        match &self.0 {
            Blocking(guard) => guard.token(),
            Async(guard) => guard.token(),
        }
    }

    /// See [`halite::Guard::recovered`].
    pub fn recovered(&self) -> bool {
        match &self.0 {
            Blocking(guard) => guard.recovered(),
            Async(guard) => guard.recovered(),
        }
    }

    /// See [`halite::Guard::check`].
    pub fn check(&self) -> Result<(), LockError> {
        match &self.0 {
            Blocking(guard) => guard.check(),
            Async(guard) => guard.check(),
        }
    }

    /// See [`halite::Guard::unlock`].
    pub fn unlock(self) -> Result<(), LockError> {
        match self.0 {
            Blocking(guard) => guard.unlock(),
            Async(guard) => wait(guard.unlock()),
        }
    }

    /// See [`halite::Guard::keep`].
    pub fn keep(self) -> u64 {
        match self.0 {
            Blocking(guard) => guard.keep(),
            Async(guard) => guard.keep(),
        }
    }
}

impl Watch {
    /// See [`halite::Watch::recv`].
    pub fn recv(&self) -> Result<Notification, RegionError> {
        match &self.0 {
            Blocking(watch) => watch.recv(),
            Async(watch) => wait(watch.recv()),
        }
    }

    /// See [`halite::Watch::try_recv`].
    pub fn try_recv(&self) -> Result<Option<Notification>, RegionError> {
        match &self.0 {
            Blocking(watch) => watch.try_recv(),
            Async(watch) => watch.try_recv(),
        }
    }
}

impl Server {
    /// The same server for tasks.
    pub fn as_async(&self) -> &halite::Server {
        self.0.as_async()
    }

    /// See [`halite::Server::recv`].
    pub fn recv(&self) -> Result<Call, ServeError> {
        either!(self.0, recv())
    }

    /// See [`halite::Server::try_recv`].
    pub fn try_recv(&self) -> Result<Option<Call>, ServeError> {
        self.0.try_recv()
    }

    /// See [`halite::Server::reply_and_recv`].
    pub fn reply_and_recv(&self, call: Call, output: &[u8]) -> Result<Call, ServeError> {
        either!(self.0, reply_and_recv(call, output))
    }

    /// See [`halite::Server::recv_many`].
    pub fn recv_many(&self, max: usize) -> Result<Vec<Call>, ServeError> {
        either!(self.0, recv_many(max))
    }

    /// See [`halite::Server::reply_all`].
    pub fn reply_all<O: AsRef<[u8]>>(
        &self,
        answers: impl IntoIterator<Item = (Call, O)>,
    ) -> Vec<Result<(), ReplyError>> {
        self.0.reply_all(answers)
    }

    /// See [`halite::Server::close`].
    pub fn close(&self) {
        self.0.close();
    }
}

impl Mailbox {
    /// See [`halite::Mailbox::recv`].
    pub fn recv(&self) -> Result<Message, ServeError> {
        either!(self.0, recv())
    }

    /// See [`halite::Mailbox::try_recv`].
    pub fn try_recv(&self) -> Result<Option<Message>, ServeError> {
        self.0.try_recv()
    }

    /// See [`halite::Mailbox::close`].
    pub fn close(&self) {
        self.0.close();
    }
}
