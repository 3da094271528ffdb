//! Clusters whose names are in etcd, as Debian's package has it: where there is none, these say so and do nothing, unless
//! `HALITE_NEEDS_ETCD` is set, as where changes are checked.

mod support;

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use halite::{Config, Node, NodeId, Permissions, Placement, RegionCause};
use support::{Process, Scratch, eventually};

const ANYBODY: Permissions = Permissions::READ.union(Permissions::WRITE);

/// An etcd of a test's own.
struct Etcd {
    port: u16,
    peer_port: u16,
    data: PathBuf,
    child: Option<Child>,
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

impl Etcd {
    /// `None` where there is no etcd.
    fn start(scratch: &Scratch) -> Option<Etcd> {
        let found =
            Command::new("etcd").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        if !found.is_ok_and(|status| status.success()) {
            assert!(std::env::var_os("HALITE_NEEDS_ETCD").is_none(), "etcd is needed, and is not installed");
            eprintln!("skipped: there is no etcd here (`apt-get install etcd-server`)");
            return None;
        }
        let data = scratch.file("etcd");
        let mut etcd = Etcd { port: free_port(), peer_port: free_port(), data, child: None };
        etcd.run();
        Some(etcd)
    }

    fn run(&mut self) {
        let (client, peer) =
            (format!("http://127.0.0.1:{}", self.port), format!("http://127.0.0.1:{}", self.peer_port));
        let mut command = Command::new("etcd");
        command.arg("--data-dir").arg(&self.data).args(["--name", "one"]);
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.args(["--initial-cluster", &format!("one={peer}")]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.child = Some(command.spawn().unwrap());
        eventually(|| std::net::TcpStream::connect(("127.0.0.1", self.port)).is_ok());
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    fn address(&self, prefix: &str) -> String {
        format!("etcd://127.0.0.1:{}/{prefix}", self.port)
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.kill();
    }
}

fn application(dir: &Path) -> Node {
    Node::embedded(Config { dir: dir.to_owned(), node: None, arena_bytes: 0, ..Config::default() }).unwrap()
}

fn node(dir: &Path, id: u32, directory: Option<&str>) -> Node {
    let directory = directory.map(|address| address.parse().unwrap());
    let config = Config {
        dir: dir.to_owned(),
        node: Some(NodeId(id)),
        arena_bytes: 64 << 20,
        directory,
        ..Config::default()
    };
    Node::embedded(config).unwrap()
}

#[test]
fn a_cluster_with_its_names_in_etcd_goes_on_naming_without_node_0_and_two_do_not_see_each_other() {
    let scratch = Scratch::new("etcd");
    let Some(etcd) = Etcd::start(&scratch) else { return };
    scratch.write("file", b"words");
    let file = scratch.file("file");
    let file = file.to_str().unwrap();
    scratch.ok(&format!("up --nodes 3 --arena 64M --detach --directory {}", etcd.address("one")));
    scratch.ok(&format!("put a {file} --node 1"));
    assert!(scratch.ok("ls --json").contains("\"a\""));
    Process::open(scratch.pid(0)).kill();
    scratch.ok(&format!("put b {file} --node 2"));
    assert_eq!(scratch.ok("get a"), "words");
    assert!(scratch.fails(&format!("put a {file} --node 2"), 1).contains("\"a\""));
    assert!(scratch.ok("ls --json").contains("\"b\""));
    let other = Scratch::new("etcd-other");
    other.ok(&format!("up --nodes 1 --arena 64M --detach --directory {}", etcd.address("two")));
    assert_eq!(other.ok("ls --json"), "");
    other.ok(&format!("put a {file}"));
    // A node that comes back has lost what it held, and the store knows.
    Process::open(scratch.pid(1)).kill();
    eventually(|| scratch.states().iter().filter(|state| *state == "alive").count() == 1);
    assert!(scratch.fails("get a", 1).contains("lost with node 1"));
    scratch.ok(&format!("put a {file} --node 2"));
    other.ok("down");
    scratch.ok("down");
}

#[test]
fn etcd_is_killed_and_restarted_under_load_and_only_new_names_notice() {
    let scratch = Scratch::new("etcd-killed");
    let Some(mut etcd) = Etcd::start(&scratch) else { return };
    let address = etcd.address("load");
    let nodes = [0, 1, 2].map(|id| node(&scratch.cluster(), id, Some(&address)));
    let app = application(&scratch.cluster());
    let session = app.blocking_session();
    let lh = session.alloc(Some("mapped"), 1 << 20, Placement::On(NodeId(1)), ANYBODY).unwrap();
    let (is_over, names) = (AtomicBool::new(false), session.clone());
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let (mut count, mut bytes) = (0_u64, vec![0; 4096]);
            while !is_over.load(Ordering::Relaxed) {
                session.write(lh, 0, &count.to_le_bytes()).expect("what is mapped is not concerned");
                session.read(lh, 0, &mut bytes).expect("what is mapped is not concerned");
                session
                    .unmap(
                        session
                            .alloc(None, 4096, Placement::Local, ANYBODY)
                            .or_else(|_| session.alloc(None, 4096, Placement::On(NodeId(2)), ANYBODY))
                            .expect("what has no name is not concerned"),
                    )
                    .unwrap();
                count += 1;
            }
            count
        });
        let named = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut given = Vec::new();
            let alloc = |index: usize| {
                let on = Placement::On(NodeId(index as u32 % 3));
                names.alloc(Some(&format!("n{index}")), 4096, on, ANYBODY).map_err(|error| error.cause)
            };
            for index in 0..50 {
                alloc(index).unwrap();
                given.push(index);
            }
            etcd.kill();
            let mut index = 50;
            while alloc(index) != Err(RegionCause::DirectoryOut) {
                given.push(index);
                index += 1;
            }
            for index in 1000..1010 {
                assert_eq!(alloc(index), Err(RegionCause::DirectoryOut));
            }
            etcd.run();
            eventually(|| match alloc(2000) {
                Ok(_) | Err(RegionCause::NameTaken) => true,
                Err(cause) => {
                    assert_eq!(cause, RegionCause::DirectoryOut);
                    false
                }
            });
            for index in 0..50 {
                assert_eq!(alloc(index), Err(RegionCause::NameTaken));
                assert_eq!(names.stat(&format!("n{index}")).unwrap().home, NodeId(index as u32 % 3));
            }
            // What was refused is free.
            eventually(|| {
                (1000..1010).all(|index| matches!(alloc(index), Ok(_) | Err(RegionCause::NameTaken)))
            });
        }));
        is_over.store(true, Ordering::Relaxed);
        assert!(reader.join().unwrap() > 0);
        named.unwrap();
    });
    drop((app, nodes));
}

