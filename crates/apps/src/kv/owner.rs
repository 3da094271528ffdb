//! Who serves a shard.

use halite::{Call, Function, Permissions, ServeCause, ServeOptions, Server, Session};

use super::error::KvError;
use super::shard::Shard;
use super::wire::Request;

/// Calls that are answered together.
const CALLS_MAX: usize = 32;

/// Why an owner serves no more.
enum End {
    /// Somebody has closed the store, or stopped this owner.
    Asked,
    /// The node leaves, and the memory with it.
    Left,
}

/// Serves one shard of a store, whose memory is at its node.
pub struct Owner {
    shard: Shard,
    server: Server,
}

/// Ends an owner from elsewhere.
#[derive(Clone)]
pub struct Stopper(Server);

impl Stopper {
    /// The owner frees what it has made, and serves no more.
    pub fn stop(&self) {
        self.0.close();
    }
}

impl Owner {
    /// Makes shard `number` of the store `name`, for [`Store::create`](super::Store::create) to put together with others.  Principals
    /// other than the session's may do what `everyone` says: read; and if they may write, have everything changed.
    pub async fn create(
        session: &Session,
        name: &str,
        number: usize,
        function: Function,
        everyone: Permissions,
    ) -> Result<Owner, KvError> {
        let callers = if everyone.contains(Permissions::WRITE) { None } else { Some(Vec::new()) };
        let server = session.serve(function, ServeOptions { callers, ..ServeOptions::default() })?;
        // Nobody but the owner writes into its memory.
        let everyone = everyone & Permissions::READ;
        let shard = Shard::make(session.clone(), name, number, everyone).await?;
        Ok(Owner { shard, server })
    }

    /// What ends it from elsewhere.
    pub fn stopper(&self) -> Stopper {
        Stopper(self.server.clone())
    }

    /// Does what clients ask for, until it is stopped or one [closes](super::Store::close) the store, and frees the memory then.  `now_ms` is the time by which
    /// keys expire, of any clock that does not go back.
    pub async fn run(mut self, now_ms: impl Fn() -> u64) -> Result<(), KvError> {
        let done = self.serve(now_ms).await;
        self.server.close();
        if let Ok(End::Left) = done {
            return Ok(());
        }
        let freed = self.shard.free().await;
        done.map(|_| ()).and(freed)
    }

    async fn serve(&mut self, now_ms: impl Fn() -> u64) -> Result<End, KvError> {
        loop {
            let calls = match self.server.recv_many(CALLS_MAX).await {
                Ok(calls) => calls,
                Err(error) if *error.cause() == ServeCause::NodeClosed => return Ok(End::Left),
                Err(error) if *error.cause() == ServeCause::Closed => return Ok(End::Asked),
                Err(error) => return Err(error.into()),
            };
            let is_last = calls.iter().any(|call| Request::decode(call.input()) == Some(Request::Close));
            let mut answers: Vec<(Call, Vec<u8>)> = Vec::with_capacity(calls.len());
            for call in calls {
                let mut answer = Vec::new();
                self.shard.handle(now_ms(), call.input(), &mut answer).await?;
                answers.push((call, answer));
            }
            // A caller that has gone waits for nothing.
            self.server.reply_all(answers);
            if is_last {
                return Ok(End::Asked);
            }
            self.shard.sweep_some(now_ms()).await?;
        }
    }
}
