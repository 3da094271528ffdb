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
use super::super::shortage::{self, Trouble};
use super::super::socket::{self, Received};
use super::super::wire::Message;
use super::{Link, LinkState, Phase, SOCKET_EVENTS};

/// Maximum number of messages received per call, so that a peer that sends without end cannot occupy a thread.
const TURN_MESSAGES_MAX: usize = 256;

impl Link {
    /// Receives the waiting messages; returns true if more messages may wait. Fails if the peer sends an invalid
    /// message, or hangs up during the handshake.
    pub(super) fn hear(&self, core: &Core, state: &mut LinkState) -> Result<bool, Trouble> {
        for _ in 0..TURN_MESSAGES_MAX {
            let Some(socket) = state.socket.clone() else {
                return Ok(false);
            };
            match socket::receive(socket.as_fd()) {
                Ok(Received::Nothing) => return Ok(false),
                Ok(Received::HungUp) => return self.hear_hang_up(core, state).map(|()| false),
                Ok(Received::Message(message, fds)) => {
                    self.hear_message(core, state, socket.as_fd(), message, fds)?;
                }
                Ok(Received::Bare(message)) => self.hear_bare(core, state, message)?,
                Err(error) => return Err(error.into()),
            }
        }
        if let Some(socket) = &state.socket {
            let source = Source::Socket { token: self.token };
            core.watch_again(socket, source, SOCKET_EVENTS);
        }
        Ok(true)
    }

    fn hear_hang_up(&self, core: &Core, state: &mut LinkState) -> Result<(), Trouble> {
        self.hang_up(core, state);
        match state.phase {
            Phase::Greeting { .. } => Err("the peer hung up".into()),
            _ => {
                self.begin_leaving(core, state);
                Ok(())
            }
        }
    }

    fn hear_message(
        &self,
        core: &Core,
        state: &mut LinkState,
        socket: BorrowedFd<'_>,
        message: Message,
        fds: Vec<OwnedFd>,
    ) -> Result<(), Trouble> {
        let greeted = state.heard.greeting.is_some();
        let is_connected = matches!(state.phase, Phase::Connected { .. });
        match (message, &state.phase) {
            (Message::Hello { hello, .. }, Phase::Greeting { .. }) if !greeted => {
                self.hear_hello(core, state, socket, hello, fds)
            }
            (Message::Segment { key, len }, Phase::Greeting { .. }) if greeted => {
                let known = state.heard.segments.len();
                check_key(core, known, key)?;
                state.heard.segments.push(PeerSegment::Mapped(open_segment(only(&fds), len)?));
                Ok(())
            }
            (Message::Segment { key, len }, Phase::Connected { peer }) => {
                check_key(core, peer.segments(), key)?;
                let segment = match open_segment(only(&fds), len) {
                    Ok(window) => PeerSegment::Mapped(window),
                    // The shortage is ours, and affects only this segment.
                    Err(trouble @ Trouble::Ours(_)) => {
                        report_unmapped(peer, len, &trouble);
                        PeerSegment::Unmapped { fd: fds.into_iter().next(), len }
                    }
                    Err(trouble) => return Err(trouble),
                };
                peer.push_segment(segment);
                Ok(())
            }
            (Message::Withdrawn { key }, Phase::Greeting { .. } | Phase::Connected { .. })
                if greeted || is_connected =>
            {
                self.hear_withdrawn(core, state, key)
            }
            (Message::Forgotten { key }, Phase::Greeting { .. } | Phase::Connected { .. })
                if lock(&core.withdrawn).is_awaited(key, self.token) =>
            {
                core.tell_withdrawn(|withdrawn| withdrawn.forget(key, self.token));
                Ok(())
            }
            // No longer needed; dropping the descriptor suffices.
            (Message::Segment { .. }, Phase::Leaving { .. }) => Ok(()),
            // While leaving, only Detached and exits end a peer's access.
            (Message::Withdrawn { .. } | Message::Forgotten { .. }, Phase::Leaving { .. }) => Ok(()),
            (Message::Ready, Phase::Greeting { .. }) if greeted && !state.heard.ready => {
                state.heard.ready = true;
                Ok(())
            }
            (Message::Detached, Phase::Connected { .. } | Phase::Leaving { .. }) => {
                state.heard.detached = true;
                Ok(())
            }
            (Message::Detached, Phase::Greeting { .. }) => Err("the peer gave up".into()),
            (Message::Refused { reason }, Phase::Greeting { .. }) => {
                Err(format!("the peer refused: {reason}").into())
            }
            (_, Phase::Over) => Ok(()),
            (message, _) => Err(format!("unexpected {message:?}").into()),
        }
    }

    /// Drops a segment that the peer deregistered. If the peer never sent that segment, reserves its key.
    fn hear_withdrawn(&self, core: &Core, state: &mut LinkState, key: u32) -> Result<(), Trouble> {
        let LinkState { phase, heard, said, .. } = state;
        let known = match phase {
            Phase::Connected { peer } => peer.segments(),
            _ => heard.segments.len(),
        };
        let is_dropped = match phase {
            _ if key as usize >= known => {
                check_key(core, known, key)?;
                let placeholder = PeerSegment::Withdrawn { held: None };
                match phase {
                    Phase::Connected { peer } => peer.push_segment(placeholder),
                    _ => heard.segments.push(placeholder),
                }
                return Ok(());
            }
            Phase::Connected { peer } => peer.withdraw(key),
            _ => {
                let segment = &mut heard.segments[key as usize];
                segment.withdrawn().map(|withdrawn| *segment = withdrawn).is_some()
            }
        };
        if !is_dropped {
            return Err(format!("key {key} was deregistered before").into());
        }
        said.owed.push_back(Message::Forgotten { key });
        Ok(())
    }

