//! How plans are carried out: in a shard of this process at once, elsewhere by reading the owner's memory or by calls, of which those of
//! many clients go together.

use std::ops::Range;
use std::sync::Arc;

use super::super::error::KvError;
use super::super::layout::KEY_BYTES_MAX;
use super::super::owner::Local;
use super::super::store::{Store, keys_of, split_cursor};
use super::super::wire::{Answer, Request};
use super::commands::{Query, ReplyKind, Total};
use super::glob;
use super::reply::{OK, Replies, Reply};

/// Most bytes of one reply, which is put together before it is written.
pub const REPLY_BYTES_MAX: usize = 64 << 20;
/// How many keys one request lists where a client wants all.
const KEYS_AT_A_TIME: u64 = 1_000;

/// The time by which the shards of this process have their keys expire, in ms.
pub type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// The store, and those of its shards that are in this process.
pub(super) struct Backend {
    store: Store,
    locals: Vec<Option<Local>>,
    clock: Clock,
    /// What it said last.
    now_ms: u64,
    /// What was answered last.
    answer: Vec<u8>,
}

/// What a client has in the batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Queued {
    /// Requests for one shard, which does them in their order.
    For(usize),
    /// Those of a command about several keys.
    Several,
}

/// What has become of a plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// The reply is written.
    Done,
    /// It is in the batch.
    Queued(Queued),
    /// It has to wait until the batch is carried out.
    Waits,
}

/// Requests to owners elsewhere, which are posted together.
#[derive(Default)]
pub(super) struct Batch {
    bytes: Vec<u8>,
    entries: Vec<Entry>,
    request: Vec<u8>,
}

struct Entry {
    client: usize,
    shard: usize,
    range: Range<usize>,
    reply_kind: ReplyKind,
    part: Part,
}

/// Whether a reply is to one request, or to several that stand one behind the other.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Part {
    Whole,
    One,
    Last(Sum, Total),
}

/// What is known of the answers to several requests.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
struct Sum {
    count: i64,
    /// The first thing that went wrong.
    failed: Option<String>,
}

impl Sum {
    fn note(&mut self, reply: Reply<'_>) {
        match reply {
            Reply::Integer(number) => self.count += number,
            Reply::Error(text) => self.failed = self.failed.take().or(Some(text)),
            _ => {}
        }
    }

    fn add(&mut self, other: Sum) {
        self.count += other.count;
        self.failed = self.failed.take().or(other.failed);
    }

    fn reply(self, total: Total) -> Reply<'static> {
        match (self.failed, total) {
            (Some(text), _) => Reply::Error(text),
            (None, Total::Count) => Reply::Integer(self.count),
            (None, Total::Done) => OK,
        }
    }
}

/// Requests that are under way together, and their bytes.
const BATCH_MAX: usize = 256;
const BATCH_BYTES_MAX: usize = 1 << 20;
/// Answers to them are numbers.
const ANSWER_BYTES_MAX: usize = 64;

impl Batch {
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn is_full(&self) -> bool {
        self.entries.len() >= BATCH_MAX || self.bytes.len() >= BATCH_BYTES_MAX
    }

    fn push(
        &mut self,
        client: usize,
        (store, shard): (u64, usize),
        request: &Request<'_>,
        reply_kind: ReplyKind,
        part: Part,
    ) {
        request.encode(store, &mut self.request);
        let begin = self.bytes.len();
        self.bytes.extend_from_slice(&self.request);
        self.entries.push(Entry { client, shard, range: begin..self.bytes.len(), reply_kind, part });
    }

    fn clear(&mut self) {
        self.entries.clear();
        self.bytes.clear();
        self.bytes.shrink_to(BATCH_BYTES_MAX);
    }
}

impl Backend {
    pub(super) fn new(store: Store, shards: Vec<(usize, Local)>, clock: Clock) -> Backend {
        let mut locals = vec![None; store.shards()];
        for (number, local) in shards {
            if let Some(place) = locals.get_mut(number) {
                *place = Some(local);
            }
        }
        Backend { store, locals, clock, now_ms: 0, answer: Vec::new() }
    }

