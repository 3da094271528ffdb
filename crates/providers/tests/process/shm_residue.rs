//! A closed shm fabric leaves no descriptors, mappings or threads.

use crate::common;

use common::{Cluster, Node, connect, wait_until};
use halite_fabric::Event;
use halite_providers::{ShmConfig, Sleep};

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn shared_mappings() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("memfd:")).count()
}

/// Returns the number of threads of fabrics. Threads of other tests start and end meanwhile.
fn threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.starts_with("halite-shm")).count()
}

#[test]
fn fabrics_leave_nothing_behind() {
    let _serial = crate::serialize();
    let cluster = Cluster::new();
    wait_until(|| threads() == 0);
    let before = (descriptors(), shared_mappings());
    for round in 0..20 {
        let sleep = [Sleep::Futex, Sleep::Descriptor][round % 2];
        let one = Node::open(ShmConfig { sleep, ..cluster.config("one") });
        let (mut one, mut two) = (one, cluster.open("two"));
        one.register(4096);
        let (to_two, to_one) = connect(&mut one, &mut two, "two.sock");
        two.register(4096);
        one.send(to_two, b"never polled", 0).unwrap();
        one.fabric.disconnect(to_two);
        for (node, peer) in [(&mut one, to_two), (&mut two, to_one)] {
            assert_eq!(node.event(), Event::Disconnected { peer });
            assert_eq!(node.event(), Event::CutOff { peer, exited: false });
        }
        // The second connection is open when both are dropped.
        connect(&mut two, &mut one, "one.sock");
    }
    assert_eq!((descriptors(), shared_mappings()), before);
    // The kernel removes the entry of a thread some time after the join.
    wait_until(|| threads() == 0);
    assert_eq!(std::fs::read_dir(&cluster.0).unwrap().count(), 0);
}
