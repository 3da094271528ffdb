//! Published messages: a sender does not wait for the acceptance of each message, and the messages arrive in order.

use fastrand::Rng;
use halite::{NodeId, Port, SendCause, ServeOptions};

use super::cluster::{Cluster, Harness, pattern};
use super::messages::{PORT, THERE, await_arrival, room_for};
use super::refused;
use super::session::{Mailbox, Session};
use super::turns::{expect_pending, scope};

/// Maximum number of messages of one sender in flight.
const IN_FLIGHT_MAX: u64 = 64;

/// Expects messages with these numbers, in order.
fn expect_numbers(mailbox: &Mailbox, numbers: std::ops::Range<u64>) {
    for number in numbers {
        assert_eq!(mailbox.recv().unwrap().bytes, number.to_le_bytes());
    }
}

fn publish_numbers(session: &Session, numbers: std::ops::Range<u64>) {
    let mut sender = session.sender(THERE, PORT);
    numbers.for_each(|number| sender.send(&number.to_le_bytes()).unwrap());
    sender.flush().unwrap();
}

/// Expects that published messages of all lengths arrive in order, in lines of 64 bytes, through the ring, and by
/// reference, at ports with long and with short queues.
pub fn published_messages_arrive_in_order(h: &dyn Harness) {
    const MESSAGES: u64 = 600;
    let cluster = Cluster::tuned(h, 2, |config| config.request_ring_bytes = 4096);
    for (publisher, requests_max) in [(0, 4096), (0, 3), (1, 3)] {
        let mailbox = cluster.session(1).open_port(PORT, room_for(requests_max)).unwrap();
        let session = cluster.session(publisher);
        scope(|scope| {
            scope.spawn(|| {
                let mut random = Rng::with_seed(1);
                let mut sender = session.sender(THERE, PORT);
                for number in 0..MESSAGES {
                    let longest = [20, 1100, 9000][random.u64(0..3) as usize];
                    sender.send(&pattern(random.u64(0..longest), number)).unwrap();
                }
                sender.flush().unwrap();
            });
            for number in 0..MESSAGES {
                let message = mailbox.recv().unwrap();
                assert_eq!((message.from.as_str(), message.node), ("ada", NodeId(publisher as u32)));
                let wanted = pattern(message.bytes.len() as u64, number);
                assert!(message.bytes == wanted, "number {number}, {} bytes", wanted.len());
            }
        });
        assert_eq!(mailbox.try_recv(), Ok(None));
        mailbox.close();
    }
}

/// Expects that messages arrive although their sender has been dropped.
pub fn messages_of_a_dropped_sender_arrive(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let mailbox = cluster.session(1).open_port(PORT, room_for(2)).unwrap();
    let mut sender = cluster.session(0).sender(THERE, PORT);
    (0..40_u64).for_each(|number| sender.send(&number.to_le_bytes()).unwrap());
    expect_numbers(&mailbox, 0..40);
    // The sender is dropped with more messages in flight than the port has room for.
    (40..50_u64).for_each(|number| sender.send(&number.to_le_bytes()).unwrap());
    drop(sender);
    // A server drops calls of callers that have gone, but a port must keep published messages.
    await_arrival(&cluster.session(0), THERE);
    expect_numbers(&mailbox, 40..50);
    assert_eq!(mailbox.try_recv(), Ok(None));
}

/// Expects that a slow receiver limits the number of messages and of bytes that a sender has in flight.
pub fn a_slow_receiver_delays_publishers(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let here = cluster.session(0);
    let mailbox = cluster.session(1).open_port(PORT, room_for(1)).unwrap();
    let mut sender = cluster.futures(0).sender(THERE, PORT);
    // One message is in the queue, and the others are in flight.
    for number in 0..=IN_FLIGHT_MAX {
        here.block_on(sender.send(&number.to_le_bytes())).unwrap();
    }
    let next = IN_FLIGHT_MAX + 1;
    let bytes = next.to_le_bytes();
    let mut sending = Box::pin(sender.send(&bytes));
    // As many messages are in flight as a sender may have.
    expect_pending(&mut sending);
    expect_numbers(&mailbox, 0..1);
    here.block_on(sending).unwrap();
    expect_numbers(&mailbox, 1..next + 1);
    here.block_on(sender.flush()).unwrap();

    here.block_on(sender.send(b"in the queue")).unwrap();
    here.block_on(sender.send(&[7; 200 << 10])).unwrap();
    let mut sending = Box::pin(sender.send(&[8; 100 << 10]));
    // As many bytes are in flight as a sender may have.
    expect_pending(&mut sending);
    drop(sending);
    assert_eq!(mailbox.recv().unwrap().bytes, b"in the queue");
    assert_eq!(mailbox.recv().unwrap().bytes, [7; 200 << 10]);
    here.block_on(sender.flush()).unwrap();
    assert_eq!(mailbox.try_recv(), Ok(None));
}

