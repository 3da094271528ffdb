//! The notifications of one region: the start of each, the watches that must receive it, and whether any watch has
//! received it.

use std::collections::{BTreeMap, BTreeSet};

/// A session in one incarnation of its node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Writer {
    pub(super) node: u32,
    pub(super) life: u32,
    pub(super) session: u32,
}

/// Number of a notification; the numbers of one writer rise.
pub(super) type Number = u64;
pub(super) type WatchId = u64;

/// Origin of a notification.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Origin {
    pub(super) writer: Writer,
    pub(super) slot: usize,
    pub(super) begin_ns: u64,
}

#[derive(Debug)]
struct NotificationState {
    origin: Origin,
    /// Time at which the writer learnt that all watchers were notified.
    end_ns: Option<u64>,
    /// True if the writer got the result that no watcher was notified.
    is_reported_undelivered: bool,
    /// True if any watcher has received the notification.
    is_received: bool,
    /// The watches that existed when the notification began.
    targets: BTreeSet<WatchId>,
}

#[derive(Debug)]
pub(super) struct Watcher {
    /// Node of the watcher and its incarnation.
    pub(super) at: (u32, u32),
    /// Index of the watcher's principal.
    pub(super) principal: usize,
    /// Time at which the watcher requested the watch.
    pub(super) begin_ns: u64,
    /// True if the handle is being unmapped, so that no further notification is due.
    is_ending: bool,
    /// The last notification of each writer.
    last: BTreeMap<Writer, Number>,
    /// Notifications that are certainly in the watcher's queue.
    queued: BTreeMap<Number, Queued>,
}

/// A notification that is certainly in a watcher's queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Queued {
    writer: Writer,
    pub(super) since_ns: u64,
}

impl Watcher {
    pub(super) fn new(at: (u32, u32), principal: usize, begin_ns: u64) -> Watcher {
        Watcher { at, principal, begin_ns, is_ending: false, last: BTreeMap::new(), queued: BTreeMap::new() }
    }
}

/// The notifications of one region, and the watches that must receive them.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    notifications: BTreeMap<Number, NotificationState>,
    watchers: BTreeMap<WatchId, Watcher>,
    last_watch: WatchId,
}

impl Ledger {
    /// Records the start of a write with notification.
    pub(super) fn begin(&mut self, number: Number, origin: Origin) {
        let targets = self.watchers.keys().copied().collect();
        let notification = NotificationState {
            origin,
            end_ns: None,
            is_reported_undelivered: false,
            is_received: false,
            targets,
        };
        self.notifications.insert(number, notification);
    }

    /// Records that the notification is in the queues of all watches that existed at its start and for which
    /// `must_receive` returns true.
    pub(super) fn end(&mut self, number: Number, now_ns: u64, must_receive: impl Fn(&Watcher) -> bool) {
        let notification = self.notifications.get_mut(&number).expect("the operation began");
        notification.end_ns = Some(now_ns);
        let queued = Queued { writer: notification.origin.writer, since_ns: now_ns };
        for id in std::mem::take(&mut notification.targets) {
            let Some(watcher) = self.watchers.get_mut(&id).filter(|watcher| must_receive(watcher)) else {
                continue;
            };
            // The watcher may have received it before its writer learnt that.
            let is_new = watcher.last.get(&queued.writer).is_none_or(|last| *last < number);
            if is_new && !watcher.is_ending {
                watcher.queued.insert(number, queued);
            }
        }
    }

    /// Records that the writer got the result that no watcher was notified.
    pub(super) fn record_undelivered(&mut self, number: Number) -> Result<(), String> {
        let notification = self.notifications.get_mut(&number).expect("the operation began");
        notification.is_reported_undelivered = true;
        if notification.is_received { Err("a watcher has received it".to_owned()) } else { Ok(()) }
    }

    /// Records the start of a watch; returns its number.
    pub(super) fn add_watch(&mut self, watcher: Watcher) -> WatchId {
        self.last_watch += 1;
        self.watchers.insert(self.last_watch, watcher);
        self.last_watch
    }

    /// Records that the handle of a watch begins to be unmapped.
    pub(super) fn begin_unmap(&mut self, id: WatchId) {
        self.watchers.get_mut(&id).expect("the watcher is registered").is_ending = true;
    }

    /// Records the end of a watch, which drops its queue.
    pub(super) fn remove_watch(&mut self, id: WatchId) {
        self.watchers.remove(&id);
    }

    /// Records that a watcher receives a notification; returns its origin.
    pub(super) fn record_arrival(
        &mut self,
        id: WatchId,
        number: Number,
        writer_node: u32,
    ) -> Result<Origin, String> {
        let watcher = self.watchers.get_mut(&id).expect("the watcher is registered");
        let Some(notification) = self
            .notifications
            .get_mut(&number)
            .filter(|notification| notification.origin.writer.node == writer_node)
        else {
            return Err("no session of that node wrote that".to_owned());
        };
        notification.is_received = true;
        if notification.is_reported_undelivered {
            return Err("the writer got the result that no watcher was notified".to_owned());
        }
        if let Some(end_ns) = notification.end_ns.filter(|end_ns| *end_ns < watcher.begin_ns) {
            return Err(format!("the write ended at {end_ns} ns, before the watch began"));
        }
        let last = watcher.last.insert(notification.origin.writer, number).unwrap_or(0);
        if last >= number {
            return Err(format!("the notification arrived after notification {last} of the same writer"));
        }
        watcher.queued.remove(&number);
        let mut before =
            watcher.queued.range(..number).filter(|(_, queued)| queued.writer == notification.origin.writer);
        match before.next() {
            Some((lost, _)) => {
                Err(format!("notification {lost} of the same writer was queued earlier, but never arrived"))
            }
            None => Ok(notification.origin),
        }
    }

    /// Returns the notification that has certainly been in a watcher's queue for the longest time.
    pub(super) fn queued(&self, id: WatchId) -> Option<(Number, Queued)> {
        let queued = &self.watchers.get(&id).expect("the watcher is registered").queued;
        let queued = queued.iter().map(|(number, queued)| (*number, *queued));
        queued.min_by_key(|(number, queued)| (queued.since_ns, *number))
    }
}
