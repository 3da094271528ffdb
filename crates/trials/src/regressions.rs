//! Regression tests: scenarios that once failed in trials.

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

/// Runs a scenario on nodes that have joined, without other work. Returns the digest of the trial.
fn run_on_nodes<F: Future<Output = ()> + 'static>(
    nodes: u32,
    scenario: impl FnOnce(Rc<Harness>) -> F + 'static,
) -> u64 {
    run_on_hardware("local", nodes, scenario)
}

pub(crate) fn run_on_hardware<F: Future<Output = ()> + 'static>(
    profile: &str,
    nodes: u32,
    scenario: impl FnOnce(Rc<Harness>) -> F + 'static,
) -> u64 {
    run_on_plan(&format!("nodes = {nodes}\nprofile = '{profile}'"), scenario)
}

/// As [`run_on_nodes`], on hosts with `nodes` nodes each, which adapters connect.
fn run_on_hosts<F: Future<Output = ()> + 'static>(
    nodes: &[u32],
    scenario: impl FnOnce(Rc<Harness>) -> F + 'static,
) -> u64 {
    let all: u32 = nodes.iter().sum();
    run_on_plan(&format!("nodes = {all}\nprofile = 'rnic-100g'\nhosts = {nodes:?}"), scenario)
}

pub(crate) fn run_on_plan<F: Future<Output = ()> + 'static>(
    plan: &str,
    scenario: impl FnOnce(Rc<Harness>) -> F + 'static,
) -> u64 {
    let plan = Plan::from_toml(&format!("name = 'found'\n{plan}\n")).expect("the plan is valid");
    let nodes = plan.nodes;
    let world = trial::world(&plan, 1).expect("the profile is known");
    let harness = Harness::new(world.clone(), plan);
    let spawned = harness.clone();
    world.spawn(None, "the scenario", async move {
        for node in 0..nodes {
            spawned.start(node);
            while !spawned.is_up(node) {
                spawned.world.sleep(None, Duration::from_micros(1)).await;
            }
        }
        scenario(spawned).await;
    });
    assert_eq!(world.run_until(1_000_000_000), RunEnd::Finished);
    assert_eq!(harness.judge.violation(), None);
    world.end();
    world.digest()
}

pub(crate) fn session_of(harness: &Harness, node: u32) -> Session {
    harness.driven(node).expect("the node is up").session()
}

/// Polls a future once outside of any task, without a waker.
pub(crate) fn poll_once<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Allocates a region of a few words on the session's own node.
pub(crate) async fn alloc_local(session: &Session, name: &str) -> Lh {
    session.alloc(Some(name), 64, Placement::Local, ALL).await.expect("there is room")
}

pub(crate) const TIMEOUT: Duration = Duration::from_micros(50);
/// Time after which a call with [`TIMEOUT`] must have ended.
const CALL_DURATION_MAX: Duration = Duration::from_micros(60);
/// Length that exceeds a slot, in bytes.
const LONG: usize = 100 << 10;
const FUNCTION: Function = Function(77);
/// All permissions on bytes.
pub(crate) const ALL: Permissions = Permissions::READ.union(Permissions::WRITE).union(Permissions::ATOMIC);

/// Regression: only freed space, or a poll once per millisecond, woke the call.
#[test]
fn a_call_that_waits_for_ring_space_times_out() {
    run_on_nodes(2, |harness| async move {
        let session = session_of(&harness, 0);
        harness.world.pause(harness.host(1));
        let input = vec![7; 4000];
        let mut posted = Vec::new();
        let began_ns = harness.world.now_ns();
        // A ring of 16 KiB takes no more than four.
        for _ in 0..5 {
            posted.push(session.post_call(NodeId(1), FUNCTION, &input, 0, TIMEOUT).await);
        }
        let error = posted.pop().expect("there are five").expect_err("there is no room");
        assert!(error.cause == CallCause::Timeout && !error.may_have_run, "{error}");
        assert!(harness.world.now_ns() < began_ns + CALL_DURATION_MAX.as_nanos() as u64);
    });
}

