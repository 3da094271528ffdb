//! The server's side of calls: functions, and the calls that they receive.

use std::fmt;
use std::iter::once;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use halite_tier::access::Count;
use halite_tier::ids::NodeId;
use halite_tier::rpc::{Status, Target};

use super::named::Registration;
use crate::driver::Driver;
use crate::driver::fetch::fetch;
use crate::error::{ReplyCause, ReplyError, ServeCause, ServeError};
use crate::rpc::{
    Answered, BATCH_MAX, Bytes, Closed, EndedService, Incoming, Link, Payload, ReplyTo, ServeOptions,
    Service, ServiceId, Taken,
};
use crate::session::attached::wire::Request;
use crate::session::calls::served::{RemoteIncoming, RemoteServer};
use crate::session::{Embedded, Session, embedded};

/// The number of a function at a node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Function(pub u32);

impl Function {
    /// Lowest number of the functions that have [names](Session::serve_named).
    pub(super) const NAMED_MIN: u32 = 1 << 31;
}

/// A served function. Clones receive calls of the same function. Dropping the last clone ends the function, and fails
/// the calls that still wait for a handler.
///
/// ```
/// # use halite::{Config, Function, Node, NodeId, ServeOptions};
/// # use std::time::Duration;
/// # let dir = std::env::temp_dir().join(format!("halite-doc-server-{}", std::process::id()));
/// # let node = Node::embedded(Config { dir: dir.clone(), node: Some(NodeId(0)), ..Config::default() })?;
/// let session = node.blocking_session();
/// let server = session.serve(Function(7), ServeOptions::default())?;
/// std::thread::scope(|scope| {
///     scope.spawn(move || {
///         let call = server.recv().expect("the server is open");
///         let shout = call.input().to_ascii_uppercase();
///         call.reply(&shout).expect("the caller waits");
///     });
///     let answer = session.call(NodeId(0), Function(7), b"salt", Duration::from_secs(10))?;
///     assert_eq!(answer, b"SALT");
///     Ok::<(), halite::CallError>(())
/// })?;
/// # drop(node);
/// # std::fs::remove_dir_all(dir)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Server {
    serving: Serving,
}

#[derive(Clone)]
enum Serving {
    Local(LocalServer),
    /// The node of an attached session serves the function.
    Remote(Arc<RemoteServer>),
}

/// A function that this process's node serves.
struct LocalServer {
    receiver: Receiver,
    /// The registered name; `None` if the function has only a number.
    name: Option<Arc<Registration>>,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.serving {
            Serving::Local(server) => f.debug_tuple("Server").field(&server.receiver.service.id).finish(),
            Serving::Remote(server) => f.debug_tuple("Server").field(server).finish(),
        }
    }
}

impl Clone for LocalServer {
    fn clone(&self) -> LocalServer {
        LocalServer { receiver: self.receiver.join(), name: self.name.clone() }
    }
}

impl Server {
    pub(super) fn named(receiver: Receiver, name: Registration) -> Server {
        Server { serving: Serving::Local(LocalServer { receiver, name: Some(Arc::new(name)) }) }
    }

    pub(super) fn remote(server: RemoteServer) -> Server {
        Server { serving: Serving::Remote(Arc::new(server)) }
    }

    /// Waits for the next call. If the future is dropped, the call stays for other receivers.
    pub async fn recv(&self) -> Result<Call, ServeError> {
        match &self.serving {
            Serving::Local(server) => server.receiver.recv().await.map(|accepted| server.call(accepted)),
            Serving::Remote(server) => server.recv().await.map(Call::remote),
        }
    }

    /// Returns the next call, or `None` if none is queued. Also returns `None` if the next call's long input must first
    /// be read from its caller's memory; [`Server::recv`] reads it and returns that call.
    pub fn try_recv(&self) -> Result<Option<Call>, ServeError> {
        match &self.serving {
            Serving::Local(server) => Ok(server.receiver.try_recv()?.map(|accepted| server.call(accepted))),
            Serving::Remote(server) => Ok(server.try_recv()?.map(Call::remote)),
        }
    }

    /// Waits for a call, and returns it with the calls queued behind it, in order: at least one call and at most `max`.
    /// A call whose long input must be read from its caller's memory is returned alone, or as the first.
    ///
    /// Use this for short handlers, together with [`Server::reply_all`]: none of the returned calls is answered before
    /// all of them have been handled.
    pub async fn recv_many(&self, max: usize) -> Result<Vec<Call>, ServeError> {
        match &self.serving {
            Serving::Local(server) => {
                let first = server.receiver.recv().await?;
                Ok(server.calls(first, max))
            }
            Serving::Remote(server) => {
                Ok(server.recv_many(max).await?.into_iter().map(Call::remote).collect())
            }
        }
    }

