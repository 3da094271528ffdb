//! Nodes of a simulated world, which run the cases in virtual time.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use halite::{Config, Driven, JoinError, NodeId, Step};
use halite_sim::{CutOffBy, HostId, Profile, World};
use halite_trials::Birth;

use super::cluster::{Harness, Nodes};
use super::turns::{InWorld, wait};

/// Seed of all cases, unless [`SEED_VARIABLE`] is set. It determines the whole run.
const SEED: u64 = 1;
/// Environment variable with another seed, to explore more runs.
const SEED_VARIABLE: &str = "HALITE_SIM_SEED";
/// Interval between checks whether a leaving node has left.
const LEAVE_CHECK_INTERVAL: Duration = Duration::from_micros(50);
/// Time for which a process continues after its node has left, so that its last messages arrive.
const LINGER: Duration = Duration::from_millis(1);

/// Nodes on simulated hosts, one per host, with the hardware of a profile.
pub struct Simulated {
    profile: Profile,
    seed: u64,
}

impl Simulated {
    /// Creates a harness with the costs of the profile `name` in `crates/sim/profiles`.
    pub fn profile(name: &str) -> Simulated {
        let wanted = std::env::var(SEED_VARIABLE).ok();
        Simulated {
            profile: Profile::named(name).expect("the profile is built in"),
            seed: wanted.map_or(SEED, |seed| seed.parse().expect("the seed is a number")),
        }
    }
}

impl Harness for Simulated {
    fn create(&self) -> Box<dyn Nodes> {
        let world = World::new(self.seed, self.profile.clone());
        let in_world = InWorld::enter(&world);
        let (incarnations, nodes) = Default::default();
        Box::new(Hosts { seed: self.seed, world, incarnations, nodes, in_world })
    }

    /// Returns `enough`, because repetitions of a deterministic run find no more faults.
    fn count(&self, enough: usize, _many: usize) -> usize {
        enough
    }

    /// Returns true only if the profile's adapters report the exit of a process.
    fn sees_exits(&self) -> bool {
        self.profile.cut_off == CutOffBy::Exit
    }

    fn cannot(&self, _: &str, case: &str) -> Option<&'static str> {
        (case == "a_number_is_taken_while_its_node_lives")
            .then_some("the cluster directory assigns numbers, and simulated nodes have none")
    }
}

struct Hosts {
    seed: u64,
    world: World,
    /// Number of incarnations so far, by node number.
    incarnations: RefCell<BTreeMap<NodeId, u32>>,
    nodes: RefCell<BTreeMap<NodeId, (HostId, Rc<Driven>)>>,
    /// Makes the thread of the case wait in virtual time.
    #[expect(dead_code, reason = "dropping it ends the virtual time")]
    in_world: InWorld,
}

impl Nodes for Hosts {
    fn start(&self, config: Config) -> Result<(), JoinError> {
        let node = config.node.expect("cases number their nodes");
        let incarnation = *self
            .incarnations
            .borrow_mut()
            .entry(node)
            .and_modify(|incarnation| *incarnation += 1)
            .or_insert(1);
        let host = self.world.add_host();
        let birth = Birth { host, incarnation, stream: format!("node {node} incarnation {incarnation}") };
        let (driven, fabric) = birth.of(&self.world, &config)?;
        self.nodes.borrow_mut().insert(node, (host, driven.clone()));
        wait(driven.join(&config, &fabric.discover()))
    }

    fn leave(&self, node: NodeId) {
        let (host, driven) = self.nodes.borrow_mut().remove(&node).expect("the node has not left");
        driven.begin_to_leave();
        while driven.step() != Step::Left {
            wait(self.world.sleep(None, LEAVE_CHECK_INTERVAL));
        }
        // The process continues until its last messages have arrived.
        drop(driven);
        wait(self.world.sleep(None, LINGER));
        self.world.crash(host);
    }

    fn kill(&self, node: NodeId) {
        let (host, driven) = self.nodes.borrow_mut().remove(&node).expect("the node has not left");
        // The host crashes first, so that the node sends nothing more.
        self.world.crash(host);
        drop(driven);
    }

    fn pid(&self, node: NodeId) -> u32 {
        Birth::pid(node)
    }

    fn session(&self, node: NodeId) -> halite::Session {
        self.nodes.borrow()[&node].1.session()
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("to repeat this run, set {SEED_VARIABLE}={}", self.seed);
        }
        self.world.end();
    }
}
