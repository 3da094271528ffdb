//! One connection, from its first handshake message until its socket carries no more messages.
//!
//! ```text
//!            both have sent and received Ready
//!   Greeting -----------------------------> Connected
//!      | refused, hung up, timed out           | Detached received, hung up, corrupt, exited, disconnect()
//!      v                                       v
//!    Over <------------------------------- Leaving
//!            the peer is cut off, and this end has sent Detached (or cannot send it)
//! ```
//!
//! A peer counts as cut off only if it sent Detached or its process exited. A peer that only closed its socket may
//! still map this process's memory, so the acceptor still watches the peer's process. In the same way, this process
//! sends Detached only once none of its threads holds a window of the peer's memory.
//!
//! If a handshake fails after this process has sent its segments, the other process maps the segments until it detects
//! the failure. The other process does not know what the segments contain, so the failure puts no memory into
//! quarantine.

mod messages;

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use halite_fabric::Event;
use halite_mem::Segment;
use halite_mem::ring::Producer;
use rustix::event::epoll::EventFlags;

use super::core::{Core, Source};
use super::greeting::Greeting;
use super::lock;
use super::peer::{Outgoing, Peer, PeerSegment};
use super::shortage::LinkError;
use super::wire::Message;

/// One connection; the header of this file gives its states.
#[derive(Debug)]
pub(super) struct Link {
    token: u64,
    /// The address that this end dialled; `None` if the peer dialled.
    dialled: Option<String>,
    /// The data of this end's hello to the peer.
    hello: Vec<u8>,
    /// The ring for this end's messages to the peer. The hello carries its descriptor.
    ring: Arc<Segment>,
    state: Mutex<LinkState>,
}

#[derive(Debug)]
struct LinkState {
    phase: Phase,
    /// `None` once either end has closed the socket.
    socket: Option<Arc<OwnedFd>>,
    sent: Sent,
    from_peer: FromPeer,
}

#[derive(Debug)]
enum Phase {
    Greeting {
        deadline: Instant,
    },
    Connected {
        peer: Arc<Peer>,
    },
    Leaving {
        peer: Arc<Peer>,
        /// The peer's segments that threads of this process may still hold.
        segments: Vec<Weak<Segment>>,
        cut_off: bool,
    },
    Over,
}

/// Progress of this end's messages to the peer.
#[derive(Debug, Default)]
struct Sent {
    hello: bool,
    segments: usize,
    ready: bool,
    detached: bool,
    /// Messages about deregistered keys that this end has not sent yet.
    pending_key_messages: VecDeque<Message>,
}

/// Messages and state changes that this end has received from the peer.
#[derive(Debug, Default)]
struct FromPeer {
    /// Taken when the link is connected.
    greeting: Option<Greeting>,
    /// Segments that arrive during the handshake.
    segments: Vec<PeerSegment>,
    ready: bool,
    detached: bool,
    exited: bool,
}

impl Link {
    /// Starts the handshake with the process at the other end of `socket`.
    pub(super) fn open(
        core: &Core,
        socket: Arc<OwnedFd>,
        dialled: Option<String>,
        hello: &[u8],
    ) -> std::io::Result<()> {
        let ring = core.config.new_ring()?;
        let link = core.add_link(|token| Link {
            token,
            dialled,
            hello: hello.to_vec(),
            ring,
            state: Mutex::new(LinkState {
                phase: Phase::Greeting { deadline: Instant::now() + core.config.handshake_timeout },
                socket: Some(socket.clone()),
                sent: Sent::default(),
                from_peer: FromPeer::default(),
            }),
        });
        let source = Source::Socket { token: link.token };
        if let Err(error) = core.watch(&socket, source, SOCKET_EVENTS) {
            core.remove_link(link.token);
            return Err(error);
        }
        link.serve(core);
        if core.is_closed() {
            // The closing thread may not have seen this link.
            link.leave(core, "this fabric is closed");
        }
        // The acceptor must check the new deadline.
        core.kick();
        Ok(())
    }

    /// Receives the waiting messages, and sends the pending messages for which the socket has room. Returns true if
    /// more messages may wait.
    pub(super) fn serve(&self, core: &Core) -> bool {
        let state = &mut *lock(&self.state);
        let received = self.receive_messages(core, state);
        let outcome = received.and_then(|has_more| {
            self.send_pending(core, state);
            self.try_connect(core, state).map(|()| has_more)
        });
        let has_more = outcome.unwrap_or_else(|reason| {
            self.break_off(core, state, reason);
            false
        });
        self.advance_phase(core, state);
        has_more
    }

