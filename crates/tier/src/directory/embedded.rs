//! The embedded directory, with soft state at the first node.
//!
//! After a restart of that node, the homes report their names again. Until all nodes that joined before the restart
//! have reported, requests wait, because a name that seems free may be in use. A restart of the first node forgets the
//! names of lost regions.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;

use super::etcd::{MoveJob, Mover, NameRecord, NameState, Next, Returned, StoreFailure, Stored, Transaction};
use super::lost::LostNames;
use super::{Directory, DirectoryEvent, DirectoryFigures, DirectoryOutput, NAMES_PER_ANSWER_MAX};
use crate::ids::{Epoch, NodeId, NodeIncarnation, RegionId, Requester};
use crate::members::NodeLoss;
use crate::message::{ErrorReply, Reply, Request};
use crate::names;
use crate::news::News;

/// The region behind a name.
#[derive(Debug)]
struct Entry {
    region: RegionId,
    home: NodeIncarnation,
    /// The epoch at which this node became the home.
    epoch: Epoch,
}

/// One node's part of the embedded directory; see the module's documentation.
#[derive(Debug)]
pub struct Embedded {
    /// True if this node answers requests, as the first node does.
    is_seat: bool,
    table: Table,
    /// True if homes that are not known yet may still connect.
    is_connecting: bool,
    /// Earlier nodes that have not yet reported all their names.
    awaited: BTreeSet<NodeIncarnation>,
    /// Homes that have paired, and have not reported all their names since.
    paired: BTreeSet<NodeIncarnation>,
    /// Names reported so far by homes whose reports are incomplete.
    reporting: BTreeMap<NodeIncarnation, BTreeSet<Box<str>>>,
    /// Requests that wait until all names are known, or have moved.
    parked: Vec<(Requester, Request)>,
    mover: Option<Move>,
    last_id: u64,
    outputs: VecDeque<DirectoryOutput>,
}

/// A move of the names in progress.
#[derive(Debug)]
struct Move {
    mover: Mover,
    /// Id of the transaction in flight.
    id: u64,
    /// Events since requests began to wait.
    events: Vec<DirectoryEvent>,
}

impl Embedded {
    /// Creates node `me`'s part of the directory. Only the first node's part answers requests.
    pub fn new(me: NodeId) -> Embedded {
        Embedded {
            is_seat: me == NodeId::FIRST,
            table: Table::default(),
            is_connecting: false,
            awaited: BTreeSet::new(),
            paired: BTreeSet::new(),
            reporting: BTreeMap::new(),
            parked: Vec::new(),
            mover: None,
            last_id: 0,
            outputs: VecDeque::new(),
        }
    }

    /// Creates node `me`'s part after the names have moved back from the store: node 0 waits until the connected
    /// `homes` have reported their names. `last_id` is the id of the last transaction sent to the store.
    pub(crate) fn after_return(
        me: NodeId,
        returned: Returned,
        homes: impl Iterator<Item = NodeIncarnation>,
        last_id: u64,
    ) -> Embedded {
        let mut embedded = Embedded { last_id, ..Embedded::new(me) };
        if embedded.is_seat {
            for (name, NameRecord { region, home, epoch }) in returned.names {
                embedded.table.names.insert(name, Entry { region, home, epoch });
            }
            for (name, (home, loss)) in returned.lost {
                embedded.table.lost.insert(name, home, loss);
            }
            embedded.awaited.extend(homes);
        }
        embedded
    }

    /// Returns true if all homes have reported their names.
    fn is_complete(&self) -> bool {
        self.awaited.is_empty() && !self.is_connecting
    }

    /// Returns true if requests can be answered.
    fn is_ready(&self) -> bool {
        self.is_complete() && self.mover.as_ref().is_none_or(|move_state| !move_state.mover.is_frozen())
    }

