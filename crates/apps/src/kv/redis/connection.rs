//! A connection: input that is not processed yet, and output that is not sent yet.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant, SystemTime};

use rustix::event::epoll::EventFlags;

use super::super::store::Store;
use super::backend::{Backend, Queued, Shards, Step};
use super::client::{About, Client, Then};
use super::commands::{self, Command, Does, Query};
use super::reply::{OK, Replies, Reply};
use super::request::{Args, Excess, Parsed, Parser, ProtocolError};
use super::task::{Left, Operation, Recipient, Watched, refusal};
use super::transaction::{Part, Queue, Transaction, WATCHED_MAX};

/// Maximum number of unsent bytes of replies; beyond it, the client's requests wait.
pub(super) const UNSENT_BYTES_MAX: usize = 256 << 10;
/// Maximum number of bytes of waiting requests; beyond it, the server reads no more of them. A client that sends its
/// whole pipeline before it reads a reply needs that much.
const WAITING_BYTES_MAX: usize = 128 << 20;
/// Maximum length of an incomplete request of a client that has not given the password.
const UNAUTHENTICATED_BYTES_MAX: usize = 16 << 10;
/// Time without progress after which the server disconnects a client that reads no replies.
const STUCK: Duration = Duration::from_secs(5);
/// Maximum number of postponed values that are requested at once.
const LEFT_TOGETHER: usize = 16;
/// Maximum number of bytes still read after a protocol error, so that the client gets to read the error.
const LAST_BYTES_MAX: usize = 64 << 20;
/// Bytes of room for a read.
const READ_BYTES: usize = 16 << 10;
/// An incomplete request up to this length waits in a buffer of its own length.
const BEGUN_BYTES: usize = 2 << 10;

/// A client's connection. An idle connection has no buffers.
pub(super) struct Connection {
    pub(super) stream: TcpStream,
    pub(super) replies: Replies,
    /// Work that this client waits for.
    pub(super) queued: Option<Queued>,
    /// Events of this connection that epoll watches for.
    pub(super) watched: EventFlags,
    client: Client,
    input: Option<Box<Input>>,
    sent: usize,
    /// Requested values that are read from the store once the client has read its earlier replies.
    left: VecDeque<Left>,
    /// True if requests are pending that must wait until the client has read its replies.
    is_held_back: bool,
    is_closing: bool,
    has_erred: bool,
    /// Number of bytes still read after a protocol error; no replies follow.
    last_bytes: Option<usize>,
    /// True if the client sends no more input.
    has_ended: bool,
    /// Commands after `MULTI`.
    queue: Option<Box<Queue>>,
    /// Keys that must not change before `EXEC`.
    pub(super) watched_keys: Vec<Watched>,
    /// True if a request waits for the end of a transaction of another client.
    is_waiting: bool,
    /// Time since which requests wait up to their limit, and the client reads no reply.
    stuck_since: Option<Instant>,
}

/// Input of a connection.
pub(super) struct Input {
    bytes: Vec<u8>,
    /// Start of the input that is not processed yet.
    begin: usize,
    end: usize,
    parser: Parser,
    /// The reason to refuse the last request, once earlier requests are answered.
    refusal: Option<Refusal>,
}

/// A reason to refuse a request.
enum Refusal {
    /// The connection ends.
    Malformed(ProtocolError),
    /// The request has been dropped.
    Excess(Excess),
}

impl Input {
    fn new(len: usize) -> Input {
        Input { bytes: vec![0; len], begin: 0, end: 0, parser: Parser::default(), refusal: None }
    }

    fn len(&self) -> usize {
        self.end - self.begin
    }

