//! The server's part of calls: threads that answer each by a parcel with the same stamp.

use std::thread::JoinHandle;

use anyhow::Context;
use halite::{Call, Function, ServeCause, ServeError, ServeOptions, blocking};
use serde::{Deserialize, Serialize};

use super::cores::{Cores, pin};
use super::parcel::{Parcel, stamp_of};

/// Functions that are served, one by each thread.
pub struct Echo {
    servers: Vec<blocking::Server>,
    threads: Vec<JoinHandle<anyhow::Result<u64>>>,
}

/// What is said there and back.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Debug)]
pub struct CallShape {
    /// How many functions are called, each served by a thread of its own.
    pub threads: usize,
    /// Bytes that each request must have; none for any.
    pub request_bytes: Option<u64>,
    /// Bytes of each reply.
    pub reply_bytes: u64,
    /// How many requests are taken, and answered, together at most.
    pub batch: usize,
}

impl Echo {
    /// Serves function 0 on the first thread's core, and so on.
    pub fn begin(session: &blocking::Session, cores: &Cores, shape: CallShape) -> anyhow::Result<Echo> {
        let serve = |thread| session.serve(function(thread), ServeOptions::default());
        let servers = (0..shape.threads).map(serve).collect::<Result<Vec<_>, _>>()?;
        let start = |(thread, server): (usize, &blocking::Server)| {
            let (server, own) = (server.clone(), cores.of_server(thread));
            let expected = shape.request_bytes.map(|len| Parcel::new(len, thread));
            let replies = vec![Parcel::new(shape.reply_bytes, thread); shape.batch];
            std::thread::spawn(move || {
                pin(own).context("cannot stay on the server's core")?;
                let mut answering = Answering { expected, replies, errors: 0 };
                answering.run(&server)?;
                Ok(answering.errors)
            })
        };
        let threads = servers.iter().enumerate().map(start).collect();
        Ok(Echo { servers, threads })
    }

    /// Ends the functions; returns how many requests were not what they should have been.
    pub fn end(self) -> anyhow::Result<u64> {
        self.servers.iter().for_each(blocking::Server::close);
        let errors = self.threads.into_iter().map(|thread| thread.join().expect("an echo does not panic"));
        errors.sum()
    }
}

/// The function that a client's thread calls.
pub fn function(thread: usize) -> Function {
    Function(thread as u32)
}

struct Answering {
    expected: Option<Parcel>,
    /// As many as are answered together.
    replies: Vec<Parcel>,
    /// How many requests were not what they should have been.
    errors: u64,
}

impl Answering {
    /// Answers until the function is closed.
    fn run(&mut self, server: &blocking::Server) -> anyhow::Result<()> {
        let ended = match self.replies.len() {
            1 => self.one_by_one(server),
            _ => self.together(server),
        };
        match ended {
            Err(error) if *error.cause() == ServeCause::Closed => Ok(()),
            ended => Ok(ended?),
        }
    }

    fn one_by_one(&mut self, server: &blocking::Server) -> Result<(), ServeError> {
        let mut call = server.recv()?;
        loop {
            self.look_at(&call, 0);
            call = server.reply_and_recv(call, self.replies[0].bytes())?;
        }
    }

    fn together(&mut self, server: &blocking::Server) -> Result<(), ServeError> {
        loop {
            let calls = server.recv_many(self.replies.len())?;
            calls.iter().enumerate().for_each(|(index, call)| self.look_at(call, index));
            // A caller that has gone is the client's to report.
            let _ = server.reply_all(calls.into_iter().zip(self.replies.iter().map(Parcel::bytes)));
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
