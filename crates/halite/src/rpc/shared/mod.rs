//! The code that client and server share: the link to a peer, its memory, and posting.
//!
//! This module does not know how calls are made or answered.

mod inbound;
mod lines;
mod link;
mod memory;
mod outbound;
mod parameters;
mod poster;
mod writes;

pub(crate) use self::inbound::{Caller, Inbound};
pub(super) use self::lines::{LINE_HEAD_OFFSET, Row, RowRef};
pub(crate) use self::link::{DropCount, Link, LinkMemory};
pub(super) use self::memory::Block;
pub(crate) use self::outbound::Outbound;
pub(super) use self::outbound::{Introduced, OutboundLines};
pub(super) use self::parameters::PeerParameters;
pub(crate) use self::poster::CALL_WORK;
pub(super) use self::poster::{Attempt, PART_BYTES_MAX, Poster, offset_by};
pub(crate) use self::writes::BATCH_MAX;
pub(super) use self::writes::Writes;
