//! What trials have found: each a short scenario that went wrong once.

use std::cell::Cell;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use halite::{
    AccessCause, CallCause, Function, Lh, LockCause, LockError, Mailbox, NodeId, Permissions, Placement,
    Port, ReadOp, RegionCause, SendCause, ServeCause, ServeOptions, Session, Who, WriteOp,
};
use halite_sim::{Link, RunEnd};

use crate::harness::{CHUNK_BYTES, Harness};
use crate::plan::Plan;
use crate::trial;

/// Runs a scenario on nodes that have joined; nobody else does anything.  Returns the digest of all that happened.
fn on_nodes<F: Future<Output = ()> + 'static>(
    nodes: u32,
    scenario: impl FnOnce(Rc<Harness>) -> F + 'static,
) -> u64 {
    on_hardware("local", nodes, scenario)
}

pub(crate) fn on_hardware<F: Future<Output = ()> + 'static>(
    profile: &str,
    nodes: u32,
    scenario: impl FnOnce(Rc<Harness>) -> F + 'static,
) -> u64 {
    on_plan(&format!("nodes = {nodes}\nprofile = '{profile}'"), scenario)
}

/// On nodes that stand on hosts, so many on each, which adapters connect.
fn on_hosts<F: Future<Output = ()> + 'static>(
    nodes: &[u32],
    scenario: impl FnOnce(Rc<Harness>) -> F + 'static,
) -> u64 {
    let all: u32 = nodes.iter().sum();
    on_plan(&format!("nodes = {all}\nprofile = 'rnic-100g'\nhosts = {nodes:?}"), scenario)
}

fn on_plan<F: Future<Output = ()> + 'static>(
    plan: &str,
    scenario: impl FnOnce(Rc<Harness>) -> F + 'static,
) -> u64 {
    let plan = Plan::from_toml(&format!("name = 'found'\n{plan}\n")).expect("it is a good plan");
    let nodes = plan.nodes;
    let world = trial::world(&plan, 1).expect("it is known");
    let harness = Harness::new(world.clone(), plan);
    let told = harness.clone();
    world.spawn(None, "the scenario", async move {
        for node in 0..nodes {
            told.start(node);
            while !told.is_up(node) {
                told.world.sleep(None, Duration::from_micros(1)).await;
            }
        }
        scenario(told).await;
    });
    assert_eq!(world.run_until(1_000_000_000), RunEnd::Finished);
    assert_eq!(harness.judge.violation(), None);
    world.end();
    world.digest()
}

pub(crate) fn session_of(harness: &Harness, node: u32) -> Session {
    harness.driven(node).expect("it is up").session()
}

/// Polls a future outside of any task: nobody is woken for it.
pub(crate) fn look<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// A region of a few words on the session's own node.
pub(crate) async fn alloc_here(session: &Session, name: &str) -> Lh {
    session.alloc(Some(name), 64, Placement::Local, ALL).await.expect("there is room")
}

pub(crate) const TIMEOUT: Duration = Duration::from_micros(50);
/// A call has ended so long after its time is over.
const ENOUGH: Duration = Duration::from_micros(60);
/// Bytes that do not fit into a slot.
const LONG: usize = 100 << 10;
const FUNCTION: Function = Function(77);
/// Whatever a region may be used for.
pub(crate) const ALL: Permissions = Permissions::READ.union(Permissions::WRITE).union(Permissions::ATOMIC);

/// Only what makes room woke it, or a look once in a millisecond.
#[test]
fn a_call_that_waits_for_room_in_a_ring_ends_in_time() {
    on_nodes(2, |harness| async move {
        let session = session_of(&harness, 0);
        harness.world.pause(harness.host(1));
        let input = vec![7; 4000];
        let mut posted = Vec::new();
        let began_ns = harness.world.now_ns();
        // A ring of 16 KiB takes no more than four.
        for _ in 0..5 {
            posted.push(session.post_call(NodeId(1), FUNCTION, &input, 0, TIMEOUT).await);
        }
        let error = posted.pop().expect("five").expect_err("there is no room");
        assert!(error.cause == CallCause::Timeout && !error.may_have_run, "{error}");
        assert!(harness.world.now_ns() < began_ns + ENOUGH.as_nanos() as u64);
    });
}