    pub(super) fn handle_exit(&self, core: &Core) {
        let state = &mut *lock(&self.state);
        state.from_peer.exited = true;
        self.break_off(core, state, "the process exited");
        self.advance_phase(core, state);
    }

    /// Ends the connection from this side.
    pub(super) fn leave(&self, core: &Core, reason: &str) {
        let state = &mut *lock(&self.state);
        match state.phase {
            Phase::Greeting { .. } => self.break_off(core, state, reason),
            _ => self.begin_leaving(core, state),
        }
        self.advance_phase(core, state);
    }

    /// Ends the handshake if its deadline has passed. Returns true if the caller must call this method again soon.
    pub(super) fn handle_time(&self, core: &Core, now: Instant) -> bool {
        let state = &mut *lock(&self.state);
        if let Phase::Greeting { deadline } = state.phase
            && deadline <= now
        {
            let reason = format!("no answer within {:?}", core.config.handshake_timeout);
            self.break_off(core, state, reason);
        }
        self.advance_phase(core, state);
        match state.phase {
            Phase::Greeting { .. } => true,
            Phase::Leaving { .. } => state.socket.is_some() && !state.sent.detached,
            Phase::Connected { .. } | Phase::Over => false,
        }
    }

    /// Sends all segments registered so far to the peer, or disconnects the peer if that fails.
    ///
    /// A peer that does not read its socket, such as a stopped process, is disconnected after the handshake timeout.
    pub(super) fn announce_segments(&self, core: &Core) {
        let deadline = Instant::now() + core.config.handshake_timeout;
        loop {
            let socket = {
                let state = &mut *lock(&self.state);
                self.send_pending(core, state);
                let are_segments_sent = state.sent.segments == super::read(&core.registered).len();
                let is_all_sent = are_segments_sent && state.sent.pending_key_messages.is_empty();
                match (&state.phase, &state.socket) {
                    (Phase::Connected { .. }, Some(socket)) if !is_all_sent => socket.clone(),
                    // During the handshake, try_connect() waits until the rest is sent.
                    _ => return,
                }
            };
            // Waits without the lock, so that the acceptor can receive meanwhile. Otherwise, two ends with full sockets
            // would wait for each other.
            if !messages::wait_for_room(&socket, deadline) {
                let state = &mut *lock(&self.state);
                self.break_off(core, state, "the peer does not read its socket");
                self.advance_phase(core, state);
                return;
            }
        }
    }

    /// Notifies the peer that a key is deregistered, if the peer knows the segment. Deregistration then waits until the
    /// peer answers or is cut off.
    pub(super) fn withdraw(&self, core: &Core, key: u32) {
        {
            let state = &mut *lock(&self.state);
            let can_reach = match state.phase {
                Phase::Greeting { .. } | Phase::Connected { .. } => true,
                Phase::Leaving { cut_off, .. } => !cut_off,
                Phase::Over => false,
            };
            // If this end has not sent the segment yet, it will send Withdrawn in its place.
            if !can_reach || state.sent.segments <= key as usize {
                return;
            }
            core.update_withdrawn(|withdrawn| withdrawn.await_link(key, self.token));
            state.sent.pending_key_messages.push_back(Message::Withdrawn { key });
        }
        self.announce_segments(core);
    }

    fn try_connect(&self, core: &Core, state: &mut LinkState) -> Result<(), LinkError> {
        let are_segments_sent = state.sent.segments == super::read(&core.registered).len();
        let is_ready = state.sent.ready && state.from_peer.ready && are_segments_sent;
        if !is_ready || !matches!(state.phase, Phase::Greeting { .. }) {
            return Ok(());
        }
        let Some(greeting) = state.from_peer.greeting.take() else {
            return Err("the peer sent Ready before Hello".into());
        };
        let window = self.ring.window(0, self.ring.len());
        let ring = Producer::new(window.expect("the whole segment"));
        let ring = ring.expect("the configuration was checked when the fabric was opened");
        let segments = std::mem::take(&mut state.from_peer.segments);
        let outgoing = Outgoing::new(ring, greeting.mailbox, &segments);
        let id = core.next_peer_id();
        let peer = Peer::new(id, self.token, greeting.process, outgoing, segments);
        let peer = Arc::new(peer);
        state.phase = Phase::Connected { peer: peer.clone() };
        // Added first, so that a caller that sees the event can post. The inbox delivers the event before the ring's
        // content.
        core.add_peer(peer);
        let connected = Event::Connected { peer: id, hello: greeting.hello, dialled: self.dialled.clone() };
        lock(&core.inbox).add(id, connected, greeting.incoming);
        // The peer may have rung the doorbell before the inbox contained this ring.
        core.own.doorbell.wake();
        Ok(())
    }

