//! Fault injection, by the plan's intervals and weights.

use std::rc::Rc;
use std::time::Duration;

use halite::NodeId;
use halite_sim::{Corruption, Link, Random};

use crate::actor::pick;
use crate::harness::Harness;
use crate::peace;

/// Injects faults until the trial ends. Each fault ends after a while.
pub(crate) async fn inject(harness: Rc<Harness>) {
    let faults = harness.plan.faults.clone();
    if faults.gap_us == 0 {
        return;
    }
    let mut random = harness.world.random("faults");
    let end_ns = harness.world.now_ns() + harness.plan.duration_us * 1000;
    let spell_ns = faults.spell_us * 1000;
    let mut spell_end_ns = harness.world.now_ns() + spell_ns;
    loop {
        if spell_ns > 0 && harness.world.now_ns() > spell_end_ns {
            peace::wait_for_truce(&harness, 2 * harness.plan.lease()).await;
            spell_end_ns = harness.world.now_ns() + spell_ns;
        }
        let gap = Duration::from_nanos(random.below(2000 * faults.gap_us) + 1);
        if harness.world.now_ns() + gap.as_nanos() as u64 > end_ns {
            return;
        }
        harness.world.sleep(None, gap).await;
        if !harness.is_running() {
            return;
        }
        let kind = pick(&mut random, &faults.weights());
        begin(&harness, kind, &mut random);
    }
}

fn begin(harness: &Rc<Harness>, kind: usize, random: &mut Random) {
    let node = random.below(harness.nodes().into()) as u32;
    let other = (node + 1 + random.below(u64::from(harness.nodes().max(2) - 1)) as u32) % harness.nodes();
    let lease_ns = harness.plan.lease().as_nanos() as u64;
    // Some faults end before the peers give up the node, others later.
    let long_ns_max = lease_ns * u64::from(harness.plan.faults.long_percent) / 100;
    let long = Duration::from_nanos(random.below(long_ns_max.max(1)) + 1);
    harness.judge.expect_trouble(harness.world.now_ns() + long.as_nanos() as u64);
    let shared = harness.clone();
    match kind {
        0 if harness.is_up(node) => {
            harness.crash(node);
            scenario(harness, "restart", async move { restart_after(&shared, node, long).await });
        }
        1 if harness.is_up(node) => scenario(harness, "leave", async move {
            shared.leave(node).await;
            restart_after(&shared, node, long).await;
        }),
        2 if harness.is_up(node) => scenario(harness, "pause", async move {
            shared.stop(node, long).await;
        }),
        3 => cut(harness, &[ways(harness, node, other), ways(harness, other, node)].concat(), long),
        4 => cut(harness, &ways(harness, node, other), long),
        5 => {
            let noise = some_noise(random);
            let ways = ways(harness, node, other);
            isolate(harness, &ways);
            change(harness, &ways, long, "noise", move |link| Link { ..noise(link) });
        }
        6 => harness.world.set_drift_ppm(harness.host(node), random.below(400) as i64 - 200),
        7 if harness.is_up(node) => {
            harness.crash_host(node);
            for node in harness.beside(node) {
                let shared = harness.clone();
                scenario(harness, "restart", async move { restart_after(&shared, node, long).await });
            }
        }
        8 if harness.is_up(node) && node != 0 && other != 0 => forget(harness, node, other),
        _ => {}
    }
}

