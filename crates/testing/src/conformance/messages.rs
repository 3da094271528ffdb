//! Messages to ports: each is received once and in order, even if senders or receivers are slow.

use std::collections::BTreeSet;

use fastrand::Rng;
use halite::{NodeId, Port, SendCause, ServeCause, ServeOptions};

use super::calls::join_all;
use super::cluster::{Cluster, Harness, pattern};
use super::refused;
use super::session::{Session, block_on};
use super::turns::{expect_pending, scope};

pub(super) const PORT: Port = Port(3);
pub(super) const THERE: NodeId = NodeId(1);

/// Returns options of a port whose queue holds `requests_max` messages.
pub(super) fn room_for(requests_max: usize) -> ServeOptions {
    ServeOptions { requests_max, ..ServeOptions::default() }
}

/// Waits until earlier messages have arrived at a full port: its node handles the requests of one node in order.
pub(super) fn await_arrival(session: &Session, node: NodeId) {
    refused!(session.try_send(node, PORT, b"too late"), SendCause::WouldBlock);
}

/// Expects that numbered messages of all lengths arrive in order: through the ring, many times around the ring, and by
/// reference.
pub fn messages_of_one_sender_arrive_in_order(h: &dyn Harness) {
    const MESSAGES: u64 = 1000;
    let cluster = Cluster::tuned(h, 2, |config| config.request_ring_bytes = 4096);
    let mailbox = cluster.session(1).open_port(PORT, ServeOptions::default()).unwrap();
    for sender in [0, 1] {
        let session = cluster.session(sender);
        scope(|scope| {
            scope.spawn(|| {
                let mut random = Rng::with_seed(1);
                for number in 0..MESSAGES {
                    let longest = [20, 1100, 9000][random.u64(0..3) as usize];
                    session.send(THERE, PORT, &pattern(random.u64(0..longest), number)).unwrap();
                }
            });
            for number in 0..MESSAGES {
                let message = mailbox.recv().unwrap();
                assert_eq!((message.from.as_str(), message.node), ("ada", NodeId(sender as u32)));
                let wanted = pattern(message.bytes.len() as u64, number);
                assert!(message.bytes == wanted, "number {number}, {} bytes", wanted.len());
            }
        });
    }
    assert_eq!(mailbox.try_recv(), Ok(None));
}

/// Expects that each message is received once if several senders and receivers use a port with a short queue.
pub fn every_message_is_received_once(h: &dyn Harness) {
    const EACH: u64 = 300;
    const SENDERS: u64 = 6;
    let cluster = Cluster::new(h, 3);
    let mailbox = cluster.session(1).open_port(PORT, room_for(2)).unwrap();
    let mut received: Vec<u64> = scope(|scope| {
        let receivers: Vec<_> = (0..3)
            .map(|_| {
                let mailbox = mailbox.clone();
                scope.spawn(move || {
                    let messages = std::iter::from_fn(|| Some(mailbox.recv().unwrap().bytes));
                    let numbers = messages.take_while(|bytes| !bytes.is_empty());
                    let number = |bytes: Vec<u8>| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
                    numbers.map(number).collect::<Vec<_>>()
                })
            })
            .collect();
        let senders: Vec<_> = (0..SENDERS)
            .map(|sender| {
                let session = cluster.session(sender as usize % 3);
                scope.spawn(move || {
                    for number in 0..EACH {
                        session.send(THERE, PORT, &(sender * EACH + number).to_le_bytes()).unwrap();
                    }
                })
            })
            .collect();
        senders.into_iter().for_each(|sender| sender.join());
        for _ in &receivers {
            cluster.session(0).send(THERE, PORT, b"").expect("the port is open");
        }
        receivers.into_iter().flat_map(|receiver| receiver.join()).collect()
    });
    received.sort_unstable();
    assert_eq!(received, (0..SENDERS * EACH).collect::<Vec<_>>());
}