/// Expects that each message of many senders arrives once, in the order of its sender.
pub fn many_senders_publish_to_one_port(h: &dyn Harness) {
    const EACH: u64 = 200;
    let cluster = Cluster::new(h, 3);
    let mailbox = cluster.session(1).open_port(PORT, room_for(5)).unwrap();
    scope(|scope| {
        for publisher in 0..3_u64 {
            let session = cluster.session(publisher as usize);
            scope.spawn(move || publish_numbers(&session, publisher * EACH..(publisher + 1) * EACH));
        }
        let mut next = [0, EACH, 2 * EACH];
        for _ in 0..3 * EACH {
            let message = mailbox.recv().unwrap();
            let next = &mut next[message.node.0 as usize];
            assert_eq!(message.bytes, next.to_le_bytes());
            *next += 1;
        }
    });
    assert_eq!(mailbox.try_recv(), Ok(None));
}

/// Expects that a publisher gets the error of a refused message from `flush` at the latest; an invalid message fails at
/// once.
pub fn publishers_learn_of_refused_messages(h: &dyn Harness) {
    let mut cluster = Cluster::new(h, 3);
    let here = cluster.session(0);
    let mut to_closed = here.sender(THERE, PORT);
    to_closed.send(b"still there?").unwrap();
    refused!(to_closed.flush(), SendCause::UnknownPort);
    to_closed.flush().expect("the error is reported once");
    refused!(here.sender(NodeId(9), PORT).send(b""), SendCause::UnknownNode);
    refused!(to_closed.send(&vec![0; (1 << 30) + 1]), SendCause::TooLong);
    refused!(here.sender(THERE, Port::RESERVED_MIN).send(b""), SendCause::Reserved);

    let mailbox = cluster.session(1).open_port(PORT, room_for(1)).unwrap();
    let mut sender = here.sender(THERE, PORT);
    sender.send(b"accepted").unwrap();
    sender.send(b"waits").unwrap();
    await_arrival(&here, THERE);
    mailbox.close();
    refused!(sender.flush(), SendCause::UnknownPort);

    let mailbox = cluster.session(2).open_port(PORT, room_for(1)).unwrap();
    let mut sender = here.sender(NodeId(2), PORT);
    sender.send(b"accepted").unwrap();
    sender.send(b"waits").unwrap();
    await_arrival(&here, NodeId(2));
    cluster.leave(2);
    let error = sender.flush().unwrap_err();
    assert!(error.cause == SendCause::PeerDown && error.may_have_arrived, "{error}");
    drop(mailbox);
}

/// Expects that a port without a receiver limits the number of waiting messages of one node.
pub fn a_full_port_limits_the_messages_of_a_node(h: &dyn Harness) {
    const SENDERS: u64 = 66;
    let cluster = Cluster::new(h, 2);
    let here = cluster.session(0);
    let mailbox = cluster.session(1).open_port(PORT, room_for(1)).unwrap();
    let senders = (0..SENDERS).map(|number| {
        let mut sender = here.sender(THERE, PORT);
        let numbers = number * IN_FLIGHT_MAX..(number + 1) * IN_FLIGHT_MAX;
        numbers.for_each(|number| sender.send(&number.to_le_bytes()).unwrap());
        sender
    });
    let mut senders: Vec<_> = senders.collect();
    // All messages of the last sender are refused, because the earlier messages arrived first.
    let last = senders.last_mut().expect("there are senders");
    for _ in 0..IN_FLIGHT_MAX {
        refused!(last.flush(), SendCause::WouldBlock);
    }
    last.flush().unwrap();
    // One message is in the queue, and 4,096 wait for room.
    expect_numbers(&mailbox, 0..4097);
    assert_eq!(mailbox.try_recv(), Ok(None));
    for sender in &mut senders[..64] {
        sender.flush().unwrap();
    }
    publish_numbers(&here, 0..1);
    expect_numbers(&mailbox, 0..1);
}

/// Expects that only listed principals can publish to a port.
pub fn only_listed_principals_may_publish(h: &dyn Harness) {
    let cluster = Cluster::of_principals(h, &["ada", "bob"]);
    let options = ServeOptions { callers: Some(vec!["bob".to_owned()]), ..ServeOptions::default() };
    let mailbox = cluster.session(1).open_port(PORT, options).unwrap();
    let mut sender = cluster.session(0).sender(THERE, PORT);
    sender.send(b"psst").unwrap();
    refused!(sender.flush(), SendCause::PermissionDenied);
    assert_eq!(mailbox.try_recv(), Ok(None));
}
