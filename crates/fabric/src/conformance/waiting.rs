//! Cases about the doorbell, and about the threads that sleep on it.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, epoll};
use rustix::time::Timespec;

use super::node::{Pair, quiet};
use super::{Harness, skip};
use crate::{Operation, Sleeper, WorkRequest};

fn send(imm: u32, solicited: bool) -> WorkRequest<'static> {
    WorkRequest { solicited, ..quiet(0, Operation::Send { bytes: b"", imm }) }
}

/// Expects that an unsolicited message wakes no sleeper, but arrives in order with other messages.
pub fn an_unsolicited_message_wakes_no_sleeper(harness: &dyn Harness) {
    let mut pair = Pair::new(harness);
    pair.one.expect_nothing();
    pair.two.expect_nothing();
    pair.two.fabric.arm(Some(Sleeper::Progress));
    let seen = pair.two.fabric.doorbell();
    pair.one.try_post(pair.to_two, &[send(1, false), send(2, false)]).expect("the requests fit the queue");
    harness.settle();
    assert_eq!(pair.two.fabric.doorbell(), seen);
    pair.one
        .try_post(pair.to_two, &[send(3, false), send(4, true), send(5, false)])
        .expect("the requests fit the queue");
    harness.settle();
    assert_ne!(pair.two.fabric.doorbell(), seen);
    for imm in 1..=5 {
        assert_eq!(pair.two.received().1, imm);
    }
}

/// Expects that a sleeper notices a message that arrives before the sleeper arms the doorbell, between arming and the
/// last poll, or between the last poll and the sleep.
pub fn arrivals_before_the_last_poll_are_not_missed(harness: &dyn Harness) {
    let mut pair = Pair::new(harness);
    let send_one =
        |imm| pair.one.try_post(pair.to_two, &[send(imm, true)]).expect("the request fits the queue");
    for moment in 0..3 {
        let send_at = |now| {
            if moment == now {
                send_one(moment)
            }
        };
        send_at(0);
        pair.two.fabric.arm(Some(Sleeper::Progress));
        send_at(1);
        let seen = pair.two.fabric.doorbell();
        let early = pair.two.try_event();
        send_at(2);
        if early.is_none() {
            assert!(
                harness.sleep(&*pair.two.fabric, seen),
                "the sleeper missed the message posted at moment {moment}"
            );
        }
        let event = early.unwrap_or_else(|| pair.two.event());
        assert!(event.into_completion().is_ok(), "{moment}");
    }
    pair.two.expect_nothing();
}

/// Expects that a ring of the doorbell makes only the descriptor of the armed kind of sleeper readable. A thread that
/// sleeps on several fabrics watches these descriptors by epoll.
pub fn only_the_armed_sleeper_has_edges(harness: &dyn Harness) {
    let mut pair = Pair::new(harness);
    pair.one.expect_nothing();
    pair.two.expect_nothing();
    let fabric = pair.two.fabric.clone();
    let watch = |kind| {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).expect("a descriptor is free");
        let edges = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, fabric.descriptor(kind)?, epoll::EventData::new_u64(0), edges)
            .expect("the descriptor is added once");
        Some(epoll)
    };
    let [Some(progress), Some(caller)] = Sleeper::KINDS.map(watch) else {
        return skip("the provider has no descriptors");
    };
    let take_edges = |kind, epoll: &OwnedFd| {
        let mut space = [MaybeUninit::uninit(); 2];
        let (edges, _) = epoll::wait(epoll, &mut space[..], Some(&Timespec::default()))
            .expect("the descriptor is an epoll");
        fabric.wait(kind, fabric.doorbell(), Some(Duration::ZERO));
        edges.len()
    };
    let edges = || [take_edges(Sleeper::Progress, &progress), take_edges(Sleeper::Caller, &caller)];
    let kinds = [(Sleeper::Progress, &progress, [1, 0]), (Sleeper::Caller, &caller, [0, 1])];
    for (imm, (kind, own, expected)) in kinds.into_iter().cycle().take(6).enumerate() {
        harness.settle();
        // Other traffic of a network has edges, too. A consumed edge may disarm the doorbell, so this arms it again.
        loop {
            fabric.arm(Some(kind));
            pair.two.expect_nothing();
            if edges() == [0, 0] {
                break;
            }
        }
        pair.one.try_post(pair.to_two, &[send(imm as u32, true)]).expect("the request fits the queue");
        let long = Timespec { tv_sec: 10, tv_nsec: 0 };
        let mut polled = [PollFd::from_borrowed_fd(own.as_fd(), PollFlags::IN)];
        assert_eq!(rustix::event::poll(&mut polled, Some(&long)), Ok(1), "{kind:?} was not woken");
        assert_eq!(edges(), expected, "{kind:?}");
        assert_eq!(pair.two.received().1, imm as u32);
    }
    fabric.wake();
    assert_eq!(edges(), [1, 1], "a wake-up reaches every sleeper");
}
