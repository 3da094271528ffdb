//! Links and hosts that fail, and nodes that may not or cannot join.

use std::time::Duration;

use rustix::process::Signal;

use crate::application::Application;
use crate::cluster::{Cluster, SECRET, line, share_secret, start};
use crate::support::{Running, bytes, eventually};
use crate::world::{Processes, World};

fn cluster(hosts: usize) -> Option<Cluster> {
    let cluster = Cluster::new(hosts, Processes::Shared)?;
    eventually(|| cluster.is_whole());
    Some(cluster)
}

#[test]
fn outage_below_a_lease_has_no_effect() {
    let Some(cluster) = cluster(3) else { return };
    cluster.put(0, "model", &bytes(100_000), 2);
    let counting = Application::start(cluster.host(1), "count 2");
    cluster.world.unplug(2);
    // The test must wait for less than a lease here.
    std::thread::sleep(Duration::from_secs(1));
    cluster.world.plug(2);
    assert!(cluster.get(1, "model") == bytes(100_000));
    assert!(counting.stop(cluster.host(1)).contains("counted to"));
    assert!(cluster.is_whole(), "{:?}", cluster.states());
}

#[test]
fn longer_outage_makes_a_node_unreachable_only() {
    let Some(cluster) = cluster(3) else { return };
    for node in 0..3 {
        cluster.put(node, &format!("model-{node}"), &bytes(100_000), node);
    }
    let before = cluster.incarnations();
    cluster.world.unplug(2);
    eventually(|| cluster.host(0).state(2) == "unreachable" && cluster.host(1).state(2) == "unreachable");
    cluster.host(1).fails_with("halite get model-2", "node 2");
    cluster.put(0, "new", &bytes(100_000), 1);
    cluster.host(2).fails_with("halite get model-0", "node 0");

    cluster.world.plug(2);
    eventually(|| cluster.is_whole());
    for name in ["model-0", "model-1", "model-2", "new"] {
        for host in 0..3 {
            assert!(cluster.get(host, name) == bytes(100_000), "{name}");
        }
    }
    // A command pairs with the nodes that it uses; a move shows that the nodes themselves are paired.
    eventually(|| cluster.host(1).run("halite mv model-0 --to 2").status.success());
    eventually(|| cluster.host(1).run("halite mv model-2 --to 1").status.success());
    assert_eq!(cluster.incarnations(), before, "no node has died");
}

#[test]
fn regions_of_a_host_without_power_are_lost() {
    let Some(mut cluster) = cluster(3) else { return };
    cluster.put(0, "model", &bytes(100_000), 2);
    cluster.put(0, "other", &bytes(100_000), 1);
    cluster.lose_power(2);
    eventually(|| cluster.host(0).state(2) == "unreachable");
    cluster.host(1).fails_with("halite get model", "node 2");
    cluster.world.plug(2);
    cluster.restart(2, Some(1));
    eventually(|| cluster.is_whole());
    cluster.host(1).fails_with("halite get model", "lost with node 2 (unreachable since");
    assert!(cluster.get(2, "other") == bytes(100_000));
    cluster.put(1, "model", &bytes(50_000), 2);
    assert!(cluster.get(0, "model") == bytes(50_000));
}

#[test]
fn hosts_work_while_node_0_has_no_power() {
    let Some(mut cluster) = cluster(3) else { return };
    cluster.put(0, "model", &bytes(100_000), 2);
    cluster.put(0, "gone", &bytes(100_000), 0);
    let counting = Application::start(cluster.host(1), "count 2");
    cluster.lose_power(0);
    cluster.host(1).fails_with("halite get model", "node 0");
    cluster.world.plug(0);
    cluster.restart(0, None);
    eventually(|| cluster.is_whole());
    assert!(cluster.get(0, "model") == bytes(100_000));
    cluster.host(1).fails_with("halite get gone", "there is no such region");
    assert!(counting.stop(cluster.host(1)).contains("counted to"));
}

#[test]
fn one_way_link_failure_recovers() {
    let Some(cluster) = cluster(3) else { return };
    cluster.host(2).drop_packets("ip saddr 10.0.0.0/24");
    eventually(|| cluster.host(0).state(2) == "unreachable");
    cluster.host(2).drop_no_packets();
    eventually(|| cluster.is_whole());
    cluster.put(2, "model", &bytes(100_000), 1);
    assert!(cluster.get(0, "model") == bytes(100_000));
}

/// Node 0 on a host, and another host that has node 0's secret.
fn two_hosts() -> Option<(Running, World)> {
    let world = World::new(2, Processes::Shared)?;
    share_secret(&world);
    Some((start(world.host(0), 0, None), world))
}

