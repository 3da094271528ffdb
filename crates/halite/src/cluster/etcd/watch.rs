//! A watch of the members in etcd: each node watches the keys of members and places, and reads all of them only if it
//! may have missed a change.
//!
//! ```text
//!   read all ─────► watch from the next revision on ──► members come and go
//!     ▲   ▲               │  ▲                │
//!     │   │               │  └─ quiet for a minute: the same connection may be dead
//!     │   └─ after a pause ── it breaks, etcd is away or was restored
//!     └────── what comes next was compacted away
//! ```
//!
//! Keys and values are untrusted: malformed ones are ignored, and valid ones are only hints where a node may be. There
//! is one request for as long as nothing fails, and one a minute while nothing changes (decision 021).

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use halite_tier::engine::Listing;
use halite_tier::ids::NodeId;
use serde_json::{Value, json};

use super::enrolment::{Announcement, SayAgain};
use super::gateway::{Answers, Entry, Gateway, number, range_of};
use super::{Deliver, EtcdAddress, Heard};
use crate::error::{EtcdError, EtcdFault};

/// Maximum silence of a connection; its other end may have lost power.
const QUIET: Duration = Duration::from_secs(60);
/// Pause after the first failure, and its maximum; half of it is random, so that many nodes do not return at once.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// Maximum number of addresses of a member.
const HOSTS_MAX: usize = 16;
/// Maximum number of malformed keys that are logged.
const NOTED_MAX: usize = 64;

/// Watches members until it is dropped.
pub(super) struct Watch {
    gateway: Arc<Gateway>,
    _end: Sender<()>,
}

/// The receiver of a watch.
pub(super) struct Listener {
    pub(super) of: Announcement,
    /// Has the node's own entries written again when needed, if it has any.
    pub(super) again: Option<SayAgain>,
    pub(super) deliver: Arc<Deliver>,
    /// Delay of the start; a short-lived process needs no watch.
    pub(super) after: Duration,
}

impl Watch {
    pub(super) fn begin(address: &EtcdAddress, listener: Listener) -> std::io::Result<Watch> {
        let gateway = Arc::new(Gateway::new(address));
        let (end, ended) = channel();
        let mut watcher = Watcher::new(address, gateway.clone(), listener, ended);
        std::thread::Builder::new().name("halite-etcd-watch".to_owned()).spawn(move || watcher.run())?;
        Ok(Watch { gateway, _end: end })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.gateway.close();
    }
}

/// Cause of the end of a watch.
enum Over {
    /// The node is gone.
    NodeGone,
    /// All keys must be read again after a pause.
    Broken(EtcdError),
    /// All keys must be read again at once, because the history was compacted.
    Compacted,
}

impl From<EtcdError> for Over {
    fn from(error: EtcdError) -> Over {
        Over::Broken(error)
    }
}

struct Watcher {
    gateway: Arc<Gateway>,
    listener: Listener,
    /// Prefixes of the keys of members, and of places.
    members: String,
    places: String,
    ended: Receiver<()>,
    /// Malformed keys that were logged.
    noted: BTreeSet<String>,
    /// Maximum time without an answer.
    quiet: Duration,
}

impl Watcher {
    fn new(address: &EtcdAddress, gateway: Arc<Gateway>, listener: Listener, ended: Receiver<()>) -> Watcher {
        let (members, places) = (address.heading("members"), address.heading("places"));
        Watcher { gateway, listener, members, places, ended, noted: BTreeSet::new(), quiet: QUIET }
    }

