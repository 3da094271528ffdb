//! A home and a mapper of its region lose their connection, while both reach the node that holds the bytes.
//!
//! ```text
//!      home  ───── cut for about a lease, or more ─────  mapper
//!        └────────────────  holder  ────────────────────────┘   cut, if at all, for less than a lease
//! ```
//!
//! The mapper accesses the region until its handle fails. Meanwhile the home's session frees the region, and allocates
//! another one in the same memory. From then on, no access of the mapper may succeed, and no earlier access may change
//! the memory.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use halite::{Lh, NodeId, Permissions, Placement, RegionCause, Session};

use crate::actor::Actor;
use crate::faults;
use crate::harness::{CHUNK_BYTES, Harness};
use crate::judge::may_follow_fault;
use crate::regions::COMPLETION_DELAY_NS_MAX;
use crate::rights::free_by_name;

const EVERYONE: Permissions = Permissions::READ.union(Permissions::WRITE);
/// Length of the region in bytes: a chunk at the home, and a chunk at the holder.
const BYTES: u64 = 2 * CHUNK_BYTES;
/// Bytes that the mapper writes.
const MARK: [u8; 64] = [0x5a; 64];
/// Pause of the mapper between two accesses.
const PAUSE: Duration = Duration::from_micros(5);

/// Returns the names of the regions of all scenes, one per session.
pub(crate) fn names(harness: &Harness) -> impl Iterator<Item = String> + use<> {
    harness.scene_names(harness.plan.work.apart, name)
}

fn name(node: u32, session: u32) -> String {
    format!("a{node}.{session}")
}

/// The participants of a scene, and its outcome.
struct Scene {
    harness: Rc<Harness>,
    home: u32,
    holder: u32,
    /// Session of the home that owns the region.
    owner: Session,
    /// Handle of `owner`.
    lh: Lh,
    /// Time at which the free returned.
    freed_ns: Cell<Option<u64>>,
    /// The region that got the memory after the free.
    next: RefCell<Option<Lh>>,
}

pub(crate) async fn run_operation(actor: &mut Actor) {
    let nodes = u64::from(actor.harness.nodes());
    let [home, holder] =
        two_others(actor.node, nodes, actor.random.below(nodes - 1), actor.random.below(nodes - 2));
    let Some(scene) = prepare(actor, home, holder).await else { return };
    let (mapper, begin_ns) = (actor.session.clone(), actor.now_ns());
    let lh = match actor.attempt("map apart", mapper.map(&name(actor.node, actor.number), EVERYONE)).await {
        Some(Ok(lh)) => lh,
        Some(Err(error)) => {
            let is_explained = may_follow_fault(&error.cause) && actor.harness.judge.had_fault();
            return actor.expect_reason(is_explained, begin_ns, &error);
        }
        None => return,
    };
    let end_ns = cut_links(actor, &scene);
    access_until(actor, &scene, lh, end_ns).await;
    check_next_region(actor, &scene).await;
}

/// Returns two distinct nodes other than `own`, chosen by two random numbers.
fn two_others(own: u32, nodes: u64, first: u64, second: u64) -> [u32; 2] {
    let after = |step: u64| (u64::from(own) + 1 + step) % nodes;
    // Counts on from the first node, so that the second one differs.
    let second = (first + 1 + second) % (nodes - 1);
    [after(first) as u32, after(second) as u32]
}

/// Prepares a scene: the home creates a region whose second half is at the holder, and the mapper maps it.
async fn prepare(actor: &mut Actor, home: u32, holder: u32) -> Option<Rc<Scene>> {
    let harness = actor.harness.clone();
    if !harness.is_up(home) {
        return None;
    }
    let (owner, begin_ns, name) =
        (harness.driven(home)?.session(), actor.now_ns(), name(actor.node, actor.number));
    let nodes = Placement::Spread(vec![NodeId(home), NodeId(holder)]);
    let allocation = owner.alloc(Some(&name), BYTES, nodes, EVERYONE);
    match actor.attempt("alloc apart", allocation).await? {
        Ok(lh) => {
            let (freed_ns, next) = (Cell::default(), RefCell::default());
            Some(Rc::new(Scene { harness, home, holder, owner, lh, freed_ns, next }))
        }
        Err(error) => {
            // The previous region is still being freed.
            let is_explained = matches!(error.cause, RegionCause::NameTaken | RegionCause::NoSpace { .. })
                || (may_follow_fault(&error.cause) && harness.judge.had_fault());
            actor.expect_reason(is_explained, begin_ns, &error);
            free_by_name(actor, &name).await;
            None
        }
    }
}

