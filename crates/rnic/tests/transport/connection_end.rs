//! Ends of connections: the cause, the status of posted requests, and no access to memory afterwards.

use halite_rnic::{Cause, Config, Event, Mtu, PostError, Request, State, Status};

use crate::pair::*;

fn break_cause(pair: &mut Pair, side: Side) -> Option<Cause> {
    match pair.end(side).events.last() {
        Some(Event::Broken { cause }) => Some(*cause),
        _ => None,
    }
}

#[test]
fn connection_ends_with_the_lease_of_a_silent_peer() {
    let mut pair = Pair::with(lease_ms(5000), [0, 0]);
    pair.a().write(0, b"before");
    pair.run();
    pair.log.clear();
    let begin = pair.now_ns;
    pair.set_filter(|_| Fate::Lost);
    pair.a().write(8, b"in flight");
    pair.run();
    assert_eq!(pair.now_ns - begin, 5_000_000_000);
    assert_eq!(pair.a().completions()[1..], [(1, Status::RetryExceeded)]);
    assert_eq!(break_cause(&mut pair, A), Some(Cause::RetryExceeded));
    assert!(pair.log.len() < 40, "{} packets", pair.log.len());
    assert_eq!(pair.a().qp.poll_timeout(), None);
}

#[test]
fn read_fails_with_the_lease_after_the_peer_dies() {
    for selective in [false, true] {
        let config = Config {
            mtu: Mtu::Bytes256,
            reads_max: 64,
            answers_max: 64,
            room_packets: 64,
            selective,
            ..lease_ms(5000)
        };
        let mut pair = Pair::with(config, [0, 0]);
        pair.a().write(0, b"before");
        pair.run();
        let (begin, text) = (pair.now_ns, pattern(40 * 256, 5));
        pair.b().memory.put(0, &text);
        let mut is_dead = false;
        pair.set_filter(move |sent| {
            is_dead |= sent.from == B && sent.psn >= 20;
            match (sent.from, sent.psn, sent.repetition) {
                // The network delays the last response until the connection has ended.
                (B, 19, 0) => Fate::Delayed(6_000_000_000),
                _ if is_dead => Fate::Lost,
                _ => Fate::Delivered,
            }
        });
        let target = 1 << 16;
        let reads = [pair.a().read(target, 0, 40 * 256), pair.a().read(2 * target, 0, 40 * 256)];
        pair.run_until(begin + 5_001_000_000);
        let expected = [(reads[0], Status::RetryExceeded), (reads[1], Status::Aborted)];
        assert_eq!(pair.a().completions()[1..], expected, "selective: {selective}");
        assert_eq!(break_cause(&mut pair, A), Some(Cause::RetryExceeded));
        assert_eq!(
            pair.a().memory.get(target, 18 * 256),
            text[..18 * 256],
            "responses that arrived in time have landed"
        );
        assert_eq!(pair.a().memory.get(target + 18 * 256, 22 * 256), [0; 22 * 256]);
        assert_eq!((pair.a().qp.posted(), pair.a().qp.poll_timeout()), (0, None));
        // After the completion, the application may use the memory again.
        pair.a().memory.put(target, &[9; 40 * 256]);
        pair.run();
        assert!(pair.now_ns > begin + 6_000_000_000, "the last response has arrived");
        assert_eq!(pair.a().memory.get(target, 40 * 256), [9; 40 * 256]);
    }
}

#[test]
fn no_packet_lands_after_a_close() {
    let mut pair = Pair::with(lease_ms(50), [0, 0]);
    pair.a().write(0, b"in time");
    pair.run();
    pair.a().write(0, b"too late");
    pair.a().fetch_add(64, 1);
    pair.run_until(pair.now_ns + ONE_WAY_NS / 2);
    let posted = pair.b().write(0, b"flushed");
    pair.b().qp.close();
    assert_eq!(pair.b().qp.state(), State::Error);
    pair.run();
    assert_eq!(pair.b().memory.get(0, 8), b"in time\0");
    assert_eq!(pair.b().memory.word(64), 0);
    assert_eq!(pair.b().completions(), [(posted, Status::Flushed)]);
    assert_eq!(break_cause(&mut pair, B), Some(Cause::Closed));
    assert_eq!(pair.a().completions()[1..], [(1, Status::RetryExceeded), (2, Status::Aborted)]);
    let late = Request { id: 9, operation: write(0, b"", None), signalled: true, solicited: false };
    assert_eq!(pair.b().qp.post(late), Err(PostError::NotReady));
    pair.b().qp.close();
    assert_eq!(pair.b().qp.poll_event(), None, "the connection ends once");
}
