//! The harness: state that all sessions of a trial share, and its nodes.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use halite::{Config, Driven, JoinError, NodeId, Policy, Qos, Step};
use halite_sim::{Fence, HostId, Link, Profile, SimFabric, TaskId, World};

use crate::actor;
use crate::barriers::Barriers;
use crate::calls::Calls;
use crate::futures::before;
use crate::hosted::Birth;
use crate::judge::Judge;
use crate::kv::Kv;
use crate::locks::Locks;
use crate::log::Logs;
use crate::messages::Messages;
use crate::plan::Plan;
use crate::regions::Regions;
use crate::watches::Watches;
use crate::words::Words;

/// Maximum memory that each node contributes, in bytes.
pub(crate) const ARENA_BYTES: u64 = 4 << 20;
/// Length of a chunk in bytes; small, so that regions have many chunks.
pub(crate) const CHUNK_BYTES: u64 = 4096;
/// Number of leases after the end of a fault during which the fault may have consequences: one until a node is declared
/// dead, another until that node notices, and two more for the reactions of both sides.
const CONSEQUENCE_LEASES: u64 = 4;
/// Maximum length in bytes of the answer to one READ of a queue pair: 64 packets.
const READ_BYTES_MAX: u64 = 64 * 4_096;
/// The principals of sessions, in turn.
pub(crate) const PRINCIPALS: [&str; 3] = ["ada", "bob", "eve"];

/// State that all sessions of a trial share, and the nodes of the trial.
pub(crate) struct Harness {
    pub(crate) world: World,
    pub(crate) plan: Plan,
    pub(crate) judge: Judge,
    pub(crate) regions: RefCell<Regions>,
    pub(crate) calls: RefCell<Calls>,
    pub(crate) locks: RefCell<Locks>,
    pub(crate) words: RefCell<Words>,
    pub(crate) messages: RefCell<Messages>,
    pub(crate) barriers: RefCell<Barriers>,
    pub(crate) watches: RefCell<Watches>,
    pub(crate) logs: RefCell<Logs>,
    pub(crate) kv: RefCell<Kv>,
    /// True if a connection ends only because a node's process is dead, so that a node that is cut off does nothing any
    /// more.
    pub(crate) cut_off_kills: bool,
    /// True if adapters connect all nodes, so that a node that is cut off from memory cannot access it.
    pub(crate) adapters_cut_off: bool,
    /// Profiles of the networks between nodes.
    profiles: Vec<Profile>,
    node_states: Vec<NodeState>,
    was_any_isolated: Cell<bool>,
    faults: RefCell<Vec<TaskId>>,
    /// Time of the last change of a node or link.
    last_change_ns: Cell<u64>,
    /// Links that a fault has changed, with their previous state.
    changed_links: RefCell<BTreeMap<(HostId, HostId), Link>>,
    /// Nodes that wait to join, in order. They join one at a time, as with the lock of a cluster directory.
    joining: RefCell<VecDeque<u64>>,
    join_turns: Cell<u64>,
    /// True once all nodes have joined; work begins then.
    has_started: Cell<bool>,
    /// True once sessions must end.
    is_stopping: Cell<bool>,
    /// Number of sessions at work.
    working_count: Cell<usize>,
}

/// State of a node across its incarnations.
struct NodeState {
    host: HostId,
    incarnations: Cell<u32>,
    node: RefCell<Option<Rc<Driven>>>,
    /// True if the node has joined, and has neither crashed nor begun to leave.
    is_up: Cell<bool>,
    /// True if the node was stopped or cut off in this incarnation, so that peers may have declared it dead.
    is_isolated: Cell<bool>,
    /// True if the node was ended, and will be started again.
    is_down: Cell<bool>,
    /// True if the node was stopped, and will be resumed.
    is_stopped: Cell<bool>,
    /// Time until which peers may lack heartbeats of the stopped node.
    silent_until_ns: Cell<u64>,
}

