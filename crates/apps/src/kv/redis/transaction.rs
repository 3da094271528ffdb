//! Transactions: commands that a client queues by `MULTI` and executes by `EXEC`.
//!
//! ```text
//!   connection: Queue -> Transaction -> backend: waits until its shards are idle, holds other requests to them -> task
//! ```
//!
//! The server holds all requests of other clients to the shards of a transaction while it runs, so these clients see it
//! as a whole, although its keys have several owners. It asks all these owners first, and executes nothing if one does
//! not answer.

use std::iter::Peekable;
use std::vec::IntoIter;

use super::super::error::KvError;
use super::super::store::Store;
use super::super::wire::Answer;
use super::backend::Shards;
use super::commands::ReplyKind;
use super::reply::{Replies, Reply};
use super::task::{
    BATCH_BYTES_MAX, BATCH_MAX, Operation, REPLY_BYTES_MAX, Watched, answers_of, changes_of, refusal,
};

/// Maximum number of commands of a transaction, and of their bytes.
const COMMANDS_MAX: usize = 1 << 20;
const BYTES_MAX: usize = 64 << 20;
/// Maximum number of keys that a client watches, and of their bytes.
pub(super) const WATCHED_MAX: usize = 10_000;

/// The commands between `MULTI` and `EXEC`.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// The requests as the client sent them.
    pub(super) bytes: Vec<u8>,
    pub(super) count: usize,
    /// True if a command was refused, so that `EXEC` executes none.
    pub(super) is_refused: bool,
}

impl Queue {
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
    pub(super) async fn carry_out(
        self,
        store: &mut Store,
        shards: Shards,
        replies: &mut Replies,
    ) -> Result<(), KvError> {
        for (key, changes) in &self.watched {
            if changes_of(store, key).await? != *changes {
                replies.push(&Reply::NullArray);
                return Ok(());
            }
        }
        for shard in (0..store.shards()).filter(|shard| shards >> shard & 1 != 0) {
            answers_of(Some(store.post_together(shard, &[]).await)).await?;
        }
        if self.is_list {
            replies.begin_array(self.parts.len());
        }
        let (mut parts, mut is_too_long) = (self.parts.into_iter().peekable(), false);
        while let Some(part) = parts.next() {
            match part {
                Part::Reply(bytes) => replies.bytes.extend(bytes),
                Part::Work(Operation::Get { key, reply_kind }) => {
                    get_some(store, (key, reply_kind), &mut parts, replies).await;
                }
                Part::Work(Operation::Ask { shard, request, reply_kind }) if !reply_kind.has_value() => {
                    ask_some(store, (shard, request, reply_kind), &mut parts, replies).await;
                }
                Part::Work(operation) => {
                    if let Err(error) = operation.carry_out(store, replies).await {
                        replies.push(&refusal(&error));
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

/// Reads the values of consecutive commands together.
async fn get_some(
    store: &mut Store,
    first: (Vec<u8>, ReplyKind),
    parts: &mut Peekable<IntoIter<Part>>,
    replies: &mut Replies,
) {
    let mut some = vec![first];
    while some.len() < BATCH_MAX
        && let Some(Part::Work(Operation::Get { key, reply_kind })) =
            parts.next_if(|part| matches!(part, Part::Work(Operation::Get { .. })))
    {
        some.push((key, reply_kind));
    }
    let keys: Vec<&[u8]> = some.iter().map(|(key, _)| &key[..]).collect();
    match store.get_many(&keys).await {
        Ok(values) => {
            for ((_, reply_kind), value) in some.iter().zip(values) {
                replies.push(&reply_kind.of_value(value.as_deref()));
            }
        }
        Err(_) => {
            // The keys of the other shards are read.
            for (key, reply_kind) in some {
                let operation = Operation::Get { key, reply_kind };
                if let Err(error) = operation.carry_out(store, replies).await {
                    replies.push(&refusal(&error));
                }
            }
        }
    }
}

/// Sends the requests of consecutive commands together, those to each shard in one call.
async fn ask_some(
    store: &mut Store,
    first: (usize, Vec<u8>, ReplyKind),
    parts: &mut Peekable<IntoIter<Part>>,
    replies: &mut Replies,
) {
    let (mut bytes, mut some) = (first.1.len(), vec![first]);
    let is_one = |part: &Part| matches!(part, Part::Work(Operation::Ask { reply_kind, .. }) if !reply_kind.has_value());
    while some.len() < BATCH_MAX
        && bytes < BATCH_BYTES_MAX
        && let Some(Part::Work(Operation::Ask { shard, request, reply_kind })) = parts.next_if(is_one)
    {
        bytes += request.len();
        some.push((shard, request, reply_kind));
    }
    let mut posted = Vec::with_capacity(store.shards());
    for shard in 0..store.shards() {
        let of_shard = some.iter().filter(|(of, ..)| *of == shard);
        let inputs: Vec<&[u8]> = of_shard.map(|(_, request, _)| &request[..]).collect();
        posted.push(match inputs.is_empty() {
            true => None,
            false => Some(store.post_together(shard, &inputs).await),
        });
    }
    let mut answered = Vec::with_capacity(posted.len());
    for call in posted {
        answered.push(answers_of(call).await);
    }
    let mut answers: Vec<_> = answered.iter().map(|answered| answered.as_deref().map(Answer::each)).collect();
    for (shard, _, reply_kind) in some {
        match &mut answers[shard] {
            Ok(answers) => replies.push(&reply_kind.of(answers.next().flatten())),
            Err(error) => replies.push(&refusal(error)),
        }
    }
}
