//! The runtime: time, waiting and background work, the base of everything else in a node.
//!
//! [`wait`] has wakers and adaptive spinning; [`event`] the events that tasks wait for; [`poll_token`] the turns at
//! polling; [`crowd`] core contention; [`mod@env`] time and randomness; [`jobs`] long work outside of all locks; [`outbox`]
//! messages for which a fabric has no room; [`locks`] the order of this crate's locks. It calls nothing else of this
//! crate. Its locks are held for a few instructions, and no other lock is taken under one.

pub(crate) mod crowd;
pub(crate) mod env;
pub(crate) mod event;
pub(crate) mod headroom;
pub(crate) mod jobs;
pub(crate) mod lanes;
pub(crate) mod locks;
pub(crate) mod outbox;
pub(crate) mod poll_token;
pub(crate) mod wait;

/// A private directory that is removed with the test.
#[cfg(test)]
pub(crate) fn scratch() -> tempfile::TempDir {
    use std::os::unix::fs::PermissionsExt;
    let private = std::fs::Permissions::from_mode(0o700);
    tempfile::Builder::new().prefix("halite-").permissions(private).tempdir().expect("it can be made")
}
