//! The directory in etcd, as nodes reach it: where it is, and who carries transactions to it.
//!
//! ```text
//!   engine ── Effect::Store ──► Carriers (a queue and a few threads) ── HTTP and JSON ──► etcd
//!          ◄── handle_stored ──
//!          ◄── handle_listed ── Watch ◄── etcd says by itself who comes and goes
//!                               Enrolment ──► that this node is there, and where
//! ```

mod address;
mod batch;
mod enrolment;
mod gateway;
mod health;
mod tls;
mod watch;

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use halite_tier::directory::{Pair, StoreFailure, Stored, Transaction};
use halite_tier::engine::Listing;
use halite_tier::ids::{NodeId, Requester};

use self::batch::Batch;
use self::enrolment::Enrolment;
use self::gateway::Gateway;
use self::watch::{Listener, Watch};
use crate::error::EtcdError;

pub use address::{BadEtcdAddress, EtcdAddress};
pub(crate) use enrolment::Announcement;
pub use health::EtcdHealth;

/// So many requests of a node are on their way at a time, each with all that waited when it was sent.
const CARRIERS: usize = 4;
/// How long one node alone may found a cluster; another may if it has not by then.
const FOUNDING: Duration = Duration::from_secs(15);
/// After so long, a node that comes and goes is not there for a single command, and hears of members.
const EPHEMERAL_AFTER: Duration = Duration::from_secs(2);

impl EtcdAddress {
    /// The addresses of members of several hosts; an error if etcd does not answer.
    pub(crate) fn members(&self) -> Result<Vec<(NodeId, String)>, EtcdError> {
        let members = self.keys_of_nodes("members")?;
        // Somebody may have written one by hand.
        Ok(members.into_iter().filter(|(_, hosts)| watch::is_hosts(hosts)).collect())
    }

    /// The cluster that each living node belongs to (`ways::cluster_of`).
    pub(crate) fn places(&self) -> Result<Vec<(NodeId, String)>, EtcdError> {
        self.keys_of_nodes("places")
    }

    /// The values of the keys `PREFIX/HEADING/NODE`, but those that are empty.
    fn keys_of_nodes(&self, heading: &str) -> Result<Vec<(NodeId, String)>, EtcdError> {
        let (gateway, prefix) = (Gateway::new(self), self.heading(heading));
        let member = |pair: Pair| {
            let node = pair.key.strip_prefix(&prefix)?.parse().ok()?;
            Some((NodeId(node), pair.value)).filter(|(_, address)| !address.is_empty())
        };
        Ok(gateway.list(&prefix)?.into_iter().filter_map(member).collect())
    }

    /// Who founds the cluster instead, if this node, which others dial there, may not: of several that come at once, one may, for as long as it may
    /// take until it is listed.
    pub(crate) fn founder_but(&self, hosts: &str) -> Result<Option<String>, EtcdError> {
        let founder = Gateway::new(self).create(&format!("{}/founding", self.prefix()), hosts, FOUNDING)?;
        Ok(founder.filter(|founder| founder != hosts))
    }

    /// What the keys `PREFIX/HEADING/...` begin with.
    fn heading(&self, heading: &str) -> String {
        format!("{}/{heading}/", self.prefix())
    }
}

type Job = (u64, Transaction);

/// What is heard of etcd.
#[derive(Debug)]
pub(crate) enum Heard {
    /// What has come of a transaction.
    Stored(u64, Result<Stored, StoreFailure>),
    /// Whether an etcd is reached from here, for who asks; why not, if not.
    Tried(Requester, Result<(), String>),
    /// Which members are there.
    Listing(Listing),
}

/// Hands over what is heard; whether the node is there still.
type Deliver = dyn Fn(Heard) -> bool + Send + Sync;

/// What waits to be carried.
struct Jobs {
    queue: Receiver<Job>,
    /// One that could not go with those before it.
    left: Option<Job>,
}

impl Jobs {
    /// What can be sent together of what waits, once something does; `None` when nothing will come any more.
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

/// What a node has of etcd: the threads that carry its transactions there and their outcomes back, and its presence there.
#[derive(Default)]
pub(crate) struct Carriers {
    deliver: OnceLock<Arc<Deliver>>,
    open: Mutex<Option<(EtcdAddress, Sender<Job>)>>,
    presence: Mutex<Presence>,
}

/// What a node registers in etcd of itself, and the watch by which it hears of others.
#[derive(Default)]
struct Presence {
    /// Once it has joined.
    who: Option<Announcement>,
    /// The names are there.
    at: Option<EtcdAddress>,
    kept: Option<Kept>,
}

/// What a node has to do with members in etcd for as long as it is there.
#[expect(dead_code, reason = "it is held")]
enum Kept {
    Announces(Enrolment),
    Listens(Watch),
}

impl Carriers {
    /// To whom all is told; before anything is opened.
    pub(crate) fn tell<T: Send + Sync + 'static>(
        &self,
        node: Weak<T>,
        deliver: impl Fn(&T, Heard) + Send + Sync + 'static,
    ) {
        let _ = self.deliver.set(Arc::new(move |heard| match node.upgrade() {
            Some(node) => {
                deliver(&node, heard);
                true
            }
            None => false,
        }));
    }