    /// Handles a message that arrived without its descriptors, because this process has no descriptors left.
    fn hear_bare(&self, core: &Core, state: &LinkState, message: Message) -> Result<(), Trouble> {
        let lack = Trouble::Ours(shortage::descriptors());
        match (message, &state.phase) {
            (Message::Segment { key, len }, Phase::Connected { peer }) => {
                check_key(core, peer.segments(), key)?;
                report_unmapped(peer, len, &lack);
                peer.push_segment(PeerSegment::Unmapped { fd: None, len });
                Ok(())
            }
            (_, Phase::Leaving { .. } | Phase::Over) => Ok(()),
            _ => Err(lack),
        }
    }

    fn hear_hello(
        &self,
        core: &Core,
        state: &mut LinkState,
        socket: BorrowedFd<'_>,
        hello: Vec<u8>,
        fds: Vec<OwnedFd>,
    ) -> Result<(), Trouble> {
        let greeting = Greeting::check(socket, hello, fds)?;
        let source = Source::Exit { token: self.token };
        core.watch(&greeting.process.pidfd, source, EventFlags::IN | EventFlags::ET)
            .map_err(|error| format!("cannot watch the process: {error}"))?;
        state.heard.greeting = Some(greeting);
        Ok(())
    }

    /// Sends the pending messages for which the socket has room. The link sends the others when the socket has room
    /// again.
    pub(super) fn speak(&self, core: &Core, state: &mut LinkState) {
        let greeting = matches!(state.phase, Phase::Greeting { .. });
        let connected = matches!(state.phase, Phase::Connected { .. });
        let silent = self.dialled.is_none() && !state.heard.ready;
        if silent || !(greeting || connected) {
            return;
        }
        if !state.said.hello {
            let own = &core.own;
            let bells = Sleeper::KINDS.map(|kind| own.doorbell.descriptor(kind));
            let hello = Message::Hello { hello: self.hello.clone(), has_bells: bells[0].is_some() };
            let mut fds = vec![own.pidfd.as_fd(), descriptor(&own.mailbox), descriptor(&self.ring)];
            fds.extend(bells.into_iter().flatten());
            state.said.hello = self.try_say(state, &hello, &fds);
        }
        let all_told = state.said.hello && self.speak_of_segments(core, state) && self.speak_of_keys(state);
        if all_told && !state.said.ready {
            state.said.ready = self.try_say(state, &Message::Ready, &[]);
        }
    }

    /// Sends the segments that the peer does not know yet. Returns true once all are sent.
    fn speak_of_segments(&self, core: &Core, state: &mut LinkState) -> bool {
        loop {
            let next = state.said.segments;
            let key = next as u32;
            let is_said = match super::super::read(&core.registered).get(next).cloned() {
                None => return true,
                Some(None) => self.try_say(state, &Message::Withdrawn { key }, &[]),
                Some(Some(window)) => {
                    let message = Message::Segment { key, len: window.len() };
                    self.try_say(state, &message, &[descriptor(window.segment())])
                }
            };
            if !is_said {
                return false;
            }
            state.said.segments += 1;
        }
    }

    /// Sends the pending messages about deregistered keys. Returns true once all are sent.
    fn speak_of_keys(&self, state: &mut LinkState) -> bool {
        while let Some(message) = state.said.owed.front() {
            if !self.try_say(state, message, &[]) {
                return false;
            }
            state.said.owed.pop_front();
        }
        true
    }

    /// Sends one message; returns false if the socket cannot take the message now.
    pub(super) fn try_say(&self, state: &LinkState, message: &Message, fds: &[BorrowedFd<'_>]) -> bool {
        let Some(socket) = &state.socket else {
            return false;
        };
        // Ignores a broken socket: hear() reports it, after the messages that may still wait in it.
        socket::send(socket.as_fd(), message, fds).unwrap_or(false)
    }
}

/// Returns the descriptor of one of our segments.
fn descriptor(segment: &Segment) -> BorrowedFd<'_> {
    segment.fd().expect("our own segments keep their descriptors")
}

/// Checks that keys arrive in order and once each, so that a peer cannot replace the memory of a key in use.
fn check_key(core: &Core, known: usize, key: u32) -> Result<(), Trouble> {
    if key as usize != known || known >= core.config.segments_max {
        return Err(format!("unexpected segment with key {key}").into());
    }
    Ok(())
}

fn only(fds: &[OwnedFd]) -> &OwnedFd {
    fds.first().expect("the socket counted the descriptors")
}

fn report_unmapped(peer: &Peer, len: u64, lack: &Trouble) {
    tracing::warn!("this process cannot map {len} bytes of {}: {lack}", peer.process);
}

fn open_segment(fd: &OwnedFd, len: u64) -> Result<Window, Trouble> {
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
    // However the wait ends, the caller retries and checks the deadline.
    let _ = rustix::event::poll(&mut fds, timeout.as_ref());
    true
}
