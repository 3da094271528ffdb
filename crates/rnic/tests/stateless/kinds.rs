//! Each kind of request and order takes effect once, whichever of its packets is lost, late, or arrives twice.

use super::*;

/// What takes effect.
pub(super) enum Act {
    Request(Work),
    /// A call with an answer of several packets.
    LongCall,
    Order(OrderKind, usize),
}

/// Packets of each kind of request and order.
pub(super) fn acts() -> Vec<(&'static str, Act)> {
    let bytes = b"eight888".to_vec();
    vec![
        ("RD", Act::Request(Work::Write { address: 0, bytes: bytes.clone() })),
        ("GD", Act::Request(Work::Read { address: 0, len: 8 })),
        ("FETCH_ADD", Act::Request(Work::FetchAdd { address: 0, add: 1 })),
        ("COMPARE_SWAP", Act::Request(Work::CompareSwap { address: 0, expected: 0, new: 7 })),
        ("SEND", Act::Request(Work::Send { bytes: bytes.clone() })),
        ("CALL", Act::Request(Work::Call { bytes: bytes.clone() })),
        ("CALL with a long answer", Act::LongCall),
        ("CALL with a long input", Act::Request(Work::Call { bytes: long_input(3 * PAYLOAD_BYTES_FIRST) })),
        ("RDM", Act::Request(Work::WriteNote { address: 0, note_and_bytes: bytes.repeat(2) })),
        ("WQEP of a short read", Act::Order(OrderKind::Read, 8)),
        ("WQEP of a short write", Act::Order(OrderKind::Write, 8)),
        ("WQEP of a read", Act::Order(OrderKind::Read, PAYLOAD_BYTES_FIRST + 1)),
        ("WQEP of a write", Act::Order(OrderKind::Write, PAYLOAD_BYTES_FIRST + 1)),
    ]
}

/// Returns an input of `len` bytes; its parts differ from each other.
pub(super) fn long_input(len: usize) -> Vec<u8> {
    (0..len).map(|index| (index % 251) as u8).collect()
}

/// Begins what takes effect, and lets time pass until it completes with success.
pub(super) fn execute(world: &mut World, act: &Act) {
    match act {
        Act::Request(work) => {
            let outcome = world.execute(work.clone());
            assert!(matches!(outcome, Outcome::Success(_)), "{outcome:?}");
        }
        Act::LongCall => {
            world.answer_bytes_min = 3 * PAYLOAD_BYTES_FIRST;
            assert_eq!(world.call(b"salt"), Outcome::Success(answer_bytes(b"salt", world.answer_bytes_min)));
        }
        Act::Order(kind, len) => {
            let order = Order { kind: *kind, local: 0, remote: 0, remote_key: KEY, len: *len as u32 };
            world.begin(order);
            let done = loop {
                assert!(world.step(), "no packet is in flight, but the order has not completed");
                if let Some(done) = world.responder.poll_order() {
                    break done;
                }
            };
            assert_eq!(done.outcome, OrderOutcome::Success);
        }
    }
}

/// Returns the first words of both memories, and the messages that have arrived.
fn state(world: &World) -> (u64, u64, Vec<Vec<u8>>) {
    (world.memory.word(0), world.theirs.word(0), world.received.clone())
}

#[test]
fn each_kind_takes_effect_once_despite_a_fault_of_any_of_its_packets() {
    const T: u64 = EFFECT_LIFE_NS;
    let faults: [(&str, &[u64]); 6] = [
        ("lost", &[]),
        ("late", &[T / 2]),
        ("later than T", &[T + T / 5]),
        ("there twice", &[0, 0]),
        ("there again", &[0, T / 2]),
        ("there again after T", &[0, 4 * T]),
    ];
    for (kind, act) in acts() {
        let mut unhurt = World::new(Rights::ReadWrite);
        execute(&mut unhurt, &act);
        // Requests for the clock included, no kind takes more packets.
        for packet in 0..10 {
            for (fault, delays_ns) in faults {
                let mut world = World::new(Rights::ReadWrite);
                world.chosen = Some((packet, delays_ns.to_vec()));
                execute(&mut world, &act);
                assert_eq!(state(&world), state(&unhurt), "{kind}: packet {packet} is {fault}");
                // Copies that are still under way change nothing any more.
                for memory in [&world.memory, &world.theirs] {
                    memory.change(0, |_| 99);
                }
                let messages = world.received.len();
                while world.step() {}
                let left = (world.memory.word(0), world.theirs.word(0), world.received.len());
                assert_eq!(left, (99, 99, messages), "{kind}: packet {packet} is {fault}");
                assert_eq!(world.requester.poll_done(), None);
                assert_eq!(world.responder.poll_order(), None);
            }
        }
    }
}