impl Harness {
    pub(crate) fn new(world: World, plan: Plan) -> Rc<Harness> {
        let hosts = add_hosts(&world, &plan);
        let node_state = |host: &HostId| NodeState {
            host: *host,
            incarnations: Cell::new(0),
            node: RefCell::default(),
            is_up: Cell::new(false),
            is_isolated: Cell::new(false),
            is_down: Cell::new(false),
            is_stopped: Cell::new(false),
            silent_until_ns: Cell::new(0),
        };
        let node_states = hosts.iter().map(node_state).collect();
        let mut profiles: Vec<Profile> = hosts.iter().map(|host| world.profile(hosts[0], *host)).collect();
        profiles.dedup();
        Rc::new(Harness {
            judge: Judge::new(world.clone()),
            regions: RefCell::default(),
            calls: RefCell::default(),
            locks: RefCell::default(),
            words: RefCell::default(),
            messages: RefCell::default(),
            barriers: RefCell::default(),
            watches: RefCell::default(),
            logs: RefCell::default(),
            kv: RefCell::default(),
            cut_off_kills: profiles
                .iter()
                .all(|profile| !profile.is_adapter() && profile.fence == Fence::Kill)
                && !plan.faults.break_links(),
            adapters_cut_off: profiles.iter().all(Profile::is_adapter),
            profiles,
            node_states,
            was_any_isolated: Cell::new(false),
            faults: RefCell::default(),
            last_change_ns: Cell::new(0),
            changed_links: RefCell::default(),
            joining: RefCell::default(),
            join_turns: Cell::new(0),
            has_started: Cell::new(false),
            is_stopping: Cell::new(false),
            working_count: Cell::new(0),
            world,
            plan,
        })
    }

    pub(crate) fn nodes(&self) -> u32 {
        self.plan.nodes
    }

    fn state(&self, node: u32) -> &NodeState {
        &self.node_states[node as usize]
    }

    pub(crate) fn host(&self, node: u32) -> HostId {
        self.state(node).host
    }

    /// Returns all nodes on the host of a node.
    pub(crate) fn nodes_on_same_host(&self, node: u32) -> Vec<u32> {
        let host = self.host(node);
        (0..self.nodes()).filter(|other| self.world.share_a_host(host, self.host(*other))).collect()
    }

    /// Returns the number of the node's incarnations so far.
    pub(crate) fn incarnation(&self, node: u32) -> u32 {
        self.state(node).incarnations.get()
    }

    /// Returns true if the node's process exists, stopped or not.
    pub(crate) fn has_process(&self, node: u32) -> bool {
        !self.world.has_crashed(self.state(node).host)
    }

    pub(crate) fn is_up(&self, node: u32) -> bool {
        self.state(node).is_up.get()
    }

    /// Records that peers may declare the node dead although it is alive.
    pub(crate) fn isolate(&self, node: u32) {
        self.judge.record_fault();
        self.state(node).is_isolated.set(true);
        self.was_any_isolated.set(true);
    }

    /// Returns true if a node may have declared a living one dead.
    pub(crate) fn was_any_node_isolated(&self) -> bool {
        self.was_any_isolated.get()
    }

    pub(crate) fn was_isolated(&self, node: u32) -> bool {
        self.state(node).is_isolated.get()
    }

    /// Returns true if kernels report the end of a process, so that nodes learn of it at once, not only by its silence.
    pub(crate) fn kernels_report_deaths(&self) -> bool {
        !self.profiles.iter().any(Profile::is_adapter)
    }

    /// Returns the time until nodes learn of the end of a process.
    pub(crate) fn death_notice_ns(&self) -> u64 {
        self.profiles.iter().map(|profile| profile.notice_ns).max().unwrap_or(0)
    }

    /// Returns the time in ns that the answer to one READ takes on the slowest link. All other packets of the link may wait
    /// for it.
    pub(crate) fn read_ns_max(&self) -> u64 {
        let rates = self.profiles.iter().map(|profile| profile.bandwidth_bytes_per_us);
        READ_BYTES_MAX * 1_000 / rates.min().unwrap_or(u64::MAX)
    }

    /// Returns true if there was no fault so far. Noise on a link counts as a fault, because it may end a connection
    /// for good.
    pub(crate) fn is_fault_free(&self) -> bool {
        !self.judge.had_fault() && self.judge.faults_until_ns() == 0
    }

    /// Returns true if there was no fault since `begin_ns`, and no consequence of an earlier one can still follow.
    pub(crate) fn is_calm_since(&self, begin_ns: u64) -> bool {
        let until_ns = self.judge.faults_until_ns();
        until_ns == 0 || until_ns + self.consequences_ns() < begin_ns
    }

