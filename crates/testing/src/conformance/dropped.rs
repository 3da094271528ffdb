//! Futures that are dropped at each of their await points.
//!
//! A dropped operation must take effect completely or not at all, and must leak nothing.

use std::future::Future;
use std::pin::Pin;
use std::task::Poll;

use halite::{
    Function, Lh, NodeId, Permissions, Placement, Port, ReadOp, RegionCause, ServeOptions, Who, WriteOp,
};

use super::calls::{PATIENCE, serve_echo};
use super::cluster::{CHUNK, Cluster, Harness, await_value, eventually, everyone, pattern};
use super::session::{Session, block_on};
use super::turns::{expect_pending, poll_at_most, scope};

/// More polls than any operation takes on two idle nodes.
const POLLS_MAX: usize = 200;

const NAME: &str = "subject";
const LEN: u64 = 3 * CHUNK + 1;
const ECHO: Function = Function(7);
const PORT: Port = Port(3);

/// An operation on a region of another node.
type Operation = for<'a> fn(&'a halite::Session, Lh) -> Pin<Box<dyn Future<Output = ()> + 'a>>;

/// Expects that an abandoned allocation without a name is undone, because no session could ever access its region.
pub fn an_abandoned_nameless_alloc_is_undone(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    at_every_wait(|polls| {
        let session = cluster.futures(0);
        let made = poll_at_most(polls, session.alloc(None, LEN, Placement::On(NodeId(1)), everyone()));
        let is_done = made.is_ready();
        if let Poll::Ready(lh) = made {
            Session::new(&session).free(lh.expect("the completed alloc succeeds")).unwrap();
        }
        cluster.expect_empty();
        is_done
    });
}

/// Expects that an abandoned allocation with a name either creates the whole region or is undone, and that the name is
/// usable in both cases.
pub fn an_abandoned_alloc_is_whole_or_undone(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    at_every_wait(|polls| {
        let session = cluster.futures(0);
        let made = poll_at_most(polls, session.alloc(Some(NAME), LEN, Placement::On(NodeId(1)), everyone()));
        drop(session);
        claim_and_free(&cluster);
        cluster.expect_empty();
        made.is_ready()
    });
}

/// Expects that an abandoned map leaves no mapping, because no session got the handle.
pub fn an_abandoned_map_leaves_no_mapping(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let owner = cluster.session(1);
    let lh = owner.alloc(Some(NAME), LEN, Placement::Local, everyone()).unwrap();
    at_every_wait(|polls| {
        let session = cluster.futures(0);
        let mapped = poll_at_most(polls, session.map(NAME, everyone()));
        let is_done = mapped.is_ready();
        if let Poll::Ready(lh) = mapped {
            Session::new(&session).unmap(lh.expect("the completed map succeeds")).unwrap();
        }
        // The session stays open: its end would release leaked mappings, and so hide them.
        await_value("node 0 maps nothing", || cluster.status(0).mappings, |count| *count == 0);
        is_done
    });
    owner.free(lh).unwrap();
    cluster.expect_empty();
}

/// Expects that an abandoned unmap either releases the handle or leaves it valid, and does not affect the region.
pub fn an_abandoned_unmap_leaks_nothing(h: &dyn Harness) {
    check(h, |session, lh| Box::pin(async move { session.unmap(lh).await.expect("unmap") }));
}

/// Expects that an abandoned free either leaves the region unchanged or frees it with all its memory.
pub fn an_abandoned_free_is_done_or_not(h: &dyn Harness) {
    check(h, |session, lh| Box::pin(async move { session.free(lh).await.expect("free") }));
}

/// Expects that an abandoned change of permissions takes effect completely or not at all.
pub fn an_abandoned_grant_is_done_or_not(h: &dyn Harness) {
    check(h, |session, lh| {
        let bob = Who::Principal("bob".to_owned());
        Box::pin(async move { session.grant(lh, bob, Permissions::READ).await.expect("grant") })
    });
    check(h, |session, lh| {
        Box::pin(async move { session.revoke(lh, Who::Everyone, Permissions::READ).await.expect("revoke") })
    });
    check(h, |session, lh| Box::pin(async move { session.add_master(lh, "bob").await.expect("add_master") }));
}

/// Expects that an abandoned seal takes effect completely or not at all.
pub fn an_abandoned_seal_is_done_or_not(h: &dyn Harness) {
    check(h, |session, lh| Box::pin(async move { session.seal(lh).await.expect("seal") }));
}

/// Expects that an abandoned move is completed or undone, loses no byte, and leaves no chunk frozen.
pub fn an_abandoned_move_loses_nothing(h: &dyn Harness) {
    check(h, |session, lh| Box::pin(async move { session.move_to(lh, NodeId(0)).await.expect("move_to") }));
}