/// Regression: the caller awaited the answers in sequence, and read a long answer only in its turn.
#[test]
fn a_silent_node_does_not_delay_other_answers() {
    run_on_nodes(4, |harness| async move {
        let sessions = [1, 2, 3].map(|node| session_of(&harness, node));
        let servers = sessions.map(|session| {
            session.serve(FUNCTION, ServeOptions::default()).expect("no other session serves it")
        });
        let [silent, servers @ ..] = servers;
        for (host, server) in [2, 3].map(|node| harness.host(node)).into_iter().zip(servers) {
            harness.world.spawn(Some(host), "a handler", async move {
                let call = server.recv().await.expect("a call arrives");
                call.reply(&[7; LONG]).expect("the caller waits");
            });
        }
        let session = session_of(&harness, 0);
        let began_ns = harness.world.now_ns();
        let answers = session.call_many(&[1, 2, 3].map(NodeId), FUNCTION, b"", TIMEOUT).await;
        assert_eq!(answers[0].as_ref().expect_err("the node is silent").cause, CallCause::Timeout);
        assert!(answers[1..].iter().all(|answer| *answer == Ok(vec![7; LONG])));
        assert!(harness.world.now_ns() < began_ns + CALL_DURATION_MAX.as_nanos() as u64);
        drop(silent);
    });
}

/// Regression: the node forgot its peer when it closed the connection. So the access failed with "stale handle", an
/// error that promises that nothing was done.
#[test]
fn a_broken_connection_reports_possible_effects() {
    run_on_hardware("rnic-100g", 2, |harness| async move {
        let (here, there) = (session_of(&harness, 0), session_of(&harness, 1));
        let own = alloc_local(&there, "words").await;
        let lh = here.map("words", ALL).await.expect("the region exists");
        // The operations are executed, but their answers are lost.
        let (from, to) = (harness.host(1), harness.host(0));
        harness.world.set_link(from, to, harness.world.link(from, to).down());
        let mut adding = pin!(here.fetch_add(lh, 8, 1));
        assert!(poll_once(adding.as_mut()).is_pending());
        let written = here.write(lh, 0, b"salt").await.expect_err("the connection is broken");
        let added = adding.await.expect_err("the connection is broken");
        for error in [&written, &added] {
            assert_eq!(error.cause, AccessCause::LinkLost(NodeId(1)), "the node lives, but is unreachable");
            assert!(error.partly, "{error} although it was done");
        }
        let mut seen = [0; 16];
        there.read(own, 0, &mut seen).await.expect("the bytes are local");
        assert_eq!(seen, *b"salt\0\0\0\0\x01\0\0\0\0\0\0\0");
    });
}

/// Regression: a node behind a cut link was reported as down, with the advice to restart it.
#[test]
fn a_cut_link_is_not_reported_as_a_dead_node() {
    run_on_hardware("roce-100g", 2, |harness| async move {
        let (first, session) = (session_of(&harness, 0), session_of(&harness, 1));
        alloc_local(&first, "words").await;
        let lh = session.map("words", ALL).await.expect("the region exists");
        let ends = [(0, 1), (1, 0)].map(|(from, to)| (harness.host(from), harness.host(to)));
        let links = ends.map(|(from, to)| harness.world.link(from, to));
        let cut = harness.plan.lease() * 4;
        let mut mapping = pin!(session.map("words", ALL));
        assert!(poll_once(mapping.as_mut()).is_pending());
        for (from, to) in ends {
            harness.world.set_link(from, to, harness.world.link(from, to).down());
        }
        harness.world.sleep(None, cut).await;
        let asked = mapping.await.expect_err("the link is cut").cause;
        let is_undone = matches!(asked, RegionCause::DirectoryUnreachable { maybe_done: false, .. });
        assert!(is_undone, "a map changes nothing: {asked}");
        let lost = AccessCause::LinkLost(NodeId(0));
        assert_eq!(session.read(lh, 0, &mut [0]).await.expect_err("the link is cut").cause, lost);
        assert_eq!(session.fill(lh, 0, 8, 1).await.expect_err("the link is cut").cause, lost);
        match session.map("words", ALL).await.expect_err("the link is cut").cause {
            RegionCause::DirectoryUnreachable { silent: Some(silent), maybe_done: false } => {
                assert!((cut..cut + harness.plan.lease()).contains(&silent), "since node 0 was last heard")
            }
            cause => panic!("{cause}"),
        }
        for ((from, to), link) in ends.into_iter().zip(links) {
            harness.world.set_link(from, to, link);
        }
        harness.world.sleep(None, cut).await;
        let again = session.map("words", ALL).await.expect("the nodes have paired again");
        session.read(again, 0, &mut [0]).await.expect("the region is kept");
        let before =
            session.read(lh, 0, &mut [0]).await.expect_err("the handle is from before the cut").cause;
        assert_eq!(before, AccessCause::Stale);
    });
}