/// Each was waited for after the other, and its long answer read then, however late it was.
#[test]
fn a_node_that_does_not_answer_costs_those_that_do_no_time() {
    on_nodes(4, |harness| async move {
        let sessions = [1, 2, 3].map(|node| session_of(&harness, node));
        let servers =
            sessions.map(|session| session.serve(FUNCTION, ServeOptions::default()).expect("nobody does"));
        let [silent, servers @ ..] = servers;
        for (host, server) in [2, 3].map(|node| harness.host(node)).into_iter().zip(servers) {
            harness.world.spawn(Some(host), "a handler", async move {
                let call = server.recv().await.expect("there is one");
                call.reply(&[7; LONG]).expect("it is waited for");
            });
        }
        let session = session_of(&harness, 0);
        let began_ns = harness.world.now_ns();
        let answers = session.call_many(&[1, 2, 3].map(NodeId), FUNCTION, b"", TIMEOUT).await;
        assert_eq!(answers[0].as_ref().expect_err("it is silent").cause, CallCause::Timeout);
        assert!(answers[1..].iter().all(|answer| *answer == Ok(vec![7; LONG])));
        assert!(harness.world.now_ns() < began_ns + ENOUGH.as_nanos() as u64);
        drop(silent);
    });
}

/// The peer had been forgotten when the connection was given up, and the handle was taken for one to a region that had gone: nothing would
/// have been done.
#[test]
fn what_may_have_been_done_when_a_connection_broke_is_said_to_be_so() {
    on_hardware("rnic-100g", 2, |harness| async move {
        let (here, there) = (session_of(&harness, 0), session_of(&harness, 1));
        let own = alloc_here(&there, "words").await;
        let lh = here.map("words", ALL).await.expect("it is there");
        // What is done is done, and nobody here hears of it.
        let (from, to) = (harness.host(1), harness.host(0));
        harness.world.set_link(from, to, harness.world.link(from, to).down());
        let mut adding = pin!(here.fetch_add(lh, 8, 1));
        assert!(look(adding.as_mut()).is_pending());
        let written = here.write(lh, 0, b"salt").await.expect_err("the connection is broken");
        let added = adding.await.expect_err("the connection is broken");
        for error in [&written, &added] {
            assert_eq!(error.cause, AccessCause::PeerDown(NodeId(1)), "it lives, and is out of reach");
            assert!(error.partly, "{error} although it was done");
        }
        let mut seen = [0; 16];
        there.read(own, 0, &mut seen).await.expect("it is here");
        assert_eq!(seen, *b"salt\0\0\0\0\x01\0\0\0\0\0\0\0");
    });
}

/// Numbers of handles were given out again at once, while the engine still changed what it took to be behind them.
#[test]
fn a_handle_of_a_node_that_leaves_leads_to_its_own_region() {
    on_nodes(4, |harness| async move {
        let (home, leaver, slow) =
            (session_of(&harness, 1), session_of(&harness, 2), session_of(&harness, 3));
        let ours = [alloc_here(&home, "salt").await, alloc_here(&home, "pepper").await];
        home.write(ours[0], 0, b"salt..").await.expect("it is here");
        home.write(ours[1], 0, b"pepper").await.expect("it is here");
        alloc_here(&slow, "slow").await;
        leaver.map("salt", ALL).await.expect("it is there");
        let other = leaver.map("slow", ALL).await.expect("it is there");
        // A node that leaves waits for its commands, and has another one under way.
        harness.world.pause(harness.host(3));
        let mut filling = pin!(leaver.fill(other, 0, 64, 7));
        assert!(look(filling.as_mut()).is_pending());
        // As many handles as it has had, so that each number that is free is given out again.
        let mut mapping = [(); 2].map(|()| Box::pin(leaver.map("pepper", ALL)));
        assert!(mapping.iter_mut().all(|each| look(each.as_mut()).is_pending()));
        harness.driven(2).expect("it is up").begin_to_leave();
        let [first, second] = mapping;
        let late = [first.await, second.await].map(|each| each.expect("the node has not left yet"));
        // What the leaver still knows of the first region changes.
        let mut revoking = pin!(home.revoke(ours[0], Who::Principal("bob".into()), ALL));
        assert!(look(revoking.as_mut()).is_pending());
        harness.world.sleep(None, TIMEOUT).await;
        for lh in late {
            let mut seen = [0; 6];
            leaver.read(lh, 0, &mut seen).await.expect("it is there");
            assert_eq!(&seen, b"pepper");
        }
        harness.world.resume(harness.host(3));
        revoking.await.expect("nobody keeps it from being done");
        filling.await.expect("the node has waited for it");
    });
}

