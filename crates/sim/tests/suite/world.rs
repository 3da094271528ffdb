//! Tasks, clocks and hosts.

use std::cell::RefCell;
use std::future::{pending, poll_fn};
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use halite_sim::{Profile, RunEnd, World};

fn world() -> World {
    World::new(1, Profile::local())
}

fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// Lets the other tasks run once.
async fn yield_now() {
    let mut polled = false;
    poll_fn(|context| {
        context.waker().wake_by_ref();
        if std::mem::replace(&mut polled, true) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

#[test]
fn a_stuck_world_names_the_waiting_tasks() {
    let world = world();
    let host = world.add_host();
    world.spawn(None, "the story", pending());
    world.spawn(Some(host), "a progress thread", pending());
    let waiting = vec!["the story".to_owned(), "a progress thread of host-0".to_owned()];
    assert_eq!(world.run(), RunEnd::Stuck { waiting });
}

#[test]
fn an_endless_task_is_stopped() {
    let world = world();
    world.spawn(None, "a loop", async {
        loop {
            yield_now().await;
        }
    });
    assert_eq!(world.run(), RunEnd::StepsExhausted { task: "a loop".to_owned() });
}

/// Returns the order in which ten tasks that are ready at the same time are polled.
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
fn the_seed_orders_ready_tasks() {
    assert_eq!(order(1), order(1));
    assert_ne!(order(1), order(2));
    let mut sorted = order(3);
    sorted.sort_unstable();
    assert_eq!(sorted, (0..10).collect::<Vec<_>>());
}

#[test]
fn each_host_has_its_own_clock() {
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

/// Starts a task that counts the milliseconds of its host's clock. Returns the count.
fn spawn_counter(world: &World, host: halite_sim::HostId) -> Rc<RefCell<u64>> {
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
fn a_resumed_host_continues_where_it_stopped() {
    let world = world();
    let host = world.add_host();
    let counted = spawn_counter(&world, host);
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
fn a_crash_drops_only_the_tasks_of_its_host() {
    let world = world();
    let (host, other) = (world.add_host(), world.add_host());
    let (counted, others) = (spawn_counter(&world, host), spawn_counter(&world, other));
    world.run_until(3_500_000);
    world.crash(host);
    assert_eq!(Rc::strong_count(&counted), 1, "the task was not dropped at once");
    let late = world.spawn(Some(host), "too late", pending());
    assert!(!world.is_alive(late));
    world.run_until(6_500_000);
    assert_eq!((*counted.borrow(), *others.borrow()), (3, 6));
    world.restart(host);
    let again = spawn_counter(&world, host);
    world.run_until(8_600_000);
    assert_eq!(*again.borrow(), 2);
    world.end();
}
