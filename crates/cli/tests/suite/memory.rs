//! Whose memory it is: what the system takes from whom, and what happens where there is not enough.

use crate::cgroup;
use crate::support;

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use cgroup::Cgroup;
use halite::{AllocOptions, Config, Node, NodeId, Placement};
use support::{Running, Scratch, after, bytes, check_ok};

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
#[ignore = "slow: .ci/deep slow"]
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

/// A cluster that is started after this line of a shell.
fn up_after(scratch: &Scratch, line: &str, flags: &str) -> Running {
    let up = scratch.command(&format!("up {flags} --parent {}", std::process::id()));
    let mut up = Running::of(after(line, &up));
    while !up.line().contains("ctrl-C") {}
    up
}

/// Puts these bytes from a file, which it returns, and gets them back.
fn put_on_node_1(scratch: &Scratch, content: &[u8]) -> PathBuf {
    let from = scratch.write("from", content);
    scratch.ok(&format!("put region {} --node 1", from.display()));
    assert!(scratch.run("get region").stdout == content);
    from
}

#[test]
fn a_node_with_few_addresses_has_a_smaller_arena_and_says_so() {
    let scratch = Scratch::new("addresses");
    let _up = up_after(&scratch, "ulimit -v 1500000", "--nodes 2 --arena 4G");
    let content = bytes(100 << 20);
    let from = put_on_node_1(&scratch, &content);
    // More than it can get: what it has stays, and is shown.
    let large = std::fs::File::create(scratch.file("large")).unwrap();
    large.set_len(2 << 30).unwrap();
    let large = format!("put large {} --node 1", scratch.file("large").display());
    let complaint = scratch.fails(&large, 1);
    assert!(complaint.contains("no space"), "{complaint}");
    let refused = scratch.json("status --json")[1]["bytes_refused"].as_u64().unwrap();
    assert!(refused > 2 << 30, "{refused}");
    assert!(scratch.ok("status").contains("of 4.0 GiB"));
    assert!(scratch.run("get region").stdout == content);
    scratch.ok("rm region");
    scratch.ok(&format!("put region {} --node 1", from.display()));
}

/// What a command complains of that is run after this line of a shell; `None` if it succeeds.
fn complaint_after(scratch: &Scratch, limit: &str, line: &str) -> Option<String> {
    let output = after(limit, &scratch.command(line)).output().unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(matches!(output.status.code(), Some(0 | 1)), "{limit}: {line}: {}: {complaint}", output.status);
    (!output.status.success()).then_some(complaint)
}

#[test]
fn a_command_that_lacks_addresses_or_descriptors_says_so_of_itself_and_leaves_nothing() {
    let scratch = Scratch::new("short");
    let _up = up_after(&scratch, "true", "--nodes 3 --arena 1G");
    let five = scratch.write("five", &bytes(5 << 20));
    let put = format!("put five {}", five.display());
    // Each node has a segment only when it has been asked for memory: the first finds out late, and later ones early.
    for node in [0, 1, 2] {
        let put = format!("{put} --node {node}");
        let complaint = complaint_after(&scratch, "ulimit -v 500000", &put).expect("1 GiB does not fit");
        assert!(complaint.contains("this process has not enough"), "{complaint}");
    }
    // As few as it takes to begin, and as many as are enough.
    let mut told = 0;
    for descriptors in 12..48 {
        if let Some(complaint) = complaint_after(&scratch, &format!("ulimit -n {descriptors}"), &put) {
            let is_own =
                ["Too many open files", "this process has not enough", "limits on memory, open files"];
            assert!(is_own.iter().any(|text| complaint.contains(text)), "{descriptors}: {complaint}");
            assert_eq!(scratch.ok("ls --json"), "", "{descriptors}: {complaint}");
            told += 1;
        } else {
            scratch.ok("rm five");
        }
    }
    assert!(told > 0 && told < 36, "{told}");
    for node in scratch.json("status --json") {
        assert_eq!((&node["state"], &node["bytes_used"]), (&"alive".into(), &0.into()), "{node}");
    }
    scratch.ok(&put);
    assert!(scratch.run("get five").stdout == bytes(5 << 20));
}