/// Regression: handle numbers were reused while the engine still changed their previous handles.
#[test]
fn handles_of_a_leaving_node_keep_their_regions() {
    run_on_nodes(4, |harness| async move {
        let (home, leaver, slow) =
            (session_of(&harness, 1), session_of(&harness, 2), session_of(&harness, 3));
        let ours = [alloc_local(&home, "salt").await, alloc_local(&home, "pepper").await];
        home.write(ours[0], 0, b"salt..").await.expect("the bytes are local");
        home.write(ours[1], 0, b"pepper").await.expect("the bytes are local");
        alloc_local(&slow, "slow").await;
        leaver.map("salt", ALL).await.expect("the region exists");
        let other = leaver.map("slow", ALL).await.expect("the region exists");
        // A leaving node waits for its outstanding commands, so this fill delays the departure.
        harness.world.pause(harness.host(3));
        let mut filling = pin!(leaver.fill(other, 0, 64, 7));
        assert!(poll_once(filling.as_mut()).is_pending());
        // As many handles as before, so that each free number is reused.
        let mut mapping = [(); 2].map(|()| Box::pin(leaver.map("pepper", ALL)));
        assert!(mapping.iter_mut().all(|each| poll_once(each.as_mut()).is_pending()));
        harness.driven(2).expect("the node is up").begin_to_leave();
        let [first, second] = mapping;
        let late = [first.await, second.await].map(|each| each.expect("the node has not left yet"));
        // A revoke changes the leaver's knowledge of the first region.
        let mut revoking = pin!(home.revoke(ours[0], Who::Principal("bob".into()), ALL));
        assert!(poll_once(revoking.as_mut()).is_pending());
        harness.world.sleep(None, TIMEOUT).await;
        for lh in late {
            let mut seen = [0; 6];
            leaver.read(lh, 0, &mut seen).await.expect("the region exists");
            assert_eq!(&seen, b"pepper");
        }
        harness.world.resume(harness.host(3));
        revoking.await.expect("the revoke succeeds");
        filling.await.expect("the node has waited for it");
    });
}

fn is_closed<T>(ended: Poll<Result<T, LockError>>) -> bool {
    matches!(ended, Poll::Ready(Err(error)) if matches!(error.cause, LockCause::Region(RegionCause::NodeClosed(_))))
}

/// Regression: leaving wakes all timers, which looked like a timeout.
#[test]
fn lock_within_fails_when_the_node_leaves() {
    run_on_nodes(1, |harness| async move {
        let (holder, waiter) = (session_of(&harness, 0), session_of(&harness, 0));
        let _guard = holder.lock("ledger").await.expect("the lock is free");
        let mut taking = pin!(waiter.lock_within("ledger", Duration::from_secs(3600)));
        harness.world.sleep(None, TIMEOUT).await;
        assert!(poll_once(taking.as_mut()).is_pending());
        harness.driven(0).expect("the node is up").begin_to_leave();
        assert!(is_closed(poll_once(taking.as_mut())), "the lock fails because the node leaves");
    });
}