    fn send(&mut self, transaction: Transaction) {
        self.last_id += 1;
        if let Some(move_state) = &mut self.mover {
            move_state.id = self.last_id;
        }
        self.outputs.push_back(DirectoryOutput::Store { id: self.last_id, transaction });
    }

    /// Ends a move without effect, and answers the waiting requests.
    fn end_move(&mut self, now_ns: u64, reason: String) {
        self.mover = None;
        self.table.changed = None;
        self.outputs.push_back(DirectoryOutput::NotMoved { reason });
        self.serve_parked(now_ns);
    }

    /// Passes changed names to the mover.
    fn forward_changes(&mut self) {
        if let (Some(move_state), Some(changed)) = (&mut self.mover, &mut self.table.changed) {
            changed.drain(..).for_each(|name| move_state.mover.mark_changed(&name));
        }
    }

    fn serve_parked(&mut self, now_ns: u64) {
        if self.is_ready() {
            for (requester, request) in std::mem::take(&mut self.parked) {
                self.handle_request(now_ns, requester, request);
            }
        }
    }

    fn answer(&mut self, now_ns: u64, by: NodeIncarnation, request: Request) -> Result<Reply, ErrorReply> {
        let table = &mut self.table;
        match request {
            Request::ClaimName { name, .. } if !names::is_name(&name) => Err(ErrorReply::Malformed),
            Request::ClaimName { name, region } => match table.claim(&name, region, by, Epoch(0)) {
                true => Ok(Reply::Done),
                false => Err(ErrorReply::NameTaken),
            },
            Request::ReleaseName { name, region } => {
                table.release(&name, region, by);
                Ok(Reply::Done)
            }
            Request::FindName { name } => match table.find(&name) {
                Some((region, home)) => Ok(Reply::Found { region, home: home.node }),
                None => Err(table.absence_error(&name, now_ns)),
            },
            Request::ListNames { after } => {
                let (names, more) = table.list(after.as_deref());
                Ok(Reply::Names { names, damaged: Vec::new(), more })
            }
            Request::ListLost { after } => {
                let (names, more) = table.lost.list(after.as_deref(), now_ns);
                Ok(Reply::Lost { names, more })
            }
            Request::ForgetName { name } => match table.forget_name(&name) {
                true => Ok(Reply::Done),
                false => Err(ErrorReply::NotFound),
            },
            Request::ForgetNode { node } => match table.forget_node(node) {
                true => Ok(Reply::Done),
                false => Err(ErrorReply::UnknownNode(node)),
            },
            _ => Err(ErrorReply::Malformed),
        }
    }

    fn record_names(&mut self, from: NodeIncarnation, names: Vec<(String, RegionId, Epoch)>) {
        for (name, region, epoch) in names.into_iter().filter(|(name, ..)| names::is_name(name)) {
            self.reporting.entry(from).or_default().insert(name.as_str().into());
            if !self.table.claim(&name, region, from, epoch) {
                self.outputs.push_back(DirectoryOutput::NameLost { home: from, name, region });
            }
        }
    }

    /// Handles the end of a home's report. The first report frees the names that the home released while it was
    /// disconnected. A later report may lack names that the home has claimed in the meantime, so it frees none.
    fn finish_report(&mut self, from: NodeIncarnation, now_ns: u64) {
        let reported = self.reporting.remove(&from).unwrap_or_default();
        let is_first = self.paired.remove(&from) | self.awaited.remove(&from);
        if is_first {
            self.table.keep_reported(from, &reported);
            self.serve_parked(now_ns);
        }
    }

    fn handle_disconnect(&mut self, incarnation: NodeIncarnation, is_expected: bool, now_ns: u64) {
        // A name granted to a requester that cannot receive the reply would never be released.
        self.parked.retain(|(requester, _)| requester.incarnation != incarnation);
        self.reporting.remove(&incarnation);
        self.paired.remove(&incarnation);
        if !is_expected {
            self.awaited.remove(&incarnation);
        }
        self.serve_parked(now_ns);
    }
}

