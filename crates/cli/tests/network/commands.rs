//! What commands say of hosts other than their own, what they do to those, which is nothing, and what it costs where some are dead.

use std::ops::Range;

use crate::cluster::{Cluster, SECRET, line};
use crate::support::{bytes, eventually};
use crate::world::{Processes, World};

/// Hosts that see each other's processes, so that a number of a process of another host means that one here, as it may mean any other.
#[test]
fn down_ends_the_nodes_of_its_own_host_and_tells_how_many_stay_on_others() {
    let Some(mut cluster) = Cluster::new(3, Processes::Shared) else { return };
    eventually(|| cluster.is_whole());
    let pid = cluster.nodes[0].pid();
    let output = cluster.host(0).run("halite down");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), format!("node 0 (process {pid}) stopped\n"));
    assert_eq!(told, "halite: 2 nodes on other hosts stay: `halite down` there ends them\n");
    assert!(cluster.nodes[0].wait().success());
    let is_there = |host: usize| cluster.host(host).ok(&format!("kill -0 {}", cluster.nodes[host].pid()));
    (1..3).for_each(|host| drop(is_there(host)));
}

#[test]
fn of_a_node_that_has_moved_to_another_host_status_tells_what_it_is_there_and_nothing_of_what_it_was() {
    let Some(mut cluster) = Cluster::new(3, Processes::Shared) else { return };
    // Its host goes on with another node, and keeps the file of the one that was killed.
    let host = cluster.host(0);
    let beside = line(host, 7, Some("10.0.0.2")).replace(":7000 --secret", ":7007 --secret");
    let _beside = host.start(&beside, "ready");
    cluster.nodes[0].kill();
    // Nobody takes its number from it as long as it is in sight.
    eventually(|| (1..3).all(|host| cluster.host(host).state(0) != "alive"));
    let host = cluster.host(2);
    let _moved =
        host.start(&line(host, 0, Some("10.0.0.2")).replace(":7000 --secret", ":7007 --secret"), "ready");
    let row = |host: usize| {
        let rows = cluster.host(host).nodes();
        rows.into_iter().find(|row| row["node"] == 0).expect("it is known")
    };
    eventually(|| (0..3).all(|host| row(host)["state"] == "alive"));
    let (here, there) = (row(0), row(1));
    for what in ["pid", "incarnation", "address", "bytes_total"] {
        assert_eq!(here[what], there[what], "{what}: {here} {there}");
    }
    assert_eq!(here["address"], "10.0.0.3:7007");
    assert!([here, there].iter().all(|row| row["here"] == false));
    assert_eq!(row(2)["here"], true);
}

/// Node 0 keeps the list of members, and loses power like any other host.
#[test]
fn without_node_0_status_shows_whom_the_node_of_its_host_knows_and_nobody_is_forgotten() {
    let Some(mut cluster) = Cluster::new(4, Processes::Shared) else { return };
    eventually(|| cluster.is_whole());
    cluster.lose_power(3);
    eventually(|| cluster.host(1).state(3) == "unreachable");
    cluster.lose_power(0);
    // It is in sight for a lease; all the while others are shown.
    eventually(|| cluster.host(1).state(0) == "unreachable");
    let output = cluster.host(1).run("halite status --json");
    assert_eq!(output.status.code(), Some(3));
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(told, "halite: node 0 is out of reach: showing what node 1 says of others\n");
    let rows = cluster.host(1).nodes();
    let states: Vec<&str> = rows.iter().map(|row| row["state"].as_str().unwrap()).collect();
    assert_eq!(states, ["unreachable", "alive", "unconnected", "unreachable"], "{rows:?}");
    for row in [&rows[0], &rows[3]] {
        assert_eq!(row["lost"]["cause"], "unreachable", "{row}");
    }
    assert_eq!(rows[2]["pid"], cluster.nodes[2].pid(), "{rows:?}");
    let complaint = cluster.host(1).fails("halite forget 3");
    assert!(complaint.contains("cannot forget node 3: "), "{complaint}");
    assert!(complaint.contains("where it does not run any more, `halite node --id 0 "), "{complaint}");
}

