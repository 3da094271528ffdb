//! Several fabrics as one: whose peer is whose, what a key means, where an address leads, and who sleeps for all.

use crate::common;

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use common::scripted::{BATCH, Scripted};
use common::{End, PEER, pair, poll, poll_events, register, request, send};
use halite_fabric::trace::Tracer;
use halite_fabric::{
    Completion, CompletionKind, Composite, CompositeError, ConnectFailure, ConnectTrouble, CutOff, Event,
    Fabric, Key, Lane, Local, Operation, PeerId, PostCause, PostError, RegisterError, RemoteAddress, Sleeper,
    Status,
};
use halite_mem::{PagePolicy, Segment};

/// Turns a hang into a failure.
const PATIENCE: Duration = Duration::from_secs(30);

fn composite(one: &Arc<Scripted>, two: &Arc<Scripted>) -> Composite {
    Composite::new(vec![("one", one.clone()), ("two", two.clone())]).unwrap()
}

fn scripts() -> (Arc<Scripted>, Arc<Scripted>) {
    (Arc::new(Scripted::new("one")), Arc::new(Scripted::new("two")))
}

/// Two ends whose others are elsewhere, as one.
fn joined() -> (Composite, [Arc<End>; 2], [PeerId; 2]) {
    let ((near, far), (near_too, far_too)) = (pair(), pair());
    let parts: Vec<(_, Arc<dyn Fabric>)> = vec![("near", near), ("far", near_too)];
    let both = Composite::new(parts).unwrap();
    let others = [far, far_too];
    let who = |end: &End| {
        end.post(PEER, Lane::FIRST, &[send(1, b"who am I?")]).unwrap();
        poll(end);
        match &poll(&both)[..] {
            [Completion { peer, kind: CompletionKind::Received { .. }, .. }] => *peer,
            other => panic!("expected one message, got {other:?}"),
        }
    };
    let peers = [who(&others[0]), who(&others[1])];
    (both, others, peers)
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

/// What `both` calls `peer` of `part`.
fn meet(both: &Composite, part: &Scripted, peer: u32) -> PeerId {
    part.tell(connected(peer));
    match &poll_events(both)[..] {
        [Event::Connected { peer, .. }] => *peer,
        other => panic!("expected a connection, got {other:?}"),
    }
}

#[test]
fn each_peer_is_reached_by_the_fabric_that_it_came_from() {
    let (both, others, peers) = joined();
    assert_ne!(peers[0], peers[1], "either end calls it by the same number");
    for (index, peer) in peers.into_iter().enumerate() {
        both.post(peer, Lane::FIRST, &[send(7, b"only for you")]).unwrap();
        let ended = Completion {
            peer,
            status: Status::Success,
            kind: CompletionKind::Done { id: halite_fabric::WorkId(7) },
        };
        assert_eq!(poll(&both), [ended]);
        assert_eq!(poll(&*others[index]).len(), 1);
        assert!(poll(&*others[1 - index]).is_empty());
    }
    // The one goes, the other stays.
    both.disconnect(peers[1]);
    let left = [Event::Disconnected { peer: peers[1] }, Event::CutOff { peer: peers[1], exited: false }];
    assert_eq!(poll_events(&both), left);
    let refused = both.post(peers[1], Lane::FIRST, &[send(8, b"still there?")]).unwrap_err();
    assert_eq!(refused, PostError { peer: peers[1], posted: 0, cause: PostCause::NotConnected });
    both.post(peers[0], Lane::FIRST, &[send(8, b"still there?")]).unwrap();
}

#[test]
fn a_key_is_the_same_to_all_peers() {
    let (both, others, peers) = joined();
    let (_, first) = register(&both);
    let (key, second) = register(&both);
    assert_eq!(key, Key(1));
    for (end, offset) in others.iter().zip([0, 8]) {
        let remote = RemoteAddress { key, offset };
        let write = Operation::Write { local: Local::Inline(b"everyone"), remote };
        end.post(PEER, Lane::FIRST, &[request(1, write)]).unwrap();
    }
    let mut bytes = [0; 16];
    second.read(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"everyoneeveryone");
    first.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 16]);
    // And theirs is looked up where it is.
    let (theirs, window) = register(&*others[1]);
    window.write(0, b"far").unwrap();
    let direct = both.direct(peers[1], theirs).unwrap();
    let mut bytes = [0; 3];
    direct.read(0, &mut bytes).unwrap();
    assert_eq!((&bytes, both.direct(peers[0], theirs).is_none()), (b"far", true));
}

