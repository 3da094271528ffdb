//! A watch of the members in etcd. Each node watches the keys of members and the keys that name each node's cluster
//! (`places`). It reads all of these keys again only if it may have missed a change.
//!
//! ```text
//!   read all ─────► watch from the next revision on ──► members come and go
//!     ▲   ▲               │  ▲                │
//!     │   │               │  └─ quiet for a minute: the same connection may be dead
//!     │   └─ after a pause ── it breaks, etcd is down or was restored
//!     └────── the next revision was compacted
//! ```
//!
//! Keys and values are untrusted: the watch ignores malformed ones, and valid ones are only hints at the address of a
//! node. Each watch is a single long request. A node sends a new request only after a failure, and once a minute while
//! nothing changes (decision 021).

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use halite_providers::threads;
use halite_tier::engine::Listing;
use halite_tier::ids::NodeId;
use serde_json::{Value, json};

use super::enrolment::{Announcement, RewriteEntries};
use super::gateway::{Answers, Entry, Gateway, number, range_of};
use super::{Deliver, EtcdAddress, EtcdMessage};
use crate::error::{EtcdError, EtcdFault};

/// Longest silence before the node opens a new connection; the other end may have lost power.
const QUIET: Duration = Duration::from_secs(60);
/// Pause after the first failure; later pauses grow up to `PAUSE_MAX`. Half of each pause is random, so that many nodes
/// do not return at once.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// Maximum number of addresses of a member.
const HOSTS_MAX: usize = 16;
/// Maximum number of malformed keys that are logged.
const LOGGED_MAX: usize = 64;

/// A watch of the members, which lasts until it is dropped.
pub(super) struct Watch {
    gateway: Arc<Gateway>,
    _end: Sender<()>,
}

/// The node that a watch reports to, and the settings of the watch.
pub(super) struct Listener {
    pub(super) own: Announcement,
    /// Asks for a rewrite of the node's own entries, if it has any.
    pub(super) rewrite: Option<RewriteEntries>,
    pub(super) deliver: Arc<Deliver>,
    /// Delay before the watch starts, because a short-lived process needs no watch.
    pub(super) delay: Duration,
}

impl Watch {
    pub(super) fn begin(address: &EtcdAddress, listener: Listener) -> std::io::Result<Watch> {
        let gateway = Arc::new(Gateway::new(address));
        let (end, ended) = channel();
        let mut watcher = Watcher::new(address, gateway.clone(), listener, ended);
        threads::spawn("halite-etcd-watch", move || watcher.run())?;
        Ok(Watch { gateway, _end: end })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.gateway.close();
    }
}

/// Reason why a watch has ended.
enum WatchEnd {
    /// The node no longer exists.
    NodeGone,
    /// The watch failed; it reads all keys again after a pause.
    Broken(EtcdError),
    /// etcd has compacted the history; the watch reads all keys again at once.
    Compacted,
}

impl From<EtcdError> for WatchEnd {
    fn from(error: EtcdError) -> WatchEnd {
        WatchEnd::Broken(error)
    }
}

struct Watcher {
    gateway: Arc<Gateway>,
    listener: Listener,
    /// Prefix of the keys of members.
    members: String,
    /// Prefix of the keys that name the nodes' clusters.
    places: String,
    ended: Receiver<()>,
    /// Malformed keys that the watch has already logged.
    logged: BTreeSet<String>,
    /// Maximum time without an answer on a connection.
    quiet: Duration,
}

impl Watcher {
    fn new(address: &EtcdAddress, gateway: Arc<Gateway>, listener: Listener, ended: Receiver<()>) -> Watcher {
        let (members, places) = (address.heading("members"), address.heading("places"));
        Watcher { gateway, listener, members, places, ended, logged: BTreeSet::new(), quiet: QUIET }
    }

