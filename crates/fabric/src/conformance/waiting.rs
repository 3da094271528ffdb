//! The doorbell: who rings it, and who is woken.

use std::time::Duration;

use super::Harness;
use super::node::{Pair, quiet};
use crate::{Operation, WorkRequest};

fn send(imm: u32, solicited: bool) -> WorkRequest<'static> {
    WorkRequest { solicited, ..quiet(0, Operation::Send { bytes: b"", imm }) }
}

/// In its place among the others.
pub fn an_unsolicited_message_wakes_nobody_and_is_found_by_the_next_who_polls(harness: &dyn Harness) {
    let mut pair = Pair::new(harness);
    pair.one.expect_nothing();
    pair.two.expect_nothing();
    pair.two.fabric.arm(true);
    let seen = pair.two.fabric.doorbell();
    pair.one.try_post(pair.to_two, &[send(1, false), send(2, false)]).expect("they fit");
    harness.settle();
    assert_eq!(pair.two.fabric.doorbell(), seen);
    pair.one.try_post(pair.to_two, &[send(3, false), send(4, true), send(5, false)]).expect("they fit");
    harness.settle();
    assert_ne!(pair.two.fabric.doorbell(), seen);
    for imm in 1..=5 {
        assert_eq!(pair.two.received().1, imm);
    }
}

/// What comes is found by who polls.
pub fn a_doorbell_that_is_not_armed_stays_silent(harness: &dyn Harness) {
    let mut pair = Pair::new(harness);
    pair.one.expect_nothing();
    pair.two.expect_nothing();
    pair.two.fabric.arm(false);
    let seen = pair.two.fabric.doorbell();
    pair.one.try_post(pair.to_two, &[send(1, true), send(2, true)]).expect("they fit");
    assert_eq!(pair.two.rest().len(), 2);
    assert_eq!(pair.two.fabric.doorbell(), seen);
}

/// Arm, poll once more, sleep: what comes between any two of these is heard.
pub fn what_comes_before_the_last_poll_is_not_slept_over(harness: &dyn Harness) {
    let mut pair = Pair::new(harness);
    let send_one = |imm| pair.one.try_post(pair.to_two, &[send(imm, true)]).expect("it fits");
    for moment in 0..3 {
        let at = |now| {
            if moment == now {
                send_one(moment)
            }
        };
        at(0);
        pair.two.fabric.arm(true);
        at(1);
        let seen = pair.two.fabric.doorbell();
        let early = pair.two.try_event();
        at(2);
        if early.is_none() {
            assert!(harness.sleep(&*pair.two.fabric, seen), "slept over what came at {moment}");
        }
        let event = early.unwrap_or_else(|| pair.two.event());
        assert!(event.into_completion().is_ok(), "{moment}");
    }
    pair.two.expect_nothing();
}

/// Who has seen an older number does not sleep.
pub fn waking_rings_even_if_nothing_is_armed(harness: &dyn Harness) {
    let pair = Pair::new(harness);
    let fabric = &pair.one.fabric;
    for armed in [false, true] {
        fabric.arm(armed);
        let seen = fabric.doorbell();
        fabric.wake();
        assert_ne!(fabric.doorbell(), seen);
        fabric.wait(seen, None);
        // Nothing comes, and time does end.
        fabric.wait(fabric.doorbell(), Some(Duration::from_millis(1)));
    }
}
