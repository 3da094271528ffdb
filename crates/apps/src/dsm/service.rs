//! Servers of a worker, each with its own thread. One of them discards copies of pages.

use std::sync::Arc;
use std::thread::JoinHandle;

use halite::blocking::Server;

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
    pub(super) fn spawn(server: Server, run: impl FnOnce(Server) + Send + 'static) -> Service {
        let served = server.clone();
        let thread = std::thread::spawn(move || run(served));
        Service { server, thread: Some(thread) }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.server.close();
        if let Some(thread) = self.thread.take() {
            // Its panic was reported when it occurred.
            let _ = thread.join();
        }
    }
}

/// Serves calls to discard copies. Such a call lists the runs of changed pages after its first word.
pub(super) fn serve_pages(server: Server, pages: Arc<Pages>) -> Service {
    Service::spawn(server, move |server| {
        let mut unanswered = Vec::new();
        while let Ok(call) = server.recv() {
            let input = words::decode(call.input());
            if input.first() == Some(&AWAIT_END) {
                unanswered.push(call);
                continue;
            }
            for run in input.get(1..).unwrap_or_default().chunks_exact(2) {
                pages.invalidate(run[0] as usize..run[1] as usize);
            }
            // A caller that has ended needs no answer.
            let _ = call.reply(&[]);
        }
    })
}
