//! Files in and out of regions, and who may do what with them.

mod support;

use std::io::Write;
use std::process::Stdio;

use halite::{Config, Node, Permissions};
use serde_json::Value;
use support::{Scratch, bytes, check_ok, eventually};

const MIB: usize = 1 << 20;

#[track_caller]
fn check_round_trip(scratch: &Scratch, name: &str, content: &[u8], flags: &str) {
    let from = scratch.write("from", content);
    let into = scratch.file("into");
    scratch.ok(&format!("put {name} {} {flags}", from.display()));
    scratch.ok(&format!("get {name} -o {}", into.display()));
    assert!(std::fs::read(&into).unwrap() == content, "{name}");
    assert!(scratch.run(&format!("get {name}")).stdout == content, "{name}");
    assert!(!has_partial(scratch));
}

/// Whether a file is left that never became whole.
fn has_partial(scratch: &Scratch) -> bool {
    let mut entries = std::fs::read_dir(scratch.file("")).unwrap();
    entries.any(|entry| entry.unwrap().file_name().to_str().unwrap().ends_with(".partial"))
}

fn names(scratch: &Scratch) -> Vec<String> {
    let regions = scratch.json("ls --json");
    regions.iter().map(|region| region["name"].as_str().unwrap().to_owned()).collect()
}

fn holders(region: &Value) -> Vec<u64> {
    region["nodes"].as_array().unwrap().iter().map(|share| share["node"].as_u64().unwrap()).collect()
}

#[test]
fn files_of_every_size_come_back_as_they_went() {
    let scratch = Scratch::new("sizes");
    let _up = scratch.up(2);
    for (name, len) in [("empty", 0), ("byte", 1), ("piece", MIB), ("ragged", 9 * MIB + 12_345)] {
        check_round_trip(&scratch, name, &bytes(len), "");
    }
    assert_eq!(names(&scratch), ["byte", "empty", "piece", "ragged"]);
    check_round_trip(&scratch, "there", &bytes(3 * MIB), "--node 1");
    assert_eq!(holders(&scratch.json("stat there --json")[0]), [1]);
    check_round_trip(&scratch, "everywhere", &bytes(20 * MIB), "--spread");
    assert_eq!(holders(&scratch.json("stat everywhere --json")[0]), [0, 1]);
}

#[test]
fn what_has_no_length_can_be_put() {
    let scratch = Scratch::new("stdin");
    let _up = scratch.up(2);
    // Up to three parts of growing size, ending within a piece, with one, and with a part.
    for (index, len) in [0, 1, 2 * MIB, 16 * MIB, 50 * MIB + 7].into_iter().enumerate() {
        let content = bytes(len);
        let mut put = scratch.command(&format!("put piped-{index} -")).stdin(Stdio::piped()).spawn().unwrap();
        put.stdin.take().unwrap().write_all(&content).unwrap();
        assert!(put.wait().unwrap().success());
        assert!(scratch.run(&format!("get piped-{index}")).stdout == content, "{len} bytes");
    }
    scratch.ok("put made-up /proc/self/status --spread");
    assert!(scratch.ok("get made-up").contains("halite"));
}

/// Bytes of regions of all nodes.
fn used(scratch: &Scratch) -> u64 {
    let of = |key: &str| -> u64 {
        scratch.json("status --json").iter().map(|row| row[key].as_u64().unwrap_or(0)).sum()
    };
    of("bytes_used") + of("bytes_quarantined")
}

#[test]
fn what_never_ends_is_refused_when_memory_is_full_and_leaves_nothing() {
    let scratch = Scratch::new("endless");
    let _up = scratch.up(2);
    let complaint = scratch.fails("put zero /dev/zero", 1);
    assert!(complaint.contains("no space") && complaint.contains("has no length"), "{complaint}");
    eventually(|| used(&scratch) == 0);
    assert_eq!(names(&scratch), Vec::<String>::new());
    // Nor has it been written anywhere else.
    assert_eq!(std::fs::read_dir(scratch.file("")).unwrap().count(), 1, "the cluster's directory");
}

