//! Applications on a cluster with names in etcd, which is unavailable for a while. Where etcd is not installed, these
//! tests are skipped, or fail if `HALITE_NEEDS_ETCD` is set.

use crate::support;

use serde_json::Value;
use support::etcd::Etcd;
use support::{Running, Scratch, eventually};

/// Found with a run that ended without freeing its regions.
#[test]
#[ignore = "slow: .ci/deep slow"]
fn log_waits_for_etcd() {
    let scratch = Scratch::new("etcd-log");
    let Some(mut etcd) = Etcd::start() else { return };
    scratch.ok(&format!("up --nodes 2 --arena 256M --detach --directory {}", etcd.address("log")));
    let mut command = scratch.command("run log --name log --json --seconds 4");
    command.stderr(std::fs::File::create(scratch.file("said")).unwrap());
    let mut run = Running::of(command);
    let text = || std::fs::read_to_string(scratch.file("said")).unwrap();
    // The name of any segment: each segment is freed milliseconds after it was filled.
    eventually(|| scratch.ok("ls --json").contains("\"log/"));
    etcd.kill();
    eventually(|| text().contains("waiting for the directory of names"));
    etcd.run();
    let message: Value = serde_json::from_str(&run.line()).unwrap();
    assert_eq!(run.wait().code(), Some(0));
    assert_eq!(message["verified"], true, "{message}");
    assert!(message["waits_for_directory"].as_u64().unwrap() > 0, "{message}");
    assert_eq!(text().lines().count(), 1, "it is logged once: {}", text());
    assert_eq!(scratch.ok("ls --json"), "");
    assert!(scratch.nodes().iter().all(|node| node["bytes_used"] == 0 && node["regions"] == 0));
    scratch.ok("down");
}
