//! Callers and servers die and stop in the middle of calls: waiters are told, and the others are served on.

use std::future::Future;
use std::task::{Context, Waker};
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;
use halite::blocking::Session;
use halite::{CallCause, CallError, Function, NodeId, ReplyCause, ServeOptions};

use super::cluster::{Cluster, NEWS, PATIENCE, Process};
use super::coming_and_going::{private, settled};
use super::role::say;

const FUNCTION: Function = Function(7);
const SERVER: NodeId = NodeId(1);
/// Short ones, those that the server reads from the caller's memory, and what comes back likewise.
const LENS: [u64; 5] = [0, 100, 5000, 60_000, 300_000];

/// What a process does that is told to `serve`: `echo`, or `hold` what it takes, or `leave` it in the queue.
pub fn serve(session: &Session, function: u32, how: &str) -> String {
    let server = session.serve(Function(function), ServeOptions::default()).expect("nobody else serves it");
    let how = how.to_owned();
    thread::spawn(move || {
        let mut held = Vec::new();
        if how == "leave" {
            loop {
                thread::park();
            }
        }
        while let Ok(call) = server.recv() {
            if how == "hold" {
                say(NEWS, "taken");
                held.push(call);
                continue;
            }
            let answer = call.input().to_vec();
            // Its caller may have been killed.
            let _ = call.reply(&answer);
        }
    });
    "ok".to_owned()
}

/// Calls that come back whole, or the cause.
pub fn call(session: &Session, node: u32, function: u32, len: u64) -> Result<(), CallCause> {
    let input = vec![len as u8; len as usize];
    let answer = session.call(NodeId(node), Function(function), &input, PATIENCE);
    let answer = answer.map_err(|error| error.cause)?;
    assert!(answer == input, "another answer than that of the call");
    Ok(())
}

/// Calls from several threads without an end.
pub fn burst(session: &Session, node: u32, function: u32) -> String {
    for seed in 0..3 {
        let session = session.clone();
        thread::spawn(move || {
            let mut numbers = Rng::with_seed(seed);
            let mut begun = false;
            while call(&session, node, function, LENS[numbers.u64(0..LENS.len() as u64) as usize]).is_ok() {
                if !begun {
                    say(NEWS, "begun");
                }
                begun = true;
            }
        });
    }
    "ok".to_owned()
}

#[test]
fn a_call_ends_with_its_server_before_and_during_the_handler() {
    for how in ["leave", "hold"] {
        let cluster = Cluster::new();
        let node = cluster.join(0);
        let mut server = cluster.start(1);
        server.order(&format!("serve 7 {how}"));
        thread::scope(|scope| {
            let callers: Vec<_> = LENS
                .map(|len| {
                    let session = node.blocking_session();
                    scope.spawn(move || call(&session, 1, 7, len))
                })
                .into_iter()
                .collect();
            if how == "hold" {
                LENS.iter().for_each(|_| assert_eq!(server.news(), "taken"));
            }
            server.kill();
            for caller in callers {
                // Without a handler, the call may come after the death, too.
                let cause = caller.join().expect("no panic").unwrap_err();
                assert!([CallCause::PeerDown, CallCause::UnknownNode].contains(&cause), "{cause}");
            }
        });
        let mut next = cluster.start(2);
        next.order("serve 7 echo");
        assert_eq!(call(&node.blocking_session(), 2, 7, 100_000), Ok(()));
    }
}

/// A process that has joined without a number, and serves; and which number it was given.
fn application(cluster: &Cluster, how: &str) -> (Process, u32) {
    let mut process = Process::start("application");
    process.order(&cluster.join_line("any"));
    process.order(&format!("serve 7 {how}"));
    let node = process.ask("id").parse().expect("a number");
    (process, node)
}

/// A call that is taken and held by `server`, which is then killed.
fn call_and_kill(session: &Session, server: &mut Process, node: u32) -> CallError {
    thread::scope(|scope| {
        let caller = scope.spawn(|| session.call(NodeId(node), FUNCTION, b"", PATIENCE));
        assert_eq!(server.news(), "taken");
        server.kill();
        caller.join().expect("no panic").expect_err("nobody answers")
    })
}

#[test]
fn a_call_that_is_tried_again_after_its_application_was_killed_reaches_no_stranger() {
    let cluster = Cluster::new();
    let node = cluster.join(0);
    let session = node.blocking_session();
    let mut strangers = Vec::new();
    for _ in 0..3 {
        let (mut server, number) = application(&cluster, "hold");
        let ended = call_and_kill(&session, &mut server, number);
        assert_eq!((ended.cause, ended.may_have_run), (CallCause::PeerDown, true), "{ended}");
        // A node that joins now would answer.
        strangers.push(application(&cluster, "echo"));
        for (_, stranger) in &strangers {
            assert_ne!(*stranger, number);
            assert_eq!(call(&session, *stranger, 7, 100), Ok(()));
        }
        let again = session.call(NodeId(number), FUNCTION, b"", PATIENCE).expect_err("nobody is there");
        assert_eq!((again.cause, again.may_have_run), (CallCause::PeerDown, false), "{again}");
    }
}

