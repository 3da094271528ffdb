//! What is known of regions that were lost with their homes.

use std::fmt;
use std::time::Duration;

use halite_tier::ids::{NodeId, NodeIncarnation};
use halite_tier::message::{Loss, LossCause, LostName, RegionInfo};

/// With whom a region was lost, and what has become of that node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lost {
    /// The node that was its home.
    pub node: NodeId,
    /// In which incarnation.
    pub incarnation: u64,
    /// How the node was lost.
    pub cause: LossCause,
    /// How long ago it was lost; if it is merely unreachable, how long ago it was heard for the last time.
    pub age: Duration,
}

/// A name whose region was lost.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LostRegion {
    /// The name, which is free.
    pub name: String,
    /// What has become of its home.
    pub lost: Lost,
}

/// A name whose region is there, but not its home.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnreachableRegion {
    /// The name, which is taken.
    pub name: String,
    /// The home of the region.
    pub home: NodeId,
}

/// All regions that have names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ListedRegions {
    /// Those whose homes answer.
    pub regions: Vec<RegionInfo>,
    /// Those whose homes are not reached now.
    pub unreachable: Vec<UnreachableRegion>,
    /// Names in etcd by which nobody finds a region: somebody has written over what led to it.  [`Session::forget_name`](crate::Session::forget_name)
    /// makes such a name free.
    pub damaged: Vec<String>,
}

impl Lost {
    pub(crate) fn new(home: NodeIncarnation, loss: Loss) -> Lost {
        let (node, incarnation) = (home.node, home.id.0);
        Lost { node, incarnation, cause: loss.cause, age: Duration::from_nanos(loss.age_ns) }
    }
}

impl From<LostName> for LostRegion {
    fn from(lost: LostName) -> LostRegion {
        LostRegion { name: lost.name, lost: Lost::new(lost.home, lost.loss) }
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (node, age_s) = (self.node, self.age.as_secs());
        match self.cause {
            LossCause::Left => write!(f, "node {node}, which left {age_s} s ago"),
            LossCause::Exited => write!(f, "node {node}, which exited {age_s} s ago"),
            LossCause::Killed => {
                write!(f, "node {node}, which was killed {age_s} s ago after it was silent for its lease")
            }
            LossCause::Unreachable => {
                write!(f, "node {node}, which has been unreachable for {age_s} s")
            }
        }
    }
}
