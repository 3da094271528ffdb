//! Communication between workers and the master. An order is the reply to a worker's call.

use std::time::Duration;

use halite::{Call, ServeOptions, Server, Session};
use serde::{Deserialize, Serialize};

use super::error::Error;
use super::exchange::Section;
use super::input::Split;

/// Timeout of a worker's call. The master answers at once, unless it merges runs or its processor is busy.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// A worker's request for its next order. It also reports the work done since the last request.
#[derive(Serialize, Deserialize, Debug)]
pub(super) struct Request {
    pub(super) worker: u32,
    pub(super) report: Report,
}

/// Work that a worker has done.
#[derive(Serialize, Deserialize, Debug)]
pub(super) enum Report {
    /// The worker has done no work.
    Nothing,
    /// The worker has mapped a task. Its result is not published yet.
    Mapped { task: usize, bytes: u64, load_ns: u64 },
    /// The worker has published the results of all tasks since its last publication, with a section for each part.
    Published { sections: Vec<Section> },
    /// The worker has reduced a part.
    Reduced { part: usize, run: Section, keys: u64 },
    /// The worker could not read the results of worker `owner`.
    Unread { owner: u32, reason: String },
    /// The worker failed, so the run fails.
    Failed(String),
}

/// Work for a worker.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
pub(super) enum Order {
    /// Map these splits.
    Map { task: usize, splits: Vec<Split> },
    /// Publish the results of all splits mapped so far.
    Publish,
    /// Reduce a part from the sections of these workers.
    Reduce { part: usize, sections: Vec<(u32, Section)> },
    /// Request the next order after a pause.
    Wait,
    /// Free all regions and end.
    End,
}

/// The server at which the master receives the requests of its workers.
#[derive(Clone, Debug)]
pub struct Desk {
    server: Server,
}

impl Desk {
    /// Opens the server of a run at this session's node, under the name of the run.
    pub async fn open(session: &Session, run: &str) -> Result<Desk, Error> {
        Ok(Desk { server: session.serve_named(run, ServeOptions::default()).await? })
    }

    /// Closes the server, which ends the run: calls of workers fail, and the master receives an error.
    pub fn close(&self) {
        self.server.close();
    }

    /// Waits for a request. A malformed request is dropped, so its call fails.
    pub(super) async fn recv(&self) -> Result<(Request, PendingRequest), Error> {
        loop {
            let call = self.server.recv().await?;
            if let Ok(request) = postcard::from_bytes(call.input()) {
                return Ok((request, PendingRequest(call)));
            }
        }
    }
}

/// A request of a worker that waits for its order.
pub(super) struct PendingRequest(Call);

impl PendingRequest {
    pub(super) fn answer(self, order: &Order) -> Result<(), Error> {
        // An error means that the worker has died, which the master detects by other means.
        let _ = self.0.reply(&postcard::to_stdvec(order)?);
        Ok(())
    }
}

/// Reports to the master of a run; returns its next order.
pub(super) async fn request_order(session: &Session, run: &str, request: &Request) -> Result<Order, Error> {
    let answer = session.call_named(run, &postcard::to_stdvec(request)?, ANSWER_TIMEOUT).await?;
    Ok(postcard::from_bytes(&answer)?)
}
