//! A connection: input that is not processed yet, and output that is not sent yet.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant, SystemTime};

use rustix::event::epoll::EventFlags;

use super::super::store::Store;
use super::backend::{Backend, Queued, Shards, Step};
use super::client::{AfterReply, Client, ServerInfo};
use super::commands::{self, Command, CommandKind, Query};
use super::config;
use super::reply::{OK, Replies, Reply};
use super::request::{Args, Excess, Parsed, Parser, ProtocolError};
use super::task::{Operation, PostponedRead, Recipient, Watched, error_reply};
use super::transaction::{CommandQueue, Part, Transaction, WATCHED_MAX};

/// Number of unsent bytes of replies from which on the client's requests wait.
pub(super) const UNSENT_BYTES_MAX: usize = 256 << 10;
/// Number of bytes of waiting requests from which on the server reads no more input. It is large for clients that send
/// their whole pipeline before they read a reply.
const WAITING_BYTES_MAX: usize = 128 << 20;
/// Maximum length of an incomplete request of a client that has not given the password.
const UNAUTHENTICATED_BYTES_MAX: usize = 16 << 10;
/// Time without progress after which the server disconnects a client that reads no replies.
const STUCK_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of postponed reads that run at the same time.
const POSTPONED_BATCH_MAX: usize = 16;
/// Maximum number of bytes that the server reads and discards after a protocol error. If it closed the connection with
/// unread input, the system would reset it, and the client could lose the error.
const DISCARD_BYTES_MAX: usize = 64 << 20;
/// Free bytes of the buffer for a read.
const READ_BYTES: usize = 16 << 10;
/// An incomplete request of at most this length is moved to a buffer of its length.
const SHORT_INPUT_BYTES: usize = 2 << 10;

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
    /// Reads that wait until the client has read its earlier replies.
    postponed: VecDeque<PostponedRead>,
    /// True if requests wait until the client has read its replies.
    awaits_client: bool,
    is_closing: bool,
    has_protocol_error: bool,
    /// After a protocol error, the number of bytes that the server still reads and discards.
    discard_bytes: Option<usize>,
    /// True if the client sends no more input.
    input_ended: bool,
    /// Commands after `MULTI`.
    queue: Option<Box<CommandQueue>>,
    /// Keys that must not change before `EXEC`.
    pub(super) watched_keys: Vec<Watched>,
    /// True if a request waits for the end of a transaction of another client.
    awaits_transaction: bool,
    /// Time at which the client became stuck: its requests reached their limit, and it reads no replies.
    stuck_since: Option<Instant>,
}

/// Input of a connection.
pub(super) struct Input {
    bytes: Vec<u8>,
    /// Start of the input that is not processed yet.
    begin: usize,
    end: usize,
    parser: Parser,
    /// The reason to refuse the last request. The refusal follows the replies to earlier requests.
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

    /// Makes room after the unprocessed input. The room is in proportion to the input received, so that all moves to
    /// the front take linear time, and a client cannot occupy memory by announcing input that it does not send.
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

/// Buffers for reuse, which no connection holds.
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
const SPARE_MAX: usize = 64;
const SPARE_BYTES_MAX: usize = 64 << 10;

impl Buffers {
    fn input(&mut self) -> Box<Input> {
        self.inputs.pop().unwrap_or_else(|| Box::new(Input::new(READ_BYTES)))
    }

    fn recycle_input(&mut self, mut input: Box<Input>) {
        if self.inputs.len() < SPARE_MAX && input.bytes.len() <= SPARE_BYTES_MAX {
            (input.begin, input.end, input.parser, input.refusal) = (0, 0, Parser::default(), None);
            self.inputs.push(input);
        }
    }

