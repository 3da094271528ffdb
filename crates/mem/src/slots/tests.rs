//! Stories of single slots, and whole histories against a map.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use proptest::prelude::*;

use super::*;
use crate::pins::GracePeriod;

fn table<T>() -> (Arc<Pins>, Slots<T>) {
    let pins = Arc::new(Pins::new());
    (pins.clone(), Slots::new(pins))
}

fn elapsed(pins: &Pins) -> Elapsed {
    pins.start_grace_period().elapsed(pins).expect("nobody is pinned")
}

#[test]
fn a_slot_for_a_mapping_is_one_cache_line() {
    assert_eq!((size_of::<Slot<[u64; 6]>>(), align_of::<Slot<[u64; 6]>>()), (64, 64));
    let (_, slots) = table::<[u64; 6]>();
    (0..100_000).for_each(|_| assert_eq!(slots.insert([0; 6]).1, 1));
    assert!(slots.bytes_reserved() <= 100_000 * 128);
}

#[test]
fn indices_fill_blocks_in_order_and_without_gaps() {
    let mut expected = (0, 0);
    for index in 0..100_000 {
        assert_eq!(place(index), expected);
        expected.1 += 1;
        if expected.1 == block_slots(expected.0) {
            expected = (expected.0 + 1, 0);
        }
    }
    assert_eq!(place(u32::MAX).0, BLOCKS, "the last indices belong to no block");
}

#[test]
fn unknown_handles_are_stale() {
    let (pins, slots) = table();
    let pin = pins.pin();
    for (index, generation) in [(0, 0), (0, 1), (u32::MAX, 1), (1 << 20, 0)] {
        assert_eq!(slots.get(&pin, index, generation), Lookup::Stale);
    }
    assert_eq!(slots.insert(5), (0, 1));
    for (index, generation) in [(0, 0), (0, 2), (1, 0), (1, 1), (63, 0)] {
        assert_eq!(slots.get(&pin, index, generation), Lookup::Stale);
    }
    assert_eq!(slots.get(&pin, 0, 1), Lookup::Found(&5));
}

#[test]
fn an_update_waits_for_readers_and_is_busy_meanwhile() {
    let (pins, slots) = table();
    let (index, generation) = slots.insert(String::from("old"));
    let pin = pins.pin();
    let Lookup::Found(old) = slots.get(&pin, index, generation) else { panic!("not found") };
    slots.freeze(index).unwrap();
    let grace = pins.start_grace_period();
    assert_eq!(slots.get(&pin, index, generation), Lookup::Busy);
    assert_eq!(grace.elapsed(&pins), None);
    assert_eq!(old, "old");
    drop(pin);
    let proof = grace.elapsed(&pins).unwrap();
    assert_eq!(slots.update(index, proof, String::from("new")).unwrap(), "old");
    let pin = pins.pin();
    assert_eq!(slots.get(&pin, index, generation), Lookup::Found(&String::from("new")));
}

#[test]
fn a_grace_begun_too_early_or_elsewhere_proves_nothing() {
    let (pins, slots) = table();
    let (index, _) = slots.insert(1);
    let early = elapsed(&pins);
    slots.freeze(index).unwrap();
    let refused = Err(SlotError::WrongGrace { attempted: "update", index });
    assert_eq!(slots.update(index, early, 2), refused);
    let others = Pins::new();
    let foreign = (0..10).map(|_| elapsed(&others)).last().unwrap();
    assert_eq!(slots.update(index, foreign, 2), refused);
    slots.thaw(index).unwrap();
    let between = elapsed(&pins);
    slots.retire(index).unwrap();
    assert!(slots.reclaim(index, between).is_err());
    assert_eq!(slots.reclaim(index, elapsed(&pins)), Ok(1));
}

#[test]
fn wrong_turns_change_nothing() {
    let (pins, slots) = table();
    let proof = elapsed(&pins);
    let wrong = |attempted, index| SlotError::WrongState { attempted, index };
    assert_eq!(slots.freeze(0), Err(wrong("freeze", 0)));
    assert_eq!(slots.retire(u32::MAX), Err(wrong("retire", u32::MAX)));
    let (index, generation) = slots.insert(1);
    assert_eq!(slots.thaw(index), Err(wrong("thaw", index)));
    assert_eq!(slots.update(index, proof, 2), Err(wrong("update", index)));
    assert_eq!(slots.reclaim(index, proof), Err(wrong("reclaim", index)));
    assert_eq!(slots.get(&pins.pin(), index, generation), Lookup::Found(&1));
    slots.freeze(index).unwrap();
    assert_eq!(slots.freeze(index), Err(wrong("freeze", index)));
    slots.retire(index).unwrap();
    assert_eq!(slots.retire(index), Err(wrong("retire", index)));
    assert_eq!(slots.len(), 0);
}

#[test]
fn a_slot_whose_generations_are_used_up_is_never_used_again() {
    let (pins, slots) = table();
    let (index, _) = slots.insert(1);
    slots.slot(index).unwrap().set_state(u32::MAX, LIVE);
    slots.retire(index).unwrap();
    slots.reclaim(index, elapsed(&pins)).unwrap();
    assert_eq!(slots.insert(2), (index + 1, 1));
    assert_eq!(slots.insert(3), (index + 2, 1));
    assert_eq!(slots.get(&pins.pin(), index, u32::MAX), Lookup::Stale);
}

#[test]
#[should_panic(expected = "other pins")]
fn a_pin_of_other_pins_is_refused() {
    let (_, slots) = table::<u32>();
    slots.get(&Pins::new().pin(), 0, 1);
}