    /// Returns the time for which a fault may have consequences.
    pub(crate) fn consequences_ns(&self) -> u64 {
        CONSEQUENCE_LEASES * self.plan.lease().as_nanos() as u64
    }

    /// Returns the region names of the scenes of one kind: one per session, or none if the plan gives the kind no
    /// weight.
    pub(crate) fn scene_names(
        &self,
        weight: u32,
        name: fn(u32, u32) -> String,
    ) -> impl Iterator<Item = String> + use<> {
        let nodes = if weight > 0 { self.nodes() } else { 0 };
        let sessions = self.plan.sessions;
        (0..nodes).flat_map(move |node| (0..sessions).map(move |session| name(node, session)))
    }

    pub(crate) fn driven(&self, node: u32) -> Option<Rc<Driven>> {
        self.state(node).node.borrow().clone()
    }

    // Start and end of nodes.

    /// Starts a node, which joins and then starts its sessions.
    pub(crate) fn start(self: &Rc<Harness>, node: u32) {
        let state = self.state(node);
        state.incarnations.set(state.incarnations.get() + 1);
        state.is_isolated.set(false);
        state.is_down.set(false);
        let (harness, host) = (self.clone(), state.host);
        let boot = async move {
            if let Err(error) = harness.boot(node).await {
                harness
                    .judge
                    .expect(harness.judge.had_fault(), || format!("node {node} could not join: {error}"));
                harness.restart_after_failed_join(node);
            }
        };
        self.world.spawn(Some(host), format!("boot {node}"), boot);
    }

    /// Ends a node that could not join, and starts it again.
    fn restart_after_failed_join(self: &Rc<Harness>, node: u32) {
        let harness = self.clone();
        self.world.spawn(None, format!("start {node} again"), async move {
            harness.crash(node);
            harness.world.sleep(None, harness.plan.lease() / 4).await;
            harness.restart(node);
        });
    }

    async fn boot(self: &Rc<Harness>, node: u32) -> Result<(), JoinError> {
        let _turn = JoinTurn::wait(self).await;
        let (driven, config, fabric) = self.create_node(node)?;
        let timeout = self.world.sleep(Some(self.host(node)), self.plan.lease() * 20);
        let joined =
            before(timeout, driven.join(&config, &self.dial_addresses(node, fabric.discover()))).await;
        match joined {
            Some(joined) => joined?,
            None => {
                self.judge.report_violation(format!("node {node} has neither joined nor failed to join"));
                return Ok(());
            }
        }
        self.state(node).is_up.set(true);
        self.record_change();
        actor::start_all(self, node, &driven);
        Ok(())
    }

    /// Returns the nodes that a joining node dials: all, or the first one in a large cluster.
    fn dial_addresses(&self, node: u32, mut found: Vec<String>) -> Vec<String> {
        let is_large = self.nodes() > self.plan.full_mesh_nodes_max;
        if node > 0 && (is_large || self.plan.joins_by_first) {
            found.retain(|address| address.starts_with("node-0."));
        }
        found
    }

    /// Returns true if two nodes are connected, or will connect on first use.
    pub(crate) fn can_reach(&self, one: u32, other: u32) -> bool {
        let (one, other) = (self.driven(one), NodeId(other));
        one.is_some_and(|one| one.id() == other || one.is_connected_to(other) || one.is_unconnected_to(other))
    }

    fn create_node(self: &Rc<Harness>, node: u32) -> Result<(Rc<Driven>, Config, Arc<SimFabric>), JoinError> {
        let state = self.state(node);
        let incarnation = state.incarnations.get();
        let birth =
            Birth { host: state.host, incarnation, stream: format!("node {node} life {incarnation}") };
        let config = self.config(node);
        let (driven, fabric) = birth.of(&self.world, &config)?;
        *state.node.borrow_mut() = Some(driven.clone());
        Ok((driven, config, fabric))
    }