    fn run(&mut self) {
        let mut failures = 0;
        let mut pause = self.listener.delay;
        while self.ended.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
            pause = match self.listen(&mut failures) {
                WatchEnd::NodeGone => return,
                WatchEnd::Compacted => {
                    tracing::info!("etcd has compacted the history of members; reading all of them again");
                    Duration::ZERO
                }
                WatchEnd::Broken(error) => {
                    failures += 1;
                    tracing::debug!("cannot watch the members in etcd: {error}");
                    pause_after(failures)
                }
            };
        }
    }

    /// Reads all keys, then watches changes until the watch ends.
    fn listen(&mut self, failures: &mut u32) -> WatchEnd {
        let mut known = match self.list() {
            Ok(revision) => vec![revision; self.prefixes().len()],
            Err(end) => return end,
        };
        loop {
            if let Err(end) = self.watch_from(&mut known, failures) {
                return end;
            }
        }
    }

    /// Returns the prefixes to watch: that of members if this node has other hosts, and that of places if this node has
    /// entries.
    fn prefixes(&self) -> Vec<String> {
        let members = self.listener.own.hosts.as_ref().map(|_| self.members.clone());
        members.into_iter().chain(self.listener.rewrite.as_ref().map(|_| self.places.clone())).collect()
    }

    /// Reads all keys. Returns etcd's revision at that time.
    fn list(&mut self) -> Result<u64, WatchEnd> {
        let (entries, revision) = self.gateway.entries(&self.prefixes())?;
        let mut all = BTreeMap::new();
        let mut own = 0;
        for entry in entries {
            match self.interpret(&entry) {
                Meaning::Own { is_ours } => {
                    own += 1;
                    if !is_ours {
                        self.repair_own(&entry);
                    }
                }
                Meaning::Member(Listing::Is(node, hosts)) => drop(all.insert(node, hosts)),
                Meaning::Member(_) | Meaning::None => {}
            }
        }
        if own < self.prefixes().len() {
            self.request_rewrite();
        }
        if self.listener.own.hosts.is_some() {
            self.deliver(Listing::All(all))?;
        }
        Ok(revision)
    }

    /// Watches each prefix from the revision after the known one, until a failure or a silence of `quiet`.
    fn watch_from(&mut self, known: &mut [u64], failures: &mut u32) -> Result<(), WatchEnd> {
        let prefixes = self.prefixes();
        let requests = prefixes.iter().zip(known.iter()).enumerate().map(|(index, (prefix, known))| {
            let (from, to) = range_of(prefix);
            let (id, start) = ((index + 1).to_string(), known.saturating_add(1).to_string());
            json!({ "create_request": { "key": from, "range_end": to, "start_revision": start, "watch_id": id } })
        });
        let body: String = requests.map(|request| request.to_string()).collect();
        let mut answers = self.gateway.stream("watch", body, self.quiet)?;
        while let Some(answer) = next(&mut answers)? {
            if answer["canceled"].as_bool() == Some(true) {
                return Err(canceled(&answer));
            }
            let at = number(&answer["header"]["revision"]).ok_or_else(malformed)?;
            let id = number(&answer["watch_id"]).and_then(|id| usize::try_from(id).ok());
            let known = id.and_then(|id| known.get_mut(id.checked_sub(1)?)).ok_or_else(malformed)?;
            if at < *known {
                return Err(failed("it was restored to an earlier state"));
            }
            if answer["created"].as_bool() == Some(true) {
                *failures = 0;
                continue;
            }
            for event in answer["events"].as_array().map(Vec::as_slice).unwrap_or_default() {
                self.handle_event(event)?;
            }
            *known = at;
        }
        Ok(())
    }

    fn handle_event(&mut self, event: &Value) -> Result<(), WatchEnd> {
        let is_deleted = event["type"].as_str() == Some("DELETE");
        let Some(entry) = Entry::of(&event["kv"]) else { return Ok(()) };
        let entry = if is_deleted { Entry { value: None, ..entry } } else { entry };
        match self.interpret(&entry) {
            Meaning::Own { is_ours: true } | Meaning::None => Ok(()),
            Meaning::Own { is_ours: false } => {
                self.repair_own(&entry);
                Ok(())
            }
            Meaning::Member(listing) => self.deliver(listing),
        }
    }

    /// Interprets a key and its value; logs a malformed key or value.
    fn interpret(&mut self, entry: &Entry) -> Meaning {
        let own = &self.listener.own;
        let is_member = entry.key.starts_with(&self.members);
        let heading = if is_member { &self.members } else { &self.places };
        let Some(node) = entry.key.strip_prefix(heading).and_then(number_of_member) else {
            self.log_malformed(entry, "it names no permanent node");
            return Meaning::None;
        };
        if node == own.node {
            let ours = if is_member { own.hosts.as_ref() } else { Some(&own.place) };
            return Meaning::Own { is_ours: entry.value.is_some() && entry.value.as_ref() == ours };
        }
        let Some(value) = &entry.value else {
            self.logged.remove(&entry.key);
            return if is_member { Meaning::Member(Listing::Gone(node)) } else { Meaning::None };
        };
        if !is_member {
            if *value != own.place {
                let text = "it belongs to a node of another cluster, which could mistake this cluster's nodes for earlier incarnations of its own; give each cluster its own prefix";
                self.log_malformed(entry, text);
            }
            return Meaning::None;
        }
        if !is_hosts(value) {
            self.log_malformed(entry, "it is not the address of a node");
            return Meaning::Member(Listing::Gone(node));
        }
        Meaning::Member(Listing::Is(node, value.clone()))
    }

    /// Rewrites this node's own entry after it was removed or overwritten.
    fn repair_own(&mut self, entry: &Entry) {
        match (&entry.value, entry.is_leased) {
            (Some(_), true) => self.log_malformed(
                entry,
                "another node has this node's number; give each cluster its own prefix",
            ),
            // The entry was changed by hand.
            _ => self.request_rewrite(),
        }
    }

    fn request_rewrite(&self) {
        self.listener.rewrite.iter().for_each(RewriteEntries::request_rewrite);
    }

    /// Logs a malformed key once.
    fn log_malformed(&mut self, entry: &Entry, what: &str) {
        // Bounds the log if keys keep being written.
        let is_new = self.logged.len() < LOGGED_MAX && self.logged.insert(entry.key.clone());
        if is_new {
            tracing::warn!("ignoring the key {:?} in etcd: {what}", entry.key);
        }
    }

    fn deliver(&self, listing: Listing) -> Result<(), WatchEnd> {
        match (self.listener.deliver)(EtcdMessage::Listing(listing)) {
            true => Ok(()),
            false => Err(WatchEnd::NodeGone),
        }
    }
}

