//! Access to the directory of names in etcd: the address of etcd, and the threads that send transactions to it.
//!
//! ```text
//!   engine ── Effect::Store ──► EtcdClient (a queue and a few threads) ── HTTP and JSON ──► etcd
//!          ◄── handle_stored ──
//!          ◄── handle_listed ── Watch ◄── etcd reports members that come and go
//!                               Enrolment ──► this node's own entry
//! ```

mod address;
mod batch;
mod endpoints;
mod enrolment;
mod gateway;
mod health;
mod tls;
mod watch;

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use halite_providers::threads;
use halite_tier::directory::{Pair, StoreFailure, Stored, Transaction};
use halite_tier::engine::Listing;
use halite_tier::ids::{NodeId, Requester};

use self::batch::Batch;
use self::endpoints::Endpoints;
use self::enrolment::Enrolment;
use self::gateway::Gateway;
use self::watch::{Listener, Watch};
use crate::error::EtcdError;

pub use address::{BadEtcdAddress, EtcdAddress};
pub(crate) use enrolment::{Announcement, MEMBER_TTL};
pub use health::EtcdHealth;

/// Maximum number of concurrent requests of a node. Each request carries the transactions that were waiting when it was
/// sent.
const THREADS: usize = 4;
/// Time for which a node has the exclusive right to found the cluster.
pub(crate) const FOUNDING: Duration = Duration::from_secs(15);
/// Age from which an ephemeral node watches the members in etcd; a node that runs a single command ends earlier.
const EPHEMERAL_AFTER: Duration = Duration::from_secs(2);

impl EtcdAddress {
    /// Returns the members that other hosts can dial, with their addresses; fails if etcd does not answer.
    pub(crate) fn members(&self) -> Result<Vec<(NodeId, String)>, EtcdError> {
        let members = self.keys_of_nodes("members")?;
        // Keys may have been written by hand.
        Ok(members.into_iter().filter(|(_, hosts)| watch::is_hosts(hosts)).collect())
    }

    /// Returns each live node with the identity of its cluster (`ways::cluster_of`).
    pub(crate) fn places(&self) -> Result<Vec<(NodeId, String)>, EtcdError> {
        self.keys_of_nodes("places")
    }

    /// Returns the nodes that have a key `PREFIX/HEADING/NODE`, with the values of these keys; omits empty values.
    fn keys_of_nodes(&self, heading: &str) -> Result<Vec<(NodeId, String)>, EtcdError> {
        let (gateway, prefix) = (Gateway::new(self), self.heading(heading));
        let member = |pair: Pair| {
            let node = pair.key.strip_prefix(&prefix)?.parse().ok()?;
            Some((NodeId(node), pair.value)).filter(|(_, address)| !address.is_empty())
        };
        Ok(gateway.list(&prefix)?.into_iter().filter_map(member).collect())
    }

    /// Returns true if the names have moved from here back to node 0.
    pub(crate) fn is_closed(&self) -> Result<bool, EtcdError> {
        let found = Gateway::new(self).list(&format!("{}/closed", self.prefix()))?;
        Ok(found.iter().any(|pair| pair.value == "closed"))
    }

    /// Returns the address of the host that is founding the cluster, or `None` if this node may found it. `hosts` is
    /// the address at which other hosts dial this node. Of several nodes that start at once, only one may found the
    /// cluster; it has this right for [`FOUNDING`].
    pub(crate) fn other_founder(&self, hosts: &str) -> Result<Option<String>, EtcdError> {
        let founder = Gateway::new(self).create(&format!("{}/founding", self.prefix()), hosts, FOUNDING)?;
        Ok(founder.filter(|founder| founder != hosts))
    }

    /// Returns the prefix of all keys `PREFIX/HEADING/...` of a heading.
    fn heading(&self, heading: &str) -> String {
        format!("{}/{heading}/", self.prefix())
    }
}

type Job = (u64, Transaction);

