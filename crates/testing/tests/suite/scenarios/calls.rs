//! Callers and servers that die or stop during calls: waiting callers get errors, and servers serve the other callers.

use std::future::Future;
use std::task::{Context, Waker};
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;
use halite::blocking::Session;
use halite::{CallCause, CallError, Function, NodeId, ReplyCause, ServeOptions};

use super::churn::{await_resources, private_bytes};
use super::cluster::{Cluster, EVENT, PATIENCE, Process};
use super::role::print;

const FUNCTION: Function = Function(7);
const SERVER: NodeId = NodeId(1);
/// Lengths of inputs: short ones, and ones that the server reads from the caller's memory.
const LENS: [u64; 5] = [0, 100, 5000, 60_000, 300_000];

/// Serves a function. `how` is `echo` (answers with the input), `hold` (receives calls and does not answer), or `leave`
/// (leaves calls in the queue).
pub fn serve(session: &Session, function: u32, how: &str) -> String {
    let server =
        session.serve(Function(function), ServeOptions::default()).expect("no other session serves it");
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
                print(EVENT, "taken");
                held.push(call);
                continue;
            }
            let answer = call.input().to_vec();
            // The caller may have been killed.
            let _ = call.reply(&answer);
        }
    });
    "ok".to_owned()
}

/// Calls a function that echoes its input. Returns the cause of a failure.
pub fn call(session: &Session, node: u32, function: u32, len: u64) -> Result<(), CallCause> {
    let input = vec![len as u8; len as usize];
    let answer = session.call(NodeId(node), Function(function), &input, PATIENCE);
    let answer = answer.map_err(|error| error.cause)?;
    assert!(answer == input, "the caller got the answer to another call");
    Ok(())
}

/// Calls from several threads until the process is killed.
pub fn burst(session: &Session, node: u32, function: u32) -> String {
    for seed in 0..3 {
        let session = session.clone();
        thread::spawn(move || {
            let mut numbers = Rng::with_seed(seed);
            let mut begun = false;
            while call(&session, node, function, LENS[numbers.u64(0..LENS.len() as u64) as usize]).is_ok() {
                if !begun {
                    print(EVENT, "begun");
                }
                begun = true;
            }
        });
    }
    "ok".to_owned()
}

#[test]
fn calls_fail_when_their_server_is_killed() {
    for how in ["leave", "hold"] {
        let cluster = Cluster::new();
        let node = cluster.join(0);
        let mut server = cluster.start(1);
        server.run(&format!("serve 7 {how}"));
        thread::scope(|scope| {
            let callers: Vec<_> = LENS
                .map(|len| {
                    let session = node.blocking_session();
                    scope.spawn(move || call(&session, 1, 7, len))
                })
                .into_iter()
                .collect();
            if how == "hold" {
                LENS.iter().for_each(|_| assert_eq!(server.event(), "taken"));
            }
            server.kill();
            for caller in callers {
                // Without a handler, a caller may send its call only after the death of the server.
                let cause = caller.join().expect("the thread does not panic").unwrap_err();
                assert!([CallCause::PeerDown, CallCause::UnknownNode].contains(&cause), "{cause}");
            }
        });
        let mut next = cluster.start(2);
        next.run("serve 7 echo");
        assert_eq!(call(&node.blocking_session(), 2, 7, 100_000), Ok(()));
    }
}

/// Starts a process that joins without a number, and serves. Returns the process and the number that it got.
fn application(cluster: &Cluster, how: &str) -> (Process, u32) {
    let mut process = Process::start("application");
    process.run(&cluster.join_line("any"));
    process.run(&format!("serve 7 {how}"));
    let node = process.ask("id").parse().expect("the answer is a number");
    (process, node)
}

/// Calls `server`, which holds the call and is then killed.
fn call_and_kill(session: &Session, server: &mut Process, node: u32) -> CallError {
    thread::scope(|scope| {
        let caller = scope.spawn(|| session.call(NodeId(node), FUNCTION, b"", PATIENCE));
        assert_eq!(server.event(), "taken");
        server.kill();
        caller.join().expect("the thread does not panic").expect_err("no server answers")
    })
}

#[test]
fn a_repeated_call_to_a_killed_node_reaches_no_other() {
    let cluster = Cluster::new();
    let node = cluster.join(0);
    let session = node.blocking_session();
    let mut strangers = Vec::new();
    for _ in 0..3 {
        let (mut server, number) = application(&cluster, "hold");
        let ended = call_and_kill(&session, &mut server, number);
        assert_eq!((ended.cause, ended.may_have_run), (CallCause::PeerDown, true), "{ended}");
        // A node that joins now must not get the number: it would answer the repeated call.
        strangers.push(application(&cluster, "echo"));
        for (_, stranger) in &strangers {
            assert_ne!(*stranger, number);
            assert_eq!(call(&session, *stranger, 7, 100), Ok(()));
        }
        let again =
            session.call(NodeId(number), FUNCTION, b"", PATIENCE).expect_err("no node has the number");
        assert_eq!((again.cause, again.may_have_run), (CallCause::PeerDown, false), "{again}");
    }
}