#[test]
fn cluster_and_name_are_looked_at_before_anything_is_read() {
    let scratch = Scratch::new("checked");
    // Nothing comes from this pipe, and its other end stays open.
    let (silent, _writer) = rustix::pipe::pipe().unwrap();
    let fails = |line: &str| {
        let put = scratch.command(line).stdin(silent.try_clone().unwrap()).output().unwrap();
        assert_eq!(put.status.code(), Some(1));
        String::from_utf8(put.stderr).unwrap()
    };
    assert!(fails("put new -").contains("there is no cluster"));
    let _up = scratch.up(1);
    check_round_trip(&scratch, "taken", b"salt", "");
    assert!(fails("put taken -").contains("exists already"));
    let long = "n".repeat(256);
    assert!(fails(&format!("put {long} -")).contains("255 are the most"));
}

#[test]
fn a_put_that_is_killed_leaves_no_region() {
    let scratch = Scratch::new("killed-put");
    let _up = scratch.up(2);
    let mut put = scratch.command("put half -").stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = put.stdin.take().unwrap();
    stdin.write_all(&bytes(20 * MIB)).unwrap();
    assert!(used(&scratch) > 0, "half of it is there");
    assert_eq!(names(&scratch), Vec::<String>::new());
    put.kill().unwrap();
    put.wait().unwrap();
    eventually(|| used(&scratch) == 0);

    // The same where the length is known: killed as soon as its memory is taken.
    let file = std::fs::File::create(scratch.file("large")).unwrap();
    file.set_len(200 << 20).unwrap();
    let large = scratch.file("large");
    let mut put = scratch.command(&format!("put half {}", large.display())).spawn().unwrap();
    eventually(|| used(&scratch) > 0);
    put.kill().unwrap();
    // A fast machine may be done before.
    if put.wait().unwrap().success() {
        scratch.ok("rm half");
    }
    assert_eq!(names(&scratch), Vec::<String>::new());
    eventually(|| used(&scratch) == 0);
    check_round_trip(&scratch, "half", b"whole", "");
}

#[test]
fn a_put_that_is_interrupted_while_nothing_comes_ends_and_leaves_nothing() {
    let scratch = Scratch::new("interrupted-put");
    let _up = scratch.up(1);
    let mut put = scratch.command("put half -").stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    put.stdin.as_mut().unwrap().write_all(&bytes(3 * MIB)).unwrap();
    eventually(|| used(&scratch) > 0);
    rustix::process::kill_process(rustix::process::Pid::from_child(&put), rustix::process::Signal::INT)
        .unwrap();
    // Its standard input stays open until it has ended.
    let stdin = put.stdin.take();
    let output = put.wait_with_output().unwrap();
    drop(stdin);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("interrupted"));
    eventually(|| used(&scratch) == 0);
}

#[test]
fn of_two_puts_under_one_name_the_first_that_is_whole_wins() {
    let scratch = Scratch::new("race");
    let _up = scratch.up(1);
    let mut slow =
        scratch.command("put name -").stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = slow.stdin.take().unwrap();
    stdin.write_all(&bytes(3 * MIB)).unwrap();
    eventually(|| used(&scratch) > 0);
    check_round_trip(&scratch, "name", b"salt", "");
    drop(stdin);
    let output = slow.wait_with_output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("exists already"));
    assert_eq!(scratch.run("get name").stdout, b"salt");
}

#[test]
fn a_region_moves_and_keeps_its_bytes() {
    let scratch = Scratch::new("move");
    let _up = scratch.up(2);
    let content = bytes(5 * MIB);
    check_round_trip(&scratch, "region", &content, "--node 0");
    scratch.ok("mv region --to 1");
    assert_eq!(holders(&scratch.json("stat region --json")[0]), [1]);
    assert!(scratch.run("get region").stdout == content);
    let complaint = scratch.fails("mv region --to 7", 1);
    assert_eq!(complaint, "halite: cannot move \"region\" to node 7: node 7 is not in the cluster\n");
    assert!(scratch.ok("stat region").contains("node 1"));
}

