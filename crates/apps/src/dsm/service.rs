//! Servers of a worker. One of them discards copies of pages.

use std::sync::Arc;
use std::thread::JoinHandle;

use halite::{Server, blocking};

use super::error::DsmError;
use super::pages::Pages;
use super::words;

/// First word of a call that asks a worker to discard copies of pages.
pub(super) const DISCARD: u64 = 0;
/// First word of a call that a worker never answers. The call fails when the worker ends.
pub(super) const AWAIT_END: u64 = 1;

/// A server and its thread, which end when this is dropped.
pub(super) struct Service {
    server: Server,
    thread: Option<JoinHandle<()>>,
}

impl Service {
    /// Runs `serving`, which ends when `server` closes, on a thread of its own.
    pub(super) fn spawn(
        session: &blocking::Session,
        server: Server,
        serving: impl Future<Output = ()> + Send + 'static,
    ) -> Result<Service, DsmError> {
        let session = session.clone();
        let builder = std::thread::Builder::new().name("halite-dsm".to_owned());
        let thread = builder.spawn(move || session.block_on(serving)).map_err(DsmError::NoThread)?;
        Ok(Service { server, thread: Some(thread) })
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.server.close();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported when it occurred.
            let _ = thread.join();
        }
    }
}

/// Serves calls to discard copies. Such a call lists the runs of changed pages after its first word.
pub(super) async fn serve_pages(server: Server, pages: Arc<Pages>) {
    let mut unanswered = Vec::new();
    while let Ok(call) = server.recv().await {
        let input = words::decode(call.input());
        if input.first() == Some(&AWAIT_END) {
            unanswered.push(call);
            continue;
        }
        for run in input.get(1..).unwrap_or_default().chunks_exact(2) {
            pages.invalidate(run[0] as usize..run[1] as usize);
        }
        // An error means that the caller has ended.
        let _ = call.reply(&[]);
    }
}
