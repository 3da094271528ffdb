//! Sessions for conformance cases.
//!
//! Over real nodes, the types here only wrap blocking objects of `halite`. In a simulated world, virtual time passes
//! while they wait.

use std::io::{IoSlice, IoSliceMut};
use std::time::Duration;

use halite::{
    AccessError, AllocOptions, Answer, BarrierError, BatchError, Buffer, Call, CallError, CopyError,
    Function, Lh, ListedRegions, LockError, LostRegion, Message, NamedCallError, NamedServer, NodeId,
    NodeStatus, Notification, NotifyError, PeerExplained, Permissions, Placement, Port, Reach, ReadOp,
    RegionError, RegionExplained, RegionInfo, ReplyError, SendError, ServeError, ServeOptions, SwapOp, Who,
    WriteOp, blocking,
};

use super::turns::{is_simulated, wait, wait_for_bytes};

/// A [`blocking::Session`], whose waits take virtual time in a simulated world.
#[derive(Clone, Debug)]
pub struct Session(blocking::Session);

/// A [`blocking::Server`], whose waits take virtual time in a simulated world.
#[derive(Clone, Debug)]
pub struct Server(blocking::Server);

/// A [`blocking::Mailbox`], whose waits take virtual time in a simulated world.
#[derive(Clone, Debug)]
pub struct Mailbox(blocking::Mailbox);

/// A blocking object over real nodes, or an async one in a simulated world.
#[derive(Debug)]
enum Kind<B, A> {
    Blocking(B),
    Async(A),
}
use Kind::{Async, Blocking};

/// A [`blocking::PendingCall`], whose wait takes virtual time in a simulated world.
#[derive(Debug)]
pub struct PendingCall(Kind<blocking::PendingCall, halite::PendingCall>);

/// A [`blocking::Sender`], whose waits take virtual time in a simulated world.
#[derive(Debug)]
pub struct Sender(Kind<blocking::Sender, halite::Sender>);

/// A [`blocking::Guard`], whose waits take virtual time in a simulated world.
#[derive(Debug)]
#[must_use = "the lock is released when its guard is dropped"]
pub struct Guard(Kind<blocking::Guard, halite::Guard>);

/// A [`blocking::Watch`], whose waits take virtual time in a simulated world.
#[derive(Debug)]
pub struct Watch(Kind<blocking::Watch, halite::Watch>);

/// A [`halite::Posted`] access, whose wait takes virtual time in a simulated world.
#[derive(Debug)]
pub struct Posted<B>(halite::Posted<B>);

/// Calls a non-blocking method of the wrapped object.
macro_rules! plain {
    ($object:expr, $method:ident($($argument:expr),*)) => {
        $object.$method($($argument),*)
    };
}

/// Calls a non-blocking method of an object of either [`Kind`].
macro_rules! immediate {
    ($object:expr, $method:ident($($argument:expr),*)) => {
        match $object {
            Blocking(object) => object.$method($($argument),*),
            Async(object) => object.$method($($argument),*),
        }
    };
}

/// Calls a method of an object of either [`Kind`], and waits for its result.
macro_rules! waiting {
    ($object:expr, $method:ident($($argument:expr),*)) => {
        match $object {
            Blocking(object) => object.$method($($argument),*),
            Async(object) => wait(object.$method($($argument),*)),
        }
    };
}

/// Calls a blocking method over real nodes, or waits for the async method in virtual time.
macro_rules! either {
    ($object:expr, $method:ident($($argument:expr),*)) => {
        if is_simulated() {
            wait($object.as_async().$method($($argument),*))
        } else {
            $object.$method($($argument),*)
        }
    };
}

/// Defines a method that forwards to the wrapped object through the macro `$how`.
macro_rules! method {
    ($type:ident, [$($by:tt)*] $self:ident, $how:ident, $method:ident($($argument:ident: $of:ty),*) -> $result:ty) => {
        #[doc = concat!("Calls [`halite::", stringify!($type), "::", stringify!($method), "`].")]
        pub fn $method($($by)* $self $(, $argument: $of)*) -> $result {
            $how!($($by)* $self.0, $method($($argument),*))
        }
    };
}

