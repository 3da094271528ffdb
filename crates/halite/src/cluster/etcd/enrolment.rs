//! A permanent node's entries in etcd: its cluster, and the addresses at which other hosts dial it.
//!
//! Only these keys have an etcd lease. They are hints about live nodes: the node of a missing key may be alive. If an
//! operator removes or overwrites a key, the node writes it again.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use halite_providers::threads;
use halite_tier::ids::NodeId;

use super::gateway::Gateway;
use super::watch::{Listener, Watch};
use super::{Deliver, EtcdAddress};

/// Time after which etcd removes the key of a silent member.
pub(crate) const MEMBER_TTL: Duration = Duration::from_secs(15);

/// The entries that a node writes to etcd about itself.
#[derive(Clone, Debug)]
pub(crate) struct Announcement {
    pub(crate) node: NodeId,
    /// Identity of the node's cluster (`ways::cluster_of`).
    pub(crate) place: String,
    /// Addresses at which other hosts dial the node; `None` for a node without other hosts, which watches no members.
    pub(crate) hosts: Option<String>,
}

/// A command for the thread that keeps the entries.
enum Command {
    Rewrite,
    Stop,
}

/// A node's entries in etcd; dropping this value withdraws them.
#[derive(Debug)]
pub(super) struct Enrolment {
    commands: Sender<Command>,
}

/// Asks the thread that keeps a node's entries to write them again.
#[derive(Clone, Debug)]
pub(super) struct RewriteEntries(Sender<Command>);

impl RewriteEntries {
    pub(super) fn request_rewrite(&self) {
        // If the node is leaving, its entries are not wanted any more.
        let _ = self.0.send(Command::Rewrite);
    }
}

impl Enrolment {
    /// Writes the node's entries, and then watches other members.
    pub(super) fn begin(
        address: &EtcdAddress,
        own: Announcement,
        deliver: Arc<Deliver>,
    ) -> std::io::Result<Enrolment> {
        let (commands, receiver) = channel();
        let key = |heading| format!("{}{}", address.heading(heading), own.node);
        let mut pairs = vec![(key("places"), own.place.clone())];
        pairs.extend(own.hosts.clone().map(|hosts| (key("members"), hosts)));
        let (address, rewrite) = (address.clone(), RewriteEntries(commands.clone()));
        let keep = move || {
            let gateway = Gateway::new(&address);
            let lease = gateway.keep_alive(None, &pairs, MEMBER_TTL, false);
            let listener = Listener { own, rewrite: Some(rewrite), deliver, delay: Duration::ZERO };
            let watch = Watch::begin(&address, listener);
            if let Err(error) = &watch {
                tracing::warn!("cannot watch the members in etcd: {error}");
            }
            keep_entries(&gateway, &pairs, lease, &receiver);
        };
        threads::spawn("halite-etcd-lease", keep)?;
        Ok(Enrolment { commands })
    }
}

impl Drop for Enrolment {
    fn drop(&mut self) {
        let _ = self.commands.send(Command::Stop);
    }
}

fn keep_entries(
    gateway: &Gateway,
    pairs: &[(String, String)],
    mut lease: Option<String>,
    receiver: &Receiver<Command>,
) {
    loop {
        let rewrites = match receiver.recv_timeout(MEMBER_TTL / 3) {
            Err(RecvTimeoutError::Timeout) => false,
            Ok(Command::Rewrite) => true,
            Ok(Command::Stop) | Err(RecvTimeoutError::Disconnected) => return gateway.revoke(lease),
        };
        // The node is alive even if its lease was lost: a new lease replaces it.
        lease = gateway.keep_alive(lease, pairs, MEMBER_TTL, rewrites);
    }
}
