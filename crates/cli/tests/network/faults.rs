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
fn nobody_hears_of_a_cable_that_is_out_for_less_than_a_lease() {
    let Some(cluster) = cluster(3) else { return };
    cluster.put(0, "model", &bytes(100_000), 2);
    let counting = Application::start(cluster.host(1), "count 2");
    cluster.world.unplug(2);
    // What is waited for is that less than a lease goes by.
    std::thread::sleep(Duration::from_secs(1));
    cluster.world.plug(2);
    assert!(cluster.get(1, "model") == bytes(100_000));
    assert!(counting.stop(cluster.host(1)).contains("counted to"));
    assert!(cluster.is_whole(), "{:?}", cluster.states());
}

#[test]
fn a_cable_that_is_out_for_longer_costs_sight_and_nothing_else() {
    let Some(cluster) = cluster(3) else { return };
    for node in 0..3 {
        cluster.put(node, &format!("model-{node}"), &bytes(100_000), node);
    }
    let before = cluster.incarnations();
    cluster.world.unplug(2);
    eventually(|| cluster.host(0).state(2) == "unreachable" && cluster.host(1).state(2) == "unreachable");
    let complaint = cluster.host(1).fails("halite get model-2");
    assert!(complaint.contains("node 2"), "{complaint}");
    cluster.put(0, "new", &bytes(100_000), 1);
    let complaint = cluster.host(2).fails("halite get model-0");
    assert!(complaint.contains("node 0"), "{complaint}");

    cluster.world.plug(2);
    eventually(|| cluster.is_whole());
    for name in ["model-0", "model-1", "model-2", "new"] {
        for host in 0..3 {
            assert!(cluster.get(host, name) == bytes(100_000), "{name}");
        }
    }
    // What passes by is paired with whom it reaches; that the nodes themselves are, a move shows.
    eventually(|| cluster.host(1).run("halite mv model-0 --to 2").status.success());
    eventually(|| cluster.host(1).run("halite mv model-2 --to 1").status.success());
    assert_eq!(cluster.incarnations(), before, "nobody has died");
}

#[test]
fn what_was_on_a_host_that_lost_power_is_missed_until_it_is_put_anew() {
    a_host_loses_power(cluster(3));
}

/// Wherever names are.
pub fn a_host_loses_power(cluster: Option<Cluster>) {
    let Some(mut cluster) = cluster else { return };
    cluster.put(0, "model", &bytes(100_000), 2);
    cluster.put(0, "other", &bytes(100_000), 1);
    cluster.lose_power(2);
    eventually(|| cluster.host(0).state(2) == "unreachable");
    let complaint = cluster.host(1).fails("halite get model");
    assert!(complaint.contains("node 2"), "{complaint}");
    cluster.world.plug(2);
    cluster.restart(2, Some(1));
    eventually(|| cluster.is_whole());
    let complaint = cluster.host(1).fails("halite get model");
    assert!(complaint.contains("node 2 is unreachable since"), "{complaint}");
    assert!(cluster.get(2, "other") == bytes(100_000));
    cluster.put(1, "model", &bytes(50_000), 2);
    assert!(cluster.get(0, "model") == bytes(50_000));
}

#[test]
fn others_go_on_while_node_0_has_no_power_and_names_are_found_again_when_it_is_back() {
    let Some(mut cluster) = cluster(3) else { return };
    cluster.put(0, "model", &bytes(100_000), 2);
    cluster.put(0, "gone", &bytes(100_000), 0);
    let counting = Application::start(cluster.host(1), "count 2");
    cluster.lose_power(0);
    let complaint = cluster.host(1).fails("halite get model");
    assert!(complaint.contains("node 0"), "{complaint}");
    cluster.world.plug(0);
    cluster.restart(0, None);
    eventually(|| cluster.is_whole());
    assert!(cluster.get(0, "model") == bytes(100_000));
    let complaint = cluster.host(1).fails("halite get gone");
    assert!(complaint.contains("there is no such region"), "{complaint}");
    assert!(counting.stop(cluster.host(1)).contains("counted to"));
}

