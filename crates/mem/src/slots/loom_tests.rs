//! Models: a reader races with a writer in every order that the memory model permits.

use loom::cell::UnsafeCell;
use loom::thread;

use super::*;

/// A value whose destruction counts as a write, so loom reports later readers.
struct Tracked(UnsafeCell<u64>);

// SAFETY: the models check this claim.
unsafe impl Sync for Tracked {}

impl Tracked {
    fn new(value: u64) -> Tracked {
        Tracked(UnsafeCell::new(value))
    }

    fn value(&self) -> u64 {
        // SAFETY: as claimed.
        self.0.with(|value| unsafe { *value })
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        // SAFETY: as claimed.
        self.0.with_mut(|value| unsafe { *value = 0 });
    }
}

fn check(
    reader: impl Fn(&Pins, &Slots<Tracked>) + Send + Sync + Copy + 'static,
    writer: impl Fn(&Pins, &Slots<Tracked>) + Send + Sync + Copy + 'static,
) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let pins = Arc::new(Pins::new());
        let slots = Arc::new(Slots::new(pins.clone()));
        assert_eq!(slots.insert(Tracked::new(7)), (0, 1));
        let reader_thread = {
            let (pins, slots) = (pins.clone(), slots.clone());
            thread::spawn(move || reader(&pins, &slots))
        };
        writer(&pins, &slots);
        reader_thread.join().unwrap();
    });
}

#[test]
fn a_reader_never_sees_a_reclaimed_or_reused_value() {
    check(
        |pins, slots| {
            let pin = pins.pin();
            match slots.get(&pin, 0, 1) {
                Lookup::Found(value) => assert_eq!(value.value(), 7),
                Lookup::Stale => {}
                Lookup::Busy => panic!("no thread froze it"),
            }
        },
        |pins, slots| {
            slots.retire(0).unwrap();
            if let Some(elapsed) = pins.start_grace_period().elapsed(pins) {
                drop(slots.reclaim(0, elapsed).unwrap());
                assert_eq!(slots.insert(Tracked::new(8)), (0, 2));
            }
        },
    );
}

#[test]
fn a_reader_sees_the_old_value_or_the_new_one() {
    check(
        |pins, slots| {
            let pin = pins.pin();
            match slots.get(&pin, 0, 1) {
                Lookup::Found(value) => assert!([7, 8].contains(&value.value())),
                Lookup::Busy => {}
                Lookup::Stale => panic!("no thread retired it"),
            }
        },
        |pins, slots| {
            slots.freeze(0).unwrap();
            match pins.start_grace_period().elapsed(pins) {
                Some(elapsed) => drop(slots.update(0, elapsed, Tracked::new(8)).unwrap()),
                None => slots.thaw(0).unwrap(),
            }
        },
    );
}
