//! What must be so in the end: nothing lost, nothing left over.

use halite::blocking::Session;
use halite::{NodeId, NodeStatus};

use super::board::{COUNTERS, Note, RECORDS, unexpected};
use super::crew::Crew;
use super::locks::{LOOSE, leave, loose_name, name, visit};
use super::words::MEETING;
use super::{Result, ensure};

/// Handles of a worker that does nothing: the board, and those behind locks and the barrier.
const MAPPINGS_MAX: u64 = 1 + RECORDS + LOOSE + 1;

/// Lets all come to rest, compares what they noted with what there is, lets them leave, and looks what remains.  Returns
/// what the soak was made of.
pub fn judge(mut crew: Crew) -> Result<String> {
    crew.rest()?;
    crew.await_all("messages come", all_came)?;
    judge_counters(&crew)?;
    let rounds = judge_barrier(&crew)?;
    judge_records(&crew)?;
    free_loose_locks(crew.board.session())?;
    crew.inherit()?;
    crew.await_all("memory comes back", |crew| only_idle_handles(crew.board.session()))?;
    let (done, kills, moot) = (crew.done()?, crew.kills, crew.sum(Note::Excused)?);
    let messages = crew.sum(Note::Received)?;
    let summary = format!(
        "{done} operations, {kills} kills, {moot} operations made moot by others, {messages} messages, {rounds} rounds of the barrier"
    );
    judge_what_remains(crew)?;
    Ok(summary)
}

/// Between those who survived, what was sent is received.
fn all_came(crew: &Crew) -> Result<bool> {
    let board = &crew.board;
    let mut all = true;
    for (from, sender) in crew.survivors() {
        for (to, receiver) in crew.survivors() {
            let is_meant = board.note(sender, Note::SentIncarnation(to))? == receiver;
            let sent = if is_meant { board.note(sender, Note::Sent(to))? } else { 0 };
            let is_known = board.note(receiver, Note::HeardIncarnation(from))? == sender;
            let heard = if is_known { board.note(receiver, Note::Heard(from))? } else { 0 };
            ensure!(
                heard <= sent,
                "incarnation {receiver} heard {heard} of {sent} messages of incarnation {sender}"
            );
            all &= heard == sent;
        }
    }
    Ok(all)
}

/// A counter holds what was added, and of what the killed were about to add, some.
fn judge_counters(crew: &Crew) -> Result<()> {
    for counter in 0..COUNTERS {
        let (found, added) = (crew.board.counter(counter)?, crew.sum(Note::Added(counter))?);
        let intended = crew.sum(Note::Intended(counter))?;
        ensure!(
            (added..=intended).contains(&found),
            "counter {counter} is {found}, and {added} to {intended} was added"
        );
        for (_, incarnation) in crew.survivors() {
            let added = crew.board.note(incarnation, Note::Added(counter))?;
            let intended = crew.board.note(incarnation, Note::Intended(counter))?;
            ensure!(
                added == intended,
                "incarnation {incarnation} added {added} to counter {counter}, and meant {intended}"
            );
        }
    }
    Ok(())
}

/// Two passed in each round, of whom one may have been killed before it noted that, or both.
fn judge_barrier(crew: &Crew) -> Result<u64> {
    let last = crew.board.session().barrier(MEETING, 1, std::time::Duration::MAX).map_err(unexpected)?;
    // The first round and the last are our own.
    let rounds = last - 2;
    let passes = crew.sum(Note::Passes)?;
    let lost = 2 * rounds - passes.min(2 * rounds);
    ensure!(
        passes <= 2 * rounds && lost <= 2 * crew.kills,
        "{passes} passed the barrier in {rounds} rounds of two"
    );
    Ok(rounds)
}

fn judge_records(crew: &Crew) -> Result<()> {
    for record in 0..RECORDS {
        let guard = visit(&crew.board, record)?;
        leave(&crew.board, record, guard)?;
    }
    Ok(())
}

fn free_loose_locks(session: &Session) -> Result<()> {
    for lock in 0..LOOSE {
        session.free_lock(&loose_name(lock)).map_err(unexpected)?;
    }
    Ok(())
}

fn only_idle_handles(session: &Session) -> Result<bool> {
    let nodes = session.status().map_err(unexpected)?;
    let is_idle = |node: &NodeStatus| node.bytes_used + node.regions == 0 && node.mappings <= MAPPINGS_MAX;
    let is_clean =
        |node: &NodeStatus| node.bytes_quarantined == 0 && (node.node == NodeId(0) || is_idle(node));
    Ok(nodes.iter().all(is_clean))
}

/// When all have left and the rest is freed, nothing remains.
fn judge_what_remains(crew: Crew) -> Result<()> {
    let (board, node, _directory) = crew.leave()?;
    for record in 0..RECORDS {
        board.session().free_lock(&name(record)).map_err(unexpected)?;
    }
    board.session().free_barrier(MEETING).map_err(unexpected)?;
    board.free()?;
    let session = node.blocking_session();
    let status = session.status().map_err(unexpected)?;
    let first = status.iter().find(|status| status.node == NodeId(0)).expect("it is this node");
    let left = first.bytes_used + first.bytes_quarantined + first.regions + first.mappings;
    ensure!(left == 0, "something remains: {first:?}");
    let listed = session.list().map_err(unexpected)?;
    ensure!(listed.is_empty(), "regions remain: {listed:?}");
    Ok(())
}
