//! Scenarios of pins and grace periods.

use std::sync::mpsc::channel;
use std::thread;

use super::*;

#[test]
fn a_grace_period_waits_only_for_earlier_pins() {
    let pins = Pins::new();
    let before = pins.pin();
    let grace = pins.start_grace_period();
    thread::scope(|scope| {
        scope.spawn(|| {
            let _later = pins.pin();
            assert!(!grace.is_over(&pins));
        });
    });
    assert!(!grace.is_over(&pins));
    drop(before);
    let _later = pins.pin();
    assert!(grace.is_over(&pins));
}

#[test]
fn a_grace_period_waits_with_either_fence() {
    for pins in [Pins::with_asymmetry(false), Pins::new()] {
        let (pinned, wait_pinned) = channel();
        let (release, wait_release) = channel::<()>();
        thread::scope(|scope| {
            let pins = &pins;
            let reader = scope.spawn(move || {
                let pin = pins.pin();
                pinned.send(()).unwrap();
                wait_release.recv().unwrap();
                drop(pin);
            });
            wait_pinned.recv().unwrap();
            let grace = pins.start_grace_period();
            assert!(!grace.is_over(pins));
            release.send(()).unwrap();
            reader.join().unwrap();
            assert!(grace.is_over(pins));
        });
    }
}

#[test]
fn a_leaked_pin_blocks_reclaim_for_ever() {
    let pins = Pins::new();
    thread::scope(|scope| scope.spawn(|| std::mem::forget(pins.pin())).join().unwrap());
    assert!(!pins.start_grace_period().is_over(&pins));
    thread::scope(|scope| scope.spawn(|| drop(pins.pin())).join().unwrap());
    assert!(!pins.start_grace_period().is_over(&pins));
}

#[test]
fn destructors_of_an_exiting_thread_can_still_pin() {
    struct PinsInDrop(Arc<Pins>);
    impl Drop for PinsInDrop {
        fn drop(&mut self) {
            let pin = self.0.pin();
            let _nested = self.0.pin();
            let grace = self.0.start_grace_period();
            assert!(!grace.is_over(&self.0));
            drop(pin);
        }
    }
    thread_local!(static LATE: RefCell<Option<PinsInDrop>> = const { RefCell::new(None) });
    let pins = Arc::new(Pins::new());
    let pins_of_thread = pins.clone();
    let exiting = thread::spawn(move || {
        // The order in which the destructors run is unspecified: a pin must work in both orders.
        LATE.with(|late| *late.borrow_mut() = Some(PinsInDrop(pins_of_thread.clone())));
        drop(pins_of_thread.pin());
    });
    exiting.join().unwrap();
    assert!(pins.start_grace_period().is_over(&pins));
    let slots = lock(&pins.registry.slots);
    assert_eq!(slots.all.len(), slots.free.len());
}

#[test]
fn counts_survive_their_threads() {
    let pins = Pins::new();
    for _ in 0..3 {
        thread::scope(|scope| {
            for amount in 1..=4 {
                let pins = &pins;
                scope.spawn(move || (0..1000).for_each(|_| assert!(pins.pin().count(2, amount) >= amount)));
            }
        });
    }
    assert_eq!(pins.pin().count(COUNTS - 1, 7), 7);
    let mut expected = [0; COUNTS];
    (expected[2], expected[COUNTS - 1]) = (3 * 1000 * (1 + 2 + 3 + 4), 7);
    assert_eq!(pins.counts(), expected);
    assert_eq!(size_of::<ThreadSlot>(), 256);
}
