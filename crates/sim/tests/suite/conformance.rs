//! The conformance suite of providers in virtual time: over the hardware of several profiles, and between processes of
//! one host.

use std::cell::Cell;
use std::sync::Arc;

use halite_fabric::Fabric;
use halite_fabric::conformance::Harness;
use halite_sim::{HostId, Profile, World};

/// Fabrics of one world.
struct Sim {
    world: World,
    /// If all processes are on one host: the last one.
    last_process: Option<Cell<Option<HostId>>>,
    is_adapter: bool,
}

impl Sim {
    fn between_hosts(profile: Profile) -> Sim {
        let is_adapter = profile.is_adapter();
        Sim { world: World::new(1, profile), last_process: None, is_adapter }
    }

    fn on_one_host() -> Sim {
        let world = World::with_processes(1, Profile::rnic_100g(), Profile::local());
        Sim { world, last_process: Some(Cell::new(None)), is_adapter: false }
    }

    fn add_host(&self) -> HostId {
        let Some(last) = &self.last_process else { return self.world.add_host() };
        let added = last.get().map_or_else(|| self.world.add_host(), |host| self.world.add_process(host));
        last.set(Some(added));
        added
    }
}

/// Longer than any wait of a case.
const WAIT_NS_MAX: u64 = 60_000_000_000;

impl Harness for Sim {
    fn open(&self, name: &str, hello: &[u8]) -> Arc<dyn Fabric> {
        self.world.fabric(self.add_host(), name, hello.to_vec())
    }

    fn address(&self, name: &str) -> String {
        name.to_owned()
    }

    fn sleep(&self, fabric: &dyn Fabric, seen: u32) -> bool {
        let deadline_ns = self.world.now_ns() + WAIT_NS_MAX;
        while fabric.doorbell() == seen {
            let rings = || fabric.doorbell() != seen;
            if self.world.now_ns() > deadline_ns || self.world.advance_unless(rings).is_err() {
                return false;
            }
        }
        true
    }

    fn settle(&self) {
        self.world.run_until(self.world.now_ns() + 10_000_000);
    }

    fn refusal_ends_connection(&self) -> bool {
        self.is_adapter
    }
}

mod local {
    use super::*;

    halite_fabric::fabric_conformance_suite!(Sim::between_hosts(Profile::local()));
}

mod rnic_100g {
    use super::*;

    halite_fabric::fabric_conformance_suite!(Sim::between_hosts(Profile::rnic_100g()));
}

mod rnic_100g_hca {
    use super::*;

    halite_fabric::fabric_conformance_suite!(Sim::between_hosts(Profile::rnic_100g_hca()));
}

mod on_one_host {
    use super::*;

    halite_fabric::fabric_conformance_suite!(Sim::on_one_host());
}

mod roce_100g {
    use super::*;

    halite_fabric::fabric_conformance_suite!(Sim::between_hosts(Profile::roce_100g()));
}

mod roce_100g_stateless {
    use super::*;

    halite_fabric::fabric_conformance_suite!(Sim::between_hosts(Profile::roce_100g_stateless()));
}
