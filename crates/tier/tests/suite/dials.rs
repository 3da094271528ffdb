//! Nodes that dial each other at once.  In any order of arrivals, one connection per pair is left, the same at both
//! ends; no message is lost, and no node is taken for dead.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use fastrand::Rng;
use halite_fabric::{Key, PeerId};
use halite_mem::Window;
use halite_tier::access::DataPath;
use halite_tier::effect::{Command, CommandError, Effect, OpId, Outcome};
use halite_tier::engine::{Connection, Engine, EngineConfig};
use halite_tier::hello::{BadHello, Hello};
use halite_tier::ids::{Incarnation, NodeId, NodeIncarnation, Principal, SessionId};
use halite_tier::link;
use halite_tier::mapper::Reach;
use halite_tier::message::{self, Member, Message, NodeState, Notice};
use halite_tier::news::News;

const LEASE_NS: u64 = 1_000_000;
const SEEDS: u64 = 300;

struct Nowhere;

impl Reach for Nowhere {
    fn window(&self, _: PeerId, _: Key) -> Option<Window> {
        None
    }
}

/// An event from the fabric at one end of a connection.
enum Arrival {
    Connected { dialled: bool, hello: Vec<u8> },
    Frame(Vec<u8>),
    End,
}

/// One end of a connection, with the events that have yet to arrive, in order.
struct End {
    arrivals: VecDeque<Arrival>,
    /// The other host, and its id of the connection.
    other: (usize, PeerId),
    is_open: bool,
}

struct Node {
    engine: Engine,
    session: SessionId,
    running: bool,
    ends: BTreeMap<PeerId, End>,
    /// Peers that the engine reported up.
    up: BTreeSet<PeerId>,
    /// Number of peers reported down.
    lost: usize,
    /// Number of frames sent.
    frames_sent: usize,
    asked: Vec<OpId>,
    finished: BTreeMap<OpId, Result<Outcome, CommandError>>,
    news: Vec<News>,
}

struct World {
    nodes: Vec<Node>,
    now_ns: u64,
    random: Rng,
    peers: u32,
}

impl World {
    fn new(seed: u64, nodes: u32) -> World {
        let nodes = (0..nodes).map(|node| Node::new(node, node)).collect();
        World { nodes, now_ns: 0, random: Rng::with_seed(seed), peers: 0 }
    }

    fn draw(&mut self, below: usize) -> usize {
        self.random.usize(..below)
    }

    fn dial(&mut self, from: usize, to: usize) {
        let [here, there] = [1, 2].map(|count| PeerId(self.peers + count));
        self.peers += 2;
        for (node, peer, other, dialled) in
            [(from, here, (to, there), true), (to, there, (from, here), false)]
        {
            let hello = self.nodes[other.0].engine.hello();
            let arrivals = [Arrival::Connected { dialled, hello }].into();
            self.nodes[node].ends.insert(peer, End { arrivals, other, is_open: true });
        }
    }

    /// Delivers one event; returns true if there was any.
    fn step(&mut self) -> bool {
        let waiting: Vec<(usize, PeerId)> = (self.nodes.iter().enumerate())
            .filter(|(_, node)| node.running)
            .flat_map(|(index, node)| {
                let waiting = node.ends.iter().filter(|(_, end)| !end.arrivals.is_empty());
                waiting.map(move |(peer, _)| (index, *peer))
            })
            .collect();
        if waiting.is_empty() {
            return false;
        }
        let (node, peer) = waiting[self.draw(waiting.len())];
        self.arrive(node, peer);
        true
    }

    fn arrive(&mut self, index: usize, peer: PeerId) {
        let (now_ns, node) = (self.now_ns, &mut self.nodes[index]);
        let arrival = node.ends.get_mut(&peer).and_then(|end| end.arrivals.pop_front()).expect("not empty");
        match arrival {
            Arrival::Connected { dialled, hello } => {
                let connection = Connection { peer, dialled, send_bytes_max: 256 };
                node.engine.handle_connected(now_ns, connection, &hello);
            }
            Arrival::Frame(bytes) => {
                node.engine.handle_heard(now_ns, peer);
                self.perform(index);
                let node = &mut self.nodes[index];
                node.engine.handle_message(now_ns, peer, &bytes);
            }
            Arrival::End => {
                node.engine.handle_disconnected(now_ns, peer);
                node.engine.handle_cut_off(now_ns, peer, false);
                node.ends.remove(&peer);
            }
        }
        self.perform(index);
    }

