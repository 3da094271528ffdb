//! The event loop of all connections. Each turn reads the input of all connections that are ready, executes it, and
//! writes the output.

use std::io::{self, ErrorKind, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

use halite::blocking;
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::fd::OwnedFd;
use rustix::net::sockopt;

use super::super::error::KvError;
use super::super::limit::MemoryLimit;
use super::super::owner::Local;
use super::super::store::Store;
use super::backend::{Backend, Clock, Queued};
use super::client::{Client, Password, ServerInfo};
use super::connection::{Buffers, Connection, Pause};
use super::executor::{Executor, RunQueue};
use super::task::{Completion, Task};

/// Default maximum number of connections.
pub const CLIENTS_MAX: usize = 20_000;
/// Maximum number of clients that wait to be accepted; as in Redis.
const BACKLOG: i32 = 511;
/// Maximum number of events per turn.
const EVENTS_MAX: usize = 1024;
/// Values that identify events of no connection.
const LISTENER: u64 = u64::MAX;
const CONTROL: u64 = u64::MAX - 1;
const RUNNABLE: u64 = u64::MAX - 2;
/// Interval between retries: to accept after the system ran out of descriptors, to check stuck clients, and to open the
/// store again.
const RETRY_INTERVAL: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
/// Time without traffic after which the system sends TCP keepalive probes; as in Redis.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(300);
const NO_WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// The reason why a server ended with an error.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The system refused an operation that the server depends on.
    #[error("cannot {what}: {source}")]
    System {
        /// The operation that failed, such as `watch the listener`.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// A shard of this process cannot continue.
    #[error(transparent)]
    Store(#[from] KvError),
}

/// Serves a store to Redis clients.
pub struct Server {
    session: blocking::Session,
    listener: TcpListener,
    epoll: OwnedFd,
    control: Arc<OwnedFd>,
    queue: Arc<RunQueue>,
    store: Store,
    backend: Backend,
    server_info: ServerInfo,
    connections: Vec<Option<Connection>>,
    /// Unused indices of `connections`.
    free: Vec<usize>,
    buffers: Buffers,
    last_id: u64,
    is_accepting_paused: bool,
    /// True if the owner of a shard has changed, and the store is not opened again yet.
    must_reopen: bool,
    /// Indices of connections that wait for the end of a transaction.
    awaiting_transactions: Vec<usize>,
    /// Indices of connections whose clients send requests and read no replies.
    stuck: Vec<usize>,
}

/// Controls a server from another thread.
#[derive(Clone, Debug)]
pub struct ServerControl(Arc<OwnedFd>);

/// Value that a request to stop adds to the eventfd of a server. A request to reopen the store adds 1.
const STOP_REQUEST: u64 = 1 << 32;

impl ServerControl {
    /// Asks the server to close all connections and return.
    pub fn stop(&self) {
        self.add(STOP_REQUEST);
    }

    /// Asks the server to open its store again, after [`Store::place`] has changed the node of a shard, or the owner of
    /// a shard has been replaced at its node.
    pub fn reopen(&self) {
        self.add(1);
    }

    fn add(&self, request: u64) {
        // Fails only if 2^32 requests are unread.
        let _ = rustix::io::write(&self.0, &request.to_ne_bytes());
    }
}

fn system_error<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> ServerError {
    move |source| ServerError::System { what, source: source.into() }
}

impl Server {
    /// Creates a server for a store. The server runs on the thread of `session` and accepts up to `clients_max` clients
    /// at `listener`. `shards` lists the shards of this process with their numbers; the server accesses them without
    /// calls. `clock` must be the clock of the owners of these shards, which run on other threads.
    pub fn new(
        session: blocking::Session,
        listener: TcpListener,
        store: Store,
        shards: Vec<(usize, Local)>,
        clock: Clock,
        clients_max: usize,
    ) -> Result<Server, ServerError> {
        listener.set_nonblocking(true).map_err(system_error("make the listener non-blocking"))?;
        // A longer queue, because clients may connect faster than one turn accepts them.
        rustix::net::listen(&listener, BACKLOG)
            .map_err(system_error("lengthen the queue of the listener"))?;
        let address = listener.local_addr().map_err(system_error("get the address of the listener"))?;
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(system_error("create an epoll instance"))?;
        let control = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(system_error("create an eventfd"))?;
        let queue = RunQueue::new().map_err(system_error("create an eventfd"))?;
        epoll::add(&epoll, &listener, EventData::new_u64(LISTENER), EventFlags::IN)
            .map_err(system_error("watch the listener"))?;
        epoll::add(&epoll, &control, EventData::new_u64(CONTROL), EventFlags::IN)
            .map_err(system_error("watch an eventfd"))?;
        epoll::add(&epoll, queue.event(), EventData::new_u64(RUNNABLE), EventFlags::IN)
            .map_err(system_error("watch an eventfd"))?;
        let status = session.status().unwrap_or_default();
        let of_shards =
            status.iter().filter(|node| store.has_shard_at(node.node)).map(|node| node.bytes_total);
        // Shards of nodes without memory use the memory of other nodes.
        let memory = match of_shards.sum::<u64>() {
            0 => status.iter().map(|node| node.bytes_total).sum(),
            memory => memory,
        };
        let server_info = ServerInfo {
            memory,
            limit: MemoryLimit::default(),
            address,
            since: Instant::now(),
            shards: store.shards(),
            clients: 0,
            clients_max,
            connections: 0,
            commands: 0,
            password: None,
        };
        Ok(Server {
            session,
            listener,
            epoll,
            control: Arc::new(control),
            queue,
            backend: Backend::new(&store, shards, clock),
            store,
            server_info,
            connections: Vec::new(),
            free: Vec::new(),
            buffers: Buffers::default(),
            last_id: 0,
            is_accepting_paused: false,
            must_reopen: false,
            awaiting_transactions: Vec::new(),
            stuck: Vec::new(),
        })
    }

    /// Makes the server require a password: clients get an error to all commands until they give it with `AUTH` or
    /// `HELLO`.
    pub fn with_password(mut self, password: &[u8]) -> Server {
        self.server_info.password = Some(Password(password.into()));
        self
    }

    /// Makes the server limit the memory of the store. Clients can change the limit with `CONFIG SET`.
    pub fn with_limit(mut self, limit: MemoryLimit) -> Server {
        self.server_info.limit = limit;
        self
    }

    /// Returns the address of the listener.
    pub fn address(&self) -> SocketAddr {
        self.server_info.address
    }

    /// Returns a handle for other threads.
    pub fn control(&self) -> ServerControl {
        ServerControl(self.control.clone())
    }

    /// Serves clients until a [`ServerControl`] stops the server.
    pub fn run(mut self) -> Result<(), ServerError> {
        let session = self.session.clone();
        let limit = self.server_info.limit;
        if limit != MemoryLimit::default() {
            session.block_on(self.store.set_limit(limit))?;
        }
        let mut executor = Executor::new(self.queue.clone(), self.store.unmapped_clone());
        let mut events = Vec::with_capacity(EVENTS_MAX);
        loop {
            events.clear();
            let timeout = match executor.may_sleep() {
                true => (self.is_accepting_paused || self.must_reopen || !self.stuck.is_empty())
                    .then_some(&RETRY_INTERVAL),
                false => Some(&NO_WAIT),
            };
            match epoll::wait(&self.epoll, spare_capacity(&mut events), timeout) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(system_error("wait for clients")(error)),
            }
            if self.is_accepting_paused && events.is_empty() {
                self.pause_accepting(false)?;
            }
            if events.iter().any(|event| event.data.u64() == CONTROL) {
                let mut requests = [0; 8];
                // The event implies that there are requests to read.
                let _ = rustix::io::read(&self.control, &mut requests);
                if u64::from_ne_bytes(requests) >= STOP_REQUEST {
                    return Ok(());
                }
                self.must_reopen = true;
            }
            if self.must_reopen {
                session.block_on(self.reopen(&mut executor));
            }
            session.block_on(self.handle_events(&events, &mut executor))?;
            self.disconnect_stuck()?;
        }
    }

    /// Opens the store again. If that fails, the next turn tries again.
    async fn reopen(&mut self, executor: &mut Executor) {
        match executor.reopen().await {
            Ok(()) => {
                self.backend.reset_direct_reads();
                self.must_reopen = false;
                let limit = self.server_info.limit;
                if limit != MemoryLimit::default() {
                    // If it completes at once, there is nothing to deliver.
                    let _ = executor.spawn(Task::RestoreLimit(limit));
                }
            }
            Err(error) => {
                tracing::warn!("cannot open the store again: {error}; the server retries every second")
            }
        }
    }

    /// Disconnects clients that have been stuck for too long.
    fn disconnect_stuck(&mut self) -> Result<(), ServerError> {
        for number in std::mem::take(&mut self.stuck) {
            let Some(connection) = &mut self.connections[number] else { continue };
            if let Some(reason) = connection.disconnect_reason() {
                tracing::warn!("{reason}");
                self.close(number)?;
            } else if connection.check_stuck() {
                self.stuck.push(number);
            }
        }
        Ok(())
    }

    /// Handles one turn: the events, the runnable tasks, and all input that can be executed without waiting.
    async fn handle_events(&mut self, events: &[Event], executor: &mut Executor) -> Result<(), ServerError> {
        let mut active = Vec::with_capacity(events.len());
        for event in events {
            match event.data.u64() {
                LISTENER => self.accept()?,
                CONTROL => {}
                RUNNABLE => self.queue.reset_event(),
                number => {
                    let (number, flags) = (number as usize, event.flags);
                    if self.handle_event(number, flags) {
                        active.push(number);
                    } else {
                        self.close(number)?;
                    }
                }
            }
        }
        for completion in executor.run() {
            self.deliver(completion, &mut active);
        }
        let mut touched = active.clone();
        self.backend.update_clock();
        loop {
            let mut next_active = Vec::new();
            for number in active {
                let Some(connection) = &mut self.connections[number] else { continue };
                let Server { backend, server_info, buffers, .. } = self;
                match connection.advance(number, backend, executor.store(), server_info, buffers).await {
                    Pause::Idle | Pause::QueuedWork => {}
                    Pause::BatchFull => next_active.push(number),
                    Pause::ShardReserved => self.awaiting_transactions.push(number),
                    Pause::Unsent => {
                        let flushed = connection.flush(buffers);
                        // Otherwise an event follows once the client has read.
                        if flushed.is_ok() && connection.has_room() {
                            next_active.push(number);
                        }
                    }
                }
            }
            while let Some(task) = self.backend.next_task() {
                self.start_task(task, executor, &mut next_active);
            }
            if next_active.is_empty() {
                break;
            }
            touched.extend(&next_active);
            active = next_active;
            self.backend.update_clock();
        }
        for number in touched {
            self.finish_turn(number)?;
        }
        Ok(self.backend.sweep().await?)
    }

    /// Starts a task. Adds connections that receive replies at once to `active`.
    fn start_task(&mut self, task: Task, executor: &mut Executor, active: &mut Vec<usize>) {
        let read_only_shard = match &task {
            Task::ForClient(..) | Task::Transaction(..) | Task::RestoreLimit(_) => None,
            Task::Batch(batch) => {
                for to in batch.recipients() {
                    if let Some(connection) = &mut self.connections[to.number] {
                        connection.queued = Some(Queued::Running);
                    }
                }
                batch.read_only_shard()
            }
        };
        let completion = executor.spawn(task);
        if let Some(shard) = read_only_shard {
            self.backend.record_direct_reads(shard, completion.is_some());
        }
        if let Some(completion) = completion {
            self.deliver(completion, active);
        }
    }

    /// Distributes replies. Adds the connections that may continue to `active`.
    fn deliver(&mut self, completion: Completion, active: &mut Vec<usize>) {
        if self.backend.handle_completion(&completion) {
            active.append(&mut self.awaiting_transactions);
        }
        let (mut begin, mut watched) = (0, completion.watched);
        for (to, end) in completion.parts {
            let connection =
                self.connections[to.number].as_mut().filter(|connection| connection.has_id(to.id));
            if let Some(connection) = connection {
                connection.watched_keys.append(&mut watched);
                connection.replies.bytes.extend_from_slice(&completion.bytes[begin..end]);
                if connection.queued.take().is_some() {
                    active.push(to.number);
                }
            }
            begin = end;
        }
        // In reverse order, because each read goes to the front: before those that were postponed earlier, which were
        // requested later.
        for (to, read) in completion.postponed.into_iter().rev() {
            let connection =
                self.connections[to.number].as_mut().filter(|connection| connection.has_id(to.id));
            if let Some(connection) = connection {
                connection.postpone(read);
                if connection.queued.take().is_some() {
                    active.push(to.number);
                }
            }
        }
    }

    /// Handles the events of a connection. Returns true if it continues.
    fn handle_event(&mut self, number: usize, flags: EventFlags) -> bool {
        let Some(Some(connection)) = self.connections.get_mut(number) else { return true };
        if flags.contains(EventFlags::OUT) && connection.flush(&mut self.buffers).is_err() {
            return false;
        }
        // The client reads no further replies.
        if flags.intersects(EventFlags::ERR | EventFlags::HUP) {
            return false;
        }
        !flags.contains(EventFlags::IN) || connection.read(&mut self.buffers).unwrap_or(false)
    }

    /// Ends a turn of a connection: sends output, closes the connection if it is finished, and sets the events to wait
    /// for.
    fn finish_turn(&mut self, number: usize) -> Result<(), ServerError> {
        let Some(connection) = &mut self.connections[number] else { return Ok(()) };
        if connection.flush(&mut self.buffers).is_err()
            || connection.is_finished() && !connection.start_closing()
        {
            return self.close(number);
        }
        if connection.check_stuck() && !self.stuck.contains(&number) {
            self.stuck.push(number);
        }
        let wanted = connection.wanted_events();
        if wanted != connection.watched {
            connection.watched = wanted;
            epoll::modify(&self.epoll, &connection.stream, EventData::new_u64(number as u64), wanted)
                .map_err(system_error("watch a connection"))?;
        }
        Ok(())
    }

    fn accept(&mut self) -> Result<(), ServerError> {
        loop {
            let (mut stream, address) = match self.listener.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error)
                    if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) =>
                {
                    continue;
                }
                // The system lacks descriptors or memory, so the server accepts no clients until one has left.
                Err(_) => return self.pause_accepting(true),
            };
            if self.server_info.clients >= self.server_info.clients_max {
                // If the error cannot be sent, the client only sees the connection close.
                let _ = stream.set_nonblocking(true);
                let _ = stream.write(b"-ERR max number of clients reached\r\n");
                continue;
            }
            let number = self.free.pop().unwrap_or(self.connections.len());
            let is_ready = stream.set_nonblocking(true).is_ok()
                && stream.set_nodelay(true).is_ok()
                && sockopt::set_socket_keepalive(&stream, true).is_ok()
                && sockopt::set_tcp_keepidle(&stream, KEEPALIVE_IDLE).is_ok()
                && epoll::add(&self.epoll, &stream, EventData::new_u64(number as u64), EventFlags::IN)
                    .is_ok();
            if !is_ready {
                if number < self.connections.len() {
                    self.free.push(number);
                }
                continue;
            }
            self.last_id += 1;
            let client = Client::new(self.last_id, address, self.server_info.password.is_none());
            let connection = Connection::new(stream, client);
            if number == self.connections.len() {
                self.connections.push(None);
            }
            self.connections[number] = Some(connection);
            self.server_info.clients += 1;
            self.server_info.connections += 1;
        }
    }

    /// Closes a connection and stops watching it.
    fn close(&mut self, number: usize) -> Result<(), ServerError> {
        if self.connections[number].take().is_some() {
            self.free.push(number);
            self.server_info.clients -= 1;
        }
        if self.is_accepting_paused { self.pause_accepting(false) } else { Ok(()) }
    }

    fn pause_accepting(&mut self, is_accepting_paused: bool) -> Result<(), ServerError> {
        self.is_accepting_paused = is_accepting_paused;
        let flags = if is_accepting_paused { EventFlags::empty() } else { EventFlags::IN };
        epoll::modify(&self.epoll, &self.listener, EventData::new_u64(LISTENER), flags)
            .map_err(system_error("watch the listener"))
    }
}
