//! One trial, from an empty world to a report.

use std::rc::Rc;
use std::time::Duration;

use halite_sim::{Profile, RunEnd, Trace, World};

use crate::census;
use crate::faults;
use crate::panics;
use crate::plan::{Plan, PlanError};
use crate::report::Report;
use crate::stage::Stage;
use crate::{kv, locks, log, messages, overlaps, peace, words};

/// How much of what happens is kept for people to read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Keep {
    /// Nothing.
    Nothing,
    /// The last lines.
    Last(usize),
    /// Everything.
    All,
}

/// By then, with nothing going wrong, who receives has received everything.
const SETTLING: Duration = Duration::from_micros(500);
/// How often it is looked whether the judge has seen enough.
const LOOK_NS: u64 = 50_000;
/// Polls and events that a trial may take for each nanosecond of its duration and each node: far more than any does.
const STEPS_PER_NODE_US: u64 = 20_000;

/// Runs a trial.  A panic in it is a violation like any other.
pub fn run(plan: &Plan, seed: u64, keep: Keep) -> Result<Report, PlanError> {
    let world = world(plan, seed)?;
    world.set_trace(match keep {
        Keep::Nothing => Trace::Off,
        Keep::Last(lines) => Trace::Last(lines),
        Keep::All => Trace::All,
    });
    world.set_steps_max(STEPS_PER_NODE_US * plan.duration_us * u64::from(plan.nodes));
    let stage = Stage::new(world.clone(), plan.clone());
    world.spawn(None, "the story", story(stage.clone()));
    let told = panics::caught(|| {
        if let Some(what) = tell(&stage) {
            stage.judge.violated(what);
        }
        let report = report(&stage, seed);
        stage.end();
        report
    });
    Ok(told.unwrap_or_else(|panic| report_panic(stage, seed, panic)))
}

/// A world of the plan's hardware, whose patience is as short as the leases of trials are: a node that joins while another is
/// stopped has its turn.
pub(crate) fn world(plan: &Plan, seed: u64) -> Result<World, PlanError> {
    let dial_ns = 1000 * plan.dial_us.unwrap_or(2 * plan.lease_us);
    let hasty = |profile: Profile| {
        let connect_timeout_ns = profile.connect_timeout_ns.min(dial_ns);
        Profile { connect_timeout_ns, ..profile }
    };
    let profile = hasty(plan.profile()?);
    Ok(match plan.hosts {
        None => World::new(seed, profile),
        Some(_) => World::with_processes(seed, profile, hasty(plan.host_profile()?)),
    })
}

/// What is left to be said after a panic.
fn report_panic(stage: Rc<Stage>, seed: u64, panic: String) -> Report {
    let told = panics::caught(|| {
        stage.judge.violated(panic);
        report(&stage, seed)
    });
    let bare = || Report::bare(&stage.plan.name, seed, stage.judge.violation());
    let report = told.unwrap_or_else(|_| bare());
    // Nodes that were left in the middle of something may not be fit to be dropped.
    std::mem::forget(stage);
    report
}

/// Runs the world until the story or the judge's patience is over; what was wrong with its end.
fn tell(stage: &Stage) -> Option<String> {
    let world = &stage.world;
    loop {
        match world.run_until(world.now_ns() + LOOK_NS) {
            RunEnd::Finished => return wrong_keys(stage),
            RunEnd::DeadlineReached if stage.judge.is_content() => {
                overlaps::judge(stage);
                if let Some(what) = wrong_keys(stage) {
                    return Some(what);
                }
            }
            RunEnd::DeadlineReached => return None,
            RunEnd::Stuck { waiting } => return Some(format!("all wait for ever: {}", waiting.join(", "))),
            RunEnd::StepsExhausted { task } => return Some(format!("it does not end; last seen: {task}")),
        }
    }
}

/// Nothing names memory that is not there, or not known yet: over a network that costs the connection.
fn wrong_keys(stage: &Stage) -> Option<String> {
    let refused = stage.world.counters().refused;
    (refused > 0).then(|| format!("adapters refused {refused} requests for the memory that they named"))
}

async fn story(stage: Rc<Stage>) {
    let world = stage.world.clone();
    let mut gaps = world.random("gaps between starts");
    for node in 0..stage.nodes() {
        stage.start(node);
        // The first node is there before anybody looks for it.
        while !stage.is_up(node) && stage.judge.is_content() {
            world.sleep(None, Duration::from_micros(1)).await;
        }
        world.sleep(None, Duration::from_nanos(gaps.below(1000 * stage.plan.start_gap_us + 1))).await;
    }
    stage.open();
    world.spawn(None, "faults", faults::reign(stage.clone()));
    if stage.is_mended_soon() {
        world.spawn(None, "peace", peace::keep(stage.clone()));
    }
    world.sleep(None, Duration::from_micros(stage.plan.duration_us)).await;
    stage.close();
    wind_down(&stage).await;
    world.sleep(None, SETTLING).await;
    stage.abort_faults();
    words::judge(&stage);
    locks::judge(&stage);
    messages::judge(&stage);
    log::judge(&stage);
    kv::judge(&stage);
}

/// Waits until all sessions have ended what they did, and looks at what is left.
async fn wind_down(stage: &Rc<Stage>) {
    // A session may have begun to think, by a clock that runs slow.
    let patience = stage.plan.lease() * 40 + Duration::from_micros(2 * stage.plan.work.think_us_max);
    let late_ns = stage.world.now_ns() + patience.as_nanos() as u64;
    while stage.working() > 0 && stage.judge.is_content() {
        if stage.world.now_ns() > late_ns {
            let working = stage.working();
            return stage.judge.violated(format!("{working} sessions have not ended after {patience:?}"));
        }
        stage.world.sleep(None, Duration::from_micros(100)).await;
    }
    if stage.judge.is_content() {
        census::take(stage).await;
    }
}

fn report(stage: &Stage, seed: u64) -> Report {
    let world = &stage.world;
    Report {
        plan: stage.plan.name.clone(),
        seed,
        digest: format!("{:016x}", world.digest()),
        simulated_ns: world.now_ns(),
        events: world.counters().events,
        operations: stage.judge.tallies(),
        violation: stage.judge.violation(),
        trace: world.trace(),
    }
}