    /// Looks at the clock, once for all that is ready.
    pub(super) fn look_at_clock(&mut self) {
        self.now_ms = (self.clock)();
    }

    /// Removes some of what has expired in the shards of this process.
    pub(super) async fn sweep(&self) -> Result<(), KvError> {
        for local in self.locals.iter().flatten() {
            local.sweep_some(self.now_ms).await?;
        }
        Ok(())
    }

    /// Carries out what a client has asked for, which has requests of its own in the batch if it is `queued` for a shard.
    pub(super) async fn carry_out(
        &mut self,
        plan: Query<'_>,
        (client, queued): (usize, Option<Queued>),
        batch: &mut Batch,
        replies: &mut Replies,
    ) -> Step {
        if let Query::Ask(key, request, reply_kind) = &plan
            && *reply_kind != ReplyKind::Value
            && key.len() <= KEY_BYTES_MAX
        {
            let shard = self.store.shard_of(key);
            if self.locals[shard].is_none() {
                // What a client asks for is done in its order, as far as others can see.
                if batch.is_full() || queued.is_some_and(|queued| queued != Queued::For(shard)) {
                    return Step::Waits;
                }
                batch.push(client, (self.store.number, shard), request, *reply_kind, Part::Whole);
                return Step::Queued(Queued::For(shard));
            }
        }
        if queued.is_some() {
            return Step::Waits;
        }
        let done = match plan {
            Query::AskAll(requests, total) => self.ask_all(&requests, total, (client, batch), replies).await,
            plan => self.reply(plan, replies).await.map(|()| Step::Done),
        };
        done.unwrap_or_else(|error| {
            replies.push(&refusal(&error));
            Step::Done
        })
    }

    async fn reply(&mut self, plan: Query<'_>, replies: &mut Replies) -> Result<(), KvError> {
        match plan {
            Query::Get(key, reply_kind) => {
                let found = self.get(key).await?;
                let found = found.map_or(Answer::Nothing, |value| Answer::Bytes(0, value));
                replies.push(&reply_kind.of(Some(found)));
            }
            Query::Ask(key, request, reply_kind) => {
                check(key)?;
                let shard = self.store.shard_of(key);
                replies.push(&reply_kind.of(self.ask(shard, &request).await?));
            }
            Query::AskAll(..) => unreachable!("it is carried out where there is a batch"),
            Query::GetAll(args) => {
                let keys: Vec<&[u8]> = args.iter().skip(1).collect();
                let (mut values, mut bytes) = (Vec::with_capacity(keys.len()), 0);
                for keys in keys.chunks(BATCH_MAX) {
                    for value in self.get_many(keys).await? {
                        bytes += value.as_ref().map_or(0, Vec::len);
                        values.push(value);
                    }
                    if bytes > REPLY_BYTES_MAX {
                        replies.push(&too_long());
                        return Ok(());
                    }
                }
                let values = values.iter().map(|value| value.as_deref().map_or(Reply::Null, Reply::Bulk));
                replies.push(&Reply::Array(values.collect()));
            }
            Query::Scan { cursor, count, pattern, is_of_strings } => {
                let (next, mut keys) = self.scan(cursor, count, pattern.unwrap_or(b"*")).await?;
                if !is_of_strings {
                    keys.clear();
                }
                let keys = keys.iter().map(|key| Reply::Bulk(key)).collect();
                replies.push(&Reply::Array(vec![Reply::Text(next.to_string()), Reply::Array(keys)]));
            }
            Query::Keys(pattern) => {
                let (mut cursor, mut keys, mut bytes) = (0, Vec::new(), 0);
                loop {
                    let (next, some) = self.scan(cursor, KEYS_AT_A_TIME, pattern).await?;
                    bytes += some.iter().map(Vec::len).sum::<usize>();
                    keys.extend(some);
                    if bytes > REPLY_BYTES_MAX {
                        replies.push(&too_long());
                        return Ok(());
                    }
                    if next == 0 {
                        break;
                    }
                    cursor = next;
                }
                replies.push(&Reply::Array(keys.iter().map(|key| Reply::Bulk(key)).collect()));
            }
            Query::Count => {
                let count = self.count().await?;
                replies.push(&Reply::Integer(count));
            }
            Query::Clear => {
                for shard in 0..self.locals.len() {
                    self.number(shard, &Request::Clear).await?;
                }
                replies.push(&OK);
            }
        }
        Ok(())
    }

