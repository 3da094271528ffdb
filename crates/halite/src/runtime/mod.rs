//! The runtime: time, waiting and work aside, on which everything else of a node stands.
//!
//! [`wait`] has wakers and how long a thread spins; [`event`] what tasks wait for; [`poll_token`], whose turn it is to poll; [`crowd`],
//! whether others want the processor; [`env`], time and chance; [`jobs`] what takes long, outside of all locks; [`outbox`] messages
//! that a fabric has no room for; [`locks`] the order of this crate's locks.
//! Nothing else of this crate is called here.  Locks are held for a few instructions, and no other is taken under one.

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

/// A directory that nobody else may enter, and that goes away with the test.
#[cfg(test)]
pub(crate) fn scratch() -> tempfile::TempDir {
    use std::os::unix::fs::PermissionsExt;
    let private = std::fs::Permissions::from_mode(0o700);
    tempfile::Builder::new().prefix("halite-").permissions(private).tempdir().expect("it can be made")
}