#[test]
fn peers_of_all_fabrics_have_numbers_of_their_own_in_every_event() {
    let (one, two) = scripts();
    let both = composite(&one, &two);
    let peers = [meet(&both, &one, 1), meet(&both, &one, 2), meet(&both, &two, 1), meet(&both, &two, 2)];
    assert_eq!(std::collections::BTreeSet::from(peers).len(), 4);
    for (index, part) in [&one, &two].into_iter().enumerate() {
        for (theirs, peer) in [(1, peers[2 * index]), (2, peers[2 * index + 1])] {
            let incarnation = |peer| {
                let (gone, off) = (Event::Disconnected { peer }, Event::CutOff { peer, exited: true });
                [notified(peer), Event::Room { peer }, gone, off]
            };
            incarnation(PeerId(theirs)).into_iter().for_each(|event| part.tell(event));
            assert_eq!(poll_events(&both), incarnation(peer));
        }
    }
}

#[test]
fn a_key_is_taken_back_when_all_fabrics_have_said_so() {
    let (one, two) = scripts();
    let both = composite(&one, &two);
    both.deregister(Key(0));
    assert_eq!((one.asked(), two.asked()), (vec![], vec![]), "it is no key yet");
    let key = both.register(segment()).unwrap();
    both.deregister(key);
    both.deregister(key);
    assert_eq!(
        (one.asked(), two.asked()),
        (vec!["deregister 0".to_owned()], vec!["deregister 0".to_owned()])
    );
    two.tell(Event::Deregistered { key });
    assert_eq!(poll_events(&both), []);
    one.tell(Event::Deregistered { key });
    assert_eq!(poll_events(&both), [Event::Deregistered { key }]);
    one.tell(Event::Deregistered { key });
    assert_eq!(poll_events(&both), [], "it is told once");
    assert_eq!(both.register(segment()).unwrap(), Key(1));
}

#[test]
fn a_part_that_wants_to_be_polled_first_says_when() {
    let (one, two) = scripts();
    let both = composite(&one, &two);
    assert_eq!(both.poll_timeout(), None);
    let [soon, late] = [1, 2].map(|ms| Some(Duration::from_millis(ms)));
    *two.poll_timeout.lock().unwrap() = late;
    assert_eq!(both.poll_timeout(), late);
    *one.poll_timeout.lock().unwrap() = soon;
    assert_eq!(both.poll_timeout(), soon);
}

#[test]
fn what_any_part_takes_in_is_traffic_also_behind_a_middleware() {
    let (one, two) = scripts();
    let both = Tracer::new(Arc::new(composite(&one, &two)), 1);
    let before = both.traffic();
    one.traffic.fetch_add(1, SeqCst);
    let after_one = both.traffic();
    two.traffic.fetch_add(1, SeqCst);
    assert!(before != after_one && after_one != both.traffic());
}

#[test]
fn what_is_asked_about_a_peer_is_asked_of_its_fabric() {
    let (one, two) = scripts();
    let both = composite(&one, &two);
    let peer = meet(&both, &two, 5);
    let capabilities = both.capabilities(peer);
    assert_eq!((capabilities.provider, capabilities.send_bytes_max), ("two", 5));
    let error = both.post(peer, Lane::FIRST, &[send(1, b""), send(2, b"")]).unwrap_err();
    assert_eq!(error, PostError { peer, posted: 1, cause: PostCause::QueueFull });
    assert!(both.direct(peer, Key(3)).is_none());
    assert_eq!(both.heard(peer), Some(Duration::from_micros(7)));
    assert_eq!(both.round_trip(peer), Some(Duration::from_micros(9)));
    assert_eq!(both.cut_off(peer), CutOff::Started);
    both.warn(peer, "go");
    both.disconnect(peer);
    both.arm(Some(Sleeper::Progress));
    both.close();
    let asked = [
        "post 2 to 5",
        "direct 5 3",
        "heard 5",
        "round trip 5",
        "cut off 5",
        "warn 5: go",
        "disconnect 5",
        "arm Some(Progress)",
        "close",
    ];
    assert_eq!(two.asked(), asked);
    assert_eq!(one.asked(), ["arm Some(Progress)", "close"]);
    assert_eq!(both.providers(), ["one", "two"]);
}

#[test]
fn a_number_that_no_fabric_gave_is_nobody() {
    let (one, two) = scripts();
    let both = composite(&one, &two);
    let nobody = PeerId(u32::MAX);
    let error = both.post(nobody, Lane::FIRST, &[send(1, b"")]).unwrap_err();
    assert_eq!((error.peer, error.cause), (nobody, PostCause::NotConnected));
    assert!(both.direct(nobody, Key(0)).is_none());
    assert_eq!((both.heard(nobody), both.round_trip(nobody)), (None, None));
    assert_eq!(both.cut_off(nobody), CutOff::Done);
    both.disconnect(nobody);
    both.warn(nobody, "");
    assert_eq!((one.asked(), two.asked()), (vec![], vec![]));
}

