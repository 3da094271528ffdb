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

/// The part of the trace that a report keeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Keep {
    /// Keep no lines of the trace.
    Nothing,
    /// Keep this number of lines, the last ones of the trace.
    Last(usize),
    /// Keep all lines of the trace.
    All,
}

/// Time in which all messages arrive, without faults.
const SETTLE_TIME: Duration = Duration::from_micros(500);
/// Interval between checks of the judge.
const CHECK_INTERVAL_NS: u64 = 50_000;
/// Maximum number of polls and events per microsecond of duration and node: far more than any trial needs.
const STEPS_PER_NODE_US: u64 = 20_000;

/// Runs a trial. A panic counts as a violation.
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
    let result = panics::catch(|| {
        if let Some(violation) = run_to_end(&harness) {
            harness.judge.report_violation(violation);
        }
        let report = report(&harness, seed);
        harness.end();
        report
    });
    Ok(result.unwrap_or_else(|panic| report_panic(harness, seed, panic)))
}

/// Creates a world with the plan's hardware. Dials time out within about a lease: otherwise a node that joins while
/// another node is stopped would block all nodes that wait to join.
pub(crate) fn world(plan: &Plan, seed: u64) -> Result<World, PlanError> {
    let dial_ns = 1000 * plan.dial_us.unwrap_or(2 * plan.lease_us);
    let with_short_dials = |profile: Profile| {
        let connect_timeout_ns = profile.connect_timeout_ns.min(dial_ns);
        Profile { connect_timeout_ns, ..profile }
    };
    let profile = with_short_dials(plan.profile()?);
    Ok(match plan.hosts {
        None => World::new(seed, profile),
        Some(_) => World::with_processes(seed, profile, with_short_dials(plan.host_profile()?)),
    })
}

fn report_panic(harness: Rc<Harness>, seed: u64, panic: String) -> Report {
    let result = panics::catch(|| {
        harness.judge.report_violation(panic);
        report(&harness, seed)
    });
    let bare = || Report::bare(&harness.plan.name, seed, harness.judge.violation());
    let report = result.unwrap_or_else(|_| bare());
    // A node in an inconsistent state may panic again when dropped.
    std::mem::forget(harness);
    report
}

/// Runs the world until the trial ends or the judge finds a violation. Returns an error text if the trial did not end
/// normally.
fn run_to_end(harness: &Harness) -> Option<String> {
    let world = &harness.world;
    loop {
        match world.run_until(world.now_ns() + CHECK_INTERVAL_NS) {
            RunEnd::Finished => return refused_requests(harness),
            RunEnd::DeadlineReached if harness.judge.is_ok() => {
                overlaps::check(harness);
                if let Some(violation) = refused_requests(harness) {
                    return Some(violation);
                }
            }
            RunEnd::DeadlineReached => return None,
            RunEnd::Stuck { waiting } => {
                return Some(format!("all tasks wait forever: {}", waiting.join(", ")));
            }
            RunEnd::StepsExhausted { task } => {
                return Some(format!("the trial does not end; last task: {task}"));
            }
        }
    }
}

/// Returns an error if a request named memory that does not exist: over a network, such a request ends the connection.
fn refused_requests(harness: &Harness) -> Option<String> {
    let refused = harness.world.counters().refused;
    (refused > 0).then(|| format!("adapters refused {refused} requests that name memory that does not exist"))
}

async fn scenario(harness: Rc<Harness>) {
    let world = harness.world.clone();
    let mut gaps = world.random("gaps between starts");
    for node in 0..harness.nodes() {
        harness.start(node);
        // Node 0 must be up before other nodes dial it.
        while !harness.is_up(node) && harness.judge.is_ok() {
            world.sleep(None, Duration::from_micros(1)).await;
        }
        world.sleep(None, Duration::from_nanos(gaps.below(1000 * harness.plan.start_gap_us + 1))).await;
    }
    harness.start_work();
    world.spawn(None, "faults", faults::inject(harness.clone()));
    if harness.reconnects_soon() {
        world.spawn(None, "peace", peace::check_until_end(harness.clone()));
    }
    world.sleep(None, Duration::from_micros(harness.plan.duration_us)).await;
    harness.stop_work();
    wind_down(&harness).await;
    world.sleep(None, SETTLE_TIME).await;
    harness.abort_faults();
    words::check(&harness);
    locks::check(&harness);
    messages::check(&harness);
    log::check(&harness);
    kv::check(&harness);
}

/// Waits until all sessions have ended, and checks for leaks.
async fn wind_down(harness: &Rc<Harness>) {
    // A session may have just begun a pause, which a slow clock lengthens.
    let timeout = harness.plan.lease() * 40 + Duration::from_micros(2 * harness.plan.work.think_us_max);
    let deadline_ns = harness.world.now_ns() + timeout.as_nanos() as u64;
    while harness.working_sessions() > 0 && harness.judge.is_ok() {
        if harness.world.now_ns() > deadline_ns {
            let working = harness.working_sessions();
            return harness
                .judge
                .report_violation(format!("{working} sessions have not ended after {timeout:?}"));
        }
        harness.world.sleep(None, Duration::from_micros(100)).await;
    }
    if harness.judge.is_ok() {
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
