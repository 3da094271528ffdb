//! Watchers: each watches a region for a while, receives notifications, and checks that it can read the written bytes.
//!
//! Notifications that are certainly in the watcher's queue must arrive, in the order of each writer, and wake the
//! waiting session. No other notification may arrive. The write that caused each notification must be readable. A
//! watch ends when its region or its handle ends or the read permission is revoked, after all queued notifications have
//! been received.

use std::rc::Rc;
use std::time::Duration;

use halite::{Driven, Lh, Notification, Permissions, RegionCause, RegionError, Watch};

use super::ledger::{self, WatchId};
use super::lives::{Life, SLOT_WORDS, SLOTS, WORD};
use super::{EVERYONE, NAMES, is_access_refusal, is_refusal, map, with_life};
use crate::actor::{Actor, pick, principal_of};
use crate::futures::before;
use crate::harness::{Harness, PRINCIPALS};

/// Number of watchers per node.
const WATCHERS: u32 = 2;
/// Number of nodes with watchers; more of them would dominate in a large cluster.
const WATCHING_NODES: u32 = 5;
/// Maximum number of notifications per watch.
const RECEIVED_MAX: u64 = 60;
/// Maximum time that a watcher waits before it checks whether it should have been woken, in microseconds.
const PATIENCE_US_MAX: u64 = 300;
/// Maximum time from the arrival of a notification until its waiting watcher runs, without faults.
const WAKE_NS_MAX: u64 = 50_000;
/// Maximum pause of a slow watcher in microseconds: queues fill meanwhile, and writers wait.
const SLOW_US_MAX: u64 = 2_000;
/// Maximum pause between two watches, in microseconds.
const PAUSE_US_MAX: u64 = 40;

/// Starts the watchers of a node that has just joined.
pub(crate) fn serve(harness: &Rc<Harness>, node: u32, driven: &Driven) {
    if harness.plan.work.watches == 0 || node >= WATCHING_NODES {
        return;
    }
    for number in 0..WATCHERS {
        let actor = Actor::new(harness, node, harness.plan.sessions + number, driven);
        let name = format!("watcher {number} of node {node}");
        harness.world.spawn(Some(actor.host), name, run(actor));
    }
}

async fn run(mut actor: Actor) {
    let harness = actor.harness.clone();
    harness.wait_for_start().await;
    while harness.sessions_continue() {
        let pause = Duration::from_nanos(actor.random.between(1, PAUSE_US_MAX * 1000));
        harness.world.sleep(Some(actor.host), pause).await;
        let name = actor.random.index(NAMES);
        let permissions = if actor.random.chance(1, 12) { Permissions::WRITE } else { EVERYONE };
        match map(&mut actor, name, permissions).await {
            Some(Ok(mapping)) if watch(&mut actor, mapping.lh, mapping.life, permissions).await => {}
            Some(Ok(_) | Err(RegionCause::NodeClosed(_))) => return,
            Some(Err(_)) | None => {}
        }
    }
}

/// Watches a region for a while. Returns true if the node still works.
async fn watch(actor: &mut Actor, lh: Lh, life: usize, permissions: Permissions) -> bool {
    let (session, begin_ns) = (actor.session.clone(), actor.now_ns());
    let result = actor.attempt("watch", session.watch(lh)).await;
    let cause = match result {
        Some(Ok(watch)) => {
            let is_permitted = permissions.contains(Permissions::READ);
            actor.expect(is_permitted, begin_ns, "the session watches a region without read permission");
            Listener::new(actor, watch, lh, life, begin_ns).listen().await
        }
        Some(Err(error)) => {
            let lacks = !permissions.contains(Permissions::READ)
                && matches!(error.cause, RegionCause::PermissionDenied { .. });
            let is_explained = lacks || is_refusal(actor, life, Permissions::READ, begin_ns, &error.cause);
            actor.expect_reason(is_explained, begin_ns, &error);
            Some(error.cause)
        }
        None => None,
    };
    if cause.is_none() {
        // The region may have ended meanwhile.
        let _ = actor.attempt("unmap after watching", session.unmap(lh)).await;
    }
    !matches!(cause, Some(RegionCause::NodeClosed(_)))
}

/// An entry in the ledger; removed when dropped.
struct Registration {
    harness: Rc<Harness>,
    life: usize,
    id: WatchId,
}

impl Drop for Registration {
    fn drop(&mut self) {
        with_life(&self.harness, self.life, |life| life.ledger.remove_watch(self.id));
    }
}