fn is_closed<T>(ended: Poll<Result<T, LockError>>) -> bool {
    let closed = LockCause::Region(RegionCause::NodeClosed);
    matches!(ended, Poll::Ready(Err(error)) if error.cause == closed)
}

/// All its alarms are rung, and that was taken for the end of the time.
#[test]
fn who_waits_for_a_lock_with_a_limit_hears_that_the_node_leaves() {
    on_nodes(1, |harness| async move {
        let (holder, waiter) = (session_of(&harness, 0), session_of(&harness, 0));
        let _guard = holder.lock("ledger").await.expect("it is free");
        let mut taking = pin!(waiter.lock_within("ledger", Duration::from_secs(3600)));
        harness.world.sleep(None, TIMEOUT).await;
        assert!(look(taking.as_mut()).is_pending());
        harness.driven(0).expect("it is up").begin_to_leave();
        assert!(is_closed(look(taking.as_mut())), "nothing else can become of it");
    });
}

/// A guard that is dropped then gives nothing up, so that the session took itself for the holder.
#[test]
fn a_lock_that_was_held_when_the_node_left_is_not_said_to_be_held_already() {
    on_nodes(1, |harness| async move {
        let session = session_of(&harness, 0);
        let guard = session.lock("ledger").await.expect("it is free");
        harness.driven(0).expect("it is up").begin_to_leave();
        drop(guard);
        assert!(is_closed(look(pin!(session.try_lock("ledger")))));
        assert!(is_closed(look(pin!(session.lock_within("ledger", TIMEOUT)))));
    });
}

/// Tokens followed from the host's date, and ports of watches from how many there had been in the process.
#[test]
fn locks_and_watches_are_the_same_in_two_runs_of_one_seed() {
    let run = || {
        on_nodes(2, |harness| async move {
            let session = session_of(&harness, 1);
            let guard = session.lock("ledger").await.expect("it is free");
            harness.world.fold(guard.token());
            let board = alloc_here(&session, "board").await;
            let _watch = session.watch(board).await.expect("it may be read");
            // A writer sends to the watch's port.
            let other = session_of(&harness, 0);
            let there = other.map("board", ALL).await.expect("it is there");
            other.write_notify(there, 0, b"salt", 7).await.expect("it may be written");
        })
    };
    assert_eq!(run(), run());
}

/// The read of the input ends with the node's connections, which was taken for a lack of memory.
#[test]
fn a_server_that_leaves_while_it_fetches_a_long_input_is_said_to_have_ended() {
    on_nodes(2, |harness| async move {
        let server = session_of(&harness, 1).serve(FUNCTION, ServeOptions::default()).expect("nobody does");
        let handler = harness.world.spawn(Some(harness.host(1)), "a handler", async move {
            assert_eq!(server.recv().await.expect_err("no input arrives").cause, ServeCause::NodeClosed);
        });
        let leaving = harness.clone();
        harness.world.spawn(None, "the server leaves", async move {
            // Some of several parts are under way, and others have not been asked for.
            leaving.world.sleep(None, Duration::from_micros(15)).await;
            // What the server says is heard when it has said all.
            leaving.world.pause(leaving.host(0));
            leaving.driven(1).expect("it is up").begin_to_leave();
            while leaving.world.is_alive(handler) {
                leaving.world.sleep(None, Duration::from_micros(1)).await;
            }
            leaving.world.resume(leaving.host(0));
        });
        let called = session_of(&harness, 0).call(NodeId(1), FUNCTION, &[7; 16 * LONG], 4 * TIMEOUT).await;
        assert_eq!(called.expect_err("the server leaves").cause, CallCause::ServerClosed);
    });
}

