//! Clusters of several hosts with names in etcd: the main job, and faults between hosts or between hosts and etcd.

use crate::application::Application;
use crate::cluster::{Cluster, SECRET, share_secret};
use crate::jobs::run_main_job;
use crate::support::{Running, bytes, eventually};
use crate::world::{Host, Processes, World, is_installed};

/// Creates hosts, and an etcd whose address the nodes get. Returns `None` if hosts cannot be created here or etcd is
/// not installed.
pub fn world_with_etcd(hosts: usize, processes: Processes) -> Option<World> {
    let mut world = World::new(hosts, processes)?;
    if !is_installed("etcd") || !is_installed("etcdctl") {
        let is_needed = std::env::var_os("HALITE_NEEDS_ETCD").is_some();
        assert!(!is_needed, "etcd is needed, and is not installed");
        println!("left out: there is no etcd here (`apt-get install etcd-server etcd-client`)");
        return None;
    }
    world.start_etcd();
    Some(world)
}

fn with_etcd(hosts: usize, processes: Processes) -> Option<Cluster> {
    world_with_etcd(hosts, processes).map(Cluster::on)
}

fn cluster(hosts: usize) -> Option<Cluster> {
    let cluster = with_etcd(hosts, Processes::Shared)?;
    eventually(|| cluster.is_whole());
    Some(cluster)
}

/// Returns true if a command on a host can create a region on the node of that host.
fn put(cluster: &Cluster, host: usize, name: &str) -> bool {
    cluster.host(host).write("/tmp/words", b"words");
    cluster.host(host).run(&format!("halite put {name} /tmp/words --node {host}")).status.success()
}

#[test]
fn main_job_works_with_etcd() {
    run_main_job(with_etcd(3, Processes::Shared));
}

/// All hosts start with the same command line, as from a supervisor; it contains no host and no number.
#[test]
fn one_of_many_hosts_founds_the_cluster() {
    let Some(world) = world_with_etcd(3, Processes::Shared) else { return };
    share_secret(&world);
    let start = |host: &Host| {
        let listen = format!("--listen {}:7000 --secret-file {SECRET}", host.address);
        host.start(&format!("halite node {listen} --arena 64M"), "ready")
    };
    std::thread::scope(|scope| {
        // A node dies with the thread that started it.
        let starting = world.hosts().iter().map(|host| {
            let (ready, is_ready) = std::sync::mpsc::channel();
            let (lives, is_over) = std::sync::mpsc::channel::<()>();
            scope.spawn(move || {
                let _node = start(host);
                ready.send(()).unwrap();
                let _ = is_over.recv();
            });
            (is_ready, lives)
        });
        let nodes: Vec<_> = starting.collect();
        nodes.iter().for_each(|(is_ready, _)| is_ready.recv().unwrap());
        eventually(|| world.are_alive(3));
    });
}

/// Both nodes are started as node 0: without etcd's decision they would found two clusters, which end each other's
/// incarnations once they connect.
#[test]
fn one_of_two_nodes_0_founds_the_cluster() {
    let Some(world) = world_with_etcd(2, Processes::Shared) else { return };
    share_secret(&world);
    let start = |host: &Host| {
        let line = format!("--id 0 --listen {}:7000 --secret-file {SECRET} --arena 64M", host.address);
        Running::of(host.command(&format!("exec halite node {line} 2>&1")))
    };
    let joined = |line: &String| line.contains("node 0 has joined");
    // A node may first report that the other one has connected.
    let outcome = |node: &mut Running| {
        std::iter::repeat_with(|| node.line()).find(|line| joined(line) || !line.contains(" INFO "))
    };
    let outcomes = [0, 1].map(|host| start(world.host(host))).each_mut().map(outcome).map(Option::unwrap);
    let first = outcomes.iter().position(joined).unwrap_or_else(|| panic!("{outcomes:?}"));
    let other = &outcomes[1 - first];
    let names_first =
        other.contains("cannot join") && other.contains(&format!("{}:7000", world.host(first).address));
    assert!(names_first, "{outcomes:?}");
}

