//! Long transfers leave room for short requests.

use halite_fabric::{Class, Event, Fabric, Lane, Local, Operation};

use crate::common::pair::Pair;
use crate::common::{Cluster, remote};
use crate::world::Network;

const BULK: Lane = Lane { number: 1, class: Class::Bulk };
const LEN: u64 = 64 << 10;
/// More bytes than any window takes.
const POSTED_MAX: u64 = 512;

fn room(pair: &Pair) -> usize {
    pair.ends[0].fabric.bulk_room(pair.ends[0].peer, BULK)
}

#[test]
fn unsent_writes_leave_no_room_until_the_room_event() {
    let Some(network) = Network::new() else { return };
    let cluster = Cluster::new();
    let mut pair = network.connect([0, 1].map(|side| network.config(&cluster, side)));
    let (key, _) = pair.ends[0].register(LEN);
    let (target, _) = pair.ends[1].register(LEN);
    assert_eq!(room(&pair), usize::MAX, "the rate of the path is unknown");
    let mut under_way = 0;
    pair.until("a full backlog", |pair| {
        while let Some(event) = pair.ends[0].events.pop_front() {
            under_way -= u64::from(matches!(event, Event::Completed(_)));
        }
        while under_way < POSTED_MAX {
            let local = Local::Registered { key, offset: 0, len: LEN };
            pair.post_to(0, BULK, Operation::Write { local, remote: remote(target, 0) });
            under_way += 1;
        }
        (room(pair) == 0).then_some(())
    });
    pair.until("the room event", |pair| {
        let event = pair.ends[0].events.pop_front()?;
        matches!(event, Event::Room { .. }).then_some(())
    });
    assert!(room(&pair) > 0);
}
