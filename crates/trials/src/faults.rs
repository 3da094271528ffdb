//! Fault injection, by the plan's intervals and weights.

use std::rc::Rc;
use std::time::Duration;

use halite::NodeId;
use halite_sim::{Corruption, Link, Random};

use crate::actor::pick;
use crate::harness::Harness;
use crate::peace;

/// Injects faults until the trial ends. Each fault lasts for a while.
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
            peace::wait_for_peace(&harness, 2 * harness.plan.lease()).await;
            spell_end_ns = harness.world.now_ns() + spell_ns;
        }
        let gap = Duration::from_nanos(random.below(2000 * faults.gap_us) + 1);
        if harness.world.now_ns() + gap.as_nanos() as u64 > end_ns {
            return;
        }
        harness.world.sleep(None, gap).await;
        if !harness.sessions_continue() {
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
    // Some faults end before the peers declare the node dead; other faults end later.
    let duration_ns_max = lease_ns * u64::from(harness.plan.faults.long_percent) / 100;
    let duration = Duration::from_nanos(random.below(duration_ns_max.max(1)) + 1);
    harness.judge.record_fault_until(harness.world.now_ns() + duration.as_nanos() as u64);
    let shared = harness.clone();
    match kind {
        0 if harness.is_up(node) => {
            harness.crash(node);
            spawn_fault(harness, "restart", async move { restart_after(&shared, node, duration).await });
        }
        1 if harness.is_up(node) => spawn_fault(harness, "leave", async move {
            shared.leave(node).await;
            restart_after(&shared, node, duration).await;
        }),
        2 if harness.is_up(node) => spawn_fault(harness, "pause", async move {
            shared.stop(node, duration).await;
        }),
        3 => cut(harness, &[links(harness, node, other), links(harness, other, node)].concat(), duration),
        4 => cut(harness, &links(harness, node, other), duration),
        5 => {
            let noise = random_noise(random);
            let links = links(harness, node, other);
            isolate(harness, &links);
            change_links(harness, &links, duration, "noise", move |link| Link { ..noise(link) });
        }
        6 => harness.world.set_drift_ppm(harness.host(node), random.below(400) as i64 - 200),
        7 if harness.is_up(node) => {
            harness.crash_host(node);
            for node in harness.nodes_on_same_host(node) {
                let shared = harness.clone();
                spawn_fault(harness, "restart", async move { restart_after(&shared, node, duration).await });
            }
        }
        8 if harness.is_up(node) && node != 0 && other != 0 => forget(harness, node, other),
        _ => {}
    }
}

/// Makes the cluster forget `node` while only `peer` reaches it, and checks that `peer` stays connected to it. Then
/// restarts `node` in another incarnation.
fn forget(harness: &Rc<Harness>, node: u32, peer: u32) {
    if harness.has_changed_links() {
        return;
    }
    let lease = harness.plan.lease();
    let others = (0..harness.nodes()).filter(|other| *other != node && *other != peer);
    let all: Vec<_> = others
        .flat_map(|other| [links(harness, node, other), links(harness, other, node)].concat())
        .collect();
    cut(harness, &all, 4 * lease);
    harness.judge.record_fault_until(harness.world.now_ns() + (4 * lease).as_nanos() as u64);
    let (shared, incarnations) = (harness.clone(), [harness.incarnation(node), harness.incarnation(peer)]);
    spawn_fault(harness, "forget", async move {
        let cut_ns = shared.world.now_ns();
        shared.world.sleep(None, 2 * lease).await;
        let Some(directory) = shared.driven(0).map(|directory| directory.session()) else { return };
        if directory.forget_node(NodeId(node)).await.is_err() {
            return;
        }
        shared.world.sleep(None, lease / 2).await;
        let are_undisturbed = incarnations == [shared.incarnation(node), shared.incarnation(peer)]
            && shared.is_up_and_running(node)
            && shared.is_up_and_running(peer)
            && shared.last_change_ns() == cut_ns;
        let is_connected = shared.driven(peer).is_some_and(|peer| peer.is_connected_to(NodeId(node)));
        shared.judge.expect(is_connected || !are_undisturbed, || {
            format!(
                "node {peer} lost its undisturbed connection to node {node} after others forgot that node"
            )
        });
        shared.crash(node);
        restart_after(&shared, node, 2 * lease).await;
    });
}

/// Returns the links from one node's host to another's; none within a host.
fn links(harness: &Harness, from: u32, to: u32) -> Vec<(u32, u32)> {
    let neighbours = |node| harness.nodes_on_same_host(node).into_iter();
    match harness.world.share_a_host(harness.host(from), harness.host(to)) {
        true => Vec::new(),
        false => neighbours(from).flat_map(|from| neighbours(to).map(move |to| (from, to))).collect(),
    }
}

fn isolate(harness: &Harness, links: &[(u32, u32)]) {
    for (from, to) in links {
        harness.isolate(*from);
        harness.isolate(*to);
    }
}

fn cut(harness: &Rc<Harness>, links: &[(u32, u32)], duration: Duration) {
    isolate(harness, links);
    change_links(harness, links, duration, "partition", Link::down);
}

/// Cuts links after `delay`, for a while.
pub(crate) fn cut_later(harness: &Rc<Harness>, links: Vec<(u32, u32)>, delay: Duration, duration: Duration) {
    let shared = harness.clone();
    harness.judge.record_fault_until(harness.world.now_ns() + (delay + duration).as_nanos() as u64);
    spawn_fault(harness, "cut", async move {
        shared.world.sleep(None, delay).await;
        cut(&shared, &links, duration);
    });
}

/// Changes links for a while.
fn change_links(
    harness: &Rc<Harness>,
    links: &[(u32, u32)],
    duration: Duration,
    name: &str,
    change: impl Fn(Link) -> Link + 'static,
) {
    let shared = harness.clone();
    let links: Vec<_> = links.iter().map(|(from, to)| (harness.host(*from), harness.host(*to))).collect();
    spawn_fault(harness, name, async move {
        let world = &shared.world;
        let before: Vec<Link> = links.iter().map(|(from, to)| world.link(*from, *to)).collect();
        // Another fault may have changed these links already.
        if before.iter().any(|link| !link.up || link.loss_ppm > 0) {
            return;
        }
        for ((from, to), link) in links.iter().zip(&before) {
            shared.change_link(*from, *to, change(*link));
        }
        world.sleep(None, duration).await;
        for (from, to) in links {
            shared.restore_link(from, to);
        }
    });
}

fn random_noise(random: &mut Random) -> impl Fn(Link) -> Link + 'static {
    let [loss_ppm, duplicate_ppm, reorder_ppm, corrupt_ppm] =
        std::array::from_fn(|_| 1 + random.below(50_000) as u32);
    let jitter_ns = random.below(20_000);
    move |link| Link {
        loss_ppm,
        duplicate_ppm,
        reorder_ppm,
        corrupt_ppm,
        corruption: Corruption::Caught,
        jitter_ns,
        ..link
    }
}

async fn restart_after(harness: &Rc<Harness>, node: u32, duration: Duration) {
    harness.world.sleep(None, duration).await;
    harness.restart(node);
}

fn spawn_fault(harness: &Rc<Harness>, name: &str, future: impl Future<Output = ()> + 'static) {
    let task = harness.world.spawn(None, name, future);
    harness.register_fault(task);
}