    fn run(&mut self) {
        let mut failures = 0;
        let mut pause = self.listener.after;
        while self.ended.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
            pause = match self.listen(&mut failures) {
                Over::NodeGone => return,
                Over::Compacted => {
                    tracing::info!("etcd has compacted the history of members; reading all of them again");
                    Duration::ZERO
                }
                Over::Broken(error) => {
                    failures += 1;
                    tracing::debug!("cannot watch the members in etcd: {error}");
                    pause_after(failures)
                }
            };
        }
    }

    /// Reads all keys, and watches changes.
    fn listen(&mut self, failures: &mut u32) -> Over {
        let mut known = match self.list() {
            Ok(revision) => vec![revision; self.prefixes().len()],
            Err(over) => return over,
        };
        loop {
            if let Err(over) = self.watch_from(&mut known, failures) {
                return over;
            }
        }
    }

    /// Returns the watched prefixes: members of several hosts, and places if this node announces its own.
    fn prefixes(&self) -> Vec<String> {
        let members = self.listener.of.hosts.as_ref().map(|_| self.members.clone());
        members.into_iter().chain(self.listener.again.as_ref().map(|_| self.places.clone())).collect()
    }

    /// Reads all keys; returns the revision of the snapshot.
    fn list(&mut self) -> Result<u64, Over> {
        let (entries, revision) = self.gateway.entries(&self.prefixes())?;
        let mut all = BTreeMap::new();
        let mut own = 0;
        for entry in entries {
            match self.meaning(&entry) {
                Meaning::Own { is_ours } => {
                    own += 1;
                    if !is_ours {
                        self.mend_own(&entry);
                    }
                }
                Meaning::Member(Listing::Is(node, hosts)) => drop(all.insert(node, hosts)),
                Meaning::Member(_) | Meaning::None => {}
            }
        }
        if own < self.prefixes().len() {
            self.say_again();
        }
        if self.listener.of.hosts.is_some() {
            self.deliver(Listing::All(all))?;
        }
        Ok(revision)
    }

    /// Watches each prefix from the revision after the known one, until a failure or silence.
    fn watch_from(&mut self, known: &mut [u64], failures: &mut u32) -> Result<(), Over> {
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
            let at = number(&answer["header"]["revision"]).ok_or_else(not_understood)?;
            let id = number(&answer["watch_id"]).and_then(|id| usize::try_from(id).ok());
            let known = id.and_then(|id| known.get_mut(id.checked_sub(1)?)).ok_or_else(not_understood)?;
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

    fn handle_event(&mut self, event: &Value) -> Result<(), Over> {
        let is_gone = event["type"].as_str() == Some("DELETE");
        let Some(entry) = Entry::of(&event["kv"]) else { return Ok(()) };
        let entry = if is_gone { Entry { value: None, ..entry } } else { entry };
        match self.meaning(&entry) {
            Meaning::Own { is_ours: true } | Meaning::None => Ok(()),
            Meaning::Own { is_ours: false } => {
                self.mend_own(&entry);
                Ok(())
            }
            Meaning::Member(listing) => self.deliver(listing),
        }
    }

    /// Interprets a key and its value; logs malformed ones.
    fn meaning(&mut self, entry: &Entry) -> Meaning {
        let of = &self.listener.of;
        let is_member = entry.key.starts_with(&self.members);
        let heading = if is_member { &self.members } else { &self.places };
        let Some(node) = entry.key.strip_prefix(heading).and_then(number_of_member) else {
            self.note(entry, "it names no permanent node");
            return Meaning::None;
        };
        if node == of.node {
            let ours = if is_member { of.hosts.as_ref() } else { Some(&of.place) };
            return Meaning::Own { is_ours: entry.value.is_some() && entry.value.as_ref() == ours };
        }
        let Some(value) = &entry.value else {
            self.noted.remove(&entry.key);
            return if is_member { Meaning::Member(Listing::Gone(node)) } else { Meaning::None };
        };
        if !is_member {
            if *value != of.place {
                let text = "it belongs to a node of another cluster, which would take this cluster's nodes for its own earlier ones; give each cluster its own prefix";
                self.note(entry, text);
            }
            return Meaning::None;
        }
        if !is_hosts(value) {
            self.note(entry, "it is not the address of a node");
            return Meaning::Member(Listing::Gone(node));
        }
        Meaning::Member(Listing::Is(node, value.clone()))
    }

    /// Repairs this node's own entry, which was removed or overwritten.
    fn mend_own(&mut self, entry: &Entry) {
        match (&entry.value, entry.is_leased) {
            (Some(_), true) => self.note(
                entry,
                "another node has the number of this one; give each cluster a prefix of its own",
            ),
            // It was changed by hand.
            _ => self.say_again(),
        }
    }

    fn say_again(&self) {
        self.listener.again.iter().for_each(SayAgain::say_again);
    }

    /// Logs a malformed key once.
    fn note(&mut self, entry: &Entry, what: &str) {
        // Bounds the log if keys keep being written.
        let is_news = self.noted.len() < NOTED_MAX && self.noted.insert(entry.key.clone());
        if is_news {
            tracing::warn!("ignoring the key {:?} in etcd: {what}", entry.key);
        }
    }

    fn deliver(&self, listing: Listing) -> Result<(), Over> {
        match (self.listener.deliver)(Heard::Listing(listing)) {
            true => Ok(()),
            false => Err(Over::NodeGone),
        }
    }
}