#[test]
fn every_value_is_dropped_exactly_once() {
    static DROPPED: AtomicUsize = AtomicUsize::new(0);
    struct Counted;
    impl Drop for Counted {
        fn drop(&mut self) {
            DROPPED.fetch_add(1, Relaxed);
        }
    }
    let (pins, slots) = table();
    (0..200).for_each(|index| assert_eq!(slots.insert(Counted), (index, 1)));
    slots.freeze(0).unwrap();
    slots.retire(1).unwrap();
    slots.retire(2).unwrap();
    let proof = elapsed(&pins);
    drop(slots.reclaim(2, proof).unwrap());
    drop(slots.update(0, proof, Counted).unwrap());
    assert_eq!(DROPPED.load(Relaxed), 2);
    drop(slots);
    assert_eq!(DROPPED.load(Relaxed), 201);
}

#[test]
fn readers_on_other_threads_never_see_a_half_made_value() {
    let (pins, slots) = table::<[u64; 6]>();
    let (index, generation) = slots.insert([0; 6]);
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_done.load(Relaxed) {
                    let pin = pins.pin();
                    if let Lookup::Found(value) = slots.get(&pin, index, generation) {
                        assert!(value.iter().all(|word| *word == value[0]), "{value:?}");
                    }
                }
            });
        }
        for round in 1..2000 {
            slots.freeze(index).unwrap();
            let grace = pins.start_grace_period();
            while !grace.is_over(&pins) {
                std::thread::yield_now();
            }
            slots.update(index, grace.elapsed(&pins).unwrap(), [round; 6]).unwrap();
        }
        is_done.store(true, Relaxed);
    });
}

#[derive(Clone, Debug)]
enum Step {
    Insert(u32),
    Freeze(usize),
    Thaw(usize),
    Update(usize, u32),
    Retire(usize),
    Reclaim(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let which = 0..100usize;
    prop_oneof![
        3 => any::<u32>().prop_map(Step::Insert),
        1 => which.clone().prop_map(Step::Freeze),
        1 => which.clone().prop_map(Step::Thaw),
        1 => (which.clone(), any::<u32>()).prop_map(|(which, value)| Step::Update(which, value)),
        1 => which.clone().prop_map(Step::Retire),
        1 => which.prop_map(Step::Reclaim),
    ]
}

/// What a handle ought to lead to.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Model {
    Live(u32),
    Frozen(u32),
    Retired(u32),
    Gone,
}

proptest! {
    #[test]
    fn histories_agree_with_a_map(steps in proptest::collection::vec(step(), 0..300)) {
        let (pins, slots) = table();
        let mut handles: Vec<(u32, u32)> = Vec::new();
        let mut model: HashMap<(u32, u32), Model> = HashMap::new();
        for step in steps {
            if let Step::Insert(value) = step {
                let handle = slots.insert(value);
                prop_assert!(model.insert(handle, Model::Live(value)).is_none(), "handle given twice");
                handles.push(handle);
                continue;
            }
            let (Step::Freeze(at) | Step::Thaw(at) | Step::Update(at, _) | Step::Retire(at)
                | Step::Reclaim(at)) = step else { unreachable!() };
            if handles.is_empty() { continue }
            let handle = handles[at % handles.len()];
            let state = model[&handle];
            if state == Model::Gone { continue } // Its slot may belong to another handle now.
            let proof = GracePeriod::elapsed(&pins.start_grace_period(), &pins).unwrap();
            let index = handle.0;
            let next = match (step, state) {
                (Step::Freeze(_), _) => slots.freeze(index).is_ok().then_some(match state {
                    Model::Live(value) => Model::Frozen(value),
                    _ => Model::Gone,
                }),
                (Step::Thaw(_), _) => slots.thaw(index).is_ok().then_some(match state {
                    Model::Frozen(value) => Model::Live(value),
                    _ => Model::Gone,
                }),
                (Step::Update(_, new), Model::Frozen(old)) => {
                    prop_assert_eq!(slots.update(index, proof, new), Ok(old));
                    Some(Model::Live(new))
                }
                (Step::Update(_, new), _) => {
                    prop_assert!(slots.update(index, proof, new).is_err());
                    None
                }
                (Step::Retire(_), Model::Live(value) | Model::Frozen(value)) => {
                    prop_assert_eq!(slots.retire(index), Ok(()));
                    Some(Model::Retired(value))
                }
                (Step::Reclaim(_), Model::Retired(value)) => {
                    prop_assert_eq!(slots.reclaim(index, proof), Ok(value));
                    Some(Model::Gone)
                }
                (Step::Retire(_), _) => {
                    prop_assert!(slots.retire(index).is_err());
                    None
                }
                _ => {
                    prop_assert!(slots.reclaim(index, proof).is_err());
                    None
                }
            };
            if let Some(next) = next {
                model.insert(handle, next);
            }
        }
        let pin = pins.pin();
        for (handle, state) in &model {
            let expected = match state {
                Model::Live(value) => Lookup::Found(value),
                Model::Frozen(_) => Lookup::Busy,
                Model::Retired(_) | Model::Gone => Lookup::Stale,
            };
            prop_assert_eq!(slots.get(&pin, handle.0, handle.1), expected);
        }
        let mut visited = HashMap::new();
        slots.iter_with(|index, generation, value| {
            visited.insert((index, generation), *value);
        });
        let expected: HashMap<_, _> = model.iter().filter_map(|(handle, state)| match state {
            Model::Live(value) | Model::Frozen(value) => Some((*handle, *value)),
            _ => None,
        }).collect();
        prop_assert_eq!(slots.len(), expected.len());
        prop_assert_eq!(visited, expected);
    }
}
