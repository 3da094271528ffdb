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

/// Returns the header of a message of kind 0 at `position` of a ring of 256 bytes.
fn header(position: u64, imm: u32, len: u32) -> u64 {
    Header { kind: 0, imm, len }.pack(Lap::of(position, 256))
}

#[test]
fn a_corrupt_head_overwrites_nothing() {
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

/// One step of a history of a ring of 512 bytes.
#[derive(Clone, Debug)]
enum Step {
    Push { first: usize, second: usize, imm: u32, like_headers: bool },
    Pop,
}

fn step() -> impl Strategy<Value = Step> {
    let push = (0..130usize, 0..130usize, any::<u32>(), any::<bool>());
    prop_oneof![
        push.prop_map(|(first, second, imm, like_headers)| Step::Push { first, second, imm, like_headers }),
        Just(Step::Pop),
    ]
}

/// Returns bytes that distinguish messages, or that look like headers wherever a line begins.
fn payload(len: usize, imm: u32, like_headers: bool) -> Vec<u8> {
    let header_bytes = header(256 * u64::from(imm), 3, 3).to_ne_bytes();
    let byte = |at: usize| if like_headers { header_bytes[at % 8] } else { at as u8 ^ imm as u8 };
    (0..len).map(byte).collect()
}

proptest! {
    #[test]
    fn messages_arrive_unchanged_until_a_crash(
        steps in prop::collection::vec(step(), 1..400), partial_len in 0..240usize
    ) {
        let (mut producer, mut consumer, window) = ring(512);
        let mut model: VecDeque<(u32, Vec<u8>)> = VecDeque::new();
        let (mut model_bytes, mut unpublished_bytes) = (0, 0);
        for step in steps {
            match step {
                Step::Push { first, second, imm, like_headers } => {
                    let bytes = payload(first + second, imm, like_headers);
                    let len = bytes.len() as u64;
                    let pushed = producer.try_push(2, imm, &[&bytes[..first], &bytes[first..]]);
                    if len > 248 {
                        prop_assert_eq!(pushed, Err(PushError::TooLong { len, max: 248 }));
                    } else if model_bytes + unpublished_bytes + record_bytes(len) > 512 {
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
                    unpublished_bytes = (unpublished_bytes + bytes) % 64;
                    prop_assert_eq!(pop(&mut consumer), expected.map(Ok));
                }
            }
        }
        // The producer dies in the middle of its next message, if the ring has room for one.
        if producer.check_room(partial_len as u64).is_ok() {
            let bytes = payload(partial_len, 0, true);
            producer.memory.write(producer.tail + HEADER_BYTES, &bytes);
        }
        for expected in model {
            prop_assert_eq!(pop(&mut consumer), Some(Ok(expected)));
        }
        prop_assert_eq!(pop(&mut consumer), None);
        prop_assert!(window.load_u64(HEAD_OFFSET).unwrap() <= producer.tail);
    }

    #[test]
    fn corrupt_words_make_neither_side_panic(
        words in prop::collection::vec((0..48u64, any::<u64>(), 0..4u64), 0..40)
    ) {
        let (mut producer, mut consumer, window) = ring(256);
        for (word, value, lap) in words {
            // Half of the words look like headers.
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
