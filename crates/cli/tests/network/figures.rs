//! What joining, failures and copies between hosts cost.  Measured on demand, since it asserts nothing about time:
//!
//! ```text
//! cargo test --release -p halite-cli --test network -- --ignored --nocapture figures
//! ```

use std::time::{Duration, Instant};

use crate::application::Application;
use crate::cluster::Cluster;
use crate::commands::lose_members;
use crate::support::{Running, bytes, eventually};
use crate::world::{Host, Processes};

const ROUNDS: usize = 15;
const PARTINGS: usize = 5;
const BIG: usize = 1 << 30;
const COPIES: usize = 5;
const SSH_PORT: u16 = 2222;
/// Ways of copying that others are set beside.
const IPERF3: &str = "iperf3, memory to memory";
const BARE: &str = "bare TCP, file to file";
const SCP: &str = "scp";

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
    let is_heard = || cluster.host(1).let_all_arrive();
    paired_again(&cluster, "between which packets get through again", is_muted, is_heard);
}

/// What a command costs that joins and leaves, beside so many members that are dead.
#[test]
#[ignore = "it measures"]
fn figures_of_commands_beside_dead_members() {
    let Some(cluster) = Cluster::new(3, Processes::Shared) else { return };
    eventually(|| cluster.is_whole());
    let took = |line: &str| rounds(ROUNDS, || timed(|| drop(cluster.host(1).ok(line))));
    let mut dead = 0;
    for count in [0, 5, 20] {
        lose_members(&cluster, dead..count);
        dead = count;
        let bare = took("halite --version");
        for line in ["halite ls", "halite status || true"] {
            println!("`{line}` beside {dead} dead members: {}; `halite --version`: {bare}", took(line));
        }
    }
    println!("load {}", load());
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

/// How long each way of copying took, in the rounds in which all take their turns.
#[derive(Default)]
struct Ways(Vec<(&'static str, Vec<Duration>)>);

impl Ways {
    fn add(&mut self, way: &'static str, took: Duration) {
        match self.0.iter_mut().find(|(other, _)| *other == way) {
            Some((_, rounds)) => rounds.push(took),
            None => self.0.push((way, vec![took])),
        }
    }

    fn of(&self, way: &str) -> Option<&Vec<Duration>> {
        self.0.iter().find(|(other, _)| *other == way).map(|(_, rounds)| rounds)
    }

    /// The speed of each, and what it is of another way's in the same round.
    fn print(&self, beside: &[&str]) {
        for (way, rounds) in &self.0 {
            let speeds = rounds.iter().map(|took| BIG as f64 / 1e6 / took.as_secs_f64());
            let mut line = format!("{way}: {} MB/s", spread(speeds.collect(), 0));
            for other in beside.iter().filter(|other| *other != way) {
                let Some(others) = self.of(other) else { continue };
                let ratios =
                    rounds.iter().zip(others).map(|(own, other)| other.as_secs_f64() / own.as_secs_f64());
                line += &format!("; beside {other}: {}", spread(ratios.collect(), 2));
            }
            println!("{line}");
        }
    }
}

/// The median, with the smallest and the largest.
fn spread(mut values: Vec<f64>, digits: usize) -> String {
    values.sort_by(f64::total_cmp);
    let [median, least, most] = [values[values.len() / 2], values[0], values[values.len() - 1]];
    format!("{median:.digits$} [{least:.digits$}..{most:.digits$}]")
}

#[test]
#[ignore = "it measures"]
fn figures_of_copies_between_hosts() {
    let Some(cluster) = Cluster::new(2, Processes::Shared) else { return };
    eventually(|| cluster.is_whole());
    let [here, there] = [cluster.host(0), cluster.host(1)];
    here.write("/tmp/big", &bytes(BIG));
    let has_iperf3 = here.run("command -v iperf3").status.success();
    let ssh = Ssh::start(here, there);
    let mut ways = Ways::default();
    let arrived = |host: &Host| {
        assert!(here.holds_same("/tmp/big", host, "/tmp/got"), "what has arrived is what was sent");
        host.ok("rm /tmp/got");
    };
    for _ in 0..COPIES {
        if has_iperf3 {
            ways.add(IPERF3, iperf3(&cluster));
        }
        ways.add(
            BARE,
            timed(|| {
                let mut receiver = Application::start(there, "receive 9000 /tmp/got");
                here.ok(&Application::line("send 10.0.0.2:9000 /tmp/big"));
                receiver.wait();
            }),
        );
        arrived(there);
        if let Some(ssh) = &ssh {
            ways.add(SCP, timed(|| ssh.copy("/tmp/big", "10.0.0.2:/tmp/got")));
            arrived(there);
        }
        ways.add("halite put", timed(|| drop(here.ok("halite put big /tmp/big --node 1"))));
        ways.add("halite get", timed(|| drop(here.ok("halite get big -o /tmp/got"))));
        arrived(here);
        here.ok("halite rm big");
    }
    println!("a file of {BIG} bytes from one host to the other, {COPIES} rounds, load {}", load());
    ways.print(&[BARE, SCP, IPERF3]);
}

/// What else the machine does, as the system averages it over a minute.
fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or_default().to_owned()
}

/// A server for scp on one host, with keys of its own, and who may use it from another.
struct Ssh<'a> {
    client: &'a Host,
    _server: Running,
}

impl<'a> Ssh<'a> {
    /// `None` where it is not installed.
    fn start(client: &'a Host, server: &Host) -> Option<Ssh<'a>> {
        if !server.run("command -v scp ssh-keygen /usr/sbin/sshd").status.success() {
            println!("left out: scp and its server are not installed");
            return None;
        }
        for (host, key) in [(client, "user"), (server, "host")] {
            host.ok(&format!("mkdir -m 700 ssh; ssh-keygen -q -t ed25519 -N '' -f ssh/{key}"));
        }
        server.write("/tmp/ssh/authorized", &client.read("/tmp/ssh/user.pub"));
        // It gives its rights up in a folder that it must find there.
        server.ok("mount -t tmpfs -o mode=755 tmpfs /run; mkdir -m 755 /run/sshd");
        let options = "-o UsePAM=no -o StrictModes=no -o PidFile=none -o PermitRootLogin=yes \
            -o AuthorizedKeysFile=/tmp/ssh/authorized -o 'Subsystem=sftp internal-sftp'";
        let line = format!(
            "exec /usr/sbin/sshd -D -e -f /dev/null -p {SSH_PORT} -h /tmp/ssh/host {options} 2>/tmp/ssh/log"
        );
        let running = Running::of(server.command(&line));
        eventually(|| server.run(&format!("ss -Hltn sport = :{SSH_PORT} | grep -q .")).status.success());
        Some(Ssh { client, _server: running })
    }

    #[track_caller]
    fn copy(&self, from: &str, to: &str) {
        let options = "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o IdentitiesOnly=yes";
        let line = format!("scp -q -F /dev/null -P {SSH_PORT} -i /tmp/ssh/user {options} {from} {to}");
        self.client.ok(&line);
    }
}

/// One stream of TCP that touches no file.
fn iperf3(cluster: &Cluster) -> Duration {
    let _server = Running::of(cluster.host(1).command("exec iperf3 -s -1 >/dev/null"));
    // Its server does not say when it listens.
    eventually(|| cluster.host(1).run("ss -Hltn sport = :5201 | grep -q .").status.success());
    let report = cluster.host(0).ok(&format!("iperf3 -c 10.0.0.2 -n {BIG} -J"));
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    let rate = report["end"]["sum_received"]["bits_per_second"].as_f64().expect("it says how fast it was");
    Duration::from_secs_f64(BIG as f64 * 8.0 / rate)
}