    /// Makes room behind the unprocessed input, in proportion to its length, so that moving it to the front takes
    /// linear time in all. A client cannot take memory by announcing input that never comes.
    fn make_room(&mut self) {
        let missing = self.parser.len_min().saturating_sub(self.len());
        let room = missing.min(self.len()).max(self.len() / 4).max(READ_BYTES);
        if self.bytes.len() - self.end >= room.min(READ_BYTES / 2) {
            return;
        }
        self.bytes.copy_within(self.begin..self.end, 0);
        (self.begin, self.end) = (0, self.len());
        if self.bytes.len() < self.end + room {
            self.bytes.resize(self.end + room, 0);
        }
    }
}

/// Spare buffers, which no connection uses.
#[derive(Default)]
#[expect(
    clippy::vec_box,
    reason = "boxes go back and forth between here and connections, which keep little else"
)]
pub(super) struct Buffers {
    inputs: Vec<Box<Input>>,
    outputs: Vec<Vec<u8>>,
}

/// Maximum number of spare buffers, and maximum length of each.
const KEPT_MAX: usize = 64;
const KEPT_BYTES_MAX: usize = 64 << 10;

impl Buffers {
    fn input(&mut self) -> Box<Input> {
        self.inputs.pop().unwrap_or_else(|| Box::new(Input::new(READ_BYTES)))
    }

    fn give_back_input(&mut self, mut input: Box<Input>) {
        if self.inputs.len() < KEPT_MAX && input.bytes.len() <= KEPT_BYTES_MAX {
            (input.begin, input.end, input.parser, input.refusal) = (0, 0, Parser::default(), None);
            self.inputs.push(input);
        }
    }

    fn give_back_output(&mut self, mut output: Vec<u8>) {
        if self.outputs.len() < KEPT_MAX && (1..=KEPT_BYTES_MAX).contains(&output.capacity()) {
            output.clear();
            self.outputs.push(output);
        }
    }
}

/// The reason why a connection pauses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pause {
    /// All input is processed.
    Idle,
    /// Queued work must finish first.
    UnderWay,
    /// The batch of a shard is full and must start first.
    Batch,
    /// The client must read its replies first.
    Unsent,
    /// A transaction of another client must end first.
    Held,
}

/// Returns true for an HTTP request, by which a browser may be tricked into sending commands.
fn is_http(args: Args<'_>) -> bool {
    args.get(0).is_some_and(|name| name.eq_ignore_ascii_case(b"post") || name.eq_ignore_ascii_case(b"host:"))
}

impl Connection {
    pub(super) fn new(stream: TcpStream, client: Client) -> Connection {
        let (replies, watched) = (Replies::default(), EventFlags::IN);
        let (queued, input, sent, left) = (None, None, 0, VecDeque::new());
        let (is_held_back, is_closing, has_erred) = (false, false, false);
        let (last_bytes, has_ended, stuck_since) = (None, false, None);
        let (queue, watched_keys, is_waiting) = (None, Vec::new(), false);
        Connection {
            stream,
            replies,
            queued,
            watched,
            client,
            input,
            sent,
            left,
            is_held_back,
            is_closing,
            has_erred,
            last_bytes,
            has_ended,
            queue,
            watched_keys,
            is_waiting,
            stuck_since,
        }
    }

