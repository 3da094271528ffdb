//! Flows of one lane take turns.

use halite_fabric::{Class, Completion, CompletionKind, Fabric, Key, Lane, Local, Operation, Status, WorkId};

use crate::common::pair::Pair;
use crate::common::{Cluster, inline, remote};
use crate::world::Network;

const SLICE: u64 = 120 << 10;
/// More than any window, so that most slices wait.
const SLICES: usize = 256;
/// More than any window.
const LONG: u64 = 32 << 20;

fn lane(flow: u32) -> Lane {
    Lane { number: 1, class: Class::Bulk, flow }
}

/// Posts [`SLICES`] long writes of flow 2 and then a short write of flow 3, from the first to the second end. Returns
/// the ids of the long writes, and of the short one.
fn post_long_and_short(pair: &mut Pair, source: Key, target: Key) -> (Vec<WorkId>, WorkId) {
    let slice = || {
        let local = Local::Registered { key: source, offset: 0, len: SLICE };
        Operation::Write { local, remote: remote(target, 0) }
    };
    let long = (0..SLICES).map(|_| pair.post_to(0, lane(2), slice())).collect();
    let short = Operation::Write { local: inline(b"short"), remote: remote(target, SLICE) };
    (long, pair.post_to(0, lane(3), short))
}

fn take_completion(pair: &mut Pair) -> Option<(WorkId, Status)> {
    match pair.ends[0].take_completion()? {
        Completion { status, kind: CompletionKind::Done { id }, .. } => Some((id, status)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_short_request_overtakes_waiting_requests_of_another_flow() {
    let Some(network) = Network::new() else { return };
    let cluster = Cluster::new();
    let mut pair = network.connect([0, 1].map(|side| network.config(&cluster, side)));
    let ((source, _), (target, _)) = (pair.ends[0].register(1 << 20), pair.ends[1].register(1 << 20));
    let ((long_source, source_window), (long_target, target_window)) =
        (pair.ends[0].register(LONG), pair.ends[1].register(LONG));
    let pattern: Vec<u8> =
        (0..LONG / 8).flat_map(|word| word.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()).collect();
    source_window.write(0, &pattern).unwrap();
    // The first round measures the path.
    for round in 0..2 {
        let (long, short) = post_long_and_short(&mut pair, source, target);
        let mut order = Vec::new();
        while order.len() <= SLICES {
            let (id, status) = pair.wait_for("a completion", take_completion);
            assert_eq!(status, Status::Success);
            order.push(id);
        }
        let at = order.iter().position(|id| *id == short).expect("the short request has completed");
        order.remove(at);
        assert_eq!(order, long, "the requests of a flow keep their order");
        assert!(round == 0 || at < SLICES / 2, "{at} long requests completed first");
    }

    // A single long request leaves in parts, so the short request overtakes the later parts.
    let local = Local::Registered { key: long_source, offset: 0, len: LONG };
    let write = Operation::Write { local, remote: remote(long_target, 0) };
    let long = pair.post_to(0, lane(2), write);
    let short =
        pair.post_to(0, lane(3), Operation::Write { local: inline(b"short"), remote: remote(target, 0) });
    for id in [short, long] {
        assert_eq!(pair.wait_for("a completion", take_completion), (id, Status::Success));
    }
    let mut arrived = vec![0; LONG as usize];
    target_window.read(0, &mut arrived).unwrap();
    assert!(arrived == pattern, "all parts have arrived");

    let (long, short) = post_long_and_short(&mut pair, source, target);
    pair.ends[1].fabric.close();
    let mut outstanding: Vec<WorkId> = long.into_iter().chain([short]).collect();
    while !outstanding.is_empty() {
        let (id, _) = pair.wait_for("the completion of each request", take_completion);
        let before = outstanding.len();
        outstanding.retain(|other| *other != id);
        assert_eq!(outstanding.len() + 1, before, "each request completes once");
    }
}
