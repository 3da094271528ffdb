//! Executes work requests in the calling thread, through the peer's ring or its mapped memory.
//!
//! Unlike on a network, a failed request does not flush later requests. The thread has executed all requests when
//! `post` returns, so no request is outstanding when a peer disconnects.

use halite_fabric::{
    Completion, CompletionKind, Event, Key, Local, Operation, PeerId, PostCause, PostError, RemoteAddress,
    Status, WorkRequest,
};
use halite_mem::{AccessError, OutOfBounds, Window};

use super::core::Core;
use super::peer::{Lookup, Outgoing, Peer, Pushed};
use super::read;
use super::send_port::{SendPort, with_send_port};

/// Maximum number of times that the lookup of an unknown key receives messages. This is enough for the announcements of
/// all segments. The limit stops the lookup if a peer sends without end.
const RECEIVES_MAX: usize = 32;

/// Progress of posting a list of requests.
#[derive(Debug, Default)]
struct Progress {
    posted: usize,
    /// True if a completion was queued.
    completed: bool,
}

/// Result of a request that was posted.
enum Outcome {
    Done,
    /// The atomic was executed; this is the previous value of the word.
    Old(u64),
    /// The peer has no such key, or the range is not inside the segment of the key.
    Refused,
    /// This process cannot map the peer's segment.
    Unmapped,
}

/// Result of an access to a segment of the peer.
pub(super) enum Access<T> {
    Made(T),
    UnknownKey,
    Unmapped,
}

fn is_message(request: &WorkRequest<'_>) -> bool {
    matches!(request.operation, Operation::Send { .. } | Operation::WriteImm { .. })
}

impl Progress {
    fn add(&mut self, completed: bool) {
        self.posted += 1;
        self.completed |= completed;
    }
}