    fn perform(&mut self, index: usize) {
        while let Some(effect) = self.nodes[index].engine.poll_effect() {
            let node = &mut self.nodes[index];
            match effect {
                Effect::Send { peer, bytes, .. } => {
                    node.frames_sent += 1;
                    self.carry(index, peer, Arrival::Frame(bytes));
                }
                Effect::PeerUp { peer, .. } => assert!(node.up.insert(peer)),
                Effect::PeerDown(peer) => {
                    assert!(node.up.remove(&peer));
                    node.lost += 1;
                }
                Effect::Disconnect(peer) => self.hang_up(index, peer),
                Effect::Finish { op, outcome } => {
                    node.finished.insert(op, outcome);
                }
                Effect::News(news) => node.news.push(news),
                Effect::CutOff(peer) => panic!("node {index} cuts off {peer:?}"),
                _ => {}
            }
        }
    }

    fn carry(&mut self, from: usize, peer: PeerId, arrival: Arrival) {
        let Some(end) = self.nodes[from].ends.get(&peer).filter(|end| end.is_open) else { return };
        let (to, known_as) = end.other;
        if let Some(end) = self.nodes[to].ends.get_mut(&known_as).filter(|end| end.is_open) {
            end.arrivals.push_back(arrival);
        }
    }

    /// Both ends see it, after the events in flight to them.
    fn hang_up(&mut self, from: usize, peer: PeerId) {
        let Some(end) = self.nodes[from].ends.get(&peer).filter(|end| end.is_open) else { return };
        for (node, peer) in [end.other, (from, peer)] {
            if let Some(end) = self.nodes[node].ends.get_mut(&peer).filter(|end| end.is_open) {
                end.is_open = false;
                end.arrivals.push_back(Arrival::End);
            }
        }
    }

    fn kill(&mut self, index: usize) {
        self.nodes[index].running = false;
        for peer in self.nodes[index].ends.keys().copied().collect::<Vec<_>>() {
            self.hang_up(index, peer);
        }
    }

    /// A node sends a request to all connected peers.
    fn ask(&mut self, index: usize) {
        let (now_ns, node) = (self.now_ns, &mut self.nodes[index]);
        let op = node.engine.submit(now_ns, node.session, Command::Status);
        node.asked.push(op);
        self.perform(index);
    }

    /// Runs until idle, with requests now and then.
    fn run(&mut self) {
        while self.step() {
            let (asks, index) = (self.draw(4) == 0, self.draw(self.nodes.len()));
            if asks && self.nodes[index].running && self.nodes[index].asked.len() < 5 {
                self.ask(index);
            }
        }
    }

    fn sleep(&mut self, duration_ns: u64) {
        let end_ns = self.now_ns + duration_ns;
        while self.now_ns < end_ns {
            self.now_ns += LEASE_NS / 4;
            for index in 0..self.nodes.len() {
                if self.nodes[index].running {
                    self.nodes[index].engine.handle_timeout(self.now_ns);
                    self.perform(index);
                }
            }
            self.run();
        }
    }

    /// The connections left between two nodes, as pairs of ids.
    fn between(&self, one: usize, other: usize) -> Vec<(PeerId, PeerId)> {
        let to_other = self.nodes[one].ends.iter().filter(|(_, end)| end.other.0 == other);
        to_other.map(|(peer, end)| (*peer, end.other.1)).collect()
    }

    fn check_pair(&self, one: usize, other: usize) {
        let left = self.between(one, other);
        assert_eq!(left.len(), 1, "one connection between {one} and {other}");
        let (here, there) = left[0];
        assert!(self.nodes[one].up.contains(&here) && self.nodes[other].up.contains(&there));
        assert_eq!((self.nodes[one].up_to(other), self.nodes[other].up_to(one)), (1, 1));
    }

    /// Every living node knows all living nodes, and received all replies.
    fn check(&mut self, seed: u64) {
        let alive: Vec<usize> = (0..self.nodes.len()).filter(|index| self.nodes[*index].running).collect();
        for (at, one) in alive.iter().enumerate() {
            alive[at + 1..].iter().for_each(|other| self.check_pair(*one, *other));
            assert!(!self.nodes[*one].engine.awaits_first_words(), "seed {seed}");
        }
        for index in &alive {
            self.ask(*index);
        }
        while self.step() {}
        for index in &alive {
            let node = &self.nodes[*index];
            let outcomes: Vec<_> = node.asked.iter().map(|op| node.finished.get(op)).collect();
            for outcome in &outcomes {
                assert!(matches!(outcome, Some(Ok(_))), "seed {seed}: {outcome:?}");
            }
            let Some(Some(Ok(Outcome::Status(all)))) = outcomes.last() else { panic!("a status") };
            let living = all.iter().filter(|status| status.state == NodeState::Alive).count();
            assert_eq!(living, alive.len(), "seed {seed}");
        }
    }
}

