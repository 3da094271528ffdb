//! Hosts for one test: each has its own network and `/tmp`, some their own processes, and all are connected to one
//! switch.
//!
//! ```text
//!   host 0: 10.0.0.1 ── cable ──┐
//!   host 1: 10.0.0.2 ── cable ──┼── switch
//!   host 2: 10.0.0.3 ── cable ──┘
//! ```
//!
//! If a test needs an etcd, the etcd runs at the switch, so a host without a cable does not reach the etcd.
//!
//! No namespace has a name. So the kernel removes each namespace when the process that holds the namespace ends. This
//! process ends with the test, even if the test is killed. Processes on a host die with the thread of the test.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::support::{Running, check_ok, children, eventually};

/// Variable that makes a skipped test a failure.
const REQUIRED: &str = "HALITE_NETWORK";
/// Variable that gives a node, or an application of these tests, a clock offset.
pub const CLOCK_OFFSET: &str = "HALITE_CLOCK_OFFSET_S";
const TOOLS: [&str; 7] = ["ethtool", "ip", "nft", "mount", "nsenter", "setpriv", "unshare"];
/// Prepares a namespace, prints `ready`, and keeps it until its standard input ends. The program may lie below the
/// `/tmp` that is hidden.
const HOLD: &str = r#"
exec 3<"$1"
mount -t tmpfs -o mode=1777 tmpfs /tmp
[ -d "$1" ] || { mkdir -p "$1"; mount -c --bind /proc/self/fd/3 "$1"; }
echo ready
exec cat >/dev/null
"#;

/// The pid namespace of a host. Each host also has namespaces for network and files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Processes {
    /// The host has no pid namespace of its own, so all hosts see each other's processes.
    Shared,
    /// The host has its own pid namespace.
    Own,
}

/// Address of the etcd of a world.
const ETCD: &str = "10.0.0.254";

/// All hosts of a test.
pub struct World {
    etcd: Option<Running>,
    switch: Namespaces,
    hosts: Vec<Host>,
}

/// One host.
pub struct Host {
    place: Namespaces,
    processes: Processes,
    /// Address at which other hosts reach this host.
    pub address: String,
    /// IPv6 address at which other hosts reach this host.
    pub address_6: String,
    /// Offset of the host's clock, in seconds, for nodes and applications that are started on it.
    clock_offset_s: i64,
    /// Address of the directory of names, for nodes that are started on it.
    directory: Option<String>,
}

/// Namespaces, which exist while the holder process runs.
struct Namespaces {
    _holder: Running,
    /// The process in the namespaces: with a pid namespace, this is not the process that was started.
    pid: u32,
}

impl World {
    /// Creates `hosts` hosts. If this machine or user cannot create networks, prints the reason and returns `None`.
    pub fn new(hosts: usize, processes: Processes) -> Option<World> {
        let why = if !rustix::process::geteuid().is_root() {
            "only root may make networks".to_owned()
        } else if let Some(missing) = TOOLS.into_iter().find(|tool| !is_installed(tool)) {
            format!("{missing} is not installed")
        } else {
            return Some(World::build(hosts, processes));
        };
        assert!(std::env::var_os(REQUIRED).is_none(), "{REQUIRED} is set, and there is no network: {why}");
        println!("left out: {why}");
        None
    }

    fn build(count: usize, processes: Processes) -> World {
        let switch = Namespaces::new(Processes::Shared);
        switch.run_checked("ip link add switch type bridge");
        switch.run_checked("ip link set switch up");
        let hosts: Vec<Host> = (0..count).map(|index| Host::on(&switch, index, processes)).collect();
        World { etcd: None, switch, hosts }
    }

    /// Starts an etcd. Nodes that are started later get its address.
    pub fn start_etcd(&mut self) {
        self.switch.run_checked(&format!("ip link set lo up; ip addr add {ETCD}/24 dev switch"));
        let (client, peer) = (format!("http://{ETCD}:2379"), format!("http://{ETCD}:2380"));
        let urls = format!(
            "--listen-client-urls {client} --advertise-client-urls {client} --listen-peer-urls {peer} --initial-advertise-peer-urls {peer}"
        );
        let line =
            format!("exec etcd --data-dir /tmp/etcd --initial-cluster default={peer} {urls} 2>/dev/null");
        self.etcd = Some(Running::of(self.switch.command(&line)));
        eventually(|| self.switch.command(&etcdctl("endpoint health")).output().unwrap().status.success());
        self.hosts.iter_mut().for_each(|host| host.directory = Some(format!("etcd://{ETCD}:2379/names")));
    }

    /// Leaves etcd out of the environment of processes that are started later.
    pub fn unset_etcd(&mut self) {
        self.hosts.iter_mut().for_each(|host| host.directory = None);
    }

