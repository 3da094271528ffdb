//! Functions that are served, and calls to functions.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use halite_tier::ids::{NodeId, Principal};
use halite_tier::rpc::{Address, Kind, Look, PAYLOAD_BYTES_MAX, Status};

use super::answer::{Answered, ReplyTo};
use super::error::{CallCause, CallError, ReplyCause, ReplyError, ServeCause, ServeError};
use super::fetch::fetch;
use super::request::{Into, NotPosted, Pending, Reply, Request};
use super::service::{Closed, Incoming, Payload, ServeOptions, Service, ServiceId, Taken};
use crate::driver::Core;
use crate::session::Session;
use crate::wait::lock;

/// The number of a function at a node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Function(pub u32);

/// A function that is served.  Clones are more receivers of the same function; the last one's drop ends it, and callers
/// that still wait for a handler are told.
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
///         let call = server.recv().expect("nobody closes the server");
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
pub struct Server {
    receiver: Receiver,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Server").field(&self.receiver.service.id).finish()
    }
}

impl Clone for Server {
    fn clone(&self) -> Server {
        Server { receiver: self.receiver.join() }
    }
}

impl Server {
    /// The next call.  A future that is dropped leaves it to others.
    pub async fn recv(&self) -> Result<Call, ServeError> {
        self.receiver.recv().await.map(|accepted| self.call(accepted))
    }

    /// The next call if one waits, `None` if none does.  A call whose input must be read from its caller's memory is
    /// left to [`Server::recv`] where that would have to wait.
    pub fn try_recv(&self) -> Result<Option<Call>, ServeError> {
        let accepted = self.receiver.try_recv()?;
        Ok(accepted.map(|accepted| self.call(accepted)))
    }

    /// Answers one call and waits for the next.
    pub async fn reply_and_recv(&self, call: Call, output: &[u8]) -> Result<Call, ServeError> {
        // A caller that has gone is no reason not to serve the next.
        let _ = call.reply(output);
        self.recv().await
    }

    /// Ends the function for all its servers: each `recv` fails from now on, and so do calls.
    pub fn close(&self) {
        self.receiver.close();
    }

    pub(crate) fn recv_blocking(&self) -> Result<Call, ServeError> {
        self.receiver.recv_blocking().map(|accepted| self.call(accepted))
    }

    fn call(&self, accepted: Accepted) -> Call {
        Call {
            session: self.receiver.session.clone(),
            reply: accepted.reply,
            node: accepted.node,
            principal: accepted.principal,
            input: accepted.bytes,
        }
    }
}

/// A call to be answered.  Dropped without an answer, it tells its caller so.
pub struct Call {
    session: Session,
    reply: Option<ReplyTo>,
    node: NodeId,
    principal: Principal,
    input: Vec<u8>,
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Call { node, principal, input, .. } = self;
        f.debug_struct("Call")
            .field("node", node)
            .field("principal", principal)
            .field("len", &input.len())
            .finish()
    }
}

impl Call {
    /// What the caller sent.
    pub fn input(&self) -> &[u8] {
        &self.input
    }

    /// As whom the caller acts.
    pub fn caller(&self) -> &str {
        &self.principal.0
    }

    /// The caller's node.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// Whether the caller still waits: a handler that takes long may ask.
    pub fn is_wanted(&self) -> bool {
        self.reply.as_ref().is_some_and(ReplyTo::is_wanted)
    }

    /// Answers.  Does not wait.
    pub fn reply(mut self, output: &[u8]) -> Result<(), ReplyError> {
        let to = self.reply.take().expect("a call is answered once");
        let max = u64::from(to.bytes_max);
        let answered = self.session.inner.core.with_calls(|rpc, wakes| rpc.answer(to, output, wakes));
        let cause = match answered {
            Answered::Sent => return Ok(()),
            Answered::Unwanted => ReplyCause::CallerGone,
            Answered::TooLong => ReplyCause::TooLong { max },
            Answered::NoMemory => ReplyCause::NoMemory,
        };
        Err(ReplyError { len: output.len() as u64, cause })
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if let Some(to) = self.reply.take() {
            self.session.inner.core.with_calls(|rpc, wakes| rpc.refuse(to, Status::Dropped, wakes));
        }
    }
}