/// Regression: a guard dropped during leaving releases nothing, so the session seemed to hold the lock.
#[test]
fn a_lock_on_a_leaving_node_is_not_reported_as_held() {
    run_on_nodes(1, |harness| async move {
        let session = session_of(&harness, 0);
        let guard = session.lock("ledger").await.expect("the lock is free");
        harness.driven(0).expect("the node is up").begin_to_leave();
        drop(guard);
        assert!(is_closed(poll_once(pin!(session.try_lock("ledger")))));
        assert!(is_closed(poll_once(pin!(session.lock_within("ledger", TIMEOUT)))));
    });
}

/// Regression: tokens derived from the host's date, and watch ports from a counter of the process.
#[test]
fn locks_and_watches_repeat_with_the_seed() {
    let run = || {
        run_on_nodes(2, |harness| async move {
            let session = session_of(&harness, 1);
            let guard = session.lock("ledger").await.expect("the lock is free");
            harness.world.fold(guard.token());
            let board = alloc_local(&session, "board").await;
            let _watch = session.watch(board).await.expect("the session may read");
            // A writer sends to the watch's port.
            let other = session_of(&harness, 0);
            let there = other.map("board", ALL).await.expect("the region exists");
            other.write_notify(there, 0, b"salt", 7).await.expect("the session may write");
        })
    };
    assert_eq!(run(), run());
}

/// Regression: the server's read of the input failed because leaving closes connections, and the server reported a lack
/// of memory.
#[test]
fn a_server_that_leaves_reports_that_it_closed() {
    run_on_nodes(2, |harness| async move {
        let server = session_of(&harness, 1)
            .serve(FUNCTION, ServeOptions::default())
            .expect("no other session serves it");
        let handler = harness.world.spawn(Some(harness.host(1)), "a handler", async move {
            assert_eq!(
                server.recv().await.expect_err("no input arrives").cause,
                ServeCause::NodeClosed(NodeId(1))
            );
        });
        let leaving = harness.clone();
        harness.world.spawn(None, "the server leaves", async move {
            // Some parts of the input are outstanding; other parts have not been requested.
            leaving.world.sleep(None, Duration::from_micros(15)).await;
            // The caller receives the server's messages only after all have been sent.
            leaving.world.pause(leaving.host(0));
            leaving.driven(1).expect("the node is up").begin_to_leave();
            while leaving.world.is_alive(handler) {
                leaving.world.sleep(None, Duration::from_micros(1)).await;
            }
            leaving.world.resume(leaving.host(0));
        });
        let called = session_of(&harness, 0).call(NodeId(1), FUNCTION, &[7; 16 * LONG], 4 * TIMEOUT).await;
        assert_eq!(called.expect_err("the server leaves").cause, CallCause::ServerClosed);
    });
}

/// Regression: the writer waited for a second, however short the lease.
#[test]
fn an_unreachable_watcher_delays_its_writer_by_a_lease() {
    run_on_nodes(3, |harness| async move {
        let lease_ns = harness.plan.lease().as_nanos() as u64;
        let writer = harness.driven(1).expect("the node is up").session();
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
        let reader = harness.driven(2).expect("the node is up").session();
        let seen = reader.map("board", Permissions::READ).await.expect("the region exists");
        let watch = reader.watch(seen).await.expect("the session may read");
        let began_ns = harness.world.now_ns();
        assert_eq!(writer.write_notify(board, 0, b"salt", 7).await, Ok(()));
        assert!(harness.world.now_ns() < began_ns + 2 * lease_ns);
        drop(watch);
    });
}

/// Without the wake-up, the next poll would follow up to a millisecond later.
#[test]
fn a_notification_ends_the_pause_of_a_wait() {
    run_on_nodes(2, |harness| async move {
        let (reader, writer) = (session_of(&harness, 0), session_of(&harness, 1));
        let flag = alloc_local(&reader, "flag").await;
        let theirs = writer.map("flag", ALL).await.expect("the region exists");
        for round in 1..=5u64 {
            let reader = reader.clone();
            let waiting = harness.world.spawn(Some(harness.host(0)), "a wait", async move {
                assert_eq!(reader.wait_until(flag, 0, |word| word == round).await, Ok(round));
            });
            // By now the wait polls once per millisecond.
            harness.world.sleep(None, Duration::from_millis(10)).await;
            assert!(harness.world.is_alive(waiting));
            writer.write_notify(theirs, 0, &round.to_ne_bytes(), round).await.expect("the session may write");
            harness.world.sleep(None, Duration::from_micros(100)).await;
            assert!(!harness.world.is_alive(waiting), "round {round}");
        }
    });
}

