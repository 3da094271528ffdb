//! Sends and receives the messages of a link; [`super`] changes the link's phase accordingly.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use halite_mem::{Segment, Sleeper, Window};
use rustix::event::epoll::EventFlags;
use rustix::event::{PollFd, PollFlags};
use rustix::time::Timespec;

use super::super::core::{Core, Source};
use super::super::greeting::Greeting;
use super::super::lock;
use super::super::peer::{Peer, PeerSegment};
use super::super::shortage::{self, LinkError};
use super::super::socket::{self, Received};
use super::super::wire::Message;
use super::{Link, LinkState, Phase, SOCKET_EVENTS};

/// Maximum number of messages received per call, so that a peer that sends without end cannot occupy a thread.
const TURN_MESSAGES_MAX: usize = 256;

impl Link {
    /// Receives the waiting messages; returns true if more messages may wait. Fails if the peer sends an invalid
    /// message, or hangs up during the handshake.
    pub(super) fn receive_messages(&self, core: &Core, state: &mut LinkState) -> Result<bool, LinkError> {
        for _ in 0..TURN_MESSAGES_MAX {
            let Some(socket) = state.socket.clone() else {
                return Ok(false);
            };
            match socket::receive(socket.as_fd()) {
                Ok(Received::Nothing) => return Ok(false),
                Ok(Received::HungUp) => return self.handle_hang_up(core, state).map(|()| false),
                Ok(Received::Message(message, fds)) => {
                    self.handle_message(core, state, socket.as_fd(), message, fds)?;
                }
                Ok(Received::WithoutDescriptors(message)) => {
                    self.handle_without_descriptors(core, state, message)?
                }
                Err(error) => return Err(error.into()),
            }
        }
        if let Some(socket) = &state.socket {
            let source = Source::Socket { token: self.token };
            core.watch_again(socket, source, SOCKET_EVENTS);
        }
        Ok(true)
    }

    fn handle_hang_up(&self, core: &Core, state: &mut LinkState) -> Result<(), LinkError> {
        self.hang_up(core, state);
        match state.phase {
            Phase::Greeting { .. } => Err("the peer hung up".into()),
            _ => {
                self.begin_leaving(core, state);
                Ok(())
            }
        }
    }

    fn handle_message(
        &self,
        core: &Core,
        state: &mut LinkState,
        socket: BorrowedFd<'_>,
        message: Message,
        fds: Vec<OwnedFd>,
    ) -> Result<(), LinkError> {
        let is_greeted = state.from_peer.greeting.is_some();
        let is_connected = matches!(state.phase, Phase::Connected { .. });
        match (message, &state.phase) {
            (Message::Hello { hello, .. }, Phase::Greeting { .. }) if !is_greeted => {
                self.handle_hello(core, state, socket, hello, fds)
            }
            (Message::Segment { key, len }, Phase::Greeting { .. }) if is_greeted => {
                let known = state.from_peer.segments.len();
                check_key(core, known, key)?;
                state.from_peer.segments.push(PeerSegment::Mapped(open_segment(only_descriptor(&fds), len)?));
                Ok(())
            }
            (Message::Segment { key, len }, Phase::Connected { peer }) => {
                check_key(core, peer.segments(), key)?;
                let segment = match open_segment(only_descriptor(&fds), len) {
                    Ok(window) => PeerSegment::Mapped(window),
                    // This process lacks a resource, which affects only this segment.
                    Err(trouble @ LinkError::Local(_)) => {
                        log_unmapped(peer, len, &trouble);
                        PeerSegment::Unmapped { fd: fds.into_iter().next(), len }
                    }
                    Err(trouble) => return Err(trouble),
                };
                peer.push_segment(segment);
                Ok(())
            }
            (Message::Withdrawn { key }, Phase::Greeting { .. } | Phase::Connected { .. })
                if is_greeted || is_connected =>
            {
                self.handle_withdrawn(core, state, key)
            }
            (Message::Forgotten { key }, Phase::Greeting { .. } | Phase::Connected { .. })
                if lock(&core.withdrawn).is_awaited(key, self.token) =>
            {
                core.update_withdrawn(|withdrawn| withdrawn.forget(key, self.token));
                Ok(())
            }
            // The segment is no longer needed, so this only drops its descriptor.
            (Message::Segment { .. }, Phase::Leaving { .. }) => Ok(()),
            // In this phase, only Detached or the peer's exit ends the peer's access.
            (Message::Withdrawn { .. } | Message::Forgotten { .. }, Phase::Leaving { .. }) => Ok(()),
            (Message::Ready, Phase::Greeting { .. }) if is_greeted && !state.from_peer.ready => {
                state.from_peer.ready = true;
                Ok(())
            }
            (Message::Detached, Phase::Connected { .. } | Phase::Leaving { .. }) => {
                state.from_peer.detached = true;
                Ok(())
            }
            (Message::Detached, Phase::Greeting { .. }) => Err("the peer ended the handshake".into()),
            (Message::Refused { reason }, Phase::Greeting { .. }) => {
                Err(format!("the peer refused: {reason}").into())
            }
            (_, Phase::Over) => Ok(()),
            (message, _) => Err(format!("unexpected {message:?}").into()),
        }
    }

