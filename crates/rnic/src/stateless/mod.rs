//! A responder that keeps no state for its requesters, after StaR (ICNP 2021).
//!
//! ```text
//!   requester                                        responder
//!     GD: address, length, tag ───────────────────────► key from the packet, tag, memory
//!     ◄──────────────────── GDA: bytes, clock ──┘            nothing is kept
//!     RD: address, bytes, number, stamp, tag ─────────► key, tag, stamp younger than T, record
//!     ◄──────────────────── RDA: outcome, clock ─┘           the effect is recorded for T
//! ```
//!
//! Each packet carries what a connection would hold. The responder's memory depends on the effects of the last 50 ms
//! (T, [`EFFECT_LIFE_NS`]) and on its own orders that have not ended, never on the number of requesters: a [`Responder`]
//! has one secret per epoch, a record of effects, and a pool of orders (`orders.rs`). A requester keeps the state of both
//! ends: numbers, stamps and retransmissions.
//!
//! **Rights.** The responder's process hands a requester a [`Grant`] over a separate channel: the rights to a key of
//! memory, and a key for tags, derived from the secret, the requester's address and the rights. A responder derives
//! the same key from each packet, so a packet with other rights, from another address or with changed bytes has a wrong
//! tag and no effect.
//!
//! **Once, and never late.** A write carries a number and a stamp of the responder's clock; retransmissions keep both. A
//! number in the record is answered again without effect. A stamp older than T has no effect, since the record may have
//! forgotten the number. [`ServerClock`] extrapolates the responder's clock from its last answer.
//!
//! Requests of one requester are carried out one after the other; the packets of one request in any order.

mod clock;
mod orders;
mod requester;
mod responder;
mod tag;
mod wire;

pub use clock::ServerClock;
pub use orders::{Order, OrderDone, OrderKind, OrderOutcome, OrdersFull, Target};
pub use requester::{Done, Outcome, PostError, Requester, Work};
pub use responder::{Counters, EFFECT_LIFE_NS, Responder};
pub use tag::{Grant, Rights};
pub use wire::{OVERHEAD_BYTES, PAYLOAD_BYTES_MAX};
