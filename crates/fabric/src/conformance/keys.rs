//! Cases about the keys of registered memory, and about the time from which peers can use a key.

use super::Harness;
use super::node::{Node, Pair, bytes_of, connect};
use crate::{Key, Local, Operation, RemoteAddress, Status};

fn write_to(key: Key) -> Operation<'static> {
    Operation::Write { local: Local::Inline(b"salt"), remote: RemoteAddress { key, offset: 8 } }
}

/// Expects that a peer can use a key as soon as it reads the key in a message.
pub fn a_key_in_a_message_can_be_used_at_once(harness: &dyn Harness) {
    let mut pair = Pair::new(harness);
    for round in 0..100u32 {
        let (key, window) = pair.two.register(4096);
        window.store_u64(0, round.into()).expect("the range lies within the segment");
        pair.two.send(pair.to_one, &key.0.to_le_bytes(), 0);
        let (bytes, _) = pair.one.received();
        let key = Key(u32::from_le_bytes(bytes.try_into().expect("the message has four bytes")));
        if pair.one.fabric.capabilities(pair.to_two).direct {
            let mapped = pair.one.fabric.direct(pair.to_two, key).expect("the key of a message is usable");
            assert_eq!(mapped.load_u64(0), Ok(round.into()));
        }
        let remote = RemoteAddress { key, offset: 0 };
        pair.one.post(pair.to_two, 1, Operation::Read { local: pair.local(16, 8), remote });
        assert_eq!(pair.one.ended(), (1, Status::Success));
        assert_eq!(pair.source.1.load_u64(16), Ok(round.into()));
    }
}

/// Expects that peers reach memory that either end registers shortly before or after a dial is answered.
pub fn memory_registered_while_connecting_is_reached(harness: &dyn Harness) {
    let (mut one, mut two) = (Node::open(harness, "one"), Node::open(harness, "two"));
    one.fabric.connect(&harness.address("two"), b"");
    let ours = one.register(4096);
    let to_one = two.connected();
    let theirs = two.register(4096);
    let to_two = one.connected();
    let late = one.register(4096);
    one.post(to_two, 1, write_to(theirs.0));
    two.post(to_one, 1, write_to(ours.0));
    two.post(to_one, 2, write_to(late.0));
    assert_eq!(one.ended(), (1, Status::Success));
    assert_eq!((two.ended(), two.ended()), ((1, Status::Success), (2, Status::Success)));
    for (_, window) in [ours, theirs, late] {
        assert_eq!(bytes_of(&window, 7, 6), b"\0salt\0");
    }
}

/// Expects that peers reach hundreds of segments, more than one message announces, which are registered before and
/// after connecting. Only the checked segments have their own memory.
pub fn hundreds_of_segments_are_reached_at_once(harness: &dyn Harness) {
    let (mut one, mut two) = (Node::open(harness, "one"), Node::open(harness, "two"));
    let register = |node: &Node<'_>| {
        let mut all = vec![node.register(4096)];
        for number in 1..400 {
            let is_checked = [1, 398, 399].contains(&number);
            all.push(if is_checked { node.register(4096) } else { node.register_again(&all[0].1) });
        }
        all
    };
    let (ours, mut theirs) = (register(&one), register(&two));
    let (to_two, to_one) = connect(&mut one, &mut two, "two");
    theirs.extend(register(&two));
    for number in [0, 1, 398, 399, 799] {
        one.post(to_two, number as u64, write_to(theirs[number].0));
        assert_eq!(one.ended(), (number as u64, Status::Success));
        assert_eq!(bytes_of(&theirs[number].1, 8, 4), b"salt");
    }
    two.post(to_one, 1, write_to(ours[399].0));
    assert_eq!(two.ended(), (1, Status::Success));
    assert_eq!(bytes_of(&ours[399].1, 8, 4), b"salt");
    assert_eq!(bytes_of(&ours[398].1, 8, 4), [0; 4]);
}
