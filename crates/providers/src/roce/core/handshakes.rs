//! Handshakes with peers: accepts connections, answers offers, and detects hang-ups.

use std::net::IpAddr;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{Arc, MutexGuard};

use halite_fabric::{Event, PeerId};
use halite_rnic::{Config, Congestion, Mtu, Retry};

use super::super::connection::{Connection, QUEUE_MAX};
use super::super::control::{Accepted, Attempt, Control, Handshake};
use super::super::control_socket::ControlEvent;
use super::super::greeting::{Grants, Message, Offer};
use super::super::port::Batch;
use super::super::ports::PortUse;
use super::super::stateless::agree;
use super::super::{SEND_BYTES_MAX, lock, write};
use super::ending::end_reason;
use super::{Core, NEVER};

/// Maximum number of connections that one poll accepts.
const ACCEPTED_MAX: usize = 64;
/// Maximum number of batches received after the end of a connection, to find the last packets of the peer.
const LAST_BATCHES_MAX: usize = 64;
/// Maximum number of outstanding reads and atomics of a lane, and of outstanding packets of their responses. A path
/// with a long delay holds about as many.
const READS_MAX: usize = 8192;
/// Maximum time between the closing of a process's sockets and its exit, in ns.
const EXIT_NS: u64 = 200_000_000;

impl Core {
    /// Accepts peers, handles their messages and detects their hang-ups.
    pub(super) fn poll_control(&self, batch: &mut Batch, now_ns: u64) {
        let mut ended = Vec::new();
        {
            let mut control = lock(&self.control);
            let (tokens, has_newcomer) = control.ready();
            self.control_is_empty.store(tokens.is_empty() && !has_newcomer, Relaxed);
            if has_newcomer {
                self.accept(&mut control, now_ns, &mut ended);
            }
            for token in tokens {
                self.handle_messages(&mut control, token, now_ns, &mut ended);
            }
            control.refusals.tell_left_out(now_ns);
            self.update_handshake_deadline(&control);
            self.end_failed(control);
        }
        if !ended.is_empty() {
            // Packets that a peer sent before it closed have arrived; receive them first.
            if self.receivers.is_empty() {
                let _ = (0..LAST_BATCHES_MAX).find(|_| !self.receive(batch, now_ns));
            } else {
                let receivers = ended.iter().map(|connection| connection.port_use.port().receiver).collect();
                self.receive_for_receivers(receivers, batch, LAST_BATCHES_MAX);
            }
            for connection in ended {
                if connection.is_up() {
                    connection.handle_last_packets(self.context(now_ns), &self.events);
                }
                self.end(&connection);
            }
        }
    }

    fn accept(&self, control: &mut Control, now_ns: u64, ended: &mut Vec<Arc<Connection>>) {
        for _ in 0..ACCEPTED_MAX {
            let mut socket = match control.accept() {
                Ok(Some(Accepted::SameHost(socket))) => socket,
                Ok(Some(Accepted::OtherHost(socket, dialler))) => {
                    self.make_room_for(control, dialler, now_ns, ended);
                    let Some(socket) = control.accepted_tcp(socket, dialler) else { return };
                    socket
                }
                Ok(None) | Err(_) => return,
            };
            if control.len() >= self.config.peers_max {
                let reason = format!("it has {} connections, and accepts no more", self.config.peers_max);
                let _ = socket.send(&Message::Refused { reason });
                continue;
            }
            let deadline_ns = self.handshake_deadline_ns();
            // If epoll cannot watch the socket, this closes it, and the other end detects that.
            let _ = control.add(socket, Handshake::Accepted { deadline_ns });
        }
    }

    /// If unauthenticated connections have reached their limit, closes one to make room for the host `dialler`, so that
    /// they cannot block other hosts.
    fn make_room_for(
        &self,
        control: &mut Control,
        dialler: IpAddr,
        now_ns: u64,
        ended: &mut Vec<Arc<Connection>>,
    ) {
        let Some(token) = control.link_to_evict_for(dialler) else { return };
        // Its authentication may have arrived by now.
        self.handle_messages(control, token, now_ns, ended);
        if !control.is_unauthenticated(token) {
            return;
        }
        let evicted = control.dialler(token).unwrap_or(dialler);
        control.remove(token);
        self.dropped.strangers.fetch_add(1, Relaxed);
        control.refusals.tell(now_ns, || {
            tracing::warn!(
                "closed the unauthenticated connection from {evicted} to make room for one from {dialler}"
            );
        });
    }

