//! The event loop of all connections: reads input, executes it, and writes output, once per turn for all
//! connections that are ready.

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
use super::super::owner::Local;
use super::super::store::Store;
use super::backend::{Backend, Clock, Queued};
use super::client::{About, Client, Password};
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
/// Interval of repetitions: of accepting after the system ran out of descriptors, of looking at stuck clients, and of
/// opening the store again.
const PAUSE: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
/// Silence of a client after which the system probes its host; as in Redis.
const VANISHED: Duration = Duration::from_secs(300);
const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

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
    about: About,
    connections: Vec<Option<Connection>>,
    /// Free indices in `connections`.
    free: Vec<usize>,
    buffers: Buffers,
    last_id: u64,
    is_paused: bool,
    /// True if the owner of a shard has changed, and the store is not opened again yet.
    must_reopen: bool,
    /// Indices of connections that wait for the end of a transaction.
    held: Vec<usize>,
    /// Indices of connections whose clients send requests and read no replies.
    stuck: Vec<usize>,
}

/// Controls a server from another thread.
#[derive(Clone, Debug)]
pub struct ServerControl(Arc<OwnedFd>);

/// The sum of the requests to a server: these, and one for each request to reopen the store.
const STOPS: u64 = 1 << 32;

impl ServerControl {
    /// Asks the server to close all connections and return.
    pub fn stop(&self) {
        self.add(STOPS);
    }

    /// Asks the server to open its store again, after [`Store::place`] has changed the node of a shard, or the owner of
    /// a shard has been replaced at its node.
    pub fn reopen(&self) {
        self.add(1);
    }

    fn add(&self, request: u64) {
        // Fails only after 2^32 unread requests.
        let _ = rustix::io::write(&self.0, &request.to_ne_bytes());
    }
}

