//! Ends connections, and closes the fabric.
//!
//! An end that disconnects sends a last message over the connection's control socket. To a peer on the same host, the
//! end sends this message after the peer has acknowledged all requests. To a peer on another host, the last message
//! contains the unacknowledged packets if they are few, so the process can exit without waiting for acknowledgements.

use std::sync::atomic::Ordering::SeqCst;

use halite_fabric::{ConnectTrouble, PeerId};
use halite_rnic::Cause;

use super::super::connection::Connection;
use super::super::control::Attempt;
use super::super::control_socket::ControlEvent;
use super::super::greeting::{LEFT_BYTES_MAX, Message};
use super::super::{lock, write};
use super::{Core, NEVER};

/// Maximum number of ended connections whose reasons are kept for the poller.
const END_REASONS_MAX: usize = 256;

/// Describes what ended a connection.
pub(super) fn end_reason(event: ControlEvent) -> String {
    match event {
        ControlEvent::HungUp(Some(error)) | ControlEvent::Unreachable(error) => error.to_string(),
        ControlEvent::HungUp(None) => {
            "closed without a farewell: its process or its host has ended".to_owned()
        }
        ControlEvent::Malformed(what) => format!("it sent {what}"),
        ControlEvent::ChannelFailed(error) => error.to_string(),
        ControlEvent::Message(_) => "it sent an unexpected message".to_owned(),
    }
}

/// Describes what ended a queue pair.
pub(super) fn end_cause(cause: Cause) -> String {
    match cause {
        Cause::RetryExceeded => "it acknowledged nothing for a lease".to_owned(),
        Cause::RnrRetryExceeded => "it had no room for a message at any retry".to_owned(),
        Cause::Refused(nak) => format!("it refused a request: {nak:?}"),
        Cause::PeerErred(nak) => format!("it sent an invalid request: {nak:?}"),
        Cause::LocalAccess => "a request named memory that is not registered".to_owned(),
        Cause::Closed => "this end closed it".to_owned(),
    }
}

impl Core {
    /// Removes and returns the reason why the connection to a peer has ended.
    pub(in crate::roce) fn take_end_reason(&self, peer: PeerId) -> Option<String> {
        lock(&self.end_reasons).remove(&peer)
    }

    /// Ends a connection at once on this side, and notifies the other end.
    pub(in crate::roce) fn end(&self, connection: &Connection) {
        let exited = {
            let mut control = lock(&self.control);
            control.send(connection.token, &Message::Left { packets: Vec::new() });
            control.has_exited(connection.token)
        };
        self.end_as(connection, exited);
    }

    /// Ends a connection between hosts without waiting for acknowledgements: the last message contains the
    /// unacknowledged packets, and the kernel delivers this message. Returns false and has no effect if that is not
    /// possible.
    fn end_without_acknowledgements(&self, connection: &Connection) -> bool {
        let mut control = lock(&self.control);
        if control.own_ip(connection.token).is_none() || !connection.is_up() {
            return false;
        }
        // Closing a socket with unread input resets it, and the last message would be lost.
        while let Some(ControlEvent::Message(_)) = control.receive(connection.token) {}
        let packets = connection.unacknowledged_packets(&self.registered, LEFT_BYTES_MAX);
        let is_sent = packets
            .and_then(Message::left_with)
            .is_some_and(|left| control.send_last(connection.token, &left));
        drop(control);
        if is_sent {
            self.end_as(connection, false);
        }
        is_sent
    }

    /// Ends a connection; `exited` is true if the peer's process has exited.
    fn end_as(&self, connection: &Connection, exited: bool) {
        if let Some(reason) = connection.take_end_reason() {
            // Stored before the event is queued, because the poller then calls `take_end_reason`.
            let mut reasons = lock(&self.end_reasons);
            reasons.insert(connection.peer, reason);
            while reasons.len() > END_REASONS_MAX {
                reasons.pop_first();
            }
        }
        if !connection.end(exited, &self.events) {
            return;
        }
        if let Some(change) = connection.address_change().filter(|_| connection.is_up()) {
            tracing::warn!("a connection over roce has ended: {change}");
        }
        self.record_path_mtu(connection);
        {
            let mut table = write(&self.table);
            table.peers.remove(&connection.peer);
            for qpn in connection.qpns() {
                table.lanes.remove(&qpn.value());
            }
            for qpn in &connection.their_qpns {
                table.requesters.remove(&(connection.address, qpn.value()));
            }
            if table.peers.is_empty() {
                // Without connections, no queue pair has a deadline. A new queue pair enters the table before it sets a
                // deadline.
                self.due_ns.store(NEVER, SeqCst);
            }
        }
        lock(&self.control).remove(connection.token);
        let sharing = &connection.port_use.port().sharing;
        if sharing.leave(connection.peer) {
            self.rebalance(sharing, self.now_ns());
        }
        self.bell.wake();
    }

    /// Stores the path MTU that this connection found, for the next connection to the same host.
    fn record_path_mtu(&self, connection: &Connection) {
        if let Some(found) = connection.found_path() {
            lock(&self.paths).record(connection.address.ip(), found, connection.mtu);
        }
    }

    pub(in crate::roce) fn close(&self) {
        let dialled = {
            let mut control = lock(&self.control);
            let dialled = control.close();
            self.update_handshake_deadline(&control);
            dialled
        };
        self.end_failed(lock(&self.control));
        for Attempt { address, .. } in dialled {
            self.report_connect_failure(address, "this fabric is closed".to_owned(), ConnectTrouble::Theirs);
        }
        for connection in self.peers() {
            connection.start_closing();
            if !self.end_without_acknowledgements(&connection) {
                self.end_if_over(&connection, None);
            }
        }
    }
}
