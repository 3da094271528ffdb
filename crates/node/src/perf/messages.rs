//! `send_lat`: half a ping-pong of messages, each side receiving at a port of its own.

use halite::{NodeId, Port, ServeOptions, blocking};

use super::pairs::{Game, Partner};
use super::parcel::Parcel;

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

impl Partner for Correspondent {
    const GAME: Game = Game::Messages;

    fn turn(&mut self, leads: bool) -> anyhow::Result<()> {
        self.stamp += 1;
        self.parcel.stamp(self.stamp);
        if leads {
            self.send()?;
            self.receive()
        } else {
            self.receive()?;
            self.send()
        }
    }

    fn errors(&mut self) -> anyhow::Result<u64> {
        Ok(self.errors)
    }
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
}
