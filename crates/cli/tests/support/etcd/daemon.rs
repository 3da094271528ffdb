//! A process of etcd from Debian's package.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Variable that makes a skipped test a failure.
const REQUIRED: &str = "HALITE_NEEDS_ETCD";
const STARTS_MAX: usize = 5;

/// Returns true if etcd is installed. Panics if etcd is not installed and [`REQUIRED`] is set.
pub fn is_installed() -> bool {
    let found = Command::new("etcd").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    let is_there = found.is_ok_and(|status| status.success());
    assert!(is_there || std::env::var_os(REQUIRED).is_none(), "etcd is needed, and is not installed");
    is_there
}

/// Ports at which etcd listens for clients and for peers.
#[derive(Clone, Copy)]
pub struct Ports {
    pub clients: u16,
    pub peers: u16,
}

/// A running etcd. It ends with the thread that started it, and is killed when dropped.
pub struct Daemon(Child);

impl Daemon {
    /// Starts an etcd at free ports.
    pub fn start(data: &Path, scheme: &str, flags: &[String]) -> (Daemon, Ports) {
        // Another process may take a port first.
        let try_it = |_| {
            let ports = free_ports();
            Some((Daemon::start_at(data, scheme, flags, ports)?, ports))
        };
        (0..STARTS_MAX).find_map(try_it).expect("etcd starts")
    }

    /// Starts an etcd at `ports`. Returns `None` if etcd exits at once.
    pub fn start_at(data: &Path, scheme: &str, flags: &[String], ports: Ports) -> Option<Daemon> {
        let client = format!("{scheme}://127.0.0.1:{}", ports.clients);
        let peer = format!("http://127.0.0.1:{}", ports.peers);
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "etcd", "--data-dir"]).arg(data).args(["--name", "one"]);
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.args(["--initial-cluster", &format!("one={peer}")]).args(flags);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut daemon = Daemon(command.spawn().expect("etcd is started"));
        let begin = Instant::now();
        while !daemon.listens_at(ports.clients) {
            assert!(begin.elapsed().as_secs() < 60, "etcd does not listen");
            if daemon.0.try_wait().expect("it is our child").is_some() {
                return None;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Some(daemon)
    }

    /// Returns true if this process listens at the port: another test's etcd may have taken it a moment earlier.
    fn listens_at(&self, port: u16) -> bool {
        let process = Path::new("/proc").join(self.pid().to_string());
        let sockets = std::fs::read_to_string(process.join("net/tcp")).unwrap_or_default();
        let own: Vec<PathBuf> = std::fs::read_dir(process.join("fd"))
            .map(|files| files.flatten().filter_map(|file| std::fs::read_link(file.path()).ok()).collect())
            .unwrap_or_default();
        // ` 0: 0100007F:1A2B 00000000:0000 0A ...`: slot, local and remote address, state (0A: it listens); tenth, the inode.
        sockets.lines().any(|line| {
            let columns: Vec<&str> = line.split_whitespace().collect();
            let [_, local, _, "0A", ..] = columns[..] else { return false };
            let is_at_port = local.ends_with(&format!(":{port:04X}"));
            is_at_port
                && columns
                    .get(9)
                    .is_some_and(|inode| own.contains(&PathBuf::from(format!("socket:[{inode}]"))))
        })
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }
}

/// Returns two ports; concurrent calls get different ports. They are below the range from which the system assigns
/// ports, so they stay free while etcd is stopped.
fn free_ports() -> Ports {
    // Relaxed: the counter only makes the ports of one process distinct.
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let next = || std::process::id() * 32 + COUNT.fetch_add(1, Ordering::Relaxed);
    let ports = std::iter::repeat_with(|| 10_000 + (next() % 20_000) as u16).take(20_000);
    let mut free = ports.filter(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok());
    let [clients, peers] = [free.next(), free.next()].map(|port| port.expect("a free port"));
    Ports { clients, peers }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