#[test]
fn an_address_says_which_fabric_and_a_plain_one_means_the_first() {
    let (one, two) = scripts();
    let both = composite(&one, &two);
    for address in ["node-3.sock", "one:node-4.sock", "two:host:7000", "three:host"] {
        both.connect(address, b"hi");
    }
    assert_eq!(one.asked(), ["connect node-3.sock hi", "connect node-4.sock hi"]);
    assert_eq!(two.asked(), ["connect host:7000 hi"]);
    let failed = |address: &str, reason: &str| {
        let (address, reason) = (address.to_owned(), reason.to_owned());
        Event::ConnectFailed(ConnectFailure { address, reason, trouble: ConnectTrouble::Theirs })
    };
    let unknown = failed("three:host", "no network is called \"three\" here, only one, two");
    assert_eq!(poll_events(&both), [unknown]);
    // A failure says what could be tried again.
    one.tell(failed("node-3.sock", "nobody there"));
    two.tell(failed("host:7000", "nobody there"));
    let expected = [failed("node-3.sock", "nobody there"), failed("two:host:7000", "nobody there")];
    assert_eq!(poll_events(&both), expected);
}

#[test]
fn an_unknown_network_wakes_who_waits_for_the_connection() {
    let (one, two) = scripts();
    let both = composite(&one, &two);
    let seen = both.doorbell();
    both.connect("three:host", b"");
    both.wait(Sleeper::Progress, seen, None);
    assert_eq!(poll_events(&both).len(), 1);
}

#[test]
fn a_flood_by_one_fabric_starves_no_other_and_keeps_its_order() {
    let (one, two) = scripts();
    let both = composite(&one, &two);
    let (loud, calm) = (meet(&both, &one, 1), meet(&both, &two, 1));
    for imm in 0..100 {
        let kind = CompletionKind::Notified { imm };
        one.tell(Event::Completed(Completion { peer: PeerId(1), status: Status::Success, kind }));
    }
    two.tell(notified(PeerId(1)));
    let events = poll_events(&both);
    assert_eq!((events.len(), events.last()), (BATCH + 1, Some(&notified(calm))));
    let mut heard = Vec::new();
    let mut events = events[..BATCH].to_vec();
    while !events.is_empty() {
        heard.extend(events.into_iter().map(|event| event.into_completion().unwrap()));
        events = poll_events(&both);
    }
    let imms = heard.iter().map(|completion| match completion.kind {
        CompletionKind::Notified { imm } if completion.peer == loud => imm,
        _ => panic!("expected a notice of the loud one, got {completion:?}"),
    });
    assert!(imms.eq(0..100));
}

#[test]
fn a_peer_beyond_the_numbers_of_its_fabric_is_turned_away() {
    let (one, two) = scripts();
    let both = composite(&one, &two);
    let beyond = 1 << 30;
    two.tell(connected(beyond));
    two.tell(notified(PeerId(beyond)));
    match &poll_events(&both)[..] {
        [Event::ConnectFailed(failure)] => {
            assert!(failure.trouble == ConnectTrouble::Ours && failure.address == "two:host")
        }
        other => panic!("expected that it is not connected, got {other:?}"),
    }
    assert_eq!(two.asked(), [format!("disconnect {beyond}")]);
    meet(&both, &two, beyond - 1);
}

#[test]
fn a_segment_that_one_fabric_refuses_shifts_no_key() {
    let (one, two) = scripts();
    let both = composite(&one, &two);
    assert_eq!(both.register(segment()).unwrap(), Key(0));
    two.refuses.store(true, SeqCst);
    for _ in 0..3 {
        let refused = both.register(segment()).unwrap_err();
        assert!(matches!(refused, RegisterError::TooManyKeys { max: 7 }), "{refused}");
    }
    assert_eq!(one.segments().len(), 2, "what cannot be registered everywhere is held at most once");
    two.refuses.store(false, SeqCst);
    let last = segment();
    let key = both.register(last.clone()).unwrap();
    for part in [&one, &two] {
        assert!(Arc::ptr_eq(&part.segments()[key.0 as usize], &last));
    }
    // Who refuses first has nothing to make up for.
    one.refuses.store(true, SeqCst);
    both.register(segment()).unwrap_err();
    one.refuses.store(false, SeqCst);
    assert_eq!(both.register(segment()).unwrap(), Key(key.0 + 1));
}

