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
/// Time for which a barrier may count a participant that has left, without faults.
const DOUBT_NS: u64 = 20_000;
/// Maximum time, in addition to that of the round, to find or create the barrier and to learn the result, without
/// faults: a dozen messages in sequence, each of up to 10 us between queue pairs in software.
const SLACK_NS: u64 = 150_000;
/// Maximum difference of the hosts' clocks that arises during the longest wait.
const CLOCKS_NS: u64 = 1_000;

#[derive(Debug, Default)]
pub(crate) struct Barriers {
    rooms: [Room; PARTICIPANTS.len()],
}

#[derive(Debug, Default)]
struct Room {
    /// Recent participants, by number.
    visits: BTreeMap<u64, Visit>,
    last_visit: u64,
    /// Participants that have passed, by round.
    passed: BTreeMap<u64, u32>,
}

#[derive(Clone, Copy, Debug)]
struct Visit {
    participants: u32,
    begin_ns: u64,
    /// End of the participant's timeout.
    deadline_ns: u64,
    /// Time until which the barrier may count the participant.
    until_ns: u64,
}

impl Barriers {
    /// Records that a node is cut off from `now_ns` on: barriers may count participants that have just left for longer.
    pub(crate) fn delay(&mut self, now_ns: u64, long_ns: u64) {
        self.rooms.iter_mut().for_each(|room| room.delay(now_ns, long_ns));
    }
}

impl Room {
    fn delay(&mut self, now_ns: u64, long_ns: u64) {
        let gone = self.visits.values_mut().filter(|visit| (now_ns..u64::MAX).contains(&visit.until_ns));
        gone.for_each(|visit| visit.until_ns = visit.until_ns.max(now_ns + long_ns + DOUBT_NS));
    }

    fn arrive(&mut self, now_ns: u64, participants: u32, timeout: Duration) -> u64 {
        let here = self.visits.values().filter(|visit| visit.until_ns == u64::MAX);
        let oldest_ns = here.map(|visit| visit.begin_ns).min().unwrap_or(now_ns);
        self.visits.retain(|_, visit| visit.until_ns >= oldest_ns);
        self.last_visit += 1;
        let deadline_ns = now_ns + timeout.as_nanos() as u64;
        let visit = Visit { participants, begin_ns: now_ns, deadline_ns, until_ns: u64::MAX };
        self.visits.insert(self.last_visit, visit);
        self.last_visit
    }

    /// Records that participant `visit` waits no longer; the barrier may count it until `until_ns`.
    fn leave(&mut self, visit: u64, until_ns: u64) {
        let visit = self.visits.get_mut(&visit).expect("the participant has arrived");
        visit.until_ns = visit.until_ns.min(until_ns);
    }

    /// Returns the other participants that the barrier may have counted since `visit` arrived.
    fn others(&self, number: u64, visit: &Visit) -> impl Iterator<Item = &Visit> {
        let begin_ns = visit.begin_ns;
        self.visits
            .iter()
            .filter(move |(other, visit)| **other != number && visit.until_ns >= begin_ns)
            .map(|(_, visit)| visit)
    }

    fn pass(&mut self, number: u64, round: u64, is_calm: bool) -> Result<(), String> {
        let visit = self.visits[&number];
        let there =
            1 + self.others(number, &visit).filter(|it| it.participants == visit.participants).count();
        let passed = self.passed.entry(round).or_default();
        *passed += 1;
        match () {
            () if there < visit.participants as usize => {
                Err(format!("the participant passed with {there} of {} participants", visit.participants))
            }
            // A barrier that was created again restarts its rounds.
            () if *passed > visit.participants && is_calm => Err(format!(
                "{passed} participants have passed round {round} of a barrier of {}",
                visit.participants
            )),
            () => Ok(()),
        }
    }

    fn time_out(&self, number: u64, now_ns: u64, is_calm: bool) -> Result<(), String> {
        let visit = self.visits[&number];
        let deadlines = self.others(number, &visit).chain([&visit]).map(|visit| visit.deadline_ns);
        let first_ns = deadlines.min().expect("the participant itself has a deadline");
        let latest_ns = visit.begin_ns + TIMEOUT_US_MAX * 1000 + SLACK_NS;
        match () {
            () if now_ns + CLOCKS_NS < first_ns => Err(format!(
                "the participant timed out early: the first deadline of a participant is {first_ns} ns"
            )),
            () if now_ns > latest_ns && is_calm => {
                Err(format!("the participant timed out late: its wait must time out by {latest_ns} ns"))
            }
            () => Ok(()),
        }
    }

