//! Calls and messages as applications see them; each public type holds its session.
//!
//! ```text
//!   Session::call ──> OutgoingCall ──> driver::requests ──> rpc ──> ring, or line, at the server
//!   Session::sender ──> Sender ──> driver::requests, up to 64 in progress
//!   Session::serve ──> Server ──> Receiver ──> queue of the service, which rpc fills
//! ```
//!
//! These types wait through the driver, and take no lock of their own.

mod answer;
mod call;
mod named;
mod pending;
mod port;
mod remote;
mod sender;
pub(crate) mod served;
mod server;

pub use self::answer::Answer;
pub(crate) use self::call::OutgoingCall;
pub(crate) use self::named::Services;
pub use self::pending::PendingCall;
pub use self::port::{Mailbox, Message, Port};
pub(crate) use self::remote::RemoteCall;
pub use self::sender::Sender;
pub use self::server::{Call, Function, Server};