/// It was waited for during a second, however short the leases are.
#[test]
fn a_watcher_that_its_writer_cannot_reach_holds_it_up_for_a_lease_at_most() {
    on_nodes(3, |harness| async move {
        let lease_ns = harness.plan.lease().as_nanos() as u64;
        let writer = harness.driven(1).expect("it is up").session();
        let board = writer.alloc(Some("board"), 64, Placement::On(NodeId(0)), Permissions::READ).await;
        let board = board.expect("there is room");
        harness.crash(2);
        for (from, to) in [(1, 2), (2, 1)] {
            let [from, to] = [from, to].map(|node| harness.host(node));
            harness.world.set_link(from, to, Link::down(harness.world.link(from, to)));
        }
        harness.restart(2);
        while !harness.is_up(2) {
            harness.world.sleep(None, Duration::from_micros(1)).await;
        }
        let reader = harness.driven(2).expect("it is up").session();
        let seen = reader.map("board", Permissions::READ).await.expect("it is there");
        let watch = reader.watch(seen).await.expect("it may read");
        let began_ns = harness.world.now_ns();
        assert_eq!(writer.write_notify(board, 0, b"salt", 7).await, Ok(()));
        assert!(harness.world.now_ns() < began_ns + 2 * lease_ns);
        drop(watch);
    });
}

/// Its next look would come up to a millisecond later.
#[test]
fn a_notification_ends_the_pause_of_a_wait() {
    on_nodes(2, |harness| async move {
        let (reader, writer) = (session_of(&harness, 0), session_of(&harness, 1));
        let flag = alloc_here(&reader, "flag").await;
        let theirs = writer.map("flag", ALL).await.expect("it is there");
        for round in 1..=5u64 {
            let reader = reader.clone();
            let waiting = harness.world.spawn(Some(harness.host(0)), "a wait", async move {
                assert_eq!(reader.wait_until(flag, 0, |word| word == round).await, Ok(round));
            });
            // By now the wait looks once a millisecond.
            harness.world.sleep(None, Duration::from_millis(10)).await;
            assert!(harness.world.is_alive(waiting));
            writer.write_notify(theirs, 0, &round.to_ne_bytes(), round).await.expect("it may be written");
            harness.world.sleep(None, Duration::from_micros(100)).await;
            assert!(!harness.world.is_alive(waiting), "round {round}");
        }
    });
}

const PORT: Port = Port(77);

fn mailbox_of(harness: &Harness, node: u32, options: ServeOptions) -> Mailbox {
    session_of(harness, node).open_port(PORT, options).expect("nobody has it open")
}

/// The node dies, and is back at once.
async fn begin_next_incarnation(harness: &Rc<Harness>, node: u32) {
    harness.crash(node);
    harness.restart(node);
    while !harness.is_up(node) {
        harness.world.sleep(None, Duration::from_micros(1)).await;
    }
}

/// It went to the next node with the number, and where none lived for long enough to take anything it waited for ever.
#[test]
fn a_message_that_waits_for_room_in_a_ring_ends_with_the_incarnation_that_it_was_sent_to() {
    on_nodes(2, |harness| async move {
        let session = session_of(&harness, 0);
        harness.world.pause(harness.host(1));
        let input = vec![7; 4000];
        // A ring of 16 KiB takes no more than four.
        let mut sending = Vec::new();
        for _ in 0..5 {
            let mut message = Box::pin(session.send(NodeId(1), PORT, &input));
            assert!(look(message.as_mut()).is_pending());
            sending.push(message);
        }
        begin_next_incarnation(&harness, 1).await;
        let mailbox = mailbox_of(&harness, 1, ServeOptions::default());
        let last = sending.pop().expect("five").await.expect_err("its life is over");
        assert_eq!((last.cause, last.may_have_arrived), (SendCause::PeerDown, false));
        for message in sending {
            let error = message.await.expect_err("its life is over");
            assert_eq!((error.cause, error.may_have_arrived), (SendCause::PeerDown, true));
        }
        assert_eq!(mailbox.try_recv(), Ok(None));
    });
}

