//! Remote procedure calls and messages between nodes: formats and state machines, which start no threads and own no
//! memory.
//!
//! A call consists of two writes with immediate (LITE, section 5.1):
//!
//! ```text
//!     reserve in ring ── request, imm: ring offset ────────>   copy it out, free its place in the ring
//!     reply slot      <── reply, imm: slot and generation ──   the handler has answered
//!     head            <── plain write, occasionally ───────    how far the ring has been read
//! ```
//!
//! Each server has one ring per client node. The client owns the ring's tail ([`RingWriter`]), the server the ring's
//! head ([`RingReader`]). The reply goes into a slot of the caller's node ([`ReplySlots`]). If the caller gives up, its
//! slot stays reserved until the late reply arrives, the server acknowledges that it will not write any more
//! ([`Served`]), or the server is cut off.

pub mod atomic;
pub mod line;
pub mod ring;
pub mod served;
pub mod slots;
pub mod wire;

pub use atomic::{AtomicAnswer, AtomicCall};
pub use line::{LineReader, LineWriter, ReplyLine, RequestLine};
pub use ring::{RingFull, RingReader, RingWriter};
pub use served::{Cancelling, Served, ServedId};
pub use slots::{Abandoned, Arrival, CutOffYet, ReplySlots, ReplyState, SlotId, Target};
pub use wire::{CallControl, Imm, Input, Kind, ReplyHeader, RequestHeader, Status, WireError};

/// Maximum length of an input, output or message, in bytes.
pub const PAYLOAD_BYTES_MAX: u64 = 1 << 30;

/// Minimum length of a ring, in bytes.
pub const RING_BYTES_MIN: u64 = 4 << 10;
/// Maximum length of a ring, in bytes: every offset in such a ring fits into an immediate.
pub const RING_BYTES_MAX: u64 = 1 << 30;

/// A violation of the protocol by a peer. The receiver must drop the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the peer violates the protocol of calls: {0}")]
pub struct Violation(pub &'static str);
