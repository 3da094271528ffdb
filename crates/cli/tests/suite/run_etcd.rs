//! Applications over a cluster whose names are in etcd, which is away for a while: where there is none, see `etcd.rs`.

use crate::support;

use serde_json::Value;
use support::etcd::Etcd;
use support::{Running, Scratch, eventually};

/// What a run of a log says on standard error, which also tells when it has come to wait.
fn said(scratch: &Scratch) -> String {
    std::fs::read_to_string(scratch.file("said")).unwrap()
}

/// Two nodes whose names are in an etcd of their own; `None` where there is none.
fn cluster(name: &str) -> Option<(Scratch, Etcd)> {
    let scratch = Scratch::new(name);
    let etcd = Etcd::start(&scratch)?;
    scratch.ok(&format!("up --nodes 2 --arena 256M --detach --directory {}", etcd.address("log")));
    Some((scratch, etcd))
}

fn run_log(scratch: &Scratch, options: &str) -> Running {
    let mut command = scratch.command(&format!("run log --json {options}"));
    command.stderr(std::fs::File::create(scratch.file("said")).unwrap());
    Running::of(command)
}

/// Found with a run that ended, and left its regions.
#[test]
#[ignore = "slow: .ci/deep slow"]
fn a_run_of_a_log_waits_for_etcd_and_is_whole_when_that_is_back() {
    let Some((scratch, mut etcd)) = cluster("etcd-log") else { return };
    let mut run = run_log(&scratch, "--seconds 4");
    // One of whichever number: each is freed milliseconds after it was filled.
    eventually(|| scratch.ok("ls --json").contains("halite-run-log/"));
    etcd.kill();
    eventually(|| said(&scratch).contains("waiting for the directory of names"));
    etcd.run();
    let told: Value = serde_json::from_str(&run.line()).unwrap();
    assert_eq!(run.wait().code(), Some(0));
    assert_eq!(told["verified"], true, "{told}");
    assert!(told["waits_for_directory"].as_u64().unwrap() > 0, "{told}");
    assert_eq!(said(&scratch).lines().count(), 1, "it is said once: {}", said(&scratch));
    assert_eq!(scratch.ok("ls --json"), "");
    assert!(scratch.nodes().iter().all(|node| node["bytes_used"] == 0 && node["regions"] == 0));
    scratch.ok("down");
}

#[test]
#[ignore = "slow: .ci/deep slow"]
fn a_run_of_a_log_at_whose_end_etcd_is_away_says_what_it_leaves_and_how_that_is_removed() {
    let Some((scratch, mut etcd)) = cluster("etcd-log-left") else { return };
    // Its reader is in the only segment, so that it comes to the end.
    let mut run = run_log(&scratch, "--seconds 2 --writers 1 --segment 200M");
    eventually(|| scratch.run("get halite-run-log.progress").stdout.iter().any(|byte| *byte != 0));
    etcd.kill();
    assert_eq!(run.wait().code(), Some(1));
    let complaint = said(&scratch);
    for part in [
        "cannot remove the log \"halite-run-log\": without the directory of names",
        "regions of this run may be left, called \"halite-run-log\", \"halite-run-log.progress\" or \"halite-run-log/...\"",
        &format!("`halite rm --dir {} NAME` removes each", scratch.cluster().display()),
    ] {
        assert!(complaint.contains(part), "{complaint}");
    }
    etcd.run();
    let left =
        || scratch.json("ls --json").into_iter().map(|region| region["name"].as_str().unwrap().to_owned());
    eventually(|| left().count() > 0);
    for name in left() {
        assert!(name.starts_with("halite-run-log"));
        scratch.ok(&format!("rm {name}"));
    }
    assert_eq!(scratch.ok("ls --json"), "");
    scratch.ok("down");
}

/// Found with a run that ended at once: one writer has the memory of the segment, and its name a moment later.
#[test]
fn writers_that_begin_a_log_where_there_is_room_for_one_segment_share_it() {
    let Some((scratch, _etcd)) = cluster("etcd-log-one") else { return };
    let run = scratch.json("run log --json --seconds 0.2 --writers 8 --segment 200M");
    assert_eq!(run[0]["verified"], true, "{run:?}");
    scratch.ok("down");
}