impl Node {
    fn new(node: u32, incarnation: u32) -> Node {
        let incarnation =
            NodeIncarnation { node: NodeId(node), id: Incarnation(100 + u64::from(incarnation)) };
        let config = EngineConfig {
            incarnation,
            pid: node,
            lease_ns: LEASE_NS,
            bytes_total: 0,
            segment_bytes: 0,
            epoch_ns: 0,
            address: String::new(),
            provider: "test".to_owned(),
            full_mesh_nodes_max: 64,
        };
        let mut engine = Engine::new(config, Arc::new(DataPath::default()), Arc::new(Nowhere), 0);
        let session = engine.open_session(Principal("ada".into())).expect("the first session");
        Node {
            engine,
            session,
            running: true,
            ends: BTreeMap::new(),
            up: BTreeSet::new(),
            lost: 0,
            frames_sent: 0,
            asked: Vec::new(),
            finished: BTreeMap::new(),
            news: Vec::new(),
        }
    }

    fn up_to(&self, other: usize) -> usize {
        self.up.iter().filter(|peer| self.ends.get(peer).is_some_and(|end| end.other.0 == other)).count()
    }
}

#[test]
fn crossing_dials_leave_one_connection() {
    for seed in 0..SEEDS {
        let mut world = World::new(seed, 2);
        world.dial(0, 1);
        world.dial(1, 0);
        world.run();
        world.check(seed);
        assert_eq!(world.nodes.iter().map(|node| node.lost).sum::<usize>(), 0, "seed {seed}");
    }
}

#[test]
fn all_to_all_dials_form_one_cluster() {
    for seed in 0..SEEDS {
        let mut world = World::new(seed, 4);
        let pairs = (0..3).flat_map(|one| (0..3).map(move |other| (one, other)));
        for (one, other) in pairs.filter(|(one, other)| one != other) {
            world.dial(one, other);
            for _ in 0..world.draw(4) {
                world.step();
            }
        }
        for other in 0..3 {
            world.dial(3, other);
        }
        world.run();
        world.check(seed);
        assert_eq!(world.nodes.iter().map(|node| node.lost).sum::<usize>(), 0, "seed {seed}");
    }
}

/// The death may come at any moment; a third node watches.
#[test]
fn death_during_crossing_dials_leaves_no_trace() {
    for seed in 0..3 * SEEDS {
        let mut world = World::new(seed, 3);
        for (from, to) in [(0, 2), (1, 2), (0, 1), (1, 0)] {
            world.dial(from, to);
        }
        for _ in 0..world.draw(20) {
            world.step();
        }
        let (dies, lives) = if seed % 2 == 0 { (0, 1) } else { (1, 0) };
        world.kill(dies);
        world.run();
        assert_eq!(world.between(lives, dies), [], "seed {seed}");
        world.check_pair(lives, 2);
        for index in [lives, 2] {
            let node = &world.nodes[index];
            assert!(!node.engine.is_connected_to(NodeId(dies as u32)), "seed {seed}");
            assert!(!node.engine.awaits_first_words(), "seed {seed}");
            assert_eq!(node.asked.len(), node.finished.len(), "seed {seed}: a command waits for the dead");
        }
    }
}

/// A node may be stopped; this costs three leases, and affects no other node.
#[test]
fn peers_that_never_choose_are_dropped() {
    let mut world = World::new(1, 2);
    world.dial(1, 0);
    world.nodes[0].running = false;
    world.run();
    assert!(world.nodes[1].engine.awaits_first_words());
    world.sleep(4 * LEASE_NS);
    assert!(!world.nodes[1].engine.awaits_first_words());
    assert_eq!((world.nodes[1].lost, world.nodes[1].up.len()), (0, 0), "never up");
}

/// Each reports first that it is paired, and what it holds for the other; the directory also lists the members.
#[test]
fn joining_costs_few_messages_per_peer() {
    let mut world = World::new(1, 3);
    world.nodes[2].engine.begin_to_meet();
    for (from, to) in [(2, 1), (2, 0)] {
        world.dial(from, to);
    }
    while world.step() {}
    // Only node 2 has to report the names of its regions to the directory.
    assert_eq!([0, 1, 2].map(|index| world.nodes[index].frames_sent), [3, 2, 6]);
}

