//! Tickets: the commands in progress in the engine, with the callers that wait for them.
//!
//! If the caller drops its command, the command still runs to its end, and then further commands undo its result. A
//! command that may wait indefinitely for other sessions is also withdrawn.
//!
//! ```text
//!  Waiting ── finish ──> Done ── taken by the caller
//!     └─ caller drops ─┐   └─ caller drops ─┐
//!        (Withdraw)    v                    v
//!                  Abandoned ── finish ── undone: Free (of an alloc), then Unmap
//! ```
//!
//! If the command's session closes before everything is undone, the engine keeps the session open until then.

use std::collections::BTreeMap;
use std::task::{Context, Poll, Waker};

use halite_tier::access::SlotRef;
use halite_tier::effect::{Command, CommandError, OpId, Outcome, Release};
use halite_tier::ids::{NodeId, SessionId};
use halite_tier::message::{ErrorReply, RegionCommand};

use crate::metrics::Histogram;
use crate::runtime::wait::Wakes;

/// The result with which a command ends.
pub(crate) type CommandResult = Result<Outcome, CommandError>;

/// Returns the error of all commands that begin after the node has left.
pub(crate) fn node_closed(node: NodeId) -> CommandError {
    CommandError::Refused(ErrorReply::NodeClosed(node))
}

/// The commands that undo a command whose caller does not take its result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Undo {
    /// The command has no result to undo.
    Nothing,
    /// Releases the handle that the command returned.
    Unmap,
    /// Frees the region, and releases the handle, that the command returned.
    Free,
    /// Withdraws a command that waits for other sessions. The command has no result to undo.
    Withdraw,
    /// Withdraws a command that waits for the lock behind this handle. Releases the lock if the command has taken it.
    Unlock(SlotRef),
    /// Removes the name of the server that the command registered.
    Unregister,
    /// Ends the watch of this port, which the command began.
    Unwatch(u32),
    /// Releases this handle after the command, with any result of the command.
    ThenUnmap(SlotRef),
}

impl Undo {
    pub(crate) fn of(command: &Command) -> Undo {
        match command {
            Command::Alloc { .. } => Undo::Free,
            // Other sessions may use an anchor's region at once, so it stays.
            Command::Map { .. } | Command::Anchor { .. } => Undo::Unmap,
            Command::Lock { slot, .. } => Undo::Unlock(*slot),
            Command::Arrive { .. } => Undo::Withdraw,
            Command::Watch { port, .. } => Undo::Unwatch(*port),
            Command::Register { .. } => Undo::Unregister,
            _ => Undo::Nothing,
        }
    }

    /// Returns the command that withdraws the waiting command `op`; `None` if `op` cannot be withdrawn.
    fn while_waiting(self, op: OpId) -> Option<(Command, Undo)> {
        matches!(self, Undo::Withdraw | Undo::Unlock(_)).then_some((Command::Withdraw(op), Undo::Nothing))
    }

    /// Returns the command that undoes a command with this result.
    fn when_ended(self, ending: &CommandResult) -> Option<(Command, Undo)> {
        match (self, ending) {
            (Undo::Unmap, Ok(Outcome::Mapped { slot, .. })) => Some((Command::Unmap(*slot), Undo::Nothing)),
            (Undo::Free, Ok(Outcome::Mapped { slot, .. })) => {
                Some((Command::RegionCommand(*slot, RegionCommand::Free), Undo::ThenUnmap(*slot)))
            }
            (Undo::Unlock(slot), Ok(Outcome::Locked { recovered, .. })) => {
                let release = if *recovered { Release::Unused } else { Release::Used };
                Some((Command::Unlock { slot, release }, Undo::Nothing))
            }
            (Undo::Unwatch(port), Ok(Outcome::Watching { region })) => {
                Some((Command::Unwatch { region: *region, port }, Undo::Nothing))
            }
            (Undo::Unregister, Ok(Outcome::Registered(id))) => {
                Some((Command::Unregister(*id), Undo::Nothing))
            }
            (Undo::ThenUnmap(slot), _) => Some((Command::Unmap(slot), Undo::Nothing)),
            _ => None,
        }
    }
}

/// A command to submit to the engine, whose result no caller waits for.
#[derive(Debug)]
pub(crate) struct FollowUp {
    pub(crate) session: SessionId,
    pub(crate) command: Command,
    pub(crate) undo: Undo,
}

#[derive(Debug, Default)]
pub(crate) struct Tickets {
    ops: BTreeMap<OpId, Ticket>,
    times: CommandTimes,
    sessions: BTreeMap<SessionId, Pending>,
}

#[derive(Debug)]
struct Ticket {
    session: SessionId,
    undo: Undo,
    state: TicketState,
    start: CommandStart,
}

/// A command's name and time of submission.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct CommandStart {
    pub(crate) name: &'static str,
    pub(crate) at_ns: u64,
}

