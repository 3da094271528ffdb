//! Executes the plans of commands. Requests to shards of this process are executed at once, and so are reads of shards
//! whose memory this process can load from directly. Tasks execute all other requests. A task combines the requests of
//! several clients to the same shard.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use super::super::error::KvError;
use super::super::layout::KEY_BYTES_MAX;
use super::super::owner::Local;
use super::super::store::Store;
use super::super::wire::{Answer, Request};
use super::commands::{Query, ReplyKind, Total};
use super::reply::Replies;
use super::task::{
    Batch, Completion, Operation, REPLY_BYTES_MAX, Recipient, Sum, Task, array_reply, error_reply,
};
use super::transaction::{Part, Transaction};

/// Clock for the expiry of keys in this process's shards, in ms.
pub type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// The shards of this process, and the batches for shards of other processes.
pub(super) struct Backend {
    /// Id of the store.
    store_id: u64,
    locals: Vec<Option<Local>>,
    clock: Clock,
    /// Last reading of the clock.
    now_ms: u64,
    /// Last answer.
    answer: Vec<u8>,
    /// For each shard, true if the last read completed at once, by loads from the shard's memory.
    reads_directly: Vec<bool>,
    /// The next batch of each shard.
    batches: Vec<Batch>,
    operations: Vec<(Recipient, Operation, Shards)>,
    /// Transactions that wait or run, in the order of their arrival.
    transactions: VecDeque<Pending>,
    /// Shards of transactions. Other requests to these shards wait.
    reserved_shards: Shards,
    /// For each shard, the number of running tasks that are not transactions.
    running_tasks: Vec<usize>,
}

/// A set of shards, a bit for each; there are at most [`SHARDS_MAX`](super::super::SHARDS_MAX).
pub(super) type Shards = u64;

/// A transaction. While it runs, no other task uses its shards.
struct Pending {
    to: Recipient,
    shards: Shards,
    /// `None` while it runs.
    transaction: Option<Transaction>,
}

/// The work that a client waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Queued {
    /// Reads in the batch of a shard, which has not started yet.
    Reads(usize),
    /// Other requests in the batch of a shard, which executes them in order.
    Changes(usize),
    /// Work in progress, or about to start.
    Running,
}

/// Result of a plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// The reply is written.
    Done,
    /// The work is queued, and the reply follows later.
    Queued(Queued),
    /// Earlier work of the client must finish first.
    MustWait,
    /// The batch of the shard is full, and must start first.
    BatchFull,
    /// A transaction has reserved the shard, and must end first.
    ShardReserved,
}

impl Backend {
    pub(super) fn new(store: &Store, shards: Vec<(usize, Local)>, clock: Clock) -> Backend {
        let mut locals = vec![None; store.shards()];
        for (number, local) in shards {
            if let Some(place) = locals.get_mut(number) {
                *place = Some(local);
            }
        }
        let batches = (0..locals.len()).map(Batch::new).collect();
        let reads_directly = vec![true; locals.len()];
        let (answer, operations) = (Vec::new(), Vec::new());
        let running_tasks = vec![0; locals.len()];
        Backend {
            store_id: store.id,
            locals,
            clock,
            now_ms: 0,
            answer,
            reads_directly,
            batches,
            operations,
            transactions: VecDeque::new(),
            reserved_shards: 0,
            running_tasks,
        }
    }

    /// Reads the clock, once per turn of the loop.
    pub(super) fn update_clock(&mut self) {
        self.now_ms = (self.clock)();
    }

    /// Removes some expired keys from this process's shards.
    pub(super) async fn sweep(&self) -> Result<(), KvError> {
        for local in self.locals.iter().flatten() {
            local.sweep_batch(self.now_ms).await?;
        }
        Ok(())
    }

    /// Returns the next task to start, if any.
    pub(super) fn next_task(&mut self) -> Option<Task> {
        let task = self.next_ordinary_task().or_else(|| self.next_transaction())?;
        if !matches!(task, Task::Transaction(..)) {
            self.update_running_tasks(task.shards(), |count| *count += 1);
        }
        Some(task)
    }

    fn next_ordinary_task(&mut self) -> Option<Task> {
        if let Some((to, operation, shards)) = self.operations.pop() {
            return Some(Task::ForClient(to, operation, shards));
        }
        let shard = self.batches.iter().position(|batch| !batch.is_empty())?;
        Some(Task::Batch(std::mem::replace(&mut self.batches[shard], Batch::new(shard))))
    }

