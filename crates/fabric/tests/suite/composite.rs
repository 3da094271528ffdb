//! Several fabrics combined into one: ids of peers, keys, addresses, and sleepers.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use halite_fabric::{
    Completion, CompletionKind, Composite, CompositeError, ConnectFailure, ConnectTrouble, Event, Fabric,
    Key, PeerId, RegisterError, Sleeper, Status,
};
use halite_mem::{PagePolicy, Segment};

use crate::scripted::Scripted;

/// Time limit after which a hang becomes a failure.
const WAIT_MAX: Duration = Duration::from_secs(30);

fn composite(one: &Arc<Scripted>, two: &Arc<Scripted>) -> Composite {
    Composite::new(vec![("one", one.clone()), ("two", two.clone())]).unwrap()
}

fn scripted_pair() -> (Arc<Scripted>, Arc<Scripted>) {
    (Arc::new(Scripted::new("one")), Arc::new(Scripted::new("two")))
}

fn poll_events(fabric: &dyn Fabric) -> Vec<Event> {
    let mut events = Vec::new();
    let count = fabric.poll(&mut events);
    assert_eq!(count, events.len());
    events
}

fn segment() -> Arc<Segment> {
    Segment::create("test", 4096, PagePolicy::Normal).unwrap()
}

fn connected(peer: u32) -> Event {
    Event::Connected { peer: PeerId(peer), hello: b"hello".to_vec(), dialled: Some("host".to_owned()) }
}

fn notified(peer: PeerId) -> Event {
    let kind = CompletionKind::Notified { imm: 0 };
    Event::Completed(Completion { peer, status: Status::Success, kind })
}

/// Connects `peer` of `part`, and returns its id in `both`.
fn connect_peer(both: &Composite, part: &Scripted, peer: u32) -> PeerId {
    part.add_event(connected(peer));
    match &poll_events(both)[..] {
        [Event::Connected { peer, .. }] => *peer,
        other => panic!("expected a connection, got {other:?}"),
    }
}

#[test]
fn events_have_the_composites_id_of_the_peer() {
    let (one, two) = scripted_pair();
    let both = composite(&one, &two);
    let peers = [
        connect_peer(&both, &one, 1),
        connect_peer(&both, &one, 2),
        connect_peer(&both, &two, 1),
        connect_peer(&both, &two, 2),
    ];
    assert_eq!(BTreeSet::from(peers).len(), 4);
    for (index, part) in [&one, &two].into_iter().enumerate() {
        for (theirs, peer) in [(1, peers[2 * index]), (2, peers[2 * index + 1])] {
            let lifetime_events = |peer| {
                let (disconnected, cut_off) =
                    (Event::Disconnected { peer }, Event::CutOff { peer, exited: true });
                [notified(peer), Event::Room { peer }, disconnected, cut_off]
            };
            lifetime_events(PeerId(theirs)).into_iter().for_each(|event| part.add_event(event));
            assert_eq!(poll_events(&both), lifetime_events(peer));
        }
    }
}

#[test]
fn a_key_is_deregistered_after_all_fabrics_confirm() {
    let (one, two) = scripted_pair();
    let both = composite(&one, &two);
    both.deregister(Key(0));
    assert_eq!((one.take_requests(), two.take_requests()), (vec![], vec![]), "the key is not registered yet");
    let key = both.register(segment()).unwrap();
    both.deregister(key);
    both.deregister(key);
    assert_eq!(
        (one.take_requests(), two.take_requests()),
        (vec!["deregister 0".to_owned()], vec!["deregister 0".to_owned()])
    );
    two.add_event(Event::Deregistered { key });
    assert_eq!(poll_events(&both), []);
    one.add_event(Event::Deregistered { key });
    assert_eq!(poll_events(&both), [Event::Deregistered { key }]);
    one.add_event(Event::Deregistered { key });
    assert_eq!(poll_events(&both), [], "the event is reported once");
    assert_eq!(both.register(segment()).unwrap(), Key(1));
}

#[test]
fn an_address_selects_a_fabric() {
    let (one, two) = scripted_pair();
    let both = composite(&one, &two);
    for address in ["node-3.sock", "one:node-4.sock", "two:host:7000", "three:host"] {
        both.connect(address, b"hi");
    }
    assert_eq!(one.take_requests(), ["connect node-3.sock hi", "connect node-4.sock hi"]);
    assert_eq!(two.take_requests(), ["connect host:7000 hi"]);
    let failed = |address: &str, reason: &str| {
        let (address, reason) = (address.to_owned(), reason.to_owned());
        Event::ConnectFailed(ConnectFailure { address, reason, trouble: ConnectTrouble::Theirs })
    };
    let unknown = failed("three:host", "there is no network \"three\"; the networks are: one, two");
    assert_eq!(poll_events(&both), [unknown]);
    // The reported address can be dialled again.
    one.add_event(failed("node-3.sock", "no listener"));
    two.add_event(failed("host:7000", "no listener"));
    let expected = [failed("node-3.sock", "no listener"), failed("two:host:7000", "no listener")];
    assert_eq!(poll_events(&both), expected);
}

