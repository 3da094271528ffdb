//! Dialling: a socket of this host, or another host by its addresses, one after the other until one answers.
//!
//! An address that swallows what is sent there must not hold up the next one for long: that is tried after a moment, beside it.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;

use halite_fabric::HELLO_BYTES_MAX;
use rustix::io::Errno;

use super::control::{Attempt, Control, Handshake};
use super::core::Core;
use super::greeting::Message;
use super::line::Line;
use super::lock;

/// How long an address has before the next one is tried, too.
const NEXT_NS: u64 = 250_000_000;

impl Core {
    pub(super) fn dial(&self, address: &str, hello: &[u8]) {
        if hello.len() > HELLO_BYTES_MAX {
            let reason = format!("hello of {} bytes is longer than {HELLO_BYTES_MAX}", hello.len());
            return self.fail_to_connect(address.to_owned(), reason, false);
        }
        let mut control = lock(&self.control);
        if control.is_closed() {
            drop(control);
            return self.fail_to_connect(address.to_owned(), "this fabric is closed".to_owned(), false);
        }
        let hosts: Result<VecDeque<SocketAddr>, _> = address.split(',').map(str::parse).collect();
        let number = control.new_attempt();
        let (is_host, rest) = (hosts.is_ok(), hosts.unwrap_or_default());
        let attempt =
            Attempt { number, address: address.to_owned(), hello: hello.to_vec(), rest, next_ns: 0 };
        let dialled = if is_host {
            self.dial_next(&mut control, attempt)
        } else {
            // Joining an absolute path yields that path.
            Line::dial_path(&self.config.dir.join(address))
                .and_then(|line| self.begin(&mut control, line, None, attempt))
        };
        drop(control);
        if let Err(error) = dialled {
            let lacks = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
            let is_ours = Errno::from_io_error(&error).is_some_and(|errno| lacks.contains(&errno));
            self.fail_to_connect(address.to_owned(), error.to_string(), is_ours);
        }
    }

    /// Dials the next address that can be dialled, and leaves the rest to that link.  An error is that of the last one.
    fn dial_next(&self, control: &mut Control, mut attempt: Attempt) -> io::Result<()> {
        let mut dialled = Err(io::ErrorKind::AddrNotAvailable.into());
        while let Some(host) = attempt.rest.pop_front() {
            let next = Attempt { next_ns: self.now_ns() + NEXT_NS, ..attempt.clone() };
            dialled = control.dial_host(host).and_then(|line| self.begin(control, line, Some(host), next));
            if dialled.is_ok() {
                break;
            }
        }
        dialled
    }

    fn begin(
        &self,
        control: &mut Control,
        mut line: Line,
        host: Option<SocketAddr>,
        attempt: Attempt,
    ) -> io::Result<()> {
        let mtu = host.map_or(self.config.mtu, |host| self.mtu_to(host.ip()));
        let port_use = self.port_use();
        let own = port_use.port().at(self.ports.address_as(line.own_address()));
        let offer = control.offer(own, mtu, self.config.selective)?;
        let dialled = line.send(&Message::Dial { offer, hello: attempt.hello.clone() });
        let deadline_ns = self.greeting_deadline_ns();
        let handshake = Handshake::Dialled { attempt, offer, port_use, deadline_ns };
        if let Err(error) = dialled.and_then(|()| control.add(line, handshake)) {
            control.withdraw(&offer);
            return Err(error);
        }
        self.note_greetings(control);
        Ok(())
    }

    /// Tries the next address, beside the one that has not answered yet.
    pub(super) fn dial_also(&self, control: &mut Control, token: u64) {
        let Some(attempt) = control.handshake(token).and_then(Handshake::attempt_mut) else { return };
        let next = attempt.clone();
        attempt.rest.clear();
        // Where none can be, the one before may answer yet.
        let _ = self.dial_next(control, next);
    }

    /// Gives a link up over which there is no connection yet, and goes on with the next address, if there is one.
    pub(super) fn fail(&self, control: &mut Control, token: u64, reason: &str) {
        let Some(attempt) = control.remove(token) else {
            return tracing::debug!("somebody who dialled is not let in: {reason}");
        };
        let (number, address) = (attempt.number, attempt.address.clone());
        let has_next = self.dial_next(control, attempt).is_ok();
        if !has_next && !control.is_trying(number) {
            self.fail_to_connect(address, reason.to_owned(), false);
        }
    }
}
