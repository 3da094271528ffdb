use std::collections::VecDeque;

use proptest::prelude::*;

use super::memory::HEAD_OFFSET;
use super::*;
use crate::{PagePolicy, Segment};

fn ring(capacity: u64) -> (Producer, Consumer, Window) {
    let segment = Segment::create("ring", ring_bytes(capacity), PagePolicy::Normal).unwrap();
    let window = segment.window(0, segment.len()).unwrap();
    let producer = Producer::new(window.clone()).unwrap();
    let consumer = Consumer::new(window.clone()).unwrap();
    (producer, consumer, window)
}

fn pop(consumer: &mut Consumer) -> Option<Result<(u32, Vec<u8>), Corrupt>> {
    let popped = consumer.try_pop()?;
    Some(popped.map(|message| (message.imm(), message.to_vec())))
}

/// The header of a message of kind 0 at `position` of a ring of 256 bytes.
fn header(position: u64, imm: u32, len: u32) -> u64 {
    Header { kind: 0, imm, len }.pack(Lap::of(position, 256))
}

fn store(window: &Window, position: u64, word: u64) {
    window.store_u64(DATA_OFFSET + position % 256, word).unwrap();
}

#[test]
fn only_a_power_of_two_makes_a_ring() {
    let segment = Segment::create("ring", 8192, PagePolicy::Normal).unwrap();
    for window_bytes in [0, 8, 127, 128, 128 + 128, 128 + 320, 4096] {
        let window = segment.window(0, window_bytes).unwrap();
        let refused = Consumer::new(window).err();
        assert_eq!(refused, Some(BadRing::Size { window_bytes }));
    }
    let odd = segment.window(4, ring_bytes(256)).unwrap();
    assert_eq!(Producer::new(odd).err(), Some(BadRing::Misaligned));
}

#[test]
fn a_full_ring_takes_more_once_something_was_consumed() {
    let (mut producer, mut consumer, _) = ring(256);
    assert_eq!(producer.try_push(0, 0, &[&[0; 121]]), Err(PushError::TooLong { len: 121, max: 120 }));
    for imm in 0..4 {
        producer.try_push(0, imm, &[&[9; 56]]).unwrap();
    }
    assert_eq!(producer.try_push(0, 4, &[]), Err(PushError::Full { len: 0 }));
    assert_eq!(pop(&mut consumer), Some(Ok((0, vec![9; 56]))));
    producer.try_push(0, 4, &[]).unwrap();
    for imm in 1..4 {
        assert_eq!(pop(&mut consumer), Some(Ok((imm, vec![9; 56]))));
    }
    assert_eq!(pop(&mut consumer), Some(Ok((4, vec![]))));
    assert_eq!(pop(&mut consumer), None);
}

#[test]
fn a_consumer_knows_that_somebody_waits_for_room_until_it_is_found() {
    let (mut producer, mut consumer, window) = ring(512);
    while producer.try_push(0, 0, &[&[7; 56]]).is_ok() {}
    assert_eq!(producer.has_or_asks_for_room(56), Ok(false));
    assert!(!consumer.take_made_room(), "none is made yet");
    pop(&mut consumer);
    assert!(consumer.take_made_room() && !consumer.take_made_room());
    assert_eq!(producer.has_or_asks_for_room(56), Ok(true));
    pop(&mut consumer);
    assert!(!consumer.take_made_room(), "nobody waits any more");
    // What it finds there may be anything: at worst it wakes somebody in vain.
    window.store_u64(64, u64::MAX).unwrap();
    pop(&mut consumer);
    assert!(consumer.take_made_room());
}

#[test]
fn the_head_is_told_an_eighth_at_a_time_and_half_always_fits_an_empty_ring() {
    let (mut producer, mut consumer, window) = ring(4096);
    let longest = vec![7; payload_bytes_max(4096) as usize];
    for messages in 0..200 {
        for imm in 0..messages % 10 {
            producer.try_push(0, imm, &[b"small"]).unwrap();
            assert!(pop(&mut consumer).unwrap().is_ok());
        }
        let told = window.load_u64(HEAD_OFFSET).unwrap();
        assert!(consumer.head - told < 4096 / 8);
        producer.try_push(0, 0, &[&longest]).unwrap();
        assert_eq!(pop(&mut consumer), Some(Ok((0, longest.clone()))));
    }
}

#[test]
fn small_messages_leave_the_consumers_lines_alone() {
    let (mut producer, mut consumer, window) = ring(4096);
    for imm in 0..7 {
        producer.try_push(5, imm, &[b"small"]).unwrap();
        let message = consumer.try_pop().unwrap().unwrap();
        assert_eq!((message.kind(), message.len()), (5, 5));
    }
    // No header was cleared, and the head was not told: the producer still owns all these lines.
    assert_eq!(window.load_u64(HEAD_OFFSET), Ok(0));
    for line in 0..7 {
        assert_ne!(window.load_u64(DATA_OFFSET + line * LINE_BYTES), Ok(0));
    }
}

