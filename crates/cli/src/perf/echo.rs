//! The server's side of calls: threads that answer each call with a message (parcel) that has the same stamp.

use halite::{Call, Function, ServeCause, ServeError, ServeOptions, blocking};

use super::end::End;
use super::parcel::{Parcel, stamp_of};
use super::server::{ServerTask, ServerThread};

/// Serves one function per thread.
pub fn server_threads(end: &End, task: &ServerTask) -> anyhow::Result<Vec<ServerThread>> {
    let server_thread = |thread| {
        let server = end.session.serve(function(thread), ServeOptions::default())?;
        let expected = (task.size > 0).then(|| Parcel::new(task.size, thread));
        let replies = vec![Parcel::new(task.reply_bytes, thread); task.batch];
        let echo = Echo { server: server.clone(), expected, replies, errors: 0 };
        Ok(ServerThread { run: Box::new(|| echo.run()), function: Some(server) })
    };
    (0..task.threads).map(server_thread).collect()
}

/// Returns the function that a client thread calls.
pub fn function(thread: usize) -> Function {
    Function(thread as u32)
}

struct Echo {
    server: blocking::Server,
    /// Expected requests; `None` if they vary.
    expected: Option<Parcel>,
    /// Replies to the calls that are answered together, one for each.
    replies: Vec<Parcel>,
    /// Number of wrong requests.
    errors: u64,
}

impl Echo {
    fn run(mut self) -> anyhow::Result<u64> {
        let ended = match self.replies.len() {
            1 => self.one_by_one(),
            _ => self.together(),
        };
        match ended {
            Err(error) if *error.cause() != ServeCause::Closed => Err(error.into()),
            _ => Ok(self.errors),
        }
    }

    fn one_by_one(&mut self) -> Result<(), ServeError> {
        let mut call = self.server.recv()?;
        loop {
            self.check(&call, 0);
            call = self.server.reply_and_recv(call, self.replies[0].bytes())?;
        }
    }

    fn together(&mut self) -> Result<(), ServeError> {
        loop {
            let calls = self.server.recv_many(self.replies.len())?;
            calls.iter().enumerate().for_each(|(index, call)| self.check(call, index));
            // A lost caller is no error here: the client reports it.
            let _ = self.server.reply_all(calls.into_iter().zip(self.replies.iter().map(Parcel::bytes)));
        }
    }

    /// Checks a request and stamps the reply at index `reply`.
    #[inline]
    fn check(&mut self, call: &Call, reply: usize) {
        let stamp = stamp_of(call.input());
        if let Some(expected) = &mut self.expected {
            expected.stamp(stamp);
            self.errors += u64::from(!expected.is_stamped_like(call.input()));
        }
        self.replies[reply].stamp(stamp);
    }
}
