//! Encrypted control messages between hosts that know the cluster's secret.
//!
//! This module knows no socket: it takes bytes from a stream and gives bytes to it. It protects control messages,
//! including everything that identifies packets (queue pairs, packet numbers, salts of keys); packets themselves are
//! not encrypted.

mod channel;
mod secret;

pub use channel::{BadChannel, Channel, FIRST_BYTES_MAX, MESSAGE_BYTES_MAX};
pub use secret::{Secret, SecretError, Secrets};
