//! Remote procedure calls and messages between nodes: the parts that need neither threads nor memory.
//!
//! A call is two writes with immediate (LITE, section 5.1):
//!
//! ```text
//!   caller's node                                              server's node
//!     reserve in ring ── request, imm: where in the ring ──>   read it out, free its place in the ring
//!     reply slot      <── reply, imm: slot and generation ──   the handler has answered
//!     head            <── plain write, now and then ───────    how far the ring has been read
//! ```
//!
//! The ring lies at the server, one for each client node; the client owns its tail ([`RingWriter`]), the server its
//! head ([`RingReader`]).  The reply goes into a slot that the caller's node owns ([`ReplySlots`]): a slot whose caller
//! has lost interest stays reserved until the reply has come after all, or the server has acknowledged that it
//! will never come ([`Served`]), or the server can touch nothing here any more.

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

/// Longest input of a call, reply, or message, in bytes.
pub const PAYLOAD_BYTES_MAX: u64 = 1 << 30;

/// Smallest ring, in bytes.
pub const RING_BYTES_MIN: u64 = 4 << 10;
/// Largest ring, in bytes: any offset in it fits into an immediate.
pub const RING_BYTES_MAX: u64 = 1 << 30;

/// A peer said what no peer that follows the protocol says.  Drop the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the peer violates the protocol of calls: {0}")]
pub struct Violation(pub &'static str);
