//! `halite top`, as a script and as a person see it.

use crate::support;

use std::fs::File;
use std::io::{BufRead, BufReader};

use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use support::{Process, Scratch};

#[test]
fn without_a_terminal_it_prints_once_what_nodes_are_and_do() {
    let scratch = Scratch::new("top");
    let printed = scratch.ok("up --nodes 2 --arena 64M --fabric roce --metrics 127.0.0.1:0 --detach");
    let places: Vec<&str> = printed
        .split_whitespace()
        .filter_map(|word| word.strip_prefix("http://")?.strip_suffix("/metrics"))
        .collect();
    let text = scratch.write("text", &[7; 5000]);
    scratch.ok(&format!("put salt {} --node 1", text.display()));
    let shown = scratch.ok(&format!("top --scrape {}", places.join(",")));
    let tables: Vec<Vec<&str>> = shown.split("\n\n").map(|table| table.lines().collect()).collect();
    let [nodes, operations, peers] = &tables[..] else { panic!("{shown}") };
    assert!(nodes[0].starts_with("node  process  state"), "{shown}");
    assert!(nodes[1].contains("alive") && nodes[2].contains("alive"), "{shown}");
    assert_eq!(nodes[2].split_whitespace().nth(4), Some("4.9"), "node 1 holds the region: {shown}");
    for (node, row) in operations[1..].iter().enumerate() {
        assert_eq!(row.split_whitespace().take(2).collect::<Vec<_>>(), [places[node], &node.to_string()]);
    }
    let pairs: Vec<Vec<&str>> =
        peers[1..].iter().map(|row| row.split_whitespace().take(3).collect()).collect();
    assert_eq!(pairs, [["0", "1", "yes"], ["1", "0", "yes"]], "{shown}");

    // What cannot be asked is said, and the rest is shown.
    Process::open(scratch.pid(0)).kill();
    let shown = scratch.ok(&format!("top --once --scrape {}", places.join(",")));
    assert!(shown.contains("dead") && shown.contains("showing what the lock files tell"), "{shown}");
    assert!(shown.contains("Connection refused"), "{shown}");
    scratch.ok("down");
    assert!(scratch.fails("top", 1).contains("halite up"));
}

#[test]
fn on_a_terminal_it_draws_again_until_ctrl_c() {
    let scratch = Scratch::new("live");
    let _up = scratch.up(1);
    let (terminal, stdout) = terminal();
    let mut top = scratch.command("top --interval 1").stdout(stdout).spawn().unwrap();
    let mut lines = BufReader::new(terminal).lines().map(|line| line.unwrap());
    for _ in 0..3 {
        let first = lines.find(|line| line.contains("\x1b[H")).unwrap();
        assert!(first.contains("node  process  state"), "{first:?}");
    }
    rustix::process::kill_process(Pid::from_child(&top), Signal::INT).unwrap();
    assert!(top.wait().unwrap().success(), "it was asked to end, which is what it is for");
}

/// Both ends of a terminal.
fn terminal() -> (File, File) {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&ours).unwrap();
    unlockpt(&ours).unwrap();
    let name = ptsname(&ours, Vec::new()).unwrap();
    let theirs =
        rustix::fs::open(name, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty()).unwrap();
    (ours.into(), theirs.into())
}