#[test]
fn payload_that_looks_like_headers_is_never_taken_for_one() {
    let (mut producer, mut consumer, _) = ring(256);
    // Each record takes two lines, the second of which begins with the header that a message of one line would
    // have there, in whatever lap.
    for round in 0..40u64 {
        for lap in 0..4 {
            let (small, pretended) = ([round as u8; 20], header(256 * lap, 77, 3).to_ne_bytes());
            let mut payload = vec![0; 56];
            payload.extend(pretended);
            producer.try_push(0, 1, &[&payload]).unwrap();
            assert_eq!(pop(&mut consumer), Some(Ok((1, payload))));
            assert_eq!(pop(&mut consumer), None);
            // An odd number of lines, so that every line is a first and a second one in turn.
            producer.try_push(0, 2, &[&small]).unwrap();
            assert_eq!(pop(&mut consumer), Some(Ok((2, small.to_vec()))));
            assert_eq!(pop(&mut consumer), None);
        }
    }
}

#[test]
fn what_a_producer_wrote_before_it_was_killed_stays_invisible() {
    let (mut producer, mut consumer, window) = ring(256);
    for imm in 0..9 {
        // Payload without the store of the header is what a kill leaves behind.
        let at = producer.tail % 256;
        window.write(DATA_OFFSET + at + 8, &[0xff; 56]).unwrap();
        assert_eq!(pop(&mut consumer), None);
        producer.try_push(0, imm, &[b"whole"]).unwrap();
        assert_eq!(pop(&mut consumer), Some(Ok((imm, b"whole".to_vec()))));
    }
}

#[test]
fn payload_is_copied_to_windows_whole_or_not_at_all() {
    let (mut producer, mut consumer, _) = ring(256);
    let target = Segment::create("target", 4096, PagePolicy::Normal).unwrap();
    let target = target.window(0, 100).unwrap();
    let payload: Vec<u8> = (1..=100).collect();
    // Of two lines each, so that every other one wraps once a single line has shifted them.
    producer.try_push(0, 0, &[]).unwrap();
    assert!(pop(&mut consumer).unwrap().is_ok());
    for _ in 0..8 {
        producer.try_push(0, 0, &[&payload]).unwrap();
        let message = consumer.try_pop().unwrap().unwrap();
        target.fill(0, 100, 0).unwrap();
        for offset in [11, 60, 100, 101, u64::MAX, u64::MAX - 60] {
            assert!(message.copy_to(10, &target, offset).is_err());
        }
        let mut bytes = [0; 100];
        target.read(0, &mut bytes).unwrap();
        assert_eq!(bytes, [0; 100]);
        message.copy_to(10, &target, 10).unwrap();
        target.read(0, &mut bytes).unwrap();
        assert_eq!((&bytes[..10], &bytes[10..]), (&[0; 10][..], &payload[10..]));
    }
}

#[test]
fn a_corrupt_header_is_reported_and_stays_so() {
    let too_long = header(0, 0, 121);
    let longest_length = header(0, 0, LEN_MAX as u32);
    // Laps that are neither this one nor, there being none, the one before.
    for word in [too_long, longest_length, header(256, 0, 0), header(768, 0, 0), 5, 7, 8, u64::MAX] {
        let (_, mut consumer, window) = ring(256);
        store(&window, 0, word);
        assert_eq!(pop(&mut consumer), Some(Err(Corrupt)), "header {word:#x}");
        store(&window, 0, header(0, 1, 1));
        assert_eq!(pop(&mut consumer), Some(Err(Corrupt)), "header {word:#x}");
    }
}

#[test]
fn only_the_header_of_the_lap_before_may_be_left_over() {
    let (mut producer, mut consumer, window) = ring(256);
    for imm in 0..4 {
        producer.try_push(0, imm, &[]).unwrap();
        assert!(pop(&mut consumer).unwrap().is_ok());
    }
    assert_eq!(pop(&mut consumer), None);
    store(&window, 0, 0);
    assert_eq!(pop(&mut consumer), None);
    store(&window, 0, header(512, 0, 0));
    assert_eq!(pop(&mut consumer), Some(Err(Corrupt)));
}

