//! Regions: allocated, mapped, read, written, filled, copied, moved, granted, revoked and freed concurrently.
//!
//! The valid results of an operation, and the valid contents of a word, follow from the times of the other operations:
//! see [`lives`], [`words`] and [`permissions`].

mod commands;
mod expected;
mod lives;
pub(crate) mod permissions;
mod unpermitted;
pub(crate) mod words;

use std::ops::Range;

use halite::{AccessCause, AccessError, Lh, Permissions};

pub(crate) use commands::names;
pub(crate) use expected::expected_regions;
pub(crate) use lives::Regions;
use lives::{LifeId, WORD};
use words::NEVER;

use crate::actor::{Actor, pick};

const NAMES: u64 = 6;
/// Maximum number of words of a short access, and of a long access.
const WORDS_MAX: u64 = 16;
const LONG_WORDS_MAX: u64 = 1200;
/// Maximum time from an adapter's access until its session learns of it.
pub(crate) const COMPLETION_DELAY_NS_MAX: u64 = 50_000;
/// Name of the read side of a copy.
const COPY_FROM: &str = "copy from";

/// The regions that a session has mapped.
#[derive(Debug, Default)]
pub(crate) struct Mappings {
    mappings: Vec<Mapping>,
}

#[derive(Clone, Copy, Debug)]
struct Mapping {
    lh: Lh,
    life: LifeId,
    /// Permissions of the mapping.
    permissions: Permissions,
    /// Start of the mapping operation.
    begin_ns: u64,
}

pub(crate) async fn run_operation(actor: &mut Actor) {
    if actor.regions.mappings.is_empty() {
        let is_alloc = actor.random.chance(1, 3);
        return if is_alloc { commands::alloc(actor).await } else { commands::map(actor).await };
    }
    let mapping = actor.regions.mappings[actor.random.index(actor.regions.mappings.len())];
    match pick(&mut actor.random, &[24, 24, 3, 3, 3, 2, 6, 2, 2, 3, 3, 2]) {
        0 => read(actor, mapping).await,
        1 => write(actor, mapping).await,
        2 => fill(actor, mapping).await,
        3 => copy(actor, mapping).await,
        4 => access_beyond_end(actor, mapping).await,
        5 => commands::alloc(actor).await,
        6 => commands::map(actor).await,
        7 => commands::unmap(actor, mapping).await,
        8..=11 if !mapping.permissions.contains(Permissions::MASTER) => {
            unpermitted::run_operation(actor, mapping).await
        }
        8 => commands::free(actor, mapping).await,
        9 => commands::grant(actor, mapping).await,
        10 => commands::revoke(actor, mapping).await,
        _ => commands::move_away(actor, mapping).await,
    }
}

/// Frees the regions that the session may free.
pub(crate) async fn finish(actor: &mut Actor) {
    actor.regions.mappings.retain(|mapping| mapping.permissions.contains(Permissions::MASTER));
    while let Some(mapping) = actor.regions.mappings.last().copied() {
        commands::free(actor, mapping).await;
        actor.regions.mappings.retain(|each| each.lh != mapping.lh);
    }
}

// Accesses.

async fn read(actor: &mut Actor, mapping: Mapping) {
    let range = random_words(actor, mapping.life);
    let (offset, len) = (range.start as u64 * WORD, range.len() as u64 * WORD);
    let mut bytes = vec![0; len as usize];
    let access = Access::begin(actor, mapping, Permissions::READ);
    trace_access(actor, "read", mapping, &range);
    let session = actor.session.clone();
    let result = actor.attempt("read", session.read(mapping.lh, offset, &mut bytes)).await;
    if let Some(Ok(())) = result {
        let regions = actor.harness.regions.borrow();
        let is_cut_off = actor.harness.was_isolated(actor.node);
        let found = regions.find_unexplained(mapping.life, access.begin_ns, range.start, &bytes, is_cut_off);
        if let Some((index, value)) = found {
            let name = regions.life(mapping.life).name;
            actor.harness.judge.report_violation(format!(
                "session {} of node {} read, from {} to {} ns, word {index} of r{name} (life {}) as {}; it may be {}",
                actor.number,
                actor.node,
                access.begin_ns,
                actor.now_ns(),
                mapping.life.0,
                regions.describe(value),
                regions.life(mapping.life).words.get(index).history(),
            ));
        }
    }
    access.end(actor, "read", result.map(|result| result.map_err(|error| error.cause)));
}

async fn write(actor: &mut Actor, mapping: Mapping) {
    let range = random_words(actor, mapping.life);
    let offset = range.start as u64 * WORD;
    let access = Access::begin(actor, mapping, Permissions::WRITE);
    trace_access(actor, "write", mapping, &range);
    let (write, bytes) = actor.harness.regions.borrow_mut().begin_write(access.begin_ns, mapping.life, range);
    let session = actor.session.clone();
    let result = actor.attempt("write", session.write(mapping.lh, offset, &bytes)).await;
    end_write(actor, &write, &result);
    access.end(actor, "write", result.map(|result| result.map_err(|error| error.cause)));
}

