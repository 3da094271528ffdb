//! Nodes that end without a word.

use std::time::Duration;

use halite::{
    AccessCause, BarrierCause, CallCause, Function, LossCause, NodeId, Placement, Port, RegionCause,
    SendCause, ServeOptions,
};

use super::cluster::{ARENA, CHUNK, Cluster, Harness, contents, eventually, everyone, shared};
use super::refused;
use super::turns::scope;

/// All of this file, for those who cannot kill.
pub const CASES: &[&str] = &[
    "accesses_on_a_killed_node_fail_and_others_go_on",
    "posted_accesses_to_a_killed_node_fail",
    "names_of_a_killed_node_are_kept_until_its_end_is_known",
    "calls_on_a_killed_node_are_told_that_they_may_have_run",
    "messages_to_a_killed_node_are_told_to_be_lost",
    "the_lock_of_a_killed_node_is_recovered",
    "a_barrier_does_not_wait_for_a_killed_node",
    "a_killed_node_comes_back_as_a_new_one",
    "the_owner_takes_back_what_a_killed_node_had_mapped",
    "each_owner_says_that_a_killed_node_is_cut_off_from_its_memory",
];

/// Longer than anything takes here; silence takes a lease of five seconds to be noticed.
const LONG: Duration = Duration::from_secs(60);
const FUNCTION: Function = Function(7);
const DOOMED: NodeId = NodeId(2);

/// A reader or writer of it is told, at the latest when its lease is over; what lies elsewhere is as it was.
pub fn accesses_on_a_killed_node_fail_and_others_go_on(h: &dyn Harness) {
    let mut cluster = Cluster::new(h, 3);
    let session = cluster.session(0);
    let there = session.alloc(None, CHUNK, Placement::On(DOOMED), everyone()).unwrap();
    let elsewhere = session.alloc(None, CHUNK, Placement::On(NodeId(1)), everyone()).unwrap();
    session.write(there, 0, b"salt").unwrap();
    cluster.kill(2);
    eventually("the node is known to be gone", || match session.write(there, 0, b"water") {
        Err(error) if matches!(error.cause(), AccessCause::PeerDown(DOOMED) | AccessCause::Stale) => Ok(()),
        other => Err(format!("{other:?}")),
    });
    refused!(session.read(there, 0, &mut [0; 4]), AccessCause::PeerDown(DOOMED) | AccessCause::Stale);
    session.write(elsewhere, 0, b"pepper").unwrap();
    assert_eq!(&contents(&session, elsewhere)[..6], b"pepper");
}

/// Nothing hangs, whatever was in flight.
pub fn posted_accesses_to_a_killed_node_fail(h: &dyn Harness) {
    let mut cluster = Cluster::new(h, 3);
    let session = cluster.session(0);
    let there = session.alloc(None, 4 * CHUNK, Placement::On(DOOMED), everyone()).unwrap();
    let writes: Vec<_> = (0..20).map(|_| session.post_write(there, 0, vec![1; 4 * CHUNK as usize])).collect();
    cluster.kill(2);
    for write in writes {
        if let (_, Err(error)) = write.wait() {
            assert!(matches!(error.cause, AccessCause::PeerDown(DOOMED) | AccessCause::Stale), "{error}");
        }
    }
    eventually("the node is known to be gone", || match session.post_read(there, 0, [0; 8]).wait().1 {
        Err(error) if matches!(error.cause, AccessCause::PeerDown(DOOMED) | AccessCause::Stale) => Ok(()),
        other => Err(format!("{other:?}")),
    });
}