#[test]
fn a_dial_by_either_end_pairs_again() {
    for late in [(0, 1), (1, 0)] {
        let mut world = World::new(1, 2);
        world.dial(1, 0);
        world.run();
        let (here, _) = world.between(0, 1)[0];
        world.hang_up(0, here);
        world.run();
        assert_eq!((world.nodes[0].lost, world.nodes[1].lost), (1, 1));
        world.dial(late.0, late.1);
        world.run();
        world.check_pair(0, 1);
        assert!(world.nodes.iter().all(|node| node.lost == 1));
    }
}

#[test]
fn dialers_with_bad_hellos_are_dropped() {
    let incarnation = |node| NodeIncarnation { node: NodeId(node), id: Incarnation(7) };
    let ours = Hello { incarnation: incarnation(0), pid: 1, bytes_total: 0, address: String::new() }.encode();
    let mut other =
        Hello { incarnation: incarnation(1), pid: 1, bytes_total: 0, address: String::new() }.encode();
    other[0] += 1;
    for (hello, why) in [
        (ours, BadHello::OurNumber(NodeId(0))),
        (other.clone(), BadHello::Version(u16::from(other[0]))),
        (b"".to_vec(), BadHello::Malformed),
    ] {
        let mut engine = Node::new(0, 0).engine;
        let connection = Connection { peer: PeerId(7), dialled: false, send_bytes_max: 256 };
        engine.handle_connected(0, connection, &hello);
        let mut effects = Vec::from_iter(std::iter::from_fn(|| engine.poll_effect()));
        if matches!(why, BadHello::Version(_)) {
            // It sees the other version as well, and hangs up by itself if it conforms.
            assert!(matches!(effects[..], [Effect::News(_)]), "{effects:?}");
            while let Some(due_ns) = engine.poll_timeout().filter(|due_ns| *due_ns <= 2 * LEASE_NS) {
                engine.handle_timeout(due_ns);
                effects.extend(std::iter::from_fn(|| engine.poll_effect()));
            }
        }
        assert!(
            matches!(effects[..], [Effect::News(News::Refused(refusal)), Effect::Disconnect(PeerId(7))] if refusal == why),
            "{effects:?}"
        );
    }
}

#[test]
fn joiners_dial_unreachable_members_without_waiting() {
    let incarnation = |node| NodeIncarnation { node: NodeId(node), id: Incarnation(7) };
    let directory = Hello { incarnation: incarnation(0), pid: 1, bytes_total: 0, address: "zero".to_owned() };
    let mut engine = Node::new(5, 0).engine;
    let connection = Connection { peer: PeerId(7), dialled: true, send_bytes_max: 1 << 16 };
    engine.handle_connected(0, connection, &directory.encode());
    let dials_after = |engine: &mut Engine, notice| {
        for frame in link::frames(&message::encode(&Message::Notice(notice)), 1 << 16) {
            engine.handle_message(0, PeerId(7), &frame);
        }
        let effects = std::iter::from_fn(|| engine.poll_effect());
        effects
            .filter_map(|effect| if let Effect::Dial { address } = effect { Some(address) } else { None })
            .collect()
    };
    let known_notice = |living: &[(u32, &str)], unreachable: &[(u32, &str)]| {
        let known = |nodes: &[(u32, &str)]| {
            nodes
                .iter()
                .map(|(node, address)| (Member::unseen(incarnation(*node)), (*address).to_owned()))
                .collect()
        };
        Notice::Known { living: known(living), unreachable: known(unreachable), ended: Vec::new() }
    };
    let dialled: Vec<String> = dials_after(&mut engine, Notice::Welcome { pairing: 1 });
    assert!(engine.is_connected_to(NodeId(0)) && dialled.is_empty());
    assert_eq!(dials_after(&mut engine, known_notice(&[(0, "zero")], &[(1, "one")])), ["one"]);
    assert!(!engine.is_connecting(NodeId(1)), "not awaited");
    assert_eq!(dials_after(&mut engine, known_notice(&[(2, "two")], &[])), ["two"]);
    assert!(engine.is_connecting(NodeId(2)));
}

