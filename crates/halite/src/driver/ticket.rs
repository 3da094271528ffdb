//! Tickets: commands that are under way in the engine, and who waits for them.
//!
//! A command whose caller has lost interest is undone by further commands: one that may wait for as long as others please is
//! withdrawn; all run to their end, and then what they made is given up.
//!
//! ```text
//!  Waiting ── finish ──> Done ── taken by the caller
//!     └─ caller drops ─┐   └─ caller drops ─┐
//!        (Withdraw)    v                    v
//!                  Abandoned ── finish ── undone: Free (of an alloc), then Unmap
//! ```
//!
//! A session that is closed meanwhile stays open until all is undone.

use std::collections::BTreeMap;
use std::task::{Context, Poll, Waker};

use halite_tier::access::SlotRef;
use halite_tier::effect::{Command, CommandError, OpId, Outcome, Release};
use halite_tier::ids::SessionId;
use halite_tier::message::{ErrorReply, RegionCommand};

use crate::metrics::Histogram;
use crate::runtime::wait::Wakes;

/// How a command ends.
pub(crate) type Ending = Result<Outcome, CommandError>;

/// How every command ends when the node has left.
pub(crate) fn node_closed() -> CommandError {
    CommandError::Refused(ErrorReply::NodeClosed)
}

/// How a command is undone whose caller does not take what it made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Undo {
    /// It made nothing.
    Nothing,
    /// The handle is given up.
    Unmap,
    /// The region is freed and the handle given up.
    Free,
    /// It waits for others, and makes nothing.
    Withdraw,
    /// It waits for others; then the lock behind this handle is given up.
    Unlock(SlotRef),
    /// This port watches no more.
    Unwatch(u32),
    /// Whatever came of this command, this handle is given up next.
    ThenUnmap(SlotRef),
}

impl Undo {
    /// What undoes `command`.
    pub(crate) fn of(command: &Command) -> Undo {
        match command {
            Command::Alloc { .. } => Undo::Free,
            // What an anchor holds may be in use by others at once: it stays.
            Command::Map { .. } | Command::Anchor { .. } => Undo::Unmap,
            Command::Lock { slot, .. } => Undo::Unlock(*slot),
            Command::Arrive { .. } => Undo::Withdraw,
            Command::Watch { port, .. } => Undo::Unwatch(*port),
            _ => Undo::Nothing,
        }
    }

    /// What is done at once about a command that is under way.
    fn while_waiting(self, op: OpId) -> Option<(Command, Undo)> {
        matches!(self, Undo::Withdraw | Undo::Unlock(_)).then_some((Command::Withdraw(op), Undo::Nothing))
    }

    /// What is done when it has ended.
    fn step(self, ending: &Ending) -> Option<(Command, Undo)> {
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
            (Undo::ThenUnmap(slot), _) => Some((Command::Unmap(slot), Undo::Nothing)),
            _ => None,
        }
    }
}

/// What is to be submitted next, on behalf of nobody.
#[derive(Debug)]
pub(crate) struct Chore {
    pub(crate) session: SessionId,
    pub(crate) command: Command,
    pub(crate) undo: Undo,
}

/// All commands that are under way.
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
    /// What it is called, and since when it is under way.
    begun: Begun,
}

/// What a command is called, and when it began.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Begun {
    pub(crate) name: &'static str,
    pub(crate) at_ns: u64,
}

/// How long commands took, and how many failed, by their names.
#[derive(Clone, Default, Debug)]
pub(crate) struct CommandTimes(BTreeMap<&'static str, (Histogram, u64)>);

impl CommandTimes {
    fn note(&mut self, begun: Begun, now_ns: u64, is_failure: bool) {
        let (histogram, failures) = self.0.entry(begun.name).or_default();
        histogram.note(now_ns.saturating_sub(begun.at_ns));
        *failures += u64::from(is_failure);
    }

    /// Of each command that has ended at least once: how long, and how many failed.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&'static str, &(Histogram, u64))> {
        self.0.iter().map(|(name, times)| (*name, times))
    }
}

