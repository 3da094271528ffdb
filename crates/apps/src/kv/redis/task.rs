//! Tasks execute requests to owners in other processes, by calls or by reads of their memory. A task may wait, and the
//! holder of a shard's lock must not, so tasks access the shards of this process by calls, too.

use std::collections::BTreeMap;
use std::ops::Range;

use halite::{CallError, PendingCall};

use super::super::error::KvError;
use super::super::limit::MemoryLimit;
use super::super::shard::SCAN_MAX;
use super::super::store::{BoundedRead, Store, split_cursor};
use super::super::wire::{Answer, Request, parts};
use super::backend::Shards;
use super::client::{ServerInfo, info};
use super::commands::{ReplyKind, Total};
use super::connection::UNSENT_BYTES_MAX;
use super::glob;
use super::multi_key::MultiKeyCommand;
use super::reply::{OK, Protocol, Replies, Reply};
use super::transaction::Transaction;

/// Maximum length of a reply, in bytes; a reply is assembled before it is written.
pub const REPLY_BYTES_MAX: usize = 64 << 20;
/// Number of keys per request when a client requests all keys.
const KEYS_PER_SCAN: u64 = 1_000;
/// Maximum number of requests in a batch, and of their bytes.
pub(super) const BATCH_MAX: usize = 256;
pub(super) const BATCH_BYTES_MAX: usize = 1 << 20;

/// The connection that receives a reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Recipient {
    /// Index of the connection.
    pub(super) number: usize,
    /// Id of the connection, because indices are reused.
    pub(super) id: u64,
    pub(super) protocol: Protocol,
}

/// Work that may wait for owners.
pub(super) enum Task {
    /// Requests of many clients to one shard.
    Batch(Batch),
    /// An operation of one client on some shards.
    ForClient(Recipient, Operation, Shards),
    /// A transaction of one client on some shards.
    Transaction(Recipient, Transaction, Shards),
    /// Limits the memory of all shards, one of which has another owner.
    RestoreLimit(MemoryLimit),
}

/// An operation of one client that concerns several keys or shards, or returns a value.
pub(super) enum Operation {
    /// An encoded request to the owner of a shard.
    Request { shard: usize, request: Vec<u8>, reply_kind: ReplyKind },
    /// Reads the value of a key.
    Get { key: Vec<u8>, reply_kind: ReplyKind },
    /// Encoded requests, each with its shard, and the sum of the answers received before.
    Requests { requests: Vec<(usize, Vec<u8>)>, sum: Sum, total: Total },
    /// Values of several keys. `remote` holds the keys of the values that are not known yet, with their indices.
    GetMany { values: Vec<Option<Vec<u8>>>, remote: Vec<(usize, Vec<u8>)> },
    /// Some keys, about `count`, that match the pattern.
    Scan { cursor: u64, count: u64, pattern: Vec<u8>, is_of_strings: bool },
    /// All keys that match the pattern.
    Keys(Vec<u8>),
    /// A command on several keys. No other request may use their shards meanwhile.
    MultiKey(MultiKeyCommand),
    /// A key chosen at random.
    RandomKey,
    /// The number of keys.
    Count,
    /// Removes all keys.
    Clear,
    /// Limits the memory of all shards.
    SetLimit(MemoryLimit),
    /// The reply to `INFO`, with these sections.
    Info(Vec<Vec<u8>>, ServerInfo),
    /// Watches keys.
    Watch(Vec<Vec<u8>>),
}

/// Replies with their recipients.
#[derive(Default)]
pub(super) struct Completion {
    pub(super) bytes: Vec<u8>,
    /// Recipient of each reply, and the offset in `bytes` at which the reply ends.
    pub(super) parts: Vec<(Recipient, usize)>,
    /// Reads that were not executed, because their client must read other replies first.
    pub(super) postponed: Vec<(Recipient, PostponedRead)>,
    /// Keys that the only recipient watches from now on.
    pub(super) watched: Vec<Watched>,
    /// The shards of the task.
    pub(super) shards: Shards,
    /// The client, if the task was its transaction.
    pub(super) transaction: Option<Recipient>,
}

/// A key, and the number of its changes when its client began to watch it.
pub(super) type Watched = (Vec<u8>, i64);

/// A read of a value that was postponed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct PostponedRead {
    pub(super) key: Vec<u8>,
    pub(super) reply_kind: ReplyKind,
}

