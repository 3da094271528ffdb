//! Nodes whose protocol versions differ by one refuse each other, and the error of the joining node contains both
//! versions.

use crate::common;

use std::sync::Arc;

use common::Dir;
use halite::{JoinError, Node};
use halite_fabric::Fabric;
use halite_fabric::middleware::Middleware;
use halite_tier::hello::PROTOCOL_VERSION;

/// A fabric that changes the protocol version in hellos, in both directions, so that its node and its peers seem to
/// have different versions.
struct VersionFabric {
    version: u16,
    inner: Arc<dyn Fabric>,
}

impl Middleware for VersionFabric {
    fn inner(&self) -> &dyn Fabric {
        &*self.inner
    }

    fn connect(&self, address: &str, hello: &[u8]) {
        self.inner.connect(address, &with_version(self.version, hello));
    }

    fn poll(&self, events: &mut Vec<halite_fabric::Event>) -> usize {
        let begin = events.len();
        let count = self.inner.poll(events);
        for event in &mut events[begin..] {
            if let halite_fabric::Event::Connected { hello, .. } = event {
                hello[0] = shown_version(self.version, u16::from(hello[0])).try_into().unwrap();
            }
        }
        count
    }
}

/// Returns the version that a peer that plays `theirs` must show to a node that plays `version`: the real version,
/// which is the same everywhere, plus the difference between the played versions.
fn shown_version(version: u16, theirs: u16) -> u16 {
    PROTOCOL_VERSION + theirs - version
}

/// Returns the hello with another version. A version below 128 is the first byte of a hello.
fn with_version(version: u16, hello: &[u8]) -> Vec<u8> {
    let mut hello = hello.to_vec();
    assert_eq!(u16::from(hello[0]), PROTOCOL_VERSION);
    hello[0] = u8::try_from(version).unwrap();
    hello
}

/// Joins a node that plays `version`: its fabric changes hellos in both directions.
fn join(dir: &Dir, node: u32, version: u16) -> Result<Node, JoinError> {
    Node::wrap(dir.config(node), |inner| Arc::new(VersionFabric { version, inner }))
}

#[test]
fn neighbouring_versions_refuse_each_other() {
    let ours = PROTOCOL_VERSION;
    for (founds, comes) in [(ours, ours - 1), (ours, ours + 1)] {
        let dir = Dir::new();
        let _first = join(&dir, 0, founds).expect("the first node founds a cluster");
        match join(&dir, 1, comes) {
            Err(error @ JoinError::OtherVersion { theirs, .. }) => {
                assert_eq!(theirs, shown_version(comes, founds));
                let text = error.to_string();
                assert!(
                    text.contains(&format!("speaks protocol version {theirs}, this node version {ours}")),
                    "{text}"
                );
            }
            other => panic!("{founds} and {comes}: {other:?}"),
        }
    }
    // Nodes of the same version still connect.
    let dir = Dir::new();
    let _nodes = [0, 1].map(|node| join(&dir, node, ours).unwrap());
}