const PORT: Port = Port(77);

fn mailbox_of(harness: &Harness, node: u32, options: ServeOptions) -> Mailbox {
    session_of(harness, node).open_port(PORT, options).expect("the port is free")
}

/// Crashes a node and restarts it at once.
async fn begin_next_incarnation(harness: &Rc<Harness>, node: u32) {
    harness.crash(node);
    harness.restart(node);
    while !harness.is_up(node) {
        harness.world.sleep(None, Duration::from_micros(1)).await;
    }
}

/// Regression: the message went to the next incarnation, or waited forever if each incarnation ended too early.
#[test]
fn a_waiting_message_fails_with_its_incarnation() {
    run_on_nodes(2, |harness| async move {
        let session = session_of(&harness, 0);
        harness.world.pause(harness.host(1));
        let input = vec![7; 4000];
        // A ring of 16 KiB takes no more than four.
        let mut sending = Vec::new();
        for _ in 0..5 {
            let mut message = Box::pin(session.send(NodeId(1), PORT, &input));
            assert!(poll_once(message.as_mut()).is_pending());
            sending.push(message);
        }
        begin_next_incarnation(&harness, 1).await;
        let mailbox = mailbox_of(&harness, 1, ServeOptions::default());
        let last = sending.pop().expect("there are five").await.expect_err("the incarnation has ended");
        assert_eq!((last.cause, last.may_have_arrived), (SendCause::PeerDown, false));
        for message in sending {
            let error = message.await.expect_err("the incarnation has ended");
            assert_eq!((error.cause, error.may_have_arrived), (SendCause::PeerDown, true));
        }
        assert_eq!(mailbox.try_recv(), Ok(None));
    });
}

/// Regression: the message named a reservation of the former incarnation, unknown to the new incarnation.
#[test]
fn reserved_places_end_with_their_incarnation() {
    run_on_nodes(2, |harness| async move {
        let session = session_of(&harness, 0);
        let full = ServeOptions { requests_max: 1, ..ServeOptions::default() };
        let mailbox = mailbox_of(&harness, 1, full.clone());
        session.send(NodeId(1), PORT, b"first").await.expect("there is room");
        let mut sending = pin!(session.send(NodeId(1), PORT, b"second"));
        assert!(poll_once(sending.as_mut()).is_pending());
        harness.world.sleep(None, TIMEOUT).await;
        mailbox.recv().await.expect("the first message has arrived");
        // The reservation arrives, but no thread polls it yet.
        harness.world.sleep(None, TIMEOUT).await;
        drop(mailbox);
        begin_next_incarnation(&harness, 1).await;
        let mailbox = mailbox_of(&harness, 1, full);
        let error = sending.await.expect_err("the incarnation has ended");
        assert_eq!((error.cause, error.may_have_arrived), (SendCause::PeerDown, false));
        assert_eq!(mailbox.try_recv(), Ok(None));
    });
}

/// Regression: changes waited for all posted operations, to any peer.
#[test]
fn a_pending_write_delays_changes_of_its_region_only() {
    run_on_nodes(3, |harness| async move {
        let session = session_of(&harness, 0);
        let on = |node| session.alloc(None, 64, Placement::On(NodeId(node)), ALL);
        let silent = on(2).await.expect("there is room");
        let (here, elsewhere) = (on(0).await.expect("there is room"), on(1).await.expect("there is room"));
        let (one, other) = (harness.host(0), harness.host(2));
        let link = harness.world.link(one, other);
        harness.world.set_link(one, other, link.down());
        let mut writing = pin!(session.write(silent, 0, b"salt"));
        assert!(poll_once(writing.as_mut()).is_pending());

        session.free(here).await.expect("the session is a master");
        session.free(elsewhere).await.expect("the session is a master");
        let mut unmapping = pin!(session.unmap(silent));
        assert!(poll_once(unmapping.as_mut()).is_pending());
        harness.world.sleep(None, TIMEOUT).await;
        assert!(poll_once(writing.as_mut()).is_pending(), "the write is not acknowledged");
        assert!(poll_once(unmapping.as_mut()).is_pending(), "the write may still arrive");

        harness.world.set_link(one, other, link);
        writing.await.expect("the write is acknowledged in the end");
        unmapping.await.expect("no operation is in flight any more");
    });
}