fn system<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> ServerError {
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
        listener.set_nonblocking(true).map_err(system("make the listener non-blocking"))?;
        // Clients may arrive faster than they are accepted.
        rustix::net::listen(&listener, BACKLOG).map_err(system("lengthen the queue of the listener"))?;
        let address = listener.local_addr().map_err(system("get the address of the listener"))?;
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(system("create an epoll instance"))?;
        let control = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(system("create an eventfd"))?;
        let queue = RunQueue::new().map_err(system("create an eventfd"))?;
        epoll::add(&epoll, &listener, EventData::new_u64(LISTENER), EventFlags::IN)
            .map_err(system("watch the listener"))?;
        epoll::add(&epoll, &control, EventData::new_u64(CONTROL), EventFlags::IN)
            .map_err(system("watch an eventfd"))?;
        epoll::add(&epoll, queue.event(), EventData::new_u64(RUNNABLE), EventFlags::IN)
            .map_err(system("watch an eventfd"))?;
        let status = session.status().unwrap_or_default();
        let of_shards = status.iter().filter(|node| store.is_at(node.node)).map(|node| node.bytes_total);
        // Shards of nodes without memory use that of other nodes.
        let memory = match of_shards.sum::<u64>() {
            0 => status.iter().map(|node| node.bytes_total).sum(),
            memory => memory,
        };
        let about = About {
            memory,
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
            about,
            connections: Vec::new(),
            free: Vec::new(),
            buffers: Buffers::default(),
            last_id: 0,
            is_paused: false,
            must_reopen: false,
            held: Vec::new(),
            stuck: Vec::new(),
        })
    }

    /// Makes the server require a password: clients get an error to all commands until they give it with `AUTH` or
    /// `HELLO`.
    pub fn with_password(mut self, password: &[u8]) -> Server {
        self.about.password = Some(Password(password.into()));
        self
    }

    /// Returns the address of the listener.
    pub fn address(&self) -> SocketAddr {
        self.about.address
    }

    /// Returns a handle for other threads.
    pub fn control(&self) -> ServerControl {
        ServerControl(self.control.clone())
    }

    /// Serves clients until a [`ServerControl`] stops the server.
    pub fn run(mut self) -> Result<(), ServerError> {
        let session = self.session.clone();
        let mut executor = Executor::new(self.queue.clone(), self.store.again());
        let mut events = Vec::with_capacity(EVENTS_MAX);
        loop {
            events.clear();
            let timeout = match executor.may_sleep() {
                true => (self.is_paused || self.must_reopen || !self.stuck.is_empty()).then_some(&PAUSE),
                false => Some(&AT_ONCE),
            };
            match epoll::wait(&self.epoll, spare_capacity(&mut events), timeout) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(system("wait for clients")(error)),
            }
            if self.is_paused && events.is_empty() {
                self.pause(false)?;
            }
            if events.iter().any(|event| event.data.u64() == CONTROL) {
                let mut requests = [0; 8];
                // The event says that there are some.
                let _ = rustix::io::read(&self.control, &mut requests);
                if u64::from_ne_bytes(requests) >= STOPS {
                    return Ok(());
                }
                self.must_reopen = true;
            }
            if self.must_reopen {
                session.block_on(self.reopen(&mut executor));
            }
            session.block_on(self.handle(&events, &mut executor))?;
            self.cut_off_stuck()?;
        }
    }

    /// Opens the store again. If that fails, the next turn tries again.
    async fn reopen(&mut self, executor: &mut Executor) {
        match executor.reopen().await {
            Ok(()) => {
                self.backend.forget();
                self.must_reopen = false;
            }
            Err(error) => {
                tracing::warn!("cannot open the store again: {error}; the server retries every second")
            }
        }
    }

    /// Disconnects clients that have been stuck for too long.
    fn cut_off_stuck(&mut self) -> Result<(), ServerError> {
        for number in std::mem::take(&mut self.stuck) {
            let Some(connection) = &mut self.connections[number] else { continue };
            if let Some(why) = connection.why_cut_off() {
                tracing::warn!("{why}");
                self.close(number)?;
            } else if connection.look_if_stuck() {
                self.stuck.push(number);
            }
        }
        Ok(())
    }

    /// Processes the input of some events, and runs the runnable tasks.
    async fn handle(&mut self, events: &[Event], executor: &mut Executor) -> Result<(), ServerError> {
        let mut active = Vec::with_capacity(events.len());
        for event in events {
            match event.data.u64() {
                LISTENER => self.accept()?,
                CONTROL => {}
                RUNNABLE => self.queue.reset_event(),
                number => {
                    let (number, flags) = (number as usize, event.flags);
                    if self.hear(number, flags) {
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
        self.backend.look_at_clock();
        loop {
            let mut again = Vec::new();
            for number in active {
                let Some(connection) = &mut self.connections[number] else { continue };
                let Server { backend, about, buffers, .. } = self;
                match connection.advance(number, backend, executor.store(), about, buffers).await {
                    Pause::Idle | Pause::UnderWay => {}
                    Pause::Batch => again.push(number),
                    Pause::Held => self.held.push(number),
                    Pause::Unsent => {
                        let flushed = connection.flush(buffers);
                        // Otherwise the client must read first, and an event follows when it has.
                        if flushed.is_ok() && connection.has_room() {
                            again.push(number);
                        }
                    }
                }
            }
            while let Some(task) = self.backend.next_task() {
                self.begin(task, executor, &mut again);
            }
            if again.is_empty() {
                break;
            }
            touched.extend(&again);
            active = again;
            self.backend.look_at_clock();
        }
        for number in touched {
            self.settle(number)?;
        }
        Ok(self.backend.sweep().await?)
    }

    /// Starts a task; connections that already have their replies continue.
    fn begin(&mut self, task: Task, executor: &mut Executor, active: &mut Vec<usize>) {
        let read_of = match &task {
            Task::ForClient(..) | Task::Transaction(..) => None,
            Task::Batch(batch) => {
                for to in batch.recipients() {
                    if let Some(connection) = &mut self.connections[to.number] {
                        connection.queued = Some(Queued::UnderWay);
                    }
                }
                batch.reads_of()
            }
        };
        let completion = executor.spawn(task);
        if let Some(shard) = read_of {
            self.backend.note_near(shard, completion.is_some());
        }
        if let Some(completion) = completion {
            self.deliver(completion, active);
        }
    }

    /// Distributes replies; connections that received some continue.
    fn deliver(&mut self, completion: Completion, active: &mut Vec<usize>) {
        if self.backend.note_end(&completion) {
            active.append(&mut self.held);
        }
        let (mut begin, mut watched) = (0, completion.watched);
        for (to, end) in completion.parts {
            let connection = self.connections[to.number].as_mut().filter(|connection| connection.is(to.id));
            if let Some(connection) = connection {
                connection.watched_keys.append(&mut watched);
                connection.replies.bytes.extend_from_slice(&completion.bytes[begin..end]);
                if connection.queued.take().is_some() {
                    active.push(to.number);
                }
            }
            begin = end;
        }
        // In reverse, because values that were postponed earlier were requested after all of these.
        for (to, left) in completion.left.into_iter().rev() {
            let connection = self.connections[to.number].as_mut().filter(|connection| connection.is(to.id));
            if let Some(connection) = connection {
                connection.leave(left);
                if connection.queued.take().is_some() {
                    active.push(to.number);
                }
            }
        }
    }

    /// Handles the events of a connection. Returns true if it continues.
    fn hear(&mut self, number: usize, flags: EventFlags) -> bool {
        let Some(Some(connection)) = self.connections.get_mut(number) else { return true };
        if flags.contains(EventFlags::OUT) && connection.flush(&mut self.buffers).is_err() {
            return false;
        }
        // The client reads no more replies.
        if flags.intersects(EventFlags::ERR | EventFlags::HUP) {
            return false;
        }
        !flags.contains(EventFlags::IN) || connection.read(&mut self.buffers).unwrap_or(false)
    }

    /// Sends output, and watches for the next events.
    fn settle(&mut self, number: usize) -> Result<(), ServerError> {
        let Some(connection) = &mut self.connections[number] else { return Ok(()) };
        if connection.flush(&mut self.buffers).is_err() || connection.is_over() && !connection.take_leave() {
            return self.close(number);
        }
        if connection.look_if_stuck() && !self.stuck.contains(&number) {
            self.stuck.push(number);
        }
        let wanted = connection.wanted();
        if wanted != connection.watched {
            connection.watched = wanted;
            epoll::modify(&self.epoll, &connection.stream, EventData::new_u64(number as u64), wanted)
                .map_err(system("watch a connection"))?;
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
                // The system lacks descriptors or memory: existing clients take precedence.
                Err(_) => return self.pause(true),
            };
            if self.about.clients >= self.about.clients_max {
                // The client reads this error if that can be sent; otherwise the connection just closes.
                let _ = stream.set_nonblocking(true);
                let _ = stream.write(b"-ERR max number of clients reached\r\n");
                continue;
            }
            let number = self.free.pop().unwrap_or(self.connections.len());
            let is_ready = stream.set_nonblocking(true).is_ok()
                && stream.set_nodelay(true).is_ok()
                && sockopt::set_socket_keepalive(&stream, true).is_ok()
                && sockopt::set_tcp_keepidle(&stream, VANISHED).is_ok()
                && epoll::add(&self.epoll, &stream, EventData::new_u64(number as u64), EventFlags::IN)
                    .is_ok();
            if !is_ready {
                if number < self.connections.len() {
                    self.free.push(number);
                }
                continue;
            }
            self.last_id += 1;
            let client = Client::new(self.last_id, address, self.about.password.is_none());
            let connection = Connection::new(stream, client);
            if number == self.connections.len() {
                self.connections.push(None);
            }
            self.connections[number] = Some(connection);
            self.about.clients += 1;
            self.about.connections += 1;
        }
    }

    /// Closes a connection and stops watching it.
    fn close(&mut self, number: usize) -> Result<(), ServerError> {
        if self.connections[number].take().is_some() {
            self.free.push(number);
            self.about.clients -= 1;
        }
        if self.is_paused { self.pause(false) } else { Ok(()) }
    }

    fn pause(&mut self, is_paused: bool) -> Result<(), ServerError> {
        self.is_paused = is_paused;
        let flags = if is_paused { EventFlags::empty() } else { EventFlags::IN };
        epoll::modify(&self.epoll, &self.listener, EventData::new_u64(LISTENER), flags)
            .map_err(system("watch the listener"))
    }
}