    /// How many keys there are.
    pub(super) async fn count(&mut self) -> Result<i64, KvError> {
        let mut sum = 0;
        for shard in 0..self.locals.len() {
            sum += self.number(shard, &Request::Count).await?;
        }
        Ok(sum)
    }

    /// The value of a key.
    async fn get(&mut self, key: &[u8]) -> Result<Option<&[u8]>, KvError> {
        check(key)?;
        let shard = self.store.shard_of(key);
        let Some(local) = &self.locals[shard] else {
            let is_there = self.store.get_into(key, &mut self.answer).await?;
            return Ok(is_there.then_some(&self.answer));
        };
        local.perform(self.now_ms, &Request::Get { key }, &mut self.answer).await?;
        match Answer::decode(&self.answer) {
            Some(Answer::Bytes(_, value)) => Ok(Some(value)),
            Some(Answer::Nothing) => Ok(None),
            other => Err(self.store.refused(shard, other)),
        }
    }

    /// The values of several keys; those of other processes are read together.
    async fn get_many(&mut self, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>, KvError> {
        let mut values = vec![None; keys.len()];
        let mut others = Vec::new();
        for (place, key) in keys.iter().enumerate() {
            check(key)?;
            if self.locals[self.store.shard_of(key)].is_some() {
                values[place] = self.get(key).await?.map(<[u8]>::to_vec);
            } else {
                others.push((place, *key));
            }
        }
        let (places, keys): (Vec<usize>, Vec<&[u8]>) = others.into_iter().unzip();
        for (place, value) in places.into_iter().zip(self.store.get_many(&keys).await?) {
            values[place] = value;
        }
        Ok(values)
    }

    /// What the owner of a shard answers.
    async fn ask(&mut self, shard: usize, request: &Request<'_>) -> Result<Option<Answer<'_>>, KvError> {
        match &self.locals[shard] {
            Some(local) => local.perform(self.now_ms, request, &mut self.answer).await?,
            None => self.answer = self.store.ask(shard, request).await?,
        }
        Ok(Answer::decode(&self.answer))
    }

    async fn number(&mut self, shard: usize, request: &Request<'_>) -> Result<i64, KvError> {
        match self.ask(shard, request).await? {
            Some(Answer::Number(number)) => Ok(number),
            _ => Err(KvError::Damaged { shard, what: "answers what makes no sense" }),
        }
    }

    /// Asks the owners of several keys; the first thing that goes wrong is told, and the rest is done nevertheless.
    async fn ask_all(
        &mut self,
        requests: &[(&[u8], Request<'_>)],
        total: Total,
        (client, batch): (usize, &mut Batch),
        replies: &mut Replies,
    ) -> Result<Step, KvError> {
        let (mut others, mut bytes) = (Vec::new(), 0);
        for (place, (key, request)) in requests.iter().enumerate() {
            check(key)?;
            let shard = self.store.shard_of(key);
            if self.locals[shard].is_none() {
                others.push((place, shard));
                bytes += request.value_bytes();
            }
        }
        // They go with those of others, unless there are too many for that.
        let is_short = others.len() <= BATCH_MAX / 4 && bytes <= BATCH_BYTES_MAX;
        if is_short && !others.is_empty() && batch.is_full() {
            return Ok(Step::Waits);
        }
        let mut sum = Sum::default();
        for (key, request) in requests {
            let shard = self.store.shard_of(key);
            if self.locals[shard].is_some() {
                sum.note(match self.ask(shard, request).await {
                    Ok(answer) => ReplyKind::Flag.of(answer),
                    Err(error) => refusal(&error),
                });
            }
        }
        let Some(last) = others.pop() else {
            replies.push(&sum.reply(total));
            return Ok(Step::Done);
        };
        if is_short {
            for (place, shard) in others {
                batch.push(
                    client,
                    (self.store.number, shard),
                    &requests[place].1,
                    ReplyKind::Flag,
                    Part::One,
                );
            }
            let (place, shard) = last;
            batch.push(
                client,
                (self.store.number, shard),
                &requests[place].1,
                ReplyKind::Flag,
                Part::Last(sum, total),
            );
            return Ok(Step::Queued(Queued::Several));
        }
        let mut several = Batch::default();
        for (place, shard) in others.into_iter().chain([last]) {
            several.push(
                client,
                (self.store.number, shard),
                &requests[place].1,
                ReplyKind::Flag,
                Part::Whole,
            );
            if several.is_full() {
                self.post(&mut several, |_, reply| sum.note(reply)).await;
            }
        }
        self.post(&mut several, |_, reply| sum.note(reply)).await;
        replies.push(&sum.reply(total));
        Ok(Step::Done)
    }

    /// Some keys that are as a pattern says, of about `count` that are looked at, and where to go on.
    async fn scan(
        &mut self,
        mut cursor: u64,
        count: u64,
        pattern: &[u8],
    ) -> Result<(u64, Vec<Vec<u8>>), KvError> {
        let (mut found, mut looked_at) = (Vec::new(), 0);
        loop {
            let (shard, from) = split_cursor(cursor);
            if shard >= self.locals.len() {
                return Ok((0, found));
            }
            let request = Request::Scan { from, count: count - looked_at };
            let Some(Answer::Bytes(next, keys)) = self.ask(shard, &request).await? else {
                return Err(KvError::Damaged { shard, what: "answers what makes no sense" });
            };
            for key in keys_of(keys) {
                looked_at += 1;
                if glob::matches(pattern, key) {
                    found.push(key.to_vec());
                }
            }
            cursor = self.store.join_cursor(shard, next as u64);
            // The next shard may have the rest; within one, its owner has said that it is enough.
            if cursor == 0 || next != 0 || looked_at >= count {
                return Ok((cursor, found));
            }
        }
    }

    /// Posts a batch, and tells in its order which client is to be told what.
    pub(super) async fn post(&self, batch: &mut Batch, mut tell: impl FnMut(usize, Reply<'_>)) {
        let mut posted: Vec<_> = Vec::with_capacity(batch.entries.len());
        posted.resize_with(batch.entries.len(), || None);
        for shard in 0..self.locals.len() {
            let places: Vec<usize> =
                (0..posted.len()).filter(|place| batch.entries[*place].shard == shard).collect();
            if places.is_empty() {
                continue;
            }
            let inputs: Vec<&[u8]> =
                places.iter().map(|place| &batch.bytes[batch.entries[*place].range.clone()]).collect();
            let calls = self.store.post(shard, &inputs, ANSWER_BYTES_MAX).await;
            for (place, call) in places.into_iter().zip(calls) {
                posted[place] = Some(call);
            }
        }
        let mut sum = Sum::default();
        for (entry, call) in batch.entries.iter().zip(posted) {
            let answered = match call.expect("each is of one of the shards") {
                Ok(call) => call.answer().await,
                Err(error) => Err(error),
            };
            let answer;
            let reply = match answered {
                Ok(bytes) => {
                    answer = bytes;
                    entry.reply_kind.of(Answer::decode(&answer))
                }
                Err(error) => refusal(&error.into()),
            };
            match &entry.part {
                Part::Whole => tell(entry.client, reply),
                Part::One => sum.note(reply),
                Part::Last(base, total) => {
                    sum.note(reply);
                    sum.add(base.clone());
                    tell(entry.client, std::mem::take(&mut sum).reply(*total));
                }
            }
        }
        batch.clear();
    }
}

fn check(key: &[u8]) -> Result<(), KvError> {
    if key.len() <= KEY_BYTES_MAX {
        return Ok(());
    }
    Err(KvError::TooLong { what: "key", len: key.len(), max: KEY_BYTES_MAX })
}

/// What a client is told of what went wrong here.
pub(super) fn refusal(error: &KvError) -> Reply<'static> {
    match error {
        KvError::Full => ReplyKind::Done.of(Some(Answer::Full)),
        _ => Reply::error(format!("ERR {error}")),
    }
}

fn too_long() -> Reply<'static> {
    Reply::error(format!("ERR the reply would have more than {REPLY_BYTES_MAX} bytes"))
}
