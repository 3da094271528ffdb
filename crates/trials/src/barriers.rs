//! Barriers: sessions arrive, wait for others, and pass or fail.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use halite::{BarrierCause, BarrierError, RegionCause};

use crate::actor::Actor;
use crate::harness::Harness;

/// Numbers of participants, by barrier.
const PARTICIPANTS: [u32; 2] = [2, 3];
/// Maximum timeout of a participant, in microseconds.
const TIMEOUT_US_MAX: u64 = 120;
/// Maximum time, without faults, for which a barrier still counts a participant that has left.
const UNCERTAIN_NS: u64 = 20_000;
/// Maximum time, without faults, to find or create the barrier and to receive the result, in addition to that of the
/// round: a dozen messages in sequence, each of up to 10 us between queue pairs in software.
const SLACK_NS: u64 = 150_000;
/// Maximum difference of the hosts' clocks that arises during the longest wait.
const CLOCK_SKEW_NS_MAX: u64 = 1_000;

#[derive(Debug, Default)]
pub(crate) struct Barriers {
    barriers: [Barrier; PARTICIPANTS.len()],
}

#[derive(Debug, Default)]
struct Barrier {
    /// Recent participants, by number.
    arrivals: BTreeMap<u64, Arrival>,
    last_arrival: u64,
    /// Participants that have passed, by round.
    passed: BTreeMap<u64, u32>,
}

#[derive(Clone, Copy, Debug)]
struct Arrival {
    participants: u32,
    begin_ns: u64,
    /// End of the participant's timeout.
    deadline_ns: u64,
    /// Time until which the barrier may count the participant.
    counted_until_ns: u64,
}

impl Barriers {
    /// Records that a node is stopped for `duration_ns`. Meanwhile, barriers may count participants that have just
    /// left.
    pub(crate) fn extend_uncertainty(&mut self, now_ns: u64, duration_ns: u64) {
        self.barriers.iter_mut().for_each(|barrier| barrier.extend_uncertainty(now_ns, duration_ns));
    }
}

impl Barrier {
    fn extend_uncertainty(&mut self, now_ns: u64, duration_ns: u64) {
        for arrival in self.arrivals.values_mut() {
            if (now_ns..u64::MAX).contains(&arrival.counted_until_ns) {
                arrival.counted_until_ns = arrival.counted_until_ns.max(now_ns + duration_ns + UNCERTAIN_NS);
            }
        }
    }

    fn record_arrival(&mut self, now_ns: u64, participants: u32, timeout: Duration) -> u64 {
        let waiting = self.arrivals.values().filter(|arrival| arrival.counted_until_ns == u64::MAX);
        let oldest_ns = waiting.map(|arrival| arrival.begin_ns).min().unwrap_or(now_ns);
        self.arrivals.retain(|_, arrival| arrival.counted_until_ns >= oldest_ns);
        self.last_arrival += 1;
        let deadline_ns = now_ns + timeout.as_nanos() as u64;
        let arrival = Arrival { participants, begin_ns: now_ns, deadline_ns, counted_until_ns: u64::MAX };
        self.arrivals.insert(self.last_arrival, arrival);
        self.last_arrival
    }

    /// Records that a participant stops waiting; the barrier may count it until `counted_until_ns`.
    fn record_departure(&mut self, arrival: u64, counted_until_ns: u64) {
        let arrival = self.arrivals.get_mut(&arrival).expect("the participant has arrived");
        arrival.counted_until_ns = arrival.counted_until_ns.min(counted_until_ns);
    }

    /// Returns the other participants that the barrier may have counted since `arrival`.
    fn others(&self, number: u64, arrival: &Arrival) -> impl Iterator<Item = &Arrival> {
        let begin_ns = arrival.begin_ns;
        self.arrivals
            .iter()
            .filter(move |(other, arrival)| **other != number && arrival.counted_until_ns >= begin_ns)
            .map(|(_, arrival)| arrival)
    }

    fn record_pass(&mut self, number: u64, round: u64, is_fault_free: bool) -> Result<(), String> {
        let arrival = self.arrivals[&number];
        let present = 1 + self
            .others(number, &arrival)
            .filter(|other| other.participants == arrival.participants)
            .count();
        let passed = self.passed.entry(round).or_default();
        *passed += 1;
        match () {
            () if present < arrival.participants as usize => {
                Err(format!("the participant passed with {present} of {} participants", arrival.participants))
            }
            // With faults, the barrier may have been created again, and its rounds start again.
            () if *passed > arrival.participants && is_fault_free => Err(format!(
                "{passed} participants have passed round {round} of a barrier of {}",
                arrival.participants
            )),
            () => Ok(()),
        }
    }