    /// Reads available input. Returns true if the connection continues.
    pub(super) fn read(&mut self, buffers: &mut Buffers) -> io::Result<bool> {
        if !self.is_read() {
            return Ok(true);
        }
        let mut input = self.input.take().unwrap_or_else(|| buffers.input());
        if let Some(left) = &mut self.last_bytes {
            let read = self.stream.read(&mut input.bytes);
            buffers.give_back_input(input);
            return match read {
                Ok(count) => {
                    *left = left.saturating_sub(count);
                    Ok(count > 0 && *left > 0)
                }
                Err(error) if is_for_now(&error) => Ok(true),
                Err(error) => Err(error),
            };
        }
        input.make_room();
        let end = input.end;
        let read = self.stream.read(&mut input.bytes[end..]);
        input.end += *read.as_ref().unwrap_or(&0);
        self.keep(input, buffers);
        match read {
            Ok(0) => {
                // Earlier requests are still executed and answered.
                self.has_ended = true;
                Ok(true)
            }
            Ok(_) => Ok(true),
            Err(error) if is_for_now(&error) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Processes input until the connection must wait.
    pub(super) async fn advance(
        &mut self,
        number: usize,
        backend: &mut Backend,
        store: &mut Store,
        about: &mut About,
        buffers: &mut Buffers,
    ) -> Pause {
        (self.is_held_back, self.is_waiting) = (false, false);
        if !self.left.is_empty() {
            let pause = Box::pin(self.take_up_left(number, backend, store)).await;
            if !self.left.is_empty() {
                self.is_held_back = pause == Pause::Unsent;
                self.is_waiting = pause == Pause::Held;
                return pause;
            }
        }
        let Some(mut held) = self.input.take() else { return Pause::Idle };
        let input = &mut *held;
        if self.replies.bytes.capacity() == 0 {
            self.replies.bytes = buffers.outputs.pop().unwrap_or_default();
        }
        let pause = loop {
            if self.is_closing {
                input.begin = input.end;
                break Pause::Idle;
            }
            if !self.has_room() {
                break Pause::Unsent;
            }
            if let Some(refusal) = &input.refusal {
                if self.queued.is_some() {
                    break Pause::UnderWay;
                }
                match refusal {
                    Refusal::Malformed(error) => self.refuse(&error.to_string()),
                    Refusal::Excess(excess) => {
                        self.replies.push(&Reply::error(format!("ERR {excess}")));
                        self.queue.iter_mut().for_each(|queue| queue.is_refused = true);
                    }
                }
                input.refusal = None;
                continue;
            }
            let there = &input.bytes[input.begin..input.end];
            match input.parser.parse(there) {
                Ok(Parsed::Partial)
                    if !self.client.is_authenticated && there.len() > UNAUTHENTICATED_BYTES_MAX =>
                {
                    self.refuse("unauthenticated request is too long");
                }
                Ok(Parsed::Partial) => break Pause::Idle,
                Ok(Parsed::Dropped(len, excess)) => {
                    input.begin += len;
                    input.refusal = excess.map(Refusal::Excess);
                }
                Ok(Parsed::Request(len)) => {
                    let args = input.parser.args(there);
                    match self.perform(args, &there[..len], number, backend, store, about).await {
                        // The plan is tried again then.
                        Step::Waits => break Pause::UnderWay,
                        Step::IsFull => break Pause::Batch,
                        Step::Held => break Pause::Held,
                        Step::Queued(queued) => self.queued = Some(queued),
                        Step::Done => {}
                    }
                    input.begin += len;
                }
                Err(error) => input.refusal = Some(Refusal::Malformed(error)),
            }
        };
        self.keep(held, buffers);
        self.is_held_back = pause == Pause::Unsent;
        self.is_waiting = pause == Pause::Held;
        pause
    }

    /// Sends an error, and processes no more input.
    fn refuse(&mut self, why: &str) {
        self.replies.push(&Reply::error(format!("ERR Protocol error: {why}")));
        (self.is_closing, self.has_erred) = (true, true);
    }

    /// Executes requests for some of the postponed values.
    async fn take_up_left(&mut self, number: usize, backend: &mut Backend, store: &mut Store) -> Pause {
        let to = Recipient { number, id: self.client.id, protocol: self.replies.protocol };
        let mut queued = 0;
        while let Some(Left { key, reply_kind }) = self.left.front() {
            if !self.has_room() {
                return Pause::Unsent;
            }
            if queued == LEFT_TOGETHER {
                return Pause::UnderWay;
            }
            let query = Query::Get(key, *reply_kind);
            match backend.carry_out(query, (to, self.queued), store, &mut self.replies).await {
                Step::Waits => return Pause::UnderWay,
                Step::IsFull => return Pause::Batch,
                Step::Held => return Pause::Held,
                Step::Queued(waited_for) => {
                    self.queued = Some(waited_for);
                    queued += 1;
                }
                Step::Done => {}
            }
            self.left.pop_front();
        }
        Pause::Idle
    }

    /// Postpones a value again, before the others that are postponed.
    pub(super) fn leave(&mut self, left: Left) {
        self.left.push_front(left);
    }

    /// Starts to close the connection after a protocol error; returns false if it is closed already.
    pub(super) fn take_leave(&mut self) -> bool {
        let begins = self.has_erred && self.last_bytes.is_none() && !self.has_ended;
        if begins {
            self.last_bytes = Some(LAST_BYTES_MAX);
        }
        // The client reads the end of the output while it may still be sending.
        begins && self.stream.shutdown(Shutdown::Write).is_ok()
    }

    async fn perform(
        &mut self,
        args: Args<'_>,
        request: &[u8],
        number: usize,
        backend: &mut Backend,
        store: &mut Store,
        about: &mut About,
    ) -> Step {
        if args.is_empty() {
            return Step::Done;
        }
        let found = commands::find(args);
        let to = Recipient { number, id: self.client.id, protocol: self.replies.protocol };
        let does = found.as_ref().map_or(Does::Ping, |command| command.does);
        let is_about_transactions = self.queue.is_some()
            || matches!(
                does,
                Does::Multi | Does::Exec | Does::Discard | Does::Watch | Does::Unwatch | Does::Reset
            );
        if is_about_transactions && self.client.is_authenticated && !is_http(args) {
            if self.queued.is_some() {
                return Step::Waits;
            }
            if let Some(step) = self.transact(&found, args, request, to, backend, store, about) {
                return step;
            }
        }
        let plan = match &found {
            Ok(command) if self.client.is_authenticated => commands::plan(command, args, unix_ms),
            Ok(_) | Err(_) => Ok(None),
        };
        if let Ok(Some(plan)) = plan {
            let step = backend.carry_out(plan, (to, self.queued), store, &mut self.replies).await;
            about.commands += u64::from(!matches!(step, Step::Waits | Step::IsFull | Step::Held));
            return step;
        }
        if self.queued.is_some() {
            return Step::Waits;
        }
        about.commands += 1;
        match (found, plan) {
            (Err(_), _) if is_http(args) => self.refuse("this is not an HTTP server"),
            (Err(reply), _) | (_, Err(reply)) => self.replies.push(&reply),
            (Ok(command), _) if command.does == Does::Info && self.client.is_authenticated => {
                return backend.look(to, info(args, about));
            }
            (Ok(command), _) => {
                let protocol = &mut self.replies.protocol;
                let (reply, then) = self.client.perform(command, args, protocol, about);
                self.replies.push(&reply);
                self.is_closing = then == Then::Ends;
            }
        }
        Step::Done
    }

    /// Performs a command that is about a transaction, or that is queued for one. Returns `None` if it is neither.
    #[expect(clippy::too_many_arguments, reason = "as perform")]
    fn transact(
        &mut self,
        found: &Result<&'static Command, Reply<'_>>,
        args: Args<'_>,
        request: &[u8],
        to: Recipient,
        backend: &mut Backend,
        store: &Store,
        about: &mut About,
    ) -> Option<Step> {
        about.commands += 1;
        let does = match (found, &mut self.queue) {
            (Err(reply), Some(queue)) => {
                queue.is_refused = true;
                self.replies.push(reply);
                return Some(Step::Done);
            }
            (Err(_), None) => return None,
            (Ok(command), _) => command.does,
        };
        let reply = match (does, &mut self.queue) {
            (Does::Multi, None) => {
                self.queue = Some(Box::default());
                OK
            }
            (Does::Multi, Some(_)) => Reply::error("ERR MULTI calls can not be nested"),
            (Does::Exec, None) => Reply::error("ERR EXEC without MULTI"),
            (Does::Discard, None) => Reply::error("ERR DISCARD without MULTI"),
            (Does::Watch, Some(_)) => Reply::error("ERR WATCH inside MULTI is not allowed"),
            (Does::Watch, None) => {
                let keys: Vec<Vec<u8>> = args.iter().skip(1).map(<[u8]>::to_vec).collect();
                if self.watched_keys.len() + keys.len() <= WATCHED_MAX {
                    return Some(backend.look(to, Operation::Watch(keys)));
                }
                Reply::error(format!("ERR a client watches at most {WATCHED_MAX} keys"))
            }
            (Does::Exec, Some(_)) => {
                let queue = self.queue.take().unwrap_or_default();
                return Some(self.execute(&queue, to, backend, store, about));
            }
            (Does::Reset, _) => {
                (self.queue, self.watched_keys) = Default::default();
                return None;
            }
            (Does::Discard, Some(_)) | (Does::Unwatch, None) => {
                (self.queue, self.watched_keys) = Default::default();
                OK
            }
            (Does::Quit, _) | (_, None) => return None,
            (_, Some(queue)) => queue.push(request).err().unwrap_or(Reply::Status("QUEUED")),
        };
        self.replies.push(&reply);
        Some(Step::Done)
    }

    /// Begins to execute the queued commands.
    fn execute(
        &mut self,
        queue: &Queue,
        to: Recipient,
        backend: &mut Backend,
        store: &Store,
        about: &mut About,
    ) -> Step {
        let watched = std::mem::take(&mut self.watched_keys);
        if queue.is_refused {
            self.replies.push(&Reply::error("EXECABORT Transaction discarded because of previous errors."));
            return Step::Done;
        }
        let (mut parser, mut rest, mut parts) = (Parser::default(), &queue.bytes[..], Vec::new());
        let mut shards = watched.iter().fold(0, |all, (key, _)| all | 1 << store.shard_of(key));
        parts.reserve_exact(queue.count);
        while let Ok(Parsed::Request(len)) = parser.parse(rest) {
            let part = self.part_of(parser.args(rest), backend, store, about).map(|(operation, of_part)| {
                shards |= of_part;
                Part::Work(operation)
            });
            parts.push(part.unwrap_or_else(|reply| {
                let mut bytes = Vec::new();
                reply.write(to.protocol, &mut bytes);
                Part::Reply(bytes)
            }));
            rest = &rest[len..];
        }
        backend.begin(to, Transaction { watched, parts, is_list: true }, shards)
    }

    /// Returns the operation of a queued command, and its shards; or else its reply.
    fn part_of<'a>(
        &mut self,
        args: Args<'a>,
        backend: &Backend,
        store: &Store,
        about: &mut About,
    ) -> Result<(Operation, Shards), Reply<'a>> {
        let command = commands::find(args)?;
        if let Some(plan) = commands::plan(command, args, unix_ms)? {
            return backend.operation_of(plan, store).map_err(|error| refusal(&error));
        }
        if command.does == Does::Info {
            return Ok((info(args, about), 0));
        }
        Err(self.client.perform(command, args, &mut self.replies.protocol, about).0)
    }

