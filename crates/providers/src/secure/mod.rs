//! Encrypted control messages between hosts that know the cluster's secret.
//!
//! This module uses no sockets: the caller moves its bytes to and from a stream. It encrypts control messages, which
//! contain all that an attacker would need to forge packets (queue pair numbers, packet numbers, salts of keys).
//! Packets themselves are not encrypted.

mod channel;
mod secret;

pub use channel::{BadChannel, Channel, FIRST_BYTES_MAX, MESSAGE_BYTES_MAX};
pub use secret::{Secret, SecretError, Secrets};