#[test]
fn names_in_etcd_work_without_node_0() {
    let Some(mut cluster) = cluster(3) else { return };
    cluster.put(0, "model", &bytes(100_000), 2);
    cluster.put(0, "gone", &bytes(100_000), 0);
    let counting = Application::start(cluster.host(1), "count 2");
    cluster.lose_power(0);
    // A node that joins while node 0 is down gets no information about it.
    eventually(|| ["unreachable", "unknown"].contains(&&*cluster.host(1).state(0)));
    assert!(cluster.get(1, "model") == bytes(100_000));
    assert!(put(&cluster, 2, "new"), "names do without node 0");
    cluster.host(1).fails_with("halite get gone", "node 0");
    cluster.world.plug(0);
    cluster.restart(0, Some(1));
    eventually(|| cluster.is_whole());
    assert!(cluster.get(0, "model") == bytes(100_000));
    cluster.host(0).fails_with("halite get gone", "lost with node 0 (unreachable since");
    assert!(counting.stop(cluster.host(1)).contains("counted to"));
}

#[test]
fn names_move_back_to_node_0_between_hosts() {
    let Some(mut cluster) = cluster(2) else { return };
    cluster.put(0, "there", &bytes(100_000), 1);
    cluster.put(1, "here", &bytes(10_000), 0);
    let text = cluster.host(1).ok("halite directory back");
    assert!(text.starts_with("moved 2 names to node 0"), "{text}");
    (0..2).for_each(|host| cluster.host(host).drop_packets_of_etcd());
    for host in [0, 1] {
        assert!(cluster.get(host, "there") == bytes(100_000) && cluster.get(host, "here") == bytes(10_000));
        assert!(put(&cluster, host, &format!("new-{host}")));
    }
    cluster.world.unset_etcd();
    cluster.nodes[1].kill();
    cluster.restart(1, Some(0));
    eventually(|| cluster.is_whole());
    assert_eq!(cluster.host(1).ok("halite directory show"), "names are at node 0\n");
    assert!(cluster.get(1, "here") == bytes(10_000) && put(&cluster, 1, "newer"));
}

/// All hosts reach each other, and two of four cannot reach etcd.
#[test]
#[ignore = "slow: .ci/deep slow"]
fn nodes_without_etcd_refuse_only_new_names() {
    let Some(cluster) = cluster(4) else { return };
    for node in 0..4 {
        cluster.put(node, &format!("model-{node}"), &bytes(10_000), node);
    }
    let counting = [0, 3].map(|host| Application::start(cluster.host(host), "count 1"));
    for host in [0, 1] {
        cluster.host(host).drop_packets_of_etcd();
    }
    for host in [0, 1] {
        cluster.host(host).fails_with("halite get model-3", "etcd");
    }
    for host in [2, 3] {
        assert!(cluster.get(host, "model-0") == bytes(10_000), "a home that does not reach etcd answers");
        assert!(put(&cluster, host, &format!("new-{host}")));
    }
    // No node can join through a host that does not reach etcd, not even a command that lists the members; other hosts
    // see that its node is alive.
    let states = cluster.states().split_off(2);
    assert!(states.iter().flatten().all(|state| state == "alive"), "{states:?}");
    for host in [0, 1] {
        cluster.host(host).drop_no_packets();
    }
    for host in [0, 1] {
        eventually(|| put(&cluster, host, &format!("late-{host}")));
        assert!(cluster.get(host, "model-3") == bytes(10_000) && cluster.get(host, "new-2") == b"words");
    }
    for (counting, host) in counting.into_iter().zip([0, 3]) {
        assert!(
            counting.stop(cluster.host(host)).contains("counted to"),
            "accesses to mapped regions continue"
        );
    }
}

/// Without the check, the cluster would take the other's nodes for earlier incarnations of its own.
#[test]
fn cluster_with_another_secret_is_refused() {
    let Some(world) = world_with_etcd(2, Processes::Own) else { return };
    world.hosts().iter().for_each(|host| drop(host.ok("halite secret new /tmp/secret")));
    let line = |host: &str| format!("halite node --arena 64M --listen {host}:7000 --secret-file /tmp/secret");
    let _first = world.host(0).start(&line("10.0.0.1"), "ready");
    eventually(|| !world.etcdctl("get --prefix /names/members/").is_empty());
    for number in ["", " --id 0", " --id 1"] {
        let complaint = world.host(1).fails(&(line("10.0.0.2") + number));
        assert!(
            complaint.contains("the cluster of the other end has another secret"),
            "{number}: {complaint}"
        );
    }
    assert_eq!(world.host(0).state(0), "alive");
}