/// Expects that a slow receiver delays senders and loses no message, even if hundreds of messages of each node wait.
pub fn a_slow_receiver_loses_no_message(h: &dyn Harness) {
    const EACH: u32 = 400;
    let cluster = Cluster::tuned(h, 2, |config| config.request_ring_bytes = 4096);
    let mailbox = cluster.session(1).open_port(PORT, room_for(3)).unwrap();
    scope(|scope| {
        let senders: Vec<_> = [0, 1]
            .map(|node| {
                let session = cluster.futures(node);
                scope.spawn(move || {
                    let numbers: Vec<_> = (0..EACH).map(u32::to_le_bytes).collect();
                    let sends = numbers.iter().map(|bytes| session.send(THERE, PORT, bytes)).collect();
                    block_on(&session, join_all(sends))
                })
            })
            .into_iter()
            .collect();
        let mut received = BTreeSet::new();
        for _ in 0..2 * EACH {
            let message = mailbox.recv().unwrap();
            // The messages are sent concurrently, so their order is undefined.
            assert!(received.insert((message.node, message.bytes)), "a message arrived twice");
        }
        for sender in senders {
            assert!(sender.join().iter().all(Result::is_ok));
        }
    });
    assert_eq!(mailbox.try_recv(), Ok(None));
}

/// Expects that `try_send` fails while the port is full, and succeeds when there is room.
pub fn try_send_fails_while_the_port_is_full(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let here = cluster.session(0);
    let mailbox = cluster.session(1).open_port(PORT, room_for(2)).unwrap();
    for _ in 0..50 {
        here.try_send(THERE, PORT, b"one").unwrap();
        here.try_send(THERE, PORT, b"two").unwrap();
        refused!(here.try_send(THERE, PORT, b"three"), SendCause::WouldBlock);
        refused!(cluster.session(1).try_send(THERE, PORT, b"three"), SendCause::WouldBlock);
        for wanted in [b"one", b"two"] {
            assert_eq!(mailbox.recv().unwrap().bytes, wanted);
        }
    }
    let bytes_max = 1000;
    let small = cluster.session(1).open_port(Port(4), ServeOptions { bytes_max, ..room_for(9) }).unwrap();
    here.try_send(THERE, Port(4), &[1; 5000]).expect("an empty queue accepts a message of any length");
    refused!(here.try_send(THERE, Port(4), b"!"), SendCause::WouldBlock);
    assert_eq!(small.recv().unwrap().bytes, [1; 5000]);
}

/// Expects that free room in a port goes to the sender that has waited longest.
pub fn waiting_senders_are_not_overtaken(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let (here, session) = (cluster.session(0), cluster.futures(0));
    let mailbox = cluster.session(1).open_port(PORT, room_for(1)).unwrap();
    here.send(THERE, PORT, b"first").unwrap();
    let mut second = Box::pin(session.send(THERE, PORT, b"second"));
    expect_pending(&mut second);
    await_arrival(&here, THERE);
    assert_eq!(mailbox.recv().unwrap().bytes, b"first");
    // The room is reserved for the second message, although its task does not run.
    refused!(here.try_send(THERE, PORT, b"third"), SendCause::WouldBlock);
    assert_eq!(mailbox.try_recv(), Ok(None));
    here.block_on(second).unwrap();
    assert_eq!(mailbox.recv().unwrap().bytes, b"second");
    here.try_send(THERE, PORT, b"third").unwrap();
}

/// Expects that an abandoned send leaves its room to other senders, whether it is abandoned before or after the room is
/// reserved.
pub fn an_abandoned_send_leaves_its_room_to_others(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    for sender in [0, 1] {
        let (here, session) = (cluster.session(sender), cluster.futures(sender));
        let mailbox = cluster.session(1).open_port(PORT, room_for(1)).unwrap();
        here.send(THERE, PORT, b"first").unwrap();
        let mut waiting: Vec<_> = (0..4).map(|_| Box::pin(session.send(THERE, PORT, b"abandoned"))).collect();
        waiting.iter_mut().for_each(expect_pending);
        let mut last = Box::pin(session.send(THERE, PORT, b"last"));
        expect_pending(&mut last);
        await_arrival(&here, THERE);
        drop(waiting.remove(1));
        assert_eq!(mailbox.recv().unwrap().bytes, b"first");
        // The room is or will be reserved for the first of the waiting messages.
        drop(waiting.remove(0));
        drop(waiting);
        here.block_on(last).unwrap();
        assert_eq!(mailbox.recv().unwrap().bytes, b"last");
        here.send(THERE, PORT, b"next").unwrap();
        mailbox.close();
    }
}

