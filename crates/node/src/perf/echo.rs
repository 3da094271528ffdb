//! The server's part of calls: threads that answer each by a parcel with the same stamp.

use std::thread::JoinHandle;

use anyhow::Context;
use halite::{Function, ServeCause, ServeOptions, blocking};

use super::cores::{Cores, pin};
use super::parcel::{Parcel, stamp_of};

/// Functions that are served, one by each thread.
pub struct Echo {
    servers: Vec<blocking::Server>,
    threads: Vec<JoinHandle<anyhow::Result<u64>>>,
}

impl Echo {
    /// Serves function 0 on the first thread's core, and so on.  `request_bytes` is what each request must have;
    /// none for any.
    pub fn begin(
        session: &blocking::Session,
        cores: &Cores,
        threads: usize,
        request_bytes: Option<u64>,
        reply_bytes: u64,
    ) -> anyhow::Result<Echo> {
        let serve = |thread| session.serve(function(thread), ServeOptions::default());
        let servers = (0..threads).map(serve).collect::<Result<Vec<_>, _>>()?;
        let start = |(thread, server): (usize, &blocking::Server)| {
            let (server, own) = (server.clone(), cores.of_server(thread));
            let expected = request_bytes.map(|len| Parcel::new(len, thread));
            std::thread::spawn(move || {
                pin(own).context("cannot stay on the server's core")?;
                answer(&server, expected, Parcel::new(reply_bytes, thread))
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

fn answer(server: &blocking::Server, mut expected: Option<Parcel>, mut reply: Parcel) -> anyhow::Result<u64> {
    let mut errors = 0;
    let mut next = server.recv();
    loop {
        let call = match next {
            Ok(call) => call,
            Err(error) if *error.cause() == ServeCause::Closed => return Ok(errors),
            Err(error) => return Err(error.into()),
        };
        let stamp = stamp_of(call.input());
        if let Some(expected) = &mut expected {
            expected.stamp(stamp);
            errors += u64::from(!expected.resembles(call.input()));
        }
        reply.stamp(stamp);
        next = server.reply_and_recv(call, reply.bytes());
    }
}
