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
use super::task::{Batch, Completion, Operation, REPLY_BYTES_MAX, Recipient, Sum, Task, all_of, refusal};
use super::transaction::{Part, Transaction};

/// Clock for the expiry of keys in this process's shards, in ms.
pub type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// The shards of this process, and the batches for shards of other processes.
pub(super) struct Backend {
    /// The number of the store.
    number: u64,
    locals: Vec<Option<Local>>,
    clock: Clock,
    /// Last reading of the clock.
    now_ms: u64,
    /// Last answer.
    answer: Vec<u8>,
    /// For each shard, true if loads reached its memory at the last read.
    is_near: Vec<bool>,
    /// The next batch of each shard.
    batches: Vec<Batch>,
    operations: Vec<(Recipient, Operation, Shards)>,
    /// Transactions that wait or run, in the order of their arrival.
    transactions: VecDeque<Pending>,
    /// The shards on which other requests wait for these transactions.
    claimed: Shards,
    /// For each shard, the number of its running tasks, except transactions.
    under_way: Vec<usize>,
}

/// A set of shards, a bit for each; there are at most [`SHARDS_MAX`](super::super::SHARDS_MAX).
pub(super) type Shards = u64;

/// A transaction. It runs alone on its shards.
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
    UnderWay,
}

/// Result of a plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// The reply is written.
    Done,
    /// The work is queued, and the reply follows later.
    Queued(Queued),
    /// The plan must wait for queued work.
    Waits,
    /// The batch is full; the plan must wait until it has started.
    IsFull,
    /// A transaction uses the shard; the plan must wait until it has ended.
    Held,
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
        let is_near = vec![true; locals.len()];
        let (answer, operations) = (Vec::new(), Vec::new());
        let under_way = vec![0; locals.len()];
        Backend {
            number: store.number,
            locals,
            clock,
            now_ms: 0,
            answer,
            is_near,
            batches,
            operations,
            transactions: VecDeque::new(),
            claimed: 0,
            under_way,
        }
    }

    /// Reads the clock, once per turn of the loop.
    pub(super) fn look_at_clock(&mut self) {
        self.now_ms = (self.clock)();
    }

    /// Removes some expired keys from this process's shards.
    pub(super) async fn sweep(&self) -> Result<(), KvError> {
        for local in self.locals.iter().flatten() {
            local.sweep_some(self.now_ms).await?;
        }
        Ok(())
    }

    /// Returns the next task to start, if any.
    pub(super) fn next_task(&mut self) -> Option<Task> {
        let task = self.next_of_any().or_else(|| self.next_transaction())?;
        if !matches!(task, Task::Transaction(..)) {
            self.count(task.shards(), |count| *count += 1);
        }
        Some(task)
    }

    fn next_of_any(&mut self) -> Option<Task> {
        if let Some((to, operation, shards)) = self.operations.pop() {
            return Some(Task::ForClient(to, operation, shards));
        }
        let shard = self.batches.iter().position(|batch| !batch.is_empty())?;
        Some(Task::Batch(std::mem::replace(&mut self.batches[shard], Batch::new(shard))))
    }

    /// Returns a transaction whose shards neither a task nor an earlier transaction uses. From here on, no task starts on
    /// the shards of a transaction, so each transaction gets its turn.
    fn next_transaction(&mut self) -> Option<Task> {
        self.claimed = self.transactions.iter().fold(0, |all, pending| all | pending.shards);
        let mut used: Shards =
            (0..).zip(&self.under_way).map(|(at, count)| u64::from(*count > 0) << at).sum();
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

    fn count(&mut self, shards: Shards, change: impl Fn(&mut usize)) {
        let of_task = |(at, _): &(usize, &mut usize)| shards >> at & 1 != 0;
        self.under_way.iter_mut().enumerate().filter(of_task).for_each(|(_, count)| change(count));
    }

    /// Records the end of a task. Returns true if requests that were held may continue: they start before the next
    /// transaction, so that other clients get their turn, too.
    pub(super) fn note_end(&mut self, completion: &Completion) -> bool {
        let Some(to) = completion.transaction else {
            self.count(completion.shards, |count| *count -= 1);
            return false;
        };
        self.transactions.retain(|pending| pending.to != to);
        let running = self.transactions.iter().filter(|pending| pending.transaction.is_none());
        self.claimed = running.fold(0, |all, pending| all | pending.shards);
        true
    }

    /// Queues a transaction on these shards.
    pub(super) fn begin(&mut self, to: Recipient, transaction: Transaction, shards: Shards) -> Step {
        self.transactions.push_back(Pending { to, shards, transaction: Some(transaction) });
        Step::Queued(Queued::UnderWay)
    }

    fn all_shards(&self) -> Shards {
        (1 << self.locals.len()) - 1
    }

    fn shards_of(&self, plan: &Query<'_>, store: &Store) -> Shards {
        match plan {
            Query::Get(key, _) | Query::Ask(key, ..) | Query::AskFields(key, _) => 1 << store.shard_of(key),
            Query::AskAll(requests, _) => self.shards_of_keys(requests.iter().map(|(key, _)| *key), store),
            Query::GetAll(args) => self.shards_of_keys(args.iter().skip(1), store),
            Query::Several(several) => self.shards_of_keys(several.keys(), store),
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
                check(key)?;
                Operation::Get { key: key.to_vec(), reply_kind }
            }
            Query::Ask(key, request, reply_kind) => {
                check(key)?;
                let shard = store.shard_of(key);
                Operation::Ask { shard, request: self.encoded(&request), reply_kind }
            }
            Query::AskFields(key, fields) => {
                check(key)?;
                let request = self.encoded(&Request::BitFields { key, value: &fields });
                Operation::Ask { shard: store.shard_of(key), request, reply_kind: ReplyKind::Fields }
            }
            Query::AskAll(requests, total) => {
                requests.iter().try_for_each(|(key, _)| check(key))?;
                let encoded = |(key, request): &(&[u8], _)| (store.shard_of(key), self.encoded(request));
                let requests = requests.iter().map(encoded).collect();
                Operation::AskAll { requests, sum: Sum::default(), total }
            }
            Query::GetAll(args) => {
                args.iter().skip(1).try_for_each(check)?;
                let others: Vec<_> = args.iter().skip(1).map(<[u8]>::to_vec).enumerate().collect();
                Operation::GetAll { values: vec![None; others.len()], others }
            }
            plan => operation_on_all(plan),
        };
        Ok((operation, shards))
    }

    /// Forgets what is known about the shards, after owners have changed.
    pub(super) fn forget(&mut self) {
        self.is_near.fill(true);
    }

    /// Records whether values of a shard were read without waiting.
    pub(super) fn note_near(&mut self, shard: usize, is_near: bool) {
        self.is_near[shard] = is_near;
    }

    /// Executes the plan of a client that waits for the work `queued`, if any.
    pub(super) async fn carry_out(
        &mut self,
        plan: Query<'_>,
        (to, queued): (Recipient, Option<Queued>),
        store: &mut Store,
        replies: &mut Replies,
    ) -> Step {
        if self.claimed != 0 && self.claimed & self.shards_of(&plan, store) != 0 {
            return if queued.is_some() { Step::Waits } else { Step::Held };
        }
        // The requests of one client take effect in order, as far as other clients can observe.
        let done = match plan {
            Query::Get(key, reply_kind) => self.get(key, reply_kind, (to, queued), store, replies).await,
            Query::Ask(key, ref request, reply_kind) => {
                self.ask(key, request, reply_kind, (to, queued), store, replies).await
            }
            Query::AskFields(key, ref fields) => {
                let request = Request::BitFields { key, value: fields };
                self.ask(key, &request, ReplyKind::Fields, (to, queued), store, replies).await
            }
            _ if queued.is_some() => return Step::Waits,
            Query::AskAll(requests, total) => {
                // Rare and long futures are boxed, here and below, so that the future of a short request stays small.
                Box::pin(self.ask_all(&requests, total, to, store, replies)).await
            }
            Query::GetAll(args) => {
                Box::pin(self.get_all(args.iter().skip(1).collect(), to, store, replies)).await
            }
            Query::Several(several) => {
                let shards = self.shards_of_keys(several.keys(), store);
                let parts = vec![Part::Work(Operation::Several(several))];
                Ok(self.begin(to, Transaction { watched: Vec::new(), parts, is_list: false }, shards))
            }
            plan => Ok(self.operation(to, operation_on_all(plan), self.all_shards())),
        };
        done.unwrap_or_else(|error| {
            replies.push(&refusal(&error));
            Step::Done
        })
    }

    /// Queues an operation on these shards for a client that waits for nothing else.
    fn operation(&mut self, to: Recipient, operation: Operation, shards: Shards) -> Step {
        self.operations.push((to, operation, shards));
        Step::Queued(Queued::UnderWay)
    }

    /// Queues an operation that reads no value of a key.
    pub(super) fn look(&mut self, to: Recipient, operation: Operation) -> Step {
        self.operation(to, operation, 0)
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
        let is_here = self.locals[shard].is_some() || key.len() > KEY_BYTES_MAX;
        if queued.is_some() && (is_here || queued != Some(Queued::Reads(shard))) {
            return Ok(Step::Waits);
        }
        check(key)?;
        if let Some(local) = &self.locals[shard] {
            local.perform(self.now_ms, &Request::Get { key }, &mut self.answer).await?;
            replies.push(&reply_kind.of(Answer::decode(&self.answer)));
            return Ok(Step::Done);
        }
        if queued.is_none() && self.is_near[shard] {
            let got = {
                let mut getting = Box::pin(store.get_into(key, &mut self.answer));
                poll_fn(|context| Poll::Ready(now(getting.as_mut().poll(context)))).await
            };
            if let Some(got) = got {
                replies.push(&reply_kind.of_value(got?.then_some(&self.answer)));
                return Ok(Step::Done);
            }
            self.is_near[shard] = false;
        }
        if self.batches[shard].is_full() {
            return Ok(Step::IsFull);
        }
        self.batches[shard].read(to, key, reply_kind);
        Ok(Step::Queued(Queued::Reads(shard)))
    }

    async fn ask(
        &mut self,
        key: &[u8],
        request: &Request<'_>,
        reply_kind: ReplyKind,
        (to, queued): (Recipient, Option<Queued>),
        store: &mut Store,
        replies: &mut Replies,
    ) -> Result<Step, KvError> {
        let shard = store.shard_of(key);
        let is_alone = self.locals[shard].is_some() || key.len() > KEY_BYTES_MAX || reply_kind.has_value();
        if queued.is_some() && (is_alone || queued != Some(Queued::Changes(shard))) {
            return Ok(Step::Waits);
        }
        check(key)?;
        if let Some(local) = &self.locals[shard] {
            local.perform(self.now_ms, request, &mut self.answer).await?;
            replies.push(&reply_kind.of(Answer::decode(&self.answer)));
            return Ok(Step::Done);
        }
        if reply_kind.has_value() {
            let request = self.encoded(request);
            return Ok(self.operation(to, Operation::Ask { shard, request, reply_kind }, 1 << shard));
        }
        if self.batches[shard].is_full() {
            return Ok(Step::IsFull);
        }
        self.batches[shard].ask(to, self.number, request, reply_kind);
        Ok(Step::Queued(Queued::Changes(shard)))
    }

    fn encoded(&self, request: &Request<'_>) -> Vec<u8> {
        let mut bytes = Vec::new();
        request.encode(self.number, &mut bytes);
        bytes
    }

    /// Sends requests to the owners of several keys. After an error, executes the remaining requests, and reports the
    /// first error.
    async fn ask_all(
        &mut self,
        requests: &[(&[u8], Request<'_>)],
        total: Total,
        to: Recipient,
        store: &Store,
        replies: &mut Replies,
    ) -> Result<Step, KvError> {
        for (key, _) in requests {
            check(key)?;
        }
        let (mut sum, mut others) = (Sum::default(), Vec::new());
        for (key, request) in requests {
            let shard = store.shard_of(key);
            match &self.locals[shard] {
                None => others.push((shard, self.encoded(request))),
                Some(local) => match local.perform(self.now_ms, request, &mut self.answer).await {
                    Ok(()) => sum.note(ReplyKind::Flag.of(Answer::decode(&self.answer))),
                    Err(error) => sum.note(refusal(&error)),
                },
            }
        }
        if !others.is_empty() {
            let shards = others.iter().fold(0, |all, (shard, _)| all | 1 << shard);
            return Ok(self.operation(to, Operation::AskAll { requests: others, sum, total }, shards));
        }
        replies.push(&sum.reply(total));
        Ok(Step::Done)
    }

    /// Returns the values of several keys. Reads the values in shards of other processes together.
    async fn get_all(
        &mut self,
        keys: Vec<&[u8]>,
        to: Recipient,
        store: &Store,
        replies: &mut Replies,
    ) -> Result<Step, KvError> {
        for key in &keys {
            check(key)?;
        }
        let (mut values, mut others, mut bytes) = (vec![None; keys.len()], Vec::new(), 0);
        let mut shards = 0;
        for (place, key) in keys.into_iter().enumerate() {
            let shard = store.shard_of(key);
            let Some(local) = &self.locals[shard] else {
                others.push((place, key.to_vec()));
                shards |= 1 << shard;
                continue;
            };
            local.perform(self.now_ms, &Request::Get { key }, &mut self.answer).await?;
            values[place] = match Answer::decode(&self.answer) {
                Some(Answer::Bytes(_, value)) => Some(value.to_vec()),
                Some(Answer::Nothing) => None,
                other => return Err(store.refused(shard, other)),
            };
            bytes += values[place].as_ref().map_or(0, Vec::len);
            if bytes > REPLY_BYTES_MAX {
                // The reply is this error, whatever the other values are.
                others.clear();
                break;
            }
        }
        if !others.is_empty() {
            return Ok(self.operation(to, Operation::GetAll { values, others }, shards));
        }
        replies.push(&all_of(&values));
        Ok(Step::Done)
    }
}

/// Returns the operation of a plan that concerns all shards.
fn operation_on_all(plan: Query<'_>) -> Operation {
    match plan {
        Query::Scan { cursor, count, pattern, is_of_strings } => {
            Operation::Scan { cursor, count, pattern: pattern.unwrap_or(b"*").to_vec(), is_of_strings }
        }
        Query::Keys(pattern) => Operation::Keys(pattern.to_vec()),
        Query::Clear => Operation::Clear,
        Query::RandomKey => Operation::RandomKey,
        Query::Several(several) => Operation::Several(several),
        _ => Operation::Count,
    }
}

fn now<T>(polled: Poll<T>) -> Option<T> {
    match polled {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

fn check(key: &[u8]) -> Result<(), KvError> {
    if key.len() <= KEY_BYTES_MAX {
        return Ok(());
    }
    Err(KvError::TooLong { what: "key", len: key.len(), max: KEY_BYTES_MAX })
}