    /// Handles all pending messages of a link, and its hang-up.
    fn handle_messages(
        &self,
        control: &mut Control,
        token: u64,
        now_ns: u64,
        ended: &mut Vec<Arc<Connection>>,
    ) {
        if let Some(Handshake::HungUp { connection, .. }) = control.handshake(token) {
            ended.push(connection.clone());
            return;
        }
        while let Some(event) = control.receive(token) {
            let Some(handshake) = control.handshake(token) else { return };
            if let Handshake::Agreed { connection, .. } = handshake
                && connection.is_up()
            {
                *handshake = Handshake::Connected(connection.clone());
            }
            match (&*handshake, event) {
                (Handshake::Accepted { .. }, ControlEvent::Message(Message::Dial { offer, hello })) => {
                    if let Err(reason) = self.answer_dial(control, token, offer, hello, now_ns) {
                        control.send(token, &Message::Refused { reason: reason.clone() });
                        self.refuse(control, token, &reason);
                    }
                }
                (
                    Handshake::Dialled { .. },
                    ControlEvent::Message(Message::Accept { offer, grants, hello }),
                ) => self.handle_accept(control, token, (offer, grants, hello), now_ns),
                (
                    Handshake::Agreed { connection, attempt: None, .. },
                    ControlEvent::Message(Message::Ready { grants }),
                ) if grants.is_some() == connection.is_stateless() => {
                    let connection = connection.clone();
                    self.install_grants(&connection, grants);
                    self.handle_ready(control, token, &connection);
                }
                (Handshake::Connected(connection), ControlEvent::Message(Message::Ready { grants }))
                    if grants.is_some() == connection.is_stateless() =>
                {
                    let connection = connection.clone();
                    self.install_grants(&connection, grants);
                    self.bring_up(&connection);
                }
                (Handshake::Connected(connection), ControlEvent::Message(Message::Left { packets })) => {
                    connection.record_end_reason("it closed the connection".to_owned());
                    connection.store_last_packets(packets);
                    ended.push(connection.clone());
                    return;
                }
                (Handshake::Connected(connection), event) => {
                    let connection = connection.clone();
                    let may_exit = matches!(event, ControlEvent::HungUp(_)) && connection.is_up();
                    connection.record_end_reason(end_reason(event));
                    if !(may_exit && control.await_exit(token, now_ns + EXIT_NS)) {
                        ended.push(connection);
                    }
                    return;
                }
                (Handshake::HungUp { .. }, _) => return,
                (Handshake::Agreed { .. }, ControlEvent::Message(Message::Left { .. })) => {
                    self.fail(control, token, "it hung up")
                }
                (_, ControlEvent::Message(Message::Refused { reason })) => self.fail(control, token, &reason),
                (_, ControlEvent::Message(_)) => self.refuse(control, token, "it sent an unexpected message"),
                (_, ControlEvent::Malformed(what)) => self.refuse(control, token, &format!("it sent {what}")),
                (_, ControlEvent::ChannelFailed(error)) => self.refuse_channel_error(control, token, error),
                (_, ControlEvent::Unreachable(error)) => self.fail(control, token, &error.to_string()),
                (_, ControlEvent::HungUp(_)) => self.fail_hung_up(control, token),
            }
        }
    }