    /// Checks a refusal that says that other participants expect `expected` participants.
    fn refuse(&self, number: u64, expected: u32) -> Result<(), String> {
        let visit = self.visits[&number];
        let is_right = expected != visit.participants
            && self.others(number, &visit).any(|other| other.participants == expected);
        if is_right { Ok(()) } else { Err("no participant expects that number".to_owned()) }
    }
}

/// Removes a participant when dropped.
struct Stay {
    harness: Rc<Harness>,
    name: usize,
    visit: u64,
}

impl Drop for Stay {
    fn drop(&mut self) {
        let harness = &self.harness;
        let doubt_ns = match () {
            () if harness.is_undisturbed() => DOUBT_NS,
            // Kernels report all deaths, and all nodes are connected.
            () if !harness.was_any_node_isolated() && harness.deaths_are_reported() => {
                harness.notice_ns() + DOUBT_NS
            }
            // The home may learn late that nodes are cut off.
            () => harness.consequences_ns(),
        };
        let until_ns = self.harness.world.now_ns() + doubt_ns;
        self.harness.barriers.borrow_mut().rooms[self.name].leave(self.visit, until_ns);
    }
}

/// Returns the names of a trial's barriers.
pub(crate) fn names() -> impl Iterator<Item = String> {
    (0..PARTICIPANTS.len()).map(text)
}

fn text(name: usize) -> String {
    format!("b{name}")
}

/// Waits at a barrier.
pub(crate) async fn act(actor: &mut Actor) {
    let name = actor.random.index(PARTICIPANTS.len());
    let participants = PARTICIPANTS[name] + u32::from(actor.random.chance(1, 12));
    let timeout = Duration::from_nanos(actor.random.between(1, TIMEOUT_US_MAX * 1000));
    let begin_ns = actor.now_ns();
    let visit = actor.harness.barriers.borrow_mut().rooms[name].arrive(begin_ns, participants, timeout);
    let _stay = Stay { harness: actor.harness.clone(), name, visit };
    let (session, text) = (actor.session.clone(), text(name));
    let result = actor.attempt("pass a barrier", session.barrier(&text, participants, timeout)).await;
    let (now_ns, is_calm) = (actor.now_ns(), actor.harness.is_undisturbed());
    let verdict =
        judged(&mut actor.harness.barriers.borrow_mut().rooms[name], visit, now_ns, is_calm, result);
    if let Err(why) = verdict {
        let (number, node) = (actor.number, actor.node);
        actor.harness.judge.violated(format!(
            "barrier {text}, session {number} of node {node}, from {begin_ns} to {now_ns} ns: {why}"
        ));
    }
}

fn judged(
    room: &mut Room,
    visit: u64,
    now_ns: u64,
    is_calm: bool,
    result: Option<Result<u64, BarrierError>>,
) -> Result<(), String> {
    match result {
        Some(Ok(round)) => room.pass(visit, round, is_calm),
        Some(Err(error)) => match error.cause {
            BarrierCause::Timeout => room.time_out(visit, now_ns, is_calm),
            BarrierCause::Size { expected } => room.refuse(visit, expected),
            cause if is_trouble(&cause, is_calm) => Ok(()),
            cause => Err(format!("{cause}, without a known cause")),
        },
        None => Ok(()),
    }
}

fn is_trouble(cause: &BarrierCause, is_calm: bool) -> bool {
    match cause {
        BarrierCause::Region(RegionCause::NoSpace { .. }) => true,
        BarrierCause::PeerDown(_)
        | BarrierCause::Region(
            RegionCause::NodeClosed
            | RegionCause::NotMet(_)
            | RegionCause::DirectoryDown
            | RegionCause::UnknownNode(_)
            | RegionCause::NoMemoryNode
            | RegionCause::NotFound
            | RegionCause::Lost(_)
            | RegionCause::Stale,
        ) => !is_calm,
        _ => false,
    }
}
