//! Output of commands about nodes on other hosts. Commands change nothing on other hosts.

use crate::cluster::Cluster;
use crate::support::eventually;
use crate::world::Processes;

/// Hosts that see each other's processes: a pid of a process on another host may be that of any process here.
#[test]
fn down_stops_only_nodes_of_its_host() {
    let Some(mut cluster) = Cluster::new(3, Processes::Shared) else { return };
    eventually(|| cluster.is_whole());
    let pid = cluster.nodes[0].pid();
    let output = cluster.host(0).run("halite down");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), format!("node 0 (process {pid}) stopped\n"));
    assert_eq!(
        text,
        "halite: 2 nodes on other hosts keep running: `halite down` on those hosts stops them\n"
    );
    assert!(cluster.nodes[0].wait().success());
    let is_there = |host: usize| cluster.host(host).ok(&format!("kill -0 {}", cluster.nodes[host].pid()));
    (1..3).for_each(|host| drop(is_there(host)));
}

/// Node 0 holds the list of members, and loses power here.
#[test]
fn forget_needs_node_0_and_status_does_not() {
    let Some(mut cluster) = Cluster::new(4, Processes::Shared) else { return };
    eventually(|| cluster.is_whole());
    cluster.lose_power(3);
    eventually(|| cluster.host(1).state(3) == "unreachable");
    cluster.lose_power(0);
    // Node 0 counts as reachable for a lease; the other nodes are shown during all that time.
    eventually(|| cluster.host(1).state(0) == "unreachable");
    let output = cluster.host(1).run("halite status --json");
    assert_eq!(output.status.code(), Some(3));
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(text, "halite: node 0 is unreachable: showing the report of node 1\n");
    let rows = cluster.host(1).nodes();
    let states: Vec<&str> = rows.iter().map(|row| row["state"].as_str().unwrap()).collect();
    assert_eq!(states, ["unreachable", "alive", "unconnected", "unreachable"], "{rows:?}");
    for row in [&rows[0], &rows[3]] {
        assert_eq!(row["lost"]["cause"], "unreachable", "{row}");
    }
    assert_eq!(rows[2]["pid"], cluster.nodes[2].pid(), "{rows:?}");
    let complaint = cluster.host(1).fails("halite forget 3");
    assert!(complaint.contains("cannot forget node 3: "), "{complaint}");
    assert!(complaint.contains("if node 0 has ended, `halite node --id 0 "), "{complaint}");
}