    /// Handles the answer of the dialled end: creates the connection, and starts to bring it up.
    fn handle_accept(
        &self,
        control: &mut Control,
        token: u64,
        (peer_offer, grants, hello): (Offer, Option<Grants>, Vec<u8>),
        now_ns: u64,
    ) {
        let is_other_host = control.own_ip(token).is_some();
        let Some(handshake) = control.handshake(token) else { return };
        let Handshake::Dialled { attempt, offer, port_use, .. } = handshake else { return };
        let (attempt, offer, port_use) = (attempt.clone(), *offer, port_use.clone());
        if !offer.has_ip_version_of(&peer_offer) {
            return self.fail(control, token, "its address is of another IP version than ours");
        }
        if agree(&offer, &peer_offer).0 != grants.is_some() {
            return self.refuse(control, token, "its grants do not match the offers");
        }
        let (number, dialled) = (attempt.number, Some(attempt.address.clone()));
        let connection = self.create_connection(
            token,
            (&offer, port_use),
            &peer_offer,
            (hello, dialled),
            is_other_host,
            now_ns,
        );
        self.install_grants(&connection, grants);
        if let Some(handshake) = control.handshake(token) {
            *handshake = Handshake::Agreed {
                connection: connection.clone(),
                attempt: Some(attempt),
                has_sent_ready: false,
                deadline_ns: self.handshake_deadline_ns(),
            };
        }
        if is_other_host {
            self.add_deadline(now_ns);
            self.send_early_ready(control, &connection, number);
        } else {
            self.complete_handshake(control, &connection);
        }
    }

    /// Answers the offer of a dialling peer. An error contains the reason for the refusal.
    fn answer_dial(
        &self,
        control: &mut Control,
        token: u64,
        peer_offer: Offer,
        hello: Vec<u8>,
        now_ns: u64,
    ) -> Result<(), String> {
        let host = peer_offer.address.ip();
        if host.is_loopback() && control.dialler(token).is_some_and(|dialler| !dialler.is_loopback()) {
            return Err(format!(
                "it cannot send packets to {host}: a loopback address reaches only processes of the same host"
            ));
        }
        let mtu = self.mtu_to(host);
        let own = match control.own_ip(token) {
            Some(own) => self.ports.source_ip(Some(own)),
            None => self.ports.address_for(host),
        };
        let port_use = self.port_use();
        let own_offer = control
            .create_offer(port_use.port().at(own), mtu, &self.config)
            .map_err(|error| error.to_string())?;
        if !own_offer.has_ip_version_of(&peer_offer) {
            control.withdraw_offer(&own_offer);
            return Err(format!("{} cannot be reached from {}", peer_offer.address, own_offer.address));
        }
        let connection =
            self.create_connection(token, (&own_offer, port_use), &peer_offer, (hello, None), false, now_ns);
        let grants = connection.grants();
        // The dialling end may be a replay, so its deadline is no later than that of a silent end.
        let deadline_ns = self.handshake_deadline_ns();
        if let Some(handshake) = control.handshake(token) {
            *handshake = Handshake::Agreed { connection, attempt: None, has_sent_ready: false, deadline_ns };
            let hello = self.config.hello.clone();
            control.send(token, &Message::Accept { offer: own_offer, grants, hello });
        }
        Ok(())
    }

    /// Creates a connection with the queue pairs of both offers. If `awaits_answer` is true, the connection stays down
    /// until the peer answers a path probe.
    fn create_connection(
        &self,
        token: u64,
        (own_offer, port_use): (&Offer, Arc<PortUse>),
        peer_offer: &Offer,
        (hello, dialled): (Vec<u8>, Option<String>),
        awaits_answer: bool,
        now_ns: u64,
    ) -> Arc<Connection> {
        let mtu = own_offer.mtu.min(peer_offer.mtu);
        let selective = own_offer.selective && peer_offer.selective;
        let tells_waits = selective && own_offer.tells_waits && peer_offer.tells_waits;
        let is_other_host = !self.ports.is_own_address(peer_offer.address.ip());
        if tells_waits && is_other_host || agree(own_offer, peer_offer).0 {
            port_use.port().enable_timestamps();
        }
        let config = Config {
            mtu,
            send_queue_max: QUEUE_MAX,
            send_bytes_max: SEND_BYTES_MAX,
            // Writes of one packet: all packets of a long write but the last have equal lengths and leave in one train.
            write_packets_max: 1,
            reads_max: READS_MAX,
            answers_max: READS_MAX,
            room_packets: 1,
            fills_path: is_other_host,
            retry: Retry::Lease(self.config.lease),
            finds_path: true,
            selective,
            tells_waits,
            // Processes of one host share no network, so credits are enough.
            congestion: if is_other_host { self.config.congestion } else { Congestion::Grant },
            ..Config::default()
        };
        let mut table = write(&self.table);
        table.peer_last += 1;
        let peer = PeerId(table.peer_last);
        let connection =
            Arc::new(Connection::new(peer, token, &config, own_offer, peer_offer, port_use, now_ns));
        connection.store_hello(hello, dialled);
        if awaits_answer {
            connection.await_answer();
        }
        let known_mtu = lock(&self.paths).mtu_to(peer_offer.address.ip());
        if let Some(mtu) = known_mtu {
            connection.lanes().for_each(|mut lane| lane.expect_path(now_ns, mtu));
        }
        for (index, qpn) in connection.qpns().iter().enumerate().take(connection.lane_count()) {
            table.lanes.insert(qpn.value(), (connection.clone(), index));
        }
        if connection.is_stateless() {
            for (index, qpn) in connection.their_qpns.iter().enumerate() {
                table.requesters.insert((connection.address, qpn.value()), (connection.clone(), index));
            }
        }
        table.peers.insert(peer, connection.clone());
        drop(table);
        let sharing = &connection.port_use.port().sharing;
        sharing.join(&connection);
        self.rebalance(sharing, now_ns);
        connection
    }

