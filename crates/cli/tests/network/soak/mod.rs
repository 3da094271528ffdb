//! A soak test over several hosts: applications do random operations while cables are unplugged, links fail in one
//! direction, nodes are killed and hosts lose power. Regions of a node that ended may be missing; nothing else may be
//! lost, changed or executed twice, and afterwards all nodes reconnect.
//!
//! It takes a minute by default. For a longer run, or another order of faults:
//!
//! ```text
//! HALITE_SOAK_S=600 HALITE_SOAK_SEED=7 HALITE_NETWORK=required cargo test --release -p halite-cli --test network -- --ignored --nocapture soak
//! ```

mod judge;
pub mod worker;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use fastrand::Rng;
use judge::{Death, Findings};
use rustix::process::Signal;

use crate::application::Application;
use crate::cluster::Cluster;
use crate::support::{Running, eventually};
use crate::world::Processes;

const HOSTS: usize = 5;

/// Returns a random time in milliseconds from this range.
fn ms(random: &mut Rng, from: u64, to: u64) -> Duration {
    Duration::from_millis(random.u64(from..to))
}

fn number_of(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().unwrap())
}

struct Soak {
    cluster: Cluster,
    workers: Vec<Application>,
    random: Rng,
    seed: u64,
    /// Numbers of workers started on each host, and of incarnations of its node.
    started: Vec<u64>,
    lives: Vec<u64>,
    deaths: Vec<Death>,
    /// Times at which node 0 was started without an address of another node.
    foundings_ns: Vec<u64>,
    faults: u64,
}

#[test]
#[ignore = "a soak: it takes a minute, or HALITE_SOAK_S"]
fn soak_loses_and_repeats_no_update() {
    let Some(cluster) = Cluster::new(HOSTS, Processes::Shared) else { return };
    eventually(|| cluster.is_whole());
    let (seed, length) =
        (number_of("HALITE_SOAK_SEED", 1), Duration::from_secs(number_of("HALITE_SOAK_S", 60)));
    println!("seed {seed}; HALITE_SOAK_SEED and HALITE_SOAK_S change it, and its {} s", length.as_secs());
    let (random, deaths, foundings_ns) = (Rng::with_seed(seed), Vec::new(), Vec::new());
    let (started, lives) = (vec![0; HOSTS], vec![0; HOSTS]);
    let workers = Vec::new();
    let mut soak = Soak { cluster, workers, random, seed, started, lives, deaths, foundings_ns, faults: 0 };
    (0..HOSTS).for_each(|host| soak.create_counter(host));
    for host in 0..HOSTS {
        let worker = soak.start_worker(host);
        soak.workers.push(worker);
    }
    let begin = Instant::now();
    while begin.elapsed() < length {
        soak.fail_and_heal();
    }
    soak.judge();
}

impl Soak {
    fn say(&self, what: &str) {
        println!("[{}] {what}", worker::now_ns() / 1_000_000);
    }

    fn other(&mut self, host: usize) -> usize {
        (host + 1 + self.random.u64(0..HOSTS as u64 - 1) as usize) % HOSTS
    }

    /// Creates a counter in the memory of a node's new incarnation, to which all workers add.
    fn create_counter(&mut self, host: usize) {
        let incarnation = self.lives[host];
        self.lives[host] += 1;
        let name = format!("{}{host}-{incarnation}", worker::COUNTER);
        self.cluster.host(host).write("/tmp/zero", &[0; 8]);
        let line = format!("halite put {name} /tmp/zero --node {host}");
        eventually(|| self.cluster.host(host).run(&line).status.success());
    }

    fn start_worker(&mut self, host: usize) -> Application {
        let incarnation = self.started[host];
        self.started[host] += 1;
        let seed = Rng::with_seed(self.seed ^ ((host as u64) << 40) ^ (incarnation << 50)).u64(..);
        Application::start(self.cluster.host(host), &format!("soak {seed} {host}-{incarnation} {HOSTS}"))
    }

    fn end_node(&mut self, host: usize, end: impl FnOnce(&mut Running)) {
        let from_ns = worker::now_ns();
        end(&mut self.cluster.nodes[host]);
        self.deaths.push(Death { node: host as u64, from_ns, until_ns: worker::now_ns() });
    }

    /// Restarts the node of a host, which joins through another node.
    fn restart(&mut self, host: usize) {
        let by = self.other(host);
        // Node 0 may found the cluster anew: all other nodes look for it.
        let by = if host == 0 && self.random.u64(0..2) == 0 { None } else { Some(by) };
        if by.is_none() {
            self.foundings_ns.push(worker::now_ns());
        }
        self.cluster.restart(host, by);
        self.create_counter(host);
    }