/// Makes the cluster forget `node` while only `friend` reaches it, and checks that `friend` stays connected to it. Then
/// restarts `node` in another incarnation.
fn forget(harness: &Rc<Harness>, node: u32, friend: u32) {
    if harness.has_disturbed_links() {
        return;
    }
    let lease = harness.plan.lease();
    let others = (0..harness.nodes()).filter(|other| *other != node && *other != friend);
    let all: Vec<_> =
        others.flat_map(|other| [ways(harness, node, other), ways(harness, other, node)].concat()).collect();
    cut(harness, &all, 4 * lease);
    harness.judge.expect_trouble(harness.world.now_ns() + (4 * lease).as_nanos() as u64);
    let (shared, lives) = (harness.clone(), [harness.incarnation(node), harness.incarnation(friend)]);
    scenario(harness, "forget", async move {
        // Time at which the links were cut.
        let cut_ns = shared.world.now_ns();
        shared.world.sleep(None, 2 * lease).await;
        let Some(directory) = shared.driven(0).map(|directory| directory.session()) else { return };
        if directory.forget_node(NodeId(node)).await.is_err() {
            return;
        }
        shared.world.sleep(None, lease / 2).await;
        let are_there = lives == [shared.incarnation(node), shared.incarnation(friend)]
            && shared.is_well(node)
            && shared.is_well(friend)
            && shared.last_trouble_ns() == cut_ns;
        let does_see = shared.driven(friend).is_some_and(|friend| friend.is_connected_to(NodeId(node)));
        shared.judge.expect(does_see || !are_there, || {
            format!(
                "node {friend} lost its undisturbed connection to node {node} after others forgot that node"
            )
        });
        shared.crash(node);
        restart_after(&shared, node, 2 * lease).await;
    });
}

/// Returns the links from one node's host to another's; none within a host.
fn ways(harness: &Harness, from: u32, to: u32) -> Vec<(u32, u32)> {
    let beside = |node| harness.beside(node).into_iter();
    match harness.world.share_a_host(harness.host(from), harness.host(to)) {
        true => Vec::new(),
        false => beside(from).flat_map(|from| beside(to).map(move |to| (from, to))).collect(),
    }
}

fn isolate(harness: &Harness, ways: &[(u32, u32)]) {
    for (from, to) in ways {
        harness.isolate(*from);
        harness.isolate(*to);
    }
}

fn cut(harness: &Rc<Harness>, ways: &[(u32, u32)], long: Duration) {
    isolate(harness, ways);
    change(harness, ways, long, "partition", Link::down);
}

/// Cuts links after `later`, for a while.
pub(crate) fn cut_later(harness: &Rc<Harness>, ways: Vec<(u32, u32)>, later: Duration, long: Duration) {
    let shared = harness.clone();
    harness.judge.expect_trouble(harness.world.now_ns() + (later + long).as_nanos() as u64);
    scenario(harness, "cut", async move {
        shared.world.sleep(None, later).await;
        cut(&shared, &ways, long);
    });
}

/// Changes links for a while.
fn change(
    harness: &Rc<Harness>,
    ways: &[(u32, u32)],
    long: Duration,
    name: &str,
    what: impl Fn(Link) -> Link + 'static,
) {
    let shared = harness.clone();
    let ways: Vec<_> = ways.iter().map(|(from, to)| (harness.host(*from), harness.host(*to))).collect();
    scenario(harness, name, async move {
        let world = &shared.world;
        let before: Vec<Link> = ways.iter().map(|(from, to)| world.link(*from, *to)).collect();
        // Does nothing if another fault has already changed them.
        if before.iter().any(|link| !link.up || link.loss_ppm > 0) {
            return;
        }
        for ((from, to), link) in ways.iter().zip(&before) {
            shared.disturb(*from, *to, what(*link));
        }
        world.sleep(None, long).await;
        for (from, to) in ways {
            shared.mend(from, to);
        }
    });
}

fn some_noise(random: &mut Random) -> impl Fn(Link) -> Link + 'static {
    let [loss, twice, late, damaged] = std::array::from_fn(|_| 1 + random.below(50_000) as u32);
    let jitter_ns = random.below(20_000);
    move |link| Link {
        loss_ppm: loss,
        duplicate_ppm: twice,
        reorder_ppm: late,
        corrupt_ppm: damaged,
        corruption: Corruption::Caught,
        jitter_ns,
        ..link
    }
}

async fn restart_after(harness: &Rc<Harness>, node: u32, long: Duration) {
    harness.world.sleep(None, long).await;
    harness.restart(node);
}

fn scenario(harness: &Rc<Harness>, name: &str, future: impl Future<Output = ()> + 'static) {
    let task = harness.world.spawn(None, name, future);
    harness.note_fault(task);
}