    /// Answers calls, once `answers` is exhausted. Returns the results in order, each as [`Call::reply`] returns it; an
    /// answer that fails does not affect the others. If `answers` panics, all these calls fail at their callers.
    ///
    /// Consecutive answers to the same node are posted up to 16 at a time, at much lower cost, if they have up to about
    /// 500 bytes each.
    pub fn reply_all<O: AsRef<[u8]>>(
        &self,
        answers: impl IntoIterator<Item = (Call, O)>,
    ) -> Vec<Result<(), ReplyError>> {
        let answers: Vec<_> = answers.into_iter().collect();
        let mut results = Vec::with_capacity(answers.len());
        let mut here = Vec::new();
        for (call, output) in answers {
            match call.state {
                State::Local(call) => here.push((call, output)),
                // An attached session has no other calls.
                State::Remote(call) => results.push(call.reply(output.as_ref())),
            }
        }
        for of_link in here.chunk_by_mut(|(one, _), (next, _)| Arc::ptr_eq(one.link(), next.link())) {
            of_link.chunks_mut(BATCH_MAX).for_each(|batch| answer_batch(batch, &mut results));
        }
        results
    }

    /// Answers one call, then waits for the next call and returns it.
    pub async fn reply_and_recv(&self, call: Call, output: &[u8]) -> Result<Call, ServeError> {
        let server = match &self.serving {
            Serving::Local(server) => server,
            Serving::Remote(server) => {
                call.reply_later(output);
                return server.recv().await.map(Call::remote);
            }
        };
        let session = server.reply_first(call, output);
        let accepted = server.receiver.recv().await?;
        Ok(Call::new(session, accepted))
    }

    /// Returns the number of a function that this process's node serves.
    pub(crate) fn number(&self) -> Option<u32> {
        match &self.serving {
            Serving::Local(server) => match server.receiver.service.id {
                ServiceId::Function(number) => Some(number),
                ServiceId::Port(_) => None,
            },
            Serving::Remote(_) => None,
        }
    }

    /// Returns true if a call of `caller` may go to a waiting receiver past the queue: the queue is empty, and no rule
    /// of the function or of the node concerns the call.
    pub(crate) fn lets_pass(&self, caller: &Embedded) -> bool {
        let Serving::Local(server) = &self.serving else { return false };
        let (service, shared) = (&server.receiver.service, &server.receiver.driver().shared);
        !service.is_waiting()
            && !service.has_ended()
            && service.admits(&caller.inner.principal)
            && !shared.rpc.server.is_draining()
            && !shared.shaping.is_active()
    }

    /// Ends the function for all clones of this server. Later `recv`s and calls fail.
    pub fn close(&self) {
        match &self.serving {
            Serving::Local(server) => {
                if let Some(name) = &server.name {
                    name.end();
                }
                server.receiver.close();
            }
            Serving::Remote(server) => server.close(),
        }
    }

    #[inline]
    pub(crate) fn recv_blocking(&self) -> Result<Call, ServeError> {
        match &self.serving {
            Serving::Local(server) => server.receiver.recv_blocking().map(|accepted| server.call(accepted)),
            Serving::Remote(server) => server.recv_blocking().map(Call::remote),
        }
    }

    #[inline]
    pub(crate) fn reply_and_recv_blocking(&self, call: Call, output: &[u8]) -> Result<Call, ServeError> {
        let server = match &self.serving {
            Serving::Local(server) => server,
            Serving::Remote(server) => {
                return match call.state {
                    State::Remote(call) => server.reply_and_recv_blocking(call, output),
                    State::Local(mut call) => {
                        drop(call.answer(output));
                        server.recv_blocking()
                    }
                }
                .map(Call::remote);
            }
        };
        let session = server.reply_first(call, output);
        let accepted = server.receiver.recv_blocking()?;
        Ok(Call::new(session, accepted))
    }

    pub(crate) fn recv_many_blocking(&self, max: usize) -> Result<Vec<Call>, ServeError> {
        match &self.serving {
            Serving::Local(server) => {
                let first = server.receiver.recv_blocking()?;
                Ok(server.calls(first, max))
            }
            Serving::Remote(server) => server.block_on(self.recv_many(max)),
        }
    }
}