/// Cuts the mapper's link to the home, perhaps also cuts its link to the holder for a while, and lets the home free the
/// region. Returns the time at which all cuts and another lease are over.
fn cut_links(actor: &mut Actor, scene: &Rc<Scene>) -> u64 {
    let harness = &scene.harness;
    let lease_ns = harness.plan.lease().as_nanos() as u64;
    let home_cut_ns = lease_ns / 2 + actor.random.below(2 * lease_ns);
    let holder_cut_ns = actor.random.below(lease_ns);
    let holder_delay_ns = actor.random.below(3 * lease_ns / 2);
    let free_delay_ns = actor.random.below(3 * lease_ns / 2);
    cut(actor, scene.home, 0, home_cut_ns);
    if actor.random.chance(2, 3) {
        cut(actor, scene.holder, holder_delay_ns, holder_cut_ns);
    }
    let freeing = scene.clone();
    harness.world.spawn(Some(harness.host(scene.home)), "a home that frees", async move {
        let harness = &freeing.harness;
        harness.world.sleep(None, Duration::from_nanos(free_delay_ns)).await;
        if freeing.owner.free(freeing.lh).await.is_ok() {
            freeing.freed_ns.set(Some(harness.world.now_ns()));
            let there = Placement::On(NodeId(freeing.holder));
            let next = freeing.owner.alloc(None, BYTES, there, Permissions::empty()).await.ok();
            *freeing.next.borrow_mut() = next;
        }
    });
    actor.now_ns() + home_cut_ns.max(holder_delay_ns + holder_cut_ns) + lease_ns
}

/// Cuts one or both directions between the mapper and another node for a while.
fn cut(actor: &mut Actor, other: u32, delay_ns: u64, duration_ns: u64) {
    let (forward, reverse) = ((actor.node, other), (other, actor.node));
    let links = match actor.random.below(4) {
        0 => vec![forward],
        1 => vec![reverse],
        _ => vec![forward, reverse],
    };
    let [delay, duration] = [delay_ns, duration_ns].map(Duration::from_nanos);
    faults::cut_later(&actor.harness, links, delay, duration);
}

/// Lets the mapper access the region until its handle fails, and then waits until `end_ns`.
async fn access_until(actor: &mut Actor, scene: &Scene, lh: Lh, end_ns: u64) {
    let (world, host, mapper) = (actor.harness.world.clone(), actor.host, actor.session.clone());
    let mut is_write = true;
    while actor.now_ns() < end_ns && actor.harness.sessions_continue() {
        let begin_ns = actor.now_ns();
        let mut bytes = MARK;
        let result = match is_write {
            true => actor.attempt("write apart", mapper.write(lh, CHUNK_BYTES, &bytes)).await,
            false => actor.attempt("read apart", mapper.read(lh, CHUNK_BYTES, &mut bytes)).await,
        };
        match result {
            Some(Ok(())) => check_success(actor, scene, begin_ns),
            // No earlier access may take effect during the remaining time.
            Some(Err(_)) => {
                world.sleep(Some(host), Duration::from_nanos(end_ns.saturating_sub(actor.now_ns()))).await
            }
            None => {}
        }
        is_write = !is_write;
        world.sleep(Some(host), PAUSE).await;
    }
    let _ = mapper.unmap(lh).await;
}

fn check_success(actor: &Actor, scene: &Scene, begin_ns: u64) {
    let is_over = |freed_ns: u64| actor.now_ns() > freed_ns + COMPLETION_DELAY_NS_MAX;
    let over_ns = scene.freed_ns.get().filter(|freed_ns| is_over(*freed_ns));
    actor.expect(
        over_ns.is_none(),
        begin_ns,
        format_args!(
            "an access to node {} succeeded, but node {} freed the region at {over_ns:?} ns",
            scene.holder, scene.home
        ),
    );
}

/// Checks that the region that now has the memory still holds its first contents.
async fn check_next_region(actor: &mut Actor, scene: &Scene) {
    let Some(next) = scene.next.take() else { return };
    let (mut bytes, begin_ns) = (vec![0; BYTES as usize], actor.now_ns());
    if scene.owner.read(next, 0, &mut bytes).await.is_ok() {
        let is_clean = bytes.iter().all(|byte| *byte == 0);
        actor.expect(
            is_clean,
            begin_ns,
            format_args!("a write landed in memory of node {} that belongs to another region", scene.holder),
        );
    }
    let _ = scene.owner.free(next).await;
}
