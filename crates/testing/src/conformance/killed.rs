//! Nodes that are killed, without notice to the others.

use std::time::Duration;

use halite::{
    BarrierCause, CallCause, Function, LossCause, NodeId, Placement, Port, RegionCause, SendCause,
    ServeOptions,
};

use super::cluster::{ARENA, CHUNK, Cluster, Harness, await_value, contents, eventually, everyone, shared};
use super::turns::scope;
use super::waiting::await_pause;
use super::{eventually_refused, node_lost, refused};

/// Longer than any operation takes here; a silent node is declared dead after a lease of five seconds.
const LONG: Duration = Duration::from_secs(60);
const FUNCTION: Function = Function(7);
const DOOMED: NodeId = NodeId(2);

/// Expects that accesses to the killed node's memory fail, at the latest when its lease has expired, and that other
/// memory stays accessible.
pub fn only_accesses_to_a_killed_node_fail(h: &dyn Harness) {
    let mut cluster = Cluster::new(h, 3);
    let session = cluster.session(0);
    let there = session.alloc(None, CHUNK, Placement::On(DOOMED), everyone()).unwrap();
    let elsewhere = session.alloc(None, CHUNK, Placement::On(NodeId(1)), everyone()).unwrap();
    session.write(there, 0, b"salt").unwrap();
    cluster.kill(2);
    eventually_refused!(session.write(there, 0, b"water"), node_lost!(DOOMED));
    refused!(session.read(there, 0, &mut [0; 4]), node_lost!(DOOMED));
    session.write(elsewhere, 0, b"pepper").unwrap();
    assert_eq!(&contents(&session, elsewhere)[..6], b"pepper");
}

/// Expects that posted accesses to a killed node fail and do not hang.
pub fn posted_accesses_to_a_killed_node_fail(h: &dyn Harness) {
    let mut cluster = Cluster::new(h, 3);
    let session = cluster.session(0);
    let there = session.alloc(None, 4 * CHUNK, Placement::On(DOOMED), everyone()).unwrap();
    let writes: Vec<_> = (0..20).map(|_| session.post_write(there, 0, vec![1; 4 * CHUNK as usize])).collect();
    cluster.kill(2);
    for write in writes {
        if let (_, Err(error)) = write.wait() {
            assert!(matches!(error.cause, node_lost!(DOOMED)), "{error}");
        }
    }
    eventually_refused!(session.post_read(there, 0, [0; 8]).wait().1, node_lost!(DOOMED));
}

/// Expects that a wait for a word fails once the owner's node is killed.
pub fn a_wait_for_a_word_of_a_killed_node_fails(h: &dyn Harness) {
    let mut cluster = Cluster::new(h, 3);
    let session = cluster.session(0);
    let there = session.alloc(None, CHUNK, Placement::On(DOOMED), everyone()).unwrap();
    scope(|scope| {
        let waiting = scope.spawn(|| session.wait_until(there, 0, |word| word != 0));
        await_pause();
        cluster.kill(2);
        refused!(waiting.join(), node_lost!(DOOMED));
    });
}

/// Expects that the names of a killed node are lost if the exit of its process is reported. Otherwise the directory
/// keeps the names until the node is forgotten.
pub fn names_of_a_killed_node_are_lost_with_its_exit(h: &dyn Harness) {
    let mut cluster = Cluster::new(h, 3);
    let owner = cluster.session(2);
    shared(&owner, "lost", CHUNK);
    let session = cluster.session(1);
    cluster.kill(2);
    if h.sees_exits() {
        eventually_refused!(session.stat("lost"), RegionCause::Lost(_));
        let lost = session.list_lost().unwrap();
        assert_eq!(lost.iter().map(|lost| lost.name.as_str()).collect::<Vec<_>>(), ["lost"]);
        assert_eq!(lost[0].lost.node, DOOMED);
        assert_ne!(lost[0].lost.cause, LossCause::Left, "the node did not leave");
    } else {
        eventually_refused!(session.stat("lost"), RegionCause::NotMet(DOOMED));
        refused!(session.alloc(Some("lost"), CHUNK, Placement::Local, everyone()), RegionCause::NameTaken);
        session.forget_node(DOOMED).unwrap();
    }
    shared(&session, "lost", CHUNK);
    assert!(session.list_lost().unwrap().is_empty());
}

/// Expects that a call in progress fails as possibly executed, and that a later call fails as not executed.
pub fn calls_to_a_killed_node_may_have_run(h: &dyn Harness) {
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
    assert!(!late.may_have_run, "an unsent call cannot have run: {late}");
}

/// Expects that messages that wait for space at the killed node fail, and that later messages fail too.
pub fn messages_to_a_killed_node_fail(h: &dyn Harness) {
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
        refused!(waiting.join(), SendCause::PeerDown);
    });
    eventually_refused!(session.send(DOOMED, port, b"late"), SendCause::PeerDown | SendCause::UnknownNode);
}

