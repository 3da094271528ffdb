//! Scenarios of single slots, and random histories compared with a map.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::pins::GracePeriod;

fn table<T>() -> (Arc<Pins>, Slots<T>) {
    let pins = Arc::new(Pins::new());
    (pins.clone(), Slots::new(pins))
}

fn elapsed(pins: &Pins) -> Elapsed {
    pins.start_grace_period().elapsed(pins).expect("no thread is pinned")
}

#[test]
fn an_update_requires_a_later_grace_period() {
    let (pins, slots) = table();
    let (index, _) = slots.insert(1);
    let earlier = elapsed(&pins);
    slots.freeze(index).unwrap();
    let refused = Err(SlotError::WrongGrace { attempted: "update", index });
    assert_eq!(slots.update(index, earlier, 2), refused);
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
fn an_exhausted_slot_is_never_reused() {
    let (pins, slots) = table();
    let (index, _) = slots.insert(1);
    slots.slot(index).unwrap().set_state(u32::MAX, LIVE);
    slots.retire(index).unwrap();
    slots.reclaim(index, elapsed(&pins)).unwrap();
    assert_eq!(slots.insert(2), (index + 1, 1));
    assert_eq!(slots.insert(3), (index + 2, 1));
    assert_eq!(slots.get(&pins.pin(), index, u32::MAX), Lookup::Stale);
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
    let index = 0..100usize;
    prop_oneof![
        3 => any::<u32>().prop_map(Step::Insert),
        1 => index.clone().prop_map(Step::Freeze),
        1 => index.clone().prop_map(Step::Thaw),
        1 => (index.clone(), any::<u32>()).prop_map(|(index, value)| Step::Update(index, value)),
        1 => index.clone().prop_map(Step::Retire),
        1 => index.prop_map(Step::Reclaim),
    ]
}

/// The expected result of a lookup.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Model {
    Live(u32),
    Frozen(u32),
    Retired(u32),
    Gone,
}

proptest! {
    #[test]
    fn random_histories_match_a_map(steps in proptest::collection::vec(step(), 0..300)) {
        let (pins, slots) = table();
        let mut handles: Vec<(u32, u32)> = Vec::new();
        let mut model: HashMap<(u32, u32), Model> = HashMap::new();
        for step in steps {
            if let Step::Insert(value) = step {
                let handle = slots.insert(value);
                prop_assert!(model.insert(handle, Model::Live(value)).is_none(), "the handle is in use");
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