#[derive(Debug)]
pub(crate) enum EtcdMessage {
    Stored(u64, Result<Stored, StoreFailure>),
    /// Result of the attempt to reach etcd from this node, with the node that asked for the attempt.
    Tried(Requester, Result<(), String>),
    Listing(Listing),
}

/// Delivers a message. Returns true if the node still exists.
type Deliver = dyn Fn(EtcdMessage) -> bool + Send + Sync;

/// The transactions that wait for a thread to send them.
struct Jobs {
    queue: Receiver<Job>,
    /// A transaction that did not fit into the previous batch.
    left: Option<Job>,
}

impl Jobs {
    /// Waits for a transaction, and returns it with all waiting ones that fit into the same batch; `None` when the
    /// queue is closed.
    fn next_batch(&mut self) -> Option<(Vec<u64>, Vec<Transaction>)> {
        let mut batch = Batch::default();
        let (mut ids, mut transactions) = (Vec::new(), Vec::new());
        let mut next = match self.left.take() {
            Some(job) => job,
            None => self.queue.recv().ok()?,
        };
        while batch.take(&next.1) {
            ids.push(next.0);
            transactions.push(next.1);
            match self.queue.try_recv() {
                Ok(job) => next = job,
                Err(_) => return Some((ids, transactions)),
            }
        }
        self.left = Some(next);
        Some((ids, transactions))
    }
}

/// A node's connection to etcd: the threads that carry its transactions, and its own entries in etcd.
#[derive(Default)]
pub(crate) struct EtcdClient {
    deliver: OnceLock<Arc<Deliver>>,
    open: Mutex<Option<(EtcdAddress, Sender<Job>)>>,
    presence: Mutex<Presence>,
}

/// A node's entries in etcd, and its watch of other members.
#[derive(Default)]
struct Presence {
    /// The node's entries; set once the node has joined.
    announcement: Option<Announcement>,
    /// Address of etcd, once etcd has the names.
    address: Option<EtcdAddress>,
    connection: Option<Connection>,
}

/// The connection that a node keeps open to etcd: for its own entries and a watch, or only for a watch.
#[expect(dead_code, reason = "it is held")]
enum Connection {
    Entries(Enrolment),
    Watch(Watch),
}

