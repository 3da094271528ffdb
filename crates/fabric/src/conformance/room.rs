//! Cases about full queues, and about the event that reports room in a queue.

use super::Harness;
use super::node::{Node, Pair, quiet};
use crate::{CompletionKind, Event, Operation, PeerId, PostCause};

const MESSAGE: [u8; 1000] = [7; 1000];
/// A number of requests that exceeds every queue.
const MANY: u32 = 8000;

/// One of two ends that post at the same time: it posts until the queue is full, and then polls.
struct Flood<'a, 'h> {
    node: &'a mut Node<'h>,
    peer: PeerId,
    posted: u32,
    received: u32,
    may_post: bool,
    refused: u32,
}

impl Flood<'_, '_> {
    fn post(&mut self) {
        while self.may_post && self.posted < MANY {
            let numbers = self.posted..MANY.min(self.posted + 100);
            let requests: Vec<_> =
                numbers.map(|imm| quiet(0, Operation::Send { bytes: &MESSAGE, imm })).collect();
            match self.node.try_post(self.peer, &requests) {
                Ok(()) => self.posted += requests.len() as u32,
                Err(error) => {
                    assert_eq!(error.cause, PostCause::QueueFull);
                    self.posted += error.posted as u32;
                    self.may_post = false;
                    self.refused += 1;
                }
            }
        }
    }

    /// Polls the fabric. Returns true if the poll returned events.
    fn handle_events(&mut self) -> bool {
        let mut has_events = false;
        while let Some(event) = self.node.try_event() {
            has_events = true;
            match event {
                Event::Room { peer } => {
                    assert_eq!(
                        (peer, self.may_post),
                        (self.peer, false),
                        "room was reported without a refused post"
                    );
                    self.may_post = true;
                }
                Event::Completed(completion) => {
                    let CompletionKind::Received { bytes, imm } = completion.kind else {
                        panic!("{completion:?}");
                    };
                    assert_eq!(
                        (imm, &bytes[..]),
                        (self.received, &MESSAGE[..]),
                        "a message was lost, repeated or out of order"
                    );
                    self.received += 1;
                }
                event => panic!("unexpected {event:?}"),
            }
        }
        has_events
    }
}

/// Expects that every request arrives once and in order if both ends fill their queues, and post again only after
/// [`Event::Room`].
pub fn a_flood_both_ways_loses_nothing(harness: &dyn Harness) {
    let mut pair = Pair::new(harness);
    let flood = |node, peer| Flood { node, peer, posted: 0, received: 0, may_post: true, refused: 0 };
    let mut floods = [flood(&mut pair.one, pair.to_two), flood(&mut pair.two, pair.to_one)];
    let mut idle_rounds = 0;
    while floods.iter().any(|flood| flood.received < MANY) {
        floods.iter_mut().for_each(Flood::post);
        let has_events =
            floods.iter_mut().fold(false, |has_events, flood| flood.handle_events() | has_events);
        idle_rounds = if has_events { 0 } else { idle_rounds + 1 };
        assert!(idle_rounds < 100, "no event arrives, although messages are missing");
        harness.settle();
    }
    assert!(floods.iter().all(|flood| flood.refused > 0), "no queue was ever full");
    pair.one.expect_nothing();
    pair.two.expect_nothing();
}

/// Posts until the queue is full; returns the number of posted requests.
fn fill(node: &Node<'_>, peer: PeerId) -> u32 {
    for posted in 0..MANY {
        let send = quiet(0, Operation::Send { bytes: &MESSAGE, imm: posted });
        if let Err(error) = node.try_post(peer, &[send]) {
            assert_eq!((error.posted, error.cause), (0, PostCause::QueueFull));
            return posted;
        }
    }
    panic!("the queue is never full")
}

/// Expects that the fabric wakes a poster that found the queue full when the queue has room again, even if none of the
/// requests completes.
pub fn room_in_a_full_queue_wakes_the_poster(harness: &dyn Harness) {
    let mut pair = Pair::new(harness);
    for round in 0..3 {
        let posted = fill(&pair.one, pair.to_two);
        assert!(posted > 0, "round {round}");
        let mut received = 0;
        let room = pair.one.until(|one| {
            // The other end polls only while this one sleeps.
            let event = one.try_event();
            received += std::iter::from_fn(|| pair.two.try_event()).count() as u32;
            event
        });
        assert_eq!(room, Event::Room { peer: pair.to_two });
        pair.one.post(pair.to_two, 1, Operation::Send { bytes: b"at last", imm: 0 });
        assert_eq!(pair.one.ended().0, 1);
        received += pair.two.rest().len() as u32;
        assert_eq!(received, posted + 1);
    }
    pair.one.expect_nothing();
}