    fn recycle_output(&mut self, mut output: Vec<u8>) {
        if self.outputs.len() < SPARE_MAX && (1..=SPARE_BYTES_MAX).contains(&output.capacity()) {
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
    QueuedWork,
    /// The batch of a shard is full and must start first.
    BatchFull,
    /// The client must read its replies first.
    Unsent,
    /// A transaction of another client must end first.
    ShardReserved,
}

/// Returns true for an HTTP request, by which a browser may be tricked into sending commands.
fn is_http(args: Args<'_>) -> bool {
    args.get(0).is_some_and(|name| name.eq_ignore_ascii_case(b"post") || name.eq_ignore_ascii_case(b"host:"))
}

impl Connection {
    pub(super) fn new(stream: TcpStream, client: Client) -> Connection {
        let (replies, watched) = (Replies::default(), EventFlags::IN);
        let (queued, input, sent, postponed) = (None, None, 0, VecDeque::new());
        let (awaits_client, is_closing, has_protocol_error) = (false, false, false);
        let (discard_bytes, input_ended, stuck_since) = (None, false, None);
        let (queue, watched_keys, awaits_transaction) = (None, Vec::new(), false);
        Connection {
            stream,
            replies,
            queued,
            watched,
            client,
            input,
            sent,
            postponed,
            awaits_client,
            is_closing,
            has_protocol_error,
            discard_bytes,
            input_ended,
            queue,
            watched_keys,
            awaits_transaction,
            stuck_since,
        }
    }

    /// Reads available input. Returns true if the connection continues.
    pub(super) fn read(&mut self, buffers: &mut Buffers) -> io::Result<bool> {
        if !self.may_read() {
            return Ok(true);
        }
        let mut input = self.input.take().unwrap_or_else(|| buffers.input());
        if let Some(remaining) = &mut self.discard_bytes {
            let read = self.stream.read(&mut input.bytes);
            buffers.recycle_input(input);
            return match read {
                Ok(count) => {
                    *remaining = remaining.saturating_sub(count);
                    Ok(count > 0 && *remaining > 0)
                }
                Err(error) if is_transient(&error) => Ok(true),
                Err(error) => Err(error),
            };
        }
        input.make_room();
        let end = input.end;
        let read = self.stream.read(&mut input.bytes[end..]);
        input.end += *read.as_ref().unwrap_or(&0);
        self.store_input(input, buffers);
        match read {
            Ok(0) => {
                // Earlier requests are still executed and answered.
                self.input_ended = true;
                Ok(true)
            }
            Ok(_) => Ok(true),
            Err(error) if is_transient(&error) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Processes input until the connection must wait.
    pub(super) async fn advance(
        &mut self,
        number: usize,
        backend: &mut Backend,
        store: &mut Store,
        server_info: &mut ServerInfo,
        buffers: &mut Buffers,
    ) -> Pause {
        (self.awaits_client, self.awaits_transaction) = (false, false);
        if !self.postponed.is_empty() {
            let pause = Box::pin(self.execute_postponed(number, backend, store)).await;
            if !self.postponed.is_empty() {
                self.awaits_client = pause == Pause::Unsent;
                self.awaits_transaction = pause == Pause::ShardReserved;
                return pause;
            }
        }
        let Some(mut boxed) = self.input.take() else { return Pause::Idle };
        let input = &mut *boxed;
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
                    break Pause::QueuedWork;
                }
                match refusal {
                    Refusal::Malformed(error) => self.fail_protocol(&error.to_string()),
                    Refusal::Excess(excess) => {
                        self.replies.push(&Reply::error(format!("ERR {excess}")));
                        self.queue.iter_mut().for_each(|queue| queue.is_refused = true);
                    }
                }
                input.refusal = None;
                continue;
            }
            let pending = &input.bytes[input.begin..input.end];
            match input.parser.parse(pending) {
                Ok(Parsed::Partial)
                    if !self.client.is_authenticated && pending.len() > UNAUTHENTICATED_BYTES_MAX =>
                {
                    self.fail_protocol("unauthenticated request is too long");
                }
                Ok(Parsed::Partial) => break Pause::Idle,
                Ok(Parsed::Dropped(len, excess)) => {
                    input.begin += len;
                    input.refusal = excess.map(Refusal::Excess);
                }
                Ok(Parsed::Request(len)) => {
                    let args = input.parser.args(pending);
                    match self
                        .execute_request(args, &pending[..len], number, backend, store, server_info)
                        .await
                    {
                        // The request is parsed and planned again afterwards.
                        Step::MustWait => break Pause::QueuedWork,
                        Step::BatchFull => break Pause::BatchFull,
                        Step::ShardReserved => break Pause::ShardReserved,
                        Step::Queued(queued) => self.queued = Some(queued),
                        Step::Done => {}
                    }
                    input.begin += len;
                }
                Err(error) => input.refusal = Some(Refusal::Malformed(error)),
            }
        };
        self.store_input(boxed, buffers);
        self.awaits_client = pause == Pause::Unsent;
        self.awaits_transaction = pause == Pause::ShardReserved;
        pause
    }

    /// Sends a protocol error, and processes no more input.
    fn fail_protocol(&mut self, reason: &str) {
        self.replies.push(&Reply::error(format!("ERR Protocol error: {reason}")));
        (self.is_closing, self.has_protocol_error) = (true, true);
    }

    /// Executes some of the postponed reads.
    async fn execute_postponed(&mut self, number: usize, backend: &mut Backend, store: &mut Store) -> Pause {
        let to = Recipient { number, id: self.client.id, protocol: self.replies.protocol };
        let mut queued = 0;
        while let Some(PostponedRead { key, reply_kind }) = self.postponed.front() {
            if !self.has_room() {
                return Pause::Unsent;
            }
            if queued == POSTPONED_BATCH_MAX {
                return Pause::QueuedWork;
            }
            let query = Query::Get(key, *reply_kind);
            match backend.execute(query, (to, self.queued), store, &mut self.replies).await {
                Step::MustWait => return Pause::QueuedWork,
                Step::BatchFull => return Pause::BatchFull,
                Step::ShardReserved => return Pause::ShardReserved,
                Step::Queued(work) => {
                    self.queued = Some(work);
                    queued += 1;
                }
                Step::Done => {}
            }
            self.postponed.pop_front();
        }
        Pause::Idle
    }

    /// Puts a read before the other postponed reads.
    pub(super) fn postpone(&mut self, read: PostponedRead) {
        self.postponed.push_front(read);
    }

    /// Starts to close the connection after a protocol error. Returns false if the connection must be closed at once.
    pub(super) fn start_closing(&mut self) -> bool {
        let starts = self.has_protocol_error && self.discard_bytes.is_none() && !self.input_ended;
        if starts {
            self.discard_bytes = Some(DISCARD_BYTES_MAX);
        }
        // The client reads the error and the end of the output, even if it is still sending.
        starts && self.stream.shutdown(Shutdown::Write).is_ok()
    }

    async fn execute_request(
        &mut self,
        args: Args<'_>,
        request: &[u8],
        number: usize,
        backend: &mut Backend,
        store: &mut Store,
        server_info: &mut ServerInfo,
    ) -> Step {
        if args.is_empty() {
            return Step::Done;
        }
        let found = commands::find(args);
        let to = Recipient { number, id: self.client.id, protocol: self.replies.protocol };
        let kind = found.as_ref().map_or(CommandKind::Ping, |command| command.kind);
        let belongs_to_transaction = self.queue.is_some()
            || matches!(
                kind,
                CommandKind::Multi
                    | CommandKind::Exec
                    | CommandKind::Discard
                    | CommandKind::Watch
                    | CommandKind::Unwatch
                    | CommandKind::Reset
            );
        if belongs_to_transaction && self.client.is_authenticated && !is_http(args) {
            if self.queued.is_some() {
                return Step::MustWait;
            }
            if let Some(step) =
                self.handle_transaction_command(&found, args, request, to, backend, store, server_info)
            {
                return step;
            }
        }
        let plan = match &found {
            Ok(command) if self.client.is_authenticated => commands::plan(command, args, unix_ms),
            Ok(_) | Err(_) => Ok(None),
        };
        if let Ok(Some(plan)) = plan {
            let step = backend.execute(plan, (to, self.queued), store, &mut self.replies).await;
            server_info.commands +=
                u64::from(!matches!(step, Step::MustWait | Step::BatchFull | Step::ShardReserved));
            return step;
        }
        if self.queued.is_some() {
            return Step::MustWait;
        }
        server_info.commands += 1;
        match (found, plan) {
            (Err(_), _) if is_http(args) => self.fail_protocol("this is not an HTTP server"),
            (Err(reply), _) | (_, Err(reply)) => self.replies.push(&reply),
            (Ok(command), _) => {
                if self.client.is_authenticated
                    && let Some(operation) = keyless_operation(command, args, server_info)
                {
                    return backend.queue_keyless_operation(to, operation);
                }
                let protocol = &mut self.replies.protocol;
                let (reply, after) = self.client.execute(command, args, protocol, server_info);
                self.replies.push(&reply);
                self.is_closing = after == AfterReply::Close;
            }
        }
        Step::Done
    }

    /// Handles a command that controls a transaction, or queues it for one. Returns `None` if the command is executed
    /// as usual.
    #[expect(clippy::too_many_arguments, reason = "as execute_request")]
    fn handle_transaction_command(
        &mut self,
        found: &Result<&'static Command, Reply<'_>>,
        args: Args<'_>,
        request: &[u8],
        to: Recipient,
        backend: &mut Backend,
        store: &Store,
        server_info: &mut ServerInfo,
    ) -> Option<Step> {
        server_info.commands += 1;
        let kind = match (found, &mut self.queue) {
            (Err(reply), Some(queue)) => {
                queue.is_refused = true;
                self.replies.push(reply);
                return Some(Step::Done);
            }
            (Err(_), None) => return None,
            (Ok(command), _) => command.kind,
        };
        let reply = match (kind, &mut self.queue) {
            (CommandKind::Multi, None) => {
                self.queue = Some(Box::default());
                OK
            }
            (CommandKind::Multi, Some(_)) => Reply::error("ERR MULTI calls can not be nested"),
            (CommandKind::Exec, None) => Reply::error("ERR EXEC without MULTI"),
            (CommandKind::Discard, None) => Reply::error("ERR DISCARD without MULTI"),
            (CommandKind::Watch, Some(_)) => Reply::error("ERR WATCH inside MULTI is not allowed"),
            (CommandKind::Watch, None) => {
                let keys: Vec<Vec<u8>> = args.iter().skip(1).map(<[u8]>::to_vec).collect();
                if self.watched_keys.len() + keys.len() <= WATCHED_MAX {
                    return Some(backend.queue_keyless_operation(to, Operation::Watch(keys)));
                }
                Reply::error(format!("ERR a client watches at most {WATCHED_MAX} keys"))
            }
            (CommandKind::Exec, Some(_)) => {
                let queue = self.queue.take().unwrap_or_default();
                return Some(self.start_transaction(&queue, to, backend, store, server_info));
            }
            (CommandKind::Reset, _) => {
                (self.queue, self.watched_keys) = Default::default();
                return None;
            }
            (CommandKind::Discard, Some(_)) | (CommandKind::Unwatch, None) => {
                (self.queue, self.watched_keys) = Default::default();
                OK
            }
            (CommandKind::Quit, _) | (_, None) => return None,
            (_, Some(queue)) => queue.push(request).err().unwrap_or(Reply::Status("QUEUED")),
        };
        self.replies.push(&reply);
        Some(Step::Done)
    }

    /// Starts the transaction of the queued commands.
    fn start_transaction(
        &mut self,
        queue: &CommandQueue,
        to: Recipient,
        backend: &mut Backend,
        store: &Store,
        server_info: &mut ServerInfo,
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
            let part = self.transaction_part(parser.args(rest), backend, store, server_info).map(
                |(operation, of_part)| {
                    shards |= of_part;
                    Part::Work(operation)
                },
            );
            parts.push(part.unwrap_or_else(|reply| {
                let mut bytes = Vec::new();
                // HELLO has changed the protocol.
                reply.write(self.replies.protocol, &mut bytes);
                Part::Reply(bytes)
            }));
            rest = &rest[len..];
        }
        backend.queue_transaction(to, Transaction { watched, parts, is_list: true }, shards)
    }