/// Defines several methods by `method!`.
macro_rules! methods {
    ($type:ident, $by:tt $self:ident, $how:ident: $(fn $method:ident($($argument:ident: $of:ty),*) -> $result:ty;)*) => {
        impl $type {
            $(method! { $type, $by $self, $how, $method($($argument: $of),*) -> $result })*
        }
    };
}

/// Defines methods of [`Session`] that copy bytes. In a simulated world, the copy takes virtual time.
macro_rules! copying {
    ($($bytes:expr => fn $method:ident($($argument:ident: $of:ty),*) -> $result:ty;)*) => {
        impl Session {
            $(
                #[doc = concat!("Calls [`halite::Session::", stringify!($method), "`].")]
                pub fn $method(&self, $($argument: $of),*) -> $result {
                    match is_simulated() {
                        true => wait_for_bytes($bytes as u64, self.as_async().$method($($argument),*)),
                        false => self.0.$method($($argument),*),
                    }
                }
            )*
        }
    };
}

/// Defines methods of [`Session`] that return an object of either [`Kind`].
macro_rules! opening {
    ($(fn $method:ident($($argument:ident: $type:ty),*) -> Result<$object:ident, $error:ty>;)*) => {
        $(
            #[doc = concat!("Calls [`halite::Session::", stringify!($method), "`].")]
            pub fn $method(&self, $($argument: $type),*) -> Result<$object, $error> {
                match is_simulated() {
                    true => wait(self.as_async().$method($($argument),*)).map(|object| $object(Async(object))),
                    false => self.0.$method($($argument),*).map(|object| $object(Blocking(object))),
                }
            }
        )*
    };
}

impl<B: Unpin> Posted<B> {
    /// Waits for the end of the access, as [`halite::Posted::wait`] does.
    pub fn wait(self) -> (B, Result<(), AccessError>) {
        if is_simulated() { wait(self.0) } else { self.0.wait() }
    }

    /// Returns true if the access has ended, as [`halite::Posted::is_ended`] does.
    pub fn is_ended(&mut self) -> bool {
        self.0.is_ended()
    }
}

impl Session {
    /// Posts a write, as [`halite::Session::post_write`] does.
    pub fn post_write<B: AsRef<[u8]> + Send + 'static>(&self, lh: Lh, offset: u64, from: B) -> Posted<B> {
        Posted(self.0.post_write(lh, offset, from))
    }

    /// Posts a read, as [`halite::Session::post_read`] does.
    pub fn post_read<B: AsMut<[u8]> + Send + 'static>(&self, lh: Lh, offset: u64, into: B) -> Posted<B> {
        Posted(self.0.post_read(lh, offset, into))
    }
}

impl Session {
    /// Wraps a session. The result blocks over real nodes; in a simulated world, virtual time passes while it waits.
    pub fn new(session: &halite::Session) -> Session {
        Session(session.blocking())
    }

    /// Returns the wrapped session, for use in tasks.
    pub fn as_async(&self) -> &halite::Session {
        self.0.as_async()
    }

    /// Polls the node once, as [`halite::Session::progress`] does.
    pub fn progress(&self) {
        self.0.progress();
    }

    /// Waits for a future.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        block_on(self.as_async(), future)
    }
}

