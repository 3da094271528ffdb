//! Whose memory it is: what the system takes from whom, and what happens where there is not enough.

#[path = "support/cgroup.rs"]
mod cgroup;
mod support;

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use cgroup::Cgroup;
use halite::{AllocOptions, Config, Node, NodeId, Placement};
use support::{Scratch, bytes, check_ok};

const MIB: u64 = 1 << 20;

/// Bytes that the arena of a node takes from the system.
fn resident(pid: u32) -> u64 {
    let fds = std::fs::read_dir(Path::new("/proc").join(pid.to_string()).join("fd")).unwrap();
    fds.map(|fd| fd.unwrap().path())
        .filter(|fd| std::fs::read_link(fd).unwrap().to_string_lossy().contains("halite-arena"))
        .map(|fd| std::fs::metadata(fd).unwrap().blocks() * 512)
        .sum()
}

#[test]
fn a_populated_region_is_taken_from_the_system_by_its_node_and_others_only_as_they_are_used() {
    let scratch = Scratch::new("resident");
    let _up = scratch.up(2);
    let client = Node::embedded(Config { dir: scratch.cluster(), arena_bytes: 0, ..Config::default() });
    let client = client.unwrap();
    let session = client.session().blocking();
    let owner = scratch.pid(1);
    let options =
        |populate| AllocOptions { placement: Placement::On(NodeId(1)), populate, ..Default::default() };

    let lazy = session.alloc_with(None, 64 * MIB, options(false)).unwrap();
    assert!(resident(owner) < 4 * MIB, "{}", resident(owner));
    let populated = session.alloc_with(None, 64 * MIB, options(true)).unwrap();
    assert!(resident(owner) >= 64 * MIB, "{}", resident(owner));
    session.write(populated, 0, &bytes(64 << 20)).unwrap();
    assert!(resident(owner) < 68 * MIB, "nothing was left for the writer to take: {}", resident(owner));
    session.free(lazy).unwrap();
}

#[test]
fn a_put_from_a_group_with_little_memory_counts_where_the_bytes_are() {
    let scratch = Scratch::new("cgroup");
    let Some(group) = Cgroup::limited("put", 48 * MIB) else {
        return println!("skipped: this user cannot limit the memory of processes");
    };
    let _up = scratch.up(2);
    let content = bytes(128 << 20);
    let from = scratch.write("from", &content);
    for flags in ["--node 1", "--spread"] {
        let put = format!("put region {} {flags}", from.display());
        check_ok(&put, &group.wrap(&scratch.command(&put)).output().unwrap());
        assert!(scratch.run("get region").stdout == content);
        scratch.ok("rm region");
    }
}