impl Directory for Embedded {
    fn seat(&self) -> NodeId {
        NodeId::FIRST
    }

    fn figures(&self) -> Option<DirectoryFigures> {
        self.is_seat.then(|| DirectoryFigures {
            names: self.table.names.len() as u64,
            lost: Some(self.table.lost.len() as u64),
            waiting: self.parked.len() as u64,
            is_ready: self.is_ready(),
        })
    }

    fn handle_request(&mut self, now_ns: u64, requester: Requester, request: Request) {
        if self.is_seat && !self.is_ready() {
            return self.parked.push((requester, request));
        }
        let body = match self.is_seat {
            true => self.answer(now_ns, requester.incarnation, request),
            false => Err(ErrorReply::Malformed),
        };
        self.forward_changes();
        self.outputs.push_back(DirectoryOutput::Answer { requester, body });
    }

    fn handle_event(&mut self, now_ns: u64, event: DirectoryEvent) {
        if !self.is_seat {
            return;
        }
        if let Some(move_state) = self.mover.as_mut().filter(|move_state| move_state.mover.is_frozen()) {
            move_state.events.push(event.clone());
        }
        match event {
            DirectoryEvent::Connecting => self.is_connecting = true,
            DirectoryEvent::AllConnected => {
                self.is_connecting = false;
                self.serve_parked(now_ns);
            }
            DirectoryEvent::Expected(incarnation) => {
                self.awaited.insert(incarnation);
            }
            DirectoryEvent::Paired(incarnation) => {
                self.paired.insert(incarnation);
            }
            DirectoryEvent::Names { from, names, done } => {
                self.record_names(from, names);
                if done {
                    self.finish_report(from, now_ns);
                }
            }
            DirectoryEvent::Moved { name, region, epoch, to } => {
                self.table.hand_over(&name, region, to, epoch)
            }
            DirectoryEvent::Disconnected { incarnation, is_expected } => {
                self.handle_disconnect(incarnation, is_expected, now_ns)
            }
            DirectoryEvent::Ended { incarnation, loss } => {
                let count = self.table.lose_home(incarnation, loss);
                if count > 0 {
                    self.outputs.push_back(DirectoryOutput::News(News::NamesLost { count, incarnation }));
                }
                self.handle_disconnect(incarnation, false, now_ns);
            }
            DirectoryEvent::Corrected { incarnation, loss } => {
                self.table.lost.correct(incarnation, loss);
                self.table.mark_lost_changed(incarnation);
            }
            DirectoryEvent::Killed { incarnation, by, is_reported } => {
                self.table.mark_lost_changed(incarnation);
                if self.table.lost.mark_killed(incarnation) && !is_reported {
                    self.outputs.push_back(DirectoryOutput::News(News::KilledBy { incarnation, by }));
                }
            }
            DirectoryEvent::Forgotten { node, requester } => {
                self.table.forget_node(node);
                self.outputs.push_back(DirectoryOutput::Answer { requester, body: Ok(Reply::Done) });
            }
        }
        self.forward_changes();
    }

    fn begin_move(&mut self, now_ns: u64, job: MoveJob) {
        if !self.is_seat || !self.is_complete() {
            let reason = "not all nodes have reported their names yet; try again".to_owned();
            return self.end_move(now_ns, reason);
        }
        let mover = Mover::new(job, self.table.all());
        let first = mover.begin();
        self.mover = Some(Move { mover, id: 0, events: Vec::new() });
        self.table.changed = Some(Vec::new());
        self.send(first);
    }

    fn handle_stored(&mut self, now_ns: u64, id: u64, result: Result<Stored, StoreFailure>) {
        let Some(move_state) = self.mover.as_mut().filter(|move_state| move_state.id == id) else { return };
        let next = match result {
            Ok(stored) => move_state.mover.handle_stored(&stored, |name| self.table.state_of(name)),
            Err(failure) => Next::Failed(failure.reason),
        };
        match next {
            Next::Send(transaction) => self.send(transaction),
            Next::Failed(reason) => self.end_move(now_ns, reason),
            Next::Moved => {
                let (names, lost) = (self.table.names.len() as u64, self.table.lost.len() as u64);
                self.outputs.push_back(DirectoryOutput::Moved { names, lost });
            }
        }
    }