impl LocalServer {
    /// Returns the first call, and the calls queued behind it, at most `max` in all.
    fn calls(&self, first: Box<Incoming>, max: usize) -> Vec<Call> {
        let batch = self.receiver.service.take_batch(max.saturating_sub(1));
        once(first).chain(batch).map(|incoming| self.call(incoming)).collect()
    }

    /// Answers a call. Returns its session for the next call, because another clone of the session takes two locked
    /// instructions.
    #[inline]
    fn reply_first(&self, call: Call, output: &[u8]) -> Embedded {
        let State::Local(mut call) = call.state else {
            // A call of another session, which is attached to a node.
            call.reply_later(output);
            return self.receiver.session.clone();
        };
        // The next call is served even if the caller of this one is gone.
        let (session, _) = call.answer(output);
        let is_ours = Arc::ptr_eq(&session.inner, &self.receiver.session.inner);
        if is_ours { session } else { self.receiver.session.clone() }
    }

    #[inline]
    fn call(&self, accepted: Box<Incoming>) -> Call {
        Call::new(self.receiver.session.clone(), accepted)
    }
}

/// A call to answer. If it is dropped without an answer, the call fails at its caller.
pub struct Call {
    state: State,
}

enum State {
    Local(LocalCall),
    /// The node of an attached session has received it.
    Remote(RemoteIncoming),
}

/// A call that this process's node has received.
struct LocalCall {
    /// The session; `None` once the call is answered.
    session: Option<Embedded>,
    incoming: ServedRequest,
}

/// A request that is being served. Its memory is reused after the drop.
struct ServedRequest(Option<Box<Incoming>>);

impl Deref for ServedRequest {
    type Target = Incoming;

    #[inline]
    fn deref(&self) -> &Incoming {
        self.0.as_ref().expect("the request is present until the drop")
    }
}

impl Drop for ServedRequest {
    #[inline]
    fn drop(&mut self) {
        if let Some(incoming) = self.0.take() {
            incoming.recycle();
        }
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call")
            .field("node", &self.node())
            .field("principal", &self.caller())
            .field("len", &self.input().len())
            .finish()
    }
}

impl Call {
    #[inline]
    fn new(session: Embedded, incoming: Box<Incoming>) -> Call {
        let bytes = incoming.input.as_slice().len() as u64;
        session.inner.path.count_one(Count::CallsReceived, Count::CallBytesReceived, bytes);
        Call {
            state: State::Local(LocalCall {
                session: Some(session),
                incoming: ServedRequest(Some(incoming)),
            }),
        }
    }

    fn remote(incoming: RemoteIncoming) -> Call {
        Call { state: State::Remote(incoming) }
    }

    /// Answers the call. For an attached session, does not wait for the node's reply.
    fn reply_later(self, output: &[u8]) {
        match self.state {
            State::Local(mut call) => drop(call.answer(output)),
            State::Remote(call) => call.reply_later(output),
        }
    }

    /// Returns the caller's input.
    pub fn input(&self) -> &[u8] {
        match &self.state {
            State::Local(call) => call.incoming.input.as_slice(),
            State::Remote(call) => call.input(),
        }
    }

    /// Drops the input of a call that this process's node has received.
    pub(crate) fn forget_input(&mut self) {
        if let State::Local(LocalCall { incoming: ServedRequest(Some(incoming)), .. }) = &mut self.state {
            drop(incoming.input.take_vec());
        }
    }

    /// Returns the caller's principal.
    pub fn caller(&self) -> &str {
        match &self.state {
            State::Local(call) => &call.incoming.to.caller.principal.0,
            State::Remote(call) => call.caller(),
        }
    }

    /// Returns the caller's node.
    pub fn node(&self) -> NodeId {
        match &self.state {
            State::Local(call) => call.incoming.to.link().node,
            State::Remote(call) => call.node(),
        }
    }

    /// Returns true if the caller still waits. A long handler can stop early when this returns false.
    pub fn is_wanted(&self) -> bool {
        match &self.state {
            State::Local(call) => call.incoming.to.is_wanted(),
            State::Remote(call) => call.is_wanted(),
        }
    }

    /// Answers the call, without waiting for the caller.
    #[inline]
    pub fn reply(self, output: &[u8]) -> Result<(), ReplyError> {
        match self.state {
            State::Local(mut call) => call.answer(output).1,
            State::Remote(call) => call.reply(output),
        }
    }
}