/// One end of a queue of requests, of a function or a port.
pub(super) struct Receiver {
    pub(super) session: Session,
    pub(super) service: Arc<Service>,
}

/// A request whose input is here.
pub(super) struct Accepted {
    pub(super) reply: Option<ReplyTo>,
    pub(super) node: NodeId,
    pub(super) principal: Principal,
    pub(super) bytes: Vec<u8>,
}

impl Receiver {
    pub(super) fn open(
        session: &Session,
        id: ServiceId,
        options: ServeOptions,
    ) -> Result<Receiver, ServeError> {
        let core = &session.inner.core;
        if core.is_closed() {
            return Err(serve_error(id, ServeCause::NodeClosed));
        }
        let owner = session.inner.principal.clone();
        let service = Arc::new(Service::new(id, owner, options));
        let services = &mut core.ground.rpc.routes_mut().services;
        if let Some(known) = services.get(id) {
            let owner = known.owner.to_string();
            return Err(serve_error(id, ServeCause::Taken { owner }));
        }
        services.insert(service.clone());
        Ok(Receiver { session: session.clone(), service })
    }

    pub(super) fn core(&self) -> &Core {
        &self.session.inner.core
    }

    pub(super) fn join(&self) -> Receiver {
        self.service.join();
        Receiver { session: self.session.clone(), service: self.service.clone() }
    }

    pub(super) async fn recv(&self) -> Result<Accepted, ServeError> {
        loop {
            let taken = Receiving { receiver: self, id: None }.await;
            let taken = taken.map_err(|Closed| self.closed())?;
            if let Some(accepted) = self.accept(taken).await {
                return Ok(accepted);
            }
        }
    }

    /// As `recv`, on a thread that helps to move the node forward.
    pub(super) fn recv_blocking(&self) -> Result<Accepted, ServeError> {
        let core = self.core();
        loop {
            let mut taken = self.service.take_or_look().map_err(|Closed| self.closed())?;
            if taken.is_none() {
                core.spin_until(|| self.service.is_waiting());
                let (found, heir) = self.service.take_after_look();
                if let Some(heir) = heir {
                    heir.wake();
                }
                taken = found.map_err(|Closed| self.closed())?;
            }
            let accepted = match taken {
                Some(taken) => match self.accept_here(taken) {
                    Ok(accepted) => accepted,
                    Err(long) => core.block_on(self.accept_long(long)),
                },
                None => return core.block_on(self.recv()),
            };
            if let Some(accepted) = accepted {
                return Ok(accepted);
            }
        }
    }

    pub(super) fn try_recv(&self) -> Result<Option<Accepted>, ServeError> {
        let taken = self.service.try_take().map_err(|Closed| self.closed())?;
        let Some(taken) = taken else { return Ok(None) };
        match self.accept_here(taken) {
            Ok(accepted) => Ok(accepted),
            Err(incoming) => {
                if let Some(waker) = self.service.put_back(incoming) {
                    waker.wake();
                }
                Ok(None)
            }
        }
    }

    async fn accept(&self, taken: Taken) -> Option<Accepted> {
        match self.accept_here(taken) {
            Ok(accepted) => accepted,
            Err(incoming) => self.accept_long(incoming).await,
        }
    }

    /// Accepts a request whose input is here; hands others back.
    fn accept_here(&self, taken: Taken) -> Result<Option<Accepted>, Incoming> {
        let Taken { incoming, granted } = taken;
        if !granted.is_empty() {
            self.core().with_calls(|rpc, wakes| rpc.grant(granted, wakes));
        }
        let Incoming { reply, node, principal, input } = incoming;
        match input {
            Payload::Here(bytes) => Ok(Some(Accepted { reply, node, principal, bytes })),
            input => Err(Incoming { reply, node, principal, input }),
        }
    }

