//! Random operations over a faulty link, compared with a model: each request is executed once and in order.
//!
//! The model applies the peer's requests to a memory one by one. The responder may send a read response again after it
//! has executed later requests, so each byte may have its value at the time of the read or a later one.

use std::collections::VecDeque;

use halite_rnic::{Config, Congestion, Event, Mtu, Operation, Status};
use proptest::prelude::*;

use crate::pair::*;

/// Bytes that requests access; few, so that accesses overlap.
const TARGET_BYTES: u64 = 2048;
/// Start of the targets of reads, which do not overlap.
const READ_TARGETS: u64 = 1 << 16;

/// The model of one memory, and the expected events.
struct Model {
    /// The values of each byte, with the request that wrote them.
    bytes: Vec<Vec<(u64, u8)>>,
    completions: VecDeque<(u64, Option<u64>)>,
    arrivals: Vec<(Vec<u8>, Option<u32>)>,
    /// Reads: id, source, length and target.
    reads: Vec<(u64, u64, usize, u64)>,
    /// Target of the next read.
    next_target: u64,
}

impl Model {
    fn new() -> Model {
        Model {
            bytes: vec![vec![(0, 0)]; TARGET_BYTES as usize],
            completions: VecDeque::new(),
            arrivals: Vec::new(),
            reads: Vec::new(),
            next_target: READ_TARGETS,
        }
    }

    fn set(&mut self, id: u64, address: u64, bytes: &[u8]) {
        for (history, byte) in self.bytes[address as usize..].iter_mut().zip(bytes) {
            history.push((id, *byte));
        }
    }

    fn current(&self, index: usize) -> u8 {
        self.bytes[index].last().expect("never empty").1
    }

    fn word(&self, address: u64) -> u64 {
        let bytes = [0, 1, 2, 3, 4, 5, 6, 7].map(|at| self.current(address as usize + at));
        u64::from_le_bytes(bytes)
    }

    /// Returns true if request `id` may have read `value` from a byte.
    fn allows(&self, id: u64, index: usize, value: u8) -> bool {
        let history = &self.bytes[index];
        let at_read = history.partition_point(|(writer, _)| *writer < id).saturating_sub(1);
        history[at_read..].iter().any(|(_, written)| *written == value)
    }
}

/// Posts a random request, and applies it to the model of the peer's memory.
fn step(pair: &mut Pair, side: Side, model: &mut Model, random: &mut Random, id: u64) {
    let len = match random.below(3) {
        0 => random.below(40),
        _ => random.below(TARGET_BYTES),
    };
    let address = random.below(TARGET_BYTES - len + 1);
    let word = address / 8 * 8 % (TARGET_BYTES - 8);
    let signalled = random.below(4) > 0;
    let imm = (random.below(2) == 0).then_some(id as u32);
    let bytes: Vec<u8> = (0..len).map(|_| random.next() as u8).collect();
    let mut old = None;
    let operation = match random.below(6) {
        0 | 1 => {
            model.set(id, address, &bytes);
            if imm.is_some() {
                model.arrivals.push((vec![], imm));
            }
            write(address, &bytes, imm)
        }
        2 => {
            model.arrivals.push((bytes.clone(), imm));
            Operation::Send { bytes, imm }
        }
        3 => {
            let target = model.next_target;
            model.next_target += len;
            model.reads.push((id, address, len as usize, target));
            read(target, address, len as u32)
        }
        4 => {
            let before = model.word(word);
            old = Some(before);
            model.set(id, word, &before.wrapping_add(id).to_le_bytes());
            Operation::FetchAdd { remote: at(word), add: id }
        }
        _ => {
            let before = model.word(word);
            let expected = if random.below(2) == 0 { before } else { 3 };
            old = Some(before);
            if before == expected {
                model.set(id, word, &id.to_le_bytes());
            }
            Operation::CompareSwap { remote: at(word), expected, new: id }
        }
    };
    if signalled {
        model.completions.push_back((id, old));
    }
    assert_eq!(pair.end(side).post_as(operation, signalled), id);
}

fn ends() -> impl Strategy<Value = Ends> {
    let mtu = prop::sample::select(Mtu::ALL.to_vec());
    let psns = prop::array::uniform2(prop_oneof![0u32..1 << 24, Just(0xff_ffe0)]);
    let grant = prop_oneof![Just(1u32), 1u32..200];
    let congestion = prop::sample::select(vec![Congestion::Grant, Congestion::Delay, Congestion::Loss]);
    (mtu, psns, grant, 0u32..20, any::<bool>(), congestion).prop_map(
        |(mtu, psns, grant, receives, selective, congestion)| Ends {
            mtu,
            psns,
            grant,
            receives,
            selective,
            congestion,
        },
    )
}