impl LocalCall {
    #[inline]
    fn answer(&mut self, output: &[u8]) -> (Embedded, Result<(), ReplyError>) {
        let session = self.session.take().expect("a call is answered once");
        let to = &self.incoming.to;
        let answered = match session.inner.driver.is_forked() {
            true => Answered::Forked,
            false => session.inner.driver.with_calls(|rpc, wakes| rpc.answer(to, output, wakes)),
        };
        (session, self.result_of(answered, output))
    }

    #[inline]
    fn link(&self) -> &Arc<Link> {
        self.incoming.to.link()
    }

    #[inline]
    fn result_of(&self, answered: Answered, output: &[u8]) -> Result<(), ReplyError> {
        let cause = match answered {
            Answered::Sent => return Ok(()),
            Answered::Unwanted => ReplyCause::CallerGone,
            Answered::TooLong => ReplyCause::TooLong { max: u64::from(self.incoming.to.bytes_max) },
            Answered::NoMemory => ReplyCause::NoMemory,
            Answered::Forked => ReplyCause::Forked,
        };
        Err(ReplyError { node: self.incoming.to.link().node, len: output.len() as u64, cause })
    }
}

/// Answers calls that arrived over one link, in a batch.
fn answer_batch<O: AsRef<[u8]>>(batch: &mut [(LocalCall, O)], results: &mut Vec<Result<(), ReplyError>>) {
    let Some(session) = batch.first().and_then(|(call, _)| call.session.clone()) else { return };
    let parts: Vec<_> = batch.iter().map(|(call, output)| (&call.incoming.to, output.as_ref())).collect();
    let answered = match session.inner.driver.is_forked() {
        true => vec![Answered::Forked; parts.len()],
        false => session.inner.driver.with_calls(|rpc, wakes| rpc.answer_batch(&parts, wakes)),
    };
    for ((call, output), answered) in batch.iter_mut().zip(answered) {
        call.session = None;
        results.push(call.result_of(answered, output.as_ref()));
    }
}

impl Drop for LocalCall {
    fn drop(&mut self) {
        if let Some(session) = self.session.take() {
            if session.inner.driver.is_forked() {
                // The request and its link belong to the parent process.
                return std::mem::forget(self.incoming.0.take());
            }
            let to = &self.incoming.to;
            session.inner.driver.with_calls(|rpc, wakes| rpc.refuse(to, Status::Dropped, wakes));
        }
    }
}

/// A receiver of the requests in the queue of a function or port.
pub(super) struct Receiver {
    pub(super) session: Embedded,
    pub(super) service: Arc<Service>,
}

impl Receiver {
    pub(super) fn open(
        session: &Embedded,
        id: ServiceId,
        options: ServeOptions,
    ) -> Result<Receiver, ServeError> {
        let driver = &session.inner.driver;
        if driver.is_forked() {
            return Err(serve_error(id, ServeCause::Forked));
        }
        let owner = session.inner.principal.clone();
        let service = Arc::new(Service::new(id, owner, options));
        let services = &mut driver.shared.peers.write().services;
        // Checked under the lock: a node that leaves first sets this flag, then ends all services in the table.
        if driver.is_closed() {
            return Err(serve_error(id, ServeCause::NodeClosed(session.inner.node)));
        }
        if let Some(known) = services.get(id) {
            let owner = known.owner.to_string();
            return Err(serve_error(id, ServeCause::Taken { owner }));
        }
        services.insert(service.clone());
        Ok(Receiver { session: session.clone(), service })
    }

    #[inline]
    pub(super) fn driver(&self) -> &Driver {
        &self.session.inner.driver
    }

    pub(super) fn join(&self) -> Receiver {
        self.service.join();
        Receiver { session: self.session.clone(), service: self.service.clone() }
    }

    pub(super) async fn recv(&self) -> Result<Box<Incoming>, ServeError> {
        loop {
            self.check_process()?;
            let taken = ReceiveFuture { receiver: self, id: None }.await;
            let taken = taken.map_err(|Closed| self.closed())?;
            if let Some(accepted) = self.accept(taken).await {
                return Ok(accepted);
            }
        }
    }

