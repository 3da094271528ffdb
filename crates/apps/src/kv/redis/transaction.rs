//! Transactions: commands that a client queues by `MULTI` and executes by `EXEC`.
//!
//! ```text
//!   connection: CommandQueue -> Transaction -> backend: waits for idle shards, delays other requests to them -> task
//! ```
//!
//! While a transaction runs, the server delays requests of other clients to its shards, so these clients see all of its
//! changes or none, although its keys may have several owners. The server first calls all these owners, and executes no
//! command if one of them does not answer.

use std::iter::Peekable;
use std::vec::IntoIter;

use super::super::error::KvError;
use super::super::store::Store;
use super::super::wire::Answer;
use super::backend::Shards;
use super::commands::ReplyKind;
use super::reply::{Replies, Reply};
use super::task::{
    BATCH_BYTES_MAX, BATCH_MAX, Operation, REPLY_BYTES_MAX, Watched, await_answers, change_count, error_reply,
};

/// Maximum number of commands of a transaction, and of their bytes.
const COMMANDS_MAX: usize = 1 << 20;
const BYTES_MAX: usize = 64 << 20;
/// Maximum number of keys that a client watches.
pub(super) const WATCHED_MAX: usize = 10_000;

/// The commands between `MULTI` and `EXEC`.
#[derive(Debug, Default)]
pub(super) struct CommandQueue {
    /// The requests as the client sent them.
    pub(super) bytes: Vec<u8>,
    pub(super) count: usize,
    /// True if a command was refused, so that `EXEC` executes none.
    pub(super) is_refused: bool,
}

impl CommandQueue {
    /// Adds a request; fails if the transaction is too long.
    pub(super) fn push(&mut self, request: &[u8]) -> Result<(), Reply<'static>> {
        if self.count == COMMANDS_MAX || self.bytes.len() + request.len() > BYTES_MAX {
            self.is_refused = true;
            return Err(Reply::error(format!(
                "ERR a transaction has at most {COMMANDS_MAX} commands and {BYTES_MAX} bytes"
            )));
        }
        self.bytes.extend(request);
        self.count += 1;
        Ok(())
    }
}

/// A transaction to be executed.
pub(super) struct Transaction {
    /// Keys that must not have changed.
    pub(super) watched: Vec<Watched>,
    pub(super) parts: Vec<Part>,
    /// True if the reply is a list with an element for each part; otherwise it is the reply of the only part.
    pub(super) is_list: bool,
}

/// One command of a transaction.
pub(super) enum Part {
    /// The encoded reply to a command without keys.
    Reply(Vec<u8>),
    Work(Operation),
}

impl Transaction {
    /// Executes the transaction, unless a watched key has changed. After an error, nothing was executed.
    pub(super) async fn execute(
        self,
        store: &mut Store,
        shards: Shards,
        replies: &mut Replies,
    ) -> Result<(), KvError> {
        for (key, changes) in &self.watched {
            if change_count(store, key).await? != *changes {
                replies.push(&Reply::NullArray);
                return Ok(());
            }
        }
        for shard in (0..store.shards()).filter(|shard| shards >> shard & 1 != 0) {
            await_answers(Some(store.post_batch(shard, &[]).await)).await?;
        }
        if self.is_list {
            replies.begin_array(self.parts.len());
        }
        let (mut parts, mut is_too_long) = (self.parts.into_iter().peekable(), false);
        while let Some(part) = parts.next() {
            match part {
                Part::Reply(bytes) => replies.bytes.extend(bytes),
                Part::Work(Operation::Get { key, reply_kind }) => {
                    read_consecutive(store, (key, reply_kind), &mut parts, replies).await;
                }
                Part::Work(Operation::Request { shard, request, reply_kind }) if !reply_kind.has_value() => {
                    send_consecutive(store, (shard, request, reply_kind), &mut parts, replies).await;
                }
                Part::Work(operation) => {
                    if let Err(error) = operation.execute(store, replies).await {
                        replies.push(&error_reply(&error));
                    }
                }
            }
            if replies.bytes.len() > REPLY_BYTES_MAX {
                is_too_long = true;
                replies.bytes.clear();
            }
        }
        if is_too_long {
            replies.bytes.clear();
            replies.push(&Reply::error(format!(
                "ERR the transaction was executed, but the reply would have more than {REPLY_BYTES_MAX} bytes"
            )));
        }
        Ok(())
    }
}

/// Executes consecutive reads as one batch of reads.
async fn read_consecutive(
    store: &mut Store,
    first: (Vec<u8>, ReplyKind),
    parts: &mut Peekable<IntoIter<Part>>,
    replies: &mut Replies,
) {
    let mut commands = vec![first];
    while commands.len() < BATCH_MAX
        && let Some(Part::Work(Operation::Get { key, reply_kind })) =
            parts.next_if(|part| matches!(part, Part::Work(Operation::Get { .. })))
    {
        commands.push((key, reply_kind));
    }
    let keys: Vec<&[u8]> = commands.iter().map(|(key, _)| &key[..]).collect();
    match store.get_many(&keys).await {
        Ok(values) => {
            for ((_, reply_kind), value) in commands.iter().zip(values) {
                replies.push(&reply_kind.of_value(value.as_deref()));
            }
        }
        Err(_) => {
            // Reads each key alone, so that an error concerns only the keys of one shard.
            for (key, reply_kind) in commands {
                let operation = Operation::Get { key, reply_kind };
                if let Err(error) = operation.execute(store, replies).await {
                    replies.push(&error_reply(&error));
                }
            }
        }
    }
}

/// Sends the requests of consecutive commands, in one call per shard.
async fn send_consecutive(
    store: &mut Store,
    first: (usize, Vec<u8>, ReplyKind),
    parts: &mut Peekable<IntoIter<Part>>,
    replies: &mut Replies,
) {
    let (mut bytes, mut commands) = (first.1.len(), vec![first]);
    let is_request = |part: &Part| matches!(part, Part::Work(Operation::Request { reply_kind, .. }) if !reply_kind.has_value());
    while commands.len() < BATCH_MAX
        && bytes < BATCH_BYTES_MAX
        && let Some(Part::Work(Operation::Request { shard, request, reply_kind })) = parts.next_if(is_request)
    {
        bytes += request.len();
        commands.push((shard, request, reply_kind));
    }
    let mut posted = Vec::with_capacity(store.shards());
    for shard in 0..store.shards() {
        let of_shard = commands.iter().filter(|(of, ..)| *of == shard);
        let inputs: Vec<&[u8]> = of_shard.map(|(_, request, _)| &request[..]).collect();
        posted.push(match inputs.is_empty() {
            true => None,
            false => Some(store.post_batch(shard, &inputs).await),
        });
    }
    let mut answered = Vec::with_capacity(posted.len());
    for call in posted {
        answered.push(await_answers(call).await);
    }
    let mut answers: Vec<_> = answered.iter().map(|answered| answered.as_deref().map(Answer::each)).collect();
    for (shard, _, reply_kind) in commands {
        match &mut answers[shard] {
            Ok(answers) => replies.push(&reply_kind.of(answers.next().flatten())),
            Err(error) => replies.push(&error_reply(error)),
        }
    }
}