/// The number of the place that had been kept for it went to a node that knew nothing of it, and so did the message.
#[test]
fn a_message_that_was_promised_room_is_not_sent_to_the_next_incarnation() {
    on_nodes(2, |harness| async move {
        let session = session_of(&harness, 0);
        let full = ServeOptions { requests_max: 1, ..ServeOptions::default() };
        let mailbox = mailbox_of(&harness, 1, full.clone());
        session.send(NodeId(1), PORT, b"first").await.expect("there is room");
        let mut sending = pin!(session.send(NodeId(1), PORT, b"second"));
        assert!(look(sending.as_mut()).is_pending());
        harness.world.sleep(None, TIMEOUT).await;
        mailbox.recv().await.expect("the first is here");
        // The promise arrives, and nobody looks at it yet.
        harness.world.sleep(None, TIMEOUT).await;
        drop(mailbox);
        begin_next_incarnation(&harness, 1).await;
        let mailbox = mailbox_of(&harness, 1, full);
        let error = sending.await.expect_err("its life is over");
        assert_eq!((error.cause, error.may_have_arrived), (SendCause::PeerDown, false));
        assert_eq!(mailbox.try_recv(), Ok(None));
    });
}

/// Changes waited for all that was posted, to any peer.
#[test]
fn a_write_to_a_silent_node_holds_up_changes_of_its_own_region_and_of_no_other() {
    on_nodes(3, |harness| async move {
        let session = session_of(&harness, 0);
        let on = |node| session.alloc(None, 64, Placement::On(NodeId(node)), ALL);
        let silent = on(2).await.expect("there is room");
        let (here, elsewhere) = (on(0).await.expect("there is room"), on(1).await.expect("there is room"));
        let (one, other) = (harness.host(0), harness.host(2));
        let link = harness.world.link(one, other);
        harness.world.set_link(one, other, link.down());
        let mut writing = pin!(session.write(silent, 0, b"salt"));
        assert!(look(writing.as_mut()).is_pending());

        session.free(here).await.expect("it is ours");
        session.free(elsewhere).await.expect("it is ours");
        let mut unmapping = pin!(session.unmap(silent));
        assert!(look(unmapping.as_mut()).is_pending());
        harness.world.sleep(None, TIMEOUT).await;
        assert!(look(writing.as_mut()).is_pending(), "nobody has heard of it");
        assert!(look(unmapping.as_mut()).is_pending(), "the write may still arrive");

        harness.world.set_link(one, other, link);
        writing.await.expect("it is heard in the end");
        unmapping.await.expect("nothing is under way any more");
    });
}

/// What is posted inline has a limit, which the header of a call with such a name exceeded: the node panicked.
#[test]
fn a_principal_with_a_name_of_250_bytes_calls_and_sends() {
    on_hardware("rnic-100g", 2, |harness| async move {
        let name = "a".repeat(250);
        let server = session_of(&harness, 1).serve(FUNCTION, ServeOptions::default()).expect("nobody does");
        let mailbox =
            session_of(&harness, 1).open_port(Port(7), ServeOptions::default()).expect("it is free");
        let (told, inputs) =
            (name.clone(), [8, 300, 5000, LONG].map(|len| (0..len).map(|at| at as u8).collect::<Vec<_>>()));
        let expected = inputs.clone();
        harness.world.spawn(Some(harness.host(1)), "a handler", async move {
            for input in expected {
                let call = server.recv().await.expect("it is called");
                assert_eq!((call.caller(), call.input()), (told.as_str(), &*input));
                call.reply(&input).expect("it waits");
            }
        });
        let caller = harness.driven(0).expect("it is up").session_of(&name).expect("it is short enough");
        for input in inputs {
            let answer = caller.call(NodeId(1), FUNCTION, &input, 100 * TIMEOUT).await;
            assert_eq!(answer.expect("it is answered"), input);
        }
        caller.send(NodeId(1), Port(7), b"salt").await.expect("there is room");
        assert_eq!(mailbox.recv().await.expect("it was sent").bytes, b"salt");
    });
}

