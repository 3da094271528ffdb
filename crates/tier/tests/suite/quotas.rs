//! Quotas of principals: a home refuses regions beyond them, and counts regions that move to it.

use halite_tier::effect::{Command, Outcome, Placement};
use halite_tier::ids::{NodeId, Principal};
use halite_tier::message::{ErrorReply, RegionCommand};
use halite_tier::quota::{Amounts, Quota, QuotaExceeded};

use crate::common::{Cluster, allocation, slot};

const LEN: u64 = 8192;

#[test]
fn regions_count_at_their_home() {
    let mut cluster = Cluster::of(2);
    let max = Amounts::UNLIMITED.with(Quota::Regions, 2).with(Quota::RegionBytes, 2 * LEN);
    cluster.hosts.iter_mut().for_each(|host| host.engine.limit_regions(Principal("root".into()), max));
    let on = |node, len| allocation(None, len, Placement::On(NodeId(node)));
    let used = |cluster: &Cluster, host: usize| {
        let used = cluster.hosts[host].engine.region_use().used();
        used.get(&Principal("ada".into()))
            .map_or((0, 0), |of| (of.of(Quota::Regions), of.of(Quota::RegionBytes)))
    };
    let refused =
        |quota, asked| Err(ErrorReply::Quota(QuotaExceeded { quota, asked, max: max.of(quota) }).into());

    let first = slot(cluster.command(1, on(0, LEN)));
    assert_eq!(cluster.command(0, on(0, LEN + 1)), refused(Quota::RegionBytes, LEN + 1));
    let second = slot(cluster.command(0, on(0, LEN)));
    assert_eq!(cluster.command(1, on(0, 1)), refused(Quota::Regions, 1));
    // An allocation that fails for another reason counts nowhere.
    let taken = allocation(Some("salt"), LEN, Placement::On(NodeId(1)));
    slot(cluster.command(0, taken.clone()));
    assert_eq!(cluster.command(1, taken), Err(ErrorReply::NameTaken.into()));
    assert_eq!((used(&cluster, 0), used(&cluster, 1)), ((2, 2 * LEN), (1, LEN)));

    let moved = Command::RegionCommand(first, RegionCommand::Move { to: NodeId(1) });
    assert_eq!(cluster.command(1, moved), Ok(Outcome::Done));
    assert_eq!((used(&cluster, 0), used(&cluster, 1)), ((1, LEN), (2, 2 * LEN)));
    cluster.command(0, Command::RegionCommand(second, RegionCommand::Free)).unwrap();
    assert_eq!(used(&cluster, 0), (0, 0));

    // The user of the node has no quotas.
    cluster.hosts[0].engine.limit_regions(Principal("ada".into()), max);
    slot(cluster.command(1, on(0, 3 * LEN)));
}