/// Meaning of a key for a node.
enum Meaning {
    /// This node's own entry, present or missing.
    Own {
        is_ours: bool,
    },
    Member(Listing),
    None,
}

/// Waits for the next answer; `None` after a long silence.
fn next(answers: &mut Answers) -> Result<Option<Value>, Over> {
    let Some(mut answer) = answers.next()? else { return Ok(None) };
    match answer.get_mut("result") {
        Some(result) => Ok(Some(result.take())),
        None => {
            let said = answer["error"]["message"].as_str().unwrap_or("its answer is malformed");
            Err(failed(said))
        }
    }
}

fn canceled(answer: &Value) -> Over {
    match number(&answer["compact_revision"]) {
        Some(1..) => Over::Compacted,
        _ => failed(answer["cancel_reason"].as_str().unwrap_or("it ended the watch without a reason")),
    }
}

fn failed(reason: &str) -> Over {
    Over::Broken(EtcdError { fault: EtcdFault::Unreachable, reason: reason.to_owned() })
}

fn not_understood() -> Over {
    failed("its answer about members is malformed")
}

/// Returns the node whose key ends with `text`, in the form that a node writes.
fn number_of_member(text: &str) -> Option<NodeId> {
    let node = NodeId(text.parse().ok()?);
    (!node.is_ephemeral() && node.0.to_string() == text).then_some(node)
}

/// Returns whether `text` has the form in which a node announces its addresses.
pub(super) fn is_hosts(text: &str) -> bool {
    let is_address = |host: &str| {
        let address = host.parse::<SocketAddr>();
        address.is_ok_and(|address| address.port() != 0 && !address.ip().is_unspecified())
    };
    text.split(',').count() <= HOSTS_MAX && text.split(',').all(is_address)
}