    fn take_pending(&mut self) -> (Vec<Requester>, Vec<DirectoryEvent>) {
        let parked = std::mem::take(&mut self.parked).into_iter().map(|(requester, _)| requester).collect();
        (parked, self.mover.take().map(|move_state| move_state.events).unwrap_or_default())
    }

    fn poll(&mut self) -> Option<DirectoryOutput> {
        self.outputs.pop_front()
    }
}

/// The table of names.
#[derive(Debug, Default)]
struct Table {
    names: BTreeMap<Box<str>, Entry>,
    lost: LostNames,
    /// Names changed during a move; `None` if there is no move.
    changed: Option<Vec<Box<str>>>,
}

impl Table {
    /// Gives `name` to `region` and returns true, unless another region has the name. If two nodes claim to be the
    /// region's home, the claim with the higher epoch wins, since the other node has handed the region over.
    fn claim(&mut self, name: &str, region: RegionId, home: NodeIncarnation, epoch: Epoch) -> bool {
        match self.names.get(name) {
            Some(entry) if entry.region != region => return false,
            Some(entry) if entry.epoch > epoch => {}
            _ => {
                self.mark_changed(name);
                self.lost.remove(name);
                self.names.insert(name.into(), Entry { region, home, epoch });
            }
        }
        true
    }

    /// Redirects `name` to the next home of `region`, unless that home has already released the name.
    fn hand_over(&mut self, name: &str, region: RegionId, to: NodeIncarnation, epoch: Epoch) {
        if self.names.contains_key(name) {
            self.claim(name, region, to, epoch);
        }
    }

    /// Releases `name` if `by` is its home; ignores former homes.
    fn release(&mut self, name: &str, region: RegionId, by: NodeIncarnation) {
        if self.names.get(name).is_some_and(|entry| entry.region == region && entry.home == by) {
            self.names.remove(name);
            self.mark_changed(name);
        }
    }

    /// Frees the names of a home that it has not reported.
    fn keep_reported(&mut self, home: NodeIncarnation, reported: &BTreeSet<Box<str>>) {
        let released =
            self.names.extract_if(.., |name, entry| entry.home == home && !reported.contains(name));
        let released: Vec<Box<str>> = released.map(|(name, _)| name).collect();
        released.iter().for_each(|name| self.mark_changed(name));
    }

    fn mark_changed(&mut self, name: &str) {
        if let Some(changed) = &mut self.changed {
            changed.push(name.into());
        }
    }

    /// Marks the names lost with a home as changed, since the cause of the loss was corrected.
    fn mark_lost_changed(&mut self, home: NodeIncarnation) {
        if let Some(changed) = &mut self.changed {
            changed.extend(self.lost.names_of(|of| of == home));
        }
    }

    /// Returns all names, including lost names.
    fn all(&self) -> BTreeSet<Box<str>> {
        self.names.keys().cloned().chain(self.lost.names_of(|_| true)).collect()
    }

    fn state_of(&self, name: &str) -> NameState {
        match (self.names.get(name), self.lost.find(name)) {
            (Some(Entry { region, home, epoch }), _) => {
                NameState::Assigned(NameRecord { region: *region, home: *home, epoch: *epoch })
            }
            (None, Some((home, loss))) => NameState::Lost(home, loss),
            (None, None) => NameState::Free,
        }
    }

    fn forget_name(&mut self, name: &str) -> bool {
        let was_lost = self.lost.remove(name);
        if was_lost {
            self.mark_changed(name);
        }
        was_lost
    }

