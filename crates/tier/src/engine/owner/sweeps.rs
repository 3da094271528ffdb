//! Sweeps: chunks of ours whose home died are free once nobody maps regions of that home any more.

use std::collections::{BTreeMap, BTreeSet};

use super::{Owner, OwnerSide};
use crate::engine::context::Purpose;
use crate::ids::NodeLife;
use crate::message::{Notice, Request};

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Sweeps {
    under_way: BTreeMap<NodeLife, Sweep>,
    /// Homes whose chunks here were taken, or are about to be: newcomers may still hear of them from others.
    swept: BTreeSet<NodeLife>,
}

/// All nodes drop their mappings, then the chunks are free.
#[derive(Debug)]
struct Sweep {
    awaited: BTreeSet<NodeLife>,
    /// Nodes that died before they answered.
    tainted: BTreeSet<NodeLife>,
}

impl Sweeps {
    fn awaiting(&self, life: NodeLife) -> Vec<NodeLife> {
        let homes = self.under_way.iter().filter(|(_, sweep)| sweep.awaited.contains(&life));
        homes.map(|(home, _)| *home).collect()
    }
}

impl Owner {
    /// Whether the chunks of that home were taken, or are about to be.
    pub(in crate::engine) fn has_swept(&self, home: NodeLife) -> bool {
        self.sweeps.swept.contains(&home)
    }
}

impl OwnerSide<'_> {
    /// A home that is dead for us may be alive for a newcomer, and let it map what we do not hold for it any more.
    pub(in crate::engine) fn tell_what_was_swept(&mut self, newcomer: NodeLife) {
        let swept = &mut self.owner.sweeps.swept;
        swept.retain(|home| home.node != newcomer.node || *home == newcomer);
        if !swept.is_empty() {
            let homes = swept.iter().copied().collect();
            self.cx.notify(newcomer.node, Notice::Swept { homes });
        }
    }

    pub(in crate::engine) fn start_sweep(&mut self, home: NodeLife) {
        if !self.owner.store.holds_any_for(home) {
            return;
        }
        let membership = self.cx.membership();
        let sweeps = &mut self.owner.sweeps;
        // Who is told of ends hears of it from the directory, too.
        sweeps.swept.retain(|home| membership.pairings().has_ended(*home));
        sweeps.swept.insert(home);
        let me = self.cx.life();
        let peers = self.cx.members().peers().map(|(_, peer)| peer.life);
        let asked: BTreeSet<NodeLife> = peers.chain([me]).collect();
        // Who may take itself to be paired with us already is asked as soon as it is.
        let awaited = asked.iter().copied().chain(membership.meeting().offered()).collect();
        // Who died before the home did is not asked, and may have mapped its regions all the same.
        let tainted = self.cx.members().zombies().collect();
        sweeps.under_way.insert(home, Sweep { awaited, tainted });
        for life in asked {
            self.ask_to_drop(home, life);
        }
    }

    fn ask_to_drop(&mut self, home: NodeLife, life: NodeLife) {
        self.cx.ask(life.node, Request::DropHome { home }, Purpose::Sweep(home));
    }

    /// A node is paired with us by now: it has let go of everything here, and is not waited for.
    pub(in crate::engine) fn clear_of_sweeps(&mut self, life: NodeLife) {
        for sweep in self.owner.sweeps.under_way.values_mut() {
            sweep.tainted.remove(&life);
        }
    }

    /// A node is paired with us by now, which sweeps wait for.
    pub(in crate::engine) fn sweep_with(&mut self, life: NodeLife) {
        for home in self.owner.sweeps.awaiting(life) {
            self.ask_to_drop(home, life);
        }
    }

    pub(in crate::engine) fn handle_swept(&mut self, home: NodeLife, from: NodeLife) {
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

    pub(in crate::engine) fn abandon_sweeps_by(&mut self, life: NodeLife) {
        for home in self.owner.sweeps.awaiting(life) {
            let sweep = self.owner.sweeps.under_way.get_mut(&home);
            sweep.expect("listed just before").tainted.insert(life);
            self.handle_swept(home, life);
        }
    }
}