    /// Returns true if the connection has this id, and is not a later connection at the same index.
    pub(super) fn is(&self, id: u64) -> bool {
        self.client.id == id
    }

    /// Sends as much output as the system accepts.
    pub(super) fn flush(&mut self, buffers: &mut Buffers) -> io::Result<()> {
        while self.unsent() > 0 {
            match self.stream.write(&self.replies.bytes[self.sent..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => {
                    self.sent += count;
                    self.stuck_since = None;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        if self.unsent() == 0 {
            buffers.give_back_output(std::mem::take(&mut self.replies.bytes));
            self.sent = 0;
        } else if self.sent >= UNSENT_BYTES_MAX {
            self.replies.bytes.drain(..self.sent);
            self.sent = 0;
        }
        Ok(())
    }

    /// Returns the events to wait for.
    pub(super) fn wanted(&self) -> EventFlags {
        let mut wanted = EventFlags::empty();
        wanted.set(EventFlags::IN, self.is_read());
        // Held-back input continues by an event even if all replies have been sent, so that other connections get their
        // turn.
        wanted.set(EventFlags::OUT, self.unsent() > 0 || self.is_held_back);
        wanted
    }

    /// Returns true if all output is sent and no input follows.
    pub(super) fn is_over(&self) -> bool {
        let has_all = self.queued.is_none() && !self.is_held_back && !self.is_waiting && self.left.is_empty();
        let is_done = self.is_closing || self.has_ended && has_all;
        is_done && self.last_bytes.is_none() && self.unsent() == 0
    }

    /// Returns true if input may be read. The pending input of a waiting client is bounded. Requests that wait for the
    /// store continue by themselves. If they wait for the client, it may be sending the rest of its pipeline first.
    fn is_read(&self) -> bool {
        if self.last_bytes.is_some() {
            return true;
        }
        // The rest of a long request is read, too.
        let all = self.input.as_ref().map_or(0, |input| input.parser.len_min());
        let max = if self.queued.is_some() { READ_BYTES } else { WAITING_BYTES_MAX.max(all) };
        !self.is_closing && !self.has_ended && self.waiting() < max
    }

    /// Returns the length of the requests that wait.
    fn waiting(&self) -> usize {
        self.input.as_ref().map_or(0, |input| input.len())
    }

    /// Returns true if requests may be executed, as far as unread replies are concerned.
    pub(super) fn has_room(&self) -> bool {
        self.unsent() < UNSENT_BYTES_MAX
    }

    /// Returns true if the client sends requests up to their limit, and reads no reply.
    pub(super) fn look_if_stuck(&mut self) -> bool {
        if !self.is_held_back || self.has_room() || self.waiting() < WAITING_BYTES_MAX {
            self.stuck_since = None;
            return false;
        }
        self.stuck_since.get_or_insert_with(Instant::now);
        true
    }

    /// Returns the reason to disconnect a client that was stuck for too long.
    pub(super) fn why_cut_off(&self) -> Option<String> {
        self.stuck_since.filter(|since| since.elapsed() >= STUCK)?;
        Some(format!(
            "client {} at {} is disconnected: it has {} bytes of requests waiting (the maximum is \
             {WAITING_BYTES_MAX}), and has read no reply for {} s",
            self.client.id,
            self.client.address,
            self.waiting(),
            STUCK.as_secs()
        ))
    }

    fn unsent(&self) -> usize {
        self.replies.bytes.len() - self.sent
    }

    /// Keeps unprocessed input in as little memory as possible.
    fn keep(&mut self, mut input: Box<Input>, buffers: &mut Buffers) {
        // A request that is being dropped continues without bytes.
        if input.len() == 0 && input.refusal.is_none() && !input.parser.is_dropping() {
            return buffers.give_back_input(input);
        }
        if input.len() <= BEGUN_BYTES && input.bytes.len() > BEGUN_BYTES {
            let mut short = Box::new(Input::new(input.len()));
            short.bytes.copy_from_slice(&input.bytes[input.begin..input.end]);
            short.end = input.len();
            short.parser = std::mem::take(&mut input.parser);
            short.refusal = input.refusal.take();
            buffers.give_back_input(input);
            input = short;
        }
        self.input = Some(input);
    }
}

/// Returns the operation of `INFO`.
fn info(args: Args<'_>, about: &About) -> Operation {
    Operation::Info(args.iter().skip(1).map(<[u8]>::to_vec).collect(), about.clone())
}

fn is_for_now(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

fn unix_ms() -> i64 {
    SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_millis() as i64)
}