    fn fail_and_heal(&mut self) {
        self.faults += 1;
        let host = self.random.u64(0..HOSTS as u64) as usize;
        let other = self.other(host);
        let length = ms(&mut self.random, 500, 9_000);
        match self.random.u64(0..7) {
            0 => {
                self.say(&format!("the cable of host {host} is out for {length:?}"));
                self.cluster.world.unplug(host);
                self.during_outage(other, length, |cluster| cluster.world.plug(host));
            }
            1 => {
                self.say(&format!("host {host} hears nothing of host {other} for {length:?}"));
                let from = &self.cluster.host(other).address;
                self.cluster.host(host).drop_packets(&format!("ip saddr {from}"));
                self.during_outage(other, length, |cluster| cluster.host(host).drop_no_packets());
            }
            2 => {
                self.say(&format!("no packet comes to host {host} for {length:?}"));
                self.cluster.host(host).drop_udp();
                self.during_outage(other, length, |cluster| cluster.host(host).drop_no_packets());
            }
            3 => {
                self.say(&format!("node {host} is killed"));
                self.end_node(host, Running::kill);
                self.restart(host);
            }
            4 => {
                self.say(&format!("host {host} loses power"));
                self.cluster.world.unplug(host);
                self.workers[host].end();
                self.end_node(host, Running::kill);
                self.cluster.host(host).ok("rm -rf /tmp/halite-*");
                std::thread::sleep(length);
                self.cluster.world.plug(host);
                self.restart(host);
                self.workers[host] = self.start_worker(host);
            }
            5 => {
                self.say(&format!("node {host} is restarted"));
                self.end_node(host, |node| {
                    node.signal(Signal::INT);
                    assert!(node.wait().success());
                });
                self.restart(host);
            }
            _ => {
                self.kill_worker(host);
                self.workers[host] = self.start_worker(host);
            }
        }
        let rest = ms(&mut self.random, 0, 3_000);
        std::thread::sleep(rest);
    }

    /// While a link is down, an application may be killed too; the next one starts when the link is up, since it needs
    /// the first node.
    fn during_outage(&mut self, host: usize, length: Duration, heal: impl FnOnce(&Cluster)) {
        let is_killed = self.random.u64(0..3) == 0;
        if is_killed {
            self.kill_worker(host);
        }
        std::thread::sleep(length);
        heal(&self.cluster);
        if is_killed {
            self.workers[host] = self.start_worker(host);
        }
    }

    fn kill_worker(&mut self, host: usize) {
        self.say(&format!("the application on host {host} is killed"));
        self.workers[host].end();
    }

    /// Returns the time until each node can move a region to each other node.
    fn move_between_all_nodes(&self) -> Duration {
        let begin = Instant::now();
        for from in 0..HOSTS {
            let name = format!("probe-{from}");
            self.cluster.host(from).write("/tmp/probe", b"salt");
            let run = |line: String| {
                eventually(|| self.cluster.host(from).run(&line).status.success());
            };
            run(format!("halite put {name} /tmp/probe --node {from}"));
            for step in 1..=HOSTS {
                run(format!("halite mv {name} --to {}", (from + step) % HOSTS));
            }
        }
        begin.elapsed()
    }

    fn judge(mut self) {
        self.say("all is healed");
        let took = self.move_between_all_nodes();
        eventually(|| self.cluster.is_whole());
        self.say(&format!("every node has moved something to every other after {:.1} s", took.as_secs_f64()));
        for (host, mut worker) in std::mem::take(&mut self.workers).into_iter().enumerate() {
            self.cluster.host(host).write(worker::STOP, b"");
            worker.wait();
        }
        let mut findings = Findings::default();
        for host in 0..HOSTS {
            for incarnation in 0..self.started[host] {
                let log = self.cluster.host(host).read(&worker::log_of(&format!("{host}-{incarnation}")));
                findings.add(&String::from_utf8(log).unwrap());
            }
        }
        let counters = (0..HOSTS).map(|host| format!("{}{host}-{}", worker::COUNTER, self.lives[host] - 1));
        let there: Vec<String> = findings.regions_due(&self.deaths).into_iter().chain(counters).collect();
        let end_ns = worker::now_ns();
        for host in 0..HOSTS {
            self.cluster.host(host).write("/tmp/there", there.join("\n").as_bytes());
            let text = self.cluster.host(host).ok(&Application::line("verify /tmp/there"));
            let results: BTreeMap<&str, &str> =
                text.lines().filter_map(|line| line.split_once(' ')).collect();
            for name in &there {
                let found = results.get(&**name).copied().unwrap_or("was not looked at");
                match found.parse() {
                    Ok(value) => findings.counted(name, end_ns, value),
                    Err(_) if found == "ok" => {}
                    Err(_) => findings.violations.push(format!("from host {host}: {name} {found}")),
                }
            }
        }
        findings.judge_counters();
        findings.judge_locks(&self.deaths, &self.foundings_ns);
        println!(
            "seed {}, {} faults, {} ends of nodes: {}; {} regions looked at from each host",
            self.seed,
            self.faults,
            self.deaths.len(),
            findings.summary(),
            there.len()
        );
        assert!(findings.violations.is_empty(), "seed {}:\n{}", self.seed, findings.violations.join("\n"));
    }
}
