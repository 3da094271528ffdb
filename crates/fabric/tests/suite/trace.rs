//! What the tracer remembers.

use crate::common;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use common::{PEER, pair, poll, poll_events, register, request, send};
use halite_fabric::kind::OperationKind;
use halite_fabric::trace::{Count, Tracer};
use halite_fabric::{Fabric, Key, Lane, Operation, RemoteAddress};
use halite_mem::{PagePolicy, Segment};

fn add(id: u64, key: Key) -> halite_fabric::WorkRequest<'static> {
    let remote = RemoteAddress { key, offset: 0 };
    request(id, Operation::FetchAdd { remote, add: 1 })
}

#[test]
fn a_dump_tells_the_story() {
    let (one, two) = pair();
    let (key, _) = register(&*two);
    let tracer = Tracer::new(one, 100);
    let segment = Segment::create("test", 8192, PagePolicy::Normal).unwrap();
    tracer.register(segment).unwrap();
    tracer.connect("elsewhere", b"");
    poll_events(&tracer);
    tracer.post(PEER, Lane::FIRST, &[send(1, b"hello"), add(2, Key(9)), add(3, key)]).unwrap();
    two.post(PEER, Lane::FIRST, &[send(1, b"answer")]).unwrap();
    poll(&tracer);
    tracer.cut_off(PEER);
    tracer.disconnect(PEER);
    tracer.post(PEER, Lane::FIRST, &[add(4, key)]).unwrap_err();
    poll_events(&tracer);
    tracer.close();
    let expected = "
     0 register key=0 len=8192
     1 connect address=elsewhere
     2 event connect_failed address=elsewhere reason=\"there is nobody else\"
     3 post peer=1 lane=0 send id=1 bytes=5
     4 post peer=1 lane=0 fetch_add id=2 bytes=8
     5 post peer=1 lane=0 fetch_add id=3 bytes=8
     6 complete peer=1 id=1 Success
     7 complete peer=1 id=2 RemoteAccess
     8 complete peer=1 id=3 Success
     9 received peer=1 imm=0 bytes=6
    10 cut_off peer=1 NotPermitted
    11 disconnect peer=1
    12 refused peer=1 not connected
    13 event disconnected peer=1
    14 event cut_off peer=1
    15 close
";
    assert_eq!(format!("\n{}", tracer.dump()), expected);
}

#[test]
fn only_the_last_steps_are_kept_but_all_are_counted() {
    let (one, two) = pair();
    let (key, _) = register(&*two);
    let tracer = Tracer::new(one, 2);
    for id in 0..10 {
        tracer.post(PEER, Lane::FIRST, &[send(id, b"four")]).unwrap();
    }
    tracer.post(PEER, Lane::FIRST, &[add(10, key), add(11, Key(9))]).unwrap();
    assert_eq!(
        tracer.dump(),
        "    10 post peer=1 lane=0 fetch_add id=10 bytes=8\n    11 post peer=1 lane=0 fetch_add id=11 bytes=8\n"
    );
    two.post(PEER, Lane::FIRST, &[send(0, b"seven..")]).unwrap();
    poll(&tracer);
    let counters = tracer.counters();
    let count = |count, bytes| Count { count, bytes };
    assert_eq!(counters.of(OperationKind::Send), count(10, 40));
    assert_eq!(counters.of(OperationKind::FetchAdd), count(2, 16));
    assert_eq!(counters.of(OperationKind::Write), count(0, 0));
    assert_eq!(counters.arrivals, count(1, 7));
    assert_eq!((counters.failures, counters.refused), (1, 0));
}

#[test]
fn a_clock_dates_the_steps() {
    let (one, _two) = pair();
    let now = AtomicU64::new(0);
    let tracer = Tracer::new(one, 10).with_clock(move || now.fetch_add(1500, Relaxed));
    tracer.post(PEER, Lane::FIRST, &[send(1, b"a"), send(2, b"b")]).unwrap();
    assert_eq!(
        tracer.dump(),
        "     0            0 ns post peer=1 lane=0 send id=1 bytes=1\n     1         1500 ns post peer=1 lane=0 send id=2 bytes=1\n"
    );
}

#[test]
fn a_tracer_without_room_still_counts() {
    let (one, _two) = pair();
    let tracer = Tracer::new(one, 0);
    tracer.post(PEER, Lane::FIRST, &[send(1, b"a")]).unwrap();
    assert_eq!(tracer.dump(), "");
    assert_eq!(tracer.counters().of(OperationKind::Send).count, 1);
}
