//! Two networks for one test, with a link between them.
//!
//! ```text
//!   side 0: left, 10.77.0.1, fd77::1  ◄── veth pair ──►  side 1: right, 10.77.0.2, fd77::2
//! ```
//!
//! The networks (network namespaces) have no names, so the kernel removes them with their last descriptor and process,
//! even if the test fails.

use std::fs::File;
use std::io::Write;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};

use halite_providers::{RoceConfig, RoceFabric};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

use crate::common::Cluster;
use crate::common::pair::Pair;

/// Environment variable that turns a skipped test into a failure.
const REQUIRED: &str = "HALITE_NETWORK";
/// MTU for packets with a payload of 4096 bytes and all headers.
const MTU: u32 = 4200;
const TOOLS: [&str; 4] = ["ip", "nft", "ethtool", "tshark"];
/// Names of the two ends of the link.
pub const DEVICES: [&str; 2] = ["left", "right"];

pub struct Network {
    /// The network of the test itself.
    home: OwnedFd,
    sides: [OwnedFd; 2],
}

impl Network {
    /// Returns `None`, and prints the reason, where this machine or user cannot create networks.
    pub fn new() -> Option<Network> {
        let why = match Network::try_new() {
            Ok(network) => return Some(network),
            Err(why) => why,
        };
        assert!(std::env::var_os(REQUIRED).is_none(), "{REQUIRED} is set, but the test cannot run: {why}");
        println!("skipped: {why}");
        None
    }

    fn try_new() -> Result<Network, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("only root may create networks".to_owned());
        }
        if let Some(missing) = TOOLS.into_iter().find(|tool| !is_installed(tool)) {
            return Err(format!("{missing} is not installed"));
        }
        let text = |error: std::io::Error| error.to_string();
        let home = current().map_err(text)?;
        let network = Network { home, sides: [new_network().map_err(text)?, new_network().map_err(text)?] };
        let other = format!("/proc/{}/fd/{}", std::process::id(), network.sides[1].as_raw_fd());
        let [left, right] = DEVICES;
        network.run(
            0,
            &format!("ip link add {left} mtu {MTU} type veth peer name {right} mtu {MTU} netns {other}"),
        )?;
        for (side, device) in DEVICES.into_iter().enumerate() {
            let number = side + 1;
            network.run(side, "ip link set lo up")?;
            network.run(side, &format!("ip addr add 10.77.0.{number}/24 dev {device}"))?;
            network.run(side, &format!("ip addr add fd77::{number}/64 dev {device} nodad"))?;
            network.run(side, &format!("ip link set {device} up"))?;
        }
        Ok(network)
    }

    /// Runs `then` in one of the two networks: sockets and processes that it creates belong to that network.
    pub fn inside<R>(&self, side: usize, then: impl FnOnce() -> R) -> R {
        let _restore = Restore(self.home.as_fd());
        enter(self.sides[side].as_fd());
        then()
    }

    /// Runs a command; returns its output.
    pub fn run(&self, side: usize, line: &str) -> Result<String, String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let output = self.inside(side, || Command::new(words[0]).args(&words[1..]).output());
        let output = output.map_err(|error| format!("{line}: {error}"))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Err(format!("{line}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr)))
    }

    /// Runs a command that must succeed.
    #[track_caller]
    pub fn run_ok(&self, side: usize, line: &str) -> String {
        self.run(side, line).unwrap()
    }

    /// Turns segmentation offload off: the kernel splits trains before they reach the wire, so each packet can be lost
    /// separately.
    pub fn disable_offload(&self) {
        for (side, device) in DEVICES.into_iter().enumerate() {
            self.run_ok(side, &format!("ethtool -K {device} tx-udp-segmentation off gso off gro off"));
        }
    }

    /// Applies nftables statements to packets that arrive at one side. Each statement counts its packets.
    pub fn on_arrival(&self, side: usize, rules: &[&str]) {
        let rules = rules.join("\n");
        let text = format!(
            "table inet arrival {{\n chain packets {{\n type filter hook input priority 0\n {rules}\n }}\n }}\n"
        );
        let mut nft = Command::new("nft");
        nft.args(["-f", "-"]).stdin(Stdio::piped());
        let mut child = self.inside(side, || nft.spawn()).unwrap();
        child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        assert!(child.wait().unwrap().success(), "nft refuses:\n{text}");
    }

    /// Returns the numbers of packets, or of whole trains, that the rules of one side have counted, in order.
    pub fn counted(&self, side: usize) -> Vec<u64> {
        let listed = self.run_ok(side, "nft list ruleset");
        let words: Vec<&str> = listed.split_whitespace().collect();
        let counts = words.windows(3).filter(|words| words[..2] == ["counter", "packets"]);
        counts.map(|words| words[2].parse().unwrap()).collect()
    }

    /// Returns the configuration of a fabric on one side, named "one" or "two".
    pub fn config(&self, cluster: &Cluster, side: usize) -> RoceConfig {
        let address: IpAddr = format!("10.77.0.{}", side + 1).parse().unwrap();
        RoceConfig { address, ..RoceConfig::new(&cluster.0, ["one", "two"][side]) }
    }

    /// Opens a fabric on each side, and connects them.
    pub fn connect(&self, configs: [RoceConfig; 2]) -> Pair {
        let mut sides = 0..;
        Pair::connect(
            configs.map(|config| self.inside(sides.next().unwrap(), || RoceFabric::open(config).unwrap())),
        )
    }
}

/// Switches the thread back to its original network when dropped.
struct Restore<'a>(BorrowedFd<'a>);

impl Drop for Restore<'_> {
    fn drop(&mut self) {
        enter(self.0);
    }
}

fn enter(network: BorrowedFd<'_>) {
    move_into_link_name_space(network, Some(LinkNameSpaceType::Network)).expect("the network exists");
}

fn current() -> std::io::Result<OwnedFd> {
    Ok(File::open("/proc/thread-self/ns/net")?.into())
}

/// Returns a new, empty network.
fn new_network() -> std::io::Result<OwnedFd> {
    #[allow(unsafe_code)]
    let make = || {
        // SAFETY: only UnshareFlags::FILES would affect other threads.
        unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }?;
        current()
    };
    std::thread::scope(|scope| scope.spawn(make).join().expect("the thread does not panic"))
}

fn is_installed(tool: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    path.split(':').any(|folder| Path::new(folder).join(tool).exists())
}