    /// Reads the input of a request out of its sender's memory.  `None` if it is not wanted any more.
    async fn accept_long(&self, incoming: Incoming) -> Option<Accepted> {
        let Payload::There { address, len } = incoming.input else { unreachable!("the caller looked") };
        let reading = Reading::begin(self, incoming)?;
        let mut bytes = vec![0; len as usize];
        let fetched = fetch(self.core(), reading.reply().target(), address, &mut bytes).await;
        let Incoming { reply, node, principal, .. } = reading.end()?;
        match fetched {
            Ok(()) => Some(self.accepted_long(Accepted { reply, node, principal, bytes })),
            Err(_) => {
                let to = reply.expect("a long request is not answered before it was read");
                self.core().with_calls(|rpc, wakes| rpc.refuse(to, Status::NoMemory, wakes));
                None
            }
        }
    }

    /// The sender of a long message need not wait any longer.
    fn accepted_long(&self, mut accepted: Accepted) -> Accepted {
        if let ServiceId::Port(_) = self.service.id {
            let to = accepted.reply.take().expect("a long message is not answered before it was read");
            self.core().with_calls(|rpc, wakes| rpc.answer(to, &[], wakes));
        }
        accepted
    }

    pub(super) fn close(&self) {
        if let Some(ended) = self.service.close() {
            self.end(ended);
        }
    }

    fn end(&self, ended: super::service::Ended) {
        self.core().with_calls(|rpc, wakes| {
            rpc.routes_mut().services.remove(&self.service);
            wakes.extend(ended.wakers);
            for reply in ended.unanswered {
                rpc.refuse(reply, Status::Closed, wakes);
            }
        });
    }

    fn closed(&self) -> ServeError {
        let cause = if self.core().is_closed() { ServeCause::NodeClosed } else { ServeCause::Closed };
        serve_error(self.service.id, cause)
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        if let Some(ended) = self.service.leave() {
            self.end(ended);
        }
    }
}

fn serve_error(id: ServiceId, cause: ServeCause) -> ServeError {
    let what = match id {
        ServiceId::Function(number) => format!("function {number}"),
        ServiceId::Port(number) => format!("port {number}"),
    };
    ServeError { what, cause }
}

/// Waits for a request.
struct Receiving<'r> {
    receiver: &'r Receiver,
    id: Option<u64>,
}

impl Future for Receiving<'_> {
    type Output = Result<Taken, Closed>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let receiver = self.receiver;
        receiver.service.poll_take(&mut self.id, context)
    }
}

impl Drop for Receiving<'_> {
    fn drop(&mut self) {
        let heir = self.id.and_then(|id| self.receiver.service.stop_waiting(id));
        if let Some(heir) = heir {
            heir.wake();
        }
    }
}

/// An input that is being read: until then a cancel of its call must wait.  Dropped half way, the request goes back.
struct Reading<'r> {
    receiver: &'r Receiver,
    incoming: Option<Incoming>,
}

