//! Words: sessions add to them, swap them and read them concurrently. [`Chain`] defines the valid results.

use halite::{AccessCause, AccessError, Lh, NodeId, Permissions, Placement, RegionCause, RegionError};

use crate::actor::{Actor, pick};
use crate::harness::Harness;
use crate::judge::may_follow_fault;
use crate::linearizability::Span;
use crate::linearizability::chain::Chain;
use crate::linearizability::register::Change;

const NAMES: usize = 2;
/// Number of words in use per region.
const WORDS: usize = 2;
const WORD: u64 = 8;
const EVERYONE: Permissions = Permissions::READ.union(Permissions::ATOMIC);

#[derive(Debug, Default)]
pub(crate) struct Words {
    /// All regions so far. Each is longer than the previous one, so that its length identifies it.
    lives: Vec<Life>,
}

#[derive(Debug, Default)]
struct Life {
    chains: [Chain; WORDS],
    /// True if the region is being freed.
    is_being_freed: bool,
}

/// The regions that a session has mapped, by name.
#[derive(Debug, Default)]
pub(crate) struct Mappings {
    mappings: [Option<Mapping>; NAMES],
}

#[derive(Clone, Copy, Debug)]
struct Mapping {
    lh: Lh,
    life: usize,
    /// Permissions of the mapping; the creator is a master.
    permissions: Permissions,
    /// Last known values of the words.
    last: [u64; WORDS],
}

/// Checks the histories of all words, after all sessions have ended.
pub(crate) fn check(harness: &Harness) {
    for (index, life) in harness.words.borrow().lives.iter().enumerate() {
        for (word, chain) in life.chains.iter().enumerate() {
            let report =
                |reason| harness.judge.report_violation(format!("word {word} of life {index}: {reason}"));
            chain.check().unwrap_or_else(report);
        }
    }
}

pub(crate) async fn run_operation(actor: &mut Actor) {
    let name = actor.random.index(NAMES);
    let Some(mapping) = actor.words.mappings[name] else { return open(actor, name).await };
    let word = actor.random.index(WORDS);
    match pick(&mut actor.random, &[8, 6, 6, 2]) {
        0 => {
            let add = actor.random.between(1, 1 << 40);
            change(actor, name, mapping, word, Change::Add(add)).await;
        }
        1 => {
            let new = actor.random.bits();
            let swap = Change::Swap { expected: mapping.last[word], new };
            change(actor, name, mapping, word, swap).await;
        }
        2 => read(actor, name, mapping, word).await,
        _ => access_invalid_word(actor, name, mapping).await,
    }
}

/// Frees the regions that the session has created.
pub(crate) async fn finish(actor: &mut Actor) {
    for mapping in std::mem::take(&mut actor.words.mappings).into_iter().flatten() {
        if mapping.permissions.contains(Permissions::MASTER) {
            actor.harness.words.borrow_mut().lives[mapping.life].is_being_freed = true;
            let session = actor.session.clone();
            // A second attempt follows a cancelled one, because no other session frees the regions.
            for _ in 0..2 {
                if actor.attempt("free words", session.free(mapping.lh)).await.is_some() {
                    break;
                }
            }
        }
    }
}

/// Returns the names of the regions of words.
pub(crate) fn names() -> impl Iterator<Item = String> {
    (0..NAMES).map(name_of)
}

fn name_of(name: usize) -> String {
    format!("w{name}")
}

async fn open(actor: &mut Actor, name: usize) {
    let (text, session, begin_ns) = (name_of(name), actor.session.clone(), actor.now_ns());
    let permissions = if actor.random.chance(1, 8) { Permissions::READ } else { EVERYONE };
    match actor.attempt("map words", session.map(&text, permissions)).await {
        Some(Ok(lh)) => {
            let Ok(len) = session.len(lh) else { return };
            let life = (len / WORD) as usize - WORDS;
            let is_known = life < actor.harness.words.borrow().lives.len();
            if !is_known {
                return actor
                    .harness
                    .judge
                    .report_violation(format!("{text} has {len} bytes; no such region had"));
            }
            actor.words.mappings[name] = Some(Mapping { lh, life, permissions, last: [0; WORDS] });
        }
        Some(Err(error)) if matches!(error.cause, RegionCause::NotFound | RegionCause::Lost(_)) => {
            create(actor, name, &text).await
        }
        Some(Err(error)) => actor.expect_reason(fault_explains(actor, &error), begin_ns, &error),
        None => {}
    }
}

async fn create(actor: &mut Actor, name: usize, text: &str) {
    let life = {
        let mut words = actor.harness.words.borrow_mut();
        words.lives.push(Life::default());
        words.lives.len() - 1
    };
    let len = (life + WORDS) as u64 * WORD;
    let home = NodeId(actor.random.below(actor.harness.nodes().into()) as u32);
    let (session, begin_ns) = (actor.session.clone(), actor.now_ns());
    let allocation = session.alloc(Some(text), len, Placement::On(home), EVERYONE);
    match actor.attempt("alloc words", allocation).await {
        Some(Ok(lh)) => {
            let permissions = EVERYONE.union(Permissions::MASTER);
            actor.words.mappings[name] = Some(Mapping { lh, life, permissions, last: [0; WORDS] });
        }
        // An unused region is freed.
        failure => {
            actor.harness.words.borrow_mut().lives[life].is_being_freed = true;
            if let Some(Err(error)) = failure {
                actor.expect_reason(fault_explains(actor, &error), begin_ns, &error);
            }
        }
    }
}

