//! Answers that callers read in place, in the buffer where they have arrived.

use crate::common;

use std::time::Duration;

use common::Dir;
use halite::{Function, NodeId, Port, ServeOptions};

/// Timeout of calls; an answered call takes much less.
const TIMEOUT: Duration = Duration::from_secs(60);
const ECHO: Function = Function(7);

#[test]
fn lent_answers_keep_their_place_until_dropped() {
    let dir = Dir::new();
    for (first, second) in [(dir.join(0), dir.join(1)), (dir.join_posted(2), dir.join_posted(3))] {
        let (here, there) = (first.blocking_session(), second.blocking_session());
        let server = there.serve(ECHO, ServeOptions::default()).unwrap();
        let output = |seed: usize, len| (0..len).map(|at| (at * 7 + seed) as u8).collect::<Vec<u8>>();
        for len in [0, 1, 300, 4097, 1 << 20] {
            let lend = |seed| {
                let pending = here.post_call(second.id(), ECHO, b"", len, TIMEOUT).unwrap();
                server.recv().unwrap().reply(&output(seed, len)).unwrap();
                pending.lend_answer().unwrap()
            };
            let (one, two) = (lend(1), lend(2));
            assert!(one.to_vec() == output(1, len) && two.to_vec() == output(2, len), "{len} bytes");
            assert_eq!((one.len(), one.is_empty()), (len, len == 0));
            drop(one);
            assert!(lend(3).to_vec() == output(3, len) && two.to_vec() == output(2, len), "{len} bytes");
            check_parts(&two, &output(2, len));
        }
    }
}

/// Checks parts of an answer; a read beyond its end returns fewer bytes.
fn check_parts(answer: &halite::Answer, expected: &[u8]) {
    for offset in [0, 1, expected.len() / 2, expected.len(), expected.len() + 1, usize::MAX] {
        let rest = expected.get(offset..).unwrap_or_default();
        let mut part = [0xEE; 100];
        let count = answer.copy_to(offset, &mut part);
        assert_eq!(&part[..count], &rest[..rest.len().min(100)], "from {offset} of {}", expected.len());
        assert!(part[count..].iter().all(|byte| *byte == 0xEE));
    }
}

#[test]
fn long_answers_are_fetched_before_they_are_lent() {
    let dir = Dir::new();
    let (first, second) = (dir.join(0), dir.join(1));
    let (here, there) = (first.blocking_session(), second.blocking_session());
    let server = there.serve(ECHO, ServeOptions::default()).unwrap();
    let pending = here.post_call(NodeId(1), ECHO, b"", (64 << 20) + 1, TIMEOUT).unwrap();
    server.recv().unwrap().reply(&[7; 5000]).unwrap();
    assert_eq!(pending.lend_answer().unwrap().to_vec(), [7; 5000]);
}

#[test]
fn payloads_may_have_any_length() {
    let len = (64 << 20) + 1;
    let payload: Vec<u8> = (0..len).map(|at| at as u8).collect();
    for join in [Dir::join, Dir::join_posted] {
        let dir = Dir::new();
        let (first, second) = (join(&dir, 0), join(&dir, 1));
        let (here, there) = (first.blocking_session(), second.blocking_session());
        let server = there.serve(ECHO, ServeOptions::default()).unwrap();
        let pending = here.post_call(second.id(), ECHO, &payload, len, TIMEOUT).unwrap();
        let call = server.recv().unwrap();
        assert!(call.input() == payload);
        call.reply(&payload).unwrap();
        assert!(pending.answer().unwrap() == payload);

        let dir = Dir::new();
        let (first, second) = (join(&dir, 0), join(&dir, 1));
        let (here, there) = (first.blocking_session(), second.blocking_session());
        let mailbox = there.open_port(Port(7), ServeOptions::default()).unwrap();
        std::thread::scope(|scope| {
            // A long message is read from its sender's memory, so sending waits for the receiver.
            let sent = scope.spawn(|| here.send(second.id(), Port(7), &payload));
            assert!(mailbox.recv().unwrap().bytes == payload);
            sent.join().unwrap().unwrap();
        });
    }
}