/// Answers that were still to come when a node ended were taken for operations that had not been made.
#[test]
fn what_was_under_way_when_the_own_node_left_is_said_to_be_done_or_not() {
    on_nodes(2, |harness| async move {
        let (session, other) = (session_of(&harness, 0), session_of(&harness, 1));
        let lh = session.alloc(Some("till"), 64, Placement::On(NodeId(1)), ALL).await.expect("there is room");
        let theirs = other.map("till", ALL).await.expect("it is there");
        session.write(lh, 0, &[0; 16]).await.expect("it may be written");
        // It is heard, and hears nothing.
        let (from, to) = (harness.host(1), harness.host(0));
        harness.world.set_link(from, to, harness.world.link(from, to).down());
        let (mut adding, mut writing) =
            (pin!(session.fetch_add(lh, 0, 7)), pin!(session.write(lh, 8, b"salt")));
        assert!(look(adding.as_mut()).is_pending() && look(writing.as_mut()).is_pending());
        harness.driven(0).expect("it is up").begin_to_leave();
        let (added, written) = (adding.await.unwrap_err(), writing.await.unwrap_err());
        assert_eq!((added.cause, added.partly), (AccessCause::NodeClosed, true));
        assert_eq!((written.cause, written.partly), (AccessCause::NodeClosed, true));
        let mut bytes = [0; 12];
        other.read(theirs, 0, &mut bytes).await.expect("it may be read");
        assert_eq!(&bytes, b"\x07\0\0\0\0\0\0\0salt");
    });
}

/// Where it lies decides, not who asks: each piece is told with what stands in between.
#[test]
fn words_of_one_region_are_changed_by_instructions_and_by_adapters_and_none_is_lost() {
    on_hosts(&[2, 1], |harness| async move {
        let [near, beside, far] = [0, 1, 2].map(|node| session_of(&harness, node));
        let spread = Placement::Spread([0, 1, 2].map(NodeId).to_vec());
        let len = 3 * CHUNK_BYTES;
        let lh = near.alloc(Some("tally"), len, spread, ALL).await.expect("there is room");
        let told = near.explain(lh).await.expect("it is ours");
        let verbs: Vec<_> = told.pieces.iter().map(|piece| (piece.node, piece.verbs.atomic)).collect();
        let (instruction, posted) = ("atomic instruction", "posted atomic");
        assert_eq!(verbs, [(0, instruction), (1, instruction), (2, posted)]);
        let direct = async |node| {
            let told = near.explain_peer(NodeId(node)).await.expect("it is known");
            told.capabilities.expect("it is connected").direct
        };
        assert_eq!((direct(1).await, direct(2).await), (true, false));

        let data: Vec<u8> = (0..len).map(|at| at as u8).collect();
        near.write(lh, 0, &data).await.expect("it may be written");
        let begun = Rc::new(Cell::new(0));
        let adding = [near.clone(), beside, far].into_iter().zip(0..).map(|(session, node)| {
            let (world, begun, data) = (harness.world.clone(), begun.clone(), data.clone());
            harness.world.spawn(Some(harness.host(node)), format!("node {node} adds"), async move {
                let lh = session.map("tally", ALL).await.expect("it is there");
                let mut seen = vec![0; len as usize];
                session.read(lh, 0, &mut seen).await.expect("it may be read");
                assert!(seen == data);
                begun.set(begun.get() + 1);
                while begun.get() < 3 {
                    world.sleep(None, Duration::from_micros(1)).await;
                }
                for round in 0..30 {
                    let offset = round % 3 * CHUNK_BYTES;
                    session.fetch_add(lh, offset, 1).await.expect("it may be changed");
                }
            })
        });
        let adding: Vec<_> = adding.collect();
        while adding.iter().any(|task| harness.world.is_alive(*task)) {
            harness.world.sleep(None, Duration::from_micros(1)).await;
        }
        for chunk in 0..3 {
            let mut word = [0; 8];
            near.read(lh, chunk * CHUNK_BYTES, &mut word).await.expect("it may be read");
            let at = (chunk * CHUNK_BYTES) as usize;
            let before = u64::from_le_bytes(data[at..at + 8].try_into().expect("eight"));
            assert_eq!(u64::from_le_bytes(word), before + 30, "chunk {chunk}");
        }
    });
}

