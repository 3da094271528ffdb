//! What a node that stays says of itself in etcd, for as long as it is there: which cluster it is of, and where other hosts dial it.
//!
//! The keys hang on a lease, and nothing else does: they say who seems to be there, and nobody is taken for dead by them.  A key that somebody has
//! removed, or written over by hand, is written again.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use halite_tier::ids::NodeId;

use super::gateway::Gateway;
use super::watch::{Listener, Watch};
use super::{Deliver, EtcdAddress};

/// How long the key of a member that says nothing stays.
const MEMBER_TTL: Duration = Duration::from_secs(15);

/// What a node says of itself.
#[derive(Clone, Debug)]
pub(crate) struct Announcement {
    pub(crate) node: NodeId,
    /// The cluster that it belongs to (`ways::cluster_of`).
    pub(crate) place: String,
    /// Where other hosts dial it; `None` where nodes of one host meet, and nothing is to be heard of them.
    pub(crate) hosts: Option<String>,
}

/// Somebody has to do with what a node has said.
enum Word {
    Again,
    Over,
}

/// The word of a node that stands in etcd for as long as this is kept.
#[derive(Debug)]
pub(super) struct Enrolment {
    words: Sender<Word>,
}

/// Has the word of a node written again.
#[derive(Clone, Debug)]
pub(super) struct SayAgain(Sender<Word>);

impl SayAgain {
    pub(super) fn say_again(&self) {
        // Who is about to leave says nothing.
        let _ = self.0.send(Word::Again);
    }
}

impl Enrolment {
    /// The node says that it is there, and then hears of others.
    pub(super) fn begin(
        address: &EtcdAddress,
        of: Announcement,
        deliver: Arc<Deliver>,
    ) -> std::io::Result<Enrolment> {
        let (words, heard) = channel();
        let key = |heading| format!("{}{}", address.heading(heading), of.node);
        let mut pairs = vec![(key("places"), of.place.clone())];
        pairs.extend(of.hosts.clone().map(|hosts| (key("members"), hosts)));
        let (address, again) = (address.clone(), SayAgain(words.clone()));
        let keep = move || {
            let gateway = Gateway::new(&address);
            let lease = gateway.keep(None, &pairs, MEMBER_TTL, false);
            let listener = Listener { of, again: Some(again), deliver, after: Duration::ZERO };
            let watch = Watch::begin(&address, listener);
            if let Err(error) = &watch {
                tracing::warn!("no thread could be started to hear of members: {error}");
            }
            keep(&gateway, &pairs, lease, &heard);
        };
        std::thread::Builder::new().name("halite-etcd-lease".to_owned()).spawn(keep)?;
        Ok(Enrolment { words })
    }
}

impl Drop for Enrolment {
    fn drop(&mut self) {
        let _ = self.words.send(Word::Over);
    }
}

fn keep(gateway: &Gateway, pairs: &[(String, String)], mut lease: Option<String>, heard: &Receiver<Word>) {
    loop {
        let is_again = match heard.recv_timeout(MEMBER_TTL / 3) {
            Err(RecvTimeoutError::Timeout) => false,
            Ok(Word::Again) => true,
            Ok(Word::Over) | Err(RecvTimeoutError::Disconnected) => return gateway.revoke(lease),
        };
        // A lease that was lost is only a sign of life that was late: another takes its place.
        lease = gateway.keep(lease, pairs, MEMBER_TTL, is_again);
    }
}
