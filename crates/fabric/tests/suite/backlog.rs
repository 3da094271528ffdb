//! Requests of several flows that wait for their turn.

use halite_fabric::Backlog;

#[test]
fn flows_share_by_bytes_and_keep_their_order() {
    let mut backlog = Backlog::default();
    for number in 0..10 {
        backlog.push(2, 120 << 10, false, (2, number));
    }
    for number in 0..100 {
        backlog.push(3, 8 << 10, false, (3, number));
    }
    backlog.push(4, 64, false, (4, 0));
    let all: Vec<_> = std::iter::from_fn(|| backlog.pop(u64::MAX, |request| *request)).collect();
    assert!(backlog.is_empty() && all.len() == 111, "{all:?}");
    let of_flow = |flow: u32| all.iter().filter(move |request| request.0 == flow).map(|request| request.1);
    assert!((2..5).all(|flow| of_flow(flow).is_sorted()), "{all:?}");
    let alone = all.iter().position(|request| request.0 == 4);
    assert!(alone.is_some_and(|index| index < 4), "a short request waits for no long one: {all:?}");
    // With 256 bytes for each request, 14.6 of these cost as much as one of flow 2.
    let beside = all.iter().take_while(|request| **request != (2, 5)).filter(|request| request.0 == 3);
    assert!((80..=95).contains(&beside.count()), "{all:?}");
}

#[test]
fn a_short_request_waits_for_one_part_of_a_long_one() {
    let mut backlog = Backlog::default();
    backlog.push(2, 120 << 10, true, (2, 0));
    let take = |request: &mut (u32, u32)| {
        request.1 += 8;
        (request.0, request.1 - 8)
    };
    let pop = |backlog: &mut Backlog<_>| backlog.pop(8 << 10, take);
    assert_eq!(pop(&mut backlog), Some((2, 0)));
    backlog.push(3, 64, false, (3, 0));
    let order: Vec<_> = std::iter::from_fn(|| pop(&mut backlog)).collect();
    assert_eq!(order[0], (3, 0), "{order:?}");
    let parts: Vec<_> = order.iter().filter(|request| request.0 == 2).map(|request| request.1).collect();
    assert_eq!(parts, (1..15).map(|part| part * 8).collect::<Vec<_>>());
}

/// A flow that sends long requests one by one has no more than its share.
#[test]
fn a_flow_that_returns_within_a_round_waits_for_its_turn() {
    let mut backlog = Backlog::default();
    (0..64).for_each(|number| backlog.push(2, 8 << 10, false, (2, number)));
    backlog.push(3, 8 << 10, false, (3, 0));
    let mut counts = [0, 0];
    for _ in 0..64 {
        let (flow, number): (usize, u32) = backlog.pop(u64::MAX, |request| *request).unwrap();
        counts[flow - 2] += 1;
        if flow == 3 {
            backlog.push(3, 8 << 10, false, (3, number + 1));
        }
    }
    assert!(counts[0] >= 32, "{counts:?}");
}
