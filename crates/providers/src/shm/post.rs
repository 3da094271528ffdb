//! Work requests: done at once, by the calling thread, through the peer's mapped memory.
//!
//! A request fails by itself: unlike on a network, those behind it are not flushed.  Nothing is outstanding
//! when `post` returns, so a peer that leaves leaves no request without its completion.

use halite_fabric::{
    Completion, CompletionKind, Key, Local, Operation, PeerId, PostCause, PostError, RemoteAddress, Status,
    WorkRequest,
};
use halite_mem::{AccessError, OutOfBounds, Window};

use super::core::Core;
use super::peer::{Lookup, Peer};
use super::{lock, read};

/// How a request that could be posted ended.
enum Outcome {
    Done,
    Old(u64),
    /// The key or range is not the peer's.
    Refused,
}

impl Core {
    /// See [`halite_fabric::Fabric::post`].
    pub(super) fn post(&self, id: PeerId, requests: &[WorkRequest<'_>]) -> Result<(), PostError> {
        let error = |posted, cause| PostError { peer: id, posted, cause };
        let peer = self.peer(id).ok_or(error(0, PostCause::NotConnected))?;
        // Looked at once per list: the queue may exceed its limit by one list for each posting thread.
        if lock(&self.completions).len() >= self.config.completions_max {
            return Err(error(0, PostCause::QueueFull));
        }
        let mut pushed = false;
        let mut completed = false;
        let mut result = Ok(());
        for (posted, request) in requests.iter().enumerate() {
            match self.execute(&peer, request) {
                Ok(outcome) => completed |= self.complete_request(id, request, outcome),
                Err(cause) => {
                    result = Err(error(posted, cause));
                    break;
                }
            }
            pushed |= matches!(request.operation, Operation::Send { .. } | Operation::WriteImm { .. });
        }
        if pushed {
            peer.ring();
        }
        if completed {
            self.own.doorbell.ring();
        }
        result
    }

    fn execute(&self, peer: &Peer, request: &WorkRequest<'_>) -> Result<Outcome, PostCause> {
        match request.operation {
            Operation::Read { local, remote } => self.read(peer, local, remote),
            Operation::Write { local, remote } => self.write(peer, local, remote),
            Operation::WriteImm { local, remote, imm } => self.write_imm(peer, local, remote, imm),
            Operation::Send { bytes, imm } => {
                if bytes.len() > self.config.send_bytes_max() {
                    return Err(PostCause::Malformed);
                }
                peer.push_send(bytes, imm).map(|()| Outcome::Done)
            }
            Operation::FetchAdd { remote, add } => {
                self.atomic(peer, remote, |window| window.fetch_add_u64(remote.offset, add))
            }
            Operation::CompareSwap { remote, expected, new } => {
                self.atomic(peer, remote, |window| window.compare_exchange_u64(remote.offset, expected, new))
            }
        }
    }

    fn read(&self, peer: &Peer, local: Local<'_>, remote: RemoteAddress) -> Result<Outcome, PostCause> {
        let Local::Registered { key, offset, len } = local else {
            return Err(PostCause::Malformed);
        };
        let target = self.local_window(key, offset, len)?;
        self.access(peer, remote.key, |source| target.copy_from(0, source, remote.offset, len))
    }

    fn write(&self, peer: &Peer, local: Local<'_>, remote: RemoteAddress) -> Result<Outcome, PostCause> {
        match local {
            Local::Inline(bytes) => {
                self.access(peer, remote.key, |target| target.write(remote.offset, bytes))
            }
            Local::Registered { key, offset, len } => {
                let source = self.local_window(key, offset, len)?;
                self.access(peer, remote.key, |target| target.copy_from(remote.offset, &source, 0, len))
            }
        }
    }

    /// The copy is not made under the ring's lock, for it may be long.  So the ring can fill up meanwhile, and a
    /// write that is refused for that may have landed; posting it again lands it again.
    fn write_imm(
        &self,
        peer: &Peer,
        local: Local<'_>,
        remote: RemoteAddress,
        imm: u32,
    ) -> Result<Outcome, PostCause> {
        peer.check_room()?;
        match self.write(peer, local, remote)? {
            Outcome::Done => peer.push_notification(imm).map(|()| Outcome::Done),
            // As on a network, the peer is not told of a write that it refused.
            outcome => Ok(outcome),
        }
    }

    fn atomic(
        &self,
        peer: &Peer,
        remote: RemoteAddress,
        change: impl Fn(&Window) -> Result<u64, AccessError>,
    ) -> Result<Outcome, PostCause> {
        let old = self.with_window(peer, remote.key, change)?;
        Ok(match old {
            Some(Ok(old)) => Outcome::Old(old),
            Some(Err(_)) | None => Outcome::Refused,
        })
    }

    fn access(
        &self,
        peer: &Peer,
        key: Key,
        copy: impl Fn(&Window) -> Result<(), OutOfBounds>,
    ) -> Result<Outcome, PostCause> {
        let copied = self.with_window(peer, key, copy)?;
        Ok(match copied {
            Some(Ok(())) => Outcome::Done,
            Some(Err(_)) | None => Outcome::Refused,
        })
    }

    /// Applies `access` to the segment behind `key` of `peer`; `None` if the peer has no such key.
    ///
    /// A key that was mentioned to us has been sent before, but perhaps not been heard yet.
    pub(super) fn with_window<T>(
        &self,
        peer: &Peer,
        key: Key,
        access: impl Fn(&Window) -> T,
    ) -> Result<Option<T>, PostCause> {
        let mut found = peer.with_window(key, &access);
        if let Lookup::Unknown = found
            && let Some(link) = self.link(peer.link_token)
        {
            link.serve(self);
            found = peer.with_window(key, &access);
        }
        match found {
            Lookup::Found(result) => Ok(Some(result)),
            Lookup::Unknown => Ok(None),
            Lookup::Gone => Err(PostCause::NotConnected),
        }
    }

    fn local_window(&self, key: Key, offset: u64, len: u64) -> Result<Window, PostCause> {
        let registered = read(&self.registered);
        let segment = registered.get(key.0 as usize);
        let window = segment.and_then(|segment| segment.slice(offset, len));
        window.ok_or(PostCause::Malformed)
    }

    /// Queues the completion of a request, if it is due one.
    fn complete_request(&self, peer: PeerId, request: &WorkRequest<'_>, outcome: Outcome) -> bool {
        let id = request.id;
        let (status, kind) = match outcome {
            Outcome::Done => (Status::Success, CompletionKind::Done { id }),
            Outcome::Old(old) => (Status::Success, CompletionKind::Atomic { id, old }),
            Outcome::Refused => (Status::RemoteAccess, CompletionKind::Done { id }),
        };
        let due = request.signalled || status != Status::Success;
        if due {
            self.complete([Completion { peer, status, kind }]);
        }
        due
    }
}