/// Its guard, dropped with all else that the process had, gave the lock up through memory that others share.
#[test]
fn a_lock_of_a_killed_process_is_recovered_by_the_one_beside_it() {
    on_hosts(&[2, 1], |harness| async move {
        let other = session_of(&harness, 1);
        drop(other.lock("ledger").await.expect("it is free"));
        let held = Rc::new(Cell::new(0));
        let (session, token) = (session_of(&harness, 0), held.clone());
        harness.world.spawn(Some(harness.host(0)), "a holder", async move {
            let guard = session.lock("ledger").await.expect("it is free");
            token.set(guard.token());
            std::future::pending::<()>().await;
        });
        harness.world.sleep(None, TIMEOUT).await;
        harness.crash(0);
        assert_ne!(held.get(), 0);
        let taken = other.lock("ledger").await;
        let guard = taken.expect("its home lives");
        assert!(guard.recovered() && guard.token() == held.get() + 1);
    });
}

/// They kept all staging memory, for which the others waited.
#[test]
fn accesses_that_nobody_goes_on_with_hold_up_no_others() {
    on_nodes(2, |harness| async move {
        let session = session_of(&harness, 0);
        let len = 1 << 20;
        let lh = session.alloc(None, len, Placement::On(NodeId(1)), ALL).await.expect("there is room");
        let mut buffers = vec![vec![0; len as usize]; 8];
        let mut reads: Vec<_> = buffers.iter_mut().map(|into| Box::pin(session.read(lh, 0, into))).collect();
        for read in &mut reads {
            assert!(look(read.as_mut()).is_pending());
        }
        harness.world.sleep(None, Duration::from_millis(5)).await;
        let mut bytes = vec![1; 100 << 10];
        session.read(lh, 0, &mut bytes).await.expect("it may be read");
        assert_eq!(bytes, vec![0; 100 << 10]);
        drop(reads);
    });
}

/// Nobody is told of room in the queue to a peer that is gone, for which they waited.
#[test]
fn who_waits_for_room_in_the_queue_to_a_peer_hears_of_its_end() {
    on_plan("nodes = 2\nqueue_depth = 4\nlease_us = 100000", |harness| async move {
        let session = session_of(&harness, 0);
        let lh = session.alloc(None, 64, Placement::On(NodeId(1)), ALL).await.expect("there is room");
        let link = harness.world.link(harness.host(0), harness.host(1));
        harness.world.set_link(harness.host(0), harness.host(1), link.down());
        let ended = Rc::new(Cell::new(0));
        for _ in 0..10 {
            let (session, ended) = (session.clone(), ended.clone());
            harness.world.spawn(Some(harness.host(0)), "a writer", async move {
                session.write(lh, 0, b"salt").await.expect_err("nobody is there");
                ended.set(ended.get() + 1);
            });
        }
        harness.world.sleep(None, TIMEOUT).await;
        assert_eq!(ended.get(), 0);
        harness.crash(1);
        harness.world.sleep(None, 10 * TIMEOUT).await;
        assert_eq!(ended.get(), 10);
    });
}