impl Completion {
    fn push(&mut self, to: Recipient, reply: &Reply<'_>) {
        reply.write(to.protocol, &mut self.bytes);
        self.parts.push((to, self.bytes.len()));
    }

    fn of(to: Recipient, reply: &Reply<'_>) -> Completion {
        let mut completion = Completion::default();
        completion.push(to, reply);
        completion
    }

    fn has_postponed(&self, to: Recipient) -> bool {
        self.postponed.iter().any(|(other, _)| *other == to)
    }
}

/// Limits the bytes of values that a batch reads for each client.
struct ReplyRoom {
    /// For each read, the index of its client in `used`.
    clients: Vec<usize>,
    /// For each client, the bytes of its values so far.
    used: Vec<usize>,
}

impl ReplyRoom {
    fn new(entries: &[Entry]) -> ReplyRoom {
        let mut places = BTreeMap::new();
        let readers = entries.iter().filter(|entry| entry.is_read);
        let clients = readers.map(|entry| {
            let next = places.len();
            *places.entry(entry.to.number).or_insert(next)
        });
        let clients = clients.collect();
        ReplyRoom { clients, used: vec![0; places.len()] }
    }

    /// Counts the bytes of the value of read number `index` for its client. Returns false if the client had reached the
    /// limit before.
    fn reserve(&mut self, index: usize, bytes: usize) -> bool {
        let used = &mut self.used[self.clients[index]];
        let has_room = *used < UNSENT_BYTES_MAX;
        *used += bytes;
        has_room
    }
}

/// Sum of the answers to several requests.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Sum {
    count: i64,
    /// The first error.
    first_error: Option<String>,
}

impl Sum {
    pub(super) fn add(&mut self, reply: Reply<'_>) {
        match reply {
            Reply::Integer(number) => self.count += number,
            Reply::Error(text) => self.first_error = self.first_error.take().or(Some(text)),
            _ => {}
        }
    }

    pub(super) fn reply(self, total: Total) -> Reply<'static> {
        match (self.first_error, total) {
            (Some(text), _) => Reply::Error(text),
            (None, Total::Count) => Reply::Integer(self.count),
            (None, Total::Done) => OK,
        }
    }
}

/// Requests of many clients to one shard.
pub(super) struct Batch {
    shard: usize,
    /// Encoded requests, and keys to read.
    bytes: Vec<u8>,
    entries: Vec<Entry>,
    request: Vec<u8>,
}

struct Entry {
    to: Recipient,
    range: Range<usize>,
    reply_kind: ReplyKind,
    is_read: bool,
}

