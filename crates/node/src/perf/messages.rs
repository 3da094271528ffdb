//! `send_lat`: half a ping-pong of messages, each side receiving at a port of its own.

use anyhow::Context;
use halite::{NodeId, Port, ServeOptions, blocking};

use super::cores::Cores;
use super::crew;
use super::ends::Ends;
use super::gate::Seat;
use super::job::Job;
use super::measure::{Schedule, Series, estimate_ns};
use super::parcel::Parcel;
use super::pingpong::{time_half, warm_up};
use super::report::Row;
use super::server::{Reply, Request};

/// One side of one pair.
pub struct Correspondent {
    session: blocking::Session,
    to: NodeId,
    port: Port,
    mailbox: blocking::Mailbox,
    parcel: Parcel,
    stamp: u64,
    errors: u64,
}

/// One for each thread, with open ports; those at `to` have the same numbers.
pub fn correspondents(
    session: &blocking::Session,
    to: NodeId,
    threads: usize,
    size: u64,
) -> anyhow::Result<Vec<Correspondent>> {
    let open = |thread: usize| {
        let port = Port(thread as u32);
        let mailbox = session.open_port(port, ServeOptions::default())?;
        let parcel = Parcel::new(size, thread);
        anyhow::Ok(Correspondent { session: session.clone(), to, port, mailbox, parcel, stamp: 0, errors: 0 })
    };
    (0..threads).map(open).collect()
}

impl Correspondent {
    /// Sends the next message.  Both sides of a pair send the same.
    fn send(&mut self) -> anyhow::Result<()> {
        Ok(self.session.send(self.to, self.port, self.parcel.bytes())?)
    }

    /// Waits for the other side's message, which must have the next stamp.
    fn receive(&mut self) -> anyhow::Result<()> {
        let message = self.mailbox.recv()?;
        self.errors += u64::from(!self.parcel.resembles(&message.bytes));
        Ok(())
    }

    fn turn(&mut self) {
        self.stamp += 1;
        self.parcel.stamp(self.stamp);
    }
}

/// The server's part: sends each message back.  Returns how many were wrong.
pub fn reflect(pairs: Vec<Correspondent>, turns: u64, cores: &Cores) -> anyhow::Result<u64> {
    let errors = crew::share(
        pairs,
        |thread| cores.of_server(thread),
        |mut pair, _| {
            for _ in 0..turns {
                pair.turn();
                pair.receive()?;
                pair.send()?;
            }
            Ok(pair.errors)
        },
    )?;
    Ok(errors.into_iter().sum())
}

/// All sizes.
pub fn run(
    job: &Job,
    ends: &mut Ends,
    report: &mut dyn FnMut(Row) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    for size in &job.sizes {
        report(measure(job, ends, *size)?)?;
    }
    Ok(())
}

fn measure(job: &Job, ends: &mut Ends, size: u64) -> anyhow::Result<Row> {
    let iterations = job.iterations(size);
    let pairs = correspondents(&ends.session, ends.peer, job.threads, size)?;
    let cores = ends.cores.clone();
    let server = ends.server().context("messages need a server of our own")?;
    let turns = warm_up(iterations) + iterations;
    server.ask(&Request::Reflect { threads: job.threads, size, turns }, Reply::Ready)?;
    let lead = |pair, seat| lead(pair, iterations, &seat);
    let mut row = Row::new(size, iterations);
    for (schedule, series, errors) in crew::share(pairs, |thread| cores.of_client(thread), lead)? {
        row.batch = schedule.batch;
        row.ours.merge(&series);
        row.errors += errors;
    }
    row.errors += server.errors()?;
    Ok(row)
}

fn lead(mut pair: Correspondent, iterations: u64, seat: &Seat) -> anyhow::Result<(Schedule, Series, u64)> {
    let mut round_trip = || {
        pair.turn();
        pair.send()?;
        pair.receive()
    };
    seat.wait();
    let schedule = Schedule::new(iterations, estimate_ns(iterations, &mut round_trip)? / 2.0);
    let series = time_half(schedule, round_trip)?;
    Ok((schedule, series, pair.errors))
}
