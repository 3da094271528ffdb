//! Several processes on one host, which share its memory, and adapters between hosts.

use crate::common;

use common::{LONG_NS, Side, open, open_on, remote, run_for};
use halite_fabric::{Capabilities, Event, Fabric, Lane, Local, Operation, Status};
use halite_sim::{Profile, World};

/// Processes `a` and `b` of one host, and `c` of another; `a` has connected to both.
struct Three {
    world: World,
    a: Side,
    b: Side,
    c: Side,
}

fn three() -> Three {
    let world = World::with_processes(1, Profile::rnic_100g(), Profile::local());
    let mut a = open(&world, "a");
    let mut b = open_on(&world, world.add_process(a.host), "b");
    let mut c = open(&world, "c");
    a.fabric.connect("b", b"I am a");
    run_for(&world, LONG_NS);
    a.peer = a.connected();
    b.peer = b.connected();
    a.fabric.connect("c", b"I am a");
    run_for(&world, LONG_NS);
    c.peer = c.connected();
    Three { world, a, b, c }
}

#[test]
fn each_peer_is_reached_by_the_shortest_path() {
    let Three { world, a, b, c } = three();
    let to_c = a.connected();
    assert!(world.share_a_host(a.host, b.host) && !world.share_a_host(a.host, c.host));
    let Capabilities { direct, inline_bytes_max, .. } = a.fabric.capabilities(a.peer);
    assert_eq!((direct, inline_bytes_max), (true, Profile::local().inline_bytes_max));
    let Capabilities { direct, inline_bytes_max, .. } = a.fabric.capabilities(to_c);
    assert_eq!((direct, inline_bytes_max), (false, Profile::rnic_100g().inline_bytes_max));

    let window = a.fabric.direct(a.peer, b.key).expect("the processes share a host");
    window.write(0, b"salt").unwrap();
    assert_eq!(b.bytes(0, 4), b"salt");
    assert!(a.fabric.direct(to_c, c.key).is_none(), "no stores reach another host");
    assert!(a.fabric.direct(a.peer, halite_fabric::Key(1)).is_none(), "there is no such key");

    // The duration of a posted request depends on the path.
    let took_ns = [a.peer, to_c].map(|peer| {
        let began_ns = world.now_ns();
        let operation = Operation::Write { local: Local::Inline(b"pepper"), remote: remote(b.key, 8) };
        a.fabric.post(peer, Lane::FIRST, &[common::request(1, operation)]).unwrap();
        while a.completed().is_empty() {
            run_for(&world, 10);
        }
        world.now_ns() - began_ns
    });
    assert_eq!((b.bytes(8, 6), c.bytes(8, 6)), (b"pepper".to_vec(), b"pepper".to_vec()));
    assert!(took_ns[0] + 1_000 < took_ns[1], "{took_ns:?}");
}

/// A simulated kill drops the values of the process. Their destructors may write, which a dead process would not do.
#[test]
fn stores_of_a_killed_process_are_invisible() {
    let Three { world, a, b, .. } = three();
    let from_a_to_b = a.fabric.direct(a.peer, b.key).unwrap();
    let from_b_to_a = b.fabric.direct(b.peer, a.key).unwrap();
    from_a_to_b.write(0, b"alive").unwrap();
    a.memory.write(0, b"alive").unwrap();
    world.crash(a.host);
    from_a_to_b.write(0, b"dead!").unwrap();
    a.memory.write(0, b"dead!").unwrap();
    assert_eq!(b.bytes(0, 5), b"alive");
    let mut seen = [0; 5];
    from_b_to_a.read(0, &mut seen).unwrap();
    assert_eq!(&seen, b"alive", "a process can read the memory of a dead process while it holds a window");
    run_for(&world, LONG_NS);
    let peer = b.peer;
    assert_eq!(b.events(), [Event::Disconnected { peer }, Event::CutOff { peer, exited: true }]);
}

#[test]
fn kernels_report_dead_processes_but_not_dead_hosts() {
    for is_whole_host in [false, true] {
        let Three { world, a, b, c } = three();
        if is_whole_host {
            world.crash_whole_host(b.host);
            assert!(world.has_crashed(a.host) && world.has_crashed(b.host) && world.is_running(c.host));
        } else {
            world.crash(a.host);
            assert!(world.is_running(b.host));
        }
        run_for(&world, LONG_NS);
        assert_eq!(c.events().is_empty(), is_whole_host);
        if is_whole_host {
            c.post(1, Operation::Send { bytes: b"hello?", imm: 0 });
            run_for(&world, LONG_NS);
            assert_eq!(c.completed(), [(1, Status::RetryExceeded)], "a timeout must end the request");
        }
    }
}
