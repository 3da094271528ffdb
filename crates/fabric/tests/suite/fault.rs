//! What the fault injector makes of a fabric that never fails by itself.

use crate::common;

use common::{PEER, pair, poll, poll_events, poll_ids, register, request, send};
use halite_fabric::fault::{Fault, FaultInjector, FaultPlan, Moment, Rule};
use halite_fabric::kind::OperationKind;
use halite_fabric::{
    Atomics, Completion, CompletionKind, Event, Fabric, Key, Lane, Local, Operation, PostCause,
    RemoteAddress, Sleeper, Status, WorkId, WorkRequest,
};

const SEND: Moment = Moment::Post(OperationKind::Send);

fn plan(rule: Rule) -> FaultPlan {
    FaultPlan::new(1).rule(rule)
}

fn add(id: u64, key: Key) -> WorkRequest<'static> {
    let remote = RemoteAddress { key, offset: 0 };
    request(id, Operation::FetchAdd { remote, add: 1 })
}

#[test]
fn without_rules_everything_passes_but_direct_access() {
    let (one, two) = pair();
    let (key, word) = register(&*two);
    let faulty = FaultInjector::new(one.clone(), FaultPlan::new(0));
    assert!(one.capabilities(PEER).direct && !faulty.capabilities(PEER).direct);
    assert!(one.direct(PEER, key).is_some() && faulty.direct(PEER, key).is_none());
    // Names of requests need not be unique, and come back as they were.
    faulty.post(PEER, Lane::FIRST, &[add(5, key), add(5, key), send(9, b"hi")]).unwrap();
    let ends = poll(&faulty);
    let old = |old| CompletionKind::Atomic { id: WorkId(5), old };
    let kinds: Vec<_> = ends.into_iter().map(|end| end.kind).collect();
    assert_eq!(kinds, [old(0), old(1), CompletionKind::Done { id: WorkId(9) }]);
    assert_eq!(word.load_u64(0), Ok(2));
    assert_eq!(poll(&*two).len(), 1);
}

#[test]
fn a_fabric_without_atomics_takes_none() {
    let (one, two) = pair();
    let (key, word) = register(&*two);
    let faulty = FaultInjector::new(one.clone(), FaultPlan::new(0)).without_atomics();
    let offered = [one.capabilities(PEER).atomics, faulty.capabilities(PEER).atomics];
    assert_eq!(offered, [Atomics::Processor, Atomics::None]);
    let refused = faulty.post(PEER, Lane::FIRST, &[send(1, b"hi"), add(2, key)]).unwrap_err();
    assert_eq!((refused.posted, refused.cause), (1, PostCause::Malformed));
    assert_eq!((poll_ids(&faulty), word.load_u64(0)), (vec![(1, Status::Success)], Ok(0)));
}

#[test]
fn unsignalled_requests_stay_so() {
    let (one, two) = pair();
    let (key, _) = register(&*two);
    let faulty = FaultInjector::new(one, FaultPlan::new(0));
    let quiet = |request| WorkRequest { signalled: false, ..request };
    let requests = [quiet(add(1, key)), quiet(add(2, Key(9))), add(3, key)];
    faulty.post(PEER, Lane::FIRST, &requests).unwrap();
    // Only failures speak up.
    assert_eq!(poll_ids(&faulty), [(2, Status::RemoteAccess), (3, Status::Success)]);
}

#[test]
fn a_delayed_completion_holds_up_those_behind_it() {
    let (one, _two) = pair();
    let rule = Rule::new(SEND, Fault::Delay { polls: 2 }).times(1);
    let faulty = FaultInjector::new(one, plan(rule));
    faulty.post(PEER, Lane::FIRST, &[send(1, b"late"), send(2, b"behind")]).unwrap();
    assert_eq!(poll_ids(&faulty), []);
    assert_eq!(poll_ids(&faulty), []);
    // A waiter is sent back to poll: the test fabric would not let us sleep.
    faulty.wait(Sleeper::Caller, faulty.doorbell(), None);
    assert_eq!(poll_ids(&faulty), [(1, Status::Success), (2, Status::Success)]);
}