impl Batch {
    pub(super) fn new(shard: usize) -> Batch {
        Batch { shard, bytes: Vec::new(), entries: Vec::new(), request: Vec::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn is_full(&self) -> bool {
        self.entries.len() >= BATCH_MAX || self.bytes.len() >= BATCH_BYTES_MAX
    }

    /// Returns the shard if the batch only reads values.
    pub(super) fn read_only_shard(&self) -> Option<usize> {
        self.entries.iter().all(|entry| entry.is_read).then_some(self.shard)
    }

    /// Returns the recipients of replies.
    pub(super) fn recipients(&self) -> impl Iterator<Item = Recipient> {
        self.entries.iter().map(|entry| entry.to)
    }

    /// Adds a request whose answer has no value.
    pub(super) fn push_request(
        &mut self,
        to: Recipient,
        store: u64,
        request: &Request<'_>,
        reply_kind: ReplyKind,
    ) {
        request.encode(store, &mut self.request);
        let begin = self.bytes.len();
        self.bytes.extend_from_slice(&self.request);
        self.entries.push(Entry { to, range: begin..self.bytes.len(), reply_kind, is_read: false });
    }

    /// Adds a read of a key.
    pub(super) fn push_read(&mut self, to: Recipient, key: &[u8], reply_kind: ReplyKind) {
        let begin = self.bytes.len();
        self.bytes.extend_from_slice(key);
        self.entries.push(Entry { to, range: begin..self.bytes.len(), reply_kind, is_read: true });
    }

    /// Returns the keys of the reads if `is_read`, otherwise the encoded requests.
    fn inputs(&self, is_read: bool) -> Vec<&[u8]> {
        let some = self.entries.iter().filter(|entry| entry.is_read == is_read);
        some.map(|entry| &self.bytes[entry.range.clone()]).collect()
    }

    async fn execute(self, store: &mut Store) -> Completion {
        let requests = self.inputs(false);
        let posted = match requests.is_empty() {
            true => None,
            false => Some(store.post_batch(self.shard, &requests).await),
        };
        let mut completion = Completion::default();
        // The reads run while the call is pending. Replies wait for both, which depend on the same owner.
        let mut reply_room = ReplyRoom::new(&self.entries);
        let mut has_room = |index, bytes| reply_room.reserve(index, bytes);
        let mut values = store.get_many_bounded(&self.inputs(true), &mut has_room).await.map(Vec::into_iter);
        let answered = await_answers(posted).await;
        let mut answers = answered.as_deref().map(Answer::each);
        for entry in &self.entries {
            if entry.is_read {
                match &mut values {
                    Ok(values) => match values.next().expect("there is one value for each read") {
                        // After a postponed read, later reads of the client are postponed, too, to keep their order.
                        BoundedRead::Value(value) if !completion.has_postponed(entry.to) => {
                            completion.push(entry.to, &entry.reply_kind.of_value(value.as_deref()));
                        }
                        _ => {
                            let key = self.bytes[entry.range.clone()].to_vec();
                            completion
                                .postponed
                                .push((entry.to, PostponedRead { key, reply_kind: entry.reply_kind }));
                        }
                    },
                    Err(error) => completion.push(entry.to, &error_reply(error)),
                }
                continue;
            }
            match &mut answers {
                Ok(answers) => completion.push(entry.to, &entry.reply_kind.of(answers.next().flatten())),
                Err(error) => completion.push(entry.to, &error_reply(error)),
            }
        }
        completion
    }
}

impl Task {
    /// Executes the task, and waits for owners if necessary.
    pub(super) async fn execute(self, store: &mut Store) -> Completion {
        let shards = self.shards();
        let completion = match self {
            Task::Batch(batch) => batch.execute(store).await,
            Task::ForClient(to, Operation::Watch(keys), _) => match watch(store, keys).await {
                Ok(watched) => Completion { watched, ..Completion::of(to, &OK) },
                Err(error) => Completion::of(to, &error_reply(&error)),
            },
            Task::RestoreLimit(limit) => {
                if let Err(error) = store.set_limit(limit).await {
                    tracing::warn!("cannot set the limit of the memory of a shard: {error}");
                }
                Completion::default()
            }
            Task::ForClient(to, operation, _) => {
                let mut replies = Replies { protocol: to.protocol, bytes: Vec::new() };
                if let Err(error) = operation.execute(store, &mut replies).await {
                    replies.push(&error_reply(&error));
                }
                let parts = vec![(to, replies.bytes.len())];
                Completion { bytes: replies.bytes, parts, ..Completion::default() }
            }
            Task::Transaction(to, transaction, shards) => {
                let mut replies = Replies { protocol: to.protocol, bytes: Vec::new() };
                if let Err(error) = transaction.execute(store, shards, &mut replies).await {
                    replies.bytes.clear();
                    replies.push(&error_reply(&error));
                }
                let parts = vec![(to, replies.bytes.len())];
                Completion { bytes: replies.bytes, parts, transaction: Some(to), ..Completion::default() }
            }
        };
        Completion { shards, ..completion }
    }

    pub(super) fn shards(&self) -> Shards {
        match self {
            Task::Batch(batch) => 1 << batch.shard,
            Task::ForClient(_, _, shards) | Task::Transaction(_, _, shards) => *shards,
            Task::RestoreLimit(_) => 0,
        }
    }
}

/// Returns the keys with their change counts.
async fn watch(store: &mut Store, keys: Vec<Vec<u8>>) -> Result<Vec<Watched>, KvError> {
    let mut watched = Vec::with_capacity(keys.len());
    for key in keys {
        let changes = change_count(store, &key).await?;
        watched.push((key, changes));
    }
    Ok(watched)
}

/// Returns the change count of a key, by the counter that its owner keeps.
pub(super) async fn change_count(store: &mut Store, key: &[u8]) -> Result<i64, KvError> {
    let shard = store.shard_of(key);
    let answer = store.request(shard, &Request::Watch { key }).await?;
    match Answer::decode(&answer) {
        Some(Answer::Number(changes)) => Ok(changes),
        other => Err(store.error_of(shard, other)),
    }
}

impl Operation {
    pub(super) async fn execute(self, store: &mut Store, replies: &mut Replies) -> Result<(), KvError> {
        match self {
            Operation::Get { key, reply_kind } => {
                let value = store.get(&key).await?;
                replies.push(&reply_kind.of_value(value.as_deref()));
            }
            Operation::Request { shard, request, reply_kind } => {
                let answer = store.request_encoded(shard, &request).await?;
                replies.push(&reply_kind.of(Answer::decode(&answer)));
            }
            Operation::Requests { requests, mut sum, total } => {
                send_requests(store, &requests, &mut sum).await;
                replies.push(&sum.reply(total));
            }
            Operation::GetMany { mut values, remote } => {
                let mut bytes = 0;
                for some in remote.chunks(BATCH_MAX) {
                    let keys: Vec<&[u8]> = some.iter().map(|(_, key)| &key[..]).collect();
                    for ((place, _), value) in some.iter().zip(store.get_many(&keys).await?) {
                        bytes += value.as_ref().map_or(0, Vec::len);
                        values[*place] = value;
                    }
                    if bytes > REPLY_BYTES_MAX {
                        break;
                    }
                }
                replies.push(&array_reply(&values));
            }
            Operation::Scan { cursor, count, pattern, is_of_strings } => {
                let (next, mut keys) = scan(store, cursor, count, &pattern).await?;
                if !is_of_strings {
                    keys.clear();
                }
                let keys = keys.iter().map(|key| Reply::Bulk(key)).collect();
                replies.push(&Reply::Array(vec![Reply::Text(next.to_string()), Reply::Array(keys)]));
            }
            Operation::Keys(pattern) => {
                let (mut cursor, mut keys, mut bytes) = (0, Vec::new(), 0);
                loop {
                    let (next, some) = scan(store, cursor, KEYS_PER_SCAN, &pattern).await?;
                    bytes += some.iter().map(Vec::len).sum::<usize>();
                    keys.extend(some);
                    if bytes > REPLY_BYTES_MAX {
                        replies.push(&reply_too_long());
                        return Ok(());
                    }
                    if next == 0 {
                        break;
                    }
                    cursor = next;
                }
                replies.push(&Reply::Array(keys.iter().map(|key| Reply::Bulk(key)).collect()));
            }
            Operation::MultiKey(command) => command.execute(store, replies).await?,
            Operation::RandomKey => {
                let key = random_key(store).await?;
                replies.push(&key.as_deref().map_or(Reply::Null, Reply::Bulk));
            }
            Operation::Count => replies.push(&Reply::Integer(store.count().await? as i64)),
            Operation::Clear => {
                store.clear().await?;
                replies.push(&OK);
            }
            Operation::SetLimit(limit) => {
                store.set_limit(limit).await?;
                replies.push(&OK);
            }
            Operation::Info(sections, server_info) => {
                let totals = store.totals().await;
                replies.push(&info(&sections, &server_info, totals));
            }
            // `WATCH` has no effect in a transaction.
            Operation::Watch(_) => replies.push(&OK),
        }
        Ok(())
    }
}

/// Waits for an owner's answer to a batch. Returns an empty answer if no batch was posted.
pub(super) async fn await_answers(
    posted: Option<Result<PendingCall, CallError>>,
) -> Result<Vec<u8>, KvError> {
    match posted {
        None => Ok(Vec::new()),
        Some(Ok(call)) => Ok(call.answer().await?),
        Some(Err(error)) => Err(error.into()),
    }
}

/// Sends requests to their shards in batches, and adds the answers to `sum`. Continues after an error.
async fn send_requests(store: &mut Store, requests: &[(usize, Vec<u8>)], sum: &mut Sum) {
    let mut begin = 0;
    while begin < requests.len() {
        let (mut end, mut bytes) = (begin, 0);
        while end < requests.len() && end - begin < BATCH_MAX && bytes < BATCH_BYTES_MAX {
            bytes += requests[end].1.len();
            end += 1;
        }
        let batch = &requests[begin..end];
        let mut posted = Vec::with_capacity(store.shards());
        for shard in 0..store.shards() {
            let of_shard = batch.iter().filter(|(of, _)| *of == shard);
            let inputs: Vec<&[u8]> = of_shard.map(|(_, request)| &request[..]).collect();
            if !inputs.is_empty() {
                posted.push((store.post_batch(shard, &inputs).await, inputs.len()));
            }
        }
        for (call, count) in posted {
            match await_answers(Some(call)).await {
                Ok(answer) => {
                    Answer::each(&answer).take(count).for_each(|one| sum.add(ReplyKind::Flag.of(one)))
                }
                Err(error) => sum.add(error_reply(&error)),
            }
        }
        begin = end;
    }
}

/// Returns keys that match a pattern, out of about `count` keys, and the cursor to continue at. Scans no more keys than
/// one shard would at once.
async fn scan(
    store: &mut Store,
    mut cursor: u64,
    count: u64,
    pattern: &[u8],
) -> Result<(u64, Vec<Vec<u8>>), KvError> {
    let count = count.min(SCAN_MAX);
    let (mut found, mut scanned) = (Vec::new(), 0);
    loop {
        let (shard, from) = split_cursor(cursor);
        if shard >= store.shards() {
            return Ok((0, found));
        }
        let answer = store.request(shard, &Request::Scan { from, count: count - scanned }).await?;
        let Some(Answer::Bytes(next, keys)) = Answer::decode(&answer) else {
            return Err(KvError::Damaged { shard, what: "sent an invalid answer" });
        };
        for key in parts(keys) {
            scanned += 1;
            if glob::matches(pattern, key) {
                found.push(key.to_vec());
            }
        }
        cursor = store.join_cursor(shard, next as u64);
        // Continues only if this shard has no further keys, because its owner limits each answer.
        if cursor == 0 || next != 0 || scanned >= count {
            return Ok((cursor, found));
        }
    }
}

/// Number of keys from which a random one is chosen.
const RANDOM_CANDIDATES: u64 = 16;

/// Returns a random key: of a random shard, one of the keys that follow a random cursor.
async fn random_key(store: &mut Store) -> Result<Option<Vec<u8>>, KvError> {
    let mut counts = Vec::with_capacity(store.shards());
    for shard in 0..store.shards() {
        let answer = store.request(shard, &Request::Count).await?;
        counts.push(match Answer::decode(&answer) {
            Some(Answer::Number(count)) => count as u64,
            _ => return Err(KvError::Damaged { shard, what: "sent an invalid answer" }),
        });
    }
    let (mut chosen, mut shard) = (fastrand::u64(..counts.iter().sum::<u64>().max(1)), 0);
    while shard + 1 < counts.len() && chosen >= counts[shard] {
        (chosen, shard) = (chosen - counts[shard], shard + 1);
    }
    // If no key follows the random cursor, one of the first keys is chosen.
    for from in [fastrand::u64(..), 0] {
        let answer = store.request(shard, &Request::Scan { from, count: RANDOM_CANDIDATES }).await?;
        let Some(Answer::Bytes(_, keys)) = Answer::decode(&answer) else {
            return Err(KvError::Damaged { shard, what: "sent an invalid answer" });
        };
        if let Some(key) = fastrand::choice(parts(keys).collect::<Vec<_>>()) {
            return Ok(Some(key.to_vec()));
        }
    }
    Ok(None)
}

/// Returns all values, unless their total length is too large.
pub(super) fn array_reply(values: &[Option<Vec<u8>>]) -> Reply<'_> {
    if values.iter().flatten().map(Vec::len).sum::<usize>() > REPLY_BYTES_MAX {
        return reply_too_long();
    }
    Reply::Array(values.iter().map(|value| value.as_deref().map_or(Reply::Null, Reply::Bulk)).collect())
}

/// Returns the reply that reports `error` to a client.
pub(super) fn error_reply(error: &KvError) -> Reply<'static> {
    match error {
        KvError::Full => ReplyKind::Done.of(Some(Answer::Full)),
        KvError::NoDirectory => ReplyKind::Done.of(Some(Answer::NoDirectory)),
        KvError::Call(_) | KvError::Access(_) | KvError::Region(_) | KvError::Ended => {
            Reply::error(format!("CLUSTERDOWN the owner of the key does not answer: {error}"))
        }
        _ => Reply::error(format!("ERR {error}")),
    }
}

fn reply_too_long() -> Reply<'static> {
    Reply::error(format!("ERR the reply would have more than {REPLY_BYTES_MAX} bytes"))
}
