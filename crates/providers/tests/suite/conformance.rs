//! The conformance suite of providers: over shared memory (direct, posted, as part of a composite) and over UDP.

use crate::common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::Cluster;
use common::roce::Roce;
use halite_fabric::conformance::Harness;
use halite_fabric::{Composite, Fabric, Sleeper};
use halite_providers::roce::ResponderMode;
use halite_providers::{RoceConfig, ShmConfig, ShmFabric, Sleep};

/// Fabrics of this process in a new directory.
struct Shm {
    cluster: Cluster,
    /// A second directory, for fabrics in two directories.
    spare: Cluster,
    open: Open,
    /// Prefix of addresses.
    prefix: &'static str,
    /// Time limit that turns a hang into a failure; no test should come near it.
    deadline: Instant,
}

/// Opens a fabric in the first directory, and may open another in the second directory.
type Open = fn(first: ShmConfig, other: ShmConfig) -> Arc<dyn Fabric>;

impl Shm {
    fn new(open: Open) -> Shm {
        let deadline = Instant::now() + Duration::from_secs(60);
        Shm { cluster: Cluster::new(), spare: Cluster::new(), open, prefix: "", deadline }
    }
}

fn shm(config: ShmConfig) -> Arc<dyn Fabric> {
    ShmFabric::open(config).unwrap()
}

fn on_descriptors(config: ShmConfig) -> Arc<dyn Fabric> {
    shm(ShmConfig { sleep: Sleep::Descriptor, ..config })
}

impl Harness for Shm {
    fn open(&self, name: &str, hello: &[u8]) -> Arc<dyn Fabric> {
        let config = |cluster: &Cluster| ShmConfig { hello: hello.to_vec(), ..cluster.config(name) };
        (self.open)(config(&self.cluster), config(&self.spare))
    }

    fn address(&self, name: &str) -> String {
        format!("{}{name}.sock", self.prefix)
    }

    fn sleep(&self, fabric: &dyn Fabric, seen: u32) -> bool {
        let left = self.deadline.saturating_duration_since(Instant::now());
        fabric.wait(Sleeper::Progress, seen, Some(left));
        !left.is_zero()
    }

    /// Has nothing to wait for: posted requests are complete when the post returns, and tests wait for the events of
    /// the acceptor.
    fn settle(&self) {}

    fn refusal_ends_connection(&self) -> bool {
        false
    }
}

mod direct {
    use super::*;

    halite_fabric::fabric_conformance_suite!(Shm::new(|config, _| shm(config)));
}

/// All requests are posted, as over a network.
mod posted {
    use super::*;

    fn open(config: ShmConfig) -> Arc<dyn Fabric> {
        shm(ShmConfig { direct: false, ..config })
    }

    halite_fabric::fabric_conformance_suite!(Shm::new(|config, _| open(config)));
}

/// A composite of two fabrics, of which the second reaches the peers.
mod composite_of_two {
    use super::*;

    fn open(config: ShmConfig, other: ShmConfig) -> Arc<dyn Fabric> {
        let parts = vec![("spare", on_descriptors(other)), ("used", on_descriptors(config))];
        Arc::new(Composite::new(parts).unwrap())
    }

    halite_fabric::fabric_conformance_suite!(Shm { prefix: "used:", ..Shm::new(open) });
}

fn stateless(config: RoceConfig) -> RoceConfig {
    RoceConfig { responder: ResponderMode::Stateless, ..config }
}

mod over_udp {
    use super::*;

    halite_fabric::fabric_conformance_suite!(Roce::new(|config| config));
}

/// Each fabric has two receiver threads.
mod over_udp_by_receivers {
    use super::*;

    halite_fabric::fabric_conformance_suite!(Roce::new(|config| RoceConfig { receivers: 2, ..config }));
}

/// All requests have one order.
mod over_udp_in_one_lane {
    use super::*;

    halite_fabric::fabric_conformance_suite!(Roce::new(|config| RoceConfig { lanes: 1, ..config }));
}

mod over_udp_in_four_lanes {
    use super::*;

    halite_fabric::fabric_conformance_suite!(Roce::new(|config| RoceConfig { lanes: 4, ..config }));
}

/// The responders keep no state for the peers.
mod stateless_over_udp {
    use super::*;

    halite_fabric::fabric_conformance_suite!(Roce::new(stateless));
}

mod stateless_over_udp_by_receivers {
    use super::*;

    halite_fabric::fabric_conformance_suite!(Roce::new(|config| stateless(RoceConfig {
        receivers: 2,
        ..config
    })));
}

mod stateless_between_hosts_over_udp {
    use super::*;

    halite_fabric::fabric_conformance_suite!(Roce::between_hosts(stateless));
}

mod between_hosts_over_udp_and_ipv6 {
    use super::*;

    halite_fabric::fabric_conformance_suite!(Roce::between_hosts(Roce::small_packets_over_ipv6));
}