#[test]
fn a_limit_on_the_size_of_files_is_a_reason_and_no_sudden_end() {
    let scratch = Scratch::new("file-size");
    // In blocks of 512 bytes, as POSIX has it: enough to join, and not for an arena in one piece.
    let _up = up_after(&scratch, "ulimit -f 140000", "--nodes 2 --arena 256M");
    put_on_node_1(&scratch, &bytes(100 << 20));
    let complaint = complaint_after(&scratch, "ulimit -f 1", "get region").expect("nothing fits");
    assert!(complaint.contains("ulimit -v -n -f"), "{complaint}");
    let to = scratch.file("to");
    let complaint = complaint_after(&scratch, "ulimit -f 140000", &format!("get region -o {}", to.display()));
    let complaint = complaint.expect("the file is larger");
    assert!(complaint.contains("cannot write to") && complaint.contains("File too large"), "{complaint}");
    assert!(!to.exists());
    assert_eq!(scratch.states(), ["alive", "alive"]);
}

#[test]
fn a_first_node_that_refuses_all_requesters_is_not_silent() {
    let scratch = Scratch::new("refusing");
    // Each has the addresses for its own arena, and not for much more.
    let _up = up_after(&scratch, "ulimit -v 400000", "--nodes 2 --arena 4G");
    let output = scratch.run("status --json");
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(complaint.contains("node-0.shm.sock: the peer refused: it has no addresses left"), "{complaint}");
    assert_eq!(output.status.code(), Some(3), "{complaint}");
    assert_eq!(scratch.states(), ["alive"; 2]);
}

#[test]
fn a_node_that_cannot_map_another_keeps_it_and_says_what_it_cannot_do() {
    let scratch = Scratch::new("apart");
    let mut nodes = Vec::new();
    // The arena of node 0 comes when it is asked for, and does not fit into the limit of node 1.
    for (limit, node) in [("true", "--id 0 --arena 1G"), ("ulimit -v 1000000", "--id 1 --arena 64M")] {
        let line = format!("node {node} --parent {}", std::process::id());
        let mut node = Running::of(after(limit, &scratch.command(&line)));
        node.line();
        nodes.push(node);
    }
    let five = scratch.write("five", &bytes(5 << 20));
    scratch.ok(&format!("put there {} --node 0", five.display()));
    scratch.ok(&format!("put here {} --node 1", five.display()));
    let complaint = scratch.fails("mv there --to 1", 1);
    let expected = "node 1 lacks addresses or descriptors to map the memory of node 0";
    assert!(complaint.contains(expected), "{complaint}");
    assert_eq!(scratch.states(), ["alive", "alive"]);
    // The other way round it can be done.
    scratch.ok("mv here --to 0");
    for region in ["here", "there"] {
        assert!(scratch.run(&format!("get {region}")).stdout == bytes(5 << 20));
        assert_eq!(scratch.json(&format!("stat {region} --json"))[0]["nodes"][0]["node"], 0);
    }
}

#[test]
fn a_node_whose_group_has_no_memory_left_says_so_and_lives_on() {
    let scratch = Scratch::new("full-group");
    let Some(group) = Cgroup::limited("node", 128 * MIB) else {
        return println!("skipped: this user cannot limit the memory of processes");
    };
    let arena = "node --id 0 --arena 128M";
    let node = scratch.command(&format!("{arena} --parent {}", std::process::id()));
    let mut node = Running::of(group.wrap(&node));
    node.line();
    let from = scratch.write("from", &bytes(120 << 20));
    let complaint = scratch.fails(&format!("put region {}", from.display()), 1);
    assert!(complaint.contains("out of memory: the system of node 0 gave"), "{complaint}");
    let small = scratch.write("small", &bytes(20 << 20));
    scratch.ok(&format!("put region {}", small.display()));
    assert!(scratch.run("get region").stdout == bytes(20 << 20));
    // An arena that could never be filled is refused at once.
    let node = scratch.command("node --id 1 --arena 129M");
    let refused = group.wrap(&node).output().unwrap();
    let complaint = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(complaint.contains("the maximum is 128 MiB"), "{complaint}");
}

#[test]
fn an_arena_larger_than_the_machine_is_refused_at_once_with_what_works() {
    let scratch = Scratch::new("petabyte");
    for line in ["up --nodes 2 --arena 1P", "node --id 0 --arena 1P"] {
        let complaint = scratch.fails(line, 1);
        assert!(complaint.contains("1125899906842624 bytes exceeds"), "{complaint}");
        assert!(complaint.contains("the maximum is"), "{complaint}");
        assert!(!scratch.cluster().exists(), "{line} has made nothing");
    }
    assert!(scratch.fails("up --nodes 2 --arena 99999P", 2).contains("more bytes than 64 bits"));
}
