//! The owner of a shard: serves its clients, and frees its memory when it ends.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use halite::{
    AccessCause, Call, Function, Permissions, RegionCause, ServeCause, ServeOptions, Server, Session,
};

use super::error::KvError;
use super::layout::store_id;
use super::shard::Shard;
use super::wire::{Answer, Request, parts, push_part};

/// Maximum number of calls that are received and answered in one batch.
const CALLS_MAX: usize = 32;

/// The reason why an owner ends.
enum End {
    /// The store was closed, or this owner was stopped.
    Requested,
    /// The node leaves the cluster and takes the memory with it.
    NodeClosed,
}

/// Serves one shard of a store, in memory of its node.
pub struct Owner {
    shard: Local,
    number: usize,
    /// Hash of the store's name. Requests carry it.
    store_id: u64,
    server: Server,
    outlives_memory: bool,
}

/// A shard of this process. Other threads of the process use it without calls, one at a time.
#[derive(Clone)]
pub struct Local(Arc<Mutex<Option<Shard>>>);

/// The shard, while a thread uses it; `None` once its owner has ended.
type LocalGuard<'a> = MutexGuard<'a, Option<Shard>>;

impl Local {
    fn lock(&self) -> LocalGuard<'_> {
        // A panic during a change leaves all entries intact, because entries never change.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Executes a request and writes the answer into `answer`. A thread that runs this future must not also wait for
    /// the owner, because the owner may be waiting for the shard's lock, which this future holds.
    #[expect(
        clippy::await_holding_lock,
        reason = "each thread has one future, and what it waits for needs no shard"
    )]
    pub(super) async fn execute(
        &self,
        now_ms: u64,
        request: &Request<'_>,
        answer: &mut Vec<u8>,
    ) -> Result<(), KvError> {
        let mut held = self.lock();
        let shard = held.as_mut().ok_or(KvError::Ended)?;
        // Boxed here and below, because it is rare, and so the future of a request stays small.
        if shard.is_lost() {
            Box::pin(shard.replace_memory()).await?;
        }
        let done = shard.execute(now_ms, request, answer).await;
        if let Err(error) = &done {
            Box::pin(shard.handle_error(error)).await;
        }
        done
    }

    /// Removes some expired keys of the shard.
    #[expect(clippy::await_holding_lock, reason = "see execute")]
    pub(super) async fn sweep_batch(&self, now_ms: u64) -> Result<(), KvError> {
        if let Some(shard) = &mut *self.lock()
            && let Err(error) = shard.sweep_batch(now_ms).await
        {
            if !shard.outlives_memory {
                return Err(error);
            }
            Box::pin(shard.handle_error(&error)).await;
        }
        Ok(())
    }
}

/// Stops an owner from another thread.
#[derive(Clone)]
pub struct Stopper(Server);

impl Stopper {
    /// Asks the owner to free its memory and end.
    pub fn stop(&self) {
        self.0.close();
    }
}

impl Owner {
    /// Creates shard `number` of the store `name`. [`Store::create`](super::Store::create) then combines the shards
    /// into a store. `everyone` lists the permissions of principals other than the session's: READ to read values,
    /// WRITE to request changes.
    pub async fn create(
        session: &Session,
        name: &str,
        number: usize,
        function: Function,
        everyone: Permissions,
    ) -> Result<Owner, KvError> {
        let callers = if everyone.contains(Permissions::WRITE) { None } else { Some(Vec::new()) };
        let server = session.serve(function, ServeOptions { callers, ..ServeOptions::default() })?;
        // Only the owner writes to its memory.
        let everyone = everyone & Permissions::READ;
        let shard = Shard::create(session.clone(), name, number, everyone).await?;
        let shard = Local(Arc::new(Mutex::new(Some(shard))));
        Ok(Owner { shard, number, store_id: store_id(name), server, outlives_memory: false })
    }

    /// Makes the owner continue without keys, in other memory, when memory of the shard is lost with a node. Otherwise
    /// the owner ends, so that clients never find an empty shard in place of their keys.
    pub fn outliving_memory(mut self) -> Owner {
        self.outlives_memory = true;
        if let Some(shard) = &mut *self.shard.lock() {
            shard.outlives_memory = true;
        }
        self
    }

