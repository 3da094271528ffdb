//! The runtime: time, waiting and work aside, on which everything else of a node stands.
//!
//! [`wait`] has events, wakers and how long a thread spins; [`changes`] the events of handles; [`poll_token`], whose turn it is to
//! poll; [`env`], time and chance; [`jobs`] what takes long, outside of all locks; [`outbox`] messages that a fabric has no room for.
//! Nothing else of this crate is called here.  Locks are held for a few instructions, and no other is taken under one.

pub(crate) mod changes;
pub(crate) mod env;
pub(crate) mod headroom;
pub(crate) mod jobs;
pub(crate) mod lanes;
pub(crate) mod outbox;
pub(crate) mod poll_token;
pub(crate) mod wait;
