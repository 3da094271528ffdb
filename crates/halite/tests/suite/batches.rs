//! Calls in batches whose inputs run code of the caller.

use crate::common;

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::Duration;

use common::Dir;
use halite::{Function, NodeId, ServeOptions, blocking};

/// Timeout of calls; an answered call takes much less.
const TIMEOUT: Duration = Duration::from_secs(60);
const ECHO: Function = Function(7);
const THERE: NodeId = NodeId(1);

/// An input that panics when its bytes are read for the n-th time.
struct PanickingInput<'c>(&'c Cell<u32>, u32);

impl AsRef<[u8]> for PanickingInput<'_> {
    fn as_ref(&self) -> &[u8] {
        self.0.set(self.0.get() + 1);
        assert!(self.0.get() != self.1, "a panic of the caller's input");
        b"input"
    }
}

/// An input that makes a call when its bytes are read.
struct CallingInput<'s>(&'s blocking::Session);

impl AsRef<[u8]> for CallingInput<'_> {
    fn as_ref(&self) -> &[u8] {
        self.0.call(THERE, ECHO, b"inner", TIMEOUT).expect("the function is served");
        b"outer"
    }
}

/// Inputs that panic or call. The code of an input once ran while the node's locks were held.
#[test]
fn inputs_may_panic_or_call() {
    let dir = Dir::new();
    let nodes = [dir.join(0), dir.join(1)];
    let sessions = [(); 2].map(|()| nodes[0].blocking_session());
    let server = nodes[1].blocking_session().serve(ECHO, ServeOptions::default()).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            while let Ok(call) = server.recv() {
                let answer = call.input().to_vec();
                // A caller that panics drops its calls.
                let _ = call.reply(&answer);
            }
        });
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            for time in [1, 3, 20] {
                let count = Cell::new(0);
                let inputs = [(); 20].map(|()| PanickingInput(&count, time));
                let posting = || sessions[0].post_calls(THERE, ECHO, &inputs, 100, TIMEOUT).len();
                assert!(catch_unwind(AssertUnwindSafe(posting)).is_err());
                assert_eq!(sessions[1].call(THERE, ECHO, b"salt", TIMEOUT).unwrap(), b"salt");
            }
            let inputs = [(); 4].map(|()| CallingInput(&sessions[1]));
            for call in sessions[0].post_calls(THERE, ECHO, &inputs, 100, TIMEOUT) {
                assert_eq!(call.unwrap().answer().unwrap(), b"outer");
            }
        }));
        server.close();
        outcome.expect("the test thread succeeds");
    });
}