#[test]
#[ignore = "slow: .ci/deep slow"]
fn who_is_cut_off_from_node_0_goes_on_with_whom_it_reaches_and_finds_it_again() {
    let Some(cluster) = cluster(3) else { return };
    for node in 0..3 {
        cluster.put(node, &format!("model-{node}"), &bytes(100_000), node);
    }
    let before = cluster.incarnations();
    let counting = Application::start(cluster.host(1), "count 2");
    cluster.world.unplug(0);
    eventually(|| cluster.host(0).state(1) == "unreachable" && cluster.host(0).state(2) == "unreachable");
    // Names cannot be found without it, nor can anybody join; who has joined goes on.
    let complaint = cluster.host(1).fails("halite get model-2");
    assert!(complaint.contains("no connection to node 0"), "{complaint}");
    cluster.host(1).ok("mkdir -m 700 elsewhere");
    for number in ["--id 7", ""] {
        let line = line(cluster.host(1), 7, Some("10.0.0.3")).replace("--id 7", number);
        let line = line.replace(":7000 --secret", ":7001 --secret");
        let complaint = cluster.host(1).fails(&format!("HALITE_DIR=/tmp/elsewhere {line}"));
        let why = "10.0.0.3:7000 is there, but node 0, which holds the names, is unreachable";
        assert!(complaint.contains(why) && !complaint.contains("has just become"), "{complaint}");
    }
    let complaint = cluster.host(0).fails("halite get model-2");
    assert!(complaint.contains("node 2 is down"), "{complaint}");
    assert!(cluster.get(0, "model-0") == bytes(100_000));

    cluster.world.plug(0);
    eventually(|| cluster.is_whole());
    assert!(counting.stop(cluster.host(1)).contains("counted to"));
    for node in 0..3 {
        assert!(cluster.get(2 - node, &format!("model-{node}")) == bytes(100_000));
    }
    cluster.host(1).ok("halite mv model-1 --to 0");
    cluster.host(2).ok("halite mv model-0 --to 2");
    assert_eq!(cluster.incarnations(), before, "nobody has died");
}

#[test]
fn what_one_direction_loses_for_a_while_arrives_in_the_end() {
    let Some(cluster) = cluster(3) else { return };
    cluster.host(2).drop_arrivals("ip saddr 10.0.0.0/24");
    eventually(|| cluster.host(0).state(2) == "unreachable");
    cluster.host(2).let_all_arrive();
    eventually(|| cluster.is_whole());
    cluster.put(2, "model", &bytes(100_000), 1);
    assert!(cluster.get(0, "model") == bytes(100_000));
}

#[test]
fn half_of_a_cluster_finds_the_other_half_again() {
    let Some(cluster) = cluster(5) else { return };
    for node in 0..5 {
        cluster.put(node, &format!("model-{node}"), &bytes(10_000), node);
    }
    cluster.world.split(3);
    let sees = |host: usize, other: u32, state: &str| cluster.host(host).state(other) == state;
    eventually(|| sees(0, 3, "unreachable") && sees(0, 4, "unreachable") && sees(2, 4, "unreachable"));
    assert!(sees(0, 1, "alive") && sees(1, 2, "alive"));
    assert!(cluster.get(1, "model-2") == bytes(10_000));
    cluster.world.join();
    eventually(|| cluster.is_whole());
    for node in 0..5 {
        assert!(cluster.get(4 - node, &format!("model-{node}")) == bytes(10_000));
    }
}

/// Node 0 on a host, and another host that has its secret.
fn two_hosts() -> Option<(Running, World)> {
    let world = World::new(2, Processes::Shared)?;
    share_secret(&world);
    Some((start(world.host(0), 0, None), world))
}

#[test]
fn who_knows_another_secret_does_not_join() {
    let Some((_first, world)) = two_hosts() else { return };
    world.host(1).ok(&format!("rm {SECRET}; halite secret new {SECRET}"));
    let complaint = world.host(1).fails(&line(world.host(1), 1, Some("10.0.0.1")));
    assert!(complaint.contains("the secret of its cluster is another one"), "{complaint}");
}

/// Its node, which runs, has the former one.  The operator was told to start node 0, which runs, too.
#[test]
fn a_command_on_a_host_with_another_secret_is_told_so() {
    let Some((_first, world)) = two_hosts() else { return };
    let _second = start(world.host(1), 1, Some("10.0.0.1"));
    world.host(1).ok(&format!("rm {SECRET}; halite secret new {SECRET}"));
    let complaint = world.host(1).fails("halite ls");
    for part in ["no connection to node 0", "10.0.0.1:7000", "the secret of its cluster is another one"] {
        assert!(complaint.contains(part), "{complaint}");
    }
}

#[test]
fn a_number_that_a_living_node_has_is_not_given_up() {
    let Some(cluster) = cluster(3) else { return };
    cluster.host(2).ok("mkdir -m 700 elsewhere");
    let again = line(cluster.host(2), 1, Some("10.0.0.1")).replace(":7000 --secret", ":7001 --secret");
    let complaint = cluster.host(2).fails(&format!("HALITE_DIR=/tmp/elsewhere {again}"));
    assert!(complaint.contains("node 1 is already running: process"), "{complaint}");
    assert!(complaint.contains("at 10.0.0.2:7000; choose another number"), "{complaint}");
    assert!(cluster.is_whole(), "{:?}", cluster.states());
}

#[test]
fn a_node_whose_number_another_took_while_it_stood_still_ends_and_says_so() {
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
    assert!(log.contains("another process became node 1, or it was forgotten"), "{log}");
    assert_eq!((cluster.host(0).state(1), successor(0)), ("alive".to_owned(), incarnation));
    cluster.put(2, "model", &bytes(20_000), 1);
    assert!(cluster.get(0, "model") == bytes(20_000));
}

