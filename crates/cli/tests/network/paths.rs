//! Paths that swallow long packets without a word, and hosts that are reached by one of their addresses only.

use crate::application::Application;
use crate::cluster::{Cluster, SECRET, share_secret, start};
use crate::support::{Running, bytes, eventually};
use crate::world::{Host, Processes, World};

/// Frames that take packets of 4096 bytes.
const FRAME_BYTES: u32 = 4200;
/// The longest datagram that comes through; packets of 1024 bytes do.
const LET_THROUGH: u32 = 1400;

/// Two nodes that agree on packets of 4096 bytes, of which a path lets through so many.
fn two_hosts(let_through: Option<u32>) -> Option<Cluster> {
    let world = World::new(2, Processes::Shared)?;
    world.widen(FRAME_BYTES);
    if let Some(most) = let_through {
        world.swallow(most);
    }
    share_secret(&world);
    let nodes = vec![start(world.host(0), 0, None), start(world.host(1), 1, Some("10.0.0.1"))];
    let cluster = Cluster { nodes, world };
    eventually(|| cluster.is_whole());
    Some(cluster)
}

/// Whether the node of host 0 knows that of the other to be reached by packets of so many bytes.
fn is_reached_by(cluster: &Cluster, mtu: u32) -> bool {
    let explained = cluster.host(0).run("halite explain 1");
    String::from_utf8_lossy(&explained.stdout).contains(&format!("path MTU: {mtu} bytes"))
}

#[test]
fn long_packets_are_used_where_they_come_through() {
    let Some(cluster) = two_hosts(None) else { return };
    cluster.put(0, "model", &bytes(1_000_000), 1);
    assert!(is_reached_by(&cluster, 4096));
}

#[test]
fn hosts_meet_and_work_over_a_path_that_swallows_what_both_ends_take_for_short_enough() {
    let Some(cluster) = two_hosts(Some(LET_THROUGH)) else { return };
    cluster.put(0, "model", &bytes(1_000_000), 1);
    assert!(cluster.get(1, "model") == bytes(1_000_000));
    assert!(cluster.get(0, "model") == bytes(1_000_000));
    eventually(|| is_reached_by(&cluster, 1024));
}

#[test]
fn nobody_hears_of_a_path_that_begins_to_swallow_long_packets() {
    let Some(cluster) = two_hosts(None) else { return };
    cluster.put(0, "model", &bytes(1_000_000), 1);
    let counting = Application::start(cluster.host(0), "count 1");
    cluster.world.swallow(LET_THROUGH);
    assert!(cluster.get(0, "model") == bytes(1_000_000));
    cluster.put(0, "other", &bytes(1_000_000), 1);
    assert!(counting.stop(cluster.host(0)).contains("counted to"));
    assert!(cluster.is_whole(), "{:?}", cluster.states());
}

/// What a node of that host is told: that it listens at both of its addresses, that of IPv4 first.
fn both(host: &Host) -> String {
    format!("--listen '{}:7000,[{}]:7000' --secret-file {SECRET}", host.address, host.address_6)
}

fn start_at_both(host: &Host, number: u32, join: &str) -> Running {
    host.start(&format!("halite node --id {number} --arena 256M {} {join}", both(host)), "ready")
}

/// Hosts with the secret, of which the last hears nothing that comes from the one before it by IPv4.
fn deaf_hosts(count: usize) -> Option<World> {
    let world = World::new(count, Processes::Shared)?;
    share_secret(&world);
    let [.., other, deaf] = world.hosts() else { panic!("two hosts at least") };
    deaf.drop_arrivals(&format!("ip saddr {}", other.address));
    Some(world)
}

/// Where `status` of a host says that a node is dialled.
fn dialled(host: &Host, node: u32) -> String {
    let nodes = host.nodes();
    let row = nodes.iter().find(|row| row["node"] == node).unwrap();
    row["address"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn a_node_is_joined_by_its_second_address_where_the_first_is_out_of_reach() {
    let Some(world) = deaf_hosts(2) else { return };
    let _first = start_at_both(world.host(0), 0, "");
    let _second = start_at_both(world.host(1), 1, "--join '10.0.0.1:7000,[fd00::1]:7000'");
    eventually(|| world.hosts().iter().all(|host| host.state(0) == "alive" && host.state(1) == "alive"));
    world.host(0).write("/tmp/salt", b"salt");
    world.host(0).ok("halite put salt /tmp/salt --node 1");
    assert_eq!(world.host(1).ok("halite get salt"), "salt");
    assert_eq!(dialled(world.host(1), 0), "[fd00::1]:7000", "the one that was chosen");
}

#[test]
fn who_is_out_of_reach_by_the_first_address_is_reached_by_the_second_and_by_others_as_before() {
    let Some(world) = deaf_hosts(3) else { return };
    let _nodes = [(0, ""), (1, "--join 10.0.0.1:7000"), (2, "--join 10.0.0.1:7000")]
        .map(|(number, join)| start_at_both(world.host(number), number as u32, join));
    let all_live = |host: &Host| (0..3).all(|node| host.state(node) == "alive");
    eventually(|| world.hosts().iter().all(all_live));
    world.host(2).write("/tmp/salt", b"salt");
    world.host(2).ok("halite put salt /tmp/salt --node 1");
    assert_eq!(world.host(2).ok("halite get salt"), "salt");
    assert_eq!(dialled(world.host(2), 1), "[fd00::2]:7000");
    assert_eq!(dialled(world.host(0), 1), "10.0.0.2:7000", "the first, where it can be");
    let explained = world.host(2).ok("halite explain 1");
    assert!(
        explained.contains("packets go from [fd00::3]:") && explained.contains("to [fd00::2]:"),
        "{explained}"
    );
}
