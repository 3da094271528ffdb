//! The records of names, incarnations and numbers in etcd.
//!
//! ```text
//!  PREFIX/names/NAME            "ORIGIN.SERIAL NODE.INCARNATION EPOCH": region, home, and the epoch of that home
//!  PREFIX/homes/NODE.INCARNATION  "lives", "awaited" or "ended CAUSE TIME by NODE.INCARNATION": an incarnation that
//!                               has, or had, names; TIME in ns since 1970, and the reporting node
//!  PREFIX/numbers               the first free number
//!  PREFIX/move                  "moving NODE.INCARNATION": the node that moves, or has moved, its cluster's names here
//!  PREFIX/closed                "closing" while the names move back to node 0, "closed" afterwards
//! ```
//!
//! Names have no etcd lease, so the names of an unreachable home stay. They are lost when the home's incarnation ends;
//! one key per incarnation records this end for all its names. Names of locks and barriers begin with NUL, which is
//! valid in keys.

use crate::ids::{Epoch, Incarnation, NodeId, NodeIncarnation, RegionId};
use crate::message::LossCause;

/// The record of a name: its region and home.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::directory) struct NameRecord {
    pub(in crate::directory) region: RegionId,
    pub(in crate::directory) home: NodeIncarnation,
    pub(in crate::directory) epoch: Epoch,
}

impl NameRecord {
    pub(super) fn emit(&self) -> String {
        let RegionId { origin, serial } = self.region;
        format!("{:x}.{serial} {} {}", origin.0, incarnation_text(self.home), self.epoch.0)
    }

    /// Decodes a record. Returns `None` if it is invalid.
    pub(super) fn parse(text: &str) -> Option<NameRecord> {
        let [region, home, epoch] = text.split(' ').collect::<Vec<_>>()[..] else { return None };
        let (origin, serial) = region.split_once('.')?;
        let origin = Incarnation(u64::from_str_radix(origin, 16).ok()?);
        let region = RegionId { origin, serial: serial.parse().ok()? };
        Some(NameRecord { region, home: parse_incarnation(home)?, epoch: Epoch(epoch.parse().ok()?) })
    }
}

/// The record of an incarnation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum HomeRecord {
    Alive,
    /// Its names were moved to the store, but it has not accessed the store yet.
    Awaited,
    Ended {
        cause: LossCause,
        at_ns: u64,
        /// The reporting node; `None` if the record was edited by hand.
        by: Option<NodeIncarnation>,
    },
}

const CAUSES: [(LossCause, &str); 4] = [
    (LossCause::Left, "left"),
    (LossCause::Exited, "exited"),
    (LossCause::Killed, "killed"),
    (LossCause::Unreachable, "unreachable"),
];

impl HomeRecord {
    pub(super) fn emit(&self) -> String {
        match self {
            HomeRecord::Alive => "lives".to_owned(),
            HomeRecord::Awaited => "awaited".to_owned(),
            HomeRecord::Ended { cause, at_ns, by } => {
                let word = CAUSES.iter().find(|(other, _)| other == cause).map_or("", |(_, word)| word);
                let by = by.map(|by| format!(" by {}", incarnation_text(by))).unwrap_or_default();
                format!("ended {word} {at_ns}{by}")
            }
        }
    }

    pub(super) fn parse(text: &str) -> Option<HomeRecord> {
        match text {
            "lives" => return Some(HomeRecord::Alive),
            "awaited" => return Some(HomeRecord::Awaited),
            _ => {}
        }
        let (word, rest) = text.strip_prefix("ended ")?.split_once(' ')?;
        let (cause, _) = CAUSES.iter().find(|(_, other)| *other == word)?;
        let (at_ns, by) = match rest.split_once(" by ") {
            Some((at_ns, by)) => (at_ns, Some(parse_incarnation(by)?)),
            None => (rest, None),
        };
        Some(HomeRecord::Ended { cause: *cause, at_ns: at_ns.parse().ok()?, by })
    }
}

pub(super) fn incarnation_text(incarnation: NodeIncarnation) -> String {
    format!("{}.{:x}", incarnation.node.0, incarnation.id.0)
}

fn parse_incarnation(text: &str) -> Option<NodeIncarnation> {
    let (node, incarnation) = text.split_once('.')?;
    let incarnation = Incarnation(u64::from_str_radix(incarnation, 16).ok()?);
    Some(NodeIncarnation { node: NodeId(node.parse().ok()?), id: incarnation })
}

/// The keys below a prefix.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    prefix: String,
}

impl Keys {
    pub(super) fn new(prefix: &str) -> Keys {
        Keys { prefix: prefix.trim_end_matches('/').to_owned() }
    }

    pub(super) fn names(&self) -> String {
        format!("{}/names/", self.prefix)
    }

    pub(super) fn name(&self, name: &str) -> String {
        format!("{}/names/{name}", self.prefix)
    }

    /// Returns the name to which a key belongs; `None` if the key is of another kind.
    pub(super) fn name_of<'k>(&self, key: &'k str) -> Option<&'k str> {
        key.strip_prefix(&*self.prefix)?.strip_prefix("/names/")
    }

    pub(super) fn homes(&self) -> String {
        format!("{}/homes/", self.prefix)
    }

    /// Returns the incarnation to which a key belongs; `None` if the key is of another kind.
    pub(super) fn incarnation_of(&self, key: &str) -> Option<NodeIncarnation> {
        parse_incarnation(key.strip_prefix(&*self.prefix)?.strip_prefix("/homes/")?)
    }

    pub(super) fn home(&self, incarnation: NodeIncarnation) -> String {
        format!("{}/homes/{}", self.prefix, incarnation_text(incarnation))
    }

    /// Returns the key that a permanent node keeps under a lease while the node is alive.
    pub(super) fn place(&self, node: NodeId) -> String {
        format!("{}{}", self.places(), node.0)
    }

    pub(super) fn places(&self) -> String {
        format!("{}/places/", self.prefix)
    }

    pub(super) fn mark(&self) -> String {
        format!("{}/move", self.prefix)
    }

    pub(super) fn closed(&self) -> String {
        format!("{}/closed", self.prefix)
    }

    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    pub(super) fn numbers(&self) -> String {
        format!("{}/numbers", self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_round_trip_and_invalid_ones_are_refused() {
        let home = NodeIncarnation { node: NodeId(3), id: Incarnation(u64::MAX) };
        let region = RegionId { origin: Incarnation(10), serial: 7 };
        let record = NameRecord { region, home, epoch: Epoch(2) };
        assert_eq!(record.emit(), "a.7 3.ffffffffffffffff 2");
        assert_eq!(NameRecord::parse(&record.emit()), Some(record));
        for invalid in ["", "a", "a.7 3.f", "a.7 3.f 2 1", "g.7 3.f 2", "a.7 3 2", "a.-7 3.f 2"] {
            assert_eq!(NameRecord::parse(invalid), None, "{invalid}");
        }
        for (cause, _) in CAUSES {
            for by in [None, Some(home)] {
                let ended = HomeRecord::Ended { cause, at_ns: 5, by };
                assert_eq!(HomeRecord::parse(&ended.emit()), Some(ended));
            }
        }
        for record in [HomeRecord::Alive, HomeRecord::Awaited] {
            assert_eq!(HomeRecord::parse(&record.emit()), Some(record));
        }
        for invalid in ["ended badly 5", "ended left", "ended left 5 by", "ended left 5 by x"] {
            assert_eq!(HomeRecord::parse(invalid), None, "{invalid}");
        }
    }
}