/// Regression: the header of a call with such a name exceeded the limit of inline posts, and the node panicked.
#[test]
fn a_principal_name_of_250_bytes_fits_into_calls_and_messages() {
    run_on_hardware("rnic-100g", 2, |harness| async move {
        let name = "a".repeat(250);
        let server = session_of(&harness, 1)
            .serve(FUNCTION, ServeOptions::default())
            .expect("no other session serves it");
        let mailbox =
            session_of(&harness, 1).open_port(Port(7), ServeOptions::default()).expect("the port is free");
        let (caller, inputs) =
            (name.clone(), [8, 300, 5000, LONG].map(|len| (0..len).map(|at| at as u8).collect::<Vec<_>>()));
        let expected = inputs.clone();
        harness.world.spawn(Some(harness.host(1)), "a handler", async move {
            for input in expected {
                let call = server.recv().await.expect("a call arrives");
                assert_eq!((call.caller(), call.input()), (caller.as_str(), &*input));
                call.reply(&input).expect("the caller waits");
            }
        });
        let session =
            harness.driven(0).expect("the node is up").session_of(&name).expect("the name is valid");
        for input in inputs {
            let answer = session.call(NodeId(1), FUNCTION, &input, 100 * TIMEOUT).await;
            assert_eq!(answer.expect("the call is answered"), input);
        }
        session.send(NodeId(1), Port(7), b"salt").await.expect("there is room");
        assert_eq!(mailbox.recv().await.expect("a message arrives").bytes, b"salt");
    });
}

/// Regression: operations whose answers were outstanding when the node left counted as operations without effect.
#[test]
fn leaving_reports_possible_effects() {
    run_on_nodes(2, |harness| async move {
        let (session, other) = (session_of(&harness, 0), session_of(&harness, 1));
        let lh = session.alloc(Some("till"), 64, Placement::On(NodeId(1)), ALL).await.expect("there is room");
        let theirs = other.map("till", ALL).await.expect("the region exists");
        session.write(lh, 0, &[0; 16]).await.expect("the session may write");
        // The requests arrive, but no answer returns.
        let (from, to) = (harness.host(1), harness.host(0));
        harness.world.set_link(from, to, harness.world.link(from, to).down());
        let (mut adding, mut writing) =
            (pin!(session.fetch_add(lh, 0, 7)), pin!(session.write(lh, 8, b"salt")));
        assert!(poll_once(adding.as_mut()).is_pending() && poll_once(writing.as_mut()).is_pending());
        harness.driven(0).expect("the node is up").begin_to_leave();
        let (added, written) = (adding.await.unwrap_err(), writing.await.unwrap_err());
        assert_eq!((added.cause, added.partly), (AccessCause::NodeClosed(NodeId(0)), true));
        assert_eq!((written.cause, written.partly), (AccessCause::NodeClosed(NodeId(0)), true));
        let mut bytes = [0; 12];
        other.read(theirs, 0, &mut bytes).await.expect("the session may read");
        assert_eq!(&bytes, b"\x07\0\0\0\0\0\0\0salt");
    });
}

