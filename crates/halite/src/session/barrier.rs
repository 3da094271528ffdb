//! Barriers: sessions that wait for each other.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use halite_tier::effect::{Command, CommandError, Outcome};
use halite_tier::message::ErrorReply;
use halite_tier::names::Service;
use halite_tier::permissions::Permissions;

use crate::error::{BarrierCause, BarrierError, RegionCause};
use crate::runtime::locks::{lock, ranked};
use crate::session::attached::wire::Request;
use crate::session::lock::Master;
use crate::session::{CommandFuture, Embedded, Lh, Session, Who, check_name, embedded};

ranked! {
    BTreeMap<Box<str>, Lh> => SessionBarriers;
}

/// Handles of the regions of the barriers that a session has used.
pub(crate) type Barriers = Mutex<BTreeMap<Box<str>, Lh>>;

/// Barriers. A barrier is created by its first participant and may be used any number of times. Participants are sessions
/// of any principal, unless [`Session::create_barrier`] creates it first.
impl Session {
    /// Waits until `participants` sessions wait at the barrier `name`. Returns how many times the barrier has been
    /// passed so far, including this time.
    ///
    /// All participants must give the same number. When the first waiter's `timeout` expires, all current waiters fail.
    /// The barrier stops counting a participant that dies or drops this future.
    pub async fn barrier(
        &self,
        name: &str,
        participants: u32,
        timeout: Duration,
    ) -> Result<u64, BarrierError> {
        let failed = |cause| BarrierError { name: name.to_owned(), cause };
        let session = embedded!(self, client => {
            let request = Request::Barrier { name, participants, timeout };
            client.ask(&request, |gone| failed(gone.into())).await
        });
        check_name(name).map_err(|cause| failed(cause.into()))?;
        if participants == 0 {
            return Err(failed(BarrierCause::NoParticipants));
        }
        let timeout_ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        loop {
            let lh = session.barrier_handle(name).await.map_err(failed)?;
            let arrive = Command::Arrive { slot: lh.slot, participants, timeout_ns };
            match CommandFuture::new(&session.inner, arrive).await {
                Ok(Outcome::Passed { round }) => return Ok(round),
                Ok(_) => unreachable!("the command returns a round"),
                // The barrier was freed, or its home restarted, since it was opened.
                Err(CommandError::Stale | CommandError::Refused(ErrorReply::NotFound)) => {
                    session.forget_barrier(name, lh)
                }
                Err(error) => {
                    if let CommandError::Refused(ErrorReply::PeerDown(_) | ErrorReply::NotMet(_)) = error {
                        session.forget_barrier(name, lh);
                    }
                    return Err(failed(error.into()));
                }
            }
        }
    }

    /// Creates a barrier that `everyone` may enter only if the permissions contain [`Permissions::ATOMIC`]. A barrier that
    /// [`Session::barrier`] creates lets every principal enter.
    pub async fn create_barrier(&self, name: &str, everyone: Permissions) -> Result<(), BarrierError> {
        let failed = |cause| BarrierError { name: name.to_owned(), cause };
        let session = embedded!(self, client => {
            client.ask(&Request::CreateBarrier { name, everyone }, |gone| failed(gone.into())).await
        });
        check_name(name).map_err(|cause| failed(cause.into()))?;
        let made = session.anchor(Service::Barrier, name, everyone).await;
        session.remember_barrier(name, made.map_err(|cause| failed(cause.into()))?);
        Ok(())
    }

    /// Lets `who` enter a barrier, if `permissions` contains [`Permissions::ATOMIC`]. Needs [`Permissions::MASTER`],
    /// which the creator of the barrier has.
    pub async fn grant_barrier(
        &self,
        name: &str,
        who: Who,
        permissions: Permissions,
    ) -> Result<(), BarrierError> {
        let failed = |cause| BarrierError { name: name.to_owned(), cause };
        let session = embedded!(self, client => {
            let request = Request::GrantBarrier { name, who, permissions };
            client.ask(&request, |gone| failed(gone.into())).await
        });
        let master = session.barrier_master(name).await.map_err(failed)?;
        self.grant(master.lh, who, permissions).await.map_err(|error| failed(error.cause.into()))
    }

    /// Revokes permissions for a barrier. Needs [`Permissions::MASTER`].
    pub async fn revoke_barrier(
        &self,
        name: &str,
        who: Who,
        permissions: Permissions,
    ) -> Result<(), BarrierError> {
        let failed = |cause| BarrierError { name: name.to_owned(), cause };
        let session = embedded!(self, client => {
            let request = Request::RevokeBarrier { name, who, permissions };
            client.ask(&request, |gone| failed(gone.into())).await
        });
        let master = session.barrier_master(name).await.map_err(failed)?;
        self.revoke(master.lh, who, permissions).await.map_err(|error| failed(error.cause.into()))
    }

    /// Frees a barrier's memory (64 bytes) and its name; the next participant creates a new barrier. Needs
    /// [`Permissions::MASTER`], which the first participant has.
    pub async fn free_barrier(&self, name: &str) -> Result<(), BarrierError> {
        let failed = |cause| BarrierError { name: name.to_owned(), cause };
        let session = embedded!(self, client => {
            client.ask(&Request::FreeBarrier(name), |gone| failed(gone.into())).await
        });
        let master = session.barrier_master(name).await.map_err(failed)?;
        let freed = self.free(master.lh).await;
        let known = lock(&session.inner.barriers).remove(name);
        if let Some(lh) = known {
            session.forget(lh);
        }
        freed.map_err(|error| failed(error.cause.into()))
    }
}

impl Embedded {
    async fn barrier_handle(&self, name: &str) -> Result<Lh, BarrierCause> {
        if self.inner.driver.is_forked() {
            return Err(BarrierCause::Region(RegionCause::Forked));
        }
        let known = lock(&self.inner.barriers).get(name).copied();
        if let Some(lh) = known {
            return Ok(lh);
        }
        let lh = self.open(Service::Barrier, name, Permissions::ATOMIC).await?;
        self.remember_barrier(name, lh);
        Ok(lh)
    }

    fn remember_barrier(&self, name: &str, lh: Lh) {
        let other = lock(&self.inner.barriers).insert(name.into(), lh);
        // Another thread of this session may have opened it first; both handles are valid, and one is enough.
        if let Some(other) = other {
            self.forget(other);
        }
    }

    async fn barrier_master(&self, name: &str) -> Result<Master, BarrierCause> {
        check_name(name)?;
        Ok(self.open_master(Service::Barrier, name).await?)
    }

    fn forget_barrier(&self, name: &str, lh: Lh) {
        let mut barriers = lock(&self.inner.barriers);
        if barriers.get(name) == Some(&lh) {
            barriers.remove(name);
            drop(barriers);
            self.forget(lh);
        }
    }
}