struct Listener<'a> {
    actor: &'a mut Actor,
    // Declared before the watch, so that the ledger's entry is removed first.
    registration: Registration,
    watch: Watch,
    lh: Lh,
    /// True if the handle has been unmapped.
    is_unmapped: bool,
}

impl Listener<'_> {
    fn new(actor: &mut Actor, watch: Watch, lh: Lh, life: usize, begin_ns: u64) -> Listener<'_> {
        let watcher = ledger::Watcher::new((actor.node, actor.incarnation), actor.principal, begin_ns);
        let id = with_life(&actor.harness, life, |life| life.ledger.add_watch(watcher));
        let registration = Registration { harness: actor.harness.clone(), life, id };
        actor.trace(format_args!("is watch {id} of life {life}"));
        Listener { actor, registration, watch, lh, is_unmapped: false }
    }

    /// Receives notifications for a while. Returns the cause if the watch ends meanwhile.
    async fn listen(mut self) -> Option<RegionCause> {
        let mut remaining = self.actor.random.between(1, RECEIVED_MAX);
        // After the end of all writers, waits until the region is freed, to check that everything has arrived.
        while remaining > 0 || !self.actor.harness.sessions_continue() || self.is_unmapped {
            remaining = remaining.saturating_sub(1);
            if let Err(cause) = self.receive().await {
                return Some(cause);
            }
            self.pause_sometimes().await;
            if remaining == 0 && !self.is_unmapped && self.actor.random.chance(1, 3) {
                self.unmap().await;
            }
        }
        None
    }

    async fn pause_sometimes(&mut self) {
        let Actor { harness, random, host, .. } = &mut *self.actor;
        let pause_us_max = [0, 20, SLOW_US_MAX][pick(random, &[40, 8, 1])];
        if pause_us_max > 0 && harness.sessions_continue() {
            let pause = Duration::from_nanos(random.below(pause_us_max * 1000));
            harness.world.sleep(Some(*host), pause).await;
        }
    }

    /// Unmaps the handle, which must end the watch after all queued notifications.
    async fn unmap(&mut self) {
        self.is_unmapped = true;
        self.with_life(|life| life.ledger.begin_unmap(self.registration.id));
        let session = self.actor.session.clone();
        let _ = self.actor.attempt("unmap while notified", session.unmap(self.lh)).await;
    }

    /// Waits for a notification, or polls for one.
    async fn receive(&mut self) -> Result<(), RegionCause> {
        let begin_ns = self.actor.now_ns();
        let received = if self.actor.random.chance(1, 4) {
            self.watch.try_recv()
        } else {
            let patience = Duration::from_nanos(self.actor.random.between(1, PATIENCE_US_MAX * 1000));
            let timeout = self.actor.harness.world.sleep(Some(self.actor.host), patience);
            let next = async { before(timeout, self.watch.recv()).await.transpose() };
            let received = self.actor.attempt("receive a notification", next).await;
            self.check_awake(begin_ns);
            match received {
                Some(Ok(None)) => return Ok(()),
                Some(received) => received,
                // A cancelled wait loses no notification.
                None => return Ok(()),
            }
        };
        match received {
            Ok(Some(notification)) => {
                self.check_notification(&notification).await;
                Ok(())
            }
            Ok(None) => {
                self.check_queue_is_empty(begin_ns);
                Ok(())
            }
            Err(error) => Err(self.check_end(begin_ns, error)),
        }
    }

    /// Checks a notification and the bytes that it announces.
    async fn check_notification(&mut self, received: &Notification) {
        let begin_ns = self.actor.now_ns();
        match self.slot_of(received) {
            Ok(slot) if !self.is_unmapped => self.read(slot, received.value).await,
            Ok(_) => {}
            Err(reason) => self.report_violation(begin_ns, &format!("received {received:?}: {reason}")),
        }
    }

    /// Returns the slot that was written; fails if the notification is invalid.
    fn slot_of(&self, received: &Notification) -> Result<usize, String> {
        let Actor { harness, principal, .. } = &*self.actor;
        let now_ns = self.actor.now_ns();
        with_life(harness, self.registration.life, |life| {
            let origin = life.ledger.record_arrival(self.registration.id, received.value, received.node.0)?;
            let from = principal_of(origin.writer.node, origin.writer.session);
            let is_right = (received.offset, received.len, received.from.as_str())
                == (SLOTS[origin.slot], SLOT_WORDS as u64 * WORD, PRINCIPALS[from]);
            let is_permitted = harness.was_any_node_isolated()
                || life.permissions.may_have(*principal, Permissions::READ, origin.begin_ns);
            if !harness.was_isolated(received.node.0) {
                life.record_received(received.value, origin, now_ns);
            }
            match () {
                () if !is_right => {
                    Err("the offset, length or sender of the notification is wrong".to_owned())
                }
                () if !is_permitted => Err("the watcher has no read permission".to_owned()),
                () => Ok(origin.slot),
            }
        })
    }

    async fn read(&mut self, slot: usize, number: u64) {
        let (session, begin_ns) = (self.actor.session.clone(), self.actor.now_ns());
        let mut bytes = [0; SLOT_WORDS * WORD as usize];
        self.with_life(|life| life.begin_read(begin_ns));
        let result =
            self.actor.attempt("read notified", session.read(self.lh, SLOTS[slot], &mut bytes)).await;
        let is_cut_off = self.actor.harness.was_isolated(self.actor.node);
        let unexplained = self.with_life(|life| {
            life.end_read(begin_ns);
            let is_read = matches!(result, Some(Ok(())));
            is_read.then(|| life.find_unexplained(slot, &bytes, begin_ns, is_cut_off)).flatten()
        });
        if let Some(unexplained) = unexplained {
            self.report_violation(
                begin_ns,
                &format!("after notification {number:#x}, the watcher read {unexplained}"),
            );
        }
        if let Some(Err(error)) = result {
            let (actor, life) = (&*self.actor, self.registration.life);
            let is_explained = is_access_refusal(actor, life, Permissions::READ, begin_ns, &error.cause);
            actor.expect_reason(is_explained, begin_ns, &error);
        }
    }

    // Checks.

    /// Checks a session that has waited since `begin_ns`: no queued notification should have woken it long ago.
    fn check_awake(&self, begin_ns: u64) {
        let Actor { harness, principal, .. } = &*self.actor;
        let late_ns = self.actor.now_ns().saturating_sub(WAKE_NS_MAX);
        if begin_ns > late_ns || harness.was_any_node_isolated() {
            return;
        }
        let reason = self.with_life(|life| {
            let queued = life.ledger.queued(self.registration.id);
            match queued.filter(|(_, queued)| queued.since_ns < late_ns) {
                Some((number, queued)) => {
                    Some(format!("notification {number} was queued at {} ns", queued.since_ns))
                }
                None if life.freed_ns < late_ns => {
                    Some(format!("the region was freed at {} ns", life.freed_ns))
                }
                None if !life.permissions.may_have(*principal, Permissions::READ, late_ns) => {
                    Some("the watcher lost the read permission".to_owned())
                }
                None => None,
            }
        });
        if let Some(reason) = reason {
            self.report_violation(begin_ns, &format!("the waiting watcher was not woken, although {reason}"));
        }
    }

    /// Checks that the queue is empty.
    fn check_queue_is_empty(&self, begin_ns: u64) {
        if self.actor.harness.was_any_node_isolated() {
            return;
        }
        if let Some((number, queued)) = self.with_life(|life| life.ledger.queued(self.registration.id)) {
            self.report_violation(
                begin_ns,
                &format!("notification {number} was queued at {} ns, but never arrived", queued.since_ns),
            );
        }
    }

    /// Checks the end of a watch: there must be a reason, and the queue must be empty.
    fn check_end(&self, begin_ns: u64, error: RegionError) -> RegionCause {
        let is_stale = matches!(error.cause, RegionCause::Stale);
        let life = self.registration.life;
        let is_explained = (self.is_unmapped && is_stale)
            || is_refusal(self.actor, life, Permissions::READ, begin_ns, &error.cause);
        self.actor.expect_reason(is_explained, begin_ns, &error);
        // A node that leaves drops its queues.
        if !matches!(error.cause, RegionCause::NodeClosed(_)) {
            self.check_queue_is_empty(begin_ns);
        }
        error.cause
    }

    fn with_life<T>(&self, f: impl FnOnce(&mut Life) -> T) -> T {
        with_life(&self.actor.harness, self.registration.life, f)
    }

    fn report_violation(&self, begin_ns: u64, reason: &str) {
        let Registration { life, id, .. } = &self.registration;
        self.actor.expect(false, begin_ns, format_args!("watch {id} of life {life}: {reason}"));
    }
}