/// Returns the pause after this many consecutive failures.
fn pause_after(failures: u32) -> Duration {
    let whole = PAUSE_MAX.min(PAUSE_MIN * 2_u32.pow(failures.saturating_sub(1).min(6)));
    // A random number: each instance has its own hash keys.
    let chance = RandomState::new().hash_one(failures) % 1024;
    whole / 2 + whole * chance as u32 / 2048
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::net::{Shutdown, TcpListener, TcpStream};
    use std::sync::{Mutex, mpsc};

    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    /// What an etcd answers to the next question, in its order.
    enum Answer {
        /// Members, by number and port, as of that revision.
        All(&'static [(u32, u16)], u64),
        /// Lines of a watch, which stays open.
        Lines(Vec<String>),
        /// The same, which ends behind the last.
        Broken(Vec<String>),
    }

    /// Answers as it is told, and says from where on it was asked to watch.
    fn scripted(script: Vec<Answer>) -> (EtcdAddress, mpsc::Receiver<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("etcd://{}/x", listener.local_addr().unwrap()).parse().unwrap();
        let (told, asked) = mpsc::channel();
        let script = Arc::new(Mutex::new(script.into_iter()));
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (script, told) = (script.clone(), told.clone());
                std::thread::spawn(move || answer(&client, &script, &told));
            }
        });
        (address, asked)
    }

    /// A connection may bring several questions, the last of which is to watch.
    fn answer(client: &TcpStream, script: &Mutex<impl Iterator<Item = Answer>>, told: &mpsc::Sender<String>) {
        let mut reader = BufReader::new(client);
        while let Some((path, body)) = question(&mut reader) {
            let Some(answer) = script.lock().unwrap().next() else { return };
            let (lines, is_broken) = match answer {
                Answer::All(members, revision) => {
                    assert!(path.ends_with("/kv/txn"), "{path}");
                    respond(client, &all(members, revision));
                    continue;
                }
                Answer::Lines(lines) => (lines, false),
                Answer::Broken(lines) => (lines, true),
            };
            assert!(path.ends_with("/watch"), "{path}");
            let request: Value = serde_json::from_str(&body).unwrap();
            let start = request["create_request"]["start_revision"].as_str().unwrap();
            told.send(start.to_owned()).unwrap();
            stream(client, &lines);
            if is_broken {
                client.shutdown(Shutdown::Both).unwrap();
            }
        }
    }

    /// Its path, and what it says; `None` where none comes any more.
    fn question(reader: &mut impl BufRead) -> Option<(String, String)> {
        let mut head = Vec::new();
        while head.last().is_none_or(|line: &String| !line.trim().is_empty()) {
            let mut line = String::new();
            reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
            head.push(line.to_lowercase());
        }
        let len = head.iter().find_map(|line| line.strip_prefix("content-length:"))?;
        let mut body = vec![0; len.trim().parse().ok()?];
        reader.read_exact(&mut body).ok()?;
        Some((head[0].split(' ').nth(1)?.to_owned(), String::from_utf8(body).ok()?))
    }

    fn respond(mut client: &TcpStream, body: &Value) {
        let body = body.to_string();
        write!(client, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()).unwrap();
    }

    fn stream(mut client: &TcpStream, lines: &[String]) {
        write!(client, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").unwrap();
        for line in lines {
            write!(client, "{:x}\r\n{line}\n\r\n", line.len() + 1).unwrap();
        }
    }

    fn all(members: &[(u32, u16)], revision: u64) -> Value {
        let kvs: Vec<Value> = members.iter().map(|(node, port)| pair(*node, *port)).collect();
        json!({
            "header": { "revision": revision.to_string() },
            "succeeded": true,
            "responses": [{ "response_range": { "kvs": kvs } }],
        })
    }

    fn pair(node: u32, port: u16) -> Value {
        let text = |text: String| STANDARD.encode(text);
        json!({ "key": text(format!("/x/members/{node}")), "value": text(format!("10.0.0.1:{port}")) })
    }

    fn line(revision: u64, mut result: Value) -> String {
        result["header"] = json!({ "revision": revision.to_string() });
        result["watch_id"] = json!("1");
        json!({ "result": result }).to_string()
    }

    fn created(revision: u64) -> String {
        line(revision, json!({ "created": true }))
    }

    fn is(node: u32, port: u16, revision: u64) -> String {
        line(revision, json!({ "events": [{ "kv": pair(node, port) }] }))
    }

    fn gone(node: u32, revision: u64) -> String {
        line(revision, json!({ "events": [{ "type": "DELETE", "kv": pair(node, 1) }] }))
    }

    /// What an application hears of an etcd that answers so, the first `count` words of it; and from where on it has watched.
    fn heard(script: Vec<Answer>, count: usize, quiet: Duration) -> (Vec<Listing>, Vec<String>) {
        let (address, asked) = scripted(script);
        let (say, heard) = mpsc::channel();
        let deliver: Arc<Deliver> = Arc::new(move |heard| match heard {
            Heard::Listing(listing) => say.send(listing).is_ok(),
            _ => true,
        });
        let hosts = Some("10.0.0.9:1".to_owned());
        let of = Announcement { node: NodeId(5000), place: String::new(), hosts };
        let listener = Listener { of, again: None, deliver, after: Duration::ZERO };
        let gateway = Arc::new(Gateway::new(&address));
        let (end, ended) = channel();
        let mut watcher = Watcher::new(&address, gateway.clone(), listener, ended);
        watcher.quiet = quiet;
        let running = std::thread::spawn(move || watcher.run());
        let listings =
            (0..count).map(|_| heard.recv_timeout(PATIENCE).expect("something is heard")).collect();
        // It ends, although its watch would stay open.
        drop(end);
        gateway.close();
        running.join().unwrap();
        (listings, asked.try_iter().collect())
    }

    fn told_all(members: &[(u32, u16)]) -> Listing {
        let pairs = members.iter().map(|(node, port)| (NodeId(*node), format!("10.0.0.1:{port}")));
        Listing::All(pairs.collect())
    }

    fn told_of(node: u32, port: u16) -> Listing {
        Listing::Is(NodeId(node), format!("10.0.0.1:{port}"))
    }

    #[test]
    fn all_is_asked_for_again_where_something_may_have_been_missed_and_only_there() {
        use Answer::{All, Broken, Lines};
        let compacted = line(12, json!({ "canceled": true, "compact_revision": "11" }));
        let script = vec![
            All(&[(1, 1)], 5),
            Broken(vec![created(5), is(2, 2, 6), gone(1, 7)]),
            All(&[(2, 2)], 9),
            Lines(vec![created(9), compacted]),
            All(&[(2, 2), (3, 3)], 12),
            // It is as it was before.
            Lines(vec![created(4)]),
            All(&[(1, 1)], 4),
            Lines(vec![created(4), "nonsense".to_owned()]),
            All(&[], 5),
            Lines(vec![created(5), is(8, 8, 6)]),
        ];
        let (listings, asked) = heard(script, 8, QUIET);
        let expected = [
            told_all(&[(1, 1)]),
            told_of(2, 2),
            Listing::Gone(NodeId(1)),
            told_all(&[(2, 2)]),
            told_all(&[(2, 2), (3, 3)]),
            told_all(&[(1, 1)]),
            told_all(&[]),
            told_of(8, 8),
        ];
        assert_eq!(listings, expected);
        assert_eq!(asked, ["6", "10", "13", "5", "6"]);
    }

    #[test]
    fn a_watch_over_which_nothing_comes_is_made_anew_from_where_it_was_and_nothing_is_asked_for_again() {
        use Answer::{All, Lines};
        let script = vec![
            All(&[(1, 1)], 5),
            Lines(vec![created(5), is(2, 2, 8)]),
            Lines(vec![created(8)]),
            Lines(vec![created(8), is(3, 3, 9)]),
        ];
        let (listings, asked) = heard(script, 3, Duration::from_secs(1));
        assert_eq!(listings, [told_all(&[(1, 1)]), told_of(2, 2), told_of(3, 3)]);
        assert_eq!(asked[..3], ["6", "9", "9"]);
    }

    #[test]
    fn what_a_node_would_not_write_is_not_taken_for_a_member() {
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

    #[test]
    fn who_fails_again_and_again_waits_longer_and_not_all_for_the_same_time() {
        for failures in 1..40 {
            let pause = pause_after(failures);
            assert!(pause >= PAUSE_MIN / 2 && pause <= PAUSE_MAX, "{pause:?}");
        }
        assert!(pause_after(1) <= PAUSE_MIN && pause_after(40) >= PAUSE_MAX / 2);
        let pauses: BTreeSet<Duration> = (0..100).map(|_| pause_after(40)).collect();
        assert!(pauses.len() > 10);
    }
}