/// The location of a word determines the path, not the caller: `explain` reports the path of each piece.
#[test]
fn instructions_and_adapters_lose_no_addition() {
    run_on_hosts(&[2, 1], |harness| async move {
        let [near, beside, far] = [0, 1, 2].map(|node| session_of(&harness, node));
        let spread = Placement::Spread([0, 1, 2].map(NodeId).to_vec());
        let len = 3 * CHUNK_BYTES;
        let lh = near.alloc(Some("tally"), len, spread, ALL).await.expect("there is room");
        let explained = near.explain(lh).await.expect("the region is mapped");
        let verbs: Vec<_> = explained.pieces.iter().map(|piece| (piece.node, piece.verbs.atomic)).collect();
        let (instruction, posted) = ("atomic instruction", "posted atomic");
        assert_eq!(verbs, [(0, instruction), (1, instruction), (2, posted)]);
        let direct = async |node| {
            let explained = near.explain_peer(NodeId(node)).await.expect("the peer is known");
            explained.capabilities.expect("the peer is connected").direct
        };
        assert_eq!((direct(1).await, direct(2).await), (true, false));

        let data: Vec<u8> = (0..len).map(|at| at as u8).collect();
        near.write(lh, 0, &data).await.expect("the session may write");
        let begun = Rc::new(Cell::new(0));
        let adding = [near.clone(), beside, far].into_iter().zip(0..).map(|(session, node)| {
            let (world, begun, data) = (harness.world.clone(), begun.clone(), data.clone());
            harness.world.spawn(Some(harness.host(node)), format!("node {node} adds"), async move {
                let lh = session.map("tally", ALL).await.expect("the region exists");
                let mut seen = vec![0; len as usize];
                session.read(lh, 0, &mut seen).await.expect("the session may read");
                assert!(seen == data);
                begun.set(begun.get() + 1);
                while begun.get() < 3 {
                    world.sleep(None, Duration::from_micros(1)).await;
                }
                for round in 0..30 {
                    let offset = round % 3 * CHUNK_BYTES;
                    session.fetch_add(lh, offset, 1).await.expect("the session may change the word");
                }
            })
        });
        let adding: Vec<_> = adding.collect();
        while adding.iter().any(|task| harness.world.is_alive(*task)) {
            harness.world.sleep(None, Duration::from_micros(1)).await;
        }
        for chunk in 0..3 {
            let mut word = [0; 8];
            near.read(lh, chunk * CHUNK_BYTES, &mut word).await.expect("the session may read");
            let at = (chunk * CHUNK_BYTES) as usize;
            let before = u64::from_le_bytes(data[at..at + 8].try_into().expect("eight"));
            assert_eq!(u64::from_le_bytes(word), before + 30, "chunk {chunk}");
        }
    });
}

