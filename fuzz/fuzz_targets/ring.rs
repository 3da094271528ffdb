//! No content of a ring makes this end panic, loop, or accept an invalid record.
//!
//! The input is a program: each byte selects the next step, and the bytes behind it are its operands.

#![no_main]

use halite_mem::ring::{Consumer, Producer, payload_bytes_max, ring_bytes};
use halite_mem::{PagePolicy, Segment};
use libfuzzer_sys::fuzz_target;

const CAPACITY: u64 = 256;
const BYTES: u64 = ring_bytes(CAPACITY);

fuzz_target!(|program: &[u8]| {
    let segment = Segment::create("fuzzed ring", BYTES, PagePolicy::Normal).expect("a small segment");
    let window = segment.window(0, BYTES).expect("the whole segment");
    let mut producer = Producer::new(window.clone()).expect("a valid size");
    let mut consumer = Consumer::new(window.clone()).expect("a valid size");
    let mut input = program;
    while let Some(step) = take(&mut input, 1) {
        match step[0] % 4 {
            0 => pop_all(&mut consumer),
            // The push may be refused for any reason: the ring may be full or corrupt.
            1 => {
                let len = take(&mut input, 1).map_or(0, |len| len[0] as usize);
                let _ = producer.try_push(len as u8 % 8, 7, &[&vec![len as u8; len]]);
            }
            // Overwrites the head, a record's header, or any other bytes.
            kind => {
                let Some(operands) = take(&mut input, 10) else { return };
                let place = u64::from(u16::from_le_bytes([operands[0], operands[1]]));
                let offset = if kind == 2 { sensitive_offset(place) } else { place % (BYTES - 8) };
                window.write(offset, &operands[2..]).expect("within the ring");
            }
        }
    }
    pop_all(&mut consumer);
});

/// Returns the offset of the head, or an offset at which a record may begin.
fn sensitive_offset(place: u64) -> u64 {
    let data_offset = BYTES - CAPACITY;
    match place % (1 + CAPACITY / 64) {
        0 => 0,
        line => data_offset + (line - 1) * 64,
    }
}

/// Pops records until there is none, or an invalid one.
fn pop_all(consumer: &mut Consumer) {
    for _ in 0..=consumer.messages_max() {
        let popped = consumer.try_pop().map(|popped| popped.map(|message| message.to_vec()));
        match popped {
            None => return,
            Some(Ok(bytes)) => assert!(bytes.len() as u64 <= payload_bytes_max(CAPACITY)),
            Some(Err(_)) => {
                assert!(matches!(consumer.try_pop(), Some(Err(_))), "a corrupt ring stays corrupt");
                return;
            }
        }
    }
    panic!("the ring contains more records than fit");
}

/// Takes the next `len` bytes of the program; `None` if fewer are left.
fn take<'a>(input: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (taken, rest) = input.split_at_checked(len)?;
    *input = rest;
    Some(taken)
}
