//! Calls and messages between nodes of one process, directly and by posting.

use crate::common;

use std::time::Duration;

use common::Dir;
use halite::{CallCause, Function, NodeId, Port, ReplyCause, SendCause, ServeCause, ServeOptions};

/// Long enough for any call that is answered at all.
const PATIENCE: Duration = Duration::from_secs(60);
const ECHO: Function = Function(7);

#[test]
fn inputs_and_outputs_of_any_length_arrive_whole() {
    let dir = Dir::new();
    check_lengths(&dir.join(0).blocking_session(), &dir.join(1).blocking_session());
}

fn check_lengths(here: &halite::blocking::Session, there: &halite::blocking::Session) {
    let server = there.serve(ECHO, ServeOptions::default()).unwrap();
    std::thread::scope(|scope| {
        let echo = server.clone();
        scope.spawn(move || {
            let mut call = echo.recv().unwrap();
            loop {
                let output: Vec<u8> = call.input().iter().rev().copied().collect();
                match echo.reply_and_recv(call, &output) {
                    Ok(next) => call = next,
                    Err(_) => return,
                }
            }
        });
        for len in [0, 1, 8, 100, 300, 512, 4096, 4097, 60_000, 65_536, 70_000, 1 << 20, 5_000_001] {
            let input: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
            let output = here.call(NodeId(1), ECHO, &input, PATIENCE).unwrap();
            assert!(output.iter().eq(input.iter().rev()), "{len} bytes");
            let mut into = vec![0; len + 1];
            assert_eq!(here.call_into(NodeId(1), ECHO, &input, &mut into, PATIENCE), Ok(len));
            assert!(into[..len].iter().eq(input.iter().rev()), "{len} bytes");
            let own = there.call(NodeId(1), ECHO, &input, PATIENCE).unwrap();
            assert!(own == output, "{len} bytes to itself");
        }
        server.close();
    });
    let gone = here.call(NodeId(1), ECHO, b"", PATIENCE).unwrap_err();
    assert_eq!(gone.cause, CallCause::UnknownFunction);
}

#[test]
fn an_answer_that_is_lent_is_read_where_it_has_arrived_and_keeps_its_place_until_it_is_dropped() {
    let dir = Dir::new();
    for (first, second) in [(dir.join(0), dir.join(1)), (dir.join_posted(2), dir.join_posted(3))] {
        let (here, there) = (first.blocking_session(), second.blocking_session());
        let server = there.serve(ECHO, ServeOptions::default()).unwrap();
        let output = |seed: usize, len| (0..len).map(|at| (at * 7 + seed) as u8).collect::<Vec<u8>>();
        for len in [0, 1, 300, 4097, 1 << 20] {
            let lend = |seed| {
                let pending = here.post_call(second.id(), ECHO, b"", len, PATIENCE).unwrap();
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

/// Reads over the end are cut short.
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
fn an_answer_that_is_too_long_to_be_written_here_is_fetched_before_it_is_lent() {
    let dir = Dir::new();
    let (first, second) = (dir.join(0), dir.join(1));
    let (here, there) = (first.blocking_session(), second.blocking_session());
    let server = there.serve(ECHO, ServeOptions::default()).unwrap();
    let pending = here.post_call(NodeId(1), ECHO, b"", (64 << 20) + 1, PATIENCE).unwrap();
    server.recv().unwrap().reply(&[7; 5000]).unwrap();
    assert_eq!(pending.lend_answer().unwrap().to_vec(), [7; 5000]);
}

#[test]
fn why_there_is_no_answer_is_told_to_a_caller_that_wants_it_lent() {
    let dir = Dir::new();
    let (first, second) = (dir.join(0), dir.join(1));
    let (here, there) = (first.blocking_session(), second.blocking_session());
    let server = there.serve(ECHO, ServeOptions::default()).unwrap();
    let pending = here.post_call(NodeId(1), ECHO, b"", 10, PATIENCE).unwrap();
    let refused = server.recv().unwrap().reply(&[1; 11]).unwrap_err();
    assert_eq!(refused.cause, ReplyCause::TooLong { max: 10 });
    assert_eq!(pending.lend_answer().unwrap_err().cause, CallCause::ReplyTooLong { len: 11, max: 10 });
}

#[test]
fn inputs_and_outputs_arrive_whole_where_they_must_be_posted() {
    let dir = Dir::new();
    check_lengths(&dir.join_posted(0).blocking_session(), &dir.join_posted(1).blocking_session());
}

#[test]
fn what_goes_wrong_with_a_call_is_told() {
    let dir = Dir::new();
    let (first, second) = (dir.join(0), dir.join(1));
    let (here, there) = (first.blocking_session(), second.blocking_session());
    let failed = |input: &[u8]| here.call(NodeId(1), ECHO, input, PATIENCE).unwrap_err().cause;
    assert_eq!(failed(b""), CallCause::UnknownFunction);
    assert_eq!(here.call(NodeId(9), ECHO, b"", PATIENCE).unwrap_err().cause, CallCause::UnknownNode);

    let server = there.serve(ECHO, ServeOptions { requests_max: 1, ..ServeOptions::default() }).unwrap();
    let twice = there.serve(ECHO, ServeOptions::default()).unwrap_err();
    assert!(matches!(twice.cause, ServeCause::Taken { .. }));

    // Nobody takes it, so it waits until its time is over, and takes no room from the next then.
    let late = here.call(NodeId(1), ECHO, b"late", Duration::from_millis(5)).unwrap_err();
    assert_eq!(late.cause, CallCause::Timeout);
    let next = here.call(NodeId(1), ECHO, b"next", Duration::from_millis(5)).unwrap_err();
    assert_eq!(next.cause, CallCause::Timeout);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // The one before may be taken before its cancel arrives.
            let call = std::iter::repeat_with(|| server.recv().unwrap()).find(|call| call.input() == b"long");
            let call = call.unwrap();
            let refused = call.reply(&[1; 11]).unwrap_err();
            assert_eq!(refused.cause, ReplyCause::TooLong { max: 10 });
            let call = server.recv().unwrap();
            assert_eq!(call.input(), b"dropped");
            drop(call);
        });
        let mut ten = [0; 10];
        let long = here.call_into(NodeId(1), ECHO, b"long", &mut ten, PATIENCE).unwrap_err();
        assert_eq!(long.cause, CallCause::ReplyTooLong { len: 11, max: 10 });
        assert_eq!(failed(b"dropped"), CallCause::NoReply);
    });
}

#[test]
fn a_slow_receiver_holds_its_senders_up_and_loses_nothing() {
    let dir = Dir::new();
    let (first, second) = (dir.join(0), dir.join(1));
    let (here, there) = (first.blocking_session(), second.blocking_session());
    const PORT: Port = Port(3);
    assert_eq!(here.send(NodeId(1), PORT, b"?").unwrap_err().cause, SendCause::UnknownPort);
    let mailbox = there.open_port(PORT, ServeOptions { requests_max: 4, ..ServeOptions::default() }).unwrap();
    for number in 0..4u32 {
        here.try_send(NodeId(1), PORT, &number.to_le_bytes()).unwrap();
    }
    assert_eq!(here.try_send(NodeId(1), PORT, b"full").unwrap_err().cause, SendCause::WouldBlock);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 4..1000u32 {
                here.send(NodeId(1), PORT, &number.to_le_bytes()).unwrap();
            }
        });
        for number in 0..1000u32 {
            assert_eq!(mailbox.recv().unwrap().bytes, number.to_le_bytes());
        }
    });
    assert_eq!(mailbox.try_recv(), Ok(None));
}
