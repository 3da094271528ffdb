//! The socket and the shared memory of an attached session, and the threads that wait for replies.
//!
//! ```text
//!   thread in block_on ── no thread reads? ── yes ──> reads, and hands replies to all waiters
//!                              └─ no ──> sleeps until its reply is there, or until it must read
//!   task ─────────────────────────────────> a background thread reads while tasks wait
//! ```
//!
//! A thread that waits for its own reply reads the socket itself, so that the reply wakes one thread only. The buffer
//! of received bytes is the right to read: the reading thread owns it. Before a thread sleeps, it looks for replies in
//! shared memory for a moment, and asks the node for a wake-up over the socket ([`ring`]).

mod calls;
mod ring;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Instant;

use halite_mem::{Process, exchange};
use halite_tier::ids::NodeId;
use rustix::buffer::spare_capacity;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use serde::Serialize;

pub(crate) use self::ring::{Access, Unfinished};
use self::ring::{Collected, Ring};
use super::buffers::Buffers;
use super::entry::{WAKE_ID, slot_of};
use super::wire::{self, Message, Request};
use crate::error::Gone;
use crate::runtime::wait::{AdaptiveSpin, BlockingWait};

/// Bytes that one receive takes from the socket: a slice and its header, with room to spare.
const RECEIVE_BYTES: usize = 80 << 10;

/// Builds the request that undoes an operation, from the reply that arrived after the operation's future was dropped.
pub(crate) type Undo = Box<dyn FnOnce(&[u8]) -> Option<Vec<u8>> + Send>;

/// The connection, shared by the session, its requests and the background thread.
pub(crate) struct Line {
    node: NodeId,
    socket: UnixStream,
    /// Event descriptor (eventfd) that ends the poll of the reading thread.
    bell: OwnedFd,
    /// Memory shared with the node; `None` if the node shares none.
    memory: Option<exchange::Client>,
    pub(super) buffers: Arc<Buffers>,
    process: Process,
    state: Mutex<State>,
    /// Wakes the background thread.
    background: Condvar,
}

struct State {
    next_id: u64,
    requests: BTreeMap<u64, Slot>,
    /// Requests in shared memory; `None` if the node shares none.
    ring: Option<Ring>,
    /// Bytes that the socket has not accepted yet.
    output: VecDeque<u8>,
    /// The buffer of the reading thread; `None` while a thread reads.
    input: Option<Vec<u8>>,
    /// True while the reading thread also waits for room in the socket.
    polls_output: bool,
    /// Threads in `block_on` that sleep while another thread reads.
    sleepers: Vec<Arc<Waiter>>,
    /// Number of requests that tasks await, outside of `block_on`.
    tasks: usize,
    /// Number of dropped requests whose late replies must be undone.
    undos: usize,
    /// Requests that wait until these undos are sent, so that the node executes them after the undos.
    held: VecDeque<(u64, Vec<u8>)>,
    has_background: bool,
    is_over: bool,
    /// True once the session has ended; the background thread then ends.
    is_closed: bool,
}

impl State {
    /// Returns true if a background thread must read or write the socket, because no thread in `block_on` may do so.
    fn needs_background(&self) -> bool {
        self.tasks > 0 || self.undos > 0 || !self.output.is_empty()
    }
}

/// State of a request that was sent.
enum Slot {
    Waiting(Option<Waker>),
    Replied(Vec<u8>),
    /// No task or thread waits for the reply. If there is an undo, the reply must be undone.
    Abandoned(Option<Undo>),
}

/// A thread in `block_on`.
struct Waiter {
    thread: Thread,
    is_woken: AtomicBool,
    /// True while the thread polls the socket. A wake-up then signals the event descriptor.
    polls: AtomicBool,
    line: Arc<Line>,
}

impl Wake for Waiter {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Sequentially consistent with the store and load in read_for(): at least one of the two threads sees the
        // other's store.
        self.is_woken.store(true, SeqCst);
        match self.polls.load(SeqCst) {
            true => self.line.ring(),
            false => self.thread.unpark(),
        }
    }
}

