//! Encrypted control messages between hosts that know the cluster's secret.
//!
//! This module uses no sockets: the caller moves its bytes to and from a stream. The module encrypts control messages,
//! because they contain the numbers with which an attacker could forge packets: queue pair numbers, packet numbers and
//! salts of keys. Packets themselves are not encrypted.

mod channel;
mod secret;

pub use channel::{BadChannel, Channel, FIRST_BYTES_MAX, MESSAGE_BYTES_MAX};
pub use secret::{Secret, SecretError, Secrets};