    /// Returns the shard's number, and its handle for other threads of the process.
    pub fn local(&self) -> (usize, Local) {
        (self.number, self.shard.clone())
    }

    /// Returns a handle that stops the owner.
    pub fn stopper(&self) -> Stopper {
        Stopper(self.server.clone())
    }

    /// Serves clients until it is stopped or a client [closes](super::Store::close) the store; then frees the memory.
    /// `now_ms` is the clock for expiry in ms: Unix time, if clients use [`Expires::At`](super::Expires::At).
    pub async fn run(mut self, now_ms: impl Fn() -> u64) -> Result<(), KvError> {
        let done = self.serve(now_ms).await;
        self.server.close();
        if let Ok(End::NodeClosed) = done {
            return Ok(());
        }
        let shard = self.shard.lock().take();
        let freed = match shard {
            Some(shard) => shard.free().await,
            None => Ok(()),
        };
        done.map(|_| ()).and(freed)
    }

    /// Executes several requests; each gets its own answer.
    async fn execute_batch(&self, now_ms: u64, requests: &[u8], answer: &mut Vec<u8>) -> Result<(), KvError> {
        Answer::Bytes(0, &[]).encode(answer);
        let mut one = Vec::new();
        for request in parts(requests) {
            match Request::decode(request) {
                Some((store, _)) if store != self.store_id => Answer::AnotherStore.encode(&mut one),
                Some((_, request)) if request.has_short_answer() => {
                    self.shard.execute(now_ms, &request, &mut one).await?
                }
                _ => Answer::Malformed.encode(&mut one),
            }
            push_part(answer, &one);
        }
        Ok(())
    }

    /// Executes calls until the end.
    async fn serve(&mut self, now_ms: impl Fn() -> u64) -> Result<End, KvError> {
        loop {
            let calls = match self.server.recv_many(CALLS_MAX).await {
                Ok(calls) => calls,
                Err(error) if matches!(error.cause(), ServeCause::NodeClosed(_)) => {
                    return Ok(End::NodeClosed);
                }
                Err(error) if *error.cause() == ServeCause::Closed => return Ok(End::Requested),
                Err(error) => return Err(error.into()),
            };
            let end = Some((self.store_id, Request::Close));
            let is_last = calls.iter().any(|call| Request::decode(call.input()) == end);
            let mut answers: Vec<(Call, Vec<u8>)> = Vec::with_capacity(calls.len());
            for call in calls {
                let mut answer = Vec::new();
                let done = match Request::decode(call.input()) {
                    Some((store, _)) if store != self.store_id => {
                        Answer::AnotherStore.encode(&mut answer);
                        Ok(())
                    }
                    Some((_, Request::Batch { requests })) => {
                        self.execute_batch(now_ms(), requests, &mut answer).await
                    }
                    Some((_, request)) => self.shard.execute(now_ms(), &request, &mut answer).await,
                    None => {
                        Answer::Malformed.encode(&mut answer);
                        Ok(())
                    }
                };
                match done {
                    Ok(()) => answers.push((call, answer)),
                    Err(error) if !self.outlives_memory || ends_owner(&error) => return Err(error),
                    // Memory of another node cannot be reached. The dropped call fails at its caller.
                    Err(_) => {}
                }
            }
            // An error means that the caller has ended, so the answer is no longer needed.
            self.server.reply_all(answers);
            if is_last {
                return Ok(End::Requested);
            }
            self.shard.sweep_batch(now_ms()).await?;
        }
    }
}

/// Returns true after an error that later requests would meet, too, because the owner's node has ended or the shard is
/// damaged.
fn ends_owner(error: &KvError) -> bool {
    match error {
        KvError::Access(error) => matches!(error.cause(), AccessCause::NodeClosed(_)),
        KvError::Region(error) => matches!(error.cause(), RegionCause::NodeClosed(_)),
        KvError::Full | KvError::NoDirectory => false,
        _ => true,
    }
}