/// Without a goodbye: its process has exited, where that is seen.  Else the names are kept for it until somebody has it
/// forgotten.
pub fn names_of_a_killed_node_are_kept_until_its_end_is_known(h: &dyn Harness) {
    let mut cluster = Cluster::new(h, 3);
    let owner = cluster.session(2);
    shared(&owner, "lost", CHUNK);
    let session = cluster.session(1);
    cluster.kill(2);
    if h.sees_exits() {
        eventually("the loss is known", || match session.stat("lost") {
            Err(error) if matches!(error.cause(), RegionCause::Lost(_)) => Ok(()),
            other => Err(format!("{other:?}")),
        });
        let lost = session.list_lost().unwrap();
        assert_eq!(lost.iter().map(|lost| lost.name.as_str()).collect::<Vec<_>>(), ["lost"]);
        assert_eq!(lost[0].lost.node, DOOMED);
        assert_ne!(lost[0].lost.cause, LossCause::Left, "it said no goodbye");
    } else {
        eventually("it is known not to answer", || match session.stat("lost") {
            Err(error) if *error.cause() == RegionCause::PeerDown(DOOMED) => Ok(()),
            other => Err(format!("{other:?}")),
        });
        refused!(session.alloc(Some("lost"), CHUNK, Placement::Local, everyone()), RegionCause::NameTaken);
        session.forget_node(DOOMED).unwrap();
    }
    shared(&session, "lost", CHUNK);
    assert!(session.list_lost().unwrap().is_empty());
}

/// One that is being handled, and one that comes later.
pub fn calls_on_a_killed_node_are_told_that_they_may_have_run(h: &dyn Harness) {
    let mut cluster = Cluster::new(h, 3);
    let session = cluster.session(0);
    let server = cluster.session(2).serve(FUNCTION, ServeOptions::default()).unwrap();
    let pending = session.post_call(DOOMED, FUNCTION, b"salt", 64, LONG).unwrap();
    let _handled = server.recv().unwrap();
    cluster.kill(2);
    let error = pending.answer().unwrap_err();
    assert!(error.cause == CallCause::PeerDown && error.may_have_run, "{error}");
    let late = session.call(DOOMED, FUNCTION, b"water", LONG).unwrap_err();
    assert!(matches!(late.cause, CallCause::PeerDown | CallCause::UnknownNode), "{late}");
    assert!(!late.may_have_run, "it was not sent: {late}");
}

/// Those that wait for room there, and those that come later.
pub fn messages_to_a_killed_node_are_told_to_be_lost(h: &dyn Harness) {
    let mut cluster = Cluster::new(h, 3);
    let (session, port) = (cluster.session(0), Port(3));
    let options = ServeOptions { requests_max: 1, ..ServeOptions::default() };
    let _mailbox = cluster.session(2).open_port(port, options).unwrap();
    session.send(DOOMED, port, b"fills it").unwrap();
    scope(|scope| {
        let waiting = cluster.session(1);
        let waiting = scope.spawn(move || waiting.send(DOOMED, port, b"waits"));
        refused!(session.try_send(DOOMED, port, b"no room"), SendCause::WouldBlock);
        cluster.kill(2);
        refused!(waiting.join().expect("no panic"), SendCause::PeerDown);
    });
    eventually("it is known to be gone", || match session.send(DOOMED, port, b"late") {
        Err(error) if matches!(error.cause, SendCause::PeerDown | SendCause::UnknownNode) => Ok(()),
        other => Err(format!("{other:?}")),
    });
}

/// By the next one that waits for it, which is told that the holder may have left things half done.
pub fn the_lock_of_a_killed_node_is_recovered(h: &dyn Harness) {
    let mut cluster = Cluster::new(h, 3);
    let holder = cluster.session(2);
    // Kept by node 0, which lives on.
    drop(cluster.session(0).lock("till").unwrap());
    let token = holder.lock("till").unwrap().keep();
    scope(|scope| {
        let waiter = cluster.session(1);
        let waiter = scope.spawn(move || waiter.lock("till").map(|guard| (guard.token(), guard.recovered())));
        cluster.kill(2);
        let (next, is_recovered) = waiter.join().expect("no panic").unwrap();
        assert!(next > token && is_recovered, "{next} after {token}, recovered: {is_recovered}");
    });
    let guard = cluster.session(0).lock("till").unwrap();
    assert!(!guard.recovered(), "that was told once");
}