#[test]
fn a_call_ends_with_the_incarnation_that_it_was_sent_to_and_the_next_is_that_of_who_has_the_number_now() {
    let cluster = Cluster::new();
    let node = cluster.join(0);
    let session = node.blocking_session();
    let mut server = cluster.start(1);
    server.order("serve 7 hold");
    let ended = call_and_kill(&session, &mut server, 1);
    assert_eq!((ended.cause, ended.may_have_run), (CallCause::PeerDown, true), "{ended}");
    let call_again = || session.call(SERVER, FUNCTION, b"", PATIENCE);
    let gone = call_again().expect_err("nobody is there");
    assert_eq!((gone.cause, gone.may_have_run), (CallCause::PeerDown, false), "{gone}");
    // The same number, another incarnation, which has not begun to serve.
    let mut next = cluster.start(1);
    let anew = call_again().expect_err("nobody serves");
    assert_eq!((anew.cause, anew.may_have_run), (CallCause::UnknownFunction, false), "{anew}");
    next.order("serve 7 echo");
    assert_eq!(call_again(), Ok(Vec::new()));
}

#[test]
fn an_answer_of_a_server_that_died_is_whole_or_none() {
    let cluster = Cluster::new();
    let node = cluster.join(0);
    for round in 0..10 {
        let mut server = cluster.start(1);
        server.order("serve 7 echo");
        thread::scope(|scope| {
            let callers: Vec<_> = LENS
                .map(|len| {
                    let session = node.blocking_session();
                    scope.spawn(move || (0..).find_map(|_| call(&session, 1, 7, len).err()))
                })
                .into_iter()
                .collect();
            let session = node.blocking_session();
            for _ in 0..round * 5 {
                let _ = call(&session, 1, 7, 100);
            }
            server.kill();
            for caller in callers {
                let cause = caller.join().expect("no panic").expect("it ends with the server");
                assert!([CallCause::PeerDown, CallCause::UnknownNode].contains(&cause), "{cause}");
            }
        });
    }
}

#[test]
fn a_handler_whose_caller_was_killed_is_told_and_serves_the_next() {
    let cluster = Cluster::new();
    let node = cluster.join(0);
    let session = node.blocking_session();
    let server = session.serve(FUNCTION, ServeOptions::default()).expect("nobody else serves it");
    for len in LENS {
        let mut client = cluster.start(1);
        client.say(&format!("call 0 7 {len}"));
        let call = server.recv().expect("it is open");
        client.kill();
        let deadline = Instant::now() + PATIENCE;
        while call.is_wanted() {
            assert!(Instant::now() < deadline, "the handler never learns of its caller's death");
        }
        let refused = call.reply(&vec![1; len as usize]).expect_err("nobody waits");
        assert_eq!(refused.cause, ReplyCause::CallerGone);
        let mut next = cluster.start(2);
        next.say(&format!("call 0 7 {len}"));
        let call = server.recv().expect("it is open");
        let answer = call.input().to_vec();
        call.reply(&answer).expect("it waits");
        assert_eq!(next.hear(), "ok");
        next.leave();
    }
}

#[test]
#[ignore = "measures: .ci/deep slow"]
fn callers_that_are_killed_in_the_middle_of_a_burst_leave_nothing_behind() {
    const ROUNDS: usize = 24;
    const WARM_UP: usize = 8;
    let cluster = Cluster::new();
    let mut server = cluster.start(0);
    server.order("serve 7 echo");
    let mut steady = cluster.start(1);
    let before = settled(&mut server, None);
    let mut private_warm = 0;
    for round in 0..ROUNDS {
        if round == WARM_UP {
            private_warm = private(&mut server);
        }
        let mut client = Process::start("killed");
        client.order(&cluster.join_line("any"));
        client.order("burst 0 7");
        assert_eq!(client.news(), "begun");
        steady.order("call 0 7 5000");
        client.kill();
        steady.order("call 0 7 300000");
    }
    let after = settled(&mut server, Some(&before));
    let growth = private(&mut server).saturating_sub(private_warm);
    eprintln!("held: {before} before, {after} after; private memory grew by {growth} bytes");
    assert!(growth < 1 << 20, "{growth} bytes of private memory were not given back");
}

#[test]
fn a_stopped_server_costs_its_callers_the_deadline_and_answers_when_it_goes_on() {
    let mut cluster = Cluster::new();
    // It is stopped for much less than that, and nobody takes it for dead.
    cluster.config.lease = PATIENCE;
    let node = cluster.join(0);
    let session = node.blocking_session();
    let mut server = cluster.start(1);
    server.order("serve 7 echo");
    let mut other = cluster.start(2);
    other.order("serve 7 echo");
    assert_eq!(call(&session, 1, 7, 5000), Ok(()));
    server.stop();
    let begin = Instant::now();
    for len in LENS {
        let late = session.call(SERVER, FUNCTION, &vec![1; len as usize], Duration::from_millis(50));
        assert_eq!(late.expect_err("nobody answers").cause, CallCause::Timeout);
        assert_eq!(call(&session, 2, 7, len), Ok(()), "a stopped node holds up no other");
    }
    eprintln!("{} deadlines of 50 ms took {:?}", LENS.len(), begin.elapsed());
    // More than its ring has room for.
    for _ in 0..8 {
        let late = session.call(SERVER, FUNCTION, &[1; 60_000], Duration::from_millis(1));
        assert_eq!(late.expect_err("nobody answers").cause, CallCause::Timeout);
    }
    let own = session.serve(FUNCTION, ServeOptions::default()).expect("nobody else serves it");
    let tasks = node.session();
    let mut many = Box::pin(tasks.call_many(&[SERVER, NodeId(0)], FUNCTION, &[1; 60_000], PATIENCE));
    assert!(many.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    assert!(own.try_recv().expect("it is open").is_some(), "where there is no room holds up no other node");
    drop(many);
    server.resume();
    for len in LENS {
        assert_eq!(call(&session, 1, 7, len), Ok(()), "it lives, and its late answers have harmed nothing");
        assert_eq!(call(&session, 2, 7, len), Ok(()));
    }
}