/// Opening, sending and closing.
impl Line {
    pub(super) fn new(
        node: NodeId,
        socket: UnixStream,
        memory: Option<exchange::Client>,
    ) -> io::Result<Arc<Line>> {
        socket.set_nonblocking(true)?;
        let state = State {
            next_id: 1,
            requests: BTreeMap::new(),
            ring: memory.is_some().then(Ring::new),
            output: VecDeque::new(),
            input: Some(Vec::new()),
            polls_output: false,
            sleepers: Vec::new(),
            tasks: 0,
            undos: 0,
            held: VecDeque::new(),
            has_background: false,
            is_over: false,
            is_closed: false,
        };
        Ok(Arc::new(Line {
            node,
            socket,
            bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            memory,
            buffers: Arc::default(),
            process: Process::current(),
            state: Mutex::new(state),
            background: Condvar::new(),
        }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ring(&self) {
        // A non-zero eventfd is already readable, so a failed write is harmless.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    /// Returns true if this process is a fork of the process that attached. A fork shares the socket and must not use
    /// it.
    fn is_forked(&self) -> bool {
        !self.process.is_current()
    }

    pub(super) fn post(
        self: &Arc<Line>,
        request: &impl Serialize,
        data: &[&[u8]],
        undo: Option<Undo>,
    ) -> Result<Pending, Gone> {
        if self.is_forked() {
            return Err(Gone::Forked);
        }
        let mut message = wire::message(0, request, data);
        let data_len: usize = data.iter().map(|slice| slice.len()).sum();
        let len = message.len() - wire::HEADER_BYTES - data_len;
        if len > wire::REQUEST_BYTES_MAX {
            return Err(Gone::TooLong { node: self.node, len });
        }
        let mut state = self.state();
        if state.is_over {
            return Err(Gone::Closed(self.node));
        }
        let id = state.next_id;
        state.next_id += 1;
        wire::finish(&mut message, id);
        state.requests.insert(id, Slot::Waiting(None));
        match state.undos {
            0 => self.send_request(&mut state, id, &message),
            _ => state.held.push_back((id, message)),
        }
        Ok(Pending { line: self.clone(), id: Some(id), is_task: false, undo })
    }

    /// Sends a message over the socket.
    fn send(&self, state: &mut State, message: &[u8]) {
        if let Some(ring) = &mut state.ring {
            ring.sent = ring.sent.wrapping_add(1);
        }
        self.send_bytes(state, message);
    }

    /// Sends the bytes of a message after the bytes that the socket has not accepted yet.
    fn send_bytes(&self, state: &mut State, mut message: &[u8]) {
        while state.output.is_empty() && !message.is_empty() {
            match rustix::net::send(&self.socket, message, SendFlags::NOSIGNAL) {
                Ok(sent) => message = &message[sent..],
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                // The reading thread notices the end of the connection too, and fails all requests.
                Err(_) => return,
            }
        }
        if message.is_empty() {
            return;
        }
        state.output.extend(message);
        if state.input.is_none() && !state.polls_output {
            self.ring();
        }
    }

    /// Lets the background thread send the bytes that the socket has not accepted, because the caller must not block.
    pub(super) fn send_rest(self: &Arc<Line>) {
        if self.is_forked() {
            return;
        }
        let mut state = self.state();
        if !state.output.is_empty() {
            self.need_background(&mut state);
        }
    }

    /// Sends the bytes that the socket has not accepted yet.
    fn flush(&self, state: &mut State) {
        while !state.output.is_empty() {
            let (front, _) = state.output.as_slices();
            match rustix::net::send(&self.socket, front, SendFlags::NOSIGNAL) {
                Ok(sent) => drop(state.output.drain(..sent)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => state.output.clear(),
            }
        }
        state.output.shrink_to(RECEIVE_BYTES);
    }

    /// Ends the session. All its waits fail, and the node ends its side of the session.
    pub(super) fn close(&self) {
        if self.is_forked() {
            return;
        }
        self.state().is_closed = true;
        // Ends the poll of the reading thread.
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
        self.background.notify_all();
    }
}

/// Waiting and reading.
impl Line {
    pub(super) fn block_on<F: Future>(self: &Arc<Line>, future: F) -> F::Output {
        self.block_on_after(future, false)
    }

    /// Runs a future as [`Line::block_on`] does. If `has_spun` is true, the thread has just spun for the reply, and
    /// does not spin again.
    pub(super) fn block_on_after<F: Future>(self: &Arc<Line>, future: F, mut has_spun: bool) -> F::Output {
        let _waiting = BlockingWait::begin(&**self);
        let waiter = Arc::new(Waiter {
            thread: std::thread::current(),
            is_woken: AtomicBool::new(false),
            polls: AtomicBool::new(false),
            line: self.clone(),
        });
        let waker = Waker::from(waiter.clone());
        let mut future = std::pin::pin!(future);
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                return output;
            }
            if !std::mem::take(&mut has_spun) {
                self.spin(|| waiter.is_woken.load(SeqCst));
            }
            self.await_wake(&waiter);
        }
    }

    fn await_wake(self: &Arc<Line>, waiter: &Arc<Waiter>) {
        if waiter.is_woken.swap(false, SeqCst) {
            return;
        }
        let (begin, mut has_slept) = (Instant::now(), false);
        while !waiter.is_woken.swap(false, SeqCst) {
            match self.right_to_read(waiter) {
                Some(input) => {
                    self.read(input, Some(waiter));
                }
                None => {
                    has_slept = true;
                    std::thread::park();
                }
            }
        }
        if has_slept && !self.is_forked() {
            let mut state = self.state();
            state.sleepers.retain(|sleeper| !Arc::ptr_eq(sleeper, waiter));
            self.hand_over(&mut state);
        }
        AdaptiveSpin::change(|spin| spin.record_wait(begin.elapsed().as_nanos() as u64));
    }

    /// Returns the right to read. Returns `None` if another thread reads; that thread later wakes this one to take
    /// over.
    fn right_to_read(&self, waiter: &Arc<Waiter>) -> Option<Vec<u8>> {
        if self.is_forked() {
            return None;
        }
        let (mut state, mut collected) = (self.state(), Collected::default());
        self.collect_before_sleep(&mut state, &mut collected);
        // Without a connection no reply arrives, so the task waits for another event.
        let input = if state.is_over { None } else { state.input.take() };
        if input.is_none() && !state.sleepers.iter().any(|sleeper| Arc::ptr_eq(sleeper, waiter)) {
            state.sleepers.push(waiter.clone());
        }
        drop(state);
        self.finish(collected);
        input
    }

    /// Reads until `waiter` is woken; without a waiter, reads while tasks wait or output remains. Then passes the right
    /// to read to another thread.
    fn read(self: &Arc<Line>, mut input: Vec<u8>, waiter: Option<&Arc<Waiter>>) {
        loop {
            let (mut state, mut collected) = (self.state(), Collected::default());
            self.collect_before_sleep(&mut state, &mut collected);
            self.flush(&mut state);
            let is_needed = state.needs_background();
            if state.is_over || waiter.is_none() && !is_needed {
                drop(state);
                self.finish(collected);
                break;
            }
            state.polls_output = !state.output.is_empty();
            let wanted = if state.polls_output { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
            drop(state);
            self.finish(collected);
            if let Some(waiter) = waiter {
                waiter.polls.store(true, SeqCst);
                if waiter.is_woken.load(SeqCst) {
                    waiter.polls.store(false, SeqCst);
                    break;
                }
            }
            let mut fds = [PollFd::new(&self.socket, wanted), PollFd::new(&self.bell, PollFlags::IN)];
            let polled = poll(&mut fds, None);
            let (is_readable, is_rung) =
                (fds[0].revents().intersects(!PollFlags::OUT), !fds[1].revents().is_empty());
            if let Some(waiter) = waiter {
                // From here on, this thread needs no bell.
                waiter.polls.store(false, SeqCst);
            }
            if is_rung {
                let _ = rustix::io::read(&self.bell, &mut [0; 8]);
            }
            if polled.is_ok() && is_readable && self.receive(&mut input).is_err() {
                self.end();
            }
        }
        let mut state = self.state();
        state.polls_output = false;
        input.shrink_to(RECEIVE_BYTES);
        state.input = Some(input);
        self.hand_over(&mut state);
    }

    /// Wakes a thread to read, if a reader is needed and no thread reads.
    fn hand_over(&self, state: &mut State) {
        if state.input.is_none() || state.is_over {
            return;
        }
        if state.has_background && state.needs_background() {
            self.background.notify_one();
        } else if let Some(sleeper) = state.sleepers.pop() {
            sleeper.thread.unpark();
        }
    }

    /// Receives bytes and hands complete replies to their waiters. Fails if the connection has ended.
    fn receive(self: &Arc<Line>, input: &mut Vec<u8>) -> Result<(), Gone> {
        input.reserve(RECEIVE_BYTES);
        let received = match self.buffers.expects_descriptors() {
            true => self.buffers.receive(&self.socket, input),
            false => rustix::net::recv(&self.socket, spare_capacity(input), RecvFlags::empty())
                .map(|(_, count)| count),
        };
        match received {
            Ok(0) => return Err(Gone::Lost(self.node)),
            Ok(_) => {}
            Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
            Err(_) => return Err(Gone::Lost(self.node)),
        }
        let (mut collected, mut at) = (Collected::default(), 0);
        while let Some(Message { id, body, len }) =
            wire::split(&input[at..]).map_err(|_| Gone::Lost(self.node))?
        {
            let mut state = self.state();
            match slot_of(id) {
                Some(slot) => self.deliver_to_slot(&mut state, slot, body, &mut collected)?,
                None if id == WAKE_ID => self.collect(&mut state, &mut collected),
                // An id without a request is a fault of the node.
                None if !state.deliver(id, body.to_vec(), &mut collected) => {
                    return Err(Gone::Lost(self.node));
                }
                None => {}
            }
            at += len;
        }
        input.drain(..at);
        self.finish(collected);
        Ok(())
    }

    /// Sends the requests that waited for undos, once no undo is left.
    fn send_held(&self, state: &mut State) {
        while state.undos == 0
            && let Some((id, message)) = state.held.pop_front()
        {
            self.send_request(state, id, &message);
        }
    }

    /// Sends an encoded request without waiting for its reply.
    fn tell_encoded(&self, mut message: Vec<u8>) {
        let mut state = self.state();
        let id = state.next_id;
        state.next_id += 1;
        wire::finish(&mut message, id);
        state.requests.insert(id, Slot::Abandoned(None));
        self.send(&mut state, &message);
    }

    /// Fails all requests, because the connection has ended.
    fn end(&self) {
        let mut state = self.state();
        state.is_over = true;
        state.output.clear();
        let (mut wakers, mut threads) = (Vec::new(), Vec::new());
        for slot in state.requests.values_mut() {
            if let Slot::Waiting(waker) = slot {
                wakers.extend(waker.take());
            }
        }
        threads.append(&mut state.sleepers);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
        threads.into_iter().for_each(|sleeper| sleeper.thread.unpark());
    }

    /// Starts the background thread unless it runs.
    fn need_background(self: &Arc<Line>, state: &mut State) {
        if state.has_background {
            return self.hand_over(state);
        }
        let line = self.clone();
        let started =
            std::thread::Builder::new().name("halite-attached".to_owned()).spawn(move || line.run());
        // Without a background thread, a reply stays unread until a thread in `block_on` reads it.
        state.has_background = started.is_ok();
    }

    /// Reads while tasks wait, until the session ends.
    fn run(self: Arc<Line>) {
        loop {
            let mut state = self.state();
            while !state.is_closed && !state.is_over && (state.input.is_none() || !state.needs_background()) {
                state = self.background.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            if state.is_closed || state.is_over {
                return;
            }
            let input = state.input.take().expect("checked under the lock");
            drop(state);
            self.read(input, None);
        }
    }
}

/// A request that was sent, and whose reply the owner awaits. Dropping this value cancels the request.
pub(crate) struct Pending {
    line: Arc<Line>,
    id: Option<u64>,
    /// True if a task awaits the reply outside of `block_on`.
    is_task: bool,
    undo: Option<Undo>,
}

impl Pending {
    /// Sets what undoes the request if this value is dropped before the reply arrives.
    pub(super) fn with_undo(mut self, undo: Undo) -> Pending {
        self.undo = Some(undo);
        self
    }

    /// Stops waiting for the reply without cancelling the request.
    pub(super) fn detach(mut self) {
        self.abandon(false);
    }

    fn abandon(&mut self, cancels: bool) {
        let Some(id) = self.id.take() else { return };
        if self.line.is_forked() {
            return;
        }
        let line = self.line.clone();
        let (mut state, mut collected) = (line.state(), Collected::default());
        self.stop_task(&mut state);
        line.collect(&mut state, &mut collected);
        let mut reply = None;
        match state.requests.remove(&id) {
            Some(Slot::Waiting(_)) if state.is_over => {}
            // The request was not sent yet. Only a request that was not detached is dropped.
            Some(Slot::Waiting(_)) if cancels && state.held.iter().any(|(held, _)| *held == id) => {
                state.held.retain(|(held, _)| *held != id);
            }
            Some(Slot::Waiting(_)) => {
                let undo = self.undo.take();
                state.undos += usize::from(undo.is_some());
                state.requests.insert(id, Slot::Abandoned(undo));
                if cancels {
                    let id = state.ring.as_ref().map_or(id, |ring| ring.socket_id(id));
                    line.send(&mut state, &wire::message(id, &Request::Cancel, &[]));
                }
                if state.needs_background() {
                    line.collect_before_sleep(&mut state, &mut collected);
                    line.need_background(&mut state);
                }
            }
            Some(Slot::Replied(body)) => reply = Some(body),
            Some(Slot::Abandoned(_)) | None => {}
        }
        drop(state);
        if let Some(undo) = reply.and_then(|body| self.undo.take()?(&body)) {
            line.tell_encoded(undo);
        }
        line.finish(collected);
    }

    fn stop_task(&mut self, state: &mut State) {
        if std::mem::take(&mut self.is_task) {
            state.tasks -= 1;
        }
    }
}

impl Future for Pending {
    type Output = Result<Vec<u8>, Gone>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let pending = &mut *self;
        if pending.line.is_forked() {
            return Poll::Ready(Err(Gone::Forked));
        }
        let id = pending.id.expect("a request is awaited once");
        let line = pending.line.clone();
        let (mut state, mut collected) = (line.state(), Collected::default());
        let is_task = !BlockingWait::drives(&*line);
        match is_task {
            // No other thread checks for replies before the task sleeps.
            true => line.collect_before_sleep(&mut state, &mut collected),
            false => line.collect(&mut state, &mut collected),
        }
        let is_over = state.is_over;
        match state.requests.get_mut(&id) {
            Some(Slot::Waiting(waker)) if !is_over => {
                *waker = Some(context.waker().clone());
                if !pending.is_task && is_task {
                    pending.is_task = true;
                    state.tasks += 1;
                    line.need_background(&mut state);
                }
                drop(state);
                line.finish(collected);
                return Poll::Pending;
            }
            _ => {}
        }
        pending.id = None;
        pending.stop_task(&mut state);
        let reply = state.requests.remove(&id);
        drop(state);
        line.finish(collected);
        Poll::Ready(match reply {
            Some(Slot::Replied(body)) => Ok(body),
            _ => Err(Gone::Lost(line.node)),
        })
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.abandon(true);
    }
}