/// Expects that abandoned reads and writes neither block nor damage later operations.
pub fn an_abandoned_access_leaks_nothing(h: &dyn Harness) {
    check(h, |session, lh| {
        Box::pin(async move { session.read(lh, 5, &mut vec![0; 2 * CHUNK as usize]).await.expect("read") })
    });
    check(h, |session, lh| {
        // Writes the present contents, so that they can be checked whether the write is done or not.
        let bytes = pattern(LEN, 1);
        Box::pin(async move { session.write(lh, 0, &bytes).await.expect("write") })
    });
    check(h, |session, lh| {
        let bytes = pattern(LEN, 1);
        Box::pin(async move { session.write_owned(lh, 0, bytes).await.1.expect("write_owned") })
    });
    check(h, |session, lh| {
        Box::pin(async move { session.read_owned(lh, 0, vec![0; LEN as usize]).await.1.expect("read_owned") })
    });
}

/// Expects that abandoned atomics leave nothing behind. They add zero and swap equal values, so that the contents can
/// be checked.
pub fn an_abandoned_atomic_leaks_nothing(h: &dyn Harness) {
    check(h, |session, lh| {
        Box::pin(async move { assert!(session.fetch_add(lh, 2 * CHUNK, 0).await.is_ok()) })
    });
    check(h, |session, lh| Box::pin(async move { assert!(session.compare_swap(lh, 8, 0, 0).await.is_ok()) }));
}

/// Expects that abandoned batches neither block nor damage later operations.
pub fn an_abandoned_batch_leaks_nothing(h: &dyn Harness) {
    check(h, |session, lh| {
        let bytes = pattern(LEN, 1);
        Box::pin(async move {
            let (one, two) = bytes.split_at(CHUNK as usize);
            let writes = [WriteOp { lh, offset: 0, from: one }, WriteOp { lh, offset: CHUNK, from: two }];
            session.write_batch(&writes).await.expect("write_batch");
        })
    });
    check(h, |session, lh| {
        Box::pin(async move {
            let (mut one, mut two) = ([0; 100], [0; 100]);
            let mut reads =
                [ReadOp { lh, offset: 0, into: &mut one }, ReadOp { lh, offset: CHUNK, into: &mut two }];
            session.read_batch(&mut reads).await.expect("read_batch");
        })
    });
}

/// Expects that abandoned fills and copies at the owner end before the region's memory is freed.
pub fn an_abandoned_memory_operation_leaks_nothing(h: &dyn Harness) {
    check(h, |session, lh| {
        Box::pin(async move {
            let other = session.alloc(None, LEN, Placement::On(NodeId(1)), everyone()).await.expect("alloc");
            session.fill(other, 0, LEN, 7).await.expect("fill");
            session.copy(other, 0, lh, 0, LEN).await.expect("copy");
            session.copy(lh, 0, other, 0, LEN).await.expect("copy back");
            session.unmap(other).await.expect("unmap");
        })
    });
}

/// Expects that abandoned queries leave nothing behind.
pub fn an_abandoned_query_leaks_nothing(h: &dyn Harness) {
    check(h, |session, _| Box::pin(async move { drop(session.stat(NAME).await.expect("stat")) }));
    check(h, |session, lh| {
        Box::pin(async move { drop(session.stat_handle(lh).await.expect("stat_handle")) })
    });
    check(h, |session, _| Box::pin(async move { drop(session.list().await.expect("list")) }));
    check(h, |session, _| Box::pin(async move { drop(session.status().await.expect("status")) }));
}

/// Expects that calls that are abandoned while they are sent, queued or handled leave nothing behind, with inputs and
/// answers of several lengths.
pub fn an_abandoned_call_leaks_nothing(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let server = cluster.session(1).serve(ECHO, ServeOptions::default()).unwrap();
    scope(|scope| {
        scope.spawn(|| serve_echo(&server));
        for (len, node) in [(10, 1), (5000, 1), (300_000, 1), (300_000, 0), (10, 0)] {
            let (here, session) = (cluster.session(node), cluster.futures(node));
            let input = pattern(len, len);
            let mut answer = vec![0; len as usize];
            for _ in 0..h.count(3, 20) {
                at_every_wait(|polls| {
                    poll_at_most(polls, session.call(NodeId(1), ECHO, &input, PATIENCE)).is_ready()
                });
                at_every_wait(|polls| {
                    let call = session.call_into(NodeId(1), ECHO, &input, &mut answer, PATIENCE);
                    poll_at_most(polls, call).is_ready()
                });
                let nodes = [NodeId(1), NodeId(0), NodeId(1)];
                at_every_wait(|polls| {
                    poll_at_most(polls, session.call_many(&nodes, ECHO, &input, PATIENCE)).is_ready()
                });
            }
            assert_eq!(here.call_into(NodeId(1), ECHO, &input, &mut answer, PATIENCE), Ok(len as usize));
            assert!(answer.iter().eq(input.iter().rev()));
        }
        server.close();
    });
}