impl<'r> Reading<'r> {
    fn begin(receiver: &'r Receiver, incoming: Incoming) -> Option<Reading<'r>> {
        let reply = incoming.reply.as_ref().expect("a long request is not answered before it was read");
        let wanted = lock(&reply.link.inbound).served.begin(reply.slot);
        wanted.then_some(Reading { receiver, incoming: Some(incoming) })
    }

    fn reply(&self) -> &ReplyTo {
        let incoming = self.incoming.as_ref().expect("it is taken at the end");
        incoming.reply.as_ref().expect("a long request is not answered before it was read")
    }

    /// It has been read; `None` if it is not wanted any more.
    fn end(mut self) -> Option<Incoming> {
        let wanted = self.stop();
        self.incoming.take().filter(|_| wanted)
    }

    fn stop(&self) -> bool {
        let reply = self.reply();
        let acknowledge = lock(&reply.link.inbound).served.end(reply.slot, false);
        if acknowledge {
            let core = self.receiver.core();
            core.with_calls(|rpc, wakes| rpc.acknowledge(&reply.link, reply.slot, wakes));
        }
        !acknowledge
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        if self.incoming.is_some() {
            self.stop();
            let incoming = self.incoming.take().expect("looked at just before");
            if let Some(waker) = self.receiver.service.put_back(incoming) {
                waker.wake();
            }
        }
    }
}

/// Calls.
impl Session {
    /// Serves a function of this session's node.  Nobody else can at the same time.
    pub fn serve(&self, function: Function, options: ServeOptions) -> Result<Server, ServeError> {
        let receiver = Receiver::open(self, ServiceId::Function(function.0), options)?;
        Ok(Server { receiver })
    }

    /// Calls a function and returns its answer.  After `timeout` there is none, and if one comes later it is dropped.
    pub async fn call(
        &self,
        node: NodeId,
        function: Function,
        input: &[u8],
        timeout: Duration,
    ) -> Result<Vec<u8>, CallError> {
        let mut output = Vec::new();
        let calling = Calling::new(self, node, function, input, timeout).unlimited();
        calling.run(Into::Vec(&mut output)).await?;
        Ok(output)
    }

    /// As [`Session::call`], with an answer of at most as many bytes as `output` has.  Returns how many it has.
    pub async fn call_into(
        &self,
        node: NodeId,
        function: Function,
        input: &[u8],
        output: &mut [u8],
        timeout: Duration,
    ) -> Result<usize, CallError> {
        let calling = Calling::new(self, node, function, input, timeout).limited(output.len());
        calling.run(Into::Slice(output)).await
    }

    /// Calls the same function at several nodes at once; answers are in the order of `nodes`.
    pub async fn call_many(
        &self,
        nodes: &[NodeId],
        function: Function,
        input: &[u8],
        timeout: Duration,
    ) -> Vec<Result<Vec<u8>, CallError>> {
        let mut pending = Vec::with_capacity(nodes.len());
        for node in nodes {
            let mut calling = Calling::new(self, *node, function, input, timeout).unlimited();
            calling.start();
            let posted = calling.post().await;
            pending.push((calling, posted));
        }
        let mut answers = Vec::with_capacity(nodes.len());
        for (calling, posted) in pending {
            let mut output = Vec::new();
            let answer = match posted {
                Ok(pending) => calling.finish(pending, Into::Vec(&mut output)).await,
                Err(error) => Err(error),
            };
            answers.push(answer.map(|_| output));
        }
        answers
    }
}

/// A call that is being made.
pub(crate) struct Calling<'a> {
    session: &'a Session,
    node: NodeId,
    request: Request<'a>,
    timeout_ns: u64,
}

