//! The wire is unplugged for a while, or for good.

use std::time::Duration;

use halite_fabric::{CompletionKind, Event, Fabric, Lane, Operation, PostCause, Status, WorkId, WorkRequest};
use halite_providers::RoceConfig;

use crate::common::pair::Pair;
use crate::common::{Cluster, bytes_of, inline, remote};
use crate::traffic::Traffic;
use crate::world::{DEVICES, Network};

/// How often who asks in vain has to have asked again before the wire is plugged in.
const TIMEOUTS: u64 = 4;

fn connected(network: &Network, cluster: &Cluster, lease: Duration) -> Pair {
    network.connect([0, 1].map(|side| RoceConfig { lease, ..network.config(cluster, side) }))
}

fn set(network: &Network, side: usize, state: &str) {
    network.must(side, &format!("ip link set {} {state}", DEVICES[side]));
}

/// Down at this side, while both have something under way.
fn nobody_hears_of_a_link_that_comes_back(side: usize) {
    let Some(network) = Network::new() else { return };
    let cluster = Cluster::new();
    let mut pair = connected(&network, &cluster, Duration::from_secs(600));
    let mut traffic = Traffic::new(&pair, 5);
    traffic.run(&mut pair, 50);
    let before = [0, 1].map(|end: usize| pair.ends[end].counters().timeouts);
    set(&network, side, "down");
    let keys = [0, 1].map(|end: usize| pair.ends[end].register(64));
    let ids = [0, 1].map(|end| {
        let to = remote(keys[1 - end].0, 0);
        pair.post(end, Operation::Write { local: inline(b"while it was down"), remote: to })
    });
    pair.until("packets that are sent again in vain", |pair| {
        let timeouts = |end: usize| pair.ends[end].counters().timeouts - before[end];
        (timeouts(0) >= TIMEOUTS && timeouts(1) >= TIMEOUTS).then_some(())
    });
    for end in &pair.ends {
        assert!(end.events.is_empty(), "{:?}", end.events);
    }
    set(&network, side, "up");
    for end in 0..2 {
        let completion = pair.until("a completion", |pair| pair.ends[end].take_completion());
        assert_eq!(
            (completion.status, completion.kind),
            (Status::Success, CompletionKind::Done { id: ids[end] })
        );
        assert_eq!(bytes_of(&keys[1 - end].1, 0, 17), b"while it was down");
    }
    traffic.run(&mut pair, 50);
    if side == 0 {
        assert!(pair.ends[0].fabric.dropped().unsent > 0, "the system refused to send");
    }
}

#[test]
fn nobody_hears_of_a_near_link_that_comes_back_within_the_lease() {
    nobody_hears_of_a_link_that_comes_back(0);
}

#[test]
fn nobody_hears_of_a_far_link_that_comes_back_within_the_lease() {
    nobody_hears_of_a_link_that_comes_back(1);
}

/// Both ends have a write under way, and one only listens.
fn a_link_that_stays_down_ends_all(side: usize, posting: &[usize]) {
    let Some(network) = Network::new() else { return };
    let cluster = Cluster::new();
    let mut pair = connected(&network, &cluster, Duration::from_secs(5));
    let mut traffic = Traffic::new(&pair, 6);
    traffic.run(&mut pair, 20);
    set(&network, side, "down");
    let keys = [0, 1].map(|end: usize| pair.ends[end].register(64).0);
    for &end in posting {
        let to = remote(keys[1 - end], 0);
        let ids: Vec<WorkId> = (0..3)
            .map(|_| pair.post(end, Operation::Write { local: inline(b"in vain"), remote: to }))
            .collect();
        assert_eq!(ids.len(), 3);
    }
    for end in 0..2 {
        pair.until("the end of the connection", |pair| {
            let peer = pair.ends[end].peer;
            let is_over = |event: &Event| *event == Event::CutOff { peer, exited: false };
            pair.ends[end].events.iter().any(is_over).then_some(())
        });
    }
    for (index, end) in pair.ends.iter_mut().enumerate() {
        let mut statuses = Vec::new();
        while let Some(completion) = end.take_completion() {
            assert!(matches!(completion.kind, CompletionKind::Done { .. }), "{completion:?}");
            statuses.push(completion.status);
        }
        let count = if posting.contains(&index) { 3 } else { 0 };
        assert_eq!(statuses.len(), count, "each request ends once");
        let is_typed = |status| matches!(status, Status::RetryExceeded | Status::PeerGone | Status::Flushed);
        assert!(statuses.iter().all(|status| is_typed(*status)), "{statuses:?}");
        let peer = end.peer;
        assert_eq!(end.events, [Event::Disconnected { peer }, Event::CutOff { peer, exited: false }]);
        let request = WorkRequest {
            id: WorkId(1),
            operation: Operation::Send { bytes: b"anybody?", imm: 0 },
            signalled: true,
            solicited: true,
        };
        let refused = end.fabric.post(peer, Lane::FIRST, &[request]).unwrap_err();
        assert_eq!(refused.cause, PostCause::NotConnected);
    }
    traffic.check_memory();
    // Who comes back begins anew.
    set(&network, side, "up");
    let [one, two] = pair.ends.map(|end| end.fabric);
    let mut again = Pair::connect([one, two]);
    Traffic::new(&again, 7).run(&mut again, 20);
}

#[test]
fn a_near_link_that_stays_down_ends_what_both_have_under_way() {
    a_link_that_stays_down_ends_all(0, &[0, 1]);
}

#[test]
fn a_far_link_that_stays_down_ends_what_one_has_under_way_and_the_other_hears_of_it() {
    a_link_that_stays_down_ends_all(1, &[0]);
}