async fn fill(actor: &mut Actor, mapping: Mapping) {
    let range = random_words(actor, mapping.life);
    let (offset, len) = (range.start as u64 * WORD, range.len() as u64 * WORD);
    let access = Access::begin(actor, mapping, Permissions::WRITE);
    let byte = actor.random.between(1, 255) as u8;
    trace_access(actor, "fill", mapping, &range);
    let write = actor.harness.regions.borrow_mut().begin_fill(access.begin_ns, mapping.life, range, byte);
    let session = actor.session.clone();
    let result = actor.attempt("fill", session.fill(mapping.lh, offset, len, byte)).await;
    end_write(actor, &write, &result);
    access.end(actor, "fill", result.map(|result| result.map_err(|error| error.cause)));
}

fn end_write(actor: &Actor, write: &lives::Write, result: &Option<Result<(), AccessError>>) {
    let mut regions = actor.harness.regions.borrow_mut();
    match result {
        // A node that was declared dead may have written to an earlier place of the region, which others do not read.
        Some(Ok(())) if actor.harness.was_isolated(actor.node) => {}
        Some(Ok(())) => regions.end_write(actor.now_ns(), write),
        Some(Err(error)) if !error.partly => regions.undo_write(write),
        Some(Err(_)) | None => {}
    }
}

async fn copy(actor: &mut Actor, from: Mapping) {
    let to = actor.regions.mappings[actor.random.index(actor.regions.mappings.len())];
    let source = random_words(actor, from.life);
    let target_words = actor.harness.regions.borrow().life(to.life).words.len();
    let count = source.len().min(target_words);
    let first = actor.random.index(target_words - count + 1);
    let target = first..first + count;
    trace_access(actor, "copy from", from, &source);
    trace_access(actor, "copy to", to, &target);
    let accesses =
        [Access::begin(actor, from, Permissions::READ), Access::begin(actor, to, Permissions::WRITE)];
    let begin_ns = accesses[0].begin_ns;
    actor.harness.regions.borrow_mut().begin_copy(to.life, target.clone());
    let session = actor.session.clone();
    let [source_offset, target_offset, len] = [source.start, first, count].map(|words| words as u64 * WORD);
    let copied = session.copy(to.lh, target_offset, from.lh, source_offset, len);
    let result = actor.attempt("copy", copied).await;
    {
        let mut regions = actor.harness.regions.borrow_mut();
        match &result {
            Some(Ok(())) if actor.harness.was_isolated(actor.node) => {}
            Some(Ok(())) => {
                regions.end_copy(actor.now_ns(), begin_ns, (from.life, source.start), (to.life, target))
            }
            Some(Err(error))
                if !error.partly
                    && !matches!(
                        error.cause,
                        AccessCause::PeerDown(_) | AccessCause::LinkLost(_) | AccessCause::NodeClosed(_)
                    ) =>
            {
                regions.forget_copy(to.life, &target)
            }
            Some(Err(_)) | None => {}
        }
    }
    let [reading, writing] = accesses;
    match result {
        // The error names the side that refused.
        Some(Err(error)) if error.side == halite::CopySide::Target => {
            reading.cancel(actor);
            writing.end(actor, "copy to", Some(Err(error.cause)));
        }
        Some(Err(error)) => {
            writing.cancel(actor);
            reading.end(actor, COPY_FROM, Some(Err(error.cause)));
        }
        Some(Ok(())) => {
            reading.end(actor, COPY_FROM, Some(Ok(())));
            writing.end(actor, "copy to", Some(Ok(())));
        }
        None => {
            reading.cancel(actor);
            writing.cancel(actor);
        }
    }
}

/// Accesses a range that is partly or completely beyond the end, or wraps around. The access must be refused.
async fn access_beyond_end(actor: &mut Actor, mapping: Mapping) {
    let len = actor.harness.regions.borrow().life(mapping.life).bytes();
    let offset = match actor.random.below(4) {
        0 => len,
        1 => u64::MAX - 7,
        2 => len + actor.random.below(1 << 20),
        _ => len - WORD,
    };
    let mut bytes = vec![0xee; 2 * WORD as usize];
    let session = actor.session.clone();
    let result = match actor.random.below(2) {
        0 => actor.attempt("read past the end", session.read(mapping.lh, offset, &mut bytes)).await,
        _ => actor.attempt("write past the end", session.write(mapping.lh, offset, &bytes)).await,
    };
    actor.harness.judge.expect(!matches!(result, Some(Ok(()))), || {
        format!("an access at offset {offset} of a region of {len} bytes succeeded")
    });
}