#[test]
fn the_next_incarnation_serves_later_calls() {
    let cluster = Cluster::new();
    let node = cluster.join(0);
    let session = node.blocking_session();
    let mut server = cluster.start(1);
    server.run("serve 7 hold");
    let ended = call_and_kill(&session, &mut server, 1);
    assert_eq!((ended.cause, ended.may_have_run), (CallCause::PeerDown, true), "{ended}");
    let call_again = || session.call(SERVER, FUNCTION, b"", PATIENCE);
    let gone = call_again().expect_err("no node has the number");
    assert_eq!((gone.cause, gone.may_have_run), (CallCause::PeerDown, false), "{gone}");
    // The next incarnation of the number does not serve yet.
    let mut next = cluster.start(1);
    let anew = call_again().expect_err("no session serves the function");
    assert_eq!((anew.cause, anew.may_have_run), (CallCause::UnknownFunction, false), "{anew}");
    next.run("serve 7 echo");
    assert_eq!(call_again(), Ok(Vec::new()));
}

#[test]
fn a_killed_server_leaves_whole_answers_or_none() {
    let cluster = Cluster::new();
    let node = cluster.join(0);
    for round in 0..10 {
        let mut server = cluster.start(1);
        server.run("serve 7 echo");
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
                let cause =
                    caller.join().expect("the thread does not panic").expect("the call ends with the server");
                assert!([CallCause::PeerDown, CallCause::UnknownNode].contains(&cause), "{cause}");
            }
        });
    }
}

#[test]
fn a_handler_learns_that_its_caller_was_killed() {
    let cluster = Cluster::new();
    let node = cluster.join(0);
    let session = node.blocking_session();
    let server = session.serve(FUNCTION, ServeOptions::default()).expect("no other session serves it");
    for len in LENS {
        let mut client = cluster.start(1);
        client.send(&format!("call 0 7 {len}"));
        let call = server.recv().expect("the server is open");
        client.kill();
        let deadline = Instant::now() + PATIENCE;
        while call.is_wanted() {
            assert!(Instant::now() < deadline, "the handler did not learn of its caller's death");
        }
        let refused = call.reply(&vec![1; len as usize]).expect_err("the caller has gone");
        assert_eq!(refused.cause, ReplyCause::CallerGone);
        let mut next = cluster.start(2);
        next.send(&format!("call 0 7 {len}"));
        let call = server.recv().expect("the server is open");
        let answer = call.input().to_vec();
        call.reply(&answer).expect("the caller waits");
        assert_eq!(next.answer(), "ok");
        next.leave();
    }
}

#[test]
#[ignore = "measures: .ci/deep slow"]
fn callers_killed_during_a_burst_leak_nothing() {
    const ROUNDS: usize = 24;
    const WARM_UP: usize = 8;
    let cluster = Cluster::new();
    let mut server = cluster.start(0);
    server.run("serve 7 echo");
    let mut steady = cluster.start(1);
    let before = await_resources(&mut server, None);
    let mut warm_bytes = 0;
    for round in 0..ROUNDS {
        if round == WARM_UP {
            warm_bytes = private_bytes(&mut server);
        }
        let mut client = Process::start("killed");
        client.run(&cluster.join_line("any"));
        client.run("burst 0 7");
        assert_eq!(client.event(), "begun");
        steady.run("call 0 7 5000");
        client.kill();
        steady.run("call 0 7 300000");
    }
    let after = await_resources(&mut server, Some(&before));
    let growth = private_bytes(&mut server).saturating_sub(warm_bytes);
    eprintln!("resources: {before} before, {after} after; private memory grew by {growth} bytes");
    assert!(growth < 1 << 20, "{growth} bytes of private memory leaked");
}

#[test]
fn calls_to_a_stopped_server_time_out_until_it_resumes() {
    let mut cluster = Cluster::new();
    // The server is stopped for less than the lease, so it is not declared dead.
    cluster.config.lease = PATIENCE;
    let node = cluster.join(0);
    let session = node.blocking_session();
    let mut server = cluster.start(1);
    server.run("serve 7 echo");
    let mut other = cluster.start(2);
    other.run("serve 7 echo");
    assert_eq!(call(&session, 1, 7, 5000), Ok(()));
    server.stop();
    let begin = Instant::now();
    for len in LENS {
        let late = session.call(SERVER, FUNCTION, &vec![1; len as usize], Duration::from_millis(50));
        assert_eq!(late.expect_err("no server answers").cause, CallCause::Timeout);
        assert_eq!(call(&session, 2, 7, len), Ok(()), "a stopped node must not delay calls to another node");
    }
    eprintln!("{} deadlines of 50 ms took {:?}", LENS.len(), begin.elapsed());
    // These calls fill the ring.
    for _ in 0..8 {
        let late = session.call(SERVER, FUNCTION, &[1; 60_000], Duration::from_millis(1));
        assert_eq!(late.expect_err("no server answers").cause, CallCause::Timeout);
    }
    let own = session.serve(FUNCTION, ServeOptions::default()).expect("no other session serves it");
    let tasks = node.session();
    let mut many = Box::pin(tasks.call_many(&[SERVER, NodeId(0)], FUNCTION, &[1; 60_000], PATIENCE));
    assert!(many.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    assert!(
        own.try_recv().expect("the server is open").is_some(),
        "a node with a full ring must not delay calls to another node"
    );
    drop(many);
    server.resume();
    for len in LENS {
        assert_eq!(call(&session, 1, 7, len), Ok(()), "the resumed node answers again");
        assert_eq!(call(&session, 2, 7, len), Ok(()));
    }
}