#[derive(Debug)]
enum TicketState {
    Waiting(Option<Waker>),
    Done(Ending),
    Abandoned,
}

/// How many commands of a session are under way, and whether it ends with the last.
#[derive(Debug, Default)]
struct Pending {
    count: usize,
    closing: bool,
}

impl Tickets {
    /// A command has been submitted, by a caller who will take its end.
    pub(crate) fn open(&mut self, op: OpId, session: SessionId, undo: Undo, begun: Begun) {
        self.insert(op, Ticket { session, undo, state: TicketState::Waiting(None), begun });
    }

    /// A chore has been submitted.
    pub(crate) fn open_abandoned(&mut self, op: OpId, session: SessionId, undo: Undo, begun: Begun) {
        self.insert(op, Ticket { session, undo, state: TicketState::Abandoned, begun });
    }

    fn insert(&mut self, op: OpId, ticket: Ticket) {
        self.sessions.entry(ticket.session).or_default().count += 1;
        self.ops.insert(op, ticket);
    }

    /// The end of a command, if it is there; else the task of `context` is woken when it is.
    pub(crate) fn poll(&mut self, op: OpId, context: &mut Context<'_>) -> Poll<Ending> {
        let ticket = self.ops.get_mut(&op).expect("a ticket stays until its end is taken");
        if let TicketState::Waiting(waker) = &mut ticket.state {
            *waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        let ticket = self.remove(op).expect("looked up just before");
        match ticket.state {
            TicketState::Done(ending) => Poll::Ready(ending),
            _ => unreachable!("nobody polls what was abandoned"),
        }
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.ops.len()
    }

    pub(crate) fn times(&self) -> &CommandTimes {
        &self.times
    }

    /// A command has ended.  Returns what is to be done instead of telling its caller, if that has gone.
    pub(crate) fn finish(
        &mut self,
        now_ns: u64,
        op: OpId,
        ending: Ending,
        wakes: &mut Wakes,
    ) -> Option<Chore> {
        let ticket = self.ops.get_mut(&op)?;
        self.times.note(ticket.begun, now_ns, ending.is_err());
        match &mut ticket.state {
            TicketState::Waiting(waker) => {
                wakes.add(waker.take());
                ticket.state = TicketState::Done(ending);
                None
            }
            TicketState::Done(_) => unreachable!("a command ends once"),
            TicketState::Abandoned => {
                let ticket = self.remove(op)?;
                ticket.chore(&ending)
            }
        }
    }

    /// The caller of a command has lost interest.  Returns what is to be done about it now.
    pub(crate) fn abandon(&mut self, op: OpId) -> Option<Chore> {
        let ticket = self.ops.get_mut(&op)?;
        if let TicketState::Waiting(_) = ticket.state {
            ticket.state = TicketState::Abandoned;
            let session = ticket.session;
            return ticket.undo.while_waiting(op).map(|(command, undo)| Chore { session, command, undo });
        }
        let ticket = self.remove(op)?;
        match &ticket.state {
            TicketState::Done(ending) => ticket.chore(ending),
            _ => None,
        }
    }

    /// The session is not used any more.  It is closed when [`Tickets::poll_closable`] says so.
    pub(crate) fn close(&mut self, session: SessionId) {
        self.sessions.entry(session).or_default().closing = true;
    }

    /// A session that is not used any more, and for which nothing is under way.
    pub(crate) fn poll_closable(&mut self) -> Option<SessionId> {
        let (session, _) = self.sessions.iter().find(|(_, pending)| pending.closing && pending.count == 0)?;
        let session = *session;
        self.sessions.remove(&session);
        Some(session)
    }

    /// Ends all that is under way, since the node closes.
    pub(crate) fn end_all(&mut self, wakes: &mut Wakes) {
        for ticket in self.ops.values_mut() {
            if let TicketState::Waiting(waker) = &mut ticket.state {
                wakes.add(waker.take());
                ticket.state = TicketState::Done(Err(node_closed()));
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
    fn chore(&self, ending: &Ending) -> Option<Chore> {
        let (command, undo) = self.undo.step(ending)?;
        Some(Chore { session: self.session, command, undo })
    }
}