    /// Drops a segment that the peer has deregistered. If the peer never sent the segment, adds a placeholder for its
    /// key.
    fn handle_withdrawn(&self, core: &Core, state: &mut LinkState, key: u32) -> Result<(), LinkError> {
        let LinkState { phase, from_peer, sent, .. } = state;
        let known = match phase {
            Phase::Connected { peer } => peer.segments(),
            _ => from_peer.segments.len(),
        };
        let is_dropped = match phase {
            _ if key as usize >= known => {
                check_key(core, known, key)?;
                let placeholder = PeerSegment::Withdrawn { held: None };
                match phase {
                    Phase::Connected { peer } => peer.push_segment(placeholder),
                    _ => from_peer.segments.push(placeholder),
                }
                return Ok(());
            }
            Phase::Connected { peer } => peer.withdraw(key),
            _ => {
                let segment = &mut from_peer.segments[key as usize];
                segment.withdrawn().map(|withdrawn| *segment = withdrawn).is_some()
            }
        };
        if !is_dropped {
            return Err(format!("the peer deregistered key {key} twice").into());
        }
        sent.pending_key_messages.push_back(Message::Forgotten { key });
        Ok(())
    }

    /// Handles a message that arrived without its descriptors, because this process has reached its limit.
    fn handle_without_descriptors(
        &self,
        core: &Core,
        state: &LinkState,
        message: Message,
    ) -> Result<(), LinkError> {
        let shortage = LinkError::Local(shortage::no_descriptors());
        match (message, &state.phase) {
            (Message::Segment { key, len }, Phase::Connected { peer }) => {
                check_key(core, peer.segments(), key)?;
                log_unmapped(peer, len, &shortage);
                peer.push_segment(PeerSegment::Unmapped { fd: None, len });
                Ok(())
            }
            (_, Phase::Leaving { .. } | Phase::Over) => Ok(()),
            _ => Err(shortage),
        }
    }

    fn handle_hello(
        &self,
        core: &Core,
        state: &mut LinkState,
        socket: BorrowedFd<'_>,
        hello: Vec<u8>,
        fds: Vec<OwnedFd>,
    ) -> Result<(), LinkError> {
        let greeting = Greeting::check(socket, hello, fds)?;
        let source = Source::Exit { token: self.token };
        core.watch(&greeting.process.pidfd, source, EventFlags::IN | EventFlags::ET)
            .map_err(|error| format!("cannot watch the process of the peer: {error}"))?;
        state.from_peer.greeting = Some(greeting);
        Ok(())
    }