#[test]
fn a_corrupt_head_is_reported_and_nothing_is_overwritten() {
    let (mut producer, mut consumer, window) = ring(256);
    producer.try_push(0, 1, &[&[7; 120]]).unwrap();
    producer.try_push(0, 2, &[&[8; 120]]).unwrap();
    for head in [257, 1 << 50, u64::MAX] {
        window.store_u64(HEAD_OFFSET, head).unwrap();
        assert_eq!(producer.try_push(0, 3, &[]), Err(PushError::Corrupt));
    }
    window.store_u64(HEAD_OFFSET, 0).unwrap();
    assert_eq!(pop(&mut consumer), Some(Ok((1, vec![7; 120]))));
    assert_eq!(pop(&mut consumer), Some(Ok((2, vec![8; 120]))));
}

#[test]
fn a_head_that_goes_back_is_corrupt() {
    let (mut producer, mut consumer, window) = ring(256);
    for imm in 0..5 {
        producer.try_push(0, imm, &[]).unwrap();
        assert!(pop(&mut consumer).unwrap().is_ok());
    }
    for imm in 5..8 {
        producer.try_push(0, imm, &[]).unwrap();
    }
    window.store_u64(HEAD_OFFSET, 0).unwrap();
    assert_eq!(producer.try_push(0, 8, &[]), Err(PushError::Corrupt));
}

/// One step of a story about a ring of 512 bytes.
#[derive(Clone, Debug)]
enum Step {
    Push { first: usize, second: usize, imm: u32, pretend: bool },
    Pop,
}

fn step() -> impl Strategy<Value = Step> {
    let push = (0..130usize, 0..130usize, any::<u32>(), any::<bool>());
    prop_oneof![
        push.prop_map(|(first, second, imm, pretend)| Step::Push { first, second, imm, pretend }),
        Just(Step::Pop),
    ]
}

/// Bytes that tell messages apart, or that look like headers wherever a line begins.
fn payload(len: usize, imm: u32, pretend: bool) -> Vec<u8> {
    let pretended = header(256 * u64::from(imm), 3, 3).to_ne_bytes();
    let byte = |at: usize| if pretend { pretended[at % 8] } else { at as u8 ^ imm as u8 };
    (0..len).map(byte).collect()
}

proptest! {
    #[test]
    fn messages_come_out_as_they_went_in_until_a_crash(
        steps in prop::collection::vec(step(), 1..400), torn in 0..240usize
    ) {
        let (mut producer, mut consumer, window) = ring(512);
        let mut model: VecDeque<(u32, Vec<u8>)> = VecDeque::new();
        let (mut model_bytes, mut untold_bytes) = (0, 0);
        for step in steps {
            match step {
                Step::Push { first, second, imm, pretend } => {
                    let bytes = payload(first + second, imm, pretend);
                    let len = bytes.len() as u64;
                    let pushed = producer.try_push(2, imm, &[&bytes[..first], &bytes[first..]]);
                    if len > 248 {
                        prop_assert_eq!(pushed, Err(PushError::TooLong { len, max: 248 }));
                    } else if model_bytes + untold_bytes + record_bytes(len) > 512 {
                        prop_assert_eq!(pushed, Err(PushError::Full { len }));
                    } else {
                        prop_assert_eq!(pushed, Ok(()));
                        model_bytes += record_bytes(len);
                        model.push_back((imm, bytes));
                    }
                }
                Step::Pop => {
                    let expected = model.pop_front();
                    let bytes = expected.as_ref().map_or(0, |(_, bytes)| record_bytes(bytes.len() as u64));
                    model_bytes -= bytes;
                    untold_bytes = (untold_bytes + bytes) % 64;
                    prop_assert_eq!(pop(&mut consumer), expected.map(Ok));
                }
            }
        }
        // The producer dies in the middle of its next message, if there is room for one.
        if producer.check_room(torn as u64).is_ok() {
            let bytes = payload(torn, 0, true);
            producer.memory.write(producer.tail + HEADER_BYTES, &bytes);
        }
        for expected in model {
            prop_assert_eq!(pop(&mut consumer), Some(Ok(expected)));
        }
        prop_assert_eq!(pop(&mut consumer), None);
        prop_assert!(window.load_u64(HEAD_OFFSET).unwrap() <= producer.tail);
    }

    #[test]
    fn no_corruption_makes_either_side_panic(
        words in prop::collection::vec((0..48u64, any::<u64>(), 0..4u64), 0..40)
    ) {
        let (mut producer, mut consumer, window) = ring(256);
        for (word, value, lap) in words {
            // Half of the words look as if they were headers.
            let len = value as u32 % 200;
            let word_value = if value % 2 == 0 { header(lap * 256, 0, len) } else { value };
            window.store_u64(word * 8, word_value).unwrap();
            let _ = producer.try_push(value as u8 % 8, value as u32, &[&value.to_ne_bytes()]);
            if let Some(Ok((_, payload))) = pop(&mut consumer) {
                prop_assert!(payload.len() <= 120);
            }
        }
    }
}
