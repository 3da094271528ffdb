//! Messages that are published: their sender goes on, and they come out in their order all the same.

use std::future::Future;
use std::task::{Context, Waker};

use fastrand::Rng;
use halite::{NodeId, Port, SendCause, ServeOptions};

use super::cluster::{Cluster, Harness, pattern};
use super::refused;
use super::session::{Mailbox, Session};
use super::turns::scope;

const PORT: Port = Port(3);
const THERE: NodeId = NodeId(1);
/// How many messages of one sender are under way at most.
const UNDER_WAY_MAX: u64 = 64;

fn room_for(requests_max: usize) -> ServeOptions {
    ServeOptions { requests_max, ..ServeOptions::default() }
}

/// Receives numbers from `first` on, in their order.
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

/// Numbered and of all lengths: in lines, through the ring, and left in their sender's memory; with room for all, and for few.
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

/// Nobody is asked to send anything again.
pub fn what_was_published_is_received_though_its_sender_does_nothing_more(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let mailbox = cluster.session(1).open_port(PORT, room_for(2)).unwrap();
    let mut sender = cluster.session(0).sender(THERE, PORT);
    (0..40_u64).for_each(|number| sender.send(&number.to_le_bytes()).unwrap());
    expect_numbers(&mailbox, 0..40);
    // As little as this: dropped, with more than there is room for under way.
    (40..50_u64).for_each(|number| sender.send(&number.to_le_bytes()).unwrap());
    drop(sender);
    // Looked through for what is not wanted any more, the port keeps these.
    await_full(&cluster.session(0), THERE);
    expect_numbers(&mailbox, 40..50);
    assert_eq!(mailbox.try_recv(), Ok(None));
}

/// By a window of messages, and one of bytes.
pub fn a_slow_receiver_holds_up_who_publishes(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let here = cluster.session(0);
    let mailbox = cluster.session(1).open_port(PORT, room_for(1)).unwrap();
    let mut sender = cluster.futures(0).sender(THERE, PORT);
    // One is in the queue, and the others are under way.
    for number in 0..=UNDER_WAY_MAX {
        here.block_on(sender.send(&number.to_le_bytes())).unwrap();
    }
    let next = UNDER_WAY_MAX + 1;
    let bytes = next.to_le_bytes();
    let mut sending = Box::pin(sender.send(&bytes));
    let polled = sending.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_pending(), "one more than may be under way");
    expect_numbers(&mailbox, 0..1);
    here.block_on(sending).unwrap();
    expect_numbers(&mailbox, 1..next + 1);
    here.block_on(sender.flush()).unwrap();

    here.block_on(sender.send(b"in the queue")).unwrap();
    here.block_on(sender.send(&[7; 200 << 10])).unwrap();
    let mut sending = Box::pin(sender.send(&[8; 100 << 10]));
    let polled = sending.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_pending(), "more bytes than may be under way");
    drop(sending);
    assert_eq!(mailbox.recv().unwrap().bytes, b"in the queue");
    assert_eq!(mailbox.recv().unwrap().bytes, [7; 200 << 10]);
    here.block_on(sender.flush()).unwrap();
    assert_eq!(mailbox.try_recv(), Ok(None));
}

/// Each message of many comes once, and those of one sender in their order.
pub fn many_publish_to_one_port(h: &dyn Harness) {
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

/// At the latest by `flush`; what is wrong with the message itself, at once.
pub fn who_publishes_is_told_what_was_not_received(h: &dyn Harness) {
    let mut cluster = Cluster::new(h, 3);
    let here = cluster.session(0);
    let mut nobody = here.sender(THERE, PORT);
    nobody.send(b"is anybody there?").unwrap();
    refused!(nobody.flush(), SendCause::UnknownPort);
    nobody.flush().expect("an error is told once");
    refused!(here.sender(NodeId(9), PORT).send(b""), SendCause::UnknownNode);
    refused!(nobody.send(&vec![0; (1 << 30) + 1]), SendCause::TooLong);
    refused!(here.sender(THERE, Port::RESERVED_MIN).send(b""), SendCause::Reserved);

    let mailbox = cluster.session(1).open_port(PORT, room_for(1)).unwrap();
    let mut sender = here.sender(THERE, PORT);
    sender.send(b"accepted").unwrap();
    sender.send(b"waits").unwrap();
    await_full(&here, THERE);
    mailbox.close();
    refused!(sender.flush(), SendCause::UnknownPort);

    let mailbox = cluster.session(2).open_port(PORT, room_for(1)).unwrap();
    let mut sender = here.sender(NodeId(2), PORT);
    sender.send(b"accepted").unwrap();
    sender.send(b"waits").unwrap();
    await_full(&here, NodeId(2));
    cluster.leave(2);
    let error = sender.flush().unwrap_err();
    assert!(error.cause == SendCause::PeerDown && error.may_have_arrived, "{error}");
    drop(mailbox);
}

/// Requests of one node are taken in in order.
fn await_full(session: &Session, node: NodeId) {
    refused!(session.try_send(node, PORT, b"too late"), SendCause::WouldBlock);
}

/// A port that nobody reads keeps so many messages of one node, and no more.
pub fn a_full_port_keeps_no_more_than_so_much_of_what_is_published(h: &dyn Harness) {
    const SENDERS: u64 = 66;
    let cluster = Cluster::new(h, 2);
    let here = cluster.session(0);
    let mailbox = cluster.session(1).open_port(PORT, room_for(1)).unwrap();
    let senders = (0..SENDERS).map(|number| {
        let mut sender = here.sender(THERE, PORT);
        let numbers = number * UNDER_WAY_MAX..(number + 1) * UNDER_WAY_MAX;
        numbers.for_each(|number| sender.send(&number.to_le_bytes()).unwrap());
        sender
    });
    let mut senders: Vec<_> = senders.collect();
    // Each message of the last one is told to be refused; what came before has arrived before.
    let last = senders.last_mut().expect("there are some");
    for _ in 0..UNDER_WAY_MAX {
        refused!(last.flush(), SendCause::WouldBlock);
    }
    last.flush().unwrap();
    // One in the queue, and 4,096 beside it.
    expect_numbers(&mailbox, 0..4097);
    assert_eq!(mailbox.try_recv(), Ok(None));
    for sender in &mut senders[..64] {
        sender.flush().unwrap();
    }
    publish_numbers(&here, 0..1);
    expect_numbers(&mailbox, 0..1);
}

/// As with any message.
pub fn only_those_on_the_list_may_publish(h: &dyn Harness) {
    let cluster = Cluster::of_principals(h, &["ada", "bob"]);
    let options = ServeOptions { callers: Some(vec!["bob".to_owned()]), ..ServeOptions::default() };
    let mailbox = cluster.session(1).open_port(PORT, options).unwrap();
    let mut sender = cluster.session(0).sender(THERE, PORT);
    sender.send(b"psst").unwrap();
    refused!(sender.flush(), SendCause::PermissionDenied);
    assert_eq!(mailbox.try_recv(), Ok(None));
}
