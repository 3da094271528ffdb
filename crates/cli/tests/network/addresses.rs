//! Hosts whose addresses change while their nodes run: a DHCP lease ends, or an interface is configured again.

use crate::application::Application;
use crate::cluster::{Cluster, SECRET, share_secret, start_with_two_addresses};
use crate::support::{bytes, eventually};
use crate::world::{Host, Processes, World};

fn remove_address(host: &Host) {
    host.ok(&format!("ip addr del {}/24 dev cable", host.address));
}

#[test]
fn lost_address_makes_a_node_unreachable_only() {
    let Some(cluster) = Cluster::new(3, Processes::Shared) else { return };
    eventually(|| cluster.is_whole());
    for node in 0..3 {
        cluster.put(node, &format!("model-{node}"), &bytes(100_000), node);
    }
    let host = cluster.host(2);
    let before = cluster.incarnations();
    // Both ends report an error that a program can recognize.
    let [there, here] = [(0, 2), (2, 1)]
        .map(|(at, node)| (Application::start(cluster.host(at), &format!("miss {node}")), node));
    remove_address(host);
    for (application, node) in [there, here] {
        let missed = application.wait_for_error();
        assert!(missed.contains("missed: LinkLost") && missed.contains(&node.to_string()), "{missed}");
    }
    for other in [0, 1].map(|other| cluster.host(other)) {
        eventually(|| other.state(2) == "unreachable");
        let complaint = other.fails("halite get model-2");
        assert!(complaint.contains("node 2 is not connected"), "{complaint}");
        assert!(complaint.contains("nothing was done"), "{complaint}");
    }
    let complaint = host.fails("halite get model-2");
    let expected = format!("lost the address that its nodes use: {}", host.address);
    assert!(complaint.contains(&expected), "{complaint}");

    host.ok(&format!("ip addr add {}/24 dev cable", host.address));
    eventually(|| cluster.is_whole());
    // Each command starts a node of its own, which pairs with the nodes that it uses; a move shows that the nodes
    // themselves are paired.
    eventually(|| host.run("halite mv model-2 --to 1").status.success());
    for name in ["model-0", "model-1", "model-2"] {
        assert!(cluster.get(0, name) == bytes(100_000), "{name}");
    }
    assert_eq!(cluster.incarnations(), before, "no node has died");
}

#[test]
fn second_address_replaces_the_first() {
    let Some(world) = World::new(2, Processes::Shared) else { return };
    share_secret(&world);
    let _first = start_with_two_addresses(world.host(0), 0, "");
    let flags = "--join 10.0.0.1:7000 --metrics 127.0.0.1:9464";
    let _second = start_with_two_addresses(world.host(1), 1, flags);
    let is_whole = || world.are_alive(2);
    eventually(is_whole);
    world.host(0).write("/tmp/salt", b"salt");
    world.host(0).ok("halite put salt /tmp/salt --node 1");
    remove_address(world.host(1));
    eventually(|| world.host(0).state(1) == "unreachable");
    eventually(is_whole);
    assert_eq!(world.host(0).ok("halite get salt"), "salt");
    eventually(|| world.host(0).run("halite mv salt --to 0").status.success());
    assert_eq!(world.host(1).ok("halite get salt"), "salt");
}

/// Starts two nodes that listen at these addresses; the second joins at `join`. Checks that the addresses are shown as
/// `shown`, that the doctor finds the way, and that both hold regions.
fn check_hosts_meet(world: &World, listen: [String; 2], join: &str, shown: [String; 2]) {
    share_secret(world);
    let start = |number: usize, join: &str| {
        let flags = format!("--listen '{}' --secret-file {SECRET} {join}", listen[number]);
        let line = format!("halite node --id {number} --arena 64M {flags}");
        world.host(number).start(&line, &format!("dialled at {}\n", shown[number]))
    };
    let examine = |flags: &str| {
        let doctor = format!("halite doctor --json --secret-file {SECRET} --join '{join}' {flags}");
        let text = String::from_utf8(world.host(1).run(&doctor).stdout).unwrap();
        let passes = "packets (UDP) pass in both directions, with up to";
        assert!(text.contains(passes) && text.contains("\"mtu\""), "{doctor}: {text}");
    };
    let _first = start(0, "");
    // Without --listen, the doctor chooses the address that the route has.
    examine("");
    let _second = start(1, &format!("--join '{join}'"));
    examine(&format!("--listen '{}'", listen[1]));
    for host in world.hosts() {
        eventually(|| host.nodes().iter().zip(&shown).all(|(row, shown)| row["address"] == shown.as_str()));
    }
    eventually(|| world.are_alive(2));
    for (at, there) in [(0, 1), (1, 0)] {
        let host = world.host(at);
        host.write("/tmp/file", &bytes(300_000));
        host.ok(&format!("halite put from-{at} /tmp/file --node {there}"));
        assert!(world.host(there).run(&format!("halite get from-{at}")).stdout == bytes(300_000));
    }
}

#[test]
fn link_local_addresses_work() {
    let Some(world) = World::new(2, Processes::Shared) else { return };
    for (number, host) in world.hosts().iter().enumerate() {
        host.ok(&format!("ip addr add fe80::a{number}/64 dev cable nodad"));
    }
    let index = world.host(1).ok("ip -o link show cable | cut -d: -f1");
    let listen = [0, 1].map(|number| format!("[fe80::a{number}%cable]:7000"));
    check_hosts_meet(&world, listen.clone(), &format!("[fe80::a0%{}]:7000", index.trim()), listen);
}

#[test]
fn mapped_ipv4_addresses_work() {
    let Some(world) = World::new(2, Processes::Shared) else { return };
    let listen = [0, 1].map(|number| format!("[::ffff:{}]:7000", world.host(number).address));
    let shown = [0, 1].map(|number| format!("{}:7000", world.host(number).address));
    check_hosts_meet(&world, listen, &shown[0], shown.clone());
}
