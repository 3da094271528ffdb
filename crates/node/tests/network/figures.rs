//! What joining, failures and copies between hosts cost.  Measured on demand, since it asserts nothing about time:
//!
//! ```text
//! cargo test --release -p halite-node --test network -- --ignored --nocapture figures
//! ```

use std::time::{Duration, Instant};

use crate::application::Application;
use crate::cluster::Cluster;
use crate::support::{Running, bytes, eventually};
use crate::world::Processes;

const ROUNDS: usize = 15;
const PARTINGS: usize = 5;
const BIG: usize = 1 << 30;

/// The median of several rounds, with the smallest and the largest.
fn rounds(count: usize, mut round: impl FnMut() -> Duration) -> String {
    let mut took: Vec<Duration> = (0..count).map(|_| round()).collect();
    took.sort();
    let ms = |at: usize| took[at].as_secs_f64() * 1e3;
    format!("{:.1} ms [{:.1}..{:.1}]", ms(count / 2), ms(0), ms(count - 1))
}

fn timed(job: impl FnOnce()) -> Duration {
    let begin = Instant::now();
    job();
    begin.elapsed()
}

#[test]
#[ignore = "it measures"]
fn figures_of_joining_and_of_failures() {
    let Some(mut cluster) = Cluster::new(5, Processes::Shared) else { return };
    eventually(|| cluster.is_whole());
    let bare = rounds(ROUNDS, || timed(|| drop(cluster.host(1).ok("halite --version"))));
    println!("a program that joins nobody: {bare}");
    let joined = |cluster: &Cluster| rounds(ROUNDS, || timed(|| drop(cluster.host(1).ok("halite ls"))));
    println!("`halite ls`, all five nodes alive: {}", joined(&cluster));

    let begin = Instant::now();
    for host in 2..5 {
        cluster.lose_power(host);
    }
    println!("`halite ls`, of five nodes three without power, not known yet: {}", joined(&cluster));
    eventually(|| (2..5).all(|node| cluster.host(1).state(node) == "unreachable"));
    println!("until three hosts without power are unreachable: {:.1} s", begin.elapsed().as_secs_f64());
    println!("`halite ls`, of five nodes three dead: {}", joined(&cluster));

    cluster.put(0, "model", &bytes(1000), 0);
    let cable_is_out = || cluster.world.unplug(1);
    let cable_is_back = || cluster.world.plug(1);
    paired_again(&cluster, "whose cable is back", cable_is_out, cable_is_back);
    let is_muted = || cluster.host(1).mute_packets();
    let is_heard = || cluster.host(1).let_packets_through();
    paired_again(&cluster, "between which packets get through again", is_muted, is_heard);
}

/// Has the two nodes with a region lose sight of each other and find it again, some times.
fn paired_again(cluster: &Cluster, whose: &str, part: impl Fn(), heal: impl Fn()) {
    let (mut lost, mut found) = (Vec::new(), Vec::new());
    for _ in 0..PARTINGS {
        lost.push(timed(|| {
            part();
            eventually(|| cluster.host(0).state(1) == "unreachable");
        }));
        found.push(timed(|| {
            heal();
            // What passes by is paired with whom it reaches; that the two nodes are, moves show.
            eventually(|| cluster.host(0).run("halite mv model --to 1").status.success());
            eventually(|| cluster.host(0).run("halite mv model --to 0").status.success());
        }));
    }
    println!("until a node is unreachable of two {whose} later: {}", seconds(lost));
    println!("until two nodes {whose} are paired again: {}", seconds(found));
}

/// The median, with the smallest and the largest.
fn seconds(mut took: Vec<Duration>) -> String {
    took.sort();
    let s = |at: usize| took[at].as_secs_f64();
    format!("{:.1} s [{:.1}..{:.1}]", s(took.len() / 2), s(0), s(took.len() - 1))
}

#[test]
#[ignore = "it measures"]
fn figures_of_copies_between_hosts() {
    let Some(cluster) = Cluster::new(2, Processes::Shared) else { return };
    eventually(|| cluster.is_whole());
    cluster.host(0).write("/tmp/big", &bytes(BIG));
    let (mut put, mut get, mut bare) = (Vec::new(), Vec::new(), Vec::new());
    let mut streamed = Vec::new();
    let has_iperf3 = cluster.host(0).run("command -v iperf3").status.success();
    for _ in 0..3 {
        if has_iperf3 {
            streamed.extend(iperf3(&cluster));
        }
        bare.push(timed(|| {
            let mut receiver = Application::start(cluster.host(1), "receive 9000 /tmp/got");
            cluster.host(0).ok(&Application::line("send 10.0.0.2:9000 /tmp/big"));
            receiver.wait();
        }));
        put.push(timed(|| drop(cluster.host(0).ok("halite put big /tmp/big --node 1"))));
        cluster.host(0).ok("rm /tmp/got 2>/dev/null || true");
        get.push(timed(|| drop(cluster.host(0).ok("halite get big -o /tmp/got"))));
        cluster.host(0).ok("cmp /tmp/big /tmp/got; rm /tmp/got; halite rm big");
        cluster.host(1).ok("cmp -n 1000 /tmp/got /tmp/got; rm /tmp/got");
    }
    let speed = |took: &[Duration]| {
        let mut speeds: Vec<f64> = took.iter().map(|took| BIG as f64 / 1e6 / took.as_secs_f64()).collect();
        speeds.sort_by(f64::total_cmp);
        format!("{:.0} MB/s [{:.0}..{:.0}]", speeds[1], speeds[0], speeds[2])
    };
    if has_iperf3 {
        println!("iperf3, from memory to memory: {}", speed(&streamed));
    }
    println!("bare TCP, a file to a file: {}", speed(&bare));
    println!("`halite put` to the other host: {}", speed(&put));
    println!("`halite get` from the other host: {}", speed(&get));
}

/// One stream of TCP that touches no file.
fn iperf3(cluster: &Cluster) -> Option<Duration> {
    let _server = Running::of(cluster.host(1).command("exec iperf3 -s -1 >/dev/null"));
    let mut report = None;
    // Its server does not say when it listens.
    let line = format!("iperf3 -c 10.0.0.2 -n {BIG} -J");
    eventually(|| cluster.host(1).run("ss -Hltn sport = :5201 | grep -q .").status.success());
    let output = cluster.host(0).run(&line);
    if output.status.success() {
        report = serde_json::from_slice::<serde_json::Value>(&output.stdout).ok();
    }
    let rate = report?["end"]["sum_received"]["bits_per_second"].as_f64()?;
    Some(Duration::from_secs_f64(BIG as f64 * 8.0 / rate))
}