    fn config(&self, node: u32) -> Config {
        Config {
            dir: PathBuf::from("simulated"),
            node: Some(NodeId(node)),
            arena_bytes: ARENA_BYTES,
            segment_bytes: self.plan.segment_bytes,
            chunk_bytes: CHUNK_BYTES,
            request_ring_bytes: self.plan.ring_bytes,
            lease: self.plan.lease(),
            full_mesh_nodes_max: self.plan.full_mesh_nodes_max as usize,
            principal: Some(PRINCIPALS[0].to_owned()),
            qos: self.plan.qos.map(|policy| self.qos(policy)).unwrap_or_default(),
            ..Config::default()
        }
    }

    /// Returns a policy with the rate of the links, if the policy needs one.
    fn qos(&self, policy: Policy) -> Qos {
        let profile = self.plan.profile().expect("the plan has been checked");
        let rate = (policy == Policy::HwSep).then_some(profile.bandwidth_bytes_per_us * 1_000_000);
        Qos { policy, rate }
    }

    /// Crashes a node, without notice to its peers.
    pub(crate) fn crash(&self, node: u32) {
        self.world.crash(self.host(node));
        self.end_incarnation(node);
    }

    /// Crashes a host with all its nodes.
    pub(crate) fn crash_host(&self, node: u32) {
        self.world.crash_whole_host(self.host(node));
        self.nodes_on_same_host(node).into_iter().for_each(|node| self.end_incarnation(node));
    }

    fn end_incarnation(&self, node: u32) {
        self.judge.record_fault();
        self.record_change();
        let state = self.state(node);
        state.is_up.set(false);
        state.is_down.set(true);
        // Dropping the last reference frees the node's memory.
        drop(state.node.borrow_mut().take());
    }

    /// Lets a node leave; returns when it is down.
    pub(crate) async fn leave(&self, node: u32) {
        self.judge.record_fault();
        let state = self.state(node);
        state.is_up.set(false);
        let Some(driven) = self.driven(node) else { return };
        driven.begin_to_leave();
        let host = state.host;
        while self.driven(node).is_some_and(|now| Rc::ptr_eq(&now, &driven)) {
            if driven.step() == Step::Left {
                break;
            }
            self.world.sleep(Some(host), Duration::from_micros(50)).await;
        }
        drop(driven);
        self.crash(node);
    }

    /// Starts a node that is down, unless another fault has already done so.
    pub(crate) fn restart(self: &Rc<Harness>, node: u32) {
        if !self.state(node).is_down.get() {
            return;
        }
        self.world.restart(self.host(node));
        self.start(node);
    }

    /// Stops a node for a while.
    pub(crate) async fn stop(&self, node: u32, duration: Duration) {
        let (state, incarnation) = (self.state(node), self.incarnation(node));
        let (now_ns, duration_ns, lease_ns) =
            (self.world.now_ns(), duration.as_nanos() as u64, self.plan.lease().as_nanos() as u64);
        // A node sends four times per lease, so a short stop remains undetected, unless another one preceded it.
        match duration_ns < lease_ns / 2 && state.silent_until_ns.get() <= now_ns {
            true => self.judge.record_fault(),
            false => self.isolate(node),
        }
        self.barriers.borrow_mut().extend_uncertainty(now_ns, duration_ns);
        state.silent_until_ns.set(state.silent_until_ns.get().max(now_ns + duration_ns + lease_ns));
        state.is_stopped.set(true);
        self.record_change();
        self.world.pause(state.host);
        self.world.sleep(None, duration).await;
        state.is_stopped.set(false);
        self.record_change();
        if self.incarnation(node) == incarnation {
            self.world.resume(state.host);
        }
    }

    /// Returns true if a node may have been stopped since `begin_ns`.
    pub(crate) fn may_have_been_stopped_since(&self, node: u32, begin_ns: u64) -> bool {
        self.state(node).silent_until_ns.get() > begin_ns
    }

    /// Changes a link until [`Harness::restore_link`].
    pub(crate) fn change_link(&self, from: HostId, to: HostId, link: Link) {
        self.changed_links.borrow_mut().entry((from, to)).or_insert_with(|| self.world.link(from, to));
        self.world.set_link(from, to, link);
        self.record_change();
    }

    /// Restores a link, unless another fault has already done so.
    pub(crate) fn restore_link(&self, from: HostId, to: HostId) {
        if let Some(before) = self.changed_links.borrow_mut().remove(&(from, to)) {
            self.world.set_link(from, to, before);
            self.record_change();
        }
    }