#[test]
#[cfg_attr(debug_assertions, should_panic(expected = "cannot register a segment: two calls it Key(5)"))]
fn a_fabric_that_counts_keys_otherwise_is_found_out() {
    let one = Arc::new(Scripted::new("one"));
    let two = Arc::new(Scripted::new("two").with_first_key(5));
    let both = composite(&one, &two);
    for _ in 0..2 {
        let refused = both.register(segment()).unwrap_err().to_string();
        assert_eq!(refused, "cannot register a segment: two calls it Key(5), where Key(0) was to come");
    }
}

#[test]
fn only_fabrics_that_can_be_told_apart_and_slept_for_become_one() {
    let part = |name| -> (&'static str, Arc<dyn Fabric>) { (name, Arc::new(Scripted::new("x"))) };
    let silent = || Arc::new(Scripted::new("x").silent());
    let refused = |parts| Composite::new(parts).err().expect("they cannot become one");
    assert!(matches!(refused(vec![]), CompositeError::Parts { parts: 0 }));
    let five = ["a", "b", "c", "d", "e"].map(part);
    assert!(matches!(refused(five.into()), CompositeError::Parts { parts: 5 }));
    for bad in ["", "a:b", "a"] {
        let error = refused(vec![part("a"), part(bad)]);
        assert!(matches!(error, CompositeError::Name { name } if name == bad), "{error}");
    }
    let error = refused(vec![part("a"), ("b", silent())]);
    assert!(matches!(error, CompositeError::NoDescriptor { name: "b" }), "{error}");
    // One alone sleeps as it likes, and is all that there is.
    let (end, _other) = pair();
    let alone = Composite::new(vec![("alone", end.clone())]).unwrap();
    let seen = alone.doorbell();
    end.wake();
    alone.wait(Sleeper::Progress, seen, None);
    assert!(Composite::new(vec![("alone", silent())]).is_ok());
}

#[test]
fn every_sleeper_is_woken_by_each_fabric_and_no_ring_is_lost() {
    const ROUNDS: u32 = 2_000;
    let (one, two) = scripts();
    let both = Arc::new(composite(&one, &two));
    let (round, done) = (std::sync::Barrier::new(4), std::sync::Barrier::new(4));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    let seen = both.doorbell();
                    round.wait();
                    // It may wake early, so it looks again.  A lost ring shows as a wait that lasts for ever.
                    let begin = std::time::Instant::now();
                    while both.doorbell() == seen {
                        assert!(begin.elapsed() < PATIENCE, "a ring was lost");
                        both.wait(Sleeper::Progress, seen, Some(PATIENCE));
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
fn each_kind_of_sleeper_is_woken_by_what_comes_for_it_alone() {
    let (one, two) = scripts();
    let both = composite(&one, &two);
    let sleeps = |kind, long| {
        let begin = std::time::Instant::now();
        both.wait(kind, both.doorbell(), Some(long));
        begin.elapsed() >= long
    };
    let short = Duration::from_millis(20);
    for part in [&one, &two] {
        for (kind, other) in [(Sleeper::Progress, Sleeper::Caller), (Sleeper::Caller, Sleeper::Progress)] {
            part.ring_for(kind);
            assert!(sleeps(other, short), "{other:?} was woken by what came for {kind:?}");
            let taken = [&one, &two].map(|part| part.edges_taken(kind));
            assert!(!sleeps(kind, PATIENCE), "{kind:?} was not woken");
            let each = [&one, &two].map(|part| part.edges_taken(kind));
            assert_eq!(each, taken.map(|taken| taken + 1), "a part watches for one edge at a time");
            assert!(sleeps(kind, short), "it was woken twice");
        }
    }
}

#[test]
fn a_sleep_ends_with_its_time() {
    let (one, two) = scripts();
    let both = composite(&one, &two);
    both.wait(Sleeper::Progress, both.doorbell(), Some(Duration::from_micros(200)));
    // Of two who sleep, the one who watches may go first: the other one watches then.
    let seen = both.doorbell();
    std::thread::scope(|scope| {
        let long = scope.spawn(|| {
            let begin = std::time::Instant::now();
            while both.doorbell() == seen {
                assert!(begin.elapsed() < PATIENCE, "a ring was lost");
                both.wait(Sleeper::Progress, seen, Some(PATIENCE));
            }
        });
        for _ in 0..100 {
            both.wait(Sleeper::Progress, seen, Some(Duration::from_micros(50)));
        }
        two.wake();
        long.join().unwrap();
    });
}
