//! The mapper's side: handles changes that homes and owners request.

use super::{Engine, Requester};
use crate::effect::{Effect, Quiesce};
use crate::ids::{NodeIncarnation, RegionId};
use crate::mapper::BadChange;
use crate::message::{Change, ErrorReply, Reply};

impl Engine {
    pub(super) fn serve_change(&mut self, requester: Requester, region: RegionId, change: Change) {
        if !self.is_news(requester.incarnation, region, &change) {
            return self.cx().answer(requester, Ok(Reply::Done));
        }
        let is_accepted = self.homes.accepts_change(region, requester.incarnation == self.out.incarnation());
        let moves_to = change.moves_to();
        match is_accepted.then(|| self.mapper.change(region, change)) {
            Some(Ok(quiesce)) => {
                self.cx().note_move(requester, moves_to);
                self.owe(quiesce, requester)
            }
            Some(Err(BadChange)) | None => self.cx().answer(requester, Err(ErrorReply::Malformed)),
        }
    }

    /// Whether a change is new.  A former home announces the next home, which counts only if the next home has not
    /// announced itself.
    fn is_news(&self, from: NodeIncarnation, region: RegionId, change: &Change) -> bool {
        match change {
            Change::Settle { home } if *home != from => self.mapper.home_of(region) == Some(from),
            _ => true,
        }
    }

    /// An owner holds nothing for these homes any more.  Ended incarnations are skipped: their regions are never mapped
    /// again.
    pub(super) fn disown(&mut self, owner: NodeIncarnation, homes: &[NodeIncarnation]) {
        let pairings = self.membership.pairings();
        let is_relevant =
            |home: &NodeIncarnation| !pairings.has_ended(*home) || self.mapper.maps_any_of(*home);
        let homes: Vec<NodeIncarnation> = homes.iter().copied().filter(is_relevant).collect();
        let disowned = self.mapper.disown(owner, &homes);
        self.out.extend(disowned.into_iter().map(Effect::Quiesce));
    }

    /// A node that holds chunks for `home` found it dead.  This drops mappings of that node's memory alone, and cuts no
    /// peer off.
    pub(super) fn serve_drop_home(&mut self, requester: Requester, home: NodeIncarnation) {
        self.disown(requester.incarnation, &[home]);
        let quiesce = self.mapper.quiesce();
        self.owe(quiesce, requester);
    }

    /// Ends a pairing with a home that is not connected, at the request of another node.
    pub(super) fn serve_retire(&mut self, requester: Requester, home: NodeIncarnation, pairing: u64) {
        if self.membership.pairings().number(home) <= pairing {
            self.part(home);
        }
        let quiesce = self.mapper.quiesce();
        self.owe(quiesce, requester);
    }

    fn owe(&mut self, quiesce: Quiesce, requester: Requester) {
        self.deferred.owe(&mut self.out, quiesce, requester);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use halite_fabric::{Key, PeerId};
    use halite_mem::Window;

    use super::*;
    use crate::access::DataPath;
    use crate::engine::EngineConfig;
    use crate::ids::{Incarnation, NodeId};
    use crate::mapper::Reach;
    use crate::members::Parting;
    use crate::message::LossCause;

    struct Nowhere;

    impl Reach for Nowhere {
        fn window(&self, _: PeerId, _: Key) -> Option<Window> {
            None
        }
    }

    #[test]
    fn disowned_homes_are_forgotten_when_they_end() {
        let incarnation = |node| NodeIncarnation { node: NodeId(node), id: Incarnation(7) };
        let config = EngineConfig {
            incarnation: incarnation(1),
            pid: 1,
            lease_ns: 1_000_000,
            bytes_total: 0,
            segment_bytes: 4096,
            epoch_ns: 0,
            address: String::new(),
            provider: "none".into(),
            full_mesh_nodes_max: 64,
        };
        let mut engine = Engine::new(config, Arc::new(DataPath::default()), Arc::new(Nowhere), 0);
        let ephemeral = |number| incarnation(NodeId::EPHEMERAL_MIN.0 + number);
        for number in 0..1000 {
            engine.disown(incarnation(2), &[ephemeral(number)]);
            engine.end_incarnation(ephemeral(number), Parting::now(LossCause::Unreachable, 0));
        }
        assert_eq!(engine.mapper.disowned_count(), 0);
    }
}