#[test]
fn number_of_a_running_node_is_refused() {
    let Some(cluster) = cluster(3) else { return };
    cluster.host(2).ok("mkdir -m 700 elsewhere");
    let again = line(cluster.host(2), 1, Some("10.0.0.1")).replace(":7000 --secret", ":7001 --secret");
    let complaint = cluster.host(2).fails(&format!("HALITE_DIR=/tmp/elsewhere {again}"));
    assert!(complaint.contains("node 1 is already running: process"), "{complaint}");
    assert!(complaint.contains("at 10.0.0.2:7000; choose another number"), "{complaint}");
    assert!(cluster.is_whole(), "{:?}", cluster.states());
}

#[test]
fn replaced_node_ends_with_the_reason() {
    let Some(mut cluster) = cluster(3) else { return };
    cluster.put(0, "model", &bytes(10_000), 1);
    let line = line(cluster.host(1), 1, Some("10.0.0.1"));
    cluster.nodes[1].kill();
    let mut former = cluster.host(1).start(&format!("{line} 2>/tmp/log"), "ready");
    eventually(|| cluster.is_whole());
    former.signal(Signal::STOP);
    eventually(|| [0, 2].iter().all(|host| cluster.host(*host).state(1) == "unreachable"));
    cluster.host(2).ok("mkdir -m 700 elsewhere");
    let elsewhere = line.replace("10.0.0.2:7000", "10.0.0.3:7001");
    let _successor = cluster.host(2).start(&format!("env HALITE_DIR=/tmp/elsewhere {elsewhere}"), "ready");
    let successor = |host: usize| cluster.host(host).nodes()[1]["incarnation"].clone();
    eventually(|| cluster.host(0).state(1) == "alive");
    let incarnation = successor(0);

    former.signal(Signal::CONT);
    assert_eq!(former.wait().code(), Some(1));
    let log = String::from_utf8(cluster.host(1).read("/tmp/log")).unwrap();
    assert!(log.contains("another process became node 1, or a user removed it (`halite forget`)"), "{log}");
    assert_eq!((cluster.host(0).state(1), successor(0)), ("alive".to_owned(), incarnation));
    cluster.put(2, "model", &bytes(20_000), 1);
    assert!(cluster.get(0, "model") == bytes(20_000));
}

#[test]
fn unreachable_address_is_reported() {
    let Some((_first, world)) = two_hosts() else { return };
    let join = |address: &str, to: &str| {
        let flags = format!("--listen {address} --secret-file {SECRET} --join {to}:7000");
        world.host(1).fails(&format!("halite node --id 1 --arena 64M {flags}"))
    };
    let complaint = join("127.0.0.1:7000", "10.0.0.1");
    assert!(complaint.contains("cannot send packets to 127.0.0.1"), "{complaint}");
    let complaint = join("10.0.0.99:7000", "10.0.0.1");
    assert!(
        complaint.contains("no other host can dial 10.0.0.99: Cannot assign requested address"),
        "{complaint}"
    );
    let complaint = join("10.0.0.2:7000", "10.0.0.77");
    assert!(complaint.contains("10.0.0.77:7000"), "{complaint}");
}

#[test]
#[ignore = "slow: .ci/deep slow"]
fn node_0_founds_no_cluster_in_a_partition() {
    let Some(world) = World::new(3, Processes::Shared) else { return };
    share_secret(&world);
    let all: Vec<String> = world.hosts().iter().map(|host| format!("{}:7000", host.address)).collect();
    // The configuration is the same on each host, except for number and address.
    let line = |number: usize| {
        let config = format!("join = '{}'\nfound = true\nsecret_file = '{SECRET}'\n", all.join(","));
        let own = format!("listen = '{}'\narena = '256M'\nnode_id = {number}\n", all[number]);
        world.host(number).write("/tmp/halite.toml", format!("{config}{own}").as_bytes());
        "halite node --config /tmp/halite.toml".to_owned()
    };
    let start = |number: usize| world.host(number).start(&line(number), "ready");
    // A host that does not answer may be on the other side of a partition.
    world.unplug(2);
    world.host(0).fails_with(&line(0), "no connection to 10.0.0.2:7000");
    world.plug(2);
    let mut nodes: Vec<Running> = (0..3).map(start).collect();
    let is_whole = || world.are_alive(3);
    eventually(is_whole);
    world.host(1).write("/tmp/salt", b"salt");
    world.host(1).ok("halite put salt /tmp/salt --node 1");

    nodes[0].kill();
    nodes[0] = start(0);
    // Node 0 is in its own list too, and does not count itself as another node.
    assert_eq!(world.host(0).ok("halite get salt"), "salt", "node 0 has found the others");
    eventually(is_whole);
    // Alone on its side of a partition, node 0 does not found a cluster.
    nodes[0].kill();
    world.unplug(0);
    world.host(0).fails(&line(0));
    world.plug(0);
    nodes[0] = start(0);
    eventually(is_whole);
    assert_eq!(world.host(2).ok("halite get salt"), "salt");
    let line = line(1)
        .replace("--config /tmp/halite.toml", "--secret-file SECRET --listen ALONE --join ALONE --id 5");
    world.host(1).fails_with(
        &line.replace("SECRET", SECRET).replace("ALONE", "10.0.0.2:7001"),
        "--join names only this node",
    );
}