/// Records the next access in the trace.
fn trace_access(actor: &Actor, what: &str, mapping: Mapping, words: &Range<usize>) {
    let life = mapping.life.0;
    actor.trace(format_args!("will {what} words {words:?} of life {life} by {:?}", mapping.lh));
}

/// Returns a range of words, sometimes a long one.
fn random_words(actor: &mut Actor, life: LifeId) -> Range<usize> {
    let words = actor.harness.regions.borrow().life(life).words.len() as u64;
    let is_long = actor.random.chance(actor.harness.plan.work.long_per_mille.into(), 1000);
    let max = if is_long { LONG_WORDS_MAX } else { WORDS_MAX };
    let count = actor.random.between(1, max.min(words));
    let first = actor.random.below(words - count + 1);
    first as usize..(first + count) as usize
}

/// An access in progress.
struct Access {
    mapping: Mapping,
    kind: Permissions,
    begin_ns: u64,
}

impl Access {
    fn begin(actor: &Actor, mapping: Mapping, kind: Permissions) -> Access {
        let begin_ns = actor.now_ns();
        actor.harness.regions.borrow_mut().life_mut(mapping.life).begin_access(begin_ns);
        Access { mapping, kind, begin_ns }
    }

    /// Records that the outcome is unknown.
    fn cancel(self, actor: &Actor) {
        actor.harness.regions.borrow_mut().life_mut(self.mapping.life).end_access(self.begin_ns);
    }

    fn end(self, actor: &mut Actor, what: &str, result: Option<Result<(), AccessCause>>) {
        let Access { mapping, kind, begin_ns } = self;
        let verdict = match &result {
            None => Ok(()),
            Some(Ok(())) => check_success(actor, mapping, kind, begin_ns, what == COPY_FROM),
            Some(Err(cause)) => check_refusal(actor, mapping, kind, begin_ns, cause),
        };
        if let Err(reason) = verdict {
            let life = mapping.life.0;
            let (number, node, now) = (actor.number, actor.node, actor.now_ns());
            actor.harness.judge.report_violation(format!(
                "{what} by session {number} of node {node} in life {life}, from {begin_ns} to {now} ns: {reason}"
            ));
        }
        if let Some(Err(AccessCause::Stale | AccessCause::PeerDown(_) | AccessCause::LinkLost(_))) = result {
            actor.regions.mappings.retain(|each| each.lh != mapping.lh);
        }
        self.cancel(actor);
    }
}

fn check_success(
    actor: &Actor,
    mapping: Mapping,
    kind: Permissions,
    begin_ns: u64,
    is_copied: bool,
) -> Result<(), String> {
    let regions = actor.harness.regions.borrow();
    let life = regions.life(mapping.life);
    // A node has missed changes if it was declared dead, or was stopped and then declared others dead. If adapters
    // connect the nodes, its accesses fail even so, because a change waits until each mapper has confirmed it or is cut
    // off.
    let over_ns = match actor.harness.adapters_cut_off {
        // A copy may read long before it writes, and a stopped session learns of its adapter's accesses late.
        true if is_copied || actor.harness.may_have_been_stopped_since(actor.node, begin_ns) => begin_ns,
        true => actor.now_ns() - COMPLETION_DELAY_NS_MAX,
        false if actor.harness.was_any_node_isolated() => return Ok(()),
        false => begin_ns,
    };
    let since_ns = begin_ns.max(over_ns);
    if !life.may_have_lived(since_ns) {
        return Err(format!("the access succeeded, but the region was freed at {} ns", life.freed_ns));
    }
    if !mapping.permissions.contains(kind) || !life.permissions.may_have(actor.principal, kind, since_ns) {
        return Err(format!("the access succeeded without permission for {kind}"));
    }
    Ok(())
}

fn check_refusal(
    actor: &Actor,
    mapping: Mapping,
    kind: Permissions,
    begin_ns: u64,
    cause: &AccessCause,
) -> Result<(), String> {
    let regions = actor.harness.regions.borrow();
    let life = regions.life(mapping.life);
    let was_revoked = life.revoked[actor.principal];
    // A handle that was mapped in peace must work if all nodes of its region live.
    let is_due = actor.harness.was_peace_since(mapping.begin_ns) && commands::is_intact(actor, life);
    let had_fault = actor.harness.judge.had_fault() && !is_due;
    let is_explained = match cause {
        AccessCause::Stale => had_fault || life.free_begin_ns != NEVER || was_revoked,
        AccessCause::PermissionDenied { .. } => {
            let has_right = life.permissions.has_had(actor.principal, kind, begin_ns);
            !mapping.permissions.contains(kind) || was_revoked || !has_right
        }
        AccessCause::PeerDown(_) | AccessCause::LinkLost(_) | AccessCause::NodeClosed(_) => had_fault,
        _ => false,
    };
    if is_explained { Ok(()) } else { Err(format!("refused without a known cause: {cause}")) }
}
