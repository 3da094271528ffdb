//! Roce fabrics in this process. While a test sleeps, the harness polls all of them.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use halite_fabric::conformance::Harness;
use halite_fabric::{Event, Fabric, Middleware, Sleeper};
use halite_providers::secure::{Secret, Secrets};
use halite_providers::{Hosts, Mtu, RoceConfig, RoceFabric};

use super::Cluster;

/// Number of consecutive idle checks, one [`SLEEP_MAX`] apart, after which all fabrics count as idle. Meanwhile,
/// fabrics check their control sockets several times.
const IDLE_CHECKS: u32 = 4;
/// Maximum time for which a test sleeps before the other fabrics are polled.
const SLEEP_MAX: Duration = Duration::from_micros(100);

/// Changes the configuration of fabrics.
pub type Configure = fn(RoceConfig) -> RoceConfig;

pub struct Roce {
    cluster: Cluster,
    configure: Configure,
    /// The secret of the fabrics, if they do not share a directory.
    secrets: Option<Secrets>,
    fabrics: Mutex<Vec<Arc<Polled>>>,
    /// Time limit that turns a hang into a failure; no test should come near it.
    deadline: Instant,
}

/// A fabric, and the events that the harness has polled from it.
struct Polled {
    name: String,
    fabric: Arc<RoceFabric>,
    events: Mutex<VecDeque<Event>>,
}

impl Roce {
    pub fn new(configure: Configure) -> Roce {
        let deadline = Instant::now() + Duration::from_secs(60);
        Roce { cluster: Cluster::new(), configure, secrets: None, fabrics: Mutex::default(), deadline }
    }

    /// Creates fabrics of hosts that share a secret, but no directory.
    pub fn between_hosts(configure: Configure) -> Roce {
        let secret = Secret::new().expect("the system provides random numbers");
        Roce { secrets: Some(secret.into()), ..Roce::new(configure) }
    }

    /// Uses IPv6 and smaller packets.
    pub fn small_packets_over_ipv6(config: RoceConfig) -> RoceConfig {
        let address: IpAddr = "::1".parse().expect("an address");
        RoceConfig { address, mtu: Mtu::Bytes256, ..config }
    }

    fn fabrics(&self) -> Vec<Arc<Polled>> {
        self.fabrics.lock().unwrap().clone()
    }
}

impl Polled {
    /// Polls the fabric. Returns true if the poll returned events.
    fn poll_events(&self) -> bool {
        let mut polled = Vec::new();
        let count = self.fabric.poll(&mut polled);
        self.events.lock().unwrap().extend(polled);
        count > 0
    }
}

impl Harness for Roce {
    fn open(&self, name: &str, hello: &[u8]) -> Arc<dyn Fabric> {
        let config = RoceConfig { hello: hello.to_vec(), ..RoceConfig::new(&self.cluster.0, name) };
        let mut config = (self.configure)(config);
        if let Some(secrets) = &self.secrets {
            std::fs::create_dir_all(&self.cluster.0).unwrap();
            config.dir.push(name);
            let listen = SocketAddr::new(config.address, 0);
            config.hosts = Some(Hosts::listen(listen, secrets.clone()).unwrap());
        }
        let fabric = RoceFabric::open(config).unwrap();
        let polled = Arc::new(Polled { name: name.to_owned(), fabric, events: Mutex::default() });
        let mut fabrics = self.fabrics.lock().unwrap();
        // Drops fabrics that the test has dropped, because they hold descriptors.
        fabrics.retain(|other| Arc::strong_count(other) > 1);
        fabrics.push(polled.clone());
        polled
    }

    fn address(&self, name: &str) -> String {
        if self.secrets.is_none() {
            return format!("{name}.sock");
        }
        let fabrics = self.fabrics();
        let found = fabrics.iter().rev().find(|other| other.name == name);
        let port = found.and_then(|found| found.fabric.control_port());
        // Without a fabric, returns an address that refuses connections.
        port.map_or_else(|| "127.0.0.1:1".to_owned(), |port| port.to_string())
    }

    fn sleep(&self, fabric: &dyn Fabric, seen: u32) -> bool {
        for other in self.fabrics() {
            if !std::ptr::addr_eq(Arc::as_ptr(&other), fabric) {
                other.poll_events();
            }
        }
        fabric.wait(Sleeper::Progress, seen, Some(SLEEP_MAX));
        Instant::now() < self.deadline
    }

    fn settle(&self) {
        let mut idle_checks = 0;
        while idle_checks < IDLE_CHECKS && Instant::now() < self.deadline {
            let fabrics = self.fabrics();
            let has_events =
                fabrics.iter().fold(false, |has_events, fabric| fabric.poll_events() | has_events);
            if has_events || !fabrics.iter().all(|fabric| fabric.fabric.is_idle()) {
                idle_checks = 0;
                continue;
            }
            idle_checks += 1;
            std::thread::sleep(SLEEP_MAX);
        }
    }

    fn refusal_ends_connection(&self) -> bool {
        true
    }

    fn moves_by_itself(&self) -> bool {
        (self.configure)(RoceConfig::new(&self.cluster.0, "")).receivers > 0
    }
}

impl Middleware for Polled {
    fn inner(&self) -> &dyn Fabric {
        &*self.fabric
    }

    fn poll(&self, events: &mut Vec<Event>) -> usize {
        self.poll_events();
        let mut polled = self.events.lock().unwrap();
        let count = polled.len();
        events.extend(polled.drain(..));
        count
    }
}