    /// Sends the pending messages for which the socket has room. The link sends the other messages once the socket has
    /// room again.
    pub(super) fn send_pending(&self, core: &Core, state: &mut LinkState) {
        let may_send = matches!(state.phase, Phase::Greeting { .. } | Phase::Connected { .. });
        let must_wait = self.dialled.is_none() && !state.from_peer.ready;
        if must_wait || !may_send {
            return;
        }
        if !state.sent.hello {
            let own = &core.own;
            let eventfds = Sleeper::KINDS.map(|kind| own.doorbell.descriptor(kind));
            let hello = Message::Hello { hello: self.hello.clone(), has_eventfds: eventfds[0].is_some() };
            let mut fds = vec![own.pidfd.as_fd(), descriptor(&own.mailbox), descriptor(&self.ring)];
            fds.extend(eventfds.into_iter().flatten());
            state.sent.hello = self.try_send(state, &hello, &fds);
        }
        let is_all_sent =
            state.sent.hello && self.send_segments(core, state) && self.send_key_messages(state);
        if is_all_sent && !state.sent.ready {
            state.sent.ready = self.try_send(state, &Message::Ready, &[]);
        }
    }

    /// Sends the segments that the peer does not know yet. Returns true once all are sent.
    fn send_segments(&self, core: &Core, state: &mut LinkState) -> bool {
        loop {
            let next = state.sent.segments;
            let key = next as u32;
            let is_sent = match super::super::read(&core.registered).get(next).cloned() {
                None => return true,
                Some(None) => self.try_send(state, &Message::Withdrawn { key }, &[]),
                Some(Some(window)) => {
                    let message = Message::Segment { key, len: window.len() };
                    self.try_send(state, &message, &[descriptor(window.segment())])
                }
            };
            if !is_sent {
                return false;
            }
            state.sent.segments += 1;
        }
    }

    /// Sends the pending messages about deregistered keys. Returns true once all are sent.
    fn send_key_messages(&self, state: &mut LinkState) -> bool {
        while let Some(message) = state.sent.pending_key_messages.front() {
            if !self.try_send(state, message, &[]) {
                return false;
            }
            state.sent.pending_key_messages.pop_front();
        }
        true
    }

    /// Sends one message; returns false if the socket cannot take the message now.
    pub(super) fn try_send(&self, state: &LinkState, message: &Message, fds: &[BorrowedFd<'_>]) -> bool {
        let Some(socket) = &state.socket else {
            return false;
        };
        // Ignores a broken socket: receive_messages() reports it, after the messages that still wait there.
        socket::send(socket.as_fd(), message, fds).unwrap_or(false)
    }
}

/// Returns the descriptor of a segment of this process.
fn descriptor(segment: &Segment) -> BorrowedFd<'_> {
    segment.fd().expect("a segment of this process has a descriptor")
}

/// Checks that keys arrive in order and once each, so that a peer cannot replace the memory of a key in use.
fn check_key(core: &Core, known: usize, key: u32) -> Result<(), LinkError> {
    if key as usize != known || known >= core.config.segments_max {
        return Err(format!("unexpected segment with key {key}").into());
    }
    Ok(())
}

fn only_descriptor(fds: &[OwnedFd]) -> &OwnedFd {
    fds.first().expect("the socket counted the descriptors")
}

fn log_unmapped(peer: &Peer, len: u64, shortage: &LinkError) {
    tracing::warn!("this process cannot map {len} bytes of {}: {shortage}", peer.process);
}

fn open_segment(fd: &OwnedFd, len: u64) -> Result<Window, LinkError> {
    let segment = Segment::open(fd, len)?;
    Ok(segment.window(0, len).expect("the segment was opened with this length"))
}

/// Waits until `socket` may take another message; returns false once `deadline` has passed.
pub(super) fn wait_for_room(socket: &OwnedFd, deadline: Instant) -> bool {
    let left = deadline.saturating_duration_since(Instant::now());
    if left == Duration::ZERO {
        return false;
    }
    let timeout = Timespec::try_from(left).ok();
    let mut fds = [PollFd::new(socket, PollFlags::OUT)];
    // Ignores the result: the caller retries, and checks the deadline.
    let _ = rustix::event::poll(&mut fds, timeout.as_ref());
    true
}
