use super::*;

/// Sends `payloads`, numbered by their immediates, through a ring of `lines` lines.
fn check(lines: u64, payloads: &'static [&'static [u8]]) {
    loom::model(move || {
        let memory = Memory::private(lines * LINE_BYTES);
        let mut producer = Producer::from_memory(memory.clone());
        let mut consumer = Consumer::from_memory(memory);
        let sender = loom::thread::spawn(move || {
            for (imm, payload) in (0..).zip(payloads) {
                while producer.try_push(1, imm, &[payload]).is_err() {
                    loom::thread::yield_now();
                }
            }
        });
        for (imm, payload) in (0..).zip(payloads) {
            let (found, bytes) = loop {
                match consumer.try_pop() {
                    Some(popped) => {
                        let message = popped.expect("never corrupt");
                        break (message.imm(), message.to_vec());
                    }
                    None => loom::thread::yield_now(),
                }
            };
            assert_eq!((found, &bytes[..]), (imm, *payload));
        }
        assert!(consumer.try_pop().is_none());
        sender.join().unwrap();
    });
}

#[test]
fn loom_messages_arrive_whole_and_in_order_across_a_wrap() {
    check(2, &[b"one", b"two", b"three"]);
}

/// A payload in which every word looks like a header of the first lap, of length 0.
const HEADER_LIKE: &[u8] = &{
    let mut bytes = [0; 64];
    let mut at = 0;
    while at < 64 {
        bytes[at] = 1;
        at += 8;
    }
    bytes
};

#[test]
fn loom_payload_that_looks_like_a_header_is_ignored() {
    // The second message wraps, and the last one begins at an old payload.
    check(4, &[b"one", HEADER_LIKE, HEADER_LIKE, b"four"]);
}

#[test]
fn loom_a_producer_waits_until_the_head_is_published() {
    // The head moves every two lines, so the third message waits until the first two have been consumed.
    check(16, &[&[1; 400], &[2; 400], &[3; 400]]);
}

#[test]
fn loom_a_waiting_producer_finds_room_or_is_woken() {
    loom::model(|| {
        // The head moves at every message, because one of the two lines must be free.
        let memory = Memory::private(2 * LINE_BYTES);
        let mut producer = Producer::from_memory(memory.clone());
        let mut consumer = Consumer::from_memory(memory);
        producer.try_push(1, 0, &[]).unwrap();
        producer.try_push(1, 1, &[]).unwrap();
        let waiter = loom::thread::spawn(move || (producer.has_or_asks_for_room(0).unwrap(), producer));
        consumer.try_pop().unwrap().unwrap();
        let (has_room, mut producer) = waiter.join().unwrap();
        let must_wake = consumer.take_made_room();
        assert!(has_room || must_wake, "a producer without room would sleep for ever");
        assert_eq!(producer.has_or_asks_for_room(0), Ok(true));
        consumer.try_pop().unwrap().unwrap();
        assert!(!consumer.take_made_room(), "the producer no longer waits");
    });
}
