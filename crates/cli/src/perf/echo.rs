//! The server's part of calls: threads that answer each by a parcel with the same stamp.

use halite::{Call, Function, ServeCause, ServeError, ServeOptions, blocking};

use super::end::End;
use super::parcel::{Parcel, stamp_of};
use super::server::{Follower, Part};

/// Serves a function by each thread.
pub fn follow(end: &End, part: &Part) -> anyhow::Result<Vec<Follower>> {
    let follower = |thread| {
        let server = end.session.serve(function(thread), ServeOptions::default())?;
        let expected = (part.size > 0).then(|| Parcel::new(part.size, thread));
        let replies = vec![Parcel::new(part.reply_bytes, thread); part.batch];
        let echo = Echo { server: server.clone(), expected, replies, errors: 0 };
        Ok(Follower { run: Box::new(|| echo.run()), function: Some(server) })
    };
    (0..part.threads).map(follower).collect()
}

/// The function that a client's thread calls.
pub fn function(thread: usize) -> Function {
    Function(thread as u32)
}

struct Echo {
    server: blocking::Server,
    /// What each request must be; none for any.
    expected: Option<Parcel>,
    /// As many as are answered together.
    replies: Vec<Parcel>,
    /// How many requests were not what they should have been.
    errors: u64,
}

impl Echo {
    /// Answers until the function is closed.
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
            self.look_at(&call, 0);
            call = self.server.reply_and_recv(call, self.replies[0].bytes())?;
        }
    }

    fn together(&mut self) -> Result<(), ServeError> {
        loop {
            let calls = self.server.recv_many(self.replies.len())?;
            calls.iter().enumerate().for_each(|(index, call)| self.look_at(call, index));
            // A caller that has gone is the client's to report.
            let _ = self.server.reply_all(calls.into_iter().zip(self.replies.iter().map(Parcel::bytes)));
        }
    }

    /// Checks a request, and stamps the reply of this number.
    #[inline]
    fn look_at(&mut self, call: &Call, reply: usize) {
        let stamp = stamp_of(call.input());
        if let Some(expected) = &mut self.expected {
            expected.stamp(stamp);
            self.errors += u64::from(!expected.resembles(call.input()));
        }
        self.replies[reply].stamp(stamp);
    }
}