methods! { Session, [&] self, either:
    fn alloc(name: Option<&str>, len: u64, placement: Placement, everyone: Permissions) -> Result<Lh, RegionError>;
    fn alloc_with(name: Option<&str>, len: u64, options: AllocOptions) -> Result<Lh, RegionError>;
    fn buffer(len: usize) -> Result<Buffer, RegionError>;
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
    fn list_lost() -> Result<Vec<LostRegion>, RegionError>;
    fn forget_name(name: &str) -> Result<(), RegionError>;
    fn forget_node(node: NodeId) -> Result<(), RegionError>;
    fn reach(node: NodeId, owner: NodeId) -> Result<Reach, RegionError>;
    fn status() -> Result<Vec<NodeStatus>, RegionError>;
    fn explain(lh: Lh) -> Result<RegionExplained, RegionError>;
    fn explain_peer(node: NodeId) -> Result<PeerExplained, RegionError>;
    fn read_vectored(lh: Lh, offset: u64, into: &mut [IoSliceMut<'_>]) -> Result<(), AccessError>;
    fn write_vectored(lh: Lh, offset: u64, from: &[IoSlice<'_>]) -> Result<(), AccessError>;
    fn read_batch(batch: &mut [ReadOp<'_>]) -> Result<(), BatchError>;
    fn write_batch(batch: &[WriteOp<'_>]) -> Result<(), BatchError>;
    fn read_owned(lh: Lh, offset: u64, into: Vec<u8>) -> (Vec<u8>, Result<(), AccessError>);
    fn write_owned(lh: Lh, offset: u64, from: Vec<u8>) -> (Vec<u8>, Result<(), AccessError>);
    fn fetch_add(lh: Lh, offset: u64, add: u64) -> Result<u64, AccessError>;
    fn compare_swap(lh: Lh, offset: u64, expected: u64, new: u64) -> Result<u64, AccessError>;
    fn compare_swap_while(lh: Lh, swaps: &[SwapOp]) -> Result<usize, BatchError>;
    fn wait_until(lh: Lh, offset: u64, is_reached: impl FnMut(u64) -> bool) -> Result<u64, AccessError>;
    fn write_notify(lh: Lh, offset: u64, from: &[u8], value: u64) -> Result<(), NotifyError>;
    fn call(node: NodeId, function: Function, input: &[u8], timeout: Duration) -> Result<Vec<u8>, CallError>;
    fn call_into(node: NodeId, function: Function, input: &[u8], output: &mut [u8], timeout: Duration) -> Result<usize, CallError>;
    fn call_many(nodes: &[NodeId], function: Function, input: &[u8], timeout: Duration) -> Vec<Result<Vec<u8>, CallError>>;
    fn call_named(name: &str, input: &[u8], timeout: Duration) -> Result<Vec<u8>, NamedCallError>;
    fn servers(name: Option<&str>) -> Result<Vec<NamedServer>, RegionError>;
    fn send(node: NodeId, port: Port, bytes: &[u8]) -> Result<(), SendError>;
    fn try_send(node: NodeId, port: Port, bytes: &[u8]) -> Result<(), SendError>;
    fn unlock(name: &str) -> Result<(), LockError>;
    fn create_lock(name: &str, everyone: Permissions) -> Result<(), LockError>;
    fn grant_lock(name: &str, who: Who, permissions: Permissions) -> Result<(), LockError>;
    fn revoke_lock(name: &str, who: Who, permissions: Permissions) -> Result<(), LockError>;
    fn free_lock(name: &str) -> Result<(), LockError>;
    fn barrier(name: &str, participants: u32, timeout: Duration) -> Result<u64, BarrierError>;
    fn create_barrier(name: &str, everyone: Permissions) -> Result<(), BarrierError>;
    fn grant_barrier(name: &str, who: Who, permissions: Permissions) -> Result<(), BarrierError>;
    fn revoke_barrier(name: &str, who: Who, permissions: Permissions) -> Result<(), BarrierError>;
    fn free_barrier(name: &str) -> Result<(), BarrierError>;
}

methods! { Session, [&] self, plain:
    fn len(lh: Lh) -> Result<u64, AccessError>;
    fn check_lock(name: &str) -> Result<(), LockError>;
}

copying! {
    into.len() => fn read(lh: Lh, offset: u64, into: &mut [u8]) -> Result<(), AccessError>;
    from.len() => fn write(lh: Lh, offset: u64, from: &[u8]) -> Result<(), AccessError>;
    len => fn fill(lh: Lh, offset: u64, len: u64, byte: u8) -> Result<(), AccessError>;
    len => fn copy(to: Lh, to_offset: u64, from: Lh, from_offset: u64, len: u64) -> Result<(), CopyError>;
}

/// Methods that return servers, mailboxes and senders.
impl Session {
    /// Serves a function, as [`halite::Session::serve`] does.
    pub fn serve(&self, function: Function, options: ServeOptions) -> Result<Server, ServeError> {
        self.0.serve(function, options).map(Server)
    }

    /// Serves calls by name, as [`halite::Session::serve_named`] does.
    pub fn serve_named(&self, name: &str, options: ServeOptions) -> Result<Server, ServeError> {
        match is_simulated() {
            true => wait(self.as_async().serve_named(name, options)).map(|server| Server(server.into())),
            false => self.0.serve_named(name, options).map(Server),
        }
    }

    /// Opens a port, as [`halite::Session::open_port`] does.
    pub fn open_port(&self, port: Port, options: ServeOptions) -> Result<Mailbox, ServeError> {
        self.0.open_port(port, options).map(Mailbox)
    }

    /// Creates a sender to a port, as [`halite::Session::sender`] does.
    pub fn sender(&self, node: NodeId, port: Port) -> Sender {
        Sender(match is_simulated() {
            true => Async(self.as_async().sender(node, port)),
            false => Blocking(self.0.sender(node, port)),
        })
    }

    opening! {
        fn post_call(node: NodeId, function: Function, input: &[u8], answer_bytes_max: usize, timeout: Duration) -> Result<PendingCall, CallError>;
        fn watch(lh: Lh) -> Result<Watch, RegionError>;
        fn lock(name: &str) -> Result<Guard, LockError>;
        fn try_lock(name: &str) -> Result<Guard, LockError>;
        fn lock_within(name: &str, timeout: Duration) -> Result<Guard, LockError>;
    }

    /// Posts calls together, as [`halite::Session::post_calls`] does.
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
            return wait(posting).into_iter().map(|call| call.map(|call| PendingCall(Async(call)))).collect();
        }
        let posted = self.0.post_calls(node, function, inputs, answer_bytes_max, timeout).into_iter();
        posted.map(|call| call.map(|call| PendingCall(Blocking(call)))).collect()
    }
}

/// Waits for a future, drives the node of `session` meanwhile, and returns the result.
pub fn block_on<F: Future>(session: &halite::Session, future: F) -> F::Output {
    if is_simulated() { wait(future) } else { session.blocking().block_on(future) }
}

methods! { PendingCall, [] self, waiting:
    fn answer() -> Result<Vec<u8>, CallError>;
    fn answer_into(output: &mut [u8]) -> Result<usize, CallError>;
    fn lend_answer() -> Result<Answer, CallError>;
}

methods! { Sender, [&mut] self, waiting:
    fn send(bytes: &[u8]) -> Result<(), SendError>;
    fn flush() -> Result<(), SendError>;
}

methods! { Guard, [&] self, immediate:
    fn token() -> u64;
    fn recovered() -> bool;
    fn check() -> Result<(), LockError>;
}

methods! { Guard, [] self, immediate:
    fn keep() -> u64;
}

methods! { Guard, [] self, waiting:
    fn unlock() -> Result<(), LockError>;
}

methods! { Watch, [&] self, waiting:
    fn recv() -> Result<Notification, RegionError>;
}

methods! { Watch, [&] self, immediate:
    fn try_recv() -> Result<Option<Notification>, RegionError>;
}

methods! { Server, [&] self, either:
    fn recv() -> Result<Call, ServeError>;
    fn reply_and_recv(call: Call, output: &[u8]) -> Result<Call, ServeError>;
    fn recv_many(max: usize) -> Result<Vec<Call>, ServeError>;
}

methods! { Server, [&] self, plain:
    fn try_recv() -> Result<Option<Call>, ServeError>;
    fn close() -> ();
}

impl Server {
    /// Returns the wrapped server, for use in tasks.
    pub fn as_async(&self) -> &halite::Server {
        self.0.as_async()
    }

    /// Answers several calls together, as [`halite::Server::reply_all`] does.
    pub fn reply_all<O: AsRef<[u8]>>(
        &self,
        answers: impl IntoIterator<Item = (Call, O)>,
    ) -> Vec<Result<(), ReplyError>> {
        self.0.reply_all(answers)
    }
}

methods! { Mailbox, [&] self, either:
    fn recv() -> Result<Message, ServeError>;
}

methods! { Mailbox, [&] self, plain:
    fn try_recv() -> Result<Option<Message>, ServeError>;
    fn close() -> ();
}
