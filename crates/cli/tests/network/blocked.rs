//! Hosts between which TCP passes and packets do not, as where somebody has forgotten UDP in a firewall.

use crate::cluster::{Cluster, line, share_secret, start};
use crate::support::{bytes, eventually};
use crate::world::{Processes, World};

#[test]
fn who_joins_where_packets_do_not_get_through_is_told_so_and_between_which_hosts() {
    let Some(world) = World::new(2, Processes::Shared) else { return };
    share_secret(&world);
    let _first = start(world.host(0), 0, None);
    // It makes no difference which end is the deaf one.
    for deaf in world.hosts() {
        deaf.mute_packets();
        for number in ["--id 1", "--id 0", ""] {
            let line = line(world.host(1), 1, Some("10.0.0.1")).replace("--id 1", number);
            let complaint = world.host(1).fails(&line);
            assert!(
                complaint.contains("no connection to 10.0.0.1:7000: it answers over TCP, but packets (UDP)"),
                "{line}: {complaint}"
            );
            let ends = ["between 10.0.0.2:", " here and 10.0.0.1:", " there do not get through"];
            assert!(ends.iter().all(|end| complaint.contains(end)), "{line}: {complaint}");
        }
        deaf.let_all_arrive();
    }
    assert_eq!(world.host(0).state(0), "alive");
    let _second = start(world.host(1), 1, Some("10.0.0.1"));
    eventually(|| world.hosts().iter().all(|host| host.state(0) == "alive" && host.state(1) == "alive"));
}

#[test]
fn hosts_whose_packets_are_blocked_for_a_while_lose_sight_of_each_other_and_find_it_again() {
    let Some(cluster) = Cluster::new(3, Processes::Shared) else { return };
    eventually(|| cluster.is_whole());
    cluster.put(0, "model", &bytes(100_000), 2);
    cluster.host(2).mute_packets();
    let sees = |host: usize, other: u32, state: &str| cluster.host(host).state(other) == state;
    eventually(|| sees(0, 2, "unreachable") && sees(1, 2, "unreachable"));
    assert!(sees(0, 1, "alive") && sees(1, 0, "alive"));
    // What is asked for meanwhile fails, and names the node that is out of reach.
    let complaint = cluster.host(1).fails("halite get model");
    assert!(complaint.contains("node 2"), "{complaint}");
    let complaint = cluster.host(2).fails("halite get model");
    assert!(complaint.contains("node 0"), "{complaint}");

    cluster.host(2).let_all_arrive();
    eventually(|| cluster.is_whole());
    eventually(|| cluster.host(1).run("halite mv model --to 1").status.success());
    assert!(cluster.get(2, "model") == bytes(100_000));
}