/// Expects that messages to unknown nodes or closed ports, messages that are too long, and a second opening of a port
/// fail.
pub fn messages_to_closed_ports_fail(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let (here, there) = (cluster.session(0), cluster.session(1));
    refused!(here.send(NodeId(9), PORT, b""), SendCause::UnknownNode);
    for node in [NodeId(0), THERE] {
        refused!(here.send(node, PORT, b""), SendCause::UnknownPort);
        refused!(here.try_send(node, PORT, &vec![0; 1 << 20]), SendCause::UnknownPort);
    }
    let mailbox = there.open_port(PORT, ServeOptions::default()).unwrap();
    let owner = "ada".to_owned();
    assert_eq!(
        there.open_port(PORT, ServeOptions::default()).unwrap_err().cause,
        ServeCause::Taken { owner }
    );
    here.send(THERE, PORT, b"").unwrap();
    refused!(here.send(THERE, PORT, &vec![0; (1 << 30) + 1]), SendCause::TooLong);
    drop(mailbox);
    let error = here.send(THERE, PORT, b"").unwrap_err();
    assert_eq!(error.cause, SendCause::UnknownPort);
    for part in ["port 3", "node 1"] {
        assert!(error.to_string().contains(part), "{error} does not mention {part}");
    }
}

/// Expects that a port with a list of principals receives messages only from these and from its own principal.
pub fn only_listed_principals_may_send(h: &dyn Harness) {
    let cluster = Cluster::of_principals(h, &["ada", "bob", "eve"]);
    let options = ServeOptions { callers: Some(vec!["bob".to_owned()]), ..ServeOptions::default() };
    let mailbox = cluster.session(0).open_port(PORT, options).unwrap();
    refused!(cluster.session(2).send(NodeId(0), PORT, b"psst"), SendCause::PermissionDenied);
    cluster.session(1).send(NodeId(0), PORT, b"hello").unwrap();
    cluster.session(0).send(NodeId(0), PORT, b"note to self").unwrap();
    assert_eq!(mailbox.recv().unwrap().from, "bob");
    assert_eq!(mailbox.recv().unwrap().from, "ada");
    assert_eq!(mailbox.try_recv(), Ok(None));
}

/// Expects that senders that wait for a port fail when the port closes, and that messages that were accepted but not
/// received are lost.
pub fn waiting_senders_fail_when_the_port_closes(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let (here, session) = (cluster.session(0), cluster.futures(0));
    let mailbox = cluster.session(1).open_port(PORT, room_for(1)).unwrap();
    here.send(THERE, PORT, b"accepted").unwrap();
    let mut waiting: Vec<_> = (0..3).map(|_| Box::pin(session.send(THERE, PORT, b"waits"))).collect();
    waiting.iter_mut().for_each(expect_pending);
    await_arrival(&here, THERE);
    mailbox.close();
    for sent in here.block_on(join_all(waiting)) {
        refused!(sent, SendCause::UnknownPort);
    }
    refused!(mailbox.recv(), ServeCause::Closed);
    refused!(mailbox.try_recv(), ServeCause::Closed);
}

/// Expects that waiting senders fail when the port's node leaves. Their waits have no timeout.
pub fn waiting_senders_fail_when_the_node_leaves(h: &dyn Harness) {
    let mut cluster = Cluster::new(h, 3);
    let (here, session) = (cluster.session(0), cluster.futures(0));
    let mailbox = cluster.session(2).open_port(PORT, room_for(1)).unwrap();
    here.send(NodeId(2), PORT, b"accepted").unwrap();
    let mut waiting: Vec<_> = (0..3).map(|_| Box::pin(session.send(NodeId(2), PORT, b"waits"))).collect();
    waiting.iter_mut().for_each(expect_pending);
    await_arrival(&here, NodeId(2));
    cluster.leave(2);
    for sent in here.block_on(join_all(waiting)) {
        let error = sent.unwrap_err();
        assert!(error.cause == SendCause::PeerDown && error.may_have_arrived, "{error}");
    }
    let late = here.send(NodeId(2), PORT, b"late").unwrap_err();
    assert!(!late.may_have_arrived, "an unsent message cannot have arrived: {late}");
    refused!(mailbox.recv(), ServeCause::NodeClosed(NodeId(2)));
}

/// Expects that messages arrive in order even if they stay in their sender's memory until the receiver reads them.
pub fn long_messages_stay_in_order(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let mailbox = cluster.session(1).open_port(PORT, room_for(2)).unwrap();
    let lens = [5, 300_000, 70_000, 1, 0, 1 << 20, 65_537, 9];
    for sender in [0, 1] {
        let session = cluster.session(sender);
        scope(|scope| {
            scope.spawn(move || {
                for len in lens {
                    session.send(THERE, PORT, &pattern(len, len)).unwrap();
                }
            });
            for len in lens {
                let message = mailbox.recv().unwrap();
                assert!(message.bytes == pattern(len, len), "{len} bytes");
            }
        });
    }
}