    fn forget_node(&mut self, node: NodeId) -> bool {
        if let Some(changed) = &mut self.changed {
            changed.extend(self.lost.names_of(|of| of.node == node));
        }
        self.lost.remove_node(node)
    }

    /// Returns the region with this name and its home, or `None`.
    fn find(&self, name: &str) -> Option<(RegionId, NodeIncarnation)> {
        self.names.get(name).map(|entry| (entry.region, entry.home))
    }

    /// Returns the names after `after` in order, and true if more names follow.
    fn list(&self, after: Option<&str>) -> (Vec<(String, RegionId, NodeId)>, bool) {
        // Names of locks and barriers come first, and are hidden.
        let from = after.map_or(Bound::Included(names::FIRST_FREE), Bound::Excluded);
        let mut rest = self.names.range::<str, _>((from, Bound::Unbounded));
        let names = rest
            .by_ref()
            .take(NAMES_PER_ANSWER_MAX)
            .map(|(name, entry)| (name.to_string(), entry.region, entry.home.node))
            .collect();
        (names, rest.next().is_some())
    }

    /// Makes the names of an ended home lost, and returns their number.
    fn lose_home(&mut self, home: NodeIncarnation, loss: NodeLoss) -> usize {
        let mut count = 0;
        for (name, _) in self.names.extract_if(.., |_, entry| entry.home == home) {
            // Locks and barriers are not recorded as lost: the next session that needs them recreates them.
            if let Some(changed) = &mut self.changed {
                changed.push(name.clone());
            }
            if !names::is_reserved(&name) {
                self.lost.insert(name, home, loss);
                count += 1;
            }
        }
        count
    }

    /// Returns the error for a name without a region, which is free or was lost.
    fn absence_error(&self, name: &str, now_ns: u64) -> ErrorReply {
        match self.lost.find(name) {
            Some((home, loss)) => ErrorReply::Lost { home, loss: loss.with_age(now_ns) },
            None => ErrorReply::NotFound,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Incarnation;
    use crate::message::LossCause;

    const LOSS: NodeLoss = NodeLoss { cause: LossCause::Exited, at_ns: 5 };

    fn region(serial: u64) -> RegionId {
        RegionId { origin: Incarnation(1), serial }
    }

    fn incarnation(node: u32) -> NodeIncarnation {
        NodeIncarnation { node: NodeId(node), id: Incarnation(9) }
    }

    #[test]
    fn moved_regions_claim_for_the_new_home() {
        let mut table = Table::default();
        table.claim("a", region(1), incarnation(1), Epoch(0));
        assert!(table.claim("a", region(1), incarnation(2), Epoch(5)));
        // Later reports of the former home are stale.
        assert!(table.claim("a", region(1), incarnation(1), Epoch(4)));
        table.lose_home(incarnation(1), LOSS);
        assert_eq!(table.find("a"), Some((region(1), incarnation(2))));
    }

    #[test]
    fn former_homes_do_not_restore_released_names() {
        let mut table = Table::default();
        table.claim("a", region(1), incarnation(1), Epoch(0));
        table.hand_over("a", region(1), incarnation(2), Epoch(5));
        assert_eq!(table.find("a"), Some((region(1), incarnation(2))));
        table.release("a", region(1), incarnation(2));
        table.hand_over("a", region(1), incarnation(2), Epoch(5));
        assert_eq!(table.find("a"), None);
    }

    #[test]
    fn long_lists_are_paged_without_gaps() {
        let mut table = Table::default();
        let count = NAMES_PER_ANSWER_MAX + 5;
        for serial in 0..count {
            table.claim(&format!("{serial:06}"), region(serial as u64), incarnation(1), Epoch(0));
        }
        let (first, more) = table.list(None);
        assert!(more);
        let (second, more) = table.list(first.last().map(|entry| entry.0.as_str()));
        assert!(!more);
        assert_eq!(first.len() + second.len(), count);
        assert!(first.last().unwrap().0 < second[0].0);
    }
}
