//! The main job, over links without faults and over links that lose datagrams.

use crate::application::Application;
use crate::cluster::Cluster;
use crate::support::{bytes, eventually};
use crate::world::{Processes, World};

/// Runs the main job on `cluster`, if there is one: files, locks and calls between hosts.
pub fn run_main_job(cluster: Option<Cluster>) {
    let Some(cluster) = cluster else { return };
    let last = cluster.nodes.len() - 1;
    eventually(|| cluster.is_whole());
    let nodes = cluster.host(0).nodes();
    assert_eq!(
        (&nodes[1]["address"], &nodes[last]["pid"].is_u64()),
        (&"10.0.0.2:7000".into(), &true),
        "{nodes:?}"
    );
    // Retransmitted packets give no round-trip time.
    eventually(|| {
        let row = &cluster.host(0).nodes()[1];
        row["round_trip_us"].as_f64() > Some(0.0) && row["heard_ms_ago"].is_u64()
    });
    cluster.put(0, "model", &bytes(1_000_000), last);
    assert!(cluster.get(1, "model") == bytes(1_000_000));
    cluster.host(1).ok("halite mv model --to 1");
    assert!(cluster.get(last, "model") == bytes(1_000_000));
    let explained = cluster.host(last).ok("halite explain model");
    assert!(explained.contains("node 1: 1000032 bytes in 1 piece"), "{explained}");

    let explained = cluster.host(last).ok("halite explain 1");
    assert!(explained.contains("provider roce") && explained.contains("directory"), "{explained}");
    let explained = cluster.host(last).ok("halite --embed explain 1 --congestion delay");
    assert!(explained.contains("congestion control: delay"), "{explained}");
    let explained = cluster.host(1).ok("halite --embed explain model");
    assert!(
        explained.contains("over shm: direct"),
        "commands share memory with the node of their host: {explained}"
    );

    // Applications on two hosts, with automatically assigned numbers.
    let server = Application::start(cluster.host(1), "serve");
    let shouted = cluster.host(last).ok(&Application::line(&format!("call {}", server.node())));
    assert!(shouted.contains("SALT"), "{shouted}");
    let mut holder = Application::start(cluster.host(1), "lock");
    let refused = cluster.host(last).ok(&Application::line("try-lock"));
    assert!(refused.contains("it is held"), "{refused}");
    holder.end();
    let taken = cluster.host(last).ok(&Application::line("lock-once"));
    assert!(taken.contains("it is ours"), "{taken}");
}

#[test]
fn main_job_works_with_packet_loss() {
    let Some(world) = World::new(3, Processes::Shared) else { return };
    world.drop_some_packets(30);
    run_main_job(Some(Cluster::on(world)));
}

#[test]
fn main_job_works_between_pid_namespaces() {
    run_main_job(Cluster::new(5, Processes::Own));
}
