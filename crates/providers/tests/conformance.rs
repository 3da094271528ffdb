//! The conformance suite of providers over shared memory: as it is, and as middleware shows it, without direct access.

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::Cluster;
use halite_fabric::Fabric;
use halite_fabric::conformance::Harness;
use halite_fabric::fault::{FaultInjector, FaultPlan};
use halite_fabric::trace::Tracer;
use halite_providers::ShmFabric;

/// Fabrics of this process in a directory of their own.
struct Shm {
    cluster: Cluster,
    wrap: fn(Arc<dyn Fabric>) -> Arc<dyn Fabric>,
    /// Turns a hang into a failure; no story is meant to come anywhere near.
    deadline: Instant,
}

impl Shm {
    fn new(wrap: fn(Arc<dyn Fabric>) -> Arc<dyn Fabric>) -> Shm {
        Shm { cluster: Cluster::new(), wrap, deadline: Instant::now() + Duration::from_secs(60) }
    }
}

impl Harness for Shm {
    fn open(&self, name: &str, hello: &[u8]) -> Arc<dyn Fabric> {
        let mut config = self.cluster.config(name);
        config.hello = hello.to_vec();
        (self.wrap)(ShmFabric::open(config).unwrap())
    }

    fn address(&self, name: &str) -> String {
        format!("{name}.sock")
    }

    fn sleep(&self, fabric: &dyn Fabric, seen: u32) -> bool {
        let left = self.deadline.saturating_duration_since(Instant::now());
        fabric.wait(seen, Some(left));
        !left.is_zero()
    }

    /// What is posted is done when the post returns; the gate takes its time, and is waited for by events.
    fn settle(&self) {}

    fn refusal_ends_connection(&self) -> bool {
        false
    }
}

mod direct {
    use super::*;

    halite_fabric::fabric_conformance_suite!(Shm::new(|fabric| fabric));
}

mod traced {
    use super::*;

    halite_fabric::fabric_conformance_suite!(Shm::new(|fabric| Arc::new(Tracer::new(fabric, 100))));
}

mod injected_without_atomics {
    use super::*;

    fn wrap(fabric: Arc<dyn Fabric>) -> Arc<dyn Fabric> {
        Arc::new(FaultInjector::new(fabric, FaultPlan::new(1)).without_atomics())
    }

    halite_fabric::fabric_conformance_suite!(Shm::new(wrap));
}