/// Loads and stores reach the second half, so that it is written before anybody knows of the first.
#[test]
fn a_write_whose_posted_half_never_left_tells_that_the_other_half_is_there() {
    on_hardware("rnic-100g", 2, |harness| async move {
        let session = session_of(&harness, 0);
        let placement = Placement::Spread(vec![NodeId(1), NodeId(0)]);
        let lh = session.alloc(None, 2 * CHUNK_BYTES, placement, ALL).await.expect("there is room");
        let (here, there) = (harness.host(0), harness.host(1));
        harness.world.set_link(here, there, harness.world.link(here, there).down());
        let mut writing = pin!(session.write(lh, CHUNK_BYTES - 8, &[7; 16]));
        assert!(look(writing.as_mut()).is_pending());
        let mut half = [0; 8];
        session.read(lh, CHUNK_BYTES, &mut half).await.expect("it is here");
        assert_eq!(half, [7; 8]);
        let error = writing.await.expect_err("the other half is out of reach");
        assert!(error.partly, "{error}");
    });
}

/// What the queue has no room for is posted when there is some, and two writers take turns at that.
#[test]
fn batches_over_queues_that_take_a_few_requests_are_done_whole() {
    on_plan("nodes = 3\nprofile = 'rnic-100g'\nqueue_depth = 4", |harness| async move {
        let session = session_of(&harness, 0);
        let on = |node| session.alloc(None, 4096, Placement::On(NodeId(node)), ALL);
        let regions = [on(1).await.expect("there is room"), on(2).await.expect("there is room")];
        let done = Rc::new(Cell::new(0));
        for writer in 0..2 {
            let (session, done) = (session.clone(), done.clone());
            harness.world.spawn(Some(harness.host(0)), "a writer", async move {
                write_and_read_words(&session, regions, writer).await;
                done.set(done.get() + 1);
            });
        }
        while done.get() < 2 {
            harness.world.sleep(None, TIMEOUT).await;
        }
    });
}

/// Words of the writer's own, in two regions by turns, all in one batch.
async fn write_and_read_words(session: &Session, regions: [Lh; 2], writer: u64) {
    let words: Vec<[u8; 8]> = (1..=100).map(|at: u64| (at << 8 | writer).to_le_bytes()).collect();
    let place = |at: usize| (regions[at % 2], (2 * at as u64 + writer) * 8);
    let write = |(at, from): (usize, _)| WriteOp { lh: place(at).0, offset: place(at).1, from };
    let writes: Vec<WriteOp<'_>> = words.iter().map(|word| &word[..]).enumerate().map(write).collect();
    session.write_batch(&writes).await.expect("all may be written");
    let mut found = vec![[0; 8]; words.len()];
    let read = |(at, into): (usize, _)| ReadOp { lh: place(at).0, offset: place(at).1, into };
    let mut reads: Vec<ReadOp<'_>> =
        found.iter_mut().map(|word| &mut word[..]).enumerate().map(read).collect();
    session.read_batch(&mut reads).await.expect("all may be read");
    assert!(found == words, "some are not what was written");
}

/// A node that is restarted elsewhere is met by one that it cannot tell anything: nobody else knows where it is then.
#[test]
fn a_node_that_was_met_and_not_heard_is_dialled_where_it_is_now() {
    on_plan("nodes = 2\nprofile = 'roce-100g'\nlease_us = 500", |harness| async move {
        let (world, lease) = (&harness.world, harness.plan.lease());
        harness.crash(0);
        while harness.does_see(1, 0) {
            world.sleep(None, lease / 4).await;
        }
        // It dials the other, which answers when it cannot be told anything any more.
        let stopped = harness.clone();
        world.spawn(None, "stop", async move { stopped.stop(1, 3 * stopped.plan.lease() / 2).await });
        harness.restart(0);
        world.sleep(None, lease / 4).await;
        let [first, second] = [0, 1].map(|node| harness.host(node));
        let link = world.link(first, second);
        world.set_link(first, second, Link { up: false, ..link });
        // They give the connection up.
        world.sleep(None, 8 * lease).await;
        assert!(!harness.does_see(1, 0), "nothing of what node 0 says has come");
        world.set_link(first, second, link);
        world.sleep(None, 4 * lease).await;
        assert!(harness.does_see(1, 0) && harness.does_see(0, 1));
    });
}
