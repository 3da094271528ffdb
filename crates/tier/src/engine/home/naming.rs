//! Names of the regions whose home is this node: reports the names to the directory, and gives up names that the
//! directory withdraws.

use super::HomeSide;
use crate::directory::NAMES_PER_ANSWER_MAX;
use crate::ids::{Epoch, RegionId};
use crate::message::Notice;
use crate::names;
use crate::news::News;

impl HomeSide<'_> {
    /// Reports the names of local regions to the directory, which may have restarted.
    pub(in crate::engine) fn report_names(&mut self) {
        let homed = self.homes.regions.iter();
        let homed =
            homed.filter_map(|(id, region)| Some((region.name.as_deref()?.to_string(), *id, region.epoch)));
        // An earlier incarnation of the directory granted the names of regions being allocated.
        let claimed = self
            .homes
            .creations
            .iter()
            .filter_map(|(id, creation)| Some((creation.claimed_name()?, *id, Epoch(0))));
        let servers = self.homes.servers.iter().map(|(id, name)| (name.clone(), *id, Epoch(0)));
        let named: Vec<(String, RegionId, Epoch)> = homed.chain(claimed).chain(servers).collect();
        for names in named.chunks(NAMES_PER_ANSWER_MAX) {
            self.cx.notify_directory(Notice::Names { names: names.to_vec(), done: false });
        }
        self.cx.notify_directory(Notice::Names { names: Vec::new(), done: true });
    }

    /// Gives up a name that two regions received while homes had lost contact with each other or with the directory.
    pub(in crate::engine) fn lose_name(&mut self, name: &str, region: RegionId) {
        if let Some(creation) = self.homes.creations.get_mut(&region) {
            creation.lose_name();
        }
        self.homes.servers.remove(&region);
        match self.homes.regions.get(&region) {
            Some(found) if found.name.as_deref() != Some(name) => {}
            Some(_) if names::is_reserved(name) => self.free_for_lost_name(region),
            Some(_) => self.rename(region, name),
            None => {}
        }
    }

    /// Renames a region whose name belongs to another, so that it stays reachable and is not freed.
    fn rename(&mut self, region: RegionId, name: &str) {
        let alias = names::alias(name, self.cx.incarnation().node, self.cx.next_number());
        let found = self.homes.regions.get_mut(&region).expect("looked up just before");
        found.name = Some(alias.as_str().into());
        found.epoch.0 += 1;
        let names = vec![(alias.clone(), region, found.epoch)];
        self.cx.notify_directory(Notice::Names { names, done: false });
        self.cx.report(News::Renamed { name: name.to_owned(), alias });
    }
}
