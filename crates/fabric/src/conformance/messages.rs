//! Cases about messages and writes with immediate.

use super::Harness;
use super::node::{Node, Pair, bytes_of, connect, quiet};
use crate::{CompletionKind, Event, Local, Operation, Status};

/// Expects that messages up to the maximum length arrive complete, in both directions.
pub fn messages_of_all_lengths_arrive_whole(harness: &dyn Harness) {
    let mut pair = Pair::new(harness);
    let longest = pair.one.fabric.capabilities(pair.to_two).send_bytes_max;
    let bytes: Vec<u8> = (0..longest).map(|at| (at % 251) as u8).collect();
    for (imm, len) in (0..).zip([0, 1, 7, 8, 63, 64, 65, 496, 497, longest - 1, longest]) {
        pair.one.send(pair.to_two, &bytes[..len], imm);
        assert_eq!(pair.two.received(), (bytes[..len].to_vec(), imm));
        pair.two.send(pair.to_one, &bytes[..len], u32::MAX - imm);
        assert_eq!(pair.one.received(), (bytes[..len].to_vec(), u32::MAX - imm));
    }
}

/// Expects that the written bytes are in memory when the target polls the immediate, for inline and registered sources.
pub fn an_immediate_is_reported_after_its_bytes(harness: &dyn Harness) {
    let mut pair = Pair::new(harness);
    let longest = pair.one.fabric.capabilities(pair.to_two).inline_bytes_max.min(100_000);
    let lens = [0, 1, 48, 49, 496, 497, 5000, 100_000];
    for (id, (len, is_inline)) in (1u8..).zip(lens.into_iter().flat_map(|len| [(len, true), (len, false)])) {
        let bytes = vec![id; len];
        pair.source.1.write(0, &bytes).expect("the range lies within the segment");
        let fetched = pair.local(0, len as u64);
        let local = if is_inline && len <= longest { Local::Inline(&bytes) } else { fetched };
        let write = Operation::WriteImm { local, remote: pair.at(3), imm: id.into() };
        pair.one.post(pair.to_two, id.into(), write);
        let completion = pair.two.completion();
        assert_eq!((completion.peer, completion.status), (pair.to_one, Status::Success));
        assert_eq!(completion.kind, CompletionKind::Notified { imm: id.into() });
        assert_eq!(bytes_of(&pair.target.1, 3, len), bytes);
        assert_eq!(pair.one.ended(), (id.into(), Status::Success));
    }
    assert_eq!(bytes_of(&pair.target.1, 0, 3), [0; 3]);
}

/// Expects that the messages of other peers arrive within a few hundred polls, although one peer sends without end.
pub fn an_endless_sender_does_not_starve_others(harness: &dyn Harness) {
    let mut hub = Node::open(harness, "hub");
    let mut others: Vec<_> = (0..6)
        .map(|number| {
            let mut other = Node::open(harness, &format!("other-{number}"));
            let (to_hub, _) = connect(&mut other, &mut hub, "hub");
            (other, to_hub)
        })
        .collect();
    let (sender, to_hub) = others.remove(0);
    let messages = [quiet(0, Operation::Send { bytes: b"flood", imm: 0 }); 100];
    let send_more = || while sender.try_post(to_hub, &messages).is_ok() {};
    send_more();
    for (imm, (other, to_hub)) in (1..).zip(&others) {
        other.send(*to_hub, b"single", imm);
    }
    let mut missing = others.len();
    for _ in 0..500 {
        let mut polled = Vec::new();
        hub.fabric.poll(&mut polled);
        for event in polled {
            let Event::Completed(completion) = event else { panic!("unexpected {event:?}") };
            let CompletionKind::Received { imm, .. } = completion.kind else { panic!("{completion:?}") };
            missing -= usize::from(imm > 0);
        }
        if missing == 0 {
            return;
        }
        send_more();
        harness.settle();
    }
    panic!("{missing} of {} messages are missing", others.len());
}
