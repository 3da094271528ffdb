//! Dials a socket of this host, or the addresses of another host in order until one answers.
//!
//! The network may silently drop packets to an address. So the fabric soon dials the next address in parallel, instead
//! of waiting for a timeout.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;

use halite_fabric::{ConnectTrouble, HELLO_BYTES_MAX};
use rustix::io::Errno;

use super::control::{Attempt, Control, Handshake};
use super::control_socket::ControlSocket;
use super::core::Core;
use super::greeting::Message;
use super::lock;
use super::scope::scoped;
use crate::secure::BadChannel;

/// Time in ns before the fabric dials the next address in parallel. Most answers arrive earlier, so the first address
/// is usually used; and an unreachable first address delays a command only slightly.
const PARALLEL_DIAL_NS: u64 = 25_000_000;
/// Reason of a dial that failed because the other end closed the socket. Where the network drops packets of a few
/// hundred bytes, a connection over TCP comes up, and then the first message is lost.
const HUNG_UP: &str = "it closed the connection before it answered: its node ends or has too many new connections, or the network drops packets of a few hundred bytes";
/// Maximum length of a peer's refusal reason that is reported.
const REASON_CHARS_MAX: usize = 200;

impl Core {
    pub(super) fn dial(&self, address: &str, hello: &[u8]) {
        if hello.len() > HELLO_BYTES_MAX {
            let reason = format!("the hello of {} bytes is longer than {HELLO_BYTES_MAX}", hello.len());
            return self.report_connect_failure(address.to_owned(), reason, ConnectTrouble::Theirs);
        }
        let mut control = lock(&self.control);
        if control.is_closed() {
            drop(control);
            let reason = "this fabric is closed".to_owned();
            return self.report_connect_failure(address.to_owned(), reason, ConnectTrouble::Theirs);
        }
        let hosts: Result<VecDeque<SocketAddr>, _> = address.split(',').map(str::parse).collect();
        let number = control.next_attempt_number();
        let (is_other_host, remaining) = (hosts.is_ok(), hosts.unwrap_or_default());
        let attempt = Attempt {
            number,
            address: address.to_owned(),
            hello: hello.to_vec(),
            target: None,
            start_ns: self.now_ns(),
            hang_ups: 0,
            remaining,
            next_dial_ns: 0,
        };
        let dialled = if is_other_host {
            self.dial_next(&mut control, attempt)
        } else {
            // Joining an absolute path yields that path.
            ControlSocket::dial_path(&self.config.dir.join(address))
                .and_then(|socket| self.start_handshake(&mut control, socket, attempt))
        };
        drop(control);
        if let Err(error) = dialled {
            let shortages = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
            let is_ours = Errno::from_io_error(&error).is_some_and(|errno| shortages.contains(&errno));
            let trouble = if is_ours { ConnectTrouble::Ours } else { ConnectTrouble::Theirs };
            self.report_connect_failure(address.to_owned(), error.to_string(), trouble);
        }
    }

    /// Dials the remaining addresses of an attempt in order, until a dial starts. The link of this dial gets the other
    /// addresses. Returns the last error if no dial starts.
    fn dial_next(&self, control: &mut Control, mut attempt: Attempt) -> io::Result<()> {
        let mut dialled = Err(io::ErrorKind::AddrNotAvailable.into());
        while let Some(target) = attempt.remaining.pop_front() {
            let next_dial_ns = self.now_ns() + PARALLEL_DIAL_NS;
            let next = Attempt { target: Some(target), next_dial_ns, ..attempt.clone() };
            let scope = self.ports.first().scope();
            dialled = control
                .dial_host(scoped(target, scope))
                .and_then(|socket| self.start_handshake(control, socket, next));
            if dialled.is_ok() {
                break;
            }
        }
        dialled
    }

    /// Sends an offer to the dialled end. Fails without an effect if the system refuses.
    fn start_handshake(
        &self,
        control: &mut Control,
        mut socket: ControlSocket,
        attempt: Attempt,
    ) -> io::Result<()> {
        let mtu = attempt.target.map_or(self.config.mtu, |target| self.mtu_to(target.ip()));
        let port_use = self.port_use();
        let own = port_use.port().at(self.ports.source_ip(socket.own_ip()));
        let offer = control.create_offer(own, mtu, &self.config)?;
        let sent = socket.send(&Message::Dial { offer, hello: attempt.hello.clone() });
        // A hang-up does not extend the deadline.
        let deadline_ns = match attempt.hang_ups {
            0 => self.handshake_deadline_ns(),
            _ => attempt.start_ns.saturating_add(self.handshake_timeout_ns()),
        };
        let handshake = Handshake::Dialled { attempt, offer, port_use, deadline_ns };
        if let Err(error) = sent.and_then(|()| control.add(socket, handshake)) {
            control.withdraw_offer(&offer);
            return Err(error);
        }
        self.update_handshake_deadline(control);
        Ok(())
    }

