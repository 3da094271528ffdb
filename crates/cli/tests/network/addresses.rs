//! Hosts whose addresses change while their nodes run, as by a lease of DHCP that ends, or an interface that is set up anew.

use std::time::{Duration, Instant};

use crate::application::Application;
use crate::cluster::{Cluster, SECRET, share_secret, start_at};
use crate::support::{bytes, eventually};
use crate::world::{Host, Processes, World};

/// A quarter of the lease: the shortest time between two dials of an unreachable node.
const DIALLED_EVERY: Duration = Duration::from_millis(1250);

fn cluster() -> Option<Cluster> {
    let cluster = Cluster::new(3, Processes::Shared)?;
    eventually(|| cluster.is_whole());
    Some(cluster)
}

fn take_away(host: &Host) {
    host.ok(&format!("ip addr del {}/24 dev cable", host.address));
}

fn give_back(host: &Host) {
    host.ok(&format!("ip addr add {}/24 dev cable", host.address));
}

#[test]
fn nobody_hears_of_an_address_that_is_gone_for_less_than_a_lease() {
    let Some(cluster) = cluster() else { return };
    let counting = Application::start(cluster.host(1), "count 2");
    take_away(cluster.host(2));
    // What is waited for is that less than a lease goes by.
    std::thread::sleep(Duration::from_secs(1));
    give_back(cluster.host(2));
    cluster.put(0, "model", &bytes(100_000), 2);
    assert!(cluster.get(1, "model") == bytes(100_000));
    assert!(counting.stop(cluster.host(1)).contains("counted to"));
    assert!(cluster.is_whole(), "{:?}", cluster.states());
}

/// The host of node `of` has no address for so long that nobody sees it any more.
fn an_address_goes_and_comes_back(of: usize) {
    let Some(cluster) = cluster() else { return };
    for node in 0..3 {
        cluster.put(node, &format!("model-{node}"), &bytes(100_000), node);
    }
    let (host, others) = (cluster.host(of), [(of + 1) % 3, (of + 2) % 3]);
    let before = cluster.incarnations();
    // Both ends hear of it, by a word that a program understands.
    let [there, here] = [(others[0], of), (of, others[1])]
        .map(|(at, node)| (Application::start(cluster.host(at), &format!("miss {node}")), node));
    take_away(host);
    for (application, node) in [there, here] {
        let missed = application.missed();
        assert!(missed.contains("missed: PeerDown") && missed.contains(&node.to_string()), "{missed}");
    }
    let missed = format!("halite get model-{of}");
    for other in others {
        let other = cluster.host(other);
        // Names are found by node 0 alone: without that, nobody is asked, and nobody joins.
        if of == 0 {
            eventually(|| complaint(other, &missed).contains("no connection to node 0"));
        } else {
            eventually(|| other.state(of as u32) == "unreachable");
            let complaint = other.fails(&missed);
            assert!(complaint.contains(&format!("node {of} is down")), "{complaint}");
        }
        // On the host itself it is said what is missing.
        let complaint = host.fails(&missed);
        assert!(
            complaint.contains(&format!("no longer has the address that its nodes use: {}", host.address)),
            "{complaint}"
        );
    }
    // Each of the others dials it again and again, at a pace: an attempt says its first word three times at most.
    others.iter().for_each(|other| cluster.host(*other).count_dials("oifname cable"));
    let begin = Instant::now();
    // What is waited for is that nobody but the nodes dials for so long.
    std::thread::sleep(4 * DIALLED_EVERY);
    for other in others {
        let said = u128::from(cluster.host(other).dials());
        let turns = begin.elapsed().as_millis() / DIALLED_EVERY.as_millis() + 1;
        assert!(said <= 3 * turns, "host {other} dials, in {turns} turns: {said} first words");
    }

    give_back(host);
    eventually(|| cluster.is_whole());
    // What passes by is paired with whom it reaches; that the nodes themselves are, moves show.
    for other in others {
        eventually(|| host.run(&format!("halite mv model-{of} --to {other}")).status.success());
        eventually(|| host.run(&format!("halite mv model-{of} --to {of}")).status.success());
    }
    for name in ["model-0", "model-1", "model-2"] {
        for host in 0..3 {
            assert!(cluster.get(host, name) == bytes(100_000), "{name}");
        }
    }
    assert_eq!(cluster.incarnations(), before, "nobody has died");
}

fn complaint(host: &Host, line: &str) -> String {
    String::from_utf8_lossy(&host.run(line).stderr).into_owned()
}

#[test]
fn an_address_that_is_gone_for_longer_costs_sight_and_nothing_else() {
    an_address_goes_and_comes_back(2);
}

#[test]
#[ignore = "slow: .ci/deep slow"]
fn the_address_of_node_0_that_is_gone_for_longer_costs_sight_and_nothing_else() {
    an_address_goes_and_comes_back(0);
}

#[test]
fn a_node_whose_host_has_another_address_for_good_is_restarted_with_that() {
    let Some(mut cluster) = cluster() else { return };
    cluster.put(0, "model", &bytes(100_000), 1);
    let host = cluster.host(2);
    take_away(host);
    host.ok("ip addr add 10.0.0.33/24 dev cable");
    eventually(|| cluster.host(0).state(2) == "unreachable");
    // It can be ended, though it reaches nobody whom it could tell.
    cluster.nodes[2].signal(rustix::process::Signal::INT);
    assert!(cluster.nodes[2].wait().success());
    let host = cluster.host(2);
    cluster.nodes[2] = start_at(host, 2, "10.0.0.33", Some("10.0.0.2"));
    eventually(|| cluster.is_whole());
    assert!(cluster.get(2, "model") == bytes(100_000));
    cluster.host(2).ok("halite mv model --to 2");
    assert!(cluster.get(0, "model") == bytes(100_000));
}

#[test]
fn a_node_with_two_addresses_is_reached_by_the_second_once_the_first_is_gone() {
    let Some(world) = World::new(2, Processes::Shared) else { return };
    share_secret(&world);
    let start = |host: &Host, number: usize, join: &str| {
        let listen = format!("--listen '{}:7000,[{}]:7000'", host.address, host.address_6);
        let line = format!("halite node --id {number} --arena 256M {listen} --secret-file {SECRET} {join}");
        host.start(&line, "ready")
    };
    let _first = start(world.host(0), 0, "");
    let _second = start(world.host(1), 1, "--join 10.0.0.1:7000");
    let is_whole = || world.hosts().iter().all(|host| host.state(0) == "alive" && host.state(1) == "alive");
    eventually(is_whole);
    world.host(0).write("/tmp/salt", b"salt");
    world.host(0).ok("halite put salt /tmp/salt --node 1");
    take_away(world.host(1));
    eventually(|| world.host(0).state(1) == "unreachable");
    eventually(is_whole);
    assert_eq!(world.host(0).ok("halite get salt"), "salt");
    eventually(|| world.host(0).run("halite mv salt --to 0").status.success());
    assert_eq!(world.host(1).ok("halite get salt"), "salt");
}
