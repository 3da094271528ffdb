//! Runs the example of README, and checks that README contains the code below.

use std::process::Command;

use crate::common::Dir;

/// The code that README contains, between the two markers.
#[rustfmt::skip]
fn example() -> Result<(), Box<dyn std::error::Error>> {
// README begins
use std::time::Duration;
use halite::{Config, Function, Node, NodeId, Permissions, Placement, ServeOptions};

// Node 0 founds the cluster in $HALITE_DIR; without a number, `Config::default()` joins one that `halite up` started.
let node = Node::embedded(Config { node: Some(NodeId(0)), ..Config::default() })?;
let session = node.blocking_session();
let salt = session.alloc(Some("salt"), 1 << 20, Placement::Local, Permissions::READ)?;
session.write(salt, 4096, b"crystals")?;                    // and any other process:
let theirs = session.map("salt", Permissions::READ)?;
let mut bytes = [0; 8];
session.read(theirs, 4096, &mut bytes)?;
let written = session.post_write(salt, 0, 7u64.to_le_bytes());              // many may be in flight
session.wait_until(theirs, 0, |word| word != 0)?;                           // a reader waits for a word
let posted = session.post_read(theirs, 4096, [0; 8]);                       // owns its buffer until it ends
session.progress();                                                         // for loops that poll memory themselves
let (taste, outcome) = posted.wait();                                       // or `posted.await`
outcome.and(written.wait().1)?;

let server = session.serve(Function(7), ServeOptions::default())?;
std::thread::spawn(move || {                                                // any number of threads may serve
    while let Ok(call) = server.recv() {
        let answer = call.input().to_ascii_uppercase();
        let _ = call.reply(&answer);                                        // fails if the caller has gone
    }
});                                                                         // and any process may call:
let shout = session.call(NodeId(0), Function(7), b"salt", Duration::from_secs(1))?;
let guard = session.lock("till")?;                                          // first in, first out
let till = session.alloc(Some("coins"), 8, Placement::Local, Permissions::ATOMIC)?;
let before = session.fetch_add(till, 0, 5)?;                                // in one piece, from any process
// README ends
    assert_eq!((&bytes, &taste, &shout[..], before), (b"crystals", b"crystals", &b"SALT"[..], 0));
    drop(guard);
    Ok(())
}

#[test]
fn the_readme_shows_this_example() {
    let between = |text: &'static str, begin: &str, end: &str| {
        let (_, rest) = text.split_once(begin).expect("README contains the first marker");
        rest.split_once(end).expect("README contains the last marker").0
    };
    let shown = between(include_str!("../../../../README.md"), "```rust\n", "```");
    let compiled = between(include_str!("readme.rs"), "// README begins\n", "// README ends");
    assert_eq!(shown, compiled);
}

/// The example finds its cluster directory in the environment, so it runs in a process of its own.
#[test]
fn the_example_of_the_readme_runs() {
    let dir = Dir::new();
    let mut process = Command::new(std::env::current_exe().expect("this program has a path"));
    process.args(["--exact", "readme::example_process", "--ignored"]).env("HALITE_DIR", dir.path());
    let output = process.output().expect("this program runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

#[test]
#[ignore = "the program of `the_example_of_the_readme_runs`"]
fn example_process() {
    example().expect("the example succeeds");
}
