//! One recorded step, and its text.

use std::fmt;

use crate::kind::OperationKind;
use crate::{ConnectFailure, CutOff, Event, Key, Lane, PeerId, PostCause, Status, WorkId};

#[derive(Debug)]
pub(super) struct Record {
    /// Number of earlier steps, recorded or not.
    pub(super) number: u64,
    pub(super) time_ns: Option<u64>,
    pub(super) step: Step,
}

#[derive(Debug)]
pub(super) enum Step {
    Register {
        key: Key,
        len: u64,
    },
    Deregister {
        key: Key,
    },
    Connect {
        address: String,
    },
    Post {
        peer: PeerId,
        lane: Lane,
        kind: OperationKind,
        id: WorkId,
        bytes: u64,
    },
    Refuse {
        peer: PeerId,
        cause: PostCause,
    },
    Complete {
        peer: PeerId,
        id: WorkId,
        status: Status,
    },
    /// `bytes` is `None` for the immediate of a write.
    Arrive {
        peer: PeerId,
        imm: u32,
        bytes: Option<usize>,
    },
    Event(Event),
    CutOff {
        peer: PeerId,
        outcome: CutOff,
    },
    Disconnect {
        peer: PeerId,
    },
    Close,
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>6} ", self.number)?;
        if let Some(time_ns) = self.time_ns {
            write!(f, "{time_ns:>12} ns ")?;
        }
        self.step.fmt(f)
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Register { key, len } => write!(f, "register key={} len={len}", key.0),
            Step::Deregister { key } => write!(f, "deregister key={}", key.0),
            Step::Connect { address } => write!(f, "connect address={address}"),
            Step::Post { peer, lane, kind, id, bytes } => {
                let (kind, lane) = (kind.name(), lane.number);
                write!(f, "post peer={} lane={lane} {kind} id={} bytes={bytes}", peer.0, id.0)
            }
            Step::Refuse { peer, cause } => write!(f, "refused peer={} {cause}", peer.0),
            Step::Complete { peer, id, status } => {
                write!(f, "complete peer={} id={} {status:?}", peer.0, id.0)
            }
            Step::Arrive { peer, imm, bytes: Some(bytes) } => {
                write!(f, "received peer={} imm={imm} bytes={bytes}", peer.0)
            }
            Step::Arrive { peer, imm, bytes: None } => write!(f, "notified peer={} imm={imm}", peer.0),
            Step::Event(event) => fmt_event(event, f),
            Step::CutOff { peer, outcome } => write!(f, "cut_off peer={} {outcome:?}", peer.0),
            Step::Disconnect { peer } => write!(f, "disconnect peer={}", peer.0),
            Step::Close => write!(f, "close"),
        }
    }
}

fn fmt_event(event: &Event, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match event {
        Event::Connected { peer, dialled, .. } => {
            let how = if dialled.is_some() { "dialled" } else { "accepted" };
            write!(f, "event connected peer={} {how}", peer.0)
        }
        Event::Completed(completion) => write!(f, "event completed peer={}", completion.peer.0),
        Event::Deregistered { key } => write!(f, "event deregistered key={}", key.0),
        Event::Room { peer } => write!(f, "event room peer={}", peer.0),
        Event::ConnectFailed(ConnectFailure { address, reason, .. }) => {
            write!(f, "event connect_failed address={address} reason={reason:?}")
        }
        Event::Disconnected { peer } => write!(f, "event disconnected peer={}", peer.0),
        Event::CutOff { peer, exited: false } => write!(f, "event cut_off peer={}", peer.0),
        Event::CutOff { peer, exited: true } => write!(f, "event cut_off peer={} exited", peer.0),
    }
}
