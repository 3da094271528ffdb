//! Sections: from acquire to release.

use std::fmt;
use std::future::poll_fn;
use std::ops::Range;
use std::pin::Pin;
use std::task::Poll;

use halite::{CallCause, NamedCallCause, NamedCallError};

use super::member::{Held, Member};
use super::service::DISCARD;
use super::{Access, Dsm, DsmError, service_name, words};

/// Maximum number of runs of pages in one call, so that its input has at most 64 KiB.
const RUNS_MAX: usize = 4095;

/// Pages that a worker has acquired. Dropping a section also releases its pages, but does not report an error of that
/// release.
#[must_use = "the pages are released when the section is dropped"]
pub struct Section<'a> {
    dsm: &'a Dsm,
    /// The pages; `None` once they are released.
    held: Option<Held>,
}

impl fmt::Debug for Section<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Section").field(&self.held).finish()
    }
}

impl<'a> Section<'a> {
    pub(super) fn acquire(dsm: &'a Dsm, bytes: Range<u64>, access: Access) -> Result<Section<'a>, DsmError> {
        let held = dsm.session.block_on(dsm.member.acquire(bytes, access))?;
        Ok(Section { dsm, held: Some(held) })
    }

    /// Makes the stores in this section visible to later sections of all workers, and ends the section. After an error,
    /// other workers may wait for these pages until this worker ends.
    pub fn release(mut self) -> Result<(), DsmError> {
        self.end()
    }

    fn end(&mut self) -> Result<(), DsmError> {
        let Some(held) = self.held.take() else { return Ok(()) };
        self.dsm.session.block_on(self.dsm.member.release(held))
    }
}

impl Drop for Section<'_> {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// Makes all other workers discard their copies of pages. Returns the workers that have ended.
pub(super) async fn invalidate(member: &Member, runs: &[Range<usize>]) -> Result<Vec<usize>, DsmError> {
    let mut lost = Vec::new();
    for runs in runs.chunks(RUNS_MAX) {
        let bounds = runs.iter().flat_map(|run| [run.start as u64, run.end as u64]);
        let input = words::encode([DISCARD].into_iter().chain(bounds));
        for (worker, answer) in call_others(member, &input).await {
            match answer {
                Ok(_) => {}
                Err(error) if has_ended(&error) => lost.push(worker),
                Err(source) => return Err(DsmError::Invalidate { worker, source }),
            }
        }
    }
    Ok(lost)
}

/// Returns true if the server's node is down, or its server has ended.
fn has_ended(error: &NamedCallError) -> bool {
    match error.cause() {
        NamedCallCause::NoServer => true,
        NamedCallCause::Call(error) => {
            matches!(error.cause(), CallCause::PeerDown | CallCause::UnknownNode | CallCause::ServerClosed)
        }
        _ => false,
    }
}

type Answered = (usize, Result<Vec<u8>, NamedCallError>);

/// Calls all other workers at once.
async fn call_others(member: &Member, input: &[u8]) -> Vec<Answered> {
    let (options, session) = (&member.options, &member.session);
    let others = (0..options.workers).filter(|worker| *worker != options.me);
    let mut calls: Vec<Pin<Box<dyn Future<Output = Answered> + Send + '_>>> = Vec::new();
    for worker in others {
        calls.push(Box::pin(async move {
            let name = service_name(&options.name, worker);
            (worker, session.call_named(&name, input, options.patience).await)
        }));
    }
    let mut answers = Vec::with_capacity(calls.len());
    poll_fn(|context| {
        calls.retain_mut(|call| match call.as_mut().poll(context) {
            Poll::Ready(answer) => {
                answers.push(answer);
                false
            }
            Poll::Pending => true,
        });
        if calls.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    answers
}
