//! How names, the lives of homes, and numbers are written down in etcd.
//!
//! ```text
//!  PREFIX/names/NAME            "ORIGIN.SERIAL NODE.INCARNATION EPOCH": region, home, and as of which change it is that
//!  PREFIX/homes/NODE.INCARNATION  "lives", or "ended CAUSE TIME": a life that has, or had, names; TIME in ns since 1970
//!  PREFIX/numbers               the first number that may be given out
//! ```
//!
//! Names hang on no lease: those of a home that is out of reach stay.  They are lost when its life has ended, which one key says for all
//! of them.  NUL, by which the names of locks and barriers begin, is as good in a key as any other byte.

use crate::ids::{Epoch, Incarnation, NodeId, NodeLife, RegionId};
use crate::message::LossCause;

/// What a name stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct NameRecord {
    pub(super) region: RegionId,
    pub(super) home: NodeLife,
    pub(super) epoch: Epoch,
}

impl NameRecord {
    pub(super) fn emit(&self) -> String {
        let RegionId { origin, serial } = self.region;
        format!("{:x}.{serial} {} {}", origin.0, life_text(self.home), self.epoch.0)
    }

    /// `None` if somebody else has written it.
    pub(super) fn parse(text: &str) -> Option<NameRecord> {
        let [region, home, epoch] = text.split(' ').collect::<Vec<_>>()[..] else { return None };
        let (origin, serial) = region.split_once('.')?;
        let origin = Incarnation(u64::from_str_radix(origin, 16).ok()?);
        let region = RegionId { origin, serial: serial.parse().ok()? };
        Some(NameRecord { region, home: parse_life(home)?, epoch: Epoch(epoch.parse().ok()?) })
    }
}

/// What has become of a life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum HomeRecord {
    Lives,
    Ended { cause: LossCause, at_ns: u64 },
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
            HomeRecord::Lives => "lives".to_owned(),
            HomeRecord::Ended { cause, at_ns } => {
                let word = CAUSES.iter().find(|(other, _)| other == cause).map_or("", |(_, word)| word);
                format!("ended {word} {at_ns}")
            }
        }
    }

    pub(super) fn parse(text: &str) -> Option<HomeRecord> {
        if text == "lives" {
            return Some(HomeRecord::Lives);
        }
        let (word, at_ns) = text.strip_prefix("ended ")?.split_once(' ')?;
        let (cause, _) = CAUSES.iter().find(|(_, other)| *other == word)?;
        Some(HomeRecord::Ended { cause: *cause, at_ns: at_ns.parse().ok()? })
    }
}

pub(super) fn life_text(life: NodeLife) -> String {
    format!("{}.{:x}", life.node.0, life.incarnation.0)
}

pub(super) fn parse_life(text: &str) -> Option<NodeLife> {
    let (node, incarnation) = text.split_once('.')?;
    let incarnation = Incarnation(u64::from_str_radix(incarnation, 16).ok()?);
    Some(NodeLife { node: NodeId(node.parse().ok()?), incarnation })
}

/// Where all that is.
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

    pub(super) fn homes(&self) -> String {
        format!("{}/homes/", self.prefix)
    }

    pub(super) fn home(&self, life: NodeLife) -> String {
        format!("{}/homes/{}", self.prefix, life_text(life))
    }

    pub(super) fn numbers(&self) -> String {
        format!("{}/numbers", self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_what_others_wrote_is_not_taken_for_ours() {
        let home = NodeLife { node: NodeId(3), incarnation: Incarnation(u64::MAX) };
        let region = RegionId { origin: Incarnation(10), serial: 7 };
        let record = NameRecord { region, home, epoch: Epoch(2) };
        assert_eq!(record.emit(), "a.7 3.ffffffffffffffff 2");
        assert_eq!(NameRecord::parse(&record.emit()), Some(record));
        for theirs in ["", "a", "a.7 3.f", "a.7 3.f 2 1", "g.7 3.f 2", "a.7 3 2", "a.-7 3.f 2"] {
            assert_eq!(NameRecord::parse(theirs), None, "{theirs}");
        }
        for (cause, _) in CAUSES {
            let ended = HomeRecord::Ended { cause, at_ns: 5 };
            assert_eq!(HomeRecord::parse(&ended.emit()), Some(ended));
        }
        assert_eq!(HomeRecord::parse(&HomeRecord::Lives.emit()), Some(HomeRecord::Lives));
        assert_eq!(HomeRecord::parse("ended badly 5"), None);
    }
}