    /// Runs `etcdctl`, which must succeed.
    #[track_caller]
    pub fn etcdctl(&self, line: &str) -> String {
        check_ok(line, &self.switch.command(&etcdctl(line)).output().unwrap())
    }

    pub fn host(&self, index: usize) -> &Host {
        &self.hosts[index]
    }

    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// Returns true if every host sees the first `nodes` nodes alive.
    pub fn are_alive(&self, nodes: u32) -> bool {
        self.hosts.iter().all(|host| (0..nodes).all(|node| host.state(node) == "alive"))
    }

    /// Sets the clock offsets in seconds for processes that are started later, in the order of hosts.
    pub fn set_clocks(&mut self, offsets_s: &[i64]) {
        for (host, offset_s) in self.hosts.iter_mut().zip(offsets_s) {
            host.clock_offset_s = *offset_s;
        }
    }

    /// Unplugs the cable of a host, which carries no packets from now on. No process is notified.
    pub fn unplug(&self, index: usize) {
        self.switch.run_checked(&format!("ip link set port{index} nomaster"));
    }

    pub fn plug(&self, index: usize) {
        self.switch.run_checked(&format!("ip link set port{index} master switch"));
    }

    /// Sets the MTU of all cables, and turns segmentation offload off, so that each packet travels alone.
    pub fn set_mtu(&self, frame_bytes: u32) {
        for (index, host) in self.hosts.iter().enumerate() {
            self.switch.run_checked(&format!("ip link set port{index} mtu {frame_bytes}"));
            host.place.run_checked(&format!("ip link set cable mtu {frame_bytes}"));
            host.place.run_checked("ethtool -K cable tx-udp-segmentation off gso off tso off");
        }
    }

    /// Makes the switch silently drop datagrams longer than `most` bytes from now on.
    pub fn drop_long_packets(&self, most: u32) {
        self.hosts.iter().for_each(|host| host.drop_packets(&format!("iifname cable ip length gt {most}")));
    }

    /// Drops about one of `one_of` UDP datagrams to a host from now on. Does not drop TCP packets: nodes set up
    /// connections over TCP within two seconds, which two lost packets may take.
    pub fn drop_some_packets(&self, one_of: u32) {
        let some = format!("iifname cable meta l4proto udp numgen random mod {one_of} == 0");
        self.hosts.iter().for_each(|host| host.drop_packets(&some));
    }
}

impl Host {
    fn on(switch: &Namespaces, index: usize, processes: Processes) -> Host {
        let place = Namespaces::new(processes);
        let pid = place.pid;
        switch.run_checked(&format!("ip link add port{index} type veth peer name cable netns {pid}"));
        switch.run_checked(&format!("ip link set port{index} master switch up"));
        let (address, address_6) = (format!("10.0.0.{}", index + 1), format!("fd00::{}", index + 1));
        place.run_checked("ip link set lo up");
        place.run_checked(&format!("ip addr add {address}/24 dev cable"));
        place.run_checked(&format!("ip addr add {address_6}/64 dev cable nodad"));
        place.run_checked("ip link set cable up");
        Host { place, processes, address, address_6, clock_offset_s: 0, directory: None }
    }

    /// Returns the command that runs `line` in a shell on this host, in the host's `/tmp`.
    pub fn command(&self, line: &str) -> Command {
        let mut command = self.place.command(line);
        if self.processes == Processes::Own {
            // A process belongs to a pid namespace only if it was started in it.
            command = self.place.command_with(&["--pid"], line);
        }
        command.env(CLOCK_OFFSET, self.clock_offset_s.to_string());
        match &self.directory {
            Some(directory) => command.env("HALITE_DIRECTORY", directory),
            None => command.env_remove("HALITE_DIRECTORY"),
        };
        command
    }

    /// Runs a shell line that must succeed; returns its standard output.
    #[track_caller]
    pub fn ok(&self, line: &str) -> String {
        check_ok(line, &self.run(line))
    }

    pub fn run(&self, line: &str) -> Output {
        self.command(line).output().unwrap()
    }

    /// Runs a shell line that must fail with status 1; returns its error message.
    #[track_caller]
    pub fn fails(&self, line: &str) -> String {
        let output = self.run(line);
        let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{line}: {complaint}");
        assert!(!complaint.contains("panicked"), "{line}: {complaint}");
        complaint
    }

    /// Runs a shell line that must fail with status 1 and an error message that contains `text`.
    #[track_caller]
    pub fn fails_with(&self, line: &str, text: &str) {
        let complaint = self.fails(line);
        assert!(complaint.contains(text), "{line}: {complaint}");
    }

    /// Starts a shell line, and waits until the command has printed a line that contains `text`.
    #[track_caller]
    pub fn start(&self, line: &str, text: &str) -> Running {
        let mut running = Running::of(self.command(&format!("exec {line}")));
        let message = running.line();
        assert!(message.contains(text), "{line}: {message}");
        running
    }