    /// Dials the next address of an attempt, in parallel to the address that has not answered yet.
    pub(super) fn dial_next_in_parallel(&self, control: &mut Control, token: u64) {
        let Some(attempt) = control.handshake(token).and_then(Handshake::attempt_mut) else { return };
        let next = attempt.clone();
        attempt.remaining.clear();
        // Even if no dial succeeds, the previous address may still answer.
        let _ = self.dial_next(control, next);
    }

    /// Closes a link as [`Core::fail`] does, because of a message of the other end. Logs a warning if the other end has
    /// dialled.
    pub(super) fn refuse(&self, control: &mut Control, token: u64, reason: &str) {
        self.log_refusal(control, token, reason);
        self.fail(control, token, reason);
    }

    /// Closes a link as [`Core::refuse`] does, because the encrypted channel to the other end failed.
    pub(super) fn refuse_channel_error(&self, control: &mut Control, token: u64, error: BadChannel) {
        let reason = error.to_string();
        self.log_refusal(control, token, &reason);
        let trouble =
            if error == BadChannel::Secret { ConnectTrouble::Stranger } else { ConnectTrouble::Theirs };
        self.fail_with(control, token, &reason, trouble);
    }

    fn log_refusal(&self, control: &mut Control, token: u64, reason: &str) {
        let is_dialled = control.handshake(token).is_some_and(|handshake| handshake.attempt_mut().is_some());
        if !is_dialled {
            let from =
                control.dialler(token).map_or_else(|| "of this host".to_owned(), |ip| format!("at {ip}"));
            // An unauthenticated sender must not fill the log.
            let reason: String = reason.chars().take(REASON_CHARS_MAX).collect();
            control
                .refusals
                .tell(self.now_ns(), || tracing::warn!("refused the connection {from}: {reason}"));
        }
    }

    /// Closes a link as [`Core::fail`] does, because the other end has hung up without a message.
    pub(super) fn fail_hung_up(&self, control: &mut Control, token: u64) {
        // The host may have closed an unauthenticated connection to make room: dial again later.
        if let Some(Handshake::Dialled { attempt, .. } | Handshake::Agreed { attempt: Some(attempt), .. }) =
            control.handshake(token)
        {
            let attempt = attempt.clone();
            control.postpone(&attempt, self.now_ns(), self.handshake_timeout_ns());
        }
        // A host hangs up if packets of this end were lost for longer than its handshakes may take.
        self.fail_with(control, token, HUNG_UP, ConnectTrouble::Silent);
    }

    /// Closes a link as [`Core::fail`] does, because the other end did not answer in time. If the other end hung up
    /// before, the report names the hang-up as the reason. For a host that has answered, first extends the deadline to
    /// the lease, because the host may be distant, or packets may be lost.
    pub(super) fn fail_unanswered(&self, control: &mut Control, token: u64) {
        if control.extend_deadline(token, self.config.lease.as_nanos() as u64) {
            return;
        }
        let attempt = control.handshake(token).and_then(Handshake::attempt_mut);
        let has_hung_up = attempt.is_some_and(|attempt| attempt.hang_ups > 0);
        let reason = if has_hung_up { HUNG_UP } else { "it does not answer" };
        self.fail_with(control, token, reason, ConnectTrouble::Silent);
    }

    /// Dials the hosts whose pause after a hang-up has ended.
    pub(super) fn dial_postponed(&self, control: &mut Control, now_ns: u64) {
        for attempt in control.take_postponed(now_ns) {
            let (number, address) = (attempt.number, attempt.address.clone());
            if self.dial_next(control, attempt).is_err() && !control.is_attempt_active(number) {
                self.report_connect_failure(address, HUNG_UP.to_owned(), ConnectTrouble::Theirs);
            }
        }
    }

    /// Closes a link that has no connection yet, and dials the next address of its attempt. If no address is left,
    /// reports the failure.
    pub(super) fn fail(&self, control: &mut Control, token: u64, reason: &str) {
        self.fail_with(control, token, reason, ConnectTrouble::Theirs);
    }

    fn fail_with(&self, control: &mut Control, token: u64, reason: &str, trouble: ConnectTrouble) {
        let Some(attempt) = control.remove(token) else {
            return tracing::debug!("refused a connection: {reason}");
        };
        let (number, address) = (attempt.number, attempt.address.clone());
        let has_next = self.dial_next(control, attempt).is_ok();
        if !has_next && !control.is_attempt_active(number) {
            self.report_connect_failure(address, reason.to_owned(), trouble);
        }
    }
}