#[test]
fn a_second_node_0_is_told_at_once_by_any_node_it_asks_and_the_first_is_none_the_worse() {
    let Some(cluster) = Cluster::new(3, Processes::Shared) else { return };
    eventually(|| cluster.is_whole());
    cluster.host(2).ok("mkdir -m 700 elsewhere");
    for by in ["10.0.0.1", "10.0.0.2"] {
        let again = line(cluster.host(2), 0, Some(by)).replace(":7000 --secret", ":7001 --secret");
        let complaint = cluster.host(2).fails(&format!("HALITE_DIR=/tmp/elsewhere {again}"));
        assert!(complaint.contains("node 0 is already running: process"), "{complaint}");
        assert!(complaint.contains("at 10.0.0.1:7000; choose another number"), "{complaint}");
    }
    assert!(cluster.is_whole(), "{:?}", cluster.states());
}

#[test]
fn a_node_0_that_has_died_is_started_again_by_any_member() {
    let Some(mut cluster) = cluster(2) else { return };
    cluster.put(0, "model", &bytes(10_000), 1);
    cluster.nodes[0].kill();
    cluster.restart(0, Some(1));
    eventually(|| cluster.is_whole());
    assert!(cluster.get(0, "model") == bytes(10_000));
}

#[test]
fn an_address_that_nobody_reaches_is_told() {
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
fn node_0_founds_a_cluster_and_comes_back_to_it_by_one_configuration_and_founds_none_by_partition() {
    let Some(world) = World::new(3, Processes::Shared) else { return };
    share_secret(&world);
    let all: Vec<String> = world.hosts().iter().map(|host| format!("{}:7000", host.address)).collect();
    // The same on each host, but for its number and address.
    let line = |number: usize| {
        let config = format!("join = '{}'\nfound = true\nsecret_file = '{SECRET}'\n", all.join(","));
        let own = format!("listen = '{}'\narena = '256M'\nnode_id = {number}\n", all[number]);
        world.host(number).write("/tmp/halite.toml", format!("{config}{own}").as_bytes());
        "halite node --config /tmp/halite.toml".to_owned()
    };
    let start = |number: usize| world.host(number).start(&line(number), "ready");
    // Where one of the others is silent, it may be on the other side of a partition.
    world.unplug(2);
    let complaint = world.host(0).fails(&line(0));
    assert!(complaint.contains("no connection to 10.0.0.2:7000"), "{complaint}");
    world.plug(2);
    let mut nodes: Vec<Running> = (0..3).map(start).collect();
    let is_whole = || (0..3).all(|node| world.hosts().iter().all(|host| host.state(node) == "alive"));
    eventually(is_whole);
    world.host(1).write("/tmp/salt", b"salt");
    world.host(1).ok("halite put salt /tmp/salt --node 1");

    nodes[0].kill();
    nodes[0] = start(0);
    // It does not take itself, which is in the list as well, for the others.
    assert_eq!(world.host(0).ok("halite get salt"), "salt", "it has found the others");
    eventually(is_whole);
    // Alone on its side, it founds nothing.
    nodes[0].kill();
    world.unplug(0);
    world.host(0).fails(&line(0));
    world.plug(0);
    nodes[0] = start(0);
    eventually(is_whole);
    assert_eq!(world.host(2).ok("halite get salt"), "salt");
    let line = line(1)
        .replace("--config /tmp/halite.toml", "--secret-file SECRET --listen ALONE --join ALONE --id 5");
    let complaint = world.host(1).fails(&line.replace("SECRET", SECRET).replace("ALONE", "10.0.0.2:7001"));
    assert!(complaint.contains("--join names only this node"), "{complaint}");
}

#[test]
fn a_node_0_that_is_to_join_whom_it_does_not_reach_founds_no_cluster_of_its_own() {
    let Some(cluster) = cluster(2) else { return };
    cluster.host(1).ok("mkdir -m 700 elsewhere");
    // Nobody listens there; nobody is there; and somebody is, behind a cable that is out.
    let on_other = |by: &str| line(cluster.host(1), 0, Some(by)).replace(":7000 --secret", ":7001 --secret");
    for (by, cable_is_out) in [("10.0.0.2:1", false), ("10.0.0.77:7000", false), ("10.0.0.1:7000", true)] {
        if cable_is_out {
            cluster.world.unplug(0);
        }
        let line = on_other("BY").replace("BY:7000", by);
        let complaint = cluster.host(1).fails(&format!("HALITE_DIR=/tmp/elsewhere {line}"));
        assert!(complaint.contains(&format!("no connection to {by}: ")), "{complaint}");
        assert!(complaint.contains("cannot run node 0"), "{complaint}");
    }
    cluster.world.plug(0);
    eventually(|| cluster.is_whole());
}
