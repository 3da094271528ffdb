//! Regions that were lost with their homes.

use std::fmt;
use std::time::Duration;

use halite_tier::ids::{NodeId, NodeIncarnation};
use halite_tier::message::{Loss, LossCause, LostName, RegionInfo};
use serde::{Deserialize, Serialize};

/// The loss of a region with its home.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Lost {
    /// The node that was the region's home.
    pub node: NodeId,
    /// Random id of the node's incarnation.
    pub incarnation: u64,
    /// Cause of the node's loss.
    pub cause: LossCause,
    /// Time since the loss; for an unreachable node, time since this node last heard from it.
    pub age: Duration,
}

/// A name whose region was lost.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LostRegion {
    /// The name; a new region may take it.
    pub name: String,
    /// The lost home, and the cause and age of the loss.
    pub lost: Lost,
}

/// A named region that exists, but whose home is unreachable.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct UnreachableRegion {
    /// The name; a new region cannot take it.
    pub name: String,
    /// The region's home node, which is unreachable.
    pub home: NodeId,
}

/// All names in use in the cluster.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ListedRegions {
    // The first field, so that an attached session can request the next page before it decodes this one.
    /// The name after which the list continues; `None` if the list is complete.
    pub next: Option<String>,
    /// Regions whose homes answer.
    pub regions: Vec<RegionInfo>,
    /// Regions whose homes are unreachable now, or that moved from home to home faster than the list could follow.
    pub unreachable: Vec<UnreachableRegion>,
    /// Names in etcd whose entries were overwritten, so that they point to no region.
    /// [`Session::forget_name`](crate::Session::forget_name) frees such a name.
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
                write!(
                    f,
                    "node {node}, which was last heard {age_s} s ago and was restarted or forgotten since"
                )
            }
        }
    }
}