    pub(crate) fn has_changed_links(&self) -> bool {
        !self.changed_links.borrow().is_empty()
    }

    fn record_change(&self) {
        self.last_change_ns.set(self.world.now_ns());
    }

    pub(crate) fn last_change_ns(&self) -> u64 {
        self.last_change_ns.get()
    }

    /// Returns true if a node has joined and is not stopped.
    pub(crate) fn is_up_and_running(&self, node: u32) -> bool {
        let state = self.state(node);
        state.is_up.get() && !state.is_stopped.get() && self.world.is_running(state.host)
    }

    /// Registers a fault, which lasts as long as this task.
    pub(crate) fn register_fault(&self, task: TaskId) {
        self.faults.borrow_mut().push(task);
    }

    pub(crate) fn abort_faults(&self) {
        self.faults.take().into_iter().for_each(|task| self.world.abort(task));
    }

    /// Ends all faults: restores links and restarts nodes.
    pub(crate) fn heal(self: &Rc<Harness>) {
        let changed_links: Vec<_> = self.changed_links.borrow().keys().copied().collect();
        changed_links.into_iter().for_each(|(from, to)| self.restore_link(from, to));
        (0..self.nodes()).for_each(|node| self.restart(node));
    }

    /// Restarts nodes that their peers have killed because they did not answer.
    pub(crate) fn restart_killed_nodes(self: &Rc<Harness>) {
        for node in 0..self.nodes() {
            let state = self.state(node);
            let is_expected = state.is_down.get() || state.is_stopped.get();
            if !is_expected && state.incarnations.get() > 0 && !self.world.is_running(state.host) {
                self.crash(node);
                self.restart(node);
            }
        }
    }

    /// Ends the world and frees all memory.
    pub(crate) fn end(&self) {
        self.world.end();
        self.node_states.iter().for_each(|state| drop(state.node.borrow_mut().take()));
    }

    // Work.

    /// Waits until all nodes have joined and work begins.
    pub(crate) async fn wait_for_start(&self) {
        while !self.has_started.get() && self.judge.is_ok() {
            self.world.sleep(None, Duration::from_micros(5)).await;
        }
    }

    pub(crate) fn start_work(&self) {
        self.has_started.set(true);
    }

    /// Makes sessions end and start no more operations.
    pub(crate) fn stop_work(&self) {
        self.is_stopping.set(true);
    }

    /// Returns true if sessions continue to start operations.
    pub(crate) fn sessions_continue(&self) -> bool {
        !self.is_stopping.get() && self.judge.is_ok()
    }

    pub(crate) fn working_sessions(&self) -> usize {
        self.working_count.get()
    }

    /// Counts a session as working until the result is dropped.
    pub(crate) fn count_working(self: &Rc<Harness>) -> Working {
        self.working_count.set(self.working_count.get() + 1);
        Working(self.clone())
    }
}

/// Adds a process for each node, on the host that the plan assigns.
fn add_hosts(world: &World, plan: &Plan) -> Vec<HostId> {
    let mut first = BTreeMap::new();
    let places = plan.hosts_of_nodes().into_iter();
    let place = |host| match first.get(&host) {
        Some(other) => world.add_process(*other),
        None => *first.entry(host).or_insert_with(|| world.add_host()),
    };
    places.map(place).collect()
}

/// Counts a session as working until it is dropped.
pub(crate) struct Working(Rc<Harness>);

impl Drop for Working {
    fn drop(&mut self) {
        self.0.working_count.set(self.0.working_count.get() - 1);
    }
}

/// A place in the queue of nodes that join; the first place may join.
struct JoinTurn {
    harness: Rc<Harness>,
    number: u64,
}

impl JoinTurn {
    async fn wait(harness: &Rc<Harness>) -> JoinTurn {
        let number = harness.join_turns.get();
        harness.join_turns.set(number + 1);
        harness.joining.borrow_mut().push_back(number);
        let join_turn = JoinTurn { harness: harness.clone(), number };
        while harness.joining.borrow().front() != Some(&number) {
            harness.world.sleep(None, Duration::from_micros(5)).await;
        }
        join_turn
    }
}

impl Drop for JoinTurn {
    fn drop(&mut self) {
        self.harness.joining.borrow_mut().retain(|number| *number != self.number);
    }
}
