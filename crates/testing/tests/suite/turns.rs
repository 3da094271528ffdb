//! Threads of cases in virtual time.

use std::sync::Mutex;
use std::task::Poll;

use halite_sim::{Profile, World};
use halite_testing::conformance::turns::{InWorld, StartingLine, pause, scope, wait};

/// Lets `count` threads meet at a starting line; returns the time that this took.
fn meet(world: &World, count: usize) -> u64 {
    let line = StartingLine::new(count);
    scope(|scope| (0..count).for_each(|_| drop(scope.spawn(|| line.wait()))));
    world.now_ns()
}

#[test]
fn virtual_time_passes_while_threads_wait() {
    let took = [0, 1].map(|_| {
        let world = World::new(1, Profile::local());
        let _in_world = InWorld::enter(&world);
        meet(&world, 5)
    });
    assert!(took[0] > 0, "virtual time did not pass while threads waited");
    assert_eq!(took[0], took[1], "two runs with one seed took different times");
}

#[test]
fn a_woken_thread_that_has_ended_gets_no_turn() {
    let world = World::new(1, Profile::local());
    let _in_world = InWorld::enter(&world);
    let late = Mutex::new(None);
    scope(|scope| {
        scope.spawn(|| {
            wait(std::future::poll_fn(|context| {
                *late.lock().unwrap() = Some(context.waker().clone());
                Poll::Ready(())
            }));
        });
    });
    late.into_inner().unwrap().expect("the future was polled").wake();
    pause();
}

#[test]
#[should_panic = "another thread of the case has failed"]
fn a_failed_thread_ends_all_waits() {
    let world = World::new(1, Profile::local());
    let _in_world = InWorld::enter(&world);
    scope(|scope| {
        scope.spawn(|| panic!("deliberate failure"));
        scope.spawn(|| wait(std::future::pending::<()>()));
    });
}

#[test]
#[should_panic = "the case hangs"]
fn an_endless_wait_panics() {
    let world = World::new(1, Profile::local());
    let _in_world = InWorld::enter(&world);
    wait(std::future::pending::<()>());
}