#[test]
fn explain_tells_which_way_bytes_take() {
    let scratch = Scratch::new("explain");
    let _up = scratch.up(2);
    check_round_trip(&scratch, "region", &bytes(9 * MIB), "--spread");
    let told = &scratch.json("explain region --json")[0];
    let pieces = told["pieces"].as_array().unwrap();
    assert_eq!(pieces.len(), 2);
    assert!(pieces.iter().all(|piece| piece["path"] == "direct" && piece["provider"] == "shm"), "{told}");
    assert_eq!(pieces.iter().map(|piece| piece["bytes"].as_u64().unwrap()).sum::<u64>(), told["len"]);
    let text = scratch.ok("explain region");
    assert!(text.contains("read: loads; write: stores") && text.contains("mapped here"), "{text}");

    let peer = &scratch.json("explain 1 --json")[0];
    assert_eq!(
        (&peer["state"], &peer["connected"], &peer["direct"]),
        (&"alive".into(), &true.into(), &true.into())
    );
    assert_eq!(peer["pid"], scratch.pid(1));
    assert!(scratch.ok("explain 1").starts_with("node 1: alive, connected\n"));
    let complaint = scratch.fails("explain 7", 1);
    assert_eq!(complaint, "halite: cannot explain node 7: node 7 is not in the cluster\n");
    assert!(scratch.fails("explain nosuch", 1).contains("there is no such region"));
}

#[test]
fn a_region_that_is_removed_is_gone() {
    let scratch = Scratch::new("remove");
    let _up = scratch.up(1);
    check_round_trip(&scratch, "region", b"salt", "");
    scratch.ok("rm region");
    assert_eq!(names(&scratch), Vec::<String>::new());
    for line in ["get region", "rm region", "stat region", "mv region --to 0", "grant region bob r"] {
        let complaint = scratch.fails(line, 1);
        assert!(complaint.contains("region"), "{line}: {complaint}");
    }
    let complaint = scratch.fails("rm nosuch", 1);
    assert_eq!(complaint, "halite: cannot remove \"nosuch\": there is no such region\n");
}

#[test]
fn permissions_are_granted_and_taken_back() {
    let scratch = Scratch::new("grant");
    let _up = scratch.up(1);
    check_round_trip(&scratch, "region", b"salt", "");
    let of = |who: &str| {
        let region = &scratch.json("stat region --json")[0];
        let grants = region["grants"].as_array().unwrap();
        let found = grants.iter().find(|grant| grant["who"] == who);
        found.map(|grant| grant["permissions"].as_str().unwrap().to_owned())
    };
    scratch.ok("grant region bob rw");
    assert_eq!(of("bob").as_deref(), Some("rw"));
    scratch.ok("revoke region bob w");
    assert_eq!(of("bob").as_deref(), Some("r"));
    scratch.ok("grant region bob none");
    assert_eq!(of("bob").as_deref(), Some("none"));
    scratch.ok("grant region everyone r");
    assert_eq!(scratch.json("stat region --json")[0]["everyone"], "r");

    // Somebody else sees only what was granted.
    let node = join(&scratch, "eve");
    let session = node.blocking_session();
    assert!(session.map("region", Permissions::READ).is_ok());
    assert!(session.map("region", Permissions::WRITE).is_err());
}

fn join(scratch: &Scratch, principal: &str) -> Node {
    let principal = (!principal.is_empty()).then(|| principal.to_owned());
    Node::embedded(Config { dir: scratch.cluster(), arena_bytes: 0, principal, ..Config::default() }).unwrap()
}