    /// Receives a request on a thread that drives the node while it waits.
    #[inline]
    pub(super) fn recv_blocking(&self) -> Result<Box<Incoming>, ServeError> {
        let driver = self.driver();
        self.check_process()?;
        if !self.service.is_waiting()
            && !self.service.has_ended()
            && let Some(request) = driver.take_direct(&self.service)
        {
            return Ok(request);
        }
        loop {
            let mut taken = self.service.take_or_poll().map_err(|Closed| self.closed())?;
            let mut has_spun = false;
            if taken.is_none() {
                let (is_done, request) = driver.spin_for(&self.service);
                if let Some(request) = request {
                    if let Some(next) = self.service.stop_polling() {
                        next.wake();
                    }
                    return Ok(request);
                }
                has_spun = !is_done;
                let (found, next) = self.service.take_after_poll();
                if let Some(next) = next {
                    next.wake();
                }
                taken = found.map_err(|Closed| self.closed())?;
            }
            let accepted = match taken {
                Some(taken) => match self.accept_local(taken) {
                    Ok(accepted) => accepted,
                    Err(long) => driver.block_on(self.accept_long(long)),
                },
                None => return driver.block_on_after(has_spun, self.recv()),
            };
            if let Some(accepted) = accepted {
                return Ok(accepted);
            }
        }
    }

    pub(super) fn try_recv(&self) -> Result<Option<Box<Incoming>>, ServeError> {
        self.check_process()?;
        while let Some(taken) = self.service.try_take().map_err(|Closed| self.closed())? {
            let accepted = match self.accept_local(taken) {
                Ok(accepted) => accepted,
                // A read by loads does not wait.
                Err(long) if self.is_within_reach(&long) => self.driver().block_on(self.accept_long(long)),
                Err(long) => {
                    self.requeue(long);
                    return Ok(None);
                }
            };
            if accepted.is_some() {
                return Ok(accepted);
            }
        }
        Ok(None)
    }

    fn is_within_reach(&self, incoming: &Incoming) -> bool {
        match (incoming.to.target(), &incoming.input) {
            (Target::Peer(peer), Payload::Remote { address, .. }) => {
                self.driver().shared.fabric.direct(peer, address.key).is_some()
            }
            _ => false,
        }
    }

    /// Leaves a request to other receivers. Refuses the request if the service has ended.
    fn requeue(&self, incoming: Box<Incoming>) {
        match self.service.requeue(incoming) {
            Ok(Some(waker)) => waker.wake(),
            Ok(None) => {}
            Err(incoming) => {
                self.driver().with_calls(|rpc, wakes| rpc.refuse(&incoming.to, Status::Closed, wakes));
            }
        }
    }

    async fn accept(&self, taken: Taken) -> Option<Box<Incoming>> {
        match self.accept_local(taken) {
            Ok(accepted) => accepted,
            Err(incoming) => self.accept_long(incoming).await,
        }
    }

    /// Accepts a request whose input is on this node. Returns a request with a long input at its sender as an `Err`.
    #[inline]
    fn accept_local(&self, taken: Taken) -> Result<Option<Box<Incoming>>, Box<Incoming>> {
        let Taken { incoming, promoted } = taken;
        if !promoted.is_empty() {
            self.driver().with_calls(|rpc, wakes| rpc.handle_promoted(&self.service, promoted, wakes));
        }
        match incoming {
            Some(long) if matches!(long.input, Payload::Remote { .. }) => Err(long),
            here => Ok(here),
        }
    }

    /// Reads the input of a request from its sender's memory. Returns `None` if the read fails, or if the sender no
    /// longer waits.
    async fn accept_long(&self, incoming: Box<Incoming>) -> Option<Box<Incoming>> {
        let Payload::Remote { address, len } = incoming.input else { unreachable!("the caller checked") };
        let reading = InputRead::begin(self, incoming)?;
        let mut bytes = vec![0; len as usize];
        let fetched = fetch(self.driver(), reading.to().target(), address, &mut bytes).await;
        let mut incoming = reading.end()?;
        match fetched {
            Ok(()) => {
                incoming.input = Payload::Local(Bytes::Long(bytes));
                Some(self.answer_long_message(incoming))
            }
            Err(_) => {
                // A node that leaves ends its posted operations.
                let status = if self.driver().is_closed() { Status::Closed } else { Status::NoMemory };
                self.driver().with_calls(|rpc, wakes| rpc.refuse(&incoming.to, status, wakes));
                None
            }
        }
    }

    /// Answers the sender of a long message. Once its input is read, the sender no longer has to wait.
    fn answer_long_message(&self, mut incoming: Box<Incoming>) -> Box<Incoming> {
        if let ServiceId::Port(_) = self.service.id {
            incoming.answered = true;
            self.driver().with_calls(|rpc, wakes| rpc.answer(&incoming.to, &[], wakes));
        }
        incoming
    }

