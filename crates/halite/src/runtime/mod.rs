//! The runtime: time, waiting and background work, on which everything else in a node is built.
//!
//! [`wait`] has wakers and adaptive spinning; [`event`] has the events for which tasks wait; [`poll_token`] decides
//! which thread polls; [`contention`] detects contended cores; [`mod@env`] has time and randomness; [`jobs`] has long
//! work outside of all locks; [`outbox`] has messages for which a fabric has no room; [`locks`] has the order of this
//! crate's locks. This folder calls nothing else of this crate. A thread holds a lock of this folder for a few
//! instructions, and takes no other lock meanwhile.

pub(crate) mod contention;
pub(crate) mod env;
pub(crate) mod event;
pub(crate) mod headroom;
pub(crate) mod jobs;
pub(crate) mod lanes;
pub(crate) mod locks;
pub(crate) mod outbox;
pub(crate) mod poll_token;
pub(crate) mod wait;

/// Creates a private directory, which is removed at the end of the test.
#[cfg(test)]
pub(crate) fn scratch() -> tempfile::TempDir {
    use std::os::unix::fs::PermissionsExt;
    let private = std::fs::Permissions::from_mode(0o700);
    tempfile::Builder::new()
        .prefix("halite-")
        .permissions(private)
        .tempdir()
        .expect("the directory can be created")
}
