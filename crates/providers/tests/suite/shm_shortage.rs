//! A process with low resource limits.
//!
//! The ignored test is a role, which the other test starts as a separate process, because limits apply to a whole
//! process.

use crate::common;

use std::os::fd::AsRawFd;

use common::{Cluster, Node, Role, inline, remote, role_dir};
use halite_fabric::{Key, Operation, PeerId};
use halite_providers::ShmConfig;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Length of a segment that exceeds the role's limit, in bytes.
const LARGE_BYTES: u64 = 1 << 30;

#[test]
#[ignore = "a role"]
fn limited_role() {
    let Some(dir) = role_dir() else { return };
    let mut node = Node::open(ShmConfig::new(dir, "limited"));
    node.fabric.connect("rich.sock", b"limited");
    let rich = node.connected();
    loop {
        let (command, key) = node.received();
        let answer = match &command[..] {
            b"few addresses" => limit(Resource::As, Some(mapped_bytes() + LARGE_BYTES / 2)),
            b"many addresses" => limit(Resource::As, None),
            b"no descriptors" => limit(Resource::Nofile, Some(lowest_free_descriptor())),
            b"many descriptors" => limit(Resource::Nofile, getrlimit(Resource::Nofile).maximum),
            b"write" => {
                let operation = Operation::Write { local: inline(b"salt"), remote: remote(Key(key), 0) };
                format!("{:?}", node.run(rich, operation).0)
            }
            command => panic!("unknown command {command:?}"),
        };
        node.send(rich, answer.as_bytes(), 0).unwrap();
    }
}

fn limit(of: Resource, current: Option<u64>) -> String {
    setrlimit(of, Rlimit { current, ..getrlimit(of) }).unwrap();
    "done".to_owned()
}

fn mapped_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split(' ').next().unwrap().parse().unwrap();
    pages * rustix::param::page_size() as u64
}

fn lowest_free_descriptor() -> u64 {
    std::fs::File::open("/dev/null").unwrap().as_raw_fd() as u64
}

/// Sends commands to the role, and returns its answers.
struct LimitedRole<'n> {
    node: &'n mut Node,
    role: PeerId,
}

impl LimitedRole<'_> {
    fn run(&mut self, command: &str, key: u32) -> String {
        self.node.send(self.role, command.as_bytes(), key).unwrap();
        String::from_utf8(self.node.received().0).unwrap()
    }

    fn set_limit(&mut self, command: &str) {
        assert_eq!(self.run(command, 0), "done");
    }
}

#[test]
fn an_unmapped_segment_keeps_the_connection() {
    let cluster = Cluster::new();
    let mut rich = cluster.open("rich");
    rich.register(4096);
    let _role = Role::start(&cluster, "shm_shortage::limited_role");
    let role = rich.connected();
    let mut limited = LimitedRole { node: &mut rich, role };

    limited.set_limit("few addresses");
    let (_, large) = limited.node.register(LARGE_BYTES);
    assert_eq!(limited.run("write", 1), "Unmapped");
    assert_eq!(limited.run("write", 0), "Success", "mapped segments can still be used");
    limited.set_limit("many addresses");
    assert_eq!(limited.run("write", 1), "Success", "the next access maps the segment");
    assert_eq!(common::bytes_of(&large, 0, 4), b"salt");

    limited.set_limit("no descriptors");
    limited.node.register(4096);
    assert_eq!(limited.run("write", 2), "Unmapped");
    assert_eq!(limited.run("write", 1), "Success");
    limited.set_limit("many descriptors");
    limited.node.register(4096);
    assert_eq!(limited.run("write", 3), "Success", "a later segment is mapped");
    assert_eq!(
        limited.run("write", 4),
        "RemoteAccess",
        "an unknown key gives another error than an unmapped segment"
    );
}
