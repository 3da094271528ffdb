//! What trials have found: each a short story that went wrong once.

use std::rc::Rc;
use std::time::Duration;

use halite::{CallCause, Function, NodeId, Permissions, Placement, ServeOptions};
use halite_sim::{Link, RunEnd, World};

use crate::plan::Plan;
use crate::stage::Stage;
use crate::trial::hardware;

/// Runs a story on nodes that have joined; nobody else does anything.
fn on_nodes<F: Future<Output = ()> + 'static>(nodes: u32, story: impl FnOnce(Rc<Stage>) -> F + 'static) {
    let plan = Plan::from_toml(&format!("name = 'found'\nnodes = {nodes}\n")).expect("it is a good plan");
    let world = World::new(1, hardware(&plan).expect("it is known"));
    let stage = Stage::new(world.clone(), plan);
    let told = stage.clone();
    world.spawn(None, "the story", async move {
        for node in 0..nodes {
            told.start(node);
            while !told.is_up(node) {
                told.world.sleep(None, Duration::from_micros(1)).await;
            }
        }
        story(told).await;
    });
    assert_eq!(world.run_until(1_000_000_000), RunEnd::Finished);
    assert_eq!(stage.judge.violation(), None);
    world.end();
}

const TIMEOUT: Duration = Duration::from_micros(50);
/// A call has ended so long after its time is over.
const ENOUGH: Duration = Duration::from_micros(60);
/// Bytes that do not fit into a slot.
const LONG: usize = 100 << 10;
const FUNCTION: Function = Function(77);

/// Only what makes room woke it, or a look once in a millisecond.
#[test]
fn a_call_that_waits_for_room_in_a_ring_ends_in_time() {
    on_nodes(2, |stage| async move {
        let session = stage.driven(0).expect("it is up").session();
        stage.world.pause(stage.host(1));
        let input = vec![7; 4000];
        let mut posted = Vec::new();
        let began_ns = stage.world.now_ns();
        // A ring of 16 KiB takes no more than four.
        for _ in 0..5 {
            posted.push(session.post_call(NodeId(1), FUNCTION, &input, 0, TIMEOUT).await);
        }
        assert_eq!(posted.pop().expect("five").expect_err("there is no room").cause, CallCause::Timeout);
        assert!(stage.world.now_ns() < began_ns + ENOUGH.as_nanos() as u64);
    });
}

/// Each was waited for after the other, and its long answer read then, however late it was.
#[test]
fn a_node_that_does_not_answer_costs_those_that_do_no_time() {
    on_nodes(4, |stage| async move {
        let sessions = [1, 2, 3].map(|node| stage.driven(node).expect("it is up").session());
        let servers =
            sessions.map(|session| session.serve(FUNCTION, ServeOptions::default()).expect("nobody does"));
        let [silent, servers @ ..] = servers;
        for (host, server) in [2, 3].map(|node| stage.host(node)).into_iter().zip(servers) {
            stage.world.spawn(Some(host), "a handler", async move {
                let call = server.recv().await.expect("there is one");
                call.reply(&[7; LONG]).expect("it is waited for");
            });
        }
        let session = stage.driven(0).expect("it is up").session();
        let began_ns = stage.world.now_ns();
        let answers = session.call_many(&[1, 2, 3].map(NodeId), FUNCTION, b"", TIMEOUT).await;
        assert_eq!(answers[0].as_ref().expect_err("it is silent").cause, CallCause::Timeout);
        assert!(answers[1..].iter().all(|answer| *answer == Ok(vec![7; LONG])));
        assert!(stage.world.now_ns() < began_ns + ENOUGH.as_nanos() as u64);
        drop(silent);
    });
}

/// It was waited for during a second, however short the leases are.
#[test]
fn a_watcher_that_its_writer_cannot_reach_holds_it_up_for_a_lease_at_most() {
    on_nodes(3, |stage| async move {
        let lease_ns = stage.plan.lease().as_nanos() as u64;
        let writer = stage.driven(1).expect("it is up").session();
        let board = writer.alloc(Some("board"), 64, Placement::On(NodeId(0)), Permissions::READ).await;
        let board = board.expect("there is room");
        stage.crash(2);
        for (from, to) in [(1, 2), (2, 1)] {
            let [from, to] = [from, to].map(|node| stage.host(node));
            stage.world.set_link(from, to, Link::down(stage.world.link(from, to)));
        }
        stage.restart(2);
        while !stage.is_up(2) {
            stage.world.sleep(None, Duration::from_micros(1)).await;
        }
        let reader = stage.driven(2).expect("it is up").session();
        let seen = reader.map("board", Permissions::READ).await.expect("it is there");
        let watch = reader.watch(seen).await.expect("it may read");
        let began_ns = stage.world.now_ns();
        assert_eq!(writer.write_notify(board, 0, b"salt", 7).await, Ok(()));
        assert!(stage.world.now_ns() < began_ns + 2 * lease_ns);
        drop(watch);
    });
}