/// Expects that the next waiter gets the lock of a killed holder, and learns that the holder may have left data
/// inconsistent.
pub fn the_lock_of_a_killed_node_is_recovered(h: &dyn Harness) {
    let mut cluster = Cluster::new(h, 3);
    let holder = cluster.session(2);
    // The lock is placed on node 0, which stays alive.
    drop(cluster.session(0).lock("till").unwrap());
    let token = holder.lock("till").unwrap().keep();
    scope(|scope| {
        let waiter = cluster.session(1);
        let waiter = scope.spawn(move || waiter.lock("till").map(|guard| (guard.token(), guard.recovered())));
        cluster.kill(2);
        let (next, is_recovered) = waiter.join().unwrap();
        assert!(next > token && is_recovered, "{next} after {token}, recovered: {is_recovered}");
    });
    let guard = cluster.session(0).lock("till").unwrap();
    assert!(!guard.recovered(), "the recovery is reported once");
}

/// Expects that participants that wait for a killed node time out, and that none passes.
pub fn a_barrier_does_not_wait_for_a_killed_node(h: &dyn Harness) {
    // Only the first node has memory, so the barrier is placed there.
    let mut cluster = Cluster::with(h, &[("ada", ARENA), ("ada", 0), ("ada", 0)]);
    let (one, other) = (cluster.session(0), cluster.session(1));
    // The first round passes with all three.
    let doomed = cluster.session(2);
    scope(|scope| {
        for session in [&one, &other, &doomed] {
            scope.spawn(move || session.barrier("gate", 3, LONG).unwrap());
        }
    });
    cluster.kill(2);
    let errors = scope(|scope| {
        let wait = |session| scope.spawn(move || super::Session::barrier(session, "gate", 3, LONG));
        [wait(&one), wait(&other)].map(|thread| thread.join())
    });
    for error in errors {
        refused!(error, BarrierCause::Timeout);
    }
}

/// Expects that the number of a killed node can be used again, that the new node holds nothing, and that handles to the
/// former incarnation stay invalid.
pub fn a_killed_node_returns_as_a_new_one(h: &dyn Harness) {
    let mut cluster = Cluster::new(h, 3);
    let session = cluster.session(0);
    let before = session.alloc(None, CHUNK, Placement::On(DOOMED), everyone()).unwrap();
    let incarnation = cluster.status(2).incarnation;
    cluster.kill(2);
    eventually("the node is back", || cluster.start(2, "ada", 1 << 20));
    let status = cluster.status(2);
    assert!(status.incarnation != incarnation && status.bytes_used == 0, "{status:?}");
    refused!(session.read(before, 0, &mut [0]), node_lost!(DOOMED));
    let after = session.alloc(None, CHUNK, Placement::On(DOOMED), everyone()).unwrap();
    session.write(after, 0, b"new").unwrap();
    assert_eq!(&contents(&session, after)[..3], b"new");
}

/// Expects that memory that the killed node had mapped leaves quarantine and is free again.
pub fn memory_mapped_by_a_killed_node_is_returned(h: &dyn Harness) {
    let mut cluster = Cluster::new(h, 3);
    let owner = cluster.session(1);
    let near = shared(&owner, "used", 3 * CHUNK);
    let user = cluster.session(2);
    let far = user.map("used", everyone()).unwrap();
    user.write(far, 0, b"salt").unwrap();
    cluster.kill(2);
    owner.free(near).unwrap();
    await_value(
        "all memory is returned",
        || cluster.status(1),
        |status| status.bytes_used + status.bytes_quarantined + status.mappings == 0,
    );
}

/// Expects that each owner reports when the killed node can no longer access the owner's memory. A node waits for these
/// reports before it reuses memory that the killed node could write to.
pub fn every_owner_reports_a_killed_node_as_cut_off(h: &dyn Harness) {
    let mut cluster = Cluster::new(h, 3);
    let session = cluster.session(0);
    let before = [0, 1].map(|owner| session.reach(DOOMED, NodeId(owner)).unwrap());
    assert!(before.iter().all(|reach| !reach.is_cut_off && reach.pairing > 0), "{before:?}");
    refused!(session.reach(NodeId(77), NodeId(1)), RegionCause::UnknownNode(NodeId(77)));
    refused!(session.reach(DOOMED, NodeId(77)), RegionCause::UnknownNode(NodeId(77)));
    cluster.kill(2);
    for owner in [0, 1] {
        let cut_off = eventually("the node is cut off", || {
            let reach = session.reach(DOOMED, NodeId(owner)).map_err(|error| error.to_string())?;
            if reach.is_cut_off { Ok(reach) } else { Err(format!("{reach:?}")) }
        });
        assert_eq!(cut_off.incarnation, before[0].incarnation, "another incarnation was reported");
    }
    refused!(session.reach(NodeId(0), DOOMED), RegionCause::NotMet(DOOMED));
}
