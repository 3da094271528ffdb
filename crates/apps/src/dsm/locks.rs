//! The lock server: worker 0 grants sections.
//!
//! The server answers a request when it grants the section. It keeps one unanswered call to each worker; a failure of
//! that call shows at once that the worker has ended.
//!
//! A worker that releases a section does not wait for the answer, because later requests for its pages wait at the
//! server until the release has arrived there. The worker checks the answer after its next section has begun. The
//! release is a posted call, which needs a function number, so the server has a number beside its name.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Poll;
use std::time::Duration;

use halite::{Call, Function, NodeId, PendingCall, ServeCause, ServeError, ServeOptions, Server, Session};
use xxhash_rust::xxh3::xxh3_64;

use super::error::DsmError;
use super::service::AWAIT_END;
use super::table::{Access, Span, Table};
use super::{service_name, words};

/// The first word of a request.
const READ: u64 = 0;
const WRITE: u64 = 1;
const RELEASE: u64 = 2;

/// The word of an answer.
const GRANTED: u64 = 0;
const LOST: u64 = 1;

pub(super) fn server_name(range: &str) -> String {
    format!("{range}/locks")
}

/// A worker's access to the lock server.
pub(super) struct Locks {
    session: Session,
    name: String,
    me: usize,
    patience: Duration,
    /// Node of the lock server.
    node: NodeId,
    /// The function that takes releases, once the first section was granted.
    releases: OnceLock<Function>,
    /// Releases whose answers this worker has not checked yet.
    unanswered: Mutex<VecDeque<PendingCall>>,
}

/// Maximum number of releases whose answers a worker has not checked yet, far below the maximum number of posted calls.
const UNANSWERED_MAX: usize = 8;
/// Maximum length of an answer: two words.
const ANSWER_BYTES_MAX: usize = 16;
/// Lowest number of the functions that take releases, and the number of those that one range may use.
const FUNCTION_MIN: u32 = 1 << 30;
const FUNCTIONS: u32 = 64;

impl Locks {
    pub(super) async fn open(
        session: Session,
        range: &str,
        me: usize,
        patience: Duration,
    ) -> Result<Locks, DsmError> {
        let name = server_name(range);
        let servers = session.servers(Some(&name)).await?;
        let node = servers.first().ok_or(DsmError::Lost)?.node;
        let (releases, unanswered) = Default::default();
        Ok(Locks { session, name, me, patience, node, releases, unanswered })
    }

    /// Waits until the lock server grants a section.
    pub(super) async fn acquire(
        &self,
        id: u64,
        pages: &std::ops::Range<usize>,
        access: Access,
    ) -> Result<(), DsmError> {
        let operation = if access == Access::Write { WRITE } else { READ };
        let mut granted =
            self.call([operation, self.me as u64, id, pages.start as u64, pages.end as u64]).await;
        if granted.is_ok() {
            // The server answered these releases before it granted the section.
            granted = self.check_answers().await;
        }
        if granted.is_err() {
            // The server may have granted the section meanwhile. If the server cannot be reached, its unanswered call
            // to this worker fails, too, and the server ends the section.
            let _ = self.call([RELEASE, self.me as u64, id]).await;
        }
        granted
    }

    /// Releases a section. `lost` lists the workers that have ended and therefore did not discard their copies. If
    /// `lost` is empty, a later operation of this worker reports an error of the lock server.
    pub(super) async fn release(&self, id: u64, lost: &[usize]) -> Result<(), DsmError> {
        let lost_words = lost.iter().map(|worker| *worker as u64);
        let request = [RELEASE, self.me as u64, id].into_iter().chain(lost_words);
        let Some(function) = self.releases.get().filter(|_| lost.is_empty()) else {
            return self.call(request).await;
        };
        let input = words::encode(request);
        let posting = self.session.post_call(self.node, *function, &input, ANSWER_BYTES_MAX, self.patience);
        let posted = posting.await?;
        self.unanswered().push_back(posted);
        if self.unanswered().len() > UNANSWERED_MAX { self.check_answers().await } else { Ok(()) }
    }

    /// Waits for the answers to all releases.
    pub(super) async fn check_answers(&self) -> Result<(), DsmError> {
        loop {
            let Some(oldest) = self.unanswered().pop_front() else { return Ok(()) };
            self.check_answer(&oldest.answer().await?)?;
        }
    }

    fn unanswered(&self) -> MutexGuard<'_, VecDeque<PendingCall>> {
        // A panic of another thread leaves the queue consistent.
        self.unanswered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn call(&self, request: impl IntoIterator<Item = u64>) -> Result<(), DsmError> {
        let input = words::encode(request);
        let answer = self.session.call_named(&self.name, &input, self.patience).await?;
        self.check_answer(&answer)
    }

