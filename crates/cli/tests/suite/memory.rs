//! Accounting of memory to processes, and behaviour when memory or address space is short.

use crate::cgroup;
use crate::support;

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use cgroup::Cgroup;
use halite::{AllocOptions, Config, Node, NodeId, Placement};
use support::{Running, Scratch, after, bytes};

const MIB: u64 = 1 << 20;

/// Returns the resident bytes of a node's arena.
fn resident(pid: u32) -> u64 {
    let fds = std::fs::read_dir(Path::new("/proc").join(pid.to_string()).join("fd")).unwrap();
    fds.map(|fd| fd.unwrap().path())
        .filter(|fd| std::fs::read_link(fd).unwrap().to_string_lossy().contains("halite-arena"))
        .map(|fd| std::fs::metadata(fd).unwrap().blocks() * 512)
        .sum()
}

#[test]
fn only_populated_regions_take_memory_at_alloc() {
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
    assert!(resident(owner) < 68 * MIB, "the write took memory again: {}", resident(owner));
    session.free(lazy).unwrap();
}

/// Starts a cluster after this line in a shell.
fn up_after(scratch: &Scratch, line: &str, flags: &str) -> Running {
    let up = scratch.command(&format!("up {flags} --parent {}", std::process::id()));
    let mut up = Running::of(after(line, &up));
    while !up.line().contains("ctrl-C") {}
    up
}

/// Puts these bytes from a file on node 1 and gets them back; returns the file.
fn put_on_node_1(scratch: &Scratch, content: &[u8]) -> PathBuf {
    let from = scratch.write("from", content);
    scratch.ok(&format!("put region {} --node 1", from.display()));
    assert!(scratch.run("get region").stdout == content);
    from
}

#[test]
fn address_space_limit_shrinks_the_arena() {
    let scratch = Scratch::new("addresses");
    let _up = up_after(&scratch, "ulimit -v 1500000", "--nodes 2 --arena 4G");
    let content = bytes(20 << 20);
    let from = put_on_node_1(&scratch, &content);
    // More memory than the node can get: what it has already stays usable, and is shown.
    let large = std::fs::File::create(scratch.file("large")).unwrap();
    large.set_len(2 << 30).unwrap();
    let large = format!("put large {} --node 1", scratch.file("large").display());
    scratch.fails_with(&large, 1, "no space");
    let refused = scratch.json("status --json")[1]["bytes_refused"].as_u64().unwrap();
    assert!(refused > 2 << 30, "{refused}");
    assert!(scratch.ok("status").contains("of 4.0 GiB"));
    assert!(scratch.run("get region").stdout == content);
    scratch.ok("rm region");
    scratch.ok(&format!("put region {} --node 1", from.display()));
}

/// Runs a command after this line in a shell; returns its error message, or `None` if it succeeds.
fn complaint_after(scratch: &Scratch, limit: &str, line: &str) -> Option<String> {
    let output = after(limit, &scratch.command(line)).output().unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(matches!(output.status.code(), Some(0 | 1)), "{limit}: {line}: {}: {complaint}", output.status);
    (!output.status.success()).then_some(complaint)
}

#[test]
fn command_without_resources_reports_the_limit() {
    let scratch = Scratch::new("short");
    let _up = scratch.up_with("--nodes 3 --arena 1G");
    let five = scratch.write("five", &bytes(5 << 20));
    let put = format!("--embed put five {}", five.display());
    // A node has a segment only after a request for memory: the first command fails late, later ones early.
    for node in [0, 1, 2] {
        let put = format!("{put} --node {node}");
        let complaint = complaint_after(&scratch, "ulimit -v 500000", &put).expect("1 GiB does not fit");
        assert!(
            complaint.contains("this process lacks") || complaint.contains("this process cannot map"),
            "{complaint}"
        );
    }
    let complaint = complaint_after(&scratch, "ulimit -n 24", &put).expect("24 descriptors are too few");
    let own = ["of 24 are in use", "this process lacks", "this process cannot map", "ulimit -v -n -f"];
    assert!(own.iter().any(|text| complaint.contains(text)), "{complaint}");
    assert_eq!(scratch.ok("ls --json"), "");
    for node in scratch.json("status --json") {
        assert_eq!((&node["state"], &node["bytes_used"]), (&"alive".into(), &0.into()), "{node}");
    }
    scratch.ok(&put);
    assert!(scratch.run("get five").stdout == bytes(5 << 20));
}

#[test]
#[ignore = "needs root: .ci/deep slow"]
fn node_survives_the_memory_limit_of_its_cgroup() {
    let scratch = Scratch::new("full-group");
    let Some(group) = Cgroup::limited("node", 128 * MIB) else {
        return println!("skipped: this user cannot limit the memory of processes");
    };
    let arena = "node --id 0 --arena 128M";
    let node = scratch.command(&format!("{arena} --parent {}", std::process::id()));
    let mut node = Running::of(group.wrap(&node));
    node.line();
    let from = scratch.write("from", &bytes(120 << 20));
    scratch.fails_with(
        &format!("put region {}", from.display()),
        1,
        "out of memory: the system of node 0 provided",
    );
    let small = scratch.write("small", &bytes(20 << 20));
    scratch.ok(&format!("put region {}", small.display()));
    assert!(scratch.run("get region").stdout == bytes(20 << 20));
    // A node refuses an arena at once if the limit could never hold it.
    let node = scratch.command("node --id 1 --arena 129M");
    let refused = group.wrap(&node).output().unwrap();
    let complaint = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(complaint.contains("the maximum is 128 MiB"), "{complaint}");
}

#[test]
fn arena_larger_than_the_machine_is_refused() {
    let scratch = Scratch::new("petabyte");
    for line in ["up --nodes 2 --arena 1P", "node --id 0 --arena 1P"] {
        let complaint = scratch.fails(line, 1);
        assert!(complaint.contains("1125899906842624 bytes exceeds"), "{complaint}");
        assert!(complaint.contains("the maximum is"), "{complaint}");
        assert!(!scratch.cluster().exists(), "{line} has created no directory");
    }
    scratch.fails_with("up --nodes 2 --arena 99999P", 2, "exceeds 64 bits");
}