#[test]
fn unreachable_addresses_are_retried_until_answered() {
    let mut engine = Node::new(5, 0).engine;
    let dials = |engine: &mut Engine, now_ns| {
        engine.handle_timeout(now_ns);
        let effects = std::iter::from_fn(|| engine.poll_effect());
        effects.filter(|effect| matches!(effect, Effect::Dial { address } if address == "by name")).count()
    };
    engine.handle_stranger("by name");
    assert_eq!((1..4).map(|lease| dials(&mut engine, lease * LEASE_NS)).collect::<Vec<_>>(), [1, 1, 1]);
    // The node that answers there gives another address as its own.
    let hello = Hello {
        incarnation: NodeIncarnation { node: NodeId(3), id: Incarnation(7) },
        pid: 1,
        bytes_total: 0,
        address: "by number".to_owned(),
    };
    let connection = Connection { peer: PeerId(7), dialled: true, send_bytes_max: 256 };
    engine.handle_connected(4 * LEASE_NS, connection, &hello.encode());
    engine.handle_answered("by name");
    assert_eq!((5..9).map(|lease| dials(&mut engine, lease * LEASE_NS)).sum::<usize>(), 0);
}

/// A node that learns of node 1, which is unreachable, from node 0.
struct Dialer {
    engine: Engine,
    /// Quarters of a lease that have passed.
    quarters: u64,
}

impl Dialer {
    fn new(own: u32) -> Dialer {
        let mut dialer = Dialer { engine: Node::new(5, own).engine, quarters: 0 };
        dialer.meet(0, PeerId(7), "zero");
        dialer.hear(PeerId(7), Notice::Welcome { pairing: 1 });
        let unreachable = vec![(Member::unseen(Dialer::incarnation(1)), "one".to_owned())];
        dialer.hear(PeerId(7), Notice::Known { living: Vec::new(), unreachable, ended: Vec::new() });
        dialer
    }

    fn incarnation(node: u32) -> NodeIncarnation {
        NodeIncarnation { node: NodeId(node), id: Incarnation(7) }
    }

    fn now_ns(&self) -> u64 {
        self.quarters * LEASE_NS / 4
    }

    fn meet(&mut self, node: u32, peer: PeerId, address: &str) {
        let incarnation = Dialer::incarnation(node);
        let hello = Hello { incarnation, pid: 1, bytes_total: 0, address: address.to_owned() };
        let connection = Connection { peer, dialled: true, send_bytes_max: 1 << 16 };
        self.engine.handle_connected(self.now_ns(), connection, &hello.encode());
    }

    fn hear(&mut self, peer: PeerId, notice: Notice) {
        for frame in link::frames(&message::encode(&Message::Notice(notice)), 1 << 16) {
            self.engine.handle_message(self.now_ns(), peer, &frame);
        }
    }

    fn lose(&mut self, peer: PeerId) {
        self.engine.handle_disconnected(self.now_ns(), peer);
        self.engine.handle_cut_off(self.now_ns(), peer, false);
    }

    /// The next quarters of a lease in which it dials an address without answer.
    fn dials(&mut self, at: &str, quarters: u64) -> Vec<u64> {
        let mut dials = Vec::new();
        for quarter in 0..quarters {
            self.engine.handle_timeout(self.now_ns());
            while let Some(effect) = self.engine.poll_effect() {
                if let Effect::Dial { address } = effect {
                    dials.extend((address == at).then_some(quarter));
                    self.engine.handle_dial_failed(&address);
                }
            }
            self.quarters += 1;
        }
        dials
    }
}

#[test]
fn dials_back_off_at_random() {
    let [dials, others] = [1, 60].map(|own| Dialer::new(own).dials("one", 80));
    assert_eq!(dials[..3], [0, 1, 2], "a short loss is repaired at once");
    let gaps: BTreeSet<u64> = dials.windows(2).skip(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(gaps, BTreeSet::from([2, 3]), "two leases suffice to reconnect");
    assert_ne!(dials, others);
}

#[test]
fn back_off_restarts_after_contact_or_a_new_address() {
    let mut dialer = Dialer::new(1);
    dialer.dials("one", 20);
    dialer.meet(1, PeerId(8), "one");
    dialer.hear(PeerId(8), Notice::Welcome { pairing: 1 });
    assert!(dialer.engine.is_connected_to(NodeId(1)));
    dialer.lose(PeerId(8));
    assert_eq!(dialer.dials("one", 20)[..3], [0, 1, 2]);
    // It reports its address, and nothing else.
    dialer.meet(1, PeerId(9), "elsewhere");
    dialer.lose(PeerId(9));
    assert_eq!(dialer.dials("elsewhere", 3), [0, 1, 2]);
}