    /// Installs the peer's grants, and sends the requests that have waited for them.
    fn install_grants(&self, connection: &Connection, grants: Option<Grants>) {
        if let Some(grants) = grants {
            connection.install(&grants, self.config.lease);
            self.add_deadline(self.now_ns());
        }
    }

    /// Returns the maximum payload of packets to a host: the configured value, or less if the route permits less.
    pub(in crate::roce) fn mtu_to(&self, host: IpAddr) -> Mtu {
        // For a host without a route, returns the configured value; the dial then reports the error.
        self.ports.mtu_to(host).map_or(self.config.mtu, |mtu| mtu.min(self.config.mtu))
    }

    /// Assigns one more peer to a UDP socket.
    pub(in crate::roce) fn port_use(&self) -> Arc<PortUse> {
        // Sockets of failed attempts have no users; close them first.
        self.close_unused_ports();
        let (port_use, has_changed) = self.ports.port_use();
        if has_changed {
            self.bell.wake();
        }
        port_use
    }

    pub(super) fn close_unused_ports(&self) {
        if self.ports.close_unused() {
            self.bell.wake();
        }
    }

    /// Handles the first answer to a path probe of this dialling end.
    pub(super) fn on_probe_answered(&self, connection: &Arc<Connection>) {
        let mut control = lock(&self.control);
        self.complete_handshake(&mut control, connection);
        self.update_handshake_deadline(&control);
        self.end_failed(control);
    }

    /// Shortens the handshake's deadline if the peer's packets come from another address than it offered, so that the
    /// peer learns this reason before its own deadline.
    pub(super) fn shorten_deadline(&self, connection: &Connection, now_ns: u64) {
        let mut control = lock(&self.control);
        let soon_ns = connection.offers_known_ns + self.handshake_timeout_ns() / 2;
        if let Some(Handshake::Agreed { attempt: None, deadline_ns, .. }) =
            control.handshake(connection.token)
            && *deadline_ns > soon_ns
        {
            *deadline_ns = soon_ns.max(now_ns);
            self.update_handshake_deadline(&control);
        }
    }

    /// Sends Ready to the first address of an attempt that answers, without waiting for the answer to the probe, which
    /// saves a round trip. The other end brings its connection up when it has received both Ready and a packet.
    fn send_early_ready(&self, control: &mut Control, connection: &Connection, number: u64) {
        if control.has_sent_ready(number) {
            return;
        }
        if let Some(Handshake::Agreed { has_sent_ready, .. }) = control.handshake(connection.token) {
            *has_sent_ready = true;
            control.send(connection.token, &Message::Ready { grants: connection.grants() });
        }
    }

    /// Handles Ready from the dialling end, which has proven that it knows the secret. If that end is on another host,
    /// the connection comes up only after a packet from it has arrived, too.
    fn handle_ready(&self, control: &mut Control, token: u64, connection: &Arc<Connection>) {
        let is_other_host = control.own_ip(token).is_some();
        let Some(handshake) = control.handshake(token) else { return };
        if connection.on_ready() || !is_other_host {
            *handshake = Handshake::Connected(connection.clone());
            self.bring_up(connection);
        } else if let Handshake::Agreed { deadline_ns, .. } = handshake {
            // The dialling end may take as long as its own timeout.
            *deadline_ns = self.handshake_deadline_ns() + self.handshake_timeout_ns();
        }
    }