fn fault_explains(actor: &Actor, error: &RegionError) -> bool {
    match &error.cause {
        RegionCause::NameTaken | RegionCause::NoSpace { .. } | RegionCause::Stale => true,
        cause => may_follow_fault(cause) && !actor.harness.is_fault_free(),
    }
}

async fn change(actor: &mut Actor, name: usize, mapping: Mapping, word: usize, change: Change) {
    let (session, offset, begin_ns) = (actor.session.clone(), word as u64 * WORD, actor.now_ns());
    let number = with_chain(actor, mapping, word, |chain| chain.begin(begin_ns, change));
    let result = match change {
        Change::Add(add) => actor.attempt("fetch and add", session.fetch_add(mapping.lh, offset, add)).await,
        Change::Swap { expected, new } => {
            let swap = session.compare_swap(mapping.lh, offset, expected, new);
            actor.attempt("compare and swap", swap).await
        }
    };
    let now_ns = actor.now_ns();
    match result {
        Some(Ok(old)) => {
            let verdict = with_chain(actor, mapping, word, |chain| chain.changed(number, now_ns, old));
            let is_allowed = mapping.permissions.contains(Permissions::ATOMIC);
            actor.expect(is_allowed, begin_ns, "a word was changed without permission");
            verdict.unwrap_or_else(|reason| actor.expect(false, begin_ns, reason));
            record_last(actor, name, word, old);
        }
        Some(Err(error)) => {
            if !error.partly {
                with_chain(actor, mapping, word, |chain| chain.forget(number));
            }
            check_refusal(actor, name, mapping, Permissions::ATOMIC, begin_ns, &error);
        }
        None => {}
    }
}

fn with_chain<T>(actor: &Actor, mapping: Mapping, word: usize, f: impl FnOnce(&mut Chain) -> T) -> T {
    f(&mut actor.harness.words.borrow_mut().lives[mapping.life].chains[word])
}

async fn read(actor: &mut Actor, name: usize, mapping: Mapping, word: usize) {
    let (session, begin_ns) = (actor.session.clone(), actor.now_ns());
    let mut bytes = [0; WORD as usize];
    let result = actor.attempt("read a word", session.read(mapping.lh, word as u64 * WORD, &mut bytes)).await;
    match result {
        Some(Ok(())) => {
            let value = u64::from_le_bytes(bytes);
            let span = Span { begin_ns, end_ns: actor.now_ns() };
            actor.harness.words.borrow_mut().lives[mapping.life].chains[word].saw(span, value);
            record_last(actor, name, word, value);
        }
        Some(Err(error)) => check_refusal(actor, name, mapping, Permissions::READ, begin_ns, &error),
        None => {}
    }
}

fn record_last(actor: &mut Actor, name: usize, word: usize, value: u64) {
    if let Some(mapping) = &mut actor.words.mappings[name] {
        mapping.last[word] = value;
    }
}

fn check_refusal(
    actor: &mut Actor,
    name: usize,
    mapping: Mapping,
    needed: Permissions,
    begin_ns: u64,
    error: &AccessError,
) {
    let is_being_freed = actor.harness.words.borrow().lives[mapping.life].is_being_freed;
    let is_explained = match error.cause {
        AccessCause::Stale => is_being_freed || !actor.harness.is_fault_free(),
        AccessCause::PeerDown(_) | AccessCause::LinkLost(_) | AccessCause::NodeClosed(_) => {
            !actor.harness.is_fault_free()
        }
        AccessCause::PermissionDenied { .. } => !mapping.permissions.contains(needed),
        _ => false,
    };
    actor.expect_reason(is_explained, begin_ns, error);
    if !matches!(error.cause, AccessCause::PermissionDenied { .. }) && !is_being_freed {
        actor.words.mappings[name] = None;
    }
}

/// Requests an atomic on bytes that are not a word of the region. The request must be refused.
async fn access_invalid_word(actor: &mut Actor, name: usize, mapping: Mapping) {
    let len = (mapping.life + WORDS) as u64 * WORD;
    let offset = match actor.random.below(3) {
        0 => actor.random.between(1, WORD - 1),
        1 => len,
        _ => u64::MAX - 7,
    };
    let (session, begin_ns) = (actor.session.clone(), actor.now_ns());
    let result = actor.attempt("misuse a word", session.fetch_add(mapping.lh, offset, 1)).await;
    match result {
        Some(Ok(_)) => {
            actor.expect(
                false,
                begin_ns,
                format_args!("a word at offset {offset} of {len} bytes was changed"),
            );
        }
        Some(Err(error)) => match error.cause {
            AccessCause::Unaligned { .. } | AccessCause::OutOfRange { .. } | AccessCause::Overflow => {}
            _ => check_refusal(actor, name, mapping, Permissions::ATOMIC, begin_ns, &error),
        },
        None => {}
    }
}