/// Those who are there are told that somebody is missing, and nobody passes.
pub fn a_barrier_does_not_wait_for_a_killed_node(h: &dyn Harness) {
    // Only the first contributes memory, so that the barrier lives there.
    let mut cluster = Cluster::with(h, &[("ada", ARENA), ("ada", 0), ("ada", 0)]);
    let (one, other) = (cluster.session(0), cluster.session(1));
    // All three have passed once.
    let doomed = cluster.session(2);
    scope(|scope| {
        for session in [&one, &other, &doomed] {
            scope.spawn(move || session.barrier("gate", 3, LONG).unwrap());
        }
    });
    cluster.kill(2);
    let told = scope(|scope| {
        let wait = |session| scope.spawn(move || super::Session::barrier(session, "gate", 3, LONG));
        [wait(&one), wait(&other)].map(|thread| thread.join().expect("no panic"))
    });
    for error in told {
        refused!(error, BarrierCause::Timeout);
    }
}

/// Its number is free again, it holds nothing, and handles to its former incarnation stay refused.
pub fn a_killed_node_comes_back_as_a_new_one(h: &dyn Harness) {
    let mut cluster = Cluster::new(h, 3);
    let session = cluster.session(0);
    let before = session.alloc(None, CHUNK, Placement::On(DOOMED), everyone()).unwrap();
    let incarnation = cluster.status(2).incarnation;
    cluster.kill(2);
    eventually("it is back", || cluster.start(2, "ada", 1 << 20).map_err(|error| error.to_string()));
    let status = cluster.status(2);
    assert!(status.incarnation != incarnation && status.bytes_used == 0, "{status:?}");
    refused!(session.read(before, 0, &mut [0]), AccessCause::PeerDown(DOOMED) | AccessCause::Stale);
    let after = session.alloc(None, CHUNK, Placement::On(DOOMED), everyone()).unwrap();
    session.write(after, 0, b"new").unwrap();
    assert_eq!(&contents(&session, after)[..3], b"new");
}

/// Neither its mappings nor quarantine keep memory for ever.
pub fn the_owner_takes_back_what_a_killed_node_had_mapped(h: &dyn Harness) {
    let mut cluster = Cluster::new(h, 3);
    let owner = cluster.session(1);
    let near = shared(&owner, "used", 3 * CHUNK);
    let user = cluster.session(2);
    let far = user.map("used", everyone()).unwrap();
    user.write(far, 0, b"salt").unwrap();
    cluster.kill(2);
    owner.free(near).unwrap();
    eventually("all is taken back", || {
        let status = cluster.status(1);
        let held = status.bytes_used + status.bytes_quarantined + status.mappings;
        if held == 0 { Ok(()) } else { Err(format!("{status:?}")) }
    });
}

/// A node that takes over the memory it wrote to waits for that.
pub fn each_owner_says_that_a_killed_node_is_cut_off_from_its_memory(h: &dyn Harness) {
    let mut cluster = Cluster::new(h, 3);
    let session = cluster.session(0);
    let before = [0, 1].map(|owner| session.reach(DOOMED, NodeId(owner)).unwrap());
    assert!(before.iter().all(|reach| !reach.is_cut_off && reach.pairing > 0), "{before:?}");
    refused!(session.reach(NodeId(77), NodeId(1)), RegionCause::UnknownNode(NodeId(77)));
    refused!(session.reach(DOOMED, NodeId(77)), RegionCause::UnknownNode(NodeId(77)));
    cluster.kill(2);
    for owner in [0, 1] {
        let cut_off = eventually("it is cut off", || {
            let reach = session.reach(DOOMED, NodeId(owner)).map_err(|error| error.to_string())?;
            if reach.is_cut_off { Ok(reach) } else { Err(format!("{reach:?}")) }
        });
        assert_eq!(cut_off.incarnation, before[0].incarnation, "it is this incarnation that is meant");
    }
    refused!(session.reach(NodeId(0), DOOMED), RegionCause::PeerDown(DOOMED));
}
