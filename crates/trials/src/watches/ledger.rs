//! What is known of the notifications of one region: which were begun, who watched then, and who has heard of which.

use std::collections::{BTreeMap, BTreeSet};

/// A session in one life of its node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Writer {
    pub(super) node: u32,
    pub(super) life: u32,
    pub(super) session: u32,
}

/// The number of a notification; those of one writer rise.
pub(super) type Number = u64;
/// The number of a watch.
pub(super) type WatchId = u64;

/// What is written, by whom, and since when.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Said {
    pub(super) writer: Writer,
    pub(super) slot: usize,
    pub(super) begin_ns: u64,
}

#[derive(Debug)]
struct Notice {
    said: Said,
    /// When its writer was told that all have been told.
    end_ns: Option<u64>,
    /// Its writer was told that nobody was told.
    is_denied: bool,
    /// Somebody has heard of it.
    is_heard: bool,
    /// Who watched when it began.
    audience: BTreeSet<WatchId>,
}

/// One who watches.
#[derive(Debug)]
pub(super) struct Watcher {
    /// A node, and which life of it.
    pub(super) at: (u32, u32),
    /// An index of the principals.
    pub(super) principal: usize,
    /// When it began to ask.
    pub(super) begin_ns: u64,
    /// Its handle ends, and with it the watch: it need not be told of anything more.
    is_ending: bool,
    /// What it heard last of each writer.
    last: BTreeMap<Writer, Number>,
    /// What is in its queue for sure, and of which writer.
    owed: BTreeMap<Number, Owed>,
}

/// A notification that is in a queue for sure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Owed {
    writer: Writer,
    pub(super) since_ns: u64,
}

impl Watcher {
    pub(super) fn new(at: (u32, u32), principal: usize, begin_ns: u64) -> Watcher {
        Watcher { at, principal, begin_ns, is_ending: false, last: BTreeMap::new(), owed: BTreeMap::new() }
    }
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    notices: BTreeMap<Number, Notice>,
    watchers: BTreeMap<WatchId, Watcher>,
    last_watch: WatchId,
}

impl Ledger {
    /// Somebody begins to write.
    pub(super) fn begin(&mut self, number: Number, said: Said) {
        let audience = self.watchers.keys().copied().collect();
        let notice = Notice { said, end_ns: None, is_denied: false, is_heard: false, audience };
        self.notices.insert(number, notice);
    }

    /// It is in the queue of all who watched when it began, of whom `counts` says that they could be told.
    pub(super) fn end(&mut self, number: Number, now_ns: u64, counts: impl Fn(&Watcher) -> bool) {
        let notice = self.notices.get_mut(&number).expect("it began");
        notice.end_ns = Some(now_ns);
        let owed = Owed { writer: notice.said.writer, since_ns: now_ns };
        for id in std::mem::take(&mut notice.audience) {
            let Some(watcher) = self.watchers.get_mut(&id).filter(|watcher| counts(watcher)) else {
                continue;
            };
            // It may have been received before its writer has heard of that.
            let is_new = watcher.last.get(&owed.writer).is_none_or(|last| *last < number);
            if is_new && !watcher.is_ending {
                watcher.owed.insert(number, owed);
            }
        }
    }

    /// Its writer was told that nobody was told.
    pub(super) fn deny(&mut self, number: Number) -> Result<(), String> {
        let notice = self.notices.get_mut(&number).expect("it began");
        notice.is_denied = true;
        if notice.is_heard { Err("somebody has heard of it".to_owned()) } else { Ok(()) }
    }

    /// Somebody watches from now on.
    pub(super) fn watch(&mut self, watcher: Watcher) -> WatchId {
        self.last_watch += 1;
        self.watchers.insert(self.last_watch, watcher);
        self.last_watch
    }

    /// Its handle begins to be unmapped.
    pub(super) fn end_handle(&mut self, id: WatchId) {
        self.watchers.get_mut(&id).expect("it watches").is_ending = true;
    }

    /// Somebody watches no more, and whatever is in its queue is gone.
    pub(super) fn unwatch(&mut self, id: WatchId) {
        self.watchers.remove(&id);
    }

    /// A watcher hears of something; of what.
    pub(super) fn came(&mut self, id: WatchId, number: Number, writer_node: u32) -> Result<Said, String> {
        let watcher = self.watchers.get_mut(&id).expect("it watches");
        let Some(notice) = self.notices.get_mut(&number).filter(|it| it.said.writer.node == writer_node)
        else {
            return Err("nobody there wrote that".to_owned());
        };
        notice.is_heard = true;
        if notice.is_denied {
            return Err("its writer had been told that nobody was told".to_owned());
        }
        if let Some(end_ns) = notice.end_ns.filter(|end_ns| *end_ns < watcher.begin_ns) {
            return Err(format!("it was over at {end_ns} ns, before anybody watched"));
        }
        let last = watcher.last.insert(notice.said.writer, number).unwrap_or(0);
        if last >= number {
            return Err(format!("it came after {last} of the same writer"));
        }
        watcher.owed.remove(&number);
        let mut before = watcher.owed.range(..number).filter(|(_, owed)| owed.writer == notice.said.writer);
        match before.next() {
            Some((lost, _)) => Err(format!("{lost} of the same writer was told before it, and never came")),
            None => Ok(notice.said),
        }
    }

    /// The first notification that is in a watcher's queue for sure, and which of them has been there longest.
    pub(super) fn owed(&self, id: WatchId) -> Option<(Number, Owed)> {
        let owed = &self.watchers.get(&id).expect("it watches").owed;
        owed.iter()
            .map(|(number, owed)| (*number, *owed))
            .min_by_key(|(number, owed)| (owed.since_ns, *number))
    }
}
