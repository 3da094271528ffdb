//! One trial, from an empty world to a report.

use std::rc::Rc;
use std::time::Duration;

use halite_sim::{Profile, RunEnd, Trace, World};

use crate::faults;
use crate::harness::Harness;
use crate::leak_check;
use crate::panics;
use crate::plan::{Plan, PlanError};
use crate::report::Report;
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
    let harness = Harness::new(world.clone(), plan.clone());
    world.spawn(None, "the scenario", scenario(harness.clone()));
    let told = panics::caught(|| {
        if let Some(what) = tell(&harness) {
            harness.judge.violated(what);
        }
        let report = report(&harness, seed);
        harness.end();
        report
    });
    Ok(told.unwrap_or_else(|panic| report_panic(harness, seed, panic)))
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
fn report_panic(harness: Rc<Harness>, seed: u64, panic: String) -> Report {
    let told = panics::caught(|| {
        harness.judge.violated(panic);
        report(&harness, seed)
    });
    let bare = || Report::bare(&harness.plan.name, seed, harness.judge.violation());
    let report = told.unwrap_or_else(|_| bare());
    // Nodes that were left in the middle of something may not be fit to be dropped.
    std::mem::forget(harness);
    report
}

/// Runs the world until the scenario or the judge's patience is over; what was wrong with its end.
fn tell(harness: &Harness) -> Option<String> {
    let world = &harness.world;
    loop {
        match world.run_until(world.now_ns() + LOOK_NS) {
            RunEnd::Finished => return wrong_keys(harness),
            RunEnd::DeadlineReached if harness.judge.is_content() => {
                overlaps::judge(harness);
                if let Some(what) = wrong_keys(harness) {
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
fn wrong_keys(harness: &Harness) -> Option<String> {
    let refused = harness.world.counters().refused;
    (refused > 0).then(|| format!("adapters refused {refused} requests for the memory that they named"))
}

async fn scenario(harness: Rc<Harness>) {
    let world = harness.world.clone();
    let mut gaps = world.random("gaps between starts");
    for node in 0..harness.nodes() {
        harness.start(node);
        // The first node is there before anybody looks for it.
        while !harness.is_up(node) && harness.judge.is_content() {
            world.sleep(None, Duration::from_micros(1)).await;
        }
        world.sleep(None, Duration::from_nanos(gaps.below(1000 * harness.plan.start_gap_us + 1))).await;
    }
    harness.open();
    world.spawn(None, "faults", faults::inject(harness.clone()));
    if harness.is_mended_soon() {
        world.spawn(None, "peace", peace::keep(harness.clone()));
    }
    world.sleep(None, Duration::from_micros(harness.plan.duration_us)).await;
    harness.close();
    wind_down(&harness).await;
    world.sleep(None, SETTLING).await;
    harness.abort_faults();
    words::judge(&harness);
    locks::judge(&harness);
    messages::judge(&harness);
    log::judge(&harness);
    kv::judge(&harness);
}

/// Waits until all sessions have ended what they did, and looks at what is left.
async fn wind_down(harness: &Rc<Harness>) {
    // A session may have begun to think, by a clock that runs slow.
    let patience = harness.plan.lease() * 40 + Duration::from_micros(2 * harness.plan.work.think_us_max);
    let late_ns = harness.world.now_ns() + patience.as_nanos() as u64;
    while harness.working() > 0 && harness.judge.is_content() {
        if harness.world.now_ns() > late_ns {
            let working = harness.working();
            return harness.judge.violated(format!("{working} sessions have not ended after {patience:?}"));
        }
        harness.world.sleep(None, Duration::from_micros(100)).await;
    }
    if harness.judge.is_content() {
        leak_check::run(harness).await;
    }
}

fn report(harness: &Harness, seed: u64) -> Report {
    let world = &harness.world;
    Report {
        plan: harness.plan.name.clone(),
        seed,
        digest: format!("{:016x}", world.digest()),
        simulated_ns: world.now_ns(),
        events: world.counters().events,
        operations: harness.judge.tallies(),
        violation: harness.judge.violation(),
        trace: world.trace(),
    }
}