#[test]
fn keys_stay_equal_after_a_refused_registration() {
    let (one, two) = scripted_pair();
    let both = composite(&one, &two);
    assert_eq!(both.register(segment()).unwrap(), Key(0));
    two.refuses.store(true, SeqCst);
    for _ in 0..3 {
        let refused = both.register(segment()).unwrap_err();
        assert!(matches!(refused, RegisterError::TooManyKeys { max: 7 }), "{refused}");
    }
    assert_eq!(one.segments().len(), 2, "the composite keeps at most one segment without use");
    two.refuses.store(false, SeqCst);
    let last = segment();
    let key = both.register(last.clone()).unwrap();
    for part in [&one, &two] {
        assert!(Arc::ptr_eq(&part.segments()[key.0 as usize], &last));
    }
    // If the first part refuses, no other part has used an ordinal.
    one.refuses.store(true, SeqCst);
    both.register(segment()).unwrap_err();
    one.refuses.store(false, SeqCst);
    assert_eq!(both.register(segment()).unwrap(), Key(key.0 + 1));
}

#[test]
fn unsuitable_parts_are_refused() {
    let part = |name| -> (&'static str, Arc<dyn Fabric>) { (name, Arc::new(Scripted::new("x"))) };
    let without_descriptors = || Arc::new(Scripted::new("x").without_descriptors());
    let refused = |parts| Composite::new(parts).err().expect("the parts are unsuitable");
    assert!(matches!(refused(vec![]), CompositeError::Parts { parts: 0 }));
    let five = ["a", "b", "c", "d", "e"].map(part);
    assert!(matches!(refused(five.into()), CompositeError::Parts { parts: 5 }));
    for bad in ["", "a:b", "a"] {
        let error = refused(vec![part("a"), part(bad)]);
        assert!(matches!(error, CompositeError::Name { name } if name == bad), "{error}");
    }
    let error = refused(vec![part("a"), ("b", without_descriptors())]);
    assert!(matches!(error, CompositeError::NoDescriptor { name: "b" }), "{error}");
    assert!(Composite::new(vec![("alone", without_descriptors())]).is_ok());
}

#[test]
fn each_fabric_wakes_every_sleeper() {
    const ROUNDS: u32 = 2_000;
    let (one, two) = scripted_pair();
    let both = Arc::new(composite(&one, &two));
    let (round, done) = (std::sync::Barrier::new(4), std::sync::Barrier::new(4));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    let seen = both.doorbell();
                    round.wait();
                    // A sleeper may wake early, so it checks again. If a ring is lost, it waits until the time limit.
                    let begin = std::time::Instant::now();
                    while both.doorbell() == seen {
                        assert!(begin.elapsed() < WAIT_MAX, "a ring was lost");
                        both.wait(Sleeper::Progress, seen, Some(WAIT_MAX));
                    }
                    done.wait();
                }
            });
        }
        for number in 0..ROUNDS {
            round.wait();
            if number % 2 == 0 {
                one.wake()
            } else {
                two.wake()
            }
            done.wait();
        }
    });
}

#[test]
fn each_kind_of_sleeper_is_woken_alone() {
    let (one, two) = scripted_pair();
    let both = composite(&one, &two);
    let sleeps = |kind, duration| {
        let begin = std::time::Instant::now();
        both.wait(kind, both.doorbell(), Some(duration));
        begin.elapsed() >= duration
    };
    let short = Duration::from_millis(20);
    for part in [&one, &two] {
        for (kind, other) in [(Sleeper::Progress, Sleeper::Caller), (Sleeper::Caller, Sleeper::Progress)] {
            part.ring_for(kind);
            assert!(sleeps(other, short), "{other:?} was woken by a ring for {kind:?}");
            let taken = [&one, &two].map(|part| part.edges_taken(kind));
            assert!(!sleeps(kind, WAIT_MAX), "{kind:?} was not woken");
            let each = [&one, &two].map(|part| part.edges_taken(kind));
            assert_eq!(
                each,
                taken.map(|taken| taken + 1),
                "each part learns once that the edge was consumed"
            );
            assert!(sleeps(kind, short), "one ring woke the sleeper twice");
        }
    }
}
