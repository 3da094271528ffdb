//! Talking to other hosts about connections, encrypted, with those alone who know the cluster's secret.
//!
//! Nothing here knows a socket: bytes come from a stream, and go to one.  What is protected is what is said over it, which
//! includes all that packets are known by (queue pairs, packet numbers, salts of keys); packets themselves are not.

mod channel;
mod secret;

pub use channel::{BadChannel, Channel, FIRST_BYTES_MAX, MESSAGE_BYTES_MAX};
pub use secret::{Secret, SecretError, Secrets};