impl Core {
    /// Implements [`halite_fabric::Fabric::post`].
    pub(super) fn post(&self, id: PeerId, requests: &[WorkRequest<'_>]) -> Result<(), PostError> {
        let mut progress = Progress::default();
        let result = self.post_all(id, requests, &mut progress);
        if progress.completed {
            self.own.doorbell.ring();
        }
        if result == Err(PostCause::QueueFull) {
            self.wait_for_room(id);
        }
        result.map_err(|cause| PostError { peer: id, posted: progress.posted, cause })
    }

    fn post_all(
        &self,
        id: PeerId,
        requests: &[WorkRequest<'_>],
        progress: &mut Progress,
    ) -> Result<(), PostCause> {
        // Checks the limit once per list, so the queue may exceed the limit by one list per posting thread.
        if self.events.len() >= self.config.completions_max {
            return Err(PostCause::QueueFull);
        }
        if requests.first().is_some_and(is_message) {
            self.post_messages(id, requests, progress)?;
        }
        if progress.posted < requests.len() { self.post_rest(id, requests, progress) } else { Ok(()) }
    }

    /// Posts the requests before the first request that needs more than a ring record. Each locked instruction costs 5
    /// ns here, so these requests share one lock and one wake-up, and bypass the table of peers.
    fn post_messages(
        &self,
        id: PeerId,
        requests: &[WorkRequest<'_>],
        progress: &mut Progress,
    ) -> Result<(), PostCause> {
        let find = || super::read(&self.peers).get(&id).map(|peer| peer.send_port.clone());
        let push = |send_port: &SendPort| {
            Outgoing::with_lock(send_port, |outgoing| {
                let result = self.push_messages(id, outgoing, requests, progress);
                if requests[..progress.posted].iter().any(|request| request.solicited) {
                    outgoing.ring();
                }
                result
            })
        };
        with_send_port(self.number, id, find, push).unwrap_or(Err(PostCause::NotConnected))
    }

    #[inline]
    fn push_messages(
        &self,
        id: PeerId,
        outgoing: &mut Outgoing,
        requests: &[WorkRequest<'_>],
        progress: &mut Progress,
    ) -> Result<(), PostCause> {
        for request in requests {
            self.check_length(&request.operation)?;
            match outgoing.try_push(&request.operation)? {
                Pushed::Done => progress.add(self.complete_request(id, request, Outcome::Done)),
                Pushed::NotInRing => break,
            }
        }
        Ok(())
    }

    fn post_rest(
        &self,
        id: PeerId,
        requests: &[WorkRequest<'_>],
        progress: &mut Progress,
    ) -> Result<(), PostCause> {
        let peer = self.peer(id).ok_or(PostCause::NotConnected)?;
        let mut is_solicited = false;
        let mut result = Ok(());
        for request in &requests[progress.posted..] {
            match self.execute(&peer, request) {
                Ok(completed) => progress.add(completed),
                Err(cause) => {
                    result = Err(cause);
                    break;
                }
            }
            is_solicited |= is_message(request) && request.solicited;
        }
        if is_solicited {
            // Ignores a disconnected peer.
            let _ = Outgoing::with_lock(&peer.send_port, |outgoing| {
                outgoing.ring();
                Ok(())
            });
        }
        result
    }

    /// Makes a later poll return a room event for `id`, whose ring was full.
    #[cold]
    fn wait_for_room(&self, id: PeerId) {
        self.waiters.add(id);
        // The ring may have room already, so the poller must check at once.
        self.own.doorbell.ring();
    }

    /// Adds a room event to `events` for each peer whose ring or completion queue was full at a post and has room
    /// again.
    #[cold]
    pub(super) fn push_room_events(&self, events: &mut Vec<Event>) {
        for id in self.waiters.take_all() {
            // The table does not contain peers that are cut off.
            let Some(peer) = self.peer(id) else { continue };
            let has_room = Outgoing::with_lock(&peer.send_port, |outgoing| {
                outgoing.check_or_request_room(self.config.send_bytes_max())
            });
            match has_room {
                // The poster gets the disconnected event instead.
                Err(_) => {}
                Ok(true) if self.events.len() < self.config.completions_max => {
                    events.push(Event::Room { peer: id });
                }
                Ok(_) => self.waiters.add(id),
            }
        }
    }

    #[inline]
    fn check_length(&self, operation: &Operation<'_>) -> Result<(), PostCause> {
        match operation {
            Operation::Send { bytes, .. } if bytes.len() > self.config.send_bytes_max() => {
                Err(PostCause::Malformed)
            }
            _ => Ok(()),
        }
    }

    /// Executes a request and queues its completion, both while the peer stays connected. So a refused request was not
    /// executed, and no completion of a peer follows its disconnection. Returns true if a completion was queued.
    fn execute(&self, peer: &Peer, request: &WorkRequest<'_>) -> Result<bool, PostCause> {
        let complete = |outcome| self.complete_request(peer.id, request, outcome);
        match request.operation {
            Operation::Read { local, remote } => self.read(peer, local, remote, complete),
            Operation::Write { local, remote } => self.write(peer, local, remote, complete),
            Operation::Send { .. } | Operation::WriteImm { .. } => self.execute_message(peer, request),
            Operation::FetchAdd { remote, add } => {
                self.atomic(peer, remote, |window| window.fetch_add_u64(remote.offset, add), complete)
            }
            Operation::CompareSwap { remote, expected, new } => {
                let change = |window: &Window| window.compare_exchange_u64(remote.offset, expected, new);
                self.atomic(peer, remote, change, complete)
            }
        }
    }

    fn execute_message(&self, peer: &Peer, request: &WorkRequest<'_>) -> Result<bool, PostCause> {
        self.check_length(&request.operation)?;
        let pushed = Outgoing::with_lock(&peer.send_port, |outgoing| {
            Ok(match outgoing.try_push(&request.operation)? {
                Pushed::Done => Some(self.complete_request(peer.id, request, Outcome::Done)),
                Pushed::NotInRing => None,
            })
        })?;
        match (pushed, request.operation) {
            (None, Operation::WriteImm { local, remote, imm }) => {
                self.write_imm(peer, request, local, remote, imm)
            }
            (completed, _) => Ok(completed.unwrap_or(false)),
        }
    }

    fn read<T>(
        &self,
        peer: &Peer,
        local: Local<'_>,
        remote: RemoteAddress,
        then: impl Fn(Outcome) -> T,
    ) -> Result<T, PostCause> {
        let Local::Registered { key, offset, len } = local else {
            return Err(PostCause::Malformed);
        };
        let target = self.local_window(key, offset, len)?;
        self.access(peer, remote.key, |source| target.copy_from(0, source, remote.offset, len), then)
    }

    fn write<T>(
        &self,
        peer: &Peer,
        local: Local<'_>,
        remote: RemoteAddress,
        then: impl Fn(Outcome) -> T,
    ) -> Result<T, PostCause> {
        match local {
            Local::Inline(bytes) => {
                self.access(peer, remote.key, |target| target.write(remote.offset, bytes), then)
            }
            Local::Registered { key, offset, len } => {
                let source = self.local_window(key, offset, len)?;
                self.access(peer, remote.key, |target| target.copy_from(remote.offset, &source, 0, len), then)
            }
        }
    }

    /// Copies the bytes without holding the ring's lock, because the copy may take long. If the ring is full
    /// afterwards, the write is refused although its bytes may be in place; posting it again copies them again.
    fn write_imm(
        &self,
        peer: &Peer,
        request: &WorkRequest<'_>,
        local: Local<'_>,
        remote: RemoteAddress,
        imm: u32,
    ) -> Result<bool, PostCause> {
        Outgoing::with_lock(&peer.send_port, Outgoing::check_room)?;
        match self.write(peer, local, remote, |outcome| outcome)? {
            Outcome::Done => Outgoing::with_lock(&peer.send_port, |outgoing| {
                outgoing.push_notice(imm)?;
                Ok(self.complete_request(peer.id, request, Outcome::Done))
            }),
            // As on a network, a failed write does not notify the peer.
            outcome => {
                let complete = || self.complete_request(peer.id, request, outcome);
                peer.while_connected(complete).ok_or(PostCause::NotConnected)
            }
        }
    }

    fn atomic<T>(
        &self,
        peer: &Peer,
        remote: RemoteAddress,
        change: impl Fn(&Window) -> Result<u64, AccessError>,
        then: impl Fn(Outcome) -> T,
    ) -> Result<T, PostCause> {
        self.attempt(peer, remote.key, |window| change(window).map_or(Outcome::Refused, Outcome::Old), then)
    }

    fn access<T>(
        &self,
        peer: &Peer,
        key: Key,
        copy: impl Fn(&Window) -> Result<(), OutOfBounds>,
        then: impl Fn(Outcome) -> T,
    ) -> Result<T, PostCause> {
        self.attempt(peer, key, |window| copy(window).map_or(Outcome::Refused, |()| Outcome::Done), then)
    }

    /// Attempts an access to a segment of the peer, passes the outcome to `then`, and returns the result of `then`. The
    /// peer stays connected until `then` returns.
    fn attempt<T>(
        &self,
        peer: &Peer,
        key: Key,
        attempt: impl Fn(&Window) -> Outcome,
        then: impl Fn(Outcome) -> T,
    ) -> Result<T, PostCause> {
        let failed = match self.with_window(peer, key, |window| then(attempt(window)))? {
            Access::Made(made) => return Ok(made),
            Access::UnknownKey => Outcome::Refused,
            Access::Unmapped => Outcome::Unmapped,
        };
        peer.while_connected(|| then(failed)).ok_or(PostCause::NotConnected)
    }

    /// Calls `access` with the window of the segment that has this `key` at `peer`.
    ///
    /// If the key is unknown, first receives the messages that wait at the socket, because one of them may announce the
    /// key. If this process could not map the segment before, tries again.
    pub(super) fn with_window<T>(
        &self,
        peer: &Peer,
        key: Key,
        access: impl Fn(&Window) -> T,
    ) -> Result<Access<T>, PostCause> {
        let mut found = peer.with_window(key, &access);
        let mut receives = 0..RECEIVES_MAX;
        while let Lookup::Unknown = found
            && receives.next().is_some()
            && let Some(link) = self.link(peer.link_token)
        {
            let has_more = link.serve(self);
            found = peer.with_window(key, &access);
            if !has_more {
                break;
            }
        }
        if let Lookup::Unmapped = found {
            peer.retry_mapping(key);
            found = peer.with_window(key, &access);
        }
        match found {
            Lookup::Found(result) => Ok(Access::Made(result)),
            Lookup::Unknown => Ok(Access::UnknownKey),
            Lookup::Unmapped => Ok(Access::Unmapped),
            Lookup::Gone => Err(PostCause::NotConnected),
        }
    }

    fn local_window(&self, key: Key, offset: u64, len: u64) -> Result<Window, PostCause> {
        let registered = read(&self.registered);
        let segment = registered.get(key.0 as usize).and_then(Option::as_ref);
        let window = segment.and_then(|segment| segment.slice(offset, len));
        window.ok_or(PostCause::Malformed)
    }

    /// Queues the completion of a request if the request is signalled or has failed. Returns true if a completion was
    /// queued.
    #[inline]
    fn complete_request(&self, peer: PeerId, request: &WorkRequest<'_>, outcome: Outcome) -> bool {
        let id = request.id;
        let (status, kind) = match outcome {
            Outcome::Done => (Status::Success, CompletionKind::Done { id }),
            Outcome::Old(old) => (Status::Success, CompletionKind::Atomic { id, old }),
            Outcome::Refused => (Status::RemoteAccess, CompletionKind::Done { id }),
            Outcome::Unmapped => (Status::Unmapped, CompletionKind::Done { id }),
        };
        let is_queued = request.signalled || status != Status::Success;
        if is_queued {
            self.events.extend([Event::Completed(Completion { peer, status, kind })]);
        }
        is_queued
    }
}
