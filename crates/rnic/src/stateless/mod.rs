//! A responder that keeps no state per requester, after StaR (ICNP 2021).
//!
//! ```text
//!   requester                                        responder
//!     GD: address, length, tag ───────────────────────► key from the packet, tag, memory
//!     ◄──────────────────── GDA: bytes, clock ──┘            nothing is kept
//!     RD: address, bytes, number, stamp, tag ─────────► key, tag, stamp younger than T, record
//!     ◄──────────────────── RDA: outcome, clock ─┘           effect and answer are recorded
//! ```
//!
//! Each packet carries the state that a connection would hold. A [`Responder`] has one secret per epoch, a record of
//! effects (`record.rs`), a pool of messages (`inbox.rs`, `inputs.rs`), and a pool of orders (`orders.rs`). Its memory
//! depends on the effects of the last 165 ms (slightly more than 3 T, [`EFFECT_LIFE_NS`]), and on its messages and orders
//! in progress, never on the number of requesters. An *epoch* is the time between two changes of the secret;
//! an *order* is a transfer that the responder starts. A requester keeps the state of both ends: numbers, stamps and
//! retransmissions.
//!
//! **Rights.** The responder's process sends each requester a [`Grant`] over a separate secure channel. The grant
//! permits access to the memory of one key, and messages. It contains a secret key for tags, derived from the
//! responder's secret, the requester's address and the rights. The responder derives this key again from each packet.
//! So a packet with other rights, from another address or with changed bytes has a wrong tag, and has no effect.
//!
//! **Each write, atomic and message takes effect at most once, and never late.** It carries a number and a stamp of the
//! responder's clock; retransmissions keep both. If the record has the number, the responder only repeats the answer. If
//! the stamp is older than T, the request has no effect, because the record may soon forget the number. [`ServerClock`]
//! extrapolates the responder's clock from its last answer.
//!
//! Requests of one requester are executed one after the other, unless its process permits that they overlap. The packets
//! of one request may be executed in any order.

mod clock;
mod cut_off;
mod inbox;
mod inputs;
mod lane;
mod orders;
mod record;
mod requester;
mod responder;
mod tag;
mod window;
mod wire;
mod work;

pub use clock::ServerClock;
pub use cut_off::CutOffFull;
pub use inbox::{AnswerError, Message};
pub use lane::{LANE_SEND_BYTES_MAX, Lane, PACKET_BYTES_MAX, PART_BYTES_MAX};
pub use orders::{Order, OrderDone, OrderKind, OrderOutcome, OrdersFull, Target};
pub use requester::Requester;
pub use responder::{Answer, Counters, EFFECT_LIFE_NS, Responder};
pub use tag::{Grant, Rights};
pub use window::WINDOW_PACKETS;
pub use wire::{
    Ack, CALL_BYTES_MAX, NOTE_BYTES, NOTED_BYTES_MAX, OVERHEAD_BYTES, PAYLOAD_BYTES_FIRST, PAYLOAD_BYTES_MAX,
    Receiver, SEND_BYTES_MAX, receiver_of,
};
pub use work::{Done, Outcome, PostError, Work};
