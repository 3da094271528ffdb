//! Whom an arrival wakes.  Alone in its process, whose threads it counts.

use crate::common;

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use common::Dir;
use common::threads::{number_of_this_thread, progress_thread, sleeps, wait_until_asleep};
use halite::{Function, NodeId, ServeOptions};

/// Long enough for any call that is answered at all.
const PATIENCE: Duration = Duration::from_secs(60);
const ECHO: Function = Function(7);
const ROUNDS: u64 = 100;

/// Each arrival woke the progress thread, which woke the thread that waited for it.
#[test]
#[ignore = "measures: .ci/deep slow"]
fn a_thread_that_sleeps_alone_is_woken_by_what_it_waits_for_and_nobody_else_is() {
    let _alone = crate::alone();
    let dir = Dir::new();
    let here = dir.join(0);
    let progress_thread = progress_thread();
    let there = dir.join(1);
    let calls = there.blocking_session().serve(ECHO, ServeOptions::default()).expect("nobody serves it yet");
    let (tell, told) = mpsc::channel();
    let caller = thread::spawn(move || {
        tell.send(number_of_this_thread()).expect("it is waited for");
        for round in 0..ROUNDS {
            let answer = here.blocking_session().call(NodeId(1), ECHO, &round.to_le_bytes(), PATIENCE);
            assert_eq!(answer.expect("it is answered"), round.to_le_bytes());
        }
        here
    });
    let thread = told.recv().expect("it begins");
    let mut before = 0;
    for round in 0..ROUNDS {
        let call = calls.recv().expect("the node runs");
        wait_until_asleep(&thread);
        if round == ROUNDS / 2 {
            before = sleeps(&progress_thread);
        }
        let input = call.input().to_vec();
        call.reply(&input).expect("the caller is there");
    }
    let here = caller.join().expect("all was answered");
    let slept = sleeps(&progress_thread) - before;
    drop((here, there));
    // It also sees to what is due.
    assert!(slept < ROUNDS / 4, "the progress thread was woken {slept} times in {} calls", ROUNDS / 2);
}