/// Meaning of a key for this node.
enum Meaning {
    /// This node's own entry, present or missing.
    Own {
        is_ours: bool,
    },
    Member(Listing),
    None,
}

/// Waits for the next answer; returns `None` after a silence of `quiet`.
fn next(answers: &mut Answers) -> Result<Option<Value>, WatchEnd> {
    let Some(mut answer) = answers.next()? else { return Ok(None) };
    match answer.get_mut("result") {
        Some(result) => Ok(Some(result.take())),
        None => {
            let reason = answer["error"]["message"].as_str().unwrap_or("its answer is malformed");
            Err(failed(reason))
        }
    }
}

fn canceled(answer: &Value) -> WatchEnd {
    match number(&answer["compact_revision"]) {
        Some(1..) => WatchEnd::Compacted,
        _ => failed(answer["cancel_reason"].as_str().unwrap_or("it ended the watch without a reason")),
    }
}

fn failed(reason: &str) -> WatchEnd {
    WatchEnd::Broken(EtcdError { fault: EtcdFault::Unreachable, reason: reason.to_owned() })
}

fn malformed() -> WatchEnd {
    failed("its answer about members is malformed")
}

/// Returns the node whose key ends with `text`; `None` if no node writes the number in this form.
fn number_of_member(text: &str) -> Option<NodeId> {
    let node = NodeId(text.parse().ok()?);
    (!node.is_ephemeral() && node.0.to_string() == text).then_some(node)
}

/// Returns true if `text` has the form in which a node announces its addresses.
pub(super) fn is_hosts(text: &str) -> bool {
    let is_address = |host: &str| {
        let address = host.parse::<SocketAddr>();
        address.is_ok_and(|address| address.port() != 0 && !address.ip().is_unspecified())
    };
    text.split(',').count() <= HOSTS_MAX && text.split(',').all(is_address)
}

/// Returns the pause after `failures` consecutive failures.
fn pause_after(failures: u32) -> Duration {
    let whole = PAUSE_MAX.min(PAUSE_MIN * 2_u32.pow(failures.saturating_sub(1).min(6)));
    // A random number: each instance has its own hash keys.
    let random = RandomState::new().hash_one(failures) % 1024;
    whole / 2 + whole * random as u32 / 2048
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forged_entries_are_no_members() {
        for (text, node) in [("0", Some(0)), ("17", Some(17)), ("999", Some(999))] {
            assert_eq!(number_of_member(text), node.map(NodeId));
        }
        for text in ["", "+1", "01", "1000", "4294967296", "-1", "a", "1/x", " 1"] {
            assert_eq!(number_of_member(text), None, "{text:?}");
        }
        for hosts in ["10.0.0.2:7000", "10.0.0.2:7000,[fd00::2]:7000"] {
            assert!(is_hosts(hosts), "{hosts}");
        }
        let many = vec!["10.0.0.2:7000"; 1000].join(",");
        for text in
            ["", "10.0.0.2", "10.0.0.2:0", "0.0.0.0:1", "../x.sock", "shm:x.sock", "a:1", "1.2.3.4:5,", &many]
        {
            assert!(!is_hosts(text), "{text:?}");
        }
    }
}