impl<'a> Calling<'a> {
    pub(crate) fn new(
        session: &'a Session,
        node: NodeId,
        function: Function,
        input: &'a [u8],
        timeout: Duration,
    ) -> Calling<'a> {
        let timeout_ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        let request = Request {
            kind: Kind::Call,
            number: function.0,
            principal: &session.inner.principal,
            input,
            reply_bytes_max: 0,
            reply_in_place: false,
            deadline_ns: u64::MAX,
        };
        Calling { session, node, request, timeout_ns }
    }

    /// Takes an answer of any length; a long one is fetched.
    pub(crate) fn unlimited(mut self) -> Calling<'a> {
        self.request.reply_bytes_max = PAYLOAD_BYTES_MAX as u32;
        self
    }

    /// Takes an answer of at most `len` bytes, which is written straight to this node.
    pub(crate) fn limited(mut self, len: usize) -> Calling<'a> {
        self.request.reply_bytes_max = len.min(PAYLOAD_BYTES_MAX as usize) as u32;
        self.request.reply_in_place = true;
        self
    }

    /// From now on the time runs.
    fn start(&mut self) {
        self.request.deadline_ns = self.session.inner.core.now_ns().saturating_add(self.timeout_ns);
    }

    pub(crate) async fn run(mut self, into: Into<'_>) -> Result<usize, CallError> {
        self.start();
        let pending = self.post().await?;
        self.finish(pending, into).await
    }

    /// As `run`, on a thread that helps to move the node forward: what needs no waiting takes no waker, nor the clock.
    pub(crate) fn run_blocking(mut self, mut into: Into<'_>) -> Result<usize, CallError> {
        let core: &'a Core = &self.session.inner.core;
        let seen = core.ground.rpc.arrivals();
        let Some(mut pending) = self.try_post() else { return core.block_on(self.run(into)) };
        let mut seen = seen;
        while core.spin_until(|| core.ground.rpc.arrivals() != seen) {
            seen = core.ground.rpc.arrivals();
            match pending.try_take(into.reborrow()) {
                Err(Look::Waiting) => {}
                Err(look) => return Err(self.failed(self.ended(look))),
                Ok(Reply::DoneAt(len, address)) => {
                    return core.block_on(self.fetch_output(&mut pending, len, address, into));
                }
                Ok(reply) => return self.output_of(reply),
            }
        }
        // The time runs from the end of the spin, which is short.
        self.start();
        pending.set_deadline(self.request.deadline_ns);
        core.block_on(self.finish(pending, into))
    }

    async fn post(&self) -> Result<Pending<'a>, CallError> {
        let core: &'a Core = &self.session.inner.core;
        let posted = core.post_request(self.node, &self.request).await;
        posted.map_err(|failure| self.failed(failure.into()))
    }

    /// As `post`, where that needs no waiting.
    pub(crate) fn try_post(&self) -> Option<Pending<'a>> {
        let core: &'a Core = &self.session.inner.core;
        core.try_post_request(self.node, &self.request).ok()
    }

    pub(crate) async fn finish(&self, mut pending: Pending<'a>, into: Into<'_>) -> Result<usize, CallError> {
        match pending.answered().await {
            Look::Replied => self.take(&mut pending, into).await,
            look => Err(self.failed(self.ended(look))),
        }
    }

    /// Takes an answer that has come.
    pub(crate) async fn take(
        &self,
        pending: &mut Pending<'a>,
        mut into: Into<'_>,
    ) -> Result<usize, CallError> {
        match pending.take(into.reborrow()) {
            Reply::DoneAt(len, address) => self.fetch_output(pending, len, address, into).await,
            reply => self.output_of(reply),
        }
    }

    fn output_of(&self, reply: Reply) -> Result<usize, CallError> {
        match reply {
            Reply::Done(len) => Ok(len),
            Reply::Refused(status) => Err(self.failed(self.refused(status))),
            Reply::DoneAt(..) | Reply::NotUnderstood => Err(self.failed(CallCause::NotUnderstood)),
        }
    }

    /// Reads a long answer out of the memory of the server's node.
    async fn fetch_output(
        &self,
        pending: &mut Pending<'a>,
        len: usize,
        address: Address,
        mut into: Into<'_>,
    ) -> Result<usize, CallError> {
        let core = &self.session.inner.core;
        let target = into.prepare(len).ok_or_else(|| self.failed(CallCause::NotUnderstood))?;
        let fetched = fetch(core, pending.target(), address, target).await;
        fetched.map_err(|_| self.failed(CallCause::PeerDown))?;
        Ok(len)
    }

    pub(crate) fn ended(&self, look: Look) -> CallCause {
        match look {
            _ if self.session.inner.core.is_closed() => CallCause::NodeClosed,
            Look::Overdue => CallCause::Timeout,
            _ => CallCause::PeerDown,
        }
    }

    fn refused(&self, status: Status) -> CallCause {
        match status {
            Status::Unknown => CallCause::UnknownFunction,
            Status::Busy => CallCause::Busy,
            Status::Denied => CallCause::PermissionDenied,
            Status::TooLong(len) => {
                let max = u64::from(self.request.reply_bytes_max);
                CallCause::ReplyTooLong { len: u64::from(len), max }
            }
            Status::Dropped => CallCause::NoReply,
            Status::Closed => CallCause::ServerClosed,
            Status::NoMemory => CallCause::NoMemory,
            Status::Done(_) | Status::DoneAt(_) | Status::WouldBlock | Status::Granted(_) => {
                CallCause::NotUnderstood
            }
        }
    }

    pub(crate) fn failed(&self, cause: CallCause) -> CallError {
        CallError { node: self.node, function: self.request.number, cause }
    }
}

