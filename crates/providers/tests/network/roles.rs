//! Two processes that do to each other all that there is to do, one request after the other.

use std::net::IpAddr;
use std::path::PathBuf;

use halite_fabric::{CompletionKind, Event, Key, Local, Operation, Status};
use halite_mem::Window;
use halite_providers::{Mtu, RoceConfig, RoceFabric};

use crate::common::{Cluster, Node, Role, bytes_of, inline, remote, role_dir};
use crate::world::Network;

/// What each does to the other.
pub enum Step {
    Write { at: u64, len: u64 },
    WriteImm { at: u64, len: u64, imm: u32 },
    Read { at: u64, len: u64 },
    Send { len: u64, imm: u32 },
    FetchAdd { at: u64, add: u64 },
    CompareSwap { at: u64, expected: u64, new: u64 },
}

use Step::*;

/// The words stand where nothing is written.
pub const STEPS: [Step; 22] = [
    Write { at: 0, len: 1 },
    Write { at: 8, len: 8 },
    Write { at: 0, len: 0 },
    Write { at: 101, len: 64 },
    Write { at: 64, len: 4096 },
    Write { at: 64, len: 4097 },
    // Begins off a word, so that a packet goes before.
    Write { at: 13, len: 30_000 },
    WriteImm { at: 200, len: 0, imm: 0xffff_ffff },
    WriteImm { at: 200, len: 3, imm: 1 },
    WriteImm { at: 40_000, len: 50_001, imm: 2 },
    Send { len: 0, imm: 3 },
    Send { len: 5, imm: 4 },
    Send { len: 65_536, imm: 5 },
    FetchAdd { at: WORD, add: 5 },
    FetchAdd { at: WORD, add: u64::MAX },
    CompareSwap { at: WORD, expected: 4, new: 0x0123_4567_89ab_cdef },
    CompareSwap { at: WORD, expected: 4, new: 6 },
    Write { at: 0, len: BYTES },
    Read { at: 0, len: 1 },
    Read { at: 7, len: 9000 },
    Read { at: 0, len: BYTES },
    Send { len: 1, imm: 6 },
];

/// What each registers: what the other writes to, and what it writes and reads itself.
const BYTES: u64 = 300_000;
const WORD: u64 = BYTES;
const TARGET: Key = Key(0);
const OWN: Key = Key(1);
/// Tells the roles how large their packets are.
const MTU_VARIABLE: &str = "HALITE_TEST_MTU";
const FAMILY_VARIABLE: &str = "HALITE_TEST_FAMILY";

/// Has both processes do all that they have to do.  Each writes its packets into the directory, as "one.pcap" and "two.pcap".
pub fn play(network: &Network, cluster: &Cluster, mtu: Mtu, family: &str) {
    let start = |side, role| {
        let variables = [(MTU_VARIABLE, mtu.bytes().to_string()), (FAMILY_VARIABLE, family.to_owned())];
        network.inside(side, || Role::start_with(cluster, role, &variables))
    };
    let roles = [start(1, "roles::two"), start(0, "roles::one")];
    for mut role in roles {
        assert!(role.0.wait().unwrap().success(), "a role fails");
    }
}

/// Of a side, in IPv4 or IPv6.
pub fn address(family: &str, side: usize) -> IpAddr {
    let prefix = if family == "6" { "fd77::" } else { "10.77.0." };
    format!("{prefix}{}", side + 1).parse().unwrap()
}

/// Where a side writes its packets.
pub fn trace(cluster: &Cluster, side: usize) -> PathBuf {
    cluster.0.join(["one.pcap", "two.pcap"][side])
}

#[test]
#[ignore = "a role"]
fn one() {
    act(0);
}

#[test]
#[ignore = "a role"]
fn two() {
    act(1);
}