    fn check_timeout(&self, number: u64, now_ns: u64, is_fault_free: bool) -> Result<(), String> {
        let arrival = self.arrivals[&number];
        let deadlines = self.others(number, &arrival).chain([&arrival]).map(|arrival| arrival.deadline_ns);
        let first_ns = deadlines.min().expect("the participant itself has a deadline");
        let latest_ns = arrival.begin_ns + TIMEOUT_US_MAX * 1000 + SLACK_NS;
        match () {
            () if now_ns + CLOCK_SKEW_NS_MAX < first_ns => Err(format!(
                "the participant timed out early: the first deadline of a participant is {first_ns} ns"
            )),
            () if now_ns > latest_ns && is_fault_free => {
                Err(format!("the participant timed out late: its wait must time out by {latest_ns} ns"))
            }
            () => Ok(()),
        }
    }

    /// Checks the error that other participants expect `expected` participants.
    fn check_size(&self, number: u64, expected: u32) -> Result<(), String> {
        let arrival = self.arrivals[&number];
        let is_right = expected != arrival.participants
            && self.others(number, &arrival).any(|other| other.participants == expected);
        if is_right { Ok(()) } else { Err("no participant expects that number".to_owned()) }
    }
}

/// Records the departure of a participant when dropped.
struct ArrivalGuard {
    harness: Rc<Harness>,
    name: usize,
    arrival: u64,
}

impl Drop for ArrivalGuard {
    fn drop(&mut self) {
        let harness = &self.harness;
        let uncertain_ns = match () {
            () if harness.is_fault_free() => UNCERTAIN_NS,
            // Kernels report all deaths to all nodes, which are connected.
            () if !harness.was_any_node_isolated() && harness.kernels_report_deaths() => {
                harness.death_notice_ns() + UNCERTAIN_NS
            }
            // The home may learn late that nodes are cut off.
            () => harness.consequences_ns(),
        };
        let counted_until_ns = self.harness.world.now_ns() + uncertain_ns;
        self.harness.barriers.borrow_mut().barriers[self.name]
            .record_departure(self.arrival, counted_until_ns);
    }
}

/// Returns the names of a trial's barriers.
pub(crate) fn names() -> impl Iterator<Item = String> {
    (0..PARTICIPANTS.len()).map(name_of)
}

fn name_of(name: usize) -> String {
    format!("b{name}")
}

/// Waits at a barrier.
pub(crate) async fn run_operation(actor: &mut Actor) {
    let name = actor.random.index(PARTICIPANTS.len());
    let participants = PARTICIPANTS[name] + u32::from(actor.random.chance(1, 12));
    let timeout = Duration::from_nanos(actor.random.between(1, TIMEOUT_US_MAX * 1000));
    let begin_ns = actor.now_ns();
    let arrival =
        actor.harness.barriers.borrow_mut().barriers[name].record_arrival(begin_ns, participants, timeout);
    let _guard = ArrivalGuard { harness: actor.harness.clone(), name, arrival };
    let (session, text) = (actor.session.clone(), name_of(name));
    let result = actor.attempt("pass a barrier", session.barrier(&text, participants, timeout)).await;
    let (now_ns, is_fault_free) = (actor.now_ns(), actor.harness.is_fault_free());
    let barriers = &mut actor.harness.barriers.borrow_mut().barriers;
    let verdict = check_result(&mut barriers[name], arrival, now_ns, is_fault_free, result);
    if let Err(reason) = verdict {
        let (number, node) = (actor.number, actor.node);
        actor.harness.judge.report_violation(format!(
            "barrier {text}, session {number} of node {node}, from {begin_ns} to {now_ns} ns: {reason}"
        ));
    }
}

fn check_result(
    barrier: &mut Barrier,
    arrival: u64,
    now_ns: u64,
    is_fault_free: bool,
    result: Option<Result<u64, BarrierError>>,
) -> Result<(), String> {
    match result {
        Some(Ok(round)) => barrier.record_pass(arrival, round, is_fault_free),
        Some(Err(error)) => match error.cause {
            BarrierCause::Timeout => barrier.check_timeout(arrival, now_ns, is_fault_free),
            BarrierCause::Size { expected } => barrier.check_size(arrival, expected),
            cause if fault_explains(&cause, is_fault_free) => Ok(()),
            cause => Err(format!("{cause}, without a known cause")),
        },
        None => Ok(()),
    }
}

fn fault_explains(cause: &BarrierCause, is_fault_free: bool) -> bool {
    match cause {
        BarrierCause::Region(RegionCause::NoSpace { .. }) => true,
        BarrierCause::PeerDown(_)
        | BarrierCause::Region(
            RegionCause::NodeClosed(_)
            | RegionCause::NotMet(_)
            | RegionCause::DirectoryDown
            | RegionCause::DirectoryUnreachable { .. }
            | RegionCause::UnknownNode(_)
            | RegionCause::NoMemoryNode
            | RegionCause::NotFound
            | RegionCause::Lost(_)
            | RegionCause::Stale,
        ) => !is_fault_free,
        _ => false,
    }
}