    /// Returns the first transaction whose shards no task and no earlier transaction uses. Reserves the shards of all
    /// transactions, so that other requests do not delay them for ever.
    fn next_transaction(&mut self) -> Option<Task> {
        self.reserved_shards = self.transactions.iter().fold(0, |all, pending| all | pending.shards);
        let mut used: Shards =
            (0..).zip(&self.running_tasks).map(|(at, count)| u64::from(*count > 0) << at).sum();
        for Pending { to, shards, transaction } in &mut self.transactions {
            if used & *shards == 0
                && let Some(transaction) = transaction.take()
            {
                return Some(Task::Transaction(*to, transaction, *shards));
            }
            used |= *shards;
        }
        None
    }

    fn update_running_tasks(&mut self, shards: Shards, change: impl Fn(&mut usize)) {
        let of_task = |(at, _): &(usize, &mut usize)| shards >> at & 1 != 0;
        self.running_tasks.iter_mut().enumerate().filter(of_task).for_each(|(_, count)| change(count));
    }

    /// Handles the end of a task. Returns true after a transaction: requests that waited for its shards may continue.
    /// They start before the next transaction, so that transactions do not delay them for ever.
    pub(super) fn handle_completion(&mut self, completion: &Completion) -> bool {
        let Some(to) = completion.transaction else {
            self.update_running_tasks(completion.shards, |count| *count -= 1);
            return false;
        };
        self.transactions.retain(|pending| pending.to != to);
        let running = self.transactions.iter().filter(|pending| pending.transaction.is_none());
        self.reserved_shards = running.fold(0, |all, pending| all | pending.shards);
        true
    }

    /// Queues a transaction on these shards.
    pub(super) fn queue_transaction(
        &mut self,
        to: Recipient,
        transaction: Transaction,
        shards: Shards,
    ) -> Step {
        self.transactions.push_back(Pending { to, shards, transaction: Some(transaction) });
        Step::Queued(Queued::Running)
    }

    fn all_shards(&self) -> Shards {
        (1 << self.locals.len()) - 1
    }

    fn shards_of(&self, plan: &Query<'_>, store: &Store) -> Shards {
        match plan {
            Query::Get(key, _) | Query::Request(key, ..) | Query::EditFields(key, _) => {
                1 << store.shard_of(key)
            }
            Query::Requests(requests, _) => self.shards_of_keys(requests.iter().map(|(key, _)| *key), store),
            Query::GetMany(args) => self.shards_of_keys(args.iter().skip(1), store),
            Query::MultiKey(command) => self.shards_of_keys(command.keys(), store),
            _ => self.all_shards(),
        }
    }