#[test]
fn a_put_that_fails_leaves_nothing_behind() {
    let scratch = Scratch::new("failed-put");
    let _up = scratch.up(1);
    check_round_trip(&scratch, "taken", b"salt", "");
    let file = scratch.write("file", &bytes(100));
    let file = file.display();
    let complaint = scratch.fails(&format!("put taken {file}"), 1);
    assert!(complaint.contains("exists already") && complaint.contains("halite rm"), "{complaint}");
    assert!(scratch.fails("put new /nonexistent", 1).contains("/nonexistent"));
    assert!(scratch.fails("put new /", 1).contains("directory"));
    assert!(scratch.fails(&format!("put new {file} --node 9"), 1).contains("node 9"));

    // More than there is memory for: the length alone is enough to know.
    let huge = std::fs::File::create(scratch.file("huge")).unwrap();
    huge.set_len(1 << 40).unwrap();
    let complaint = scratch.fails(&format!("put new {}", scratch.file("huge").display()), 1);
    assert!(complaint.contains("no space"), "{complaint}");

    assert!(!complaint.contains("--spread"), "no memory would suffice: {complaint}");

    // The kernel says 4096 bytes and has fewer: noticed only after the region was made.
    let complaint = scratch.fails("put new /sys/kernel/mm/transparent_hugepage/enabled", 1);
    assert!(complaint.contains("became shorter"), "{complaint}");
    assert_eq!(names(&scratch), ["taken"]);
    assert_eq!(scratch.run("get taken").stdout, b"salt");
}

#[test]
fn spreading_is_advised_where_it_would_help() {
    let scratch = Scratch::new("advice");
    let _up = scratch.up(2);
    let file = std::fs::File::create(scratch.file("large")).unwrap();
    // Each node has 256 MiB.
    file.set_len(300 << 20).unwrap();
    let line = format!("put large {}", scratch.file("large").display());
    let complaint = scratch.fails(&line, 1);
    assert!(complaint.contains("no space") && complaint.contains("add --spread"), "{complaint}");
    scratch.ok(&format!("{line} --spread"));
}

#[test]
fn a_get_that_fails_leaves_nothing_behind() {
    let scratch = Scratch::new("failed-get");
    let _up = scratch.up(1);
    check_round_trip(&scratch, "region", &bytes(3 * MIB), "");
    let complaint = scratch.fails("get region -o /dev/full", 1);
    assert!(complaint.contains("/dev/full") && complaint.contains("No space"), "{complaint}");
    assert!(scratch.fails("get region -o /", 1).contains("directory"));
    assert!(scratch.fails("get region -o /nonexistent/file", 1).contains("/nonexistent/file"));
    assert!(
        scratch
            .fails(&format!("get missing -o {}", scratch.file("missing").display()), 1)
            .contains("missing")
    );
    assert!(!scratch.file("missing").exists() && !has_partial(&scratch));
}

#[test]
fn get_notices_bytes_that_were_changed_since_they_were_put() {
    let scratch = Scratch::new("corrupt");
    let _up = scratch.up(1);
    check_round_trip(&scratch, "region", &bytes(2 * MIB), "");
    let node = join(&scratch, "");
    let session = node.blocking_session();
    let lh = session.map("region", Permissions::READ | Permissions::WRITE).unwrap();
    let mut byte = [0];
    session.read(lh, MIB as u64 + 17, &mut byte).unwrap();
    session.write(lh, MIB as u64 + 17, &[!byte[0]]).unwrap();

    let into = scratch.file("damaged");
    let complaint = scratch.fails(&format!("get region -o {}", into.display()), 1);
    assert!(complaint.contains("damaged"), "{complaint}");
    assert!(!into.exists() && !has_partial(&scratch));
    scratch.fails("get region", 1);

    session.write(lh, MIB as u64 + 17, &byte).unwrap();
    scratch.ok(&format!("get region -o {}", into.display()));
}

#[test]
fn a_region_that_was_not_put_is_copied_whole_with_a_notice() {
    let scratch = Scratch::new("foreign");
    let _up = scratch.up(1);
    let node = join(&scratch, "");
    let session = node.blocking_session();
    for (name, len) in [("short", 5u64), ("long", 5000)] {
        let lh = session.alloc(Some(name), len, halite::Placement::Anywhere, Permissions::empty()).unwrap();
        session.write(lh, 0, b"brine").unwrap();
        let output = scratch.run(&format!("get {name}"));
        check_ok(name, &output);
        let mut expected = b"brine".to_vec();
        expected.resize(len as usize, 0);
        assert_eq!(output.stdout, expected);
        assert!(String::from_utf8_lossy(&output.stderr).contains("not verified"));
    }
}