    /// Returns the path of this file of the host as this process sees it.
    fn path(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{path}", self.place.pid))
    }

    pub fn write(&self, path: &str, bytes: &[u8]) {
        std::fs::write(self.path(path), bytes).unwrap();
    }

    pub fn read(&self, path: &str) -> Vec<u8> {
        std::fs::read(self.path(path)).unwrap()
    }

    /// Drops all UDP packets to this host from now on, without notice to any process. TCP works.
    pub fn drop_udp(&self) {
        self.drop_packets("iifname cable meta l4proto udp");
    }

    /// Drops all packets from etcd to this host from now on, without notice to any process. Other hosts still reach
    /// etcd.
    pub fn drop_packets_of_etcd(&self) {
        self.drop_packets(&format!("ip saddr {ETCD}"));
    }

    /// Drops packets that arrive at this host and match the nftables expression `what`.
    pub fn drop_packets(&self, what: &str) {
        self.ok("nft add table inet arrivals");
        self.ok("nft 'add chain inet arrivals packets { type filter hook input priority 0; }'");
        self.ok(&format!("nft 'add rule inet arrivals packets {what} drop'"));
    }

    /// Makes UDP packets of this host leave from another port from now on, as a NAT does, without notice to any process.
    /// Not by the kernel's NAT, which leaves packets alone that answer others.
    pub fn translate_packets(&self) {
        self.ok("nft add table inet leaving");
        self.ok("nft 'add chain inet leaving packets { type filter hook output priority 0; }'");
        self.ok("nft add rule inet leaving packets oifname cable udp sport set 40000");
    }

    /// Forwards a TCP port of this host to another one from now on.
    pub fn forward_tcp(&self, from: u16, to: u16) {
        self.ok("nft add table ip forwarded");
        self.ok("nft 'add chain ip forwarded arriving { type nat hook prerouting priority -100; }'");
        self.ok(&format!("nft add rule ip forwarded arriving tcp dport {from} redirect to :{to}"));
    }

    pub fn drop_no_packets(&self) {
        self.ok("nft delete table inet arrivals");
    }

    /// Copies a file from another host, over a trusted path; only the owner may read it.
    pub fn copy_secret(&self, from: &Host, path: &str) {
        self.write(path, &from.read(path));
        std::fs::set_permissions(self.path(path), Permissions::from_mode(0o600)).unwrap();
    }

    /// Returns the nodes in order, as `halite status` reports them.
    #[track_caller]
    pub fn nodes(&self) -> Vec<Value> {
        let output = self.run("halite status --json");
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Returns the state of a node, as this host sees it.
    #[track_caller]
    pub fn state(&self, node: u32) -> String {
        let nodes = self.nodes();
        let row = nodes.iter().find(|row| row["node"] == node);
        row.map_or("unknown", |row| row["state"].as_str().unwrap()).to_owned()
    }
}

impl Namespaces {
    fn new(processes: Processes) -> Namespaces {
        let program = Path::new(env!("CARGO_BIN_EXE_halite")).parent().unwrap();
        let mut command = Command::new("unshare");
        command.args(["--net", "--mount", "--propagation", "private"]);
        if processes == Processes::Own {
            command.args(["--pid", "--fork", "--kill-child", "--mount-proc"]);
        }
        command.args(["sh", "-euc", HOLD, "sh"]).arg(program);
        command.stdin(Stdio::piped());
        let mut holder = Running::of(command);
        assert_eq!(holder.line(), "ready\n", "the place is there");
        let pid = match processes {
            Processes::Shared => holder.pid(),
            Processes::Own => children(holder.pid())[0],
        };
        Namespaces { _holder: holder, pid }
    }

    fn command(&self, line: &str) -> Command {
        self.command_with(&[], line)
    }

    fn command_with(&self, flags: &[&str], line: &str) -> Command {
        let program = Path::new(env!("CARGO_BIN_EXE_halite")).parent().unwrap();
        let path = std::env::var("PATH").unwrap();
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "nsenter", "--net", "--mount", "--target"]);
        command.arg(self.pid.to_string()).args(flags);
        command.args(["sh", "-ec"]).arg(format!("cd /tmp; {line}"));
        for name in ["HALITE_DIR", "HALITE_CONFIG", "HALITE_LOG", "XDG_RUNTIME_DIR", "TMPDIR"] {
            command.env_remove(name);
        }
        command.env("PATH", format!("{}:{path}", program.display())).stdin(Stdio::null());
        command
    }

    #[track_caller]
    fn run_checked(&self, line: &str) {
        check_ok(line, &self.command(line).output().unwrap());
    }
}

fn etcdctl(line: &str) -> String {
    format!("ETCDCTL_API=3 etcdctl --endpoints http://{ETCD}:2379 {line}")
}

pub fn is_installed(tool: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    path.split(':').any(|folder| Path::new(folder).join(tool).exists())
}