    /// Returns the operation of a queued command, and its shards; the reply if the command has no operation.
    fn transaction_part<'a>(
        &mut self,
        args: Args<'a>,
        backend: &Backend,
        store: &Store,
        server_info: &mut ServerInfo,
    ) -> Result<(Operation, Shards), Reply<'a>> {
        let command = commands::find(args)?;
        if let Some(plan) = commands::plan(command, args, unix_ms)? {
            return backend.operation_of(plan, store).map_err(|error| error_reply(&error));
        }
        if let Some(operation) = keyless_operation(command, args, server_info) {
            return Ok((operation, 0));
        }
        Err(self.client.execute(command, args, &mut self.replies.protocol, server_info).0)
    }

    /// Returns true if the connection has this id, and is not a later connection at the same index.
    pub(super) fn has_id(&self, id: u64) -> bool {
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
            buffers.recycle_output(std::mem::take(&mut self.replies.bytes));
            self.sent = 0;
        } else if self.sent >= UNSENT_BYTES_MAX {
            self.replies.bytes.drain(..self.sent);
            self.sent = 0;
        }
        Ok(())
    }

    /// Returns the events to wait for.
    pub(super) fn wanted_events(&self) -> EventFlags {
        let mut wanted = EventFlags::empty();
        wanted.set(EventFlags::IN, self.may_read());
        // If requests wait for the client although all replies are sent, this event resumes them in the next turn,
        // after other connections.
        wanted.set(EventFlags::OUT, self.unsent() > 0 || self.awaits_client);
        wanted
    }

    /// Returns true if all output is sent and no input follows.
    pub(super) fn is_finished(&self) -> bool {
        let has_all = self.queued.is_none()
            && !self.awaits_client
            && !self.awaits_transaction
            && self.postponed.is_empty();
        let is_done = self.is_closing || self.input_ended && has_all;
        is_done && self.discard_bytes.is_none() && self.unsent() == 0
    }

    /// Returns true if input may be read. The limit is low while requests wait for the store, which ends without the
    /// client. It is high while they wait for the client, which may send the rest of its pipeline before it reads.
    fn may_read(&self) -> bool {
        if self.discard_bytes.is_some() {
            return true;
        }
        // A request may be longer than the limit.
        let all = self.input.as_ref().map_or(0, |input| input.parser.len_min());
        let max = if self.queued.is_some() { READ_BYTES } else { WAITING_BYTES_MAX.max(all) };
        !self.is_closing && !self.input_ended && self.waiting_bytes() < max
    }

    /// Returns the number of bytes of input that is not processed yet.
    fn waiting_bytes(&self) -> usize {
        self.input.as_ref().map_or(0, |input| input.len())
    }

    /// Returns true if the unsent replies permit the execution of requests.
    pub(super) fn has_room(&self) -> bool {
        self.unsent() < UNSENT_BYTES_MAX
    }

    /// Returns true if the client is stuck: its waiting requests reached their limit, and it reads no replies.
    pub(super) fn check_stuck(&mut self) -> bool {
        if !self.awaits_client || self.has_room() || self.waiting_bytes() < WAITING_BYTES_MAX {
            self.stuck_since = None;
            return false;
        }
        self.stuck_since.get_or_insert_with(Instant::now);
        true
    }

    /// Returns the reason to disconnect a client that was stuck for too long.
    pub(super) fn disconnect_reason(&self) -> Option<String> {
        self.stuck_since.filter(|since| since.elapsed() >= STUCK_TIMEOUT)?;
        Some(format!(
            "client {} at {} is disconnected: it has {} bytes of requests waiting (the maximum is \
             {WAITING_BYTES_MAX}), and has read no reply for {} s",
            self.client.id,
            self.client.address,
            self.waiting_bytes(),
            STUCK_TIMEOUT.as_secs()
        ))
    }

    fn unsent(&self) -> usize {
        self.replies.bytes.len() - self.sent
    }

    /// Stores unprocessed input in as little memory as possible.
    fn store_input(&mut self, mut input: Box<Input>, buffers: &mut Buffers) {
        // A request that is being dropped has parser state, even without bytes.
        if input.len() == 0 && input.refusal.is_none() && !input.parser.is_dropping() {
            return buffers.recycle_input(input);
        }
        if input.len() <= SHORT_INPUT_BYTES && input.bytes.len() > SHORT_INPUT_BYTES {
            let mut short = Box::new(Input::new(input.len()));
            short.bytes.copy_from_slice(&input.bytes[input.begin..input.end]);
            short.end = input.len();
            short.parser = std::mem::take(&mut input.parser);
            short.refusal = input.refusal.take();
            buffers.recycle_input(input);
            input = short;
        }
        self.input = Some(input);
    }
}

/// Returns the operation of a command without keys that concerns the owners.
fn keyless_operation(command: &Command, args: Args<'_>, server_info: &mut ServerInfo) -> Option<Operation> {
    match command.kind {
        CommandKind::Info => {
            Some(Operation::Info(args.iter().skip(1).map(<[u8]>::to_vec).collect(), server_info.clone()))
        }
        CommandKind::Config => {
            server_info.limit = config::parse_set(args, server_info).ok()?;
            Some(Operation::SetLimit(server_info.limit))
        }
        _ => None,
    }
}

fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

fn unix_ms() -> i64 {
    SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_millis() as i64)
}
