//! Nodes whose versions of the protocol are one apart refuse each other, and say both versions: who joins to its user, the other in its log.

use crate::common;

use std::fmt::{Debug, Write};
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::Duration;

use common::Dir;
use halite::{Config, Hosts, JoinError, Node, NodeIdentity, Provider};
use halite_fabric::Fabric;
use halite_fabric::middleware::Middleware;
use halite_providers::secure::Secret;
use halite_providers::{RoceConfig, RoceFabric, ShmConfig, ShmFabric};
use halite_tier::hello::PROTOCOL_VERSION;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// A fabric whose node is taken for one of another version, and takes others for what they would be to that.
struct Speaks {
    version: u16,
    inner: Arc<dyn Fabric>,
}

impl Middleware for Speaks {
    fn inner(&self) -> &dyn Fabric {
        &*self.inner
    }

    fn connect(&self, address: &str, hello: &[u8]) {
        self.inner.connect(address, &as_of(self.version, hello));
    }

    fn poll(&self, events: &mut Vec<halite_fabric::Event>) -> usize {
        let begin = events.len();
        let count = self.inner.poll(events);
        for event in &mut events[begin..] {
            if let halite_fabric::Event::Connected { hello, .. } = event {
                hello[0] = seen_by(self.version, u16::from(hello[0])).try_into().unwrap();
            }
        }
        count
    }
}

/// All are built from one source: to a node that stands for one of `version`, others are as far from ours as they are from that.
fn seen_by(version: u16, theirs: u16) -> u16 {
    PROTOCOL_VERSION + theirs - version
}

/// The same hello of another version: that is its first byte, as long as it is below 128.
fn as_of(version: u16, hello: &[u8]) -> Vec<u8> {
    let mut hello = hello.to_vec();
    assert_eq!(u16::from(hello[0]), PROTOCOL_VERSION);
    hello[0] = u8::try_from(version).unwrap();
    hello
}

fn join(dir: &Dir, node: u32, provider: Provider, version: u16) -> Result<Node, JoinError> {
    let open = |identity: &NodeIdentity| -> Result<Arc<dyn Fabric>, JoinError> {
        let (name, hello) = (identity.name_of(provider), as_of(version, &identity.hello));
        let inner: Arc<dyn Fabric> = match provider {
            Provider::Shm => {
                ShmFabric::open(ShmConfig { hello, ..ShmConfig::new(dir.path(), name) }).unwrap()
            }
            Provider::Roce => {
                RoceFabric::open(RoceConfig { hello, ..RoceConfig::new(dir.path(), name) }).unwrap()
            }
        };
        Ok(Arc::new(Speaks { version, inner }))
    };
    let config = Config { providers: vec![provider], ..dir.config(node) };
    Node::with_fabric(config, open)
}

/// Lines of the log of all nodes of this process.
#[derive(Clone, Default)]
struct Log(Arc<(Mutex<Vec<String>>, Condvar)>);

impl Log {
    /// Waits until a line holds that; fails where none has come for half a minute.
    fn awaits(&self, told: &str) {
        let (lines, has_grown) = &*self.0;
        let lacks_it = |lines: &mut Vec<String>| !lines.iter().any(|line| line.contains(told));
        let waited = has_grown.wait_timeout_while(lines.lock().unwrap(), Duration::from_secs(30), lacks_it);
        let (lines, timeout) = waited.unwrap();
        assert!(!timeout.timed_out(), "{told}: {lines:?}");
    }

    fn clear(&self) {
        self.0.0.lock().unwrap().clear();
    }
}

impl Subscriber for Log {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn event(&self, event: &Event<'_>) {
        struct Message(String);
        impl Visit for Message {
            fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
                if field.name() == "message" {
                    write!(self.0, "{value:?}").unwrap();
                }
            }
        }
        let mut message = Message(String::new());
        event.record(&mut message);
        self.0.0.lock().unwrap().push(message.0);
        self.0.1.notify_all();
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// The log of all nodes of this process.
fn logged() -> Log {
    static LOG: OnceLock<Log> = OnceLock::new();
    let log = LOG.get_or_init(|| {
        let log = Log::default();
        tracing::subscriber::set_global_default(log.clone()).unwrap();
        log
    });
    log.clear();
    log.clone()
}

/// One joins that stands for a node of version `comes`, at one of version `founds`: both say which the other has.
#[track_caller]
fn check_both_say_so(log: &Log, joined: Result<Node, JoinError>, founds: u16, comes: u16) {
    let ours = PROTOCOL_VERSION;
    match joined {
        Err(error @ JoinError::OtherVersion { theirs, .. }) => {
            assert_eq!(theirs, seen_by(comes, founds));
            let text = error.to_string();
            let said = format!("speaks protocol version {theirs}, this node version {ours}");
            assert!(text.contains(&said), "{text}");
        }
        other => panic!("{founds} and {comes}: {other:?}"),
    }
    let seen = seen_by(founds, comes);
    log.awaits(&format!("version {seen} of the protocol, and this node version {ours}"));
}

#[test]
fn neighbouring_versions_refuse_each_other_and_name_both() {
    let _alone = crate::alone();
    let log = logged();
    let ours = PROTOCOL_VERSION;
    for provider in [Provider::Shm, Provider::Roce] {
        for (founds, comes) in [(ours, ours - 1), (ours, ours + 1), (ours - 1, ours), (ours + 1, ours)] {
            log.clear();
            let dir = Dir::new();
            let _first = join(&dir, 0, provider, founds).expect("it founds a cluster");
            check_both_say_so(&log, join(&dir, 1, provider, comes), founds, comes);
        }
    }
    // As before, those of one version meet.
    let dir = Dir::new();
    let _nodes = [0, 1].map(|node| join(&dir, node, Provider::Shm, ours).unwrap());
}

/// Who dials over a network hangs up as soon as it knows why.
#[test]
fn a_node_that_another_host_has_dialled_says_which_version_that_has() {
    let _alone = crate::alone();
    let log = logged();
    let ours = PROTOCOL_VERSION;
    let (first, second) = (Dir::new(), Dir::new());
    let secret = first.path().with_extension("secret");
    Secret::new().unwrap().write_new(&secret).unwrap();
    let hosts = |join: Vec<SocketAddr>| {
        Some(Hosts { listen: vec!["127.0.0.1:0".parse().unwrap()], join, secret_file: secret.clone() })
    };
    let founder = first.try_join(Config { hosts: hosts(Vec::new()), ..first.config(0) }).unwrap();
    for comes in [ours - 1, ours + 1] {
        log.clear();
        let join = founder.addresses().to_vec();
        let config = Config { hosts: hosts(join), ..second.config(1) };
        let joined = Node::wrap(config, |inner| Arc::new(Speaks { version: comes, inner }));
        check_both_say_so(&log, joined, ours, comes);
    }
}
