//! A test that is killed leaves nothing behind.

use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::common::{Cluster, Role, role_dir};
use crate::world::Network;

/// Has a network and a program in it, says which, and waits to be killed.
#[test]
#[ignore = "a role"]
fn killed() {
    let Some(dir) = role_dir() else { return };
    let network = Network::new().unwrap();
    let running = network.start(1, &["sleep", "1000"]);
    let name = network.inside(1, || fs::read_link("/proc/thread-self/ns/net").unwrap());
    fs::write(dir.join("said.new"), format!("{} {}", running.0.id(), name.display())).unwrap();
    fs::rename(dir.join("said.new"), dir.join("said")).unwrap();
    loop {
        std::thread::park();
    }
}

fn eventually<T>(what: &str, mut find: impl FnMut() -> Option<T>) -> T {
    for _ in 0..6000 {
        if let Some(found) = find() {
            return found;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("waited in vain for {what}");
}

/// Whether any process is in that network.
fn is_used(network: &str) -> bool {
    let processes = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let mut networks = processes.filter_map(|process| fs::read_link(process.path().join("ns/net")).ok());
    networks.any(|found| found == Path::new(network))
}

#[test]
fn who_is_killed_takes_its_networks_and_programs_along() {
    if Network::new().is_none() {
        return;
    }
    let cluster = Cluster::new();
    fs::create_dir(&cluster.0).unwrap();
    let mut role = Role::start(&cluster, "residue::killed");
    let said = eventually("a network", || fs::read_to_string(cluster.0.join("said")).ok());
    let (program, network) = said.split_once(' ').unwrap();
    let program = Path::new("/proc").join(program);
    assert!(program.exists() && is_used(network));
    role.0.kill().unwrap();
    // A network without a process, a descriptor or a name is gone.
    eventually("the end of all", || (!program.exists() && !is_used(network)).then_some(()));
}