/// Where names do not depend on node 0, forgetting does not either.
#[test]
#[ignore = "slow: .ci/deep slow"]
fn with_names_in_etcd_a_dead_node_is_forgotten_without_node_0() {
    let Some(mut world) = World::new(4, Processes::Shared) else { return };
    world.keep_names_in_etcd();
    let mut cluster = Cluster::on(world);
    eventually(|| cluster.is_whole());
    cluster.put(1, "lost", &bytes(1000), 3);
    cluster.lose_power(3);
    cluster.lose_power(0);
    eventually(|| [0, 3].iter().all(|node| cluster.host(1).state(*node) == "unreachable"));
    eventually(|| [0, 3].iter().all(|node| cluster.host(2).state(*node) == "unreachable"));
    cluster.host(1).ok("halite forget 3");
    for host in [1, 2] {
        // What it said of where it is stands in etcd for 15 s after its end.
        eventually(|| cluster.host(host).state(3) == "unknown");
        assert_eq!(cluster.host(host).state(0), "unreachable", "as host {host} sees it");
    }
    let complaint = cluster.host(2).fails("halite forget 3");
    assert!(complaint.contains("node 3 is not in the cluster"), "{complaint}");
    let complaint = cluster.host(2).fails("halite forget 1");
    assert!(complaint.contains("node 1 is alive; only a dead node can be forgotten"), "{complaint}");
    assert_eq!(cluster.host(2).ok("halite ls --json"), "");
    cluster.put(2, "lost", &bytes(1000), 1);
    // Node 0, which was not there, hears of it.
    cluster.world.plug(0);
    cluster.restart(0, Some(1));
    eventually(|| (0..3).all(|host| cluster.host(host).state(0) == "alive"));
    (0..3).for_each(|host| assert_eq!(cluster.host(host).state(3), "unknown", "as host {host} sees it"));
}

/// Of these members, which join on host 2 and have numbers from 100 on, it is known soon that they are out of reach.
pub fn lose_members(cluster: &Cluster, members: Range<usize>) {
    let host = cluster.host(2);
    let start = |member: usize| {
        let (dir, listen) = (format!("/tmp/member-{member}"), format!("10.0.0.3:{}", DEAD_PORTS + member));
        let line = format!("halite node --dir {dir} --id {} --arena 16M --listen {listen}", 100 + member);
        host.start(&format!("{line} --secret-file {SECRET} --join 10.0.0.3:7000"), "ready")
    };
    let lost: Vec<_> = members.clone().map(start).collect();
    drop(lost);
    eventually(|| {
        let rows = cluster.host(1).nodes();
        let state =
            |member: usize| rows.iter().find(|row| row["node"] == 100 + member).map(|row| &row["state"]);
        members.clone().all(|member| state(member).is_some_and(|state| state == "unreachable"))
    });
}

/// Where members listen that are dead.
const DEAD_PORTS: usize = 7100;

/// How often it asks is told in virtual time (`tests/joining.rs` of `tier`).
#[test]
fn a_command_dials_as_many_members_whatever_the_number_of_dead_ones() {
    let Some(cluster) = Cluster::new(3, Processes::Shared) else { return };
    eventually(|| cluster.is_whole());
    let host = cluster.host(1);
    host.count_dials("tcp dport 7000");
    let mut dead = 0;
    for count in [0, 5, 20] {
        lose_members(&cluster, dead..count);
        dead = count;
        let before = host.dials();
        (0..COMMANDS).for_each(|_| drop(host.ok("halite ls")));
        let dialled = (host.dials() - before) as usize;
        // Node 0, and node 2 when it is told of that.
        assert!((COMMANDS..=2 * COMMANDS).contains(&dialled), "{dialled} beside {dead} dead members");
    }
}

/// How many commands are looked at.
const COMMANDS: usize = 5;