    /// Ends the connection because of an error at either end.
    fn break_off(&self, core: &Core, state: &mut LinkState, trouble: impl Into<LinkError>) {
        let trouble = trouble.into();
        self.report(core, state, &trouble);
        if let Phase::Greeting { .. } = state.phase {
            self.refuse(core, state, &trouble);
        } else {
            self.begin_leaving(core, state);
            // Sends Detached now if no mapping remains, because this is impossible after the hang-up.
            self.advance_phase(core, state);
        }
        self.hang_up(core, state);
    }

    /// Logs why the connection ends. Does not log a peer that hangs up during the handshake, because processes that
    /// only list the members of a cluster do so.
    fn report(&self, core: &Core, state: &LinkState, trouble: &LinkError) {
        // Limits the text that an unauthenticated peer can add to the log.
        let reason: String = trouble.to_string().chars().take(REASON_CHARS_MAX).collect();
        match &state.phase {
            Phase::Greeting { .. } if self.dialled.is_none() && state.socket.is_some() => {
                core.log_refusal(&reason);
            }
            Phase::Connected { peer } => {
                tracing::info!("the connection to {} ends: {reason}", peer.process);
            }
            _ => {}
        }
    }

    fn refuse(&self, core: &Core, state: &mut LinkState, trouble: &LinkError) {
        if let Some(greeting) = state.from_peer.greeting.take() {
            core.unwatch(&greeting.process.pidfd);
        }
        state.from_peer.segments.clear();
        let last_message = match &self.dialled {
            // The acceptor may be connected already. Detached reports that this end has dropped the acceptor's
            // segments.
            Some(_) => Message::Detached,
            None => Message::Refused { reason: trouble.to_string() },
        };
        self.try_send(state, &last_message, &[]);
        state.phase = Phase::Over;
        core.remove_link(self.token);
        if let Some(address) = &self.dialled {
            core.fail_to_connect(address, trouble);
        }
    }

    fn begin_leaving(&self, core: &Core, state: &mut LinkState) {
        let Phase::Connected { peer } = &state.phase else {
            return;
        };
        let peer = peer.clone();
        let segments = peer.disconnect();
        // Delivers the peer's messages before the disconnected event. Executes its small writes now, because the memory
        // may have another use later.
        let last_events = lock(&core.inbox).remove(peer.id);
        core.events.extend(last_events);
        core.push_event(Event::Disconnected { peer: peer.id });
        state.phase = Phase::Leaving { peer, segments, cut_off: false };
        // The acceptor must check whether threads still hold the peer's memory.
        core.kick();
    }

    /// Advances the phase as far as the sent and received messages and the released mappings permit.
    fn advance_phase(&self, core: &Core, state: &mut LinkState) {
        if state.from_peer.detached {
            self.begin_leaving(core, state);
        }
        let Phase::Leaving { segments, .. } = &mut state.phase else {
            return;
        };
        segments.retain(|segment| segment.strong_count() > 0);
        if segments.is_empty() && !state.sent.detached {
            state.sent.detached = self.try_send(state, &Message::Detached, &[]);
        }
        let has_no_access = state.from_peer.detached || state.from_peer.exited;
        let must_send_detached = state.socket.is_some() && !state.sent.detached;
        let Phase::Leaving { peer, cut_off, .. } = &mut state.phase else {
            return;
        };
        if has_no_access && !*cut_off {
            *cut_off = true;
            core.remove_peer(peer.id);
            core.update_withdrawn(|withdrawn| withdrawn.forget_link(self.token));
            core.push_event(Event::CutOff { peer: peer.id, exited: state.from_peer.exited });
        }
        if *cut_off && !must_send_detached {
            core.unwatch(&peer.process.pidfd);
            state.phase = Phase::Over;
            self.hang_up(core, state);
            core.remove_link(self.token);
        }
    }

    fn hang_up(&self, core: &Core, state: &mut LinkState) {
        if let Some(socket) = state.socket.take() {
            core.unwatch(socket.as_fd());
        }
    }
}

/// Edge-triggered: after each report, messages are received until the socket has no more.
const SOCKET_EVENTS: EventFlags = EventFlags::IN.union(EventFlags::OUT).union(EventFlags::ET);

/// Maximum length of a reason in the log, in characters.
const REASON_CHARS_MAX: usize = 200;

/// Interval between the acceptor's checks of deadlines, while it must check any.
pub(super) const TICK: Duration = Duration::from_millis(20);
