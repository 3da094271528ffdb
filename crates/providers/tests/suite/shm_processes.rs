//! The shm fabric between processes, which exit, stop, and are cut off.
//!
//! Ignored tests are roles, which other tests start as separate processes.

use crate::common;

use common::{Cluster, Node, Role, role_dir};
use halite_fabric::{CutOff, Event, PeerId, PostCause};
use halite_providers::{Fence, ShmConfig};
use rustix::process::{Signal, WaitOptions, kill_process, waitpid};

/// Immediate of the message that makes `echo` exit.
const END: u32 = u32::MAX;

/// Stops the process. Waits until it has stopped, because the signal takes effect asynchronously.
fn stop(role: &Role) {
    kill_process(role.pid(), Signal::STOP).unwrap();
    let (_, status) =
        waitpid(Some(role.pid()), WaitOptions::UNTRACED).unwrap().expect("the role is a child process");
    assert!(status.stopped(), "{status:?}");
}

/// Registers memory, connects to `tester`, then answers each message with the same message, until it receives [`END`].
#[test]
#[ignore = "a role"]
fn echo() {
    let Some(dir) = role_dir() else { return };
    let mut node = Node::open(ShmConfig::new(dir, "echo"));
    node.register(1 << 20);
    node.fabric.connect("tester.sock", b"echo");
    let tester = node.connected();
    loop {
        let (bytes, imm) = node.received();
        if imm == END {
            // Exits without dropping the fabric, so the fabric sends no message to the peer.
            std::process::exit(0);
        }
        node.send(tester, &bytes, imm).unwrap();
    }
}

/// Accepts an `echo` whose pid namespace is invisible to this process.
#[test]
#[ignore = "a role"]
fn tester_in_a_namespace() {
    let Some(dir) = role_dir() else { return };
    let mut tester = Node::open(ShmConfig::new(dir, "tester"));
    let peer = tester.connected();
    tester.send(peer, b"alive?", 1).unwrap();
    assert_eq!(tester.received(), (b"alive?".to_vec(), 1));
    let window = tester.fabric.direct(peer, halite_fabric::Key(0)).unwrap();
    window.store_u64(0, 3).unwrap();
    assert_eq!(tester.fabric.cut_off(peer), CutOff::NotPermitted, "the peer has no pid in this namespace");
    tester.send(peer, b"", END).unwrap();
    check_cut_off(&mut tester, peer);
}

/// Starts a process that plays `echo`, and waits until it is connected and answers.
fn start_echo(cluster: &Cluster, tester: &mut Node) -> (Role, PeerId) {
    let role = Role::start(cluster, "shm_processes::echo");
    let peer = tester.connected();
    tester.send(peer, b"alive?", 1).unwrap();
    assert_eq!(tester.received(), (b"alive?".to_vec(), 1));
    (role, peer)
}

fn check_cut_off(tester: &mut Node, peer: PeerId) {
    assert_eq!(tester.event(), Event::Disconnected { peer });
    assert_eq!(tester.event(), Event::CutOff { peer, exited: true });
    let error = tester.send(peer, b"still there?", 1).unwrap_err();
    assert_eq!(error.cause, PostCause::NotConnected);
    assert_eq!(tester.fabric.cut_off(peer), CutOff::Done);
}

#[test]
fn a_killed_peer_is_disconnected_and_cut_off() {
    let cluster = Cluster::new();
    let mut tester = cluster.open("tester");
    let (mut role, peer) = start_echo(&cluster, &mut tester);
    let window = tester.fabric.direct(peer, halite_fabric::Key(0)).unwrap();
    role.0.kill().unwrap();
    check_cut_off(&mut tester, peer);
    window.store_u64(0, 3).unwrap();
    assert_eq!(window.load_u64(0), Ok(3), "the peer's memory is still mapped");
    // The next fabric can use the name: it replaces the files of the dead process.
    assert_eq!(cluster.listeners(), ["tester.sock"]);
    let (_again, next) = start_echo(&cluster, &mut tester);
    assert_ne!(next, peer);
}

#[test]
#[ignore = "needs root: .ci/deep slow"]
fn peers_in_sibling_pid_namespaces_detect_exits() {
    let cluster = Cluster::new();
    let Some(mut tester) = Role::start_in_namespace(&cluster, "shm_processes::tester_in_a_namespace") else {
        println!("skipped: creating a pid namespace requires root, and the programs setpriv and unshare");
        return;
    };
    let _outside = cluster.open("outside");
    while !cluster.listeners().contains(&"tester.sock".to_owned()) {
        assert_eq!(tester.0.try_wait().unwrap(), None, "the role exited too early");
        std::thread::yield_now();
    }
    let _echo =
        Role::start_in_namespace(&cluster, "shm_processes::echo").expect("a namespace was created before");
    assert!(tester.0.wait().unwrap().success());
}

#[test]
fn a_stopped_peer_can_be_cut_off() {
    let cluster = Cluster::new();
    let mut tester = cluster.open("tester");
    let (role, peer) = start_echo(&cluster, &mut tester);
    stop(&role);
    assert_eq!(tester.fabric.cut_off(peer), CutOff::Started);
    check_cut_off(&mut tester, peer);
}

#[test]
fn without_permission_to_kill_a_peer_is_only_watched() {
    let cluster = Cluster::new();
    let mut config = cluster.config("tester");
    config.fence = Fence::Never;
    let mut tester = Node::open(config);
    let (mut role, peer) = start_echo(&cluster, &mut tester);
    assert_eq!(tester.fabric.cut_off(peer), CutOff::NotPermitted);
    tester.send(peer, b"still there?", 1).unwrap();
    assert_eq!(tester.received().0, b"still there?");
    role.0.kill().unwrap();
    check_cut_off(&mut tester, peer);
}

#[test]
fn a_stopped_peer_is_cut_off_when_it_dies() {
    let cluster = Cluster::new();
    let mut tester = cluster.open("tester");
    let (mut role, peer) = start_echo(&cluster, &mut tester);
    stop(&role);
    tester.fabric.disconnect(peer);
    assert_eq!(tester.event(), Event::Disconnected { peer });
    // The stopped process may access this process's memory once it resumes.
    assert_eq!(tester.try_event(), None);
    role.0.kill().unwrap();
    assert_eq!(tester.event(), Event::CutOff { peer, exited: true });
}

#[test]
fn a_stopped_peer_cannot_block_a_registration() {
    let cluster = Cluster::new();
    let mut config = cluster.config("tester");
    config.handshake_timeout = std::time::Duration::from_secs(5);
    let mut tester = Node::open(config);
    let (mut role, peer) = start_echo(&cluster, &mut tester);
    stop(&role);
    // More messages than fit into the buffer of a socket, which holds some hundreds.
    for _ in 0..1000 {
        tester.register(4096);
    }
    assert_eq!(tester.event(), Event::Disconnected { peer });
    role.0.kill().unwrap();
    assert_eq!(tester.event(), Event::CutOff { peer, exited: true });
}
