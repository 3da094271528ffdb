//! Lists named regions, page by page: asks the directory for names, then each home for all its regions of the page.
//!
//! A page begins after the last name of the page before, so a name that exists throughout is listed exactly once.

use std::collections::BTreeMap;

use super::{HOPS_MAX, SessionSide, UserStep};
use crate::effect::{OpId, Outcome};
use crate::engine::context::Purpose;
use crate::ids::{NodeId, RegionId};
use crate::message::{Description, ErrorReply, RegionInfo, Reply, Request};

/// Bytes of descriptions from which on a page ends: a quarter of the longest reply to an attached session.
const PAGE_BYTES_MAX: usize = 4 << 20;

/// The page of a list command, while its homes describe the regions.
#[derive(Debug)]
pub(super) struct Page {
    /// Number of requests in flight.
    missing: usize,
    regions: Vec<RegionInfo>,
    unreachable: Vec<(String, NodeId)>,
    damaged: Vec<String>,
    next: Option<String>,
}

impl Page {
    /// Ends the page where its descriptions exceed [`PAGE_BYTES_MAX`]. The next page describes the rest again.
    fn cut(&mut self) {
        let mut bytes = 0;
        let is_beyond = |region: &RegionInfo| {
            bytes += region.encoded_bytes();
            bytes > PAGE_BYTES_MAX
        };
        let Some(len) = self.regions.iter().position(is_beyond).map(|len| len.max(1)) else { return };
        if len < self.regions.len() {
            self.regions.truncate(len);
            self.next = self.regions[len - 1].name.clone();
            let last = self.next.as_ref();
            self.unreachable.retain(|(name, _)| Some(name) < last);
            self.damaged.retain(|name| Some(name) < last);
        }
    }
}

impl SessionSide<'_> {
    pub(super) fn list_names(&mut self, op: OpId, after: Option<String>) {
        let step = UserStep::ListNames { after: after.clone() };
        self.cx.ask_directory(Request::ListNames { after }, Purpose::User(op, step));
    }

    pub(super) fn continue_list(&mut self, op: OpId, after: Option<String>, body: Result<Reply, ErrorReply>) {
        let (names, damaged, more) = match body {
            Ok(Reply::Names { names, damaged, more }) => (names, damaged, more),
            Ok(_) => return self.cx.finish(op, Err(ErrorReply::Malformed.into())),
            Err(refusal) => return self.cx.finish(op, Err(refusal.into())),
        };
        let last = names.last().map(|(name, ..)| name).max(damaged.last()).cloned();
        // A directory that repeats itself would otherwise never end the list.
        let next = last.filter(|last| more && Some(last) > after.as_ref());
        let mut by_home: BTreeMap<NodeId, Vec<(String, RegionId)>> = BTreeMap::new();
        for (name, region, home) in names {
            by_home.entry(home).or_default().push((name, region));
        }
        let (regions, unreachable) = (Vec::new(), Vec::new());
        self.commands.pages.insert(op, Page { missing: 0, regions, unreachable, damaged, next });
        self.describe(op, by_home, 0);
        self.finish_page(op);
    }

    fn describe(&mut self, op: OpId, by_home: BTreeMap<NodeId, Vec<(String, RegionId)>>, hops: u8) {
        for (home, names) in by_home {
            let Some(page) = self.commands.pages.get_mut(&op) else { return };
            page.missing += 1;
            let regions = names.iter().map(|(_, region)| *region).collect();
            let step = UserStep::Describe { home, names, hops };
            self.cx.ask(home, Request::Describe { regions }, Purpose::User(op, step));
        }
    }

    /// Collects a home's descriptions, and asks for those that are missing. Skips regions freed since their names were
    /// listed.
    pub(super) fn continue_describe(
        &mut self,
        op: OpId,
        (home, names, hops): (NodeId, Vec<(String, RegionId)>, u8),
        body: Result<Reply, ErrorReply>,
    ) {
        let Some(page) = self.commands.pages.get_mut(&op) else { return };
        page.missing -= 1;
        let mut rest = Vec::new();
        let mut again: BTreeMap<NodeId, Vec<(String, RegionId)>> = BTreeMap::new();
        match body {
            Ok(Reply::Described { found }) => {
                let is_progress = !found.is_empty();
                let mut names = names.into_iter();
                for (description, (name, region)) in found.into_iter().zip(names.by_ref()) {
                    match description {
                        Description::Region(info) => page.regions.push(*info),
                        Description::MovedTo(next) if hops < HOPS_MAX => {
                            again.entry(next).or_default().push((name, region))
                        }
                        Description::MovedTo(next) => page.unreachable.push((name, next)),
                        Description::NotFound => {}
                    }
                }
                match is_progress {
                    true => rest.extend(names),
                    false => page.unreachable.extend(names.map(|(name, _)| (name, home))),
                }
            }
            // The home is gone, or leaves. A node that joined recently may not know former members.
            _ => page.unreachable.extend(names.into_iter().map(|(name, _)| (name, home))),
        }
        if !rest.is_empty() {
            self.describe(op, BTreeMap::from([(home, rest)]), hops);
        }
        self.describe(op, again, hops + 1);
        self.finish_page(op);
    }

    fn finish_page(&mut self, op: OpId) {
        if self.commands.pages.get(&op).is_some_and(|page| page.missing == 0) {
            let mut page = self.commands.pages.remove(&op).expect("looked up just before");
            page.regions.sort_by(|a, b| a.name.cmp(&b.name));
            page.unreachable.sort();
            page.cut();
            let Page { regions, unreachable, damaged, next, .. } = page;
            self.cx.finish(op, Ok(Outcome::List { regions, unreachable, damaged, next }));
        }
    }
}
