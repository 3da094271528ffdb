//! A node that is killed, or leaves: those who used it get a typed error, and its number can be used again.

use crate::common;
use crate::process;

use std::process::Command;

use common::{Dir, until};
use halite::{AccessCause, LossCause, NodeId, NodeState, Permissions, Placement, RegionCause, cluster_dir};
use process::Running;
use rustix::process::{Signal, set_parent_process_death_signal};

const ANYBODY: Permissions = Permissions::READ.union(Permissions::WRITE);
const DIR_VARIABLE: &str = "HALITE_TEST_MORTAL_DIR";

/// Runs `the_mortal_node` below in a process of its own, until its region is there.
fn start_mortal(dir: &Dir) -> Running {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "killed::the_mortal_node", "--nocapture"]).env(DIR_VARIABLE, dir.path());
    let mut mortal = Running::of(command);
    while !mortal.line().contains("ready") {}
    mortal
}

/// Not a test of its own, but what the child process does.
#[test]
fn the_mortal_node() {
    let Some(dir) = std::env::var_os(DIR_VARIABLE) else { return };
    set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
    let config = halite::Config { dir: dir.into(), node: Some(NodeId(1)), ..halite::Config::default() };
    let node = halite::Node::embedded(config).unwrap();
    let session = node.blocking_session();
    let lh = session.alloc(Some("mortal"), 4096, Placement::Local, ANYBODY).unwrap();
    session.write(lh, 0, b"alive").unwrap();
    println!("ready");
    loop {
        std::thread::park();
    }
}

#[test]
fn the_memory_of_a_killed_process_is_an_error_and_its_successor_begins_anew() {
    let dir = Dir::new();
    let first = dir.join(0);
    let here = first.blocking_session();
    let mut mortal = start_mortal(&dir);
    let lh = here.map("mortal", ANYBODY).unwrap();
    let mut bytes = [0; 5];
    here.read(lh, 0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"alive");

    mortal.kill();
    // Until the news arrives, its memory is still there.
    let lost = until(|| here.read(lh, 0, &mut bytes).err());
    assert_eq!(lost.cause, AccessCause::PeerDown(NodeId(1)));
    // That its connection has ended is heard before it is proven dead: until then its names are kept.
    let lost = until(|| match here.map("mortal", ANYBODY).unwrap_err().cause {
        RegionCause::Lost(lost) => Some(lost),
        RegionCause::PeerDown(NodeId(1)) => None,
        other => panic!("{other}"),
    });
    assert_eq!((lost.node, lost.cause), (NodeId(1), LossCause::Exited));
    assert_eq!(here.list_lost().unwrap()[0].name, "mortal");
    let states: Vec<NodeState> = here.status().unwrap().iter().map(|node| node.state).collect();
    assert_eq!(states, [NodeState::Alive, NodeState::Dead]);
    let present = cluster_dir::nodes(dir.path()).unwrap();
    assert_eq!(present.iter().map(|node| node.alive).collect::<Vec<_>>(), [true, false]);

    let _successor = start_mortal(&dir);
    assert_eq!(here.read(lh, 0, &mut bytes).unwrap_err().cause, AccessCause::Stale);
    let again = here.map("mortal", ANYBODY).unwrap();
    here.read(again, 0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"alive");
}

#[test]
fn without_the_first_node_names_are_out_of_reach_until_it_comes_back_and_regions_live_on() {
    let dir = Dir::new();
    let first = dir.join(0);
    let second = dir.join(2);
    let there = second.blocking_session();
    let lh = there.alloc(Some("survivor"), 64, Placement::Local, ANYBODY).unwrap();
    first.leave();
    // Until the news arrives, requests may still be under way.
    let gone = until(|| there.stat("survivor").err());
    assert_eq!(gone.cause, RegionCause::DirectoryDown);
    there.write(lh, 0, b"still here").unwrap();
    let first = dir.join(0);
    assert_eq!(first.blocking_session().stat("survivor").unwrap().home, NodeId(2));
    there.free(lh).unwrap();
}