/// Packets per thousand that suffer each fault.
#[derive(Clone, Debug)]
struct FaultRates {
    lost: u64,
    duplicated: u64,
    delayed: u64,
    damaged: u64,
}

fn rates() -> impl Strategy<Value = FaultRates> {
    let rate = || prop_oneof![Just(0u64), 0u64..30, 0u64..200];
    (rate(), rate(), rate(), rate()).prop_map(|(lost, duplicated, delayed, damaged)| FaultRates {
        lost,
        duplicated,
        delayed,
        damaged,
    })
}

fn fate(rates: &FaultRates, random: &mut Random) -> Fate {
    let later_ns = random.below(60_000);
    let bit = random.below(1 << 16) as usize;
    match random.below(1000) {
        roll if roll < rates.lost => Fate::Lost,
        roll if roll < rates.lost + rates.duplicated => Fate::Duplicated(later_ns * 20),
        roll if roll < rates.lost + rates.duplicated + rates.delayed => Fate::Delayed(later_ns),
        roll if roll < rates.lost + rates.duplicated + rates.delayed + rates.damaged => Fate::Damaged(bit),
        _ => Fate::Delivered,
    }
}

/// Negotiated settings, grants and receives.
#[derive(Clone, Debug)]
struct Ends {
    mtu: Mtu,
    psns: [u32; 2],
    grant: u32,
    receives: u32,
    selective: bool,
    congestion: Congestion,
}

fn walk(seed: u64, rates: FaultRates, ends: Ends, steps: u64) {
    let mut random = Random(seed);
    let Ends { mtu, psns, grant, receives, selective, congestion } = ends;
    let room_packets = 1 + random.below(30) as u32;
    let config = Config { mtu, room_packets, selective, congestion, ..Config::default() };
    let mut pair = Pair::minimal(config, psns);
    let mut link_random = Random(seed ^ 1);
    pair.set_filter(move |_| fate(&rates, &mut link_random));
    let mut models = [Model::new(), Model::new()];
    for side in [A, B] {
        pair.end(side).qp.set_grant(0, grant);
        pair.end(side).qp.add_receives(receives);
    }
    for id in 0..steps {
        for side in [A, B] {
            // Model 0 describes the effects of A's requests.
            step(&mut pair, side, &mut models[side as usize], &mut random, id);
            if random.below(3) == 0 {
                let until = pair.now_ns + random.below(100_000);
                pair.run_until(until);
            }
            if random.below(2) == 0 {
                pair.end(side).qp.add_receives(1);
            }
            if random.below(20) == 0 {
                let (now, packets) = (pair.now_ns, random.below(100) as u32);
                pair.end(side).qp.set_grant(now, packets);
            }
        }
    }
    for side in [A, B] {
        pair.end(side).qp.add_receives(1 << 20);
    }
    pair.run();
    for side in [A, B] {
        check(&mut pair, side, &models[side as usize]);
    }
}

/// Compares a side's events and its peer's memory with the model.
fn check(pair: &mut Pair, side: Side, model: &Model) {
    let completed: VecDeque<(u64, Option<u64>)> = pair
        .end(side)
        .events
        .iter()
        .filter_map(|event| match event {
            Event::Completed { id, status, old } => {
                assert_eq!(*status, Status::Success);
                Some((*id, *old))
            }
            Event::Broken { cause } => panic!("broken: {cause:?}"),
            _ => None,
        })
        .collect();
    assert_eq!(completed, model.completions, "completions or the results of atomics differ");
    assert_eq!(pair.end(side).qp.posted(), 0);
    for (id, source, len, target) in &model.reads {
        let bytes = pair.end(side).memory.get(*target, *len);
        for (offset, value) in bytes.iter().enumerate() {
            let index = *source as usize + offset;
            assert!(model.allows(*id, index, *value), "read {id} found {value} at {index}");
        }
    }
    let peer = pair.end(side.other());
    assert_eq!(peer.received(), model.arrivals, "received messages differ");
    let memory = peer.memory.get(0, TARGET_BYTES as usize);
    let expected: Vec<u8> = (0..TARGET_BYTES as usize).map(|index| model.current(index)).collect();
    assert!(memory == expected, "memory differs");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]
    #[test]
    fn each_request_executes_once_and_in_order(
        seed: u64,
        rates in rates(),
        ends in ends(),
    ) {
        walk(seed, rates, ends, 60);
    }
}