#[derive(Clone, Default, Debug)]
pub(crate) struct CommandTimes(BTreeMap<&'static str, (Histogram, u64)>);

impl CommandTimes {
    fn record(&mut self, start: CommandStart, now_ns: u64, is_failure: bool) {
        let (histogram, failures) = self.0.entry(start.name).or_default();
        histogram.record(now_ns.saturating_sub(start.at_ns));
        *failures += u64::from(is_failure);
    }

    /// Returns the durations and the number of failures of each command that has ended at least once.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&'static str, &(Histogram, u64))> {
        self.0.iter().map(|(name, times)| (*name, times))
    }
}

#[derive(Debug)]
enum TicketState {
    Waiting(Option<Waker>),
    Done(CommandResult),
    Abandoned,
}

/// Number of a session's commands in progress, and whether the session closes after the last of them.
#[derive(Debug, Default)]
struct Pending {
    count: usize,
    closing: bool,
}

impl Tickets {
    /// Adds a command whose caller waits for the result.
    pub(crate) fn open(&mut self, op: OpId, session: SessionId, undo: Undo, start: CommandStart) {
        self.insert(op, Ticket { session, undo, state: TicketState::Waiting(None), start });
    }

    /// Adds a command whose result no caller waits for.
    pub(crate) fn open_abandoned(&mut self, op: OpId, session: SessionId, undo: Undo, start: CommandStart) {
        self.insert(op, Ticket { session, undo, state: TicketState::Abandoned, start });
    }

    fn insert(&mut self, op: OpId, ticket: Ticket) {
        self.sessions.entry(ticket.session).or_default().count += 1;
        self.ops.insert(op, ticket);
    }

    /// Returns a command's result, or registers the waker of `context`.
    pub(crate) fn poll(&mut self, op: OpId, context: &mut Context<'_>) -> Poll<CommandResult> {
        let ticket = self.ops.get_mut(&op).expect("a ticket stays until its end is taken");
        if let TicketState::Waiting(waker) = &mut ticket.state {
            *waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        let ticket = self.remove(op).expect("looked up just before");
        match ticket.state {
            TicketState::Done(ending) => Poll::Ready(ending),
            _ => unreachable!("abandoned tickets are not polled"),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.ops.len()
    }

    pub(crate) fn times(&self) -> &CommandTimes {
        &self.times
    }

    /// Ends a command. If its caller is gone, returns the command that undoes it.
    pub(crate) fn finish(
        &mut self,
        now_ns: u64,
        op: OpId,
        ending: CommandResult,
        wakes: &mut Wakes,
    ) -> Option<FollowUp> {
        let ticket = self.ops.get_mut(&op)?;
        self.times.record(ticket.start, now_ns, ending.is_err());
        match &mut ticket.state {
            TicketState::Waiting(waker) => {
                wakes.add(waker.take());
                ticket.state = TicketState::Done(ending);
                None
            }
            TicketState::Done(_) => unreachable!("a command ends once"),
            TicketState::Abandoned => {
                let ticket = self.remove(op)?;
                ticket.follow_up(&ending)
            }
        }
    }

    /// Records that the caller dropped a command. If the command must be withdrawn or undone now, returns the command that
    /// does so.
    pub(crate) fn abandon(&mut self, op: OpId) -> Option<FollowUp> {
        let ticket = self.ops.get_mut(&op)?;
        if let TicketState::Waiting(_) = ticket.state {
            ticket.state = TicketState::Abandoned;
            let session = ticket.session;
            return ticket.undo.while_waiting(op).map(|(command, undo)| FollowUp { session, command, undo });
        }
        let ticket = self.remove(op)?;
        match &ticket.state {
            TicketState::Done(ending) => ticket.follow_up(ending),
            _ => None,
        }
    }

    /// Marks the session as unused; [`Tickets::poll_closable`] returns it once its commands have ended.
    pub(crate) fn close(&mut self, session: SessionId) {
        self.sessions.entry(session).or_default().closing = true;
    }

    /// Returns a session that is unused and has no commands in progress.
    pub(crate) fn poll_closable(&mut self) -> Option<SessionId> {
        let (session, _) = self.sessions.iter().find(|(_, pending)| pending.closing && pending.count == 0)?;
        let session = *session;
        self.sessions.remove(&session);
        Some(session)
    }

    /// Fails all commands in progress, because `node`, their node, closes.
    pub(crate) fn end_all(&mut self, node: NodeId, wakes: &mut Wakes) {
        for ticket in self.ops.values_mut() {
            if let TicketState::Waiting(waker) = &mut ticket.state {
                wakes.add(waker.take());
                ticket.state = TicketState::Done(Err(node_closed(node)));
            }
        }
    }

    fn remove(&mut self, op: OpId) -> Option<Ticket> {
        let ticket = self.ops.remove(&op)?;
        if let Some(pending) = self.sessions.get_mut(&ticket.session) {
            pending.count -= 1;
            if pending.count == 0 && !pending.closing {
                self.sessions.remove(&ticket.session);
            }
        }
        Some(ticket)
    }
}

impl Ticket {
    fn follow_up(&self, ending: &CommandResult) -> Option<FollowUp> {
        let (command, undo) = self.undo.when_ended(ending)?;
        Some(FollowUp { session: self.session, command, undo })
    }
}
