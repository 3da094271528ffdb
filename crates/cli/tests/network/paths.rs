//! Paths that silently drop long packets, and hosts that are reachable at only one of their addresses.

use crate::application::Application;
use crate::cluster::{Cluster, SECRET, share_secret, start, start_with_two_addresses};
use crate::support::{bytes, eventually};
use crate::world::{Host, Processes, World};

/// MTU of a link that carries packets of 4096 bytes.
const FRAME_BYTES: u32 = 4200;
/// Maximum length of a datagram that passes; packets of 1024 bytes fit.
const DATAGRAM_BYTES_MAX: u32 = 1400;

/// Creates two nodes that agree on packets of 4096 bytes; the path passes only datagrams up to `datagram_bytes_max` bytes.
fn two_hosts(datagram_bytes_max: Option<u32>) -> Option<Cluster> {
    let world = World::new(2, Processes::Shared)?;
    world.set_mtu(FRAME_BYTES);
    if let Some(most) = datagram_bytes_max {
        world.drop_long_packets(most);
    }
    share_secret(&world);
    let nodes = vec![start(world.host(0), 0, None), start(world.host(1), 1, Some("10.0.0.1"))];
    let cluster = Cluster { nodes, world };
    eventually(|| cluster.is_whole());
    Some(cluster)
}

/// Returns true if the node of host 0 sends packets of this size to the other node.
fn has_path_mtu(cluster: &Cluster, mtu: u32) -> bool {
    let explained = cluster.host(0).run("halite explain 1");
    String::from_utf8_lossy(&explained.stdout).contains(&format!("path MTU: {mtu} bytes"))
}

#[test]
fn hosts_meet_over_a_path_that_drops_long_packets() {
    let Some(cluster) = two_hosts(Some(DATAGRAM_BYTES_MAX)) else { return };
    cluster.put(0, "model", &bytes(1_000_000), 1);
    assert!(cluster.get(1, "model") == bytes(1_000_000));
    assert!(cluster.get(0, "model") == bytes(1_000_000));
    eventually(|| has_path_mtu(&cluster, 1024));
    let doctor = "halite doctor --listen 10.0.0.2:7000 --join 10.0.0.1:7000 --secret-file";
    let text = cluster.host(1).run(&format!("{doctor} {SECRET}"));
    let text = String::from_utf8_lossy(&text.stdout);
    assert!(text.contains("do not pass between this host and 10.0.0.1; those with 1024 bytes do"), "{text}");
}

#[test]
fn path_may_start_to_drop_long_packets() {
    let Some(cluster) = two_hosts(None) else { return };
    cluster.put(0, "model", &bytes(1_000_000), 1);
    assert!(has_path_mtu(&cluster, 4096));
    let counting = Application::start(cluster.host(0), "count 1");
    cluster.world.drop_long_packets(DATAGRAM_BYTES_MAX);
    assert!(cluster.get(0, "model") == bytes(1_000_000));
    cluster.put(0, "other", &bytes(1_000_000), 1);
    assert!(counting.stop(cluster.host(0)).contains("counted to"));
    assert!(cluster.is_whole(), "{:?}", cluster.states());
}

/// Returns the address at which `status` on a host says that a node is dialled.
fn shown_address(host: &Host, node: u32) -> String {
    let nodes = host.nodes();
    let row = nodes.iter().find(|row| row["node"] == node).unwrap();
    row["address"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn host_pairs_use_a_working_address() {
    let Some(world) = World::new(3, Processes::Shared) else { return };
    share_secret(&world);
    world.host(2).drop_packets("ip saddr 10.0.0.2");
    let _nodes = [(0, ""), (1, "--join 10.0.0.1:7000"), (2, "--join 10.0.0.1:7000")]
        .map(|(number, flags)| start_with_two_addresses(world.host(number), number, flags));
    eventually(|| world.are_alive(3));
    world.host(2).write("/tmp/salt", b"salt");
    world.host(2).ok("halite put salt /tmp/salt --node 1");
    assert_eq!(world.host(2).ok("halite get salt"), "salt");
    assert_eq!(shown_address(world.host(2), 1), "[fd00::2]:7000");
    assert_eq!(shown_address(world.host(0), 1), "10.0.0.2:7000", "the first, where it can be");
    let explained = world.host(2).ok("halite explain 1");
    assert!(
        explained.contains("packets go from [fd00::3]:") && explained.contains("to [fd00::2]:"),
        "{explained}"
    );
}