    /// Completes the handshake of a dialling end, and sends Ready unless that was sent early.
    fn complete_handshake(&self, control: &mut Control, connection: &Arc<Connection>) {
        let Some(handshake) = control.handshake(connection.token) else { return };
        let Handshake::Agreed { attempt: Some(Attempt { number, .. }), has_sent_ready, .. } = *handshake
        else {
            return;
        };
        *handshake = Handshake::Connected(connection.clone());
        control.close_attempt(number);
        if !has_sent_ready {
            control.send(connection.token, &Message::Ready { grants: connection.grants() });
        }
        self.bring_up(connection);
    }

    pub(super) fn bring_up(&self, connection: &Connection) {
        if connection.is_up() {
            return;
        }
        // The lock is held until the connected event is queued, so that the events of other threads follow it.
        let mut events = self.events.lock();
        if let Some((hello, dialled)) = connection.bring_up() {
            let peer = connection.peer;
            events.push(Event::Connected { peer, hello, dialled });
            events.extend(connection.take_early_events());
            drop(events);
            // The next timer run begins to probe the path on all lanes. It locks no other lane at that time.
            self.add_deadline(self.now_ns());
        }
    }

    /// Ends the handshakes whose deadline has passed, and begins the dials that are due.
    pub(super) fn run_handshake_timers(&self, now_ns: u64) {
        let mut ended = Vec::new();
        {
            let mut control = lock(&self.control);
            for token in control.expired(now_ns) {
                self.handle_deadline(&mut control, token, now_ns, &mut ended);
            }
            self.dial_postponed(&mut control, now_ns);
            control.refusals.tell_left_out(now_ns);
            self.update_handshake_deadline(&control);
            self.end_failed(control);
        }
        ended.iter().for_each(|connection| self.end(connection));
    }

    fn handle_deadline(
        &self,
        control: &mut Control,
        token: u64,
        now_ns: u64,
        ended: &mut Vec<Arc<Connection>>,
    ) {
        let Some(handshake) = control.handshake(token) else { return };
        match handshake {
            _ if handshake.end_ns().is_none_or(|end_ns| now_ns < end_ns) => {
                self.dial_next_in_parallel(control, token)
            }
            Handshake::HungUp { connection, .. } => ended.push(connection.clone()),
            Handshake::Agreed { connection, .. } if connection.is_up() => {
                *handshake = Handshake::Connected(connection.clone());
            }
            Handshake::Agreed { connection, attempt, .. } => {
                let (own, address) = (connection.own_address, connection.address);
                let (change, has_dialled) = (connection.address_change(), attempt.is_some());
                let reason = change.map(|change| change.to_string()).unwrap_or_else(|| {
                    format!(
                        "it answers over TCP, but packets (UDP) between {own} here and {address} there do not get through; check firewalls"
                    )
                });
                if change.is_some() && !has_dialled {
                    control.send(token, &Message::Refused { reason: reason.clone() });
                }
                self.fail(control, token, &reason);
            }
            _ => self.fail_unanswered(control, token),
        }
    }

    /// Updates the next deadline of the handshakes.
    pub(in crate::roce) fn update_handshake_deadline(&self, control: &Control) {
        let at_ns = control.next_deadline_ns().unwrap_or(NEVER).min(control.refusals.due_ns());
        if at_ns < self.handshake_due_ns.swap(at_ns, SeqCst) {
            self.wake_for(at_ns);
        }
    }

    /// Ends the connections whose handshake has failed.
    pub(in crate::roce) fn end_failed(&self, mut control: MutexGuard<'_, Control>) {
        let failed = control.take_failed();
        drop(control);
        for connection in failed {
            self.end(&connection);
            lock(&self.control).release_qpns(connection.qpns());
        }
    }

    pub(in crate::roce) fn handshake_deadline_ns(&self) -> u64 {
        self.now_ns() + self.handshake_timeout_ns()
    }

    pub(in crate::roce) fn handshake_timeout_ns(&self) -> u64 {
        self.config.handshake_timeout.as_nanos() as u64
    }
}