    /// Transactions go there from now on.  The threads end when this is dropped, or others take their place.
    pub(crate) fn open(&self, address: &EtcdAddress) -> std::io::Result<()> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(deliver) = self.deliver.get() else { return Ok(()) };
        if open.as_ref().is_some_and(|(known, _)| known == address) {
            return Ok(());
        }
        let (queue, jobs) = channel::<Job>();
        let jobs = Arc::new(Mutex::new(Jobs { queue: jobs, left: None }));
        for _ in 0..CARRIERS {
            let (jobs, deliver, gateway) = (jobs.clone(), deliver.clone(), Gateway::new(address));
            let carry = move || {
                while let Some((ids, transactions)) =
                    jobs.lock().unwrap_or_else(PoisonError::into_inner).next_batch()
                {
                    let results = gateway.carry_out_all(&transactions);
                    for (id, result) in ids.into_iter().zip(results) {
                        if !deliver(Heard::Stored(id, result)) {
                            return;
                        }
                    }
                }
            };
            std::thread::Builder::new().name("halite-etcd".to_owned()).spawn(carry)?;
        }
        *open = Some((address.clone(), queue));
        Ok(())
    }

    /// As [`Carriers::open`], by an address that another node has told: where it is none, all transactions fail for that.
    pub(crate) fn open_told(&self, text: &str) {
        let opened = text
            .parse::<EtcdAddress>()
            .map_err(|error| error.to_string())
            .and_then(|address| self.open(&address).map_err(|error| error.to_string()));
        if let Err(reason) = opened {
            tracing::warn!("names cannot be asked for at {text:?}: {reason}");
            *self.open.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }

    /// The node has joined: from now on it says in etcd that it is there, if it stays, and hears of others; once the names are there.
    pub(crate) fn announce(&self, who: Announcement) -> std::io::Result<()> {
        let mut presence = self.presence();
        presence.who = Some(who);
        self.enrol(&mut presence)
    }

    /// The names are there: so it is where members say that they are.
    pub(crate) fn settle_at(&self, address: &EtcdAddress) -> std::io::Result<()> {
        let mut presence = self.presence();
        presence.at = Some(address.clone());
        self.enrol(&mut presence)
    }

    /// The node is about to leave.
    pub(crate) fn withdraw(&self) {
        *self.presence() = Presence::default();
    }

    fn presence(&self) -> MutexGuard<'_, Presence> {
        self.presence.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enrol(&self, presence: &mut Presence) -> std::io::Result<()> {
        let (Some(who), Some(at), Some(deliver)) = (&presence.who, &presence.at, self.deliver.get()) else {
            return Ok(());
        };
        let (of, deliver) = (who.clone(), deliver.clone());
        presence.kept = match (who.node.is_ephemeral(), &who.hosts) {
            (false, _) => Some(Kept::Announces(Enrolment::begin(at, of, deliver)?)),
            (true, Some(_)) => {
                let listener = Listener { of, again: None, deliver, after: EPHEMERAL_AFTER };
                Some(Kept::Listens(Watch::begin(at, listener)?))
            }
            // It hears of all others by its cluster directory.
            (true, None) => None,
        };
        Ok(())
    }

    /// Each transaction is answered once; after the node is gone, by nobody.
    pub(crate) fn carry(&self, id: u64, transaction: Transaction) {
        let sent = match &*self.open.lock().unwrap_or_else(PoisonError::into_inner) {
            // The threads are there for as long as the queue is.
            Some((_, queue)) => queue.send((id, transaction)).is_ok(),
            None => false,
        };
        if !sent {
            let failure =
                StoreFailure { may_be_done: false, is_full: false, reason: "no etcd is open".to_owned() };
            self.aside(move || Heard::Stored(id, Err(failure)));
        }
    }

    /// Says later whether that etcd is reached from here.
    pub(crate) fn probe(&self, requester: Requester, text: String) {
        self.aside(move || {
            let address = text.parse::<EtcdAddress>().map_err(|error| error.to_string());
            let tried = address.and_then(|address| address.members().map_err(|error| error.to_string()));
            Heard::Tried(requester, tried.map(|_| ()))
        });
    }

    /// What takes long, or is told to who holds a lock now, has a thread of its own.
    fn aside(&self, hear: impl FnOnce() -> Heard + Send + 'static) {
        let Some(deliver) = self.deliver.get().cloned() else { return };
        let tell = move || {
            deliver(hear());
        };
        if let Err(error) = std::thread::Builder::new().name("halite-etcd-once".to_owned()).spawn(tell) {
            tracing::warn!("no thread could be started to ask etcd: {error}");
        }
    }
}

impl std::fmt::Debug for Carriers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Carriers").finish_non_exhaustive()
    }
}
