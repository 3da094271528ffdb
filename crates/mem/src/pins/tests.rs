//! Stories of pins and grace periods.

use std::sync::mpsc::channel;
use std::thread;

use super::*;

#[test]
fn a_grace_waits_for_those_pinned_at_its_start_only() {
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
fn nested_pins_count_as_one() {
    let pins = Pins::new();
    let outer = pins.pin();
    let grace = pins.start_grace_period();
    let inner = pins.pin();
    drop(outer);
    assert!(!grace.is_over(&pins));
    drop(inner);
    assert!(grace.is_over(&pins));
    assert!(pins.start_grace_period().is_over(&pins));
}

#[test]
fn other_threads_are_waited_for_with_either_kind_of_fence() {
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
fn slots_are_reused_by_later_threads() {
    let pins = Pins::new();
    for _ in 0..50 {
        // A scope ends before the destructors of its threads' locals; join() does not.
        thread::scope(|scope| scope.spawn(|| drop(pins.pin())).join().unwrap());
    }
    assert!(lock(&pins.registry.slots).all.len() <= 2);
}

#[test]
fn one_thread_uses_many_pins_and_forgets_dead_ones() {
    let kept = Pins::new();
    let pin = kept.pin();
    for _ in 0..100 {
        let short_lived = Pins::new();
        let _pin = short_lived.pin();
        let again = kept.pin();
        assert!(again.is_of(&kept) && !again.is_of(&short_lived));
    }
    assert!(THREAD.with(|thread| thread.borrow().slots.len()) <= 2);
    let grace = kept.start_grace_period();
    assert!(!grace.is_over(&kept));
    drop(pin);
    assert!(grace.is_over(&kept));
}

#[test]
fn a_leaked_pin_protects_for_ever_even_after_its_thread() {
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
    let theirs = pins.clone();
    let exiting = thread::spawn(move || {
        // Registered first, hence destroyed after or before the pins' own locals: both must do.
        LATE.with(|late| *late.borrow_mut() = Some(PinsInDrop(theirs.clone())));
        drop(theirs.pin());
    });
    exiting.join().unwrap();
    assert!(pins.start_grace_period().is_over(&pins));
    let slots = lock(&pins.registry.slots);
    assert_eq!(slots.all.len(), slots.free.len());
}

#[test]
#[should_panic(expected = "other pins")]
fn a_grace_of_other_pins_proves_nothing() {
    Pins::new().start_grace_period().is_over(&Pins::new());
}

#[test]
fn what_threads_count_is_there_when_they_have_ended_and_their_slots_are_used_again() {
    let pins = Pins::new();
    for _ in 0..3 {
        thread::scope(|scope| {
            for more in 1..=4 {
                let pins = &pins;
                scope.spawn(move || (0..1000).for_each(|_| assert!(pins.pin().count(2, more) >= more)));
            }
        });
    }
    assert_eq!(pins.pin().count(COUNTS - 1, 7), 7);
    let mut expected = [0; COUNTS];
    (expected[2], expected[COUNTS - 1]) = (3 * 1000 * (1 + 2 + 3 + 4), 7);
    assert_eq!(pins.counts(), expected);
    assert_eq!(size_of::<ThreadSlot>(), 256);
}