    fn check_answer(&self, answer: &[u8]) -> Result<(), DsmError> {
        match words::decode(answer)[..] {
            [GRANTED, function] => {
                self.releases.get_or_init(|| Function(function as u32));
                Ok(())
            }
            _ => Err(DsmError::Lost),
        }
    }
}

/// The lock server, which [`Service::run`] runs.
pub(super) struct Service {
    server: Server,
    /// Receives posted releases, at a function number.
    releases: Server,
    function: Function,
    ends: Vec<End>,
}

impl Service {
    pub(super) fn open(
        session: &Session,
        server: Server,
        range: &str,
        workers: usize,
    ) -> Result<Service, ServeError> {
        let ends = (0..workers).map(|worker| await_end(session, range, worker)).collect();
        let first = xxh3_64(range.as_bytes()) as u32 % (FUNCTION_MIN - FUNCTIONS);
        let mut function = Function(FUNCTION_MIN + first);
        let releases = loop {
            match session.serve(function, ServeOptions::default()) {
                // Another range at this node uses this number.
                Err(error)
                    if matches!(error.cause(), ServeCause::Taken { .. })
                        && function.0 < FUNCTION_MIN + first + FUNCTIONS =>
                {
                    function.0 += 1;
                }
                served => break served?,
            }
        };
        Ok(Service { server, releases, function, ends })
    }

    /// Returns the server, whose end ends the service.
    pub(super) fn server(&self) -> Server {
        self.server.clone()
    }

    /// Serves sections until the server closes.
    pub(super) async fn run(mut self) {
        let mut table = Table::new();
        while let Ok(event) = next_event([&self.releases, &self.server], &mut self.ends).await {
            match event {
                Event::Request(call) => handle_request(&mut table, call, self.function),
                Event::Ended(worker) => table.mark_lost(worker),
            }
            grant_sections(&mut table, self.function);
        }
    }
}

/// Resolves to the number of a worker that has ended.
type End = Pin<Box<dyn Future<Output = usize> + Send>>;

/// Timeout of calls that end only with their worker.
const NO_TIMEOUT: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

fn await_end(session: &Session, range: &str, worker: usize) -> End {
    let (session, name) = (session.clone(), service_name(range, worker));
    Box::pin(async move {
        let _ = session.call_named(&name, &words::encode([AWAIT_END]), NO_TIMEOUT).await;
        worker
    })
}

enum Event {
    Request(Call),
    Ended(usize),
}

async fn next_event(servers: [&Server; 2], ends: &mut Vec<End>) -> Result<Event, ServeError> {
    let [mut release, mut request] = [pin!(servers[0].recv()), pin!(servers[1].recv())];
    poll_fn(|context| {
        for place in 0..ends.len() {
            if let Poll::Ready(worker) = ends[place].as_mut().poll(context) {
                drop(ends.swap_remove(place));
                return Poll::Ready(Ok(Event::Ended(worker)));
            }
        }
        match release.as_mut().poll(context) {
            Poll::Ready(call) => Poll::Ready(call.map(Event::Request)),
            Poll::Pending => request.as_mut().poll(context).map_ok(Event::Request),
        }
    })
    .await
}

fn handle_request(table: &mut Table<Call>, call: Call, function: Function) {
    let request = words::decode(call.input());
    let answer = match request[..] {
        [operation @ (READ | WRITE), worker, id, begin, end] if !table.is_lost(worker as usize) => {
            let access = if operation == WRITE { Access::Write } else { Access::Read };
            let pages = begin as usize..end as usize;
            table.request(Span { worker: worker as usize, id, pages, access }, call);
            return;
        }
        [RELEASE, worker, id, ref lost @ ..] => {
            table.release(worker as usize, id);
            lost.iter().for_each(|worker| table.mark_lost(*worker as usize));
            GRANTED
        }
        _ => LOST,
    };
    // An error means that the caller has ended.
    let _ = call.reply(&words::encode([answer, u64::from(function.0)]));
}

fn grant_sections(table: &mut Table<Call>, function: Function) {
    let granting = words::encode([GRANTED, u64::from(function.0)]);
    loop {
        let granted = table.grant();
        if granted.is_empty() {
            return;
        }
        for (span, call) in granted {
            // A caller that no longer waits never learns that it was granted the section.
            if !call.is_wanted() || call.reply(&granting).is_err() {
                table.release(span.worker, span.id);
            }
        }
    }
}
