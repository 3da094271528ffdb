//! Nodes of one host that do not know each other's pids, for example containers that share a cluster directory.

use rustix::process::{Pid, Signal, kill_process};

use crate::application::{APART, Application};
use crate::support::{Process, eventually};
use crate::world::{Processes, World};

/// The pid is 0 for its peers, so they cannot send it a signal; through its pidfd they nevertheless detect its end.
#[test]
#[ignore = "slow: .ci/deep slow"]
fn memory_of_a_stopped_sibling_is_quarantined() {
    let Some(world) = World::new(1, Processes::Shared) else { return };
    let host = world.host(0);
    let _first = host.start(&format!("{APART} halite node --id 0 --arena 64M"), "ready");
    let holder = Application::start_apart(host, "hold");
    let explain = || host.ok(&format!("halite explain {}", holder.node()));
    assert!(explain().contains("shm"), "{}", explain());
    let process = Process::open(holder.process());
    kill_process(Pid::from_raw(holder.process() as i32).unwrap(), Signal::STOP).unwrap();
    eventually(|| explain().contains("unreachable"));
    let used = || host.nodes()[0]["bytes_used"].as_u64().unwrap();
    assert!(
        process.lives() && used() >= 4 << 20,
        "its half of a region is still allocated, because the process may write to it"
    );
    assert!(host.fails("halite rm wide").contains("is down or out of reach"), "no other node frees it");
    assert!(process.lives() && used() >= 4 << 20);
    process.kill();
    eventually(|| used() < 4 << 20);
}