fn act(side: usize) {
    let Some(dir) = role_dir() else { return };
    let variable = |name| std::env::var(name).unwrap();
    let mtu = variable(MTU_VARIABLE).parse().unwrap();
    let config = RoceConfig {
        address: address(&variable(FAMILY_VARIABLE), side),
        mtu: Mtu::ALL.into_iter().find(|size| size.bytes() == mtu).unwrap(),
        pcap: Some(dir.join(["one.pcap", "two.pcap"][side])),
        ..RoceConfig::new(&dir, ["one", "two"][side])
    };
    let mut node = Node::of(RoceFabric::open(config).unwrap());
    let (target, _) = node.register(BYTES + 8);
    let (own, window) = node.register(BYTES);
    assert_eq!((target, own), (TARGET, OWN));
    let peer = if side == 1 { node.connected() } else { dial(&mut node) };
    let mut told = Vec::new();
    for step in &STEPS {
        take(&mut node, &window, peer, step, side, &mut told);
    }
    let expected: Vec<_> = STEPS.iter().filter_map(what_it_tells).collect();
    while told.len() < expected.len() {
        told.push(told_of(node.completion().kind));
    }
    assert_eq!(told, expected);
}

/// The other one may not be there yet.
fn dial(node: &mut Node) -> halite_fabric::PeerId {
    loop {
        node.fabric.connect("two.sock", b"");
        match node.event() {
            Event::Connected { peer, .. } => return peer,
            Event::ConnectFailed(_) => std::thread::yield_now(),
            event => panic!("{event:?}"),
        }
    }
}

/// What is at a place of what a side writes.
fn byte(side: usize, at: u64) -> u8 {
    ((at + side as u64) % 251) as u8
}

fn take(
    node: &mut Node,
    window: &Window,
    peer: halite_fabric::PeerId,
    step: &Step,
    side: usize,
    told: &mut Vec<(usize, u32)>,
) {
    let part = |at: u64, len: u64| (at..at + len).map(|at| byte(side, at)).collect::<Vec<u8>>();
    let local = |offset, len| Local::Registered { key: OWN, offset, len };
    let to = |at| remote(TARGET, at);
    let write = |at: u64, len: u64| window.write(at, &part(at, len)).unwrap();
    match *step {
        Write { at, len } => {
            write(at, len);
            run(node, peer, Operation::Write { local: local(at, len), remote: to(at) }, told);
        }
        WriteImm { at, len, imm } if len < 100 => {
            let bytes = part(at, len);
            run(node, peer, Operation::WriteImm { local: inline(&bytes), remote: to(at), imm }, told);
        }
        WriteImm { at, len, imm } => {
            write(at, len);
            run(node, peer, Operation::WriteImm { local: local(at, len), remote: to(at), imm }, told);
        }
        Send { len, imm } => {
            run(node, peer, Operation::Send { bytes: &part(0, len), imm }, told);
        }
        FetchAdd { at, add } => {
            let old = run(node, peer, Operation::FetchAdd { remote: to(at), add }, told);
            assert_eq!(old, if add == 5 { 0 } else { 5 });
        }
        CompareSwap { at, expected, new } => {
            let old = run(node, peer, Operation::CompareSwap { remote: to(at), expected, new }, told);
            assert_eq!(old, if new == 6 { 0x0123_4567_89ab_cdef } else { 4 });
        }
        Read { at, len } => {
            window.write(0, &vec![0; BYTES as usize]).unwrap();
            run(node, peer, Operation::Read { local: local(at, len), remote: to(at) }, told);
            assert!(bytes_of(window, at, len as usize) == part(at, len), "read something else");
        }
    }
}

/// Carries a request out, and notes what the other tells meanwhile.
fn run(
    node: &mut Node,
    peer: halite_fabric::PeerId,
    operation: Operation<'_>,
    told: &mut Vec<(usize, u32)>,
) -> u64 {
    node.post(peer, operation).unwrap();
    loop {
        let completion = node.completion();
        assert_eq!(completion.status, Status::Success);
        match completion.kind {
            CompletionKind::Done { .. } => return 0,
            CompletionKind::Atomic { old, .. } => return old,
            kind => told.push(told_of(kind)),
        }
    }
}

/// How much was sent, and the immediate.
fn told_of(kind: CompletionKind) -> (usize, u32) {
    match kind {
        CompletionKind::Received { bytes, imm } => (bytes.len(), imm),
        CompletionKind::Notified { imm } => (0, imm),
        kind => panic!("nothing was posted: {kind:?}"),
    }
}

fn what_it_tells(step: &Step) -> Option<(usize, u32)> {
    match *step {
        Send { len, imm } => Some((len as usize, imm)),
        WriteImm { imm, .. } => Some((0, imm)),
        _ => None,
    }
}
