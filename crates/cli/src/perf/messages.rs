//! `send_lat`, `publish_lat` and `publish_rate`: messages between ports of both sides.

use halite::{NodeId, Port, ServeOptions, blocking};

use super::end::End;
use super::pairs::Partner;
use super::parcel::Parcel;
use super::server::ServerTask;
use super::workload::{Measured, PerfArgs, Plan, Planned, Timer};

/// Ping-pong of messages: the sender waits until a message is in the port's queue.
pub type Sent = Messenger<false, false>;
/// Ping-pong of published messages: the sender does not wait until a message is in the port's queue.
pub type Published = Messenger<true, false>;
/// Stream of published messages in one direction.
pub type Streamed = Messenger<true, true>;

pub struct Messenger<const PUBLISHES: bool, const IS_ONE_WAY: bool> {
    session: blocking::Session,
    sender: blocking::Sender,
    to: NodeId,
    port: Port,
    mailbox: blocking::Mailbox,
    parcel: Parcel,
    stamp: u64,
    errors: u64,
}

impl<const PUBLISHES: bool, const IS_ONE_WAY: bool> Partner for Messenger<PUBLISHES, IS_ONE_WAY> {
    /// Opens the ports; the two of a pair have the same number.
    fn create(end: &End, task: &ServerTask) -> anyhow::Result<Vec<Self>> {
        let open = |thread: usize| {
            let (to, port) = (end.peer, Port(thread as u32));
            let mailbox = end.session.open_port(port, ServeOptions::default())?;
            let (session, sender) = (end.session.clone(), end.session.sender(to, port));
            let parcel = Parcel::new(task.size, thread);
            Ok(Messenger { session, sender, to, port, mailbox, parcel, stamp: 0, errors: 0 })
        };
        (0..task.threads).map(open).collect()
    }

    fn take_turn(&mut self, is_client: bool) -> anyhow::Result<()> {
        self.stamp += 1;
        self.parcel.stamp(self.stamp);
        match (is_client, IS_ONE_WAY) {
            (true, true) => self.send(),
            (false, true) => self.receive(),
            (true, false) => {
                self.send()?;
                self.receive()
            }
            (false, false) => {
                self.receive()?;
                self.send()
            }
        }
    }

    /// In one direction, a round ends when all messages are in the port's queue.
    fn measure(&mut self, timer: &Timer) -> anyhow::Result<Measured> {
        if !IS_ONE_WAY {
            return timer.halves(|| self.take_turn(true));
        }
        timer.overlapping(|count| {
            (0..count).try_for_each(|_| self.take_turn(true))?;
            Ok(self.sender.flush()?)
        })
    }

    fn finish(mut self) -> anyhow::Result<u64> {
        // The last published messages may still be in flight.
        self.sender.flush()?;
        Ok(self.errors)
    }
}

impl<const PUBLISHES: bool, const IS_ONE_WAY: bool> Messenger<PUBLISHES, IS_ONE_WAY> {
    pub fn plan(_: &PerfArgs) -> Planned {
        let description = match IS_ONE_WAY {
            true => "messages one after the other, up to 64 outstanding",
            false => "half a ping-pong of messages",
        };
        Ok(Plan { needs_server: true, ..Plan::of::<Self>(description) })
    }

    /// Sends the next message; both sides of a pair send the same bytes.
    fn send(&mut self) -> anyhow::Result<()> {
        match PUBLISHES {
            true => Ok(self.sender.send(self.parcel.bytes())?),
            false => Ok(self.session.send(self.to, self.port, self.parcel.bytes())?),
        }
    }

    /// Waits for the other side's message, which must have the next stamp.
    fn receive(&mut self) -> anyhow::Result<()> {
        let message = self.mailbox.recv()?;
        self.errors += u64::from(!self.parcel.is_stamped_like(&message.bytes));
        Ok(())
    }
}
