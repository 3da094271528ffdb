//! Nodes of a simulated world, to run cases on: the same stories, in virtual time.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use halite::{Config, Driven, JoinError, NodeId, Step};
use halite_sim::{CutOffBy, HostId, Profile, World};
use halite_trials::Birth;

use super::cluster::{Harness, Nodes, Place, Sessions};
use super::turns::{InWorld, wait};

/// What cases run with, unless [`SEED_VARIABLE`] says otherwise.  Everything follows from it.
const SEED: u64 = 1;
/// For who looks further: the seed of all cases.
const SEED_VARIABLE: &str = "HALITE_SIM_SEED";
/// How often is looked whether a node that leaves has left.
const LEAVING_LOOK: Duration = Duration::from_micros(50);
/// How long a process lives on after its node has left.
const LAST_WORDS: Duration = Duration::from_millis(1);

/// Each node on a host of its own, with hardware of a profile.
pub struct Simulated {
    profile: Profile,
    seed: u64,
    digest: Rc<Cell<u64>>,
}

impl Simulated {
    /// With the costs of a profile in `crates/sim/profiles`.
    pub fn profile(name: &str) -> Simulated {
        let wanted = std::env::var(SEED_VARIABLE).ok();
        Simulated::seeded(name, wanted.map_or(SEED, |seed| seed.parse().expect("the seed is a number")))
    }

    /// As [`Simulated::profile`], with another seed.
    pub fn seeded(name: &str, seed: u64) -> Simulated {
        Simulated {
            profile: Profile::named(name).expect("it is one of the tree"),
            seed,
            digest: Rc::default(),
        }
    }

    /// A number over everything that has happened in the world that ended last.
    pub fn digest(&self) -> u64 {
        self.digest.get()
    }
}

impl Harness for Simulated {
    fn found(&self) -> Box<dyn Place> {
        let world = World::new(self.seed, self.profile.clone());
        let told = InWorld::enter(&world);
        let (seed, digest) = (self.seed, self.digest.clone());
        Box::new(Hosts { seed, world, lives: RefCell::default(), nodes: RefCell::default(), digest, told })
    }

    /// What is done again happens again.
    fn count(&self, enough: usize, _many: usize) -> usize {
        enough
    }

    /// Adapters of other hosts only fall silent.
    fn sees_exits(&self) -> bool {
        self.profile.cut_off == CutOffBy::Exit
    }

    fn cannot(&self, case: &str) -> Option<&'static str> {
        CANNOT.iter().find(|(name, _)| *name == case).map(|(_, why)| *why)
    }
}

/// Cases that are not told in virtual time, and why.
pub const CANNOT: &[(&str, &str)] = &[(
    "a_number_is_taken_while_its_node_lives",
    "numbers are given by the cluster's directory, which simulated nodes do not have",
)];

struct Hosts {
    seed: u64,
    world: World,
    /// How often each number was started.
    lives: RefCell<BTreeMap<NodeId, u32>>,
    nodes: RefCell<BTreeMap<NodeId, (HostId, Rc<Driven>)>>,
    /// Where the digest is left.
    digest: Rc<Cell<u64>>,
    /// Until here the thread waits in virtual time.
    #[expect(dead_code, reason = "its end is what it is for")]
    told: InWorld,
}

impl Nodes for Hosts {
    fn start(&self, config: Config) -> Result<(), JoinError> {
        let node = config.node.expect("cases number their nodes");
        let incarnation =
            *self.lives.borrow_mut().entry(node).and_modify(|incarnation| *incarnation += 1).or_insert(1);
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
            wait(self.world.sleep(None, LEAVING_LOOK));
        }
        // Its process ends when what it has said last has been heard.
        drop(driven);
        wait(self.world.sleep(None, LAST_WORDS));
        self.world.crash(host);
    }

    fn kill(&self, node: NodeId) {
        let (host, driven) = self.nodes.borrow_mut().remove(&node).expect("the node has not left");
        // First the host, so that nothing is said any more.
        self.world.crash(host);
        drop(driven);
    }

    fn pid(&self, node: NodeId) -> u32 {
        Birth::pid(node)
    }
}

impl Sessions for Hosts {
    fn session(&self, node: NodeId) -> halite::Session {
        self.nodes.borrow()[&node].1.session()
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("it fails again with {SEED_VARIABLE}={}", self.seed);
        }
        self.digest.set(self.world.digest());
        self.world.end();
    }
}