/// Regression: the killed process dropped its guard, which released the lock through shared memory.
#[test]
fn a_neighbour_recovers_the_lock_of_a_killed_process() {
    run_on_hosts(&[2, 1], |harness| async move {
        let other = session_of(&harness, 1);
        drop(other.lock("ledger").await.expect("the lock is free"));
        let held = Rc::new(Cell::new(0));
        let (session, token) = (session_of(&harness, 0), held.clone());
        harness.world.spawn(Some(harness.host(0)), "a holder", async move {
            let guard = session.lock("ledger").await.expect("the lock is free");
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

/// Regression: unpolled accesses kept all staging memory, so other accesses waited.
#[test]
fn unpolled_accesses_do_not_block_others() {
    run_on_nodes(2, |harness| async move {
        let session = session_of(&harness, 0);
        let len = 1 << 20;
        let lh = session.alloc(None, len, Placement::On(NodeId(1)), ALL).await.expect("there is room");
        let mut buffers = vec![vec![0; len as usize]; 8];
        let mut reads: Vec<_> = buffers.iter_mut().map(|into| Box::pin(session.read(lh, 0, into))).collect();
        for read in &mut reads {
            assert!(poll_once(read.as_mut()).is_pending());
        }
        harness.world.sleep(None, Duration::from_millis(5)).await;
        let mut bytes = vec![1; 100 << 10];
        session.read(lh, 0, &mut bytes).await.expect("the session may read");
        assert_eq!(bytes, vec![0; 100 << 10]);
        drop(reads);
    });
}

/// Regression: a queue to a dead peer never reports free places.
#[test]
fn waiting_for_queue_space_ends_with_the_peer() {
    run_on_plan("nodes = 2\nqueue_depth = 4\nlease_us = 100000", |harness| async move {
        let session = session_of(&harness, 0);
        let lh = session.alloc(None, 64, Placement::On(NodeId(1)), ALL).await.expect("there is room");
        let link = harness.world.link(harness.host(0), harness.host(1));
        harness.world.set_link(harness.host(0), harness.host(1), link.down());
        let ended = Rc::new(Cell::new(0));
        for _ in 0..10 {
            let (session, ended) = (session.clone(), ended.clone());
            harness.world.spawn(Some(harness.host(0)), "a writer", async move {
                session.write(lh, 0, b"salt").await.expect_err("the peer is dead");
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

/// The second half of the write is executed by stores, before the posted first half arrives.
#[test]
fn a_half_posted_write_reports_a_partial_effect() {
    run_on_hardware("rnic-100g", 2, |harness| async move {
        let session = session_of(&harness, 0);
        let placement = Placement::Spread(vec![NodeId(1), NodeId(0)]);
        let lh = session.alloc(None, 2 * CHUNK_BYTES, placement, ALL).await.expect("there is room");
        let (here, there) = (harness.host(0), harness.host(1));
        harness.world.set_link(here, there, harness.world.link(here, there).down());
        let mut writing = pin!(session.write(lh, CHUNK_BYTES - 8, &[7; 16]));
        assert!(poll_once(writing.as_mut()).is_pending());
        let mut half = [0; 8];
        session.read(lh, CHUNK_BYTES, &mut half).await.expect("the bytes are local");
        assert_eq!(half, [7; 8]);
        let error = writing.await.expect_err("the other half is unreachable");
        assert!(error.partly, "{error}");
    });
}

/// Requests beyond the queue are posted later; two writers compete for the queue's places.
#[test]
fn batches_complete_over_short_queues() {
    run_on_plan("nodes = 3\nprofile = 'rnic-100g'\nqueue_depth = 4", |harness| async move {
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

/// Writes and reads the writer's own words, alternating between two regions, in one batch.
async fn write_and_read_words(session: &Session, regions: [Lh; 2], writer: u64) {
    let words: Vec<[u8; 8]> = (1..=100).map(|at: u64| (at << 8 | writer).to_le_bytes()).collect();
    let place = |at: usize| (regions[at % 2], (2 * at as u64 + writer) * 8);
    let write = |(at, from): (usize, _)| WriteOp { lh: place(at).0, offset: place(at).1, from };
    let writes: Vec<WriteOp<'_>> = words.iter().map(|word| &word[..]).enumerate().map(write).collect();
    session.write_batch(&writes).await.expect("the session may write");
    let mut found = vec![[0; 8]; words.len()];
    let read = |(at, into): (usize, _)| ReadOp { lh: place(at).0, offset: place(at).1, into };
    let mut reads: Vec<ReadOp<'_>> =
        found.iter_mut().map(|word| &mut word[..]).enumerate().map(read).collect();
    session.read_batch(&mut reads).await.expect("the session may read");
    assert!(found == words, "some words differ from those written");
}

/// A restarted node connects to a peer that hears nothing from it; no other node knows its new address.
#[test]
fn an_unheard_node_is_dialled_at_its_new_address() {
    run_on_plan("nodes = 2\nprofile = 'roce-100g'\nlease_us = 500", |harness| async move {
        let (world, lease) = (&harness.world, harness.plan.lease());
        harness.crash(0);
        while harness.can_reach(1, 0) {
            world.sleep(None, lease / 4).await;
        }
        // Node 0 dials node 1, which answers when node 0's messages no longer arrive.
        let stopped = harness.clone();
        world.spawn(None, "stop", async move { stopped.stop(1, 3 * stopped.plan.lease() / 2).await });
        harness.restart(0);
        world.sleep(None, lease / 4).await;
        let [first, second] = [0, 1].map(|node| harness.host(node));
        let link = world.link(first, second);
        world.set_link(first, second, Link { up: false, ..link });
        // Both nodes close the connection.
        world.sleep(None, 8 * lease).await;
        assert!(!harness.can_reach(1, 0), "node 1 has heard node 0");
        world.set_link(first, second, link);
        world.sleep(None, 4 * lease).await;
        assert!(harness.can_reach(1, 0) && harness.can_reach(0, 1));
    });
}