    fn shards_of_keys<'a>(&self, keys: impl IntoIterator<Item = &'a [u8]>, store: &Store) -> Shards {
        keys.into_iter().fold(0, |all, key| all | 1 << store.shard_of(key))
    }

    /// Returns the operation that executes a plan in a transaction, and its shards.
    pub(super) fn operation_of(
        &self,
        plan: Query<'_>,
        store: &Store,
    ) -> Result<(Operation, Shards), KvError> {
        let shards = self.shards_of(&plan, store);
        let operation = match plan {
            Query::Get(key, reply_kind) => {
                check_key_len(key)?;
                Operation::Get { key: key.to_vec(), reply_kind }
            }
            Query::Request(key, request, reply_kind) => {
                check_key_len(key)?;
                let shard = store.shard_of(key);
                Operation::Request { shard, request: self.encode(&request), reply_kind }
            }
            Query::EditFields(key, fields) => {
                check_key_len(key)?;
                let request = self.encode(&Request::BitFields { key, value: &fields });
                Operation::Request { shard: store.shard_of(key), request, reply_kind: ReplyKind::Fields }
            }
            Query::Requests(requests, total) => {
                requests.iter().try_for_each(|(key, _)| check_key_len(key))?;
                let encode_one = |(key, request): &(&[u8], _)| (store.shard_of(key), self.encode(request));
                let requests = requests.iter().map(encode_one).collect();
                Operation::Requests { requests, sum: Sum::default(), total }
            }
            Query::GetMany(args) => {
                args.iter().skip(1).try_for_each(check_key_len)?;
                let remote: Vec<_> = args.iter().skip(1).map(<[u8]>::to_vec).enumerate().collect();
                Operation::GetMany { values: vec![None; remote.len()], remote }
            }
            plan => operation_on_all_shards(plan),
        };
        Ok((operation, shards))
    }

    /// Tries direct reads of all shards again, because owners have changed.
    pub(super) fn reset_direct_reads(&mut self) {
        self.reads_directly.fill(true);
    }

    /// Records whether a read of a shard's values completed without waiting.
    pub(super) fn record_direct_reads(&mut self, shard: usize, reads_directly: bool) {
        self.reads_directly[shard] = reads_directly;
    }

    /// Executes the plan of a client that waits for the work `queued`, if any.
    pub(super) async fn execute(
        &mut self,
        plan: Query<'_>,
        (to, queued): (Recipient, Option<Queued>),
        store: &mut Store,
        replies: &mut Replies,
    ) -> Step {
        if self.reserved_shards != 0 && self.reserved_shards & self.shards_of(&plan, store) != 0 {
            return if queued.is_some() { Step::MustWait } else { Step::ShardReserved };
        }
        // The requests of one client take effect in order: a request joins the batch of the client's earlier requests,
        // or waits for them.
        let done = match plan {
            Query::Get(key, reply_kind) => self.get(key, reply_kind, (to, queued), store, replies).await,
            Query::Request(key, ref request, reply_kind) => {
                self.send_request(key, request, reply_kind, (to, queued), store, replies).await
            }
            Query::EditFields(key, ref fields) => {
                let request = Request::BitFields { key, value: fields };
                self.send_request(key, &request, ReplyKind::Fields, (to, queued), store, replies).await
            }
            _ if queued.is_some() => return Step::MustWait,
            Query::Requests(requests, total) => {
                // Boxed here and below, so that the future of a short request stays small.
                Box::pin(self.send_requests(&requests, total, to, store, replies)).await
            }
            Query::GetMany(args) => {
                Box::pin(self.get_many(args.iter().skip(1).collect(), to, store, replies)).await
            }
            Query::MultiKey(command) => {
                let shards = self.shards_of_keys(command.keys(), store);
                let parts = vec![Part::Work(Operation::MultiKey(command))];
                Ok(self.queue_transaction(
                    to,
                    Transaction { watched: Vec::new(), parts, is_list: false },
                    shards,
                ))
            }
            plan => Ok(self.queue_operation(to, operation_on_all_shards(plan), self.all_shards())),
        };
        done.unwrap_or_else(|error| {
            replies.push(&error_reply(&error));
            Step::Done
        })
    }

    /// Queues an operation on these shards. The client must have no other queued work.
    fn queue_operation(&mut self, to: Recipient, operation: Operation, shards: Shards) -> Step {
        self.operations.push((to, operation, shards));
        Step::Queued(Queued::Running)
    }

    /// Queues an operation that reads and changes no value, so it does not wait for transactions.
    pub(super) fn queue_keyless_operation(&mut self, to: Recipient, operation: Operation) -> Step {
        self.queue_operation(to, operation, 0)
    }

    async fn get(
        &mut self,
        key: &[u8],
        reply_kind: ReplyKind,
        (to, queued): (Recipient, Option<Queued>),
        store: &mut Store,
        replies: &mut Replies,
    ) -> Result<Step, KvError> {
        let shard = store.shard_of(key);
        let is_local = self.locals[shard].is_some() || key.len() > KEY_BYTES_MAX;
        if queued.is_some() && (is_local || queued != Some(Queued::Reads(shard))) {
            return Ok(Step::MustWait);
        }
        check_key_len(key)?;
        if let Some(local) = &self.locals[shard] {
            local.execute(self.now_ms, &Request::Get { key }, &mut self.answer).await?;
            replies.push(&reply_kind.of(Answer::decode(&self.answer)));
            return Ok(Step::Done);
        }
        if queued.is_none() && self.reads_directly[shard] {
            let got = {
                let mut getting = Box::pin(store.get_into(key, &mut self.answer));
                poll_fn(|context| Poll::Ready(into_ready(getting.as_mut().poll(context)))).await
            };
            if let Some(got) = got {
                replies.push(&reply_kind.of_value(got?.then_some(&self.answer)));
                return Ok(Step::Done);
            }
            self.reads_directly[shard] = false;
        }
        if self.batches[shard].is_full() {
            return Ok(Step::BatchFull);
        }
        self.batches[shard].push_read(to, key, reply_kind);
        Ok(Step::Queued(Queued::Reads(shard)))
    }

    async fn send_request(
        &mut self,
        key: &[u8],
        request: &Request<'_>,
        reply_kind: ReplyKind,
        (to, queued): (Recipient, Option<Queued>),
        store: &mut Store,
        replies: &mut Replies,
    ) -> Result<Step, KvError> {
        let shard = store.shard_of(key);
        let runs_alone = self.locals[shard].is_some() || key.len() > KEY_BYTES_MAX || reply_kind.has_value();
        if queued.is_some() && (runs_alone || queued != Some(Queued::Changes(shard))) {
            return Ok(Step::MustWait);
        }
        check_key_len(key)?;
        if let Some(local) = &self.locals[shard] {
            local.execute(self.now_ms, request, &mut self.answer).await?;
            replies.push(&reply_kind.of(Answer::decode(&self.answer)));
            return Ok(Step::Done);
        }
        if reply_kind.has_value() {
            let request = self.encode(request);
            return Ok(self.queue_operation(
                to,
                Operation::Request { shard, request, reply_kind },
                1 << shard,
            ));
        }
        if self.batches[shard].is_full() {
            return Ok(Step::BatchFull);
        }
        self.batches[shard].push_request(to, self.store_id, request, reply_kind);
        Ok(Step::Queued(Queued::Changes(shard)))
    }

    fn encode(&self, request: &Request<'_>) -> Vec<u8> {
        let mut bytes = Vec::new();
        request.encode(self.store_id, &mut bytes);
        bytes
    }

    /// Sends requests to the owners of several keys. After an error, executes the remaining requests, and reports the
    /// first error.
    async fn send_requests(
        &mut self,
        requests: &[(&[u8], Request<'_>)],
        total: Total,
        to: Recipient,
        store: &Store,
        replies: &mut Replies,
    ) -> Result<Step, KvError> {
        for (key, _) in requests {
            check_key_len(key)?;
        }
        let (mut sum, mut remote) = (Sum::default(), Vec::new());
        for (key, request) in requests {
            let shard = store.shard_of(key);
            match &self.locals[shard] {
                None => remote.push((shard, self.encode(request))),
                Some(local) => match local.execute(self.now_ms, request, &mut self.answer).await {
                    Ok(()) => sum.add(ReplyKind::Flag.of(Answer::decode(&self.answer))),
                    Err(error) => sum.add(error_reply(&error)),
                },
            }
        }
        if !remote.is_empty() {
            let shards = remote.iter().fold(0, |all, (shard, _)| all | 1 << shard);
            return Ok(self.queue_operation(
                to,
                Operation::Requests { requests: remote, sum, total },
                shards,
            ));
        }
        replies.push(&sum.reply(total));
        Ok(Step::Done)
    }

    /// Returns the values of several keys. Reads the values in shards of other processes in one batch.
    async fn get_many(
        &mut self,
        keys: Vec<&[u8]>,
        to: Recipient,
        store: &Store,
        replies: &mut Replies,
    ) -> Result<Step, KvError> {
        for key in &keys {
            check_key_len(key)?;
        }
        let (mut values, mut remote, mut bytes) = (vec![None; keys.len()], Vec::new(), 0);
        let mut shards = 0;
        for (place, key) in keys.into_iter().enumerate() {
            let shard = store.shard_of(key);
            let Some(local) = &self.locals[shard] else {
                remote.push((place, key.to_vec()));
                shards |= 1 << shard;
                continue;
            };
            local.execute(self.now_ms, &Request::Get { key }, &mut self.answer).await?;
            values[place] = match Answer::decode(&self.answer) {
                Some(Answer::Bytes(_, value)) => Some(value.to_vec()),
                Some(Answer::Nothing) => None,
                other => return Err(store.error_of(shard, other)),
            };
            bytes += values[place].as_ref().map_or(0, Vec::len);
            if bytes > REPLY_BYTES_MAX {
                // The reply is an error, so the other values are not needed.
                remote.clear();
                break;
            }
        }
        if !remote.is_empty() {
            return Ok(self.queue_operation(to, Operation::GetMany { values, remote }, shards));
        }
        replies.push(&array_reply(&values));
        Ok(Step::Done)
    }
}

/// Returns the operation of a plan that uses all shards.
fn operation_on_all_shards(plan: Query<'_>) -> Operation {
    match plan {
        Query::Scan { cursor, count, pattern, is_of_strings } => {
            Operation::Scan { cursor, count, pattern: pattern.unwrap_or(b"*").to_vec(), is_of_strings }
        }
        Query::Keys(pattern) => Operation::Keys(pattern.to_vec()),
        Query::Clear => Operation::Clear,
        Query::RandomKey => Operation::RandomKey,
        Query::MultiKey(command) => Operation::MultiKey(command),
        _ => Operation::Count,
    }
}

fn into_ready<T>(polled: Poll<T>) -> Option<T> {
    match polled {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

fn check_key_len(key: &[u8]) -> Result<(), KvError> {
    if key.len() <= KEY_BYTES_MAX {
        return Ok(());
    }
    Err(KvError::TooLong { what: "key", len: key.len(), max: KEY_BYTES_MAX })
}