#[test]
fn a_request_may_fail_though_it_was_done() {
    let (one, two) = pair();
    let (key, word) = register(&*two);
    for (done, value) in [(false, 0), (true, 1)] {
        let status = Status::RetryExceeded;
        let rule = Rule::new(Moment::AnyPost, Fault::Fail { status, done });
        let faulty = FaultInjector::new(one.clone(), plan(rule));
        let seen = faulty.doorbell();
        faulty.post(PEER, Lane::FIRST, &[add(1, key)]).unwrap();
        // Without anybody at the other end, the injector must ring for what it made up.
        assert!(done || faulty.doorbell() != seen);
        let ends = poll(&faulty);
        assert_eq!(ends.len(), 1);
        assert_eq!(ends[0].status, status);
        assert_eq!(ends[0].kind, CompletionKind::Done { id: WorkId(1) });
        assert_eq!(word.load_u64(0), Ok(value));
    }
}

#[test]
fn arrivals_can_be_lost_or_late() {
    let (one, two) = pair();
    let lost = Rule::new(Moment::Arrival, Fault::Drop).times(1);
    let late = Rule::new(Moment::Arrival, Fault::Delay { polls: 1 }).times(1);
    let faulty = FaultInjector::new(two, FaultPlan::new(0).rule(lost).rule(late));
    let texts: [&[u8]; 3] = [b"lost", b"late", b"behind"];
    one.post(PEER, Lane::FIRST, &texts.map(|text| send(0, text))).unwrap();
    assert_eq!(poll(&faulty), []);
    let arrived: Vec<_> = poll(&faulty).into_iter().map(|arrival| arrival.kind).collect();
    let received = |text: &[u8]| CompletionKind::Received { bytes: text.to_vec(), imm: 0 };
    assert_eq!(arrived, [received(b"late"), received(b"behind")]);
}

#[test]
fn a_full_queue_empties_after_so_many_tries() {
    let (one, two) = pair();
    let rule = Rule::new(SEND, Fault::QueueFull).after(1).times(2);
    let faulty = FaultInjector::new(one, plan(rule));
    let requests = [send(1, b"a"), send(2, b"b")];
    let error = faulty.post(PEER, Lane::FIRST, &requests).unwrap_err();
    assert_eq!((error.posted, error.cause), (1, PostCause::QueueFull));
    assert!(poll_events(&faulty).contains(&Event::Room { peer: PEER }));
    assert!(faulty.post(PEER, Lane::FIRST, &requests[1..]).is_err());
    faulty.post(PEER, Lane::FIRST, &requests[1..]).unwrap();
    assert_eq!(poll(&*two).len(), 2);
}

#[test]
fn a_peer_can_be_lost_after_so_many_operations() {
    let (one, two) = pair();
    let rule = Rule::new(Moment::AnyPost, Fault::Disconnect).after(2).times(1);
    let faulty = FaultInjector::new(one, plan(rule));
    let requests = [send(1, b"a"), send(2, b"b"), send(3, b"c")];
    let error = faulty.post(PEER, Lane::FIRST, &requests).unwrap_err();
    assert_eq!((error.posted, error.cause), (2, PostCause::NotConnected));
    let end = [Event::Disconnected { peer: PEER }, Event::CutOff { peer: PEER, exited: false }];
    assert_eq!(poll_events(&*two)[2..], end);
    // What was posted before still completes, exactly once, and before the end.
    let told = poll_events(&faulty);
    let ids: Vec<_> = told[..2]
        .iter()
        .map(|event| match event {
            Event::Completed(Completion { status, kind: CompletionKind::Done { id }, .. }) => (id.0, *status),
            event => panic!("expected the end of a request, got {event:?}"),
        })
        .collect();
    assert_eq!(ids, [(1, Status::Success), (2, Status::Success)]);
    assert_eq!(told[2..], end);
}

#[test]
fn a_request_that_the_fabric_refuses_leaves_nothing_behind() {
    let (one, two) = pair();
    let (key, _) = register(&*two);
    one.disconnect(PEER);
    let faulty = FaultInjector::new(one, FaultPlan::new(0));
    let remote = RemoteAddress { key, offset: 0 };
    let local = Local::Inline(b"x");
    let write = request(1, Operation::Write { local, remote });
    let error = faulty.post(PEER, Lane::FIRST, &[write]).unwrap_err();
    assert_eq!((error.posted, error.cause), (0, PostCause::NotConnected));
    assert_eq!(poll(&faulty), []);
}
