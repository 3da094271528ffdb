//! Sweeps: an owner frees the chunks that it held for an ended home once no node maps regions of that home any more.

use std::collections::{BTreeMap, BTreeSet};

use super::{Owner, OwnerSide};
use crate::engine::context::Purpose;
use crate::ids::NodeIncarnation;
use crate::message::{Notice, Request};

/// All sweeps.
#[derive(Debug, Default)]
pub(super) struct Sweeps {
    in_progress: BTreeMap<NodeIncarnation, Sweep>,
    /// Homes whose chunks here were freed, or are about to be. A new node may still learn of these homes from other
    /// nodes.
    swept: BTreeSet<NodeIncarnation>,
}

/// A sweep: all nodes drop their mappings of a home's regions, then its chunks are freed.
#[derive(Debug)]
struct Sweep {
    awaited: BTreeSet<NodeIncarnation>,
    /// Nodes that were lost before they replied.
    tainted: BTreeSet<NodeIncarnation>,
}

impl Sweeps {
    fn awaiting(&self, incarnation: NodeIncarnation) -> Vec<NodeIncarnation> {
        let homes = self.in_progress.iter().filter(|(_, sweep)| sweep.awaited.contains(&incarnation));
        homes.map(|(home, _)| *home).collect()
    }
}

impl Owner {
    /// Returns true if this node has freed the chunks of `home`, or is about to free them.
    pub(in crate::engine) fn has_swept(&self, home: NodeIncarnation) -> bool {
        self.sweeps.swept.contains(&home)
    }
}

impl OwnerSide<'_> {
    /// Reports swept homes to a newly paired node. That node may still believe that such a home is alive, and the home
    /// may let it map chunks that this node no longer holds.
    pub(in crate::engine) fn report_swept(&mut self, newcomer: NodeIncarnation) {
        let swept = &mut self.owner.sweeps.swept;
        swept.retain(|home| home.node != newcomer.node || *home == newcomer);
        if !swept.is_empty() {
            let homes = swept.iter().copied().collect();
            self.cx.notify(newcomer.node, Notice::Swept { homes });
        }
    }

    pub(in crate::engine) fn start_sweep(&mut self, home: NodeIncarnation) {
        if !self.owner.store.holds_any_for(home) {
            return;
        }
        let membership = self.cx.membership();
        let sweeps = &mut self.owner.sweeps;
        // The directory reports announced ends to new nodes.
        sweeps.swept.retain(|home| membership.pairings().has_ended(*home));
        sweeps.swept.insert(home);
        let me = self.cx.incarnation();
        let peers = self.cx.members().peers().map(|(_, peer)| peer.incarnation);
        let asked: BTreeSet<NodeIncarnation> = peers.chain([me]).collect();
        // Nodes that may already consider themselves paired are asked once they are paired here.
        let awaited = asked.iter().copied().chain(membership.meeting().offered()).collect();
        // Nodes that were lost before the home are not asked, but may have mapped its regions.
        let tainted = self.cx.members().zombies().collect();
        sweeps.in_progress.insert(home, Sweep { awaited, tainted });
        for incarnation in asked {
            self.request_drop(home, incarnation);
        }
    }

    fn request_drop(&mut self, home: NodeIncarnation, incarnation: NodeIncarnation) {
        self.cx.ask(incarnation.node, Request::DropHome { home }, Purpose::Sweep(home));
    }

    /// Removes a newly paired node from the tainted nodes, since it has dropped all mappings of this node's memory.
    pub(in crate::engine) fn untaint_sweeps(&mut self, incarnation: NodeIncarnation) {
        for sweep in self.owner.sweeps.in_progress.values_mut() {
            sweep.tainted.remove(&incarnation);
        }
    }

    /// Asks a newly paired node to drop the mappings that sweeps wait for.
    pub(in crate::engine) fn resume_sweeps_with(&mut self, incarnation: NodeIncarnation) {
        for home in self.owner.sweeps.awaiting(incarnation) {
            self.request_drop(home, incarnation);
        }
    }

    pub(in crate::engine) fn handle_swept(&mut self, home: NodeIncarnation, from: NodeIncarnation) {
        let Some(sweep) = self.owner.sweeps.in_progress.get_mut(&home) else { return };
        sweep.awaited.remove(&from);
        if !sweep.awaited.is_empty() {
            return;
        }
        let sweep = self.owner.sweeps.in_progress.remove(&home).expect("looked up just before");
        let tainted = self.cx.members().not_cut_off(sweep.tainted.into_iter().chain([home]));
        let orphans = self.owner.store.take_orphans(home);
        self.release(orphans, tainted);
    }

    pub(in crate::engine) fn abandon_sweeps_by(&mut self, incarnation: NodeIncarnation) {
        for home in self.owner.sweeps.awaiting(incarnation) {
            let sweep = self.owner.sweeps.in_progress.get_mut(&home);
            sweep.expect("listed just before").tainted.insert(incarnation);
            self.handle_swept(home, incarnation);
        }
    }
}
