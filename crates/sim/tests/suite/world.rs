//! Tasks, clocks and hosts.

use std::cell::RefCell;
use std::future::{pending, poll_fn};
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use halite_sim::{Profile, RunEnd, Trace, World};

fn world() -> World {
    World::new(1, Profile::local())
}

fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// Lets other tasks have their turn once.
async fn pause() {
    let mut polled = false;
    poll_fn(|context| {
        context.waker().wake_by_ref();
        if std::mem::replace(&mut polled, true) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

#[test]
fn time_passes_only_while_everybody_waits() {
    let world = world();
    let inner = world.clone();
    world.spawn(None, "story", async move {
        inner.sleep(None, ms(5)).await;
        assert_eq!(inner.now_ns(), 5_000_000);
        pause().await;
        assert_eq!(inner.now_ns(), 5_000_000);
    });
    assert_eq!(world.run(), RunEnd::Finished);
}

#[test]
fn a_story_without_a_future_is_stuck_and_says_who_waits() {
    let world = world();
    let host = world.add_host();
    world.spawn(None, "the story", pending());
    world.spawn(Some(host), "a progress thread", pending());
    let waiting = vec!["the story".to_owned(), "a progress thread of host-0".to_owned()];
    assert_eq!(world.run(), RunEnd::Stuck { waiting });
}

#[test]
fn a_story_that_never_rests_is_stopped() {
    let world = world();
    world.spawn(None, "a loop", async {
        loop {
            pause().await;
        }
    });
    assert_eq!(world.run(), RunEnd::StepsExhausted { task: "a loop".to_owned() });
    let other = self::world();
    let inner = other.clone();
    other.set_steps_max(100);
    other.spawn(None, "a clock", async move {
        loop {
            inner.sleep(None, ms(1)).await;
        }
    });
    assert_eq!(other.run(), RunEnd::StepsExhausted { task: "a clock".to_owned() });
    let stopped_ns = other.now_ns();
    assert!(stopped_ns < 100_000_000);
    other.set_steps_max(100);
    assert_eq!(other.run(), RunEnd::StepsExhausted { task: "a clock".to_owned() });
    assert!(other.now_ns() > stopped_ns, "it goes on where it was stopped");
    other.end();
}

#[test]
fn a_deadline_stops_the_world_at_that_instant() {
    let world = world();
    let sleep = world.sleep(None, ms(10));
    world.spawn(None, "story", sleep);
    assert_eq!(world.run_until(3_000_000), RunEnd::DeadlineReached);
    assert_eq!(world.now_ns(), 3_000_000);
    assert_eq!(world.run_until(20_000_000), RunEnd::Finished);
    assert_eq!(world.now_ns(), 10_000_000);
}

/// The order in which ten tasks that are ready at once are polled.
fn order(seed: u64) -> Vec<u32> {
    let world = World::new(seed, Profile::local());
    let order = Rc::new(RefCell::new(Vec::new()));
    for number in 0..10 {
        let order = order.clone();
        world.spawn(None, "one of ten", async move { order.borrow_mut().push(number) });
    }
    assert_eq!(world.run(), RunEnd::Finished);
    order.take()
}

#[test]
fn the_seed_chooses_among_tasks_that_are_ready_at_once() {
    assert_eq!(order(1), order(1));
    assert_ne!(order(1), order(2));
    let mut sorted = order(3);
    sorted.sort_unstable();
    assert_eq!(sorted, (0..10).collect::<Vec<_>>());
}

#[test]
fn what_belongs_to_a_host_may_be_handed_to_any_thread() {
    fn check<T: Send + Sync>() {}
    check::<halite_sim::HostClock>();
    check::<halite_sim::Sleep>();
    check::<halite_sim::Rung>();
}

#[test]
fn every_host_has_a_clock_of_its_own() {
    let world = world();
    let (fast, slow) = (world.add_host(), world.add_host());
    world.set_drift_ppm(fast, 100_000);
    world.set_drift_ppm(slow, -100_000);
    let (fast_clock, slow_clock) = (world.clock(fast), world.clock(slow));
    assert_ne!(fast_clock.now_ns(), slow_clock.now_ns());
    let (fast_begin, slow_begin) = (fast_clock.now_ns(), slow_clock.now_ns());
    world.spawn(None, "a second", world.sleep(None, ms(1000)));
    world.run();
    assert_eq!(fast_clock.now_ns() - fast_begin, 1_100_000_000);
    assert_eq!(slow_clock.now_ns() - slow_begin, 900_000_000);
}

#[test]
fn sleepers_follow_their_host_s_clock_even_when_it_changes_its_rate() {
    let world = world();
    let host = world.add_host();
    world.spawn(Some(host), "sleeper", world.sleep(Some(host), ms(100)));
    let sleeper = world.spawn(Some(host), "other", pending());
    world.run_until(50_000_000);
    // 50 ms are left, which now take 100.
    world.set_drift_ppm(host, -500_000);
    let inner = world.clone();
    world.spawn(None, "watcher", async move { inner.sleep(None, ms(99)).await });
    world.run();
    assert!(world.is_alive(sleeper));
    world.abort(sleeper);
    assert_eq!(world.run(), RunEnd::Finished);
    assert_eq!(world.now_ns(), 150_000_000);
}

#[test]
fn a_clock_that_gets_faster_wakes_its_sleepers_earlier() {
    let world = world();
    let host = world.add_host();
    let clock = world.clock(host);
    let sleep = clock.sleep_until(clock.now_ns() + 100_000_000);
    world.spawn(None, "sleeper", sleep);
    world.spawn(Some(host), "another", world.sleep(Some(host), ms(100)));
    world.run_until(50_000_000);
    world.set_drift_ppm(host, 1_000_000);
    assert_eq!(world.run(), RunEnd::Finished);
    assert_eq!(world.now_ns(), 75_000_000, "a sleeper follows its clock, wherever that runs");
}

/// A task that counts milliseconds.
fn count(world: &World, host: halite_sim::HostId) -> Rc<RefCell<u64>> {
    let counted = Rc::new(RefCell::new(0));
    let (inner, shared) = (world.clone(), counted.clone());
    world.spawn(Some(host), "counter", async move {
        loop {
            inner.sleep(Some(host), ms(1)).await;
            *shared.borrow_mut() += 1;
        }
    });
    counted
}

#[test]
fn a_paused_host_does_nothing_and_goes_on_where_it_stopped() {
    let world = world();
    let host = world.add_host();
    let counted = count(&world, host);
    world.run_until(10_500_000);
    assert_eq!(*counted.borrow(), 10);
    world.pause(host);
    world.run_until(20_500_000);
    assert_eq!(*counted.borrow(), 10);
    world.resume(host);
    world.run_until(30_600_000);
    assert_eq!(*counted.borrow(), 21);
    world.end();
}

#[test]
fn a_crash_drops_the_tasks_of_its_host_and_no_others() {
    let world = world();
    let (host, other) = (world.add_host(), world.add_host());
    let (counted, others) = (count(&world, host), count(&world, other));
    world.run_until(3_500_000);
    world.crash(host);
    assert_eq!(Rc::strong_count(&counted), 1, "the task is dropped at once");
    let late = world.spawn(Some(host), "too late", pending());
    assert!(!world.is_alive(late));
    world.run_until(6_500_000);
    assert_eq!((*counted.borrow(), *others.borrow()), (3, 6));
    world.restart(host);
    let again = count(&world, host);
    world.run_until(8_600_000);
    assert_eq!(*again.borrow(), 2);
    world.end();
}

#[test]
fn a_task_may_crash_the_host_that_it_runs_on() {
    let world = world();
    let host = world.add_host();
    let inner = world.clone();
    let after = Rc::new(RefCell::new(false));
    let shared = after.clone();
    let task = world.spawn(Some(host), "suicidal", async move {
        inner.crash(host);
        pause().await;
        *shared.borrow_mut() = true;
    });
    assert_eq!(world.run(), RunEnd::Finished);
    assert!(!world.is_alive(task) && !*after.borrow());
}

#[test]
fn lines_of_the_story_are_part_of_the_trace_and_its_numbers_of_the_digest() {
    let told = |trace, number| {
        let world = world();
        world.set_trace(trace);
        let host = world.add_host();
        world.note(None, format_args!("forgotten"));
        world.note(None, format_args!("it begins"));
        world.note(Some(host), format_args!("the end"));
        world.fold(number);
        (world.digest(), world.trace())
    };
    let (digest, lines) = told(Trace::Last(2), 7);
    assert_eq!(lines, ["        0.000 us  story    it begins", "        0.000 us  host-0   the end"]);
    assert_eq!(told(Trace::Off, 7), (digest, Vec::new()), "looking changes nothing");
    assert_ne!(told(Trace::Off, 8).0, digest);
}
