//! Sweeps: chunks of ours whose home died are free once nobody maps regions of that home any more.

use std::collections::{BTreeMap, BTreeSet};

use super::{Owner, OwnerSide};
use crate::engine::context::Purpose;
use crate::ids::NodeIncarnation;
use crate::message::{Notice, Request};

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Sweeps {
    under_way: BTreeMap<NodeIncarnation, Sweep>,
    /// Homes whose chunks here were taken, or are about to be: newcomers may still hear of them from others.
    swept: BTreeSet<NodeIncarnation>,
}

/// All nodes drop their mappings, then the chunks are free.
#[derive(Debug)]
struct Sweep {
    awaited: BTreeSet<NodeIncarnation>,
    /// Nodes that died before they answered.
    tainted: BTreeSet<NodeIncarnation>,
}

impl Sweeps {
    fn awaiting(&self, incarnation: NodeIncarnation) -> Vec<NodeIncarnation> {
        let homes = self.under_way.iter().filter(|(_, sweep)| sweep.awaited.contains(&incarnation));
        homes.map(|(home, _)| *home).collect()
    }
}

impl Owner {
    /// Whether the chunks of that home were taken, or are about to be.
    pub(in crate::engine) fn has_swept(&self, home: NodeIncarnation) -> bool {
        self.sweeps.swept.contains(&home)
    }
}

impl OwnerSide<'_> {
    /// A home that is dead for us may be alive for a newcomer, and let it map what we do not hold for it any more.
    pub(in crate::engine) fn tell_what_was_swept(&mut self, newcomer: NodeIncarnation) {
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
        // Who is told of ends hears of it from the directory, too.
        sweeps.swept.retain(|home| membership.pairings().has_ended(*home));
        sweeps.swept.insert(home);
        let me = self.cx.incarnation();
        let peers = self.cx.members().peers().map(|(_, peer)| peer.incarnation);
        let asked: BTreeSet<NodeIncarnation> = peers.chain([me]).collect();
        // Who may take itself to be paired with us already is asked as soon as it is.
        let awaited = asked.iter().copied().chain(membership.meeting().offered()).collect();
        // Who died before the home did is not asked, and may have mapped its regions all the same.
        let tainted = self.cx.members().zombies().collect();
        sweeps.under_way.insert(home, Sweep { awaited, tainted });
        for incarnation in asked {
            self.ask_to_drop(home, incarnation);
        }
    }

    fn ask_to_drop(&mut self, home: NodeIncarnation, incarnation: NodeIncarnation) {
        self.cx.ask(incarnation.node, Request::DropHome { home }, Purpose::Sweep(home));
    }

    /// A node is paired with us by now: it has let go of everything here, and is not waited for.
    pub(in crate::engine) fn clear_of_sweeps(&mut self, incarnation: NodeIncarnation) {
        for sweep in self.owner.sweeps.under_way.values_mut() {
            sweep.tainted.remove(&incarnation);
        }
    }

    /// A node is paired with us by now, which sweeps wait for.
    pub(in crate::engine) fn sweep_with(&mut self, incarnation: NodeIncarnation) {
        for home in self.owner.sweeps.awaiting(incarnation) {
            self.ask_to_drop(home, incarnation);
        }
    }

    pub(in crate::engine) fn handle_swept(&mut self, home: NodeIncarnation, from: NodeIncarnation) {
        let Some(sweep) = self.owner.sweeps.under_way.get_mut(&home) else { return };
        sweep.awaited.remove(&from);
        if !sweep.awaited.is_empty() {
            return;
        }
        let sweep = self.owner.sweeps.under_way.remove(&home).expect("looked up just before");
        let tainted = self.cx.members().not_cut_off(sweep.tainted.into_iter().chain([home]));
        let orphans = self.owner.store.take_orphans(home);
        self.release(orphans, tainted);
    }

    pub(in crate::engine) fn abandon_sweeps_by(&mut self, incarnation: NodeIncarnation) {
        for home in self.owner.sweeps.awaiting(incarnation) {
            let sweep = self.owner.sweeps.under_way.get_mut(&home);
            sweep.expect("listed just before").tainted.insert(incarnation);
            self.handle_swept(home, incarnation);
        }
    }
}