/// Why a request could not be posted, however long was waited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PostFailure {
    UnknownNode,
    PeerDown,
    Timeout,
    TooLong { len: u64 },
    NoMemory,
    TooManyCalls,
    NodeClosed,
}

impl From<PostFailure> for CallCause {
    fn from(failure: PostFailure) -> CallCause {
        match failure {
            PostFailure::UnknownNode => CallCause::UnknownNode,
            PostFailure::PeerDown => CallCause::PeerDown,
            PostFailure::Timeout => CallCause::Timeout,
            PostFailure::TooLong { len } => CallCause::InputTooLong { len },
            PostFailure::NoMemory => CallCause::NoMemory,
            PostFailure::TooManyCalls => CallCause::TooManyCalls,
            PostFailure::NodeClosed => CallCause::NodeClosed,
        }
    }
}

impl Core {
    /// Posts a request as soon as there is room for it.
    pub(crate) async fn post_request(
        &self,
        node: NodeId,
        request: &Request<'_>,
    ) -> Result<Pending<'_>, PostFailure> {
        loop {
            // Read before the attempt, so that room that is made during it is not missed.
            let seen = self.ground.posted.progress_count();
            match self.try_post_request(node, request) {
                Err(None) => {}
                Err(Some(failure)) => return Err(failure),
                Ok(pending) => return Ok(pending),
            }
            if self.now_ns() >= request.deadline_ns {
                return Err(PostFailure::Timeout);
            }
            self.ground.rpc.set_hungry();
            self.with(|machine, now| machine.note_full(now));
            self.ground.posted.progress_after(seen).await;
        }
    }

    /// Why a node has no link; `None` if it will have one.
    #[cold]
    fn absence_of(&self, node: NodeId) -> Option<PostFailure> {
        self.look(|machine| match machine.is_connected_to(node) {
            true => None,
            false if machine.knows(node) => Some(PostFailure::PeerDown),
            false => Some(PostFailure::UnknownNode),
        })
    }

    /// Posts a request.  `Err(None)` if there is no room for it now.
    fn try_post_request(
        &self,
        node: NodeId,
        request: &Request<'_>,
    ) -> Result<Pending<'_>, Option<PostFailure>> {
        let len = request.input.len() as u64;
        if len > PAYLOAD_BYTES_MAX {
            return Err(Some(PostFailure::TooLong { len }));
        }
        if self.is_closed() {
            return Err(Some(PostFailure::NodeClosed));
        }
        match self.with_calls(|rpc, wakes| rpc.try_request(node, request, wakes)) {
            Ok((target, slot)) => Ok(Pending::new(self, target, slot)),
            Err(NotPosted::NoLink) => Err(self.absence_of(node)),
            Err(NotPosted::Full) => Err(None),
            Err(NotPosted::Gone) => Err(Some(PostFailure::PeerDown)),
            Err(NotPosted::NoMemory) => Err(Some(PostFailure::NoMemory)),
            Err(NotPosted::TooManyCalls) => Err(Some(PostFailure::TooManyCalls)),
        }
    }
}
