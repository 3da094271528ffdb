//! The directory in etcd, as nodes reach it: where it is, and who carries transactions to it.
//!
//! ```text
//!   engine ── Effect::Store ──► Carriers (a queue and a few threads) ── HTTP and JSON ──► etcd
//!          ◄── handle_stored ──
//! ```

mod gateway;

use std::fmt;
use std::str::FromStr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use halite_tier::directory::{StoreFailure, Stored, Transaction};

use self::gateway::Gateway;

/// So many transactions of a node are on their way at a time: etcd writes those that come together down together.
const CARRIERS: usize = 4;
const PREFIX: &str = "/halite";
/// How long the key of a member that says nothing stays.
const MEMBER_TTL: Duration = Duration::from_secs(15);

/// Where the directory of names is, if it is in etcd: `etcd://[USER:PASSWORD@]HOST:PORT[,HOST:PORT...][/PREFIX]`.  Clusters with different
/// prefixes do not see each other; the default is `/halite`.
#[derive(Clone, PartialEq, Eq)]
pub struct EtcdAddress {
    endpoints: Vec<String>,
    user: Option<(String, String)>,
    prefix: String,
}

/// Why a text is no address of etcd.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0:?} is no etcd://[USER:PASSWORD@]HOST:PORT[,HOST:PORT...][/PREFIX]")]
pub struct BadEtcdAddress(String);

impl FromStr for EtcdAddress {
    type Err = BadEtcdAddress;

    fn from_str(text: &str) -> Result<EtcdAddress, BadEtcdAddress> {
        let bad = || BadEtcdAddress(text.to_owned());
        let rest = text.strip_prefix("etcd://").ok_or_else(bad)?;
        let (authority, prefix) = match rest.split_once('/') {
            Some((authority, prefix)) if !prefix.is_empty() => (authority, format!("/{prefix}")),
            Some((authority, _)) => (authority, PREFIX.to_owned()),
            None => (rest, PREFIX.to_owned()),
        };
        let (user, hosts) = match authority.rsplit_once('@') {
            Some((user, hosts)) => {
                let (name, password) = user.split_once(':').ok_or_else(bad)?;
                (Some((name.to_owned(), password.to_owned())), hosts)
            }
            None => (None, authority),
        };
        let endpoints: Vec<String> = hosts.split(',').map(str::to_owned).collect();
        let is_endpoint = |endpoint: &String| {
            let port = endpoint.rsplit_once(':').map(|(host, port)| (host, port.parse::<u16>()));
            matches!(port, Some((host, Ok(_))) if !host.is_empty()) && !endpoint.contains(char::is_whitespace)
        };
        match endpoints.iter().all(is_endpoint) && !prefix.ends_with('/') {
            true => Ok(EtcdAddress { endpoints, user, prefix }),
            false => Err(bad()),
        }
    }
}

/// With the password, as it is written down where only the owner may read it.
impl fmt::Display for EtcdAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let user = self.user.as_ref().map(|(name, password)| format!("{name}:{password}@"));
        write!(f, "etcd://{}{}{}", user.unwrap_or_default(), self.endpoints.join(","), self.prefix)
    }
}

/// Without the password, for people.
impl fmt::Debug for EtcdAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "etcd://{}{}", self.endpoints.join(","), self.prefix)
    }
}

impl EtcdAddress {
    /// Under which keys all is.
    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Where members of other hosts are dialled, as they say; an error if etcd does not answer.
    pub(crate) fn members(&self) -> Result<Vec<String>, String> {
        let gateway = Gateway::new(self);
        let members = gateway.list(&format!("{}/members/", self.prefix))?;
        Ok(members.into_iter().map(|pair| pair.value).filter(|address| !address.is_empty()).collect())
    }

    /// Says where a member is dialled, for as long as what is returned is kept.
    pub(crate) fn register(&self, node: u32, address: String) -> std::io::Result<Registration> {
        let (end, ended) = channel::<()>();
        let (gateway, key) = (Gateway::new(self), format!("{}/members/{node}", self.prefix));
        let keep = move || {
            let mut lease = None;
            loop {
                // A lease that was lost is only a sign of life that was late: another takes its place.
                lease = gateway.keep(lease, &key, &address, MEMBER_TTL);
                if ended.recv_timeout(MEMBER_TTL / 3) != Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                    return gateway.revoke(lease);
                }
            }
        };
        std::thread::Builder::new().name("halite-etcd-lease".to_owned()).spawn(keep)?;
        Ok(Registration { _end: end })
    }
}

/// The word of a node that stands in etcd for as long as this is kept.
#[derive(Debug)]
pub(crate) struct Registration {
    _end: Sender<()>,
}

type Job = (u64, Transaction);
/// Hands over what has come of a transaction; whether the node is there still.
type Deliver = dyn Fn(u64, Result<Stored, StoreFailure>) -> bool + Send + Sync;

/// The threads that carry transactions of a node to etcd, and what has come of them back.
#[derive(Debug)]
pub(crate) struct Carriers {
    queue: Sender<Job>,
    waiting: OnceLock<Arc<Mutex<Receiver<Job>>>>,
    address: EtcdAddress,
}

impl Carriers {
    /// What is given to them waits until they are started.
    pub(crate) fn new(address: EtcdAddress) -> Carriers {
        let (queue, jobs) = channel();
        let waiting = OnceLock::from(Arc::new(Mutex::new(jobs)));
        Carriers { queue, waiting, address }
    }

    /// Each transaction is answered once; after the node is gone, by nobody.
    pub(crate) fn carry(&self, id: u64, transaction: Transaction) {
        // The threads are there for as long as the queue is.
        let _ = self.queue.send((id, transaction));
    }

    /// They end when this is dropped.
    pub(crate) fn start<T: Send + Sync + 'static>(
        &self,
        node: Weak<T>,
        deliver: impl Fn(&T, u64, Result<Stored, StoreFailure>) + Send + Sync + 'static,
    ) -> std::io::Result<()> {
        let Some(jobs) = self.waiting.get() else { return Ok(()) };
        let deliver: Arc<Deliver> = Arc::new(move |id, result| match node.upgrade() {
            Some(node) => {
                deliver(&node, id, result);
                true
            }
            None => false,
        });
        for _ in 0..CARRIERS {
            let (jobs, deliver, gateway) = (jobs.clone(), deliver.clone(), Gateway::new(&self.address));
            let carry = move || {
                loop {
                    let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    let Ok((id, transaction)) = job else { return };
                    if !deliver(id, gateway.carry_out(&transaction)) {
                        return;
                    }
                }
            };
            std::thread::Builder::new().name("halite-etcd".to_owned()).spawn(carry)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_written_and_people_are_shown_no_password() {
        for text in ["etcd://a:2379/halite", "etcd://a:1,[::1]:2/x/y", "etcd://u:p@w@h:1/halite"] {
            let address: EtcdAddress = text.parse().unwrap();
            assert_eq!(address.to_string(), text);
            assert!(!format!("{address:?}").contains("p@w"), "{address:?}");
        }
        assert_eq!("etcd://a:1".parse::<EtcdAddress>().unwrap().to_string(), "etcd://a:1/halite");
        for wrong in
            ["", "a:1", "http://a:1", "etcd://", "etcd://a", "etcd://a:x", "etcd://a:1,", "etcd://u@a:1"]
        {
            assert!(wrong.parse::<EtcdAddress>().is_err(), "{wrong}");
        }
    }
}