    /// Fails in a fork of the node's process.
    #[inline]
    fn check_process(&self) -> Result<(), ServeError> {
        if self.driver().is_forked() { Err(self.closed()) } else { Ok(()) }
    }

    pub(super) fn close(&self) {
        if self.driver().is_forked() {
            return;
        }
        if let Some(ended) = self.service.close() {
            self.end(ended);
        }
    }

    fn end(&self, ended: EndedService) {
        self.driver().with_calls(|rpc, wakes| {
            self.driver().shared.peers.write().services.remove(&self.service);
            wakes.extend(ended.wakers);
            for reply in ended.unanswered {
                rpc.refuse(&reply, Status::Closed, wakes);
            }
        });
    }

    fn closed(&self) -> ServeError {
        let driver = self.driver();
        let cause = match driver.is_closed() {
            true => driver.closed_or_forked(ServeCause::NodeClosed(driver.shared.node), ServeCause::Forked),
            false => ServeCause::Closed,
        };
        serve_error(self.service.id, cause)
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        if self.driver().is_forked() {
            return;
        }
        if let Some(ended) = self.service.leave() {
            self.end(ended);
        }
    }
}

pub(super) fn serve_error(id: ServiceId, cause: ServeCause) -> ServeError {
    let what = match id {
        ServiceId::Function(number) => format!("function {number}"),
        ServiceId::Port(number) => format!("port {number}"),
    };
    ServeError { what, cause }
}

struct ReceiveFuture<'r> {
    receiver: &'r Receiver,
    id: Option<u64>,
}

impl Future for ReceiveFuture<'_> {
    type Output = Result<Taken, Closed>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let receiver = self.receiver;
        receiver.service.poll_take(&mut self.id, context)
    }
}

impl Drop for ReceiveFuture<'_> {
    fn drop(&mut self) {
        if self.receiver.driver().is_forked() {
            return;
        }
        let next = self.id.and_then(|id| self.receiver.service.stop_waiting(id));
        if let Some(next) = next {
            next.wake();
        }
    }
}

/// A read of an input, during which a cancel of the call must wait. If the read is dropped early, it requeues the
/// request.
struct InputRead<'r> {
    receiver: &'r Receiver,
    incoming: Option<Box<Incoming>>,
}

impl<'r> InputRead<'r> {
    fn begin(receiver: &'r Receiver, incoming: Box<Incoming>) -> Option<InputRead<'r>> {
        let to = &incoming.to;
        let wanted = to.link().served.begin(to.id);
        wanted.then_some(InputRead { receiver, incoming: Some(incoming) })
    }

    fn to(&self) -> &ReplyTo {
        &self.incoming.as_ref().expect("the request is present until the end").to
    }

    /// Ends the read. Returns `None` if the sender no longer waits.
    fn end(mut self) -> Option<Box<Incoming>> {
        let wanted = self.stop();
        self.incoming.take().filter(|_| wanted)
    }

    fn stop(&self) -> bool {
        let to = self.to();
        let acknowledge = to.link().served.end(to.id, false);
        if acknowledge {
            let driver = self.receiver.driver();
            driver.with_calls(|rpc, _| rpc.acknowledge(to.link(), to.id.slot));
        }
        !acknowledge
    }
}

impl Drop for InputRead<'_> {
    fn drop(&mut self) {
        if self.incoming.is_some() && !self.receiver.driver().is_forked() {
            self.stop();
            let incoming = self.incoming.take().expect("checked just before");
            self.receiver.requeue(incoming);
        }
    }
}

/// Functions that this session's node serves.
impl Session {
    /// Serves a function of this session's node, with a number below 2^31. Fails if the function already has a server.
    pub fn serve(&self, function: Function, options: ServeOptions) -> Result<Server, ServeError> {
        if function.0 >= Function::NAMED_MIN {
            return Err(serve_error(ServiceId::Function(function.0), ServeCause::Reserved));
        }
        let session = embedded!(self, client => {
            let id = ServiceId::Function(function.0);
            let request = Request::Serve { function: function.0, options };
            client.block_on(RemoteServer::open(client, &request, id)).map(Server::remote)
        });
        let receiver = Receiver::open(session, ServiceId::Function(function.0), options)?;
        Ok(Server { serving: Serving::Local(LocalServer { receiver, name: None }) })
    }
}