impl EtcdClient {
    /// Sets the receiver of all messages. Must be called before the connection opens.
    pub(crate) fn set_receiver<T: Send + Sync + 'static>(
        &self,
        node: Weak<T>,
        deliver: impl Fn(&T, EtcdMessage) + Send + Sync + 'static,
    ) {
        let _ = self.deliver.set(Arc::new(move |message| match node.upgrade() {
            Some(node) => {
                deliver(&node, message);
                true
            }
            None => false,
        }));
    }

    /// Opens the connection for transactions. Its threads end when the connection is dropped or replaced.
    pub(crate) fn open(&self, address: &EtcdAddress) -> std::io::Result<()> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(deliver) = self.deliver.get() else { return Ok(()) };
        if open.as_ref().is_some_and(|(known, _)| known == address) {
            return Ok(());
        }
        let (queue, jobs) = channel::<Job>();
        let jobs = Arc::new(Mutex::new(Jobs { queue: jobs, left: None }));
        let endpoints = Arc::new(Endpoints::new(address.endpoints().len()));
        for _ in 0..THREADS {
            let gateway = Gateway::sharing(address, endpoints.clone());
            let (jobs, deliver) = (jobs.clone(), deliver.clone());
            let run = move || {
                while let Some((ids, transactions)) =
                    jobs.lock().unwrap_or_else(PoisonError::into_inner).next_batch()
                {
                    let results = gateway.execute_all(&transactions);
                    for (id, result) in ids.into_iter().zip(results) {
                        if !deliver(EtcdMessage::Stored(id, result)) {
                            return;
                        }
                    }
                }
            };
            threads::spawn("halite-etcd", run)?;
        }
        *open = Some((address.clone(), queue));
        Ok(())
    }

    /// Opens the connection with an address from another node. If the address is not valid, all transactions fail.
    pub(crate) fn open_from_peer(&self, text: &str) {
        let opened = text
            .parse::<EtcdAddress>()
            .map_err(|error| error.to_string())
            .and_then(|address| self.open(&address).map_err(|error| error.to_string()));
        if let Err(reason) = opened {
            tracing::warn!("cannot use etcd at {text:?} for names: {reason}");
            *self.open.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }

    /// Announces a joined permanent node in etcd, and watches other members; both start once etcd has the names.
    pub(crate) fn announce(&self, announcement: Announcement) -> std::io::Result<()> {
        let mut presence = self.presence();
        presence.announcement = Some(announcement);
        self.enrol(&mut presence)
    }

    /// Sets the address of etcd once etcd has the names; the node then announces itself there.
    pub(crate) fn set_address(&self, address: &EtcdAddress) -> std::io::Result<()> {
        let mut presence = self.presence();
        presence.address = Some(address.clone());
        self.enrol(&mut presence)
    }

    /// Stops using etcd, because the names have moved back to node 0.
    pub(crate) fn leave(&self) {
        let mut presence = self.presence();
        (presence.address, presence.connection) = (None, None);
        *self.open.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Withdraws the node's entries before it leaves.
    pub(crate) fn withdraw(&self) {
        *self.presence() = Presence::default();
    }

    fn presence(&self) -> MutexGuard<'_, Presence> {
        self.presence.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enrol(&self, presence: &mut Presence) -> std::io::Result<()> {
        let (Some(announcement), Some(at), Some(deliver)) =
            (&presence.announcement, &presence.address, self.deliver.get())
        else {
            return Ok(());
        };
        let (own, deliver) = (announcement.clone(), deliver.clone());
        presence.connection = match (announcement.node.is_ephemeral(), &announcement.hosts) {
            (false, _) => Some(Connection::Entries(Enrolment::begin(at, own, deliver)?)),
            (true, Some(_)) => {
                let listener = Listener { own, rewrite: None, deliver, delay: EPHEMERAL_AFTER };
                Some(Connection::Watch(Watch::begin(at, listener)?))
            }
            // The cluster directory shows it all other nodes.
            (true, None) => None,
        };
        Ok(())
    }

    /// Sends a transaction to etcd. Delivers one result per transaction, unless the node no longer exists.
    pub(crate) fn send(&self, id: u64, transaction: Transaction) {
        let sent = match &*self.open.lock().unwrap_or_else(PoisonError::into_inner) {
            // The threads live as long as the queue.
            Some((_, queue)) => queue.send((id, transaction)).is_ok(),
            None => false,
        };
        if !sent {
            let failure = StoreFailure {
                may_be_done: false,
                is_full: false,
                has_others: false,
                reason: "this node has no connection to etcd".to_owned(),
            };
            self.run_detached(move || EtcdMessage::Stored(id, Err(failure)));
        }
    }

    /// Checks whether this node reaches the etcd at the address `text`, and delivers the result to `requester` later.
    pub(crate) fn probe(&self, requester: Requester, text: String) {
        self.run_detached(move || {
            let address = text.parse::<EtcdAddress>().map_err(|error| error.to_string());
            let tried = address.and_then(|address| address.members().map_err(|error| error.to_string()));
            EtcdMessage::Tried(requester, tried.map(|_| ()))
        });
    }

    /// Runs `message` on a new thread and delivers its result, because the work is slow or the caller holds a lock.
    fn run_detached(&self, message: impl FnOnce() -> EtcdMessage + Send + 'static) {
        let Some(deliver) = self.deliver.get().cloned() else { return };
        let run = move || {
            deliver(message());
        };
        if let Err(error) = threads::spawn("halite-etcd-once", run) {
            tracing::warn!(
                "a request to etcd was dropped, because no thread could be started for it: {error}"
            );
        }
    }
}

impl std::fmt::Debug for EtcdClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EtcdClient").finish_non_exhaustive()
    }
}
