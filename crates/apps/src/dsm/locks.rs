//! The lock server: worker 0 grants sections.
//!
//! The server answers a request when it grants the section. It keeps one unanswered call to each worker; a failure of
//! that call shows at once that the worker has ended.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use halite::{Call, ServeError, Server, Session};

use super::error::DsmError;
use super::service::AWAIT_END;
use super::table::{Access, Span, Table};
use super::{service_of, words};

/// The first word of a request.
const READ: u64 = 0;
const WRITE: u64 = 1;
const RELEASE: u64 = 2;

/// The word of an answer.
const GRANTED: u64 = 0;
const LOST: u64 = 1;

pub(super) fn name_of(range: &str) -> String {
    format!("{range}/locks")
}

/// A worker's access to the lock server.
pub(super) struct Locks {
    session: Session,
    name: String,
    me: usize,
    patience: Duration,
}

impl Locks {
    pub(super) fn new(session: Session, range: &str, me: usize, patience: Duration) -> Locks {
        Locks { session, name: name_of(range), me, patience }
    }

    /// Waits until the lock server grants a section.
    pub(super) async fn acquire(
        &self,
        id: u64,
        pages: &std::ops::Range<usize>,
        access: Access,
    ) -> Result<(), DsmError> {
        let operation = if access == Access::Write { WRITE } else { READ };
        let granted = self.call([operation, self.me as u64, id, pages.start as u64, pages.end as u64]).await;
        if granted.is_err() {
            // The server may have granted it meanwhile. If it can't be reached, it finds out by itself.
            let _ = self.release(id, &[]).await;
        }
        granted
    }

    /// Releases a section. `lost` lists the workers that have ended and therefore did not discard their copies.
    pub(super) async fn release(&self, id: u64, lost: &[usize]) -> Result<(), DsmError> {
        let lost = lost.iter().map(|worker| *worker as u64);
        self.call([RELEASE, self.me as u64, id].into_iter().chain(lost)).await
    }

    async fn call(&self, request: impl IntoIterator<Item = u64>) -> Result<(), DsmError> {
        let input = words::encode(request);
        let answer = self.session.call_named(&self.name, &input, self.patience).await?;
        match words::decode(&answer)[..] {
            [GRANTED] => Ok(()),
            _ => Err(DsmError::Lost),
        }
    }
}

/// The lock server, until it runs.
pub(super) struct Service {
    server: Server,
    ends: Vec<End>,
}

impl Service {
    pub(super) fn new(session: &Session, server: Server, range: &str, workers: usize) -> Service {
        Service { server, ends: (0..workers).map(|worker| end_of(session, range, worker)).collect() }
    }

    /// Returns the server, whose end ends the service.
    pub(super) fn server(&self) -> Server {
        self.server.clone()
    }

    /// Serves sections until the server closes.
    pub(super) async fn run(mut self) {
        let mut table = Table::new();
        while let Ok(event) = next(&self.server, &mut self.ends).await {
            match event {
                Event::Request(call) => handle(&mut table, call),
                Event::Ended(worker) => table.lose(worker),
            }
            answer_granted(&mut table);
        }
    }
}

/// Resolves to the number of a worker that has ended.
type End = Pin<Box<dyn Future<Output = usize> + Send>>;

/// Timeout of the unanswered calls, longer than any run.
const FOR_EVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

fn end_of(session: &Session, range: &str, worker: usize) -> End {
    let (session, name) = (session.clone(), service_of(range, worker));
    Box::pin(async move {
        let _ = session.call_named(&name, &words::encode([AWAIT_END]), FOR_EVER).await;
        worker
    })
}

enum Event {
    Request(Call),
    Ended(usize),
}

async fn next(server: &Server, ends: &mut Vec<End>) -> Result<Event, ServeError> {
    let mut request = pin!(server.recv());
    poll_fn(|context| {
        for place in 0..ends.len() {
            if let Poll::Ready(worker) = ends[place].as_mut().poll(context) {
                drop(ends.swap_remove(place));
                return Poll::Ready(Ok(Event::Ended(worker)));
            }
        }
        request.as_mut().poll(context).map_ok(Event::Request)
    })
    .await
}

fn handle(table: &mut Table<Call>, call: Call) {
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
            lost.iter().for_each(|worker| table.lose(*worker as usize));
            GRANTED
        }
        _ => LOST,
    };
    // A caller that has ended needs no answer.
    let _ = call.reply(&words::encode([answer]));
}

fn answer_granted(table: &mut Table<Call>) {
    loop {
        let granted = table.grant();
        if granted.is_empty() {
            return;
        }
        for (span, call) in granted {
            // A caller that no longer waits does not know that it has the section.
            if !call.is_wanted() || call.reply(&words::encode([GRANTED])).is_err() {
                table.release(span.worker, span.id);
            }
        }
    }
}