#[test]
fn a_wrong_address_is_refused_with_the_reason_and_so_is_one_that_the_cluster_does_not_have() {
    let scratch = Scratch::new("etcd-wrong");
    let wrong = format!("etcd://127.0.0.1:{}/x", free_port());
    let said = scratch.fails(&format!("node --id 0 --arena 64M --directory {wrong}"), 1);
    assert!(said.contains("does not answer") && said.contains(&wrong), "{said}");
    let said = scratch.fails("node --id 0 --directory http://x", 2);
    assert!(said.contains("is no etcd://"), "{said}");
    let _first = node(&scratch.cluster(), 0, None);
    let said = scratch.fails(&format!("node --id 1 --arena 64M --directory {wrong}"), 1);
    assert!(said.contains("keep their names by themselves"), "{said}");
}

/// Prints what names cost: `cargo test --release -p halite-node --test etcd figures -- --nocapture` with `HALITE_FIGURES=2000`.
#[test]
fn figures_of_names_in_etcd_beside_those_at_node_0() {
    let scratch = Scratch::new("etcd-figures");
    let Some(etcd) = Etcd::start(&scratch) else { return };
    let count: usize =
        std::env::var("HALITE_FIGURES").ok().and_then(|count| count.parse().ok()).unwrap_or(40);
    for (what, directory) in [("embedded", None), ("etcd", Some(etcd.address("figures")))] {
        let dir = scratch.file(&format!("cluster-{what}"));
        let mut nodes = Vec::new();
        let mut joined = Vec::new();
        for id in 0..8 {
            let begin = Instant::now();
            nodes.push(node(&dir, id, directory.as_deref()));
            joined.push(begin.elapsed().as_secs_f64() * 1e3);
        }
        let begin = Instant::now();
        std::thread::scope(|scope| {
            for node in &nodes {
                let each = count / nodes.len();
                scope.spawn(move || {
                    // Some are under way at a time, as where many processes make regions.
                    std::thread::scope(|scope| {
                        for thread in 0..4 {
                            let session = node.blocking_session();
                            scope.spawn(move || {
                                for index in (thread..each).step_by(4) {
                                    let name = format!("{}-{index}", node.id());
                                    session.alloc(Some(&name), 4096, Placement::Local, ANYBODY).unwrap();
                                }
                            });
                        }
                    });
                });
            }
        });
        let rate = count as f64 / begin.elapsed().as_secs_f64();
        joined.sort_by(f64::total_cmp);
        println!(
            "{what}: {rate:.0} allocs with names per second from 8 nodes; a join takes {:.1} ms",
            joined[4]
        );
    }
}