/// Expects that the message of an abandoned send arrives at most once, and that the port accepts later messages.
pub fn an_abandoned_send_leaks_nothing(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let mailbox =
        cluster.session(1).open_port(PORT, ServeOptions { requests_max: 1, ..ServeOptions::default() });
    let mailbox = mailbox.unwrap();
    scope(|scope| {
        let receiver = mailbox.clone();
        let received = scope.spawn(move || {
            let messages = std::iter::from_fn(|| Some(receiver.recv().unwrap().bytes));
            let numbers = messages.take_while(|bytes| !bytes.is_empty());
            numbers.map(|bytes| bytes[..4].to_vec()).collect::<Vec<_>>()
        });
        let mut sent: Vec<Vec<u8>> = Vec::new();
        let mut number = 0_u32;
        for (len, node) in [(4, 0), (5000, 0), (300_000, 0), (4, 1), (300_000, 1)] {
            let session = cluster.futures(node);
            for _ in 0..20 {
                at_every_wait(|polls| {
                    number += 1;
                    let mut bytes = number.to_le_bytes().to_vec();
                    bytes.resize(len, 0);
                    let is_done = poll_at_most(polls, session.send(NodeId(1), PORT, &bytes)).is_ready();
                    sent.extend(is_done.then(|| number.to_le_bytes().to_vec()));
                    is_done
                });
            }
        }
        // Earlier messages are received before this one.
        cluster.session(0).send(NodeId(1), PORT, b"").unwrap();
        let received = received.join();
        assert!(
            received.is_sorted_by(|one, next| number_in(one) < number_in(next)),
            "a message arrived twice or out of order"
        );
        assert!(sent.iter().all(|number| received.contains(number)), "a sent message is missing");
    });
}

fn number_in(bytes: &[u8]) -> u32 {
    u32::from_le_bytes(bytes.try_into().expect("four bytes"))
}

/// Expects that other receivers get the calls of an abandoned receiver, even a call whose input the receiver has begun
/// to read.
pub fn an_abandoned_recv_leaves_its_call_to_others(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let server = cluster.session(1).serve(ECHO, ServeOptions::default()).unwrap();
    let session = cluster.futures(0);
    for len in [10, 300_000] {
        let input = pattern(len, len);
        for polls in 0..10 {
            let mut calling = Box::pin(session.call(NodeId(1), ECHO, &input, PATIENCE));
            expect_pending(&mut calling);
            let call = match poll_at_most(polls, server.as_async().recv()) {
                Poll::Ready(call) => call.unwrap(),
                Poll::Pending => server.recv().unwrap(),
            };
            assert!(call.input() == input);
            call.reply(b"done").unwrap();
            assert_eq!(block_on(&session, calling).unwrap(), b"done");
        }
    }
}

/// Abandons `operation` after every possible number of polls. If the region still exists then, it must hold the written
/// contents, be writable, and be freed without a leak.
fn check(h: &dyn Harness, operation: Operation) {
    let cluster = Cluster::new(h, 2);
    at_every_wait(|polls| {
        let session = cluster.futures(0);
        let writer = Session::new(&session);
        let lh = writer.alloc(Some(NAME), LEN, Placement::On(NodeId(1)), everyone()).unwrap();
        writer.write(lh, 0, &pattern(LEN, 1)).unwrap();
        let outcome = poll_at_most(polls, operation(&session, lh));
        drop((session, writer));
        claim_and_free(&cluster);
        cluster.expect_empty();
        outcome.is_ready()
    });
}

/// If the region with the name exists, checks its contents and frees it. Otherwise expects that the name is free.
fn claim_and_free(cluster: &Cluster) {
    let session = cluster.session(0);
    eventually("the name is usable", || {
        match session.alloc(Some(NAME), 64, Placement::Local, everyone()) {
            Ok(lh) => return session.free(lh).map_err(|error| error.to_string()),
            Err(error) if matches!(error.cause(), RegionCause::NameTaken) => {}
            Err(error) => return Err(error.to_string()),
        }
        // Maps without the permission to write, because the region may be sealed.
        let lh =
            session.map(NAME, Permissions::READ | Permissions::MASTER).map_err(|error| error.to_string())?;
        // An alloc that is being undone may free the region at any moment.
        let mut bytes = vec![0xEE; session.len(lh).map_err(|error| error.to_string())? as usize];
        session.read(lh, 0, &mut bytes).map_err(|error| error.to_string())?;
        let is_fresh = bytes.iter().all(|byte| *byte == 0);
        assert!(is_fresh || bytes == pattern(LEN, 1), "the region has lost bytes");
        session.free(lh).map_err(|error| error.to_string())
    });
}

/// Calls `attempt` with 0, 1, 2 and so on polls until it returns true.
pub(super) fn at_every_wait(mut attempt: impl FnMut(usize) -> bool) {
    let enough = (0..POLLS_MAX).find(|polls| attempt(*polls));
    assert!(enough.is_some(), "the operation takes more than {POLLS_MAX} polls");
}
