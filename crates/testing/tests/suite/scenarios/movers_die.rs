//! A node is killed during a move: the home, an old owner, the new owner, or the node that requested the move.

use fastrand::Rng;
use halite::blocking::Session;
use halite::{AccessCause, Lh, NodeId, NodeState, Placement};

use super::cluster::{Cluster, Process, READ_WRITE, await_state, await_status};
use super::pattern::{bytes, first_difference};

/// Length of a region whose move takes so long that a node can be killed during the move.
const LARGE_BYTES: u64 = 48 << 20;
/// Length of a region whose move is so short that the kill may come while the home is handed over, or later.
const SMALL_BYTES: u64 = 256 << 10;
/// Length of the region that each process owns.
const ANCHOR_BYTES: u64 = 1 << 20;

// Roles of the nodes. The test's own process is node 0.
const HOME: usize = 1;
const SOURCE: usize = 2;
const TARGET: usize = 3;
const MOVER: usize = 4;

/// Checks that each read of the region succeeds, or fails because of the dead node.
fn check_access(session: &Session, lh: Lh, len: u64, dead: NodeId) {
    let mut found = vec![0; 4096];
    for offset in (0..len).step_by(64 << 10) {
        match session.read(lh, offset, &mut found) {
            // The region was filled with one value.
            Ok(()) => assert_eq!(found, vec![5; 4096], "at {offset}"),
            Err(error) => {
                assert!(
                    matches!(error.cause, AccessCause::PeerDown(node) if node == dead)
                        || error.cause == AccessCause::Stale,
                    "{error}"
                )
            }
        }
    }
}

/// Moves a region from two nodes to a third, kills `victim` meanwhile, and checks the remaining nodes.
fn kill_during_a_move(victim: usize, seed: u64) {
    let mut numbers = Rng::with_seed(seed);
    let (len, rounds_max) = if seed.is_multiple_of(2) { (SMALL_BYTES, 12) } else { (LARGE_BYTES, 150) };
    eprintln!("node {victim} dies, seed {seed}");
    let cluster = Cluster::new();
    let node = cluster.join(0);
    let session = node.blocking_session();
    let mut processes: Vec<Option<Process>> =
        (0..5).map(|node| (node > 0).then(|| cluster.start(node))).collect();
    for (node, process) in processes.iter_mut().enumerate() {
        if let Some(process) = process {
            process.run(&format!("alloc anchor-{node} {ANCHOR_BYTES} here"));
            process.run(&format!("fill anchor-{node} {ANCHOR_BYTES} {node}"));
        }
    }
    let on = Placement::Spread(vec![NodeId(HOME as u32), NodeId(SOURCE as u32)]);
    let lh = session.alloc(Some("moved"), len, on, READ_WRITE).expect("there is room");
    session.write(lh, 0, &vec![5; len as usize]).expect("the session is a master");
    let mover = processes[MOVER].as_mut().expect("the process lives");
    mover.run("map moved");
    mover.send(&format!("move moved {TARGET}"));
    for _ in 0..numbers.u64(0..rounds_max) {
        session.status().expect("the directory answers");
    }
    let mut dying = processes[victim].take().expect("the process lives");
    dying.begin_kill();
    if victim != MOVER {
        let answer = processes[MOVER].as_mut().expect("the process lives").answer();
        // The victim was lost during the move, or before it was asked.
        let down = ["PeerDown", "NotMet"].map(|cause| format!("{cause}(NodeId({victim}))"));
        assert!(answer == "ok" || down.contains(&answer), "the move ended with {answer}");
        eprintln!("  the move ended with {answer}");
    }
    dying.kill();
    await_state(&session, victim as u32, NodeState::Dead);
    check_access(&session, lh, len, NodeId(victim as u32));
    check_survivors(&session, &mut processes);

    // The region is freed if it still exists. Then each survivor holds only its own region.
    if let Err(error) = session.free(lh) {
        eprintln!("  {error}");
    }
    for process in processes.iter_mut().flatten() {
        assert_ne!(process.ask("map moved"), "ok", "the name of the freed or lost region was mapped");
    }
    await_status(&session, |nodes| {
        let is_clean = |node: &halite::NodeStatus| {
            let wanted = if node.node == NodeId(0) { 0 } else { ANCHOR_BYTES };
            node.state != NodeState::Alive || (node.bytes_used, node.bytes_quarantined) == (wanted, 0)
        };
        nodes.iter().all(is_clean).then_some(())
    });
    check_survivors(&session, &mut processes);
}

/// Checks that all remaining processes and the test can still read the processes' own regions.
fn check_survivors(session: &Session, processes: &mut [Option<Process>]) {
    for (node, process) in processes.iter_mut().enumerate() {
        let Some(process) = process else { continue };
        process.run(&format!("check anchor-{node} {ANCHOR_BYTES} {node}"));
        let anchor = session.map(&format!("anchor-{node}"), READ_WRITE).expect("the owner lives");
        let mut found = vec![0; ANCHOR_BYTES as usize];
        session.read(anchor, 0, &mut found).expect("the owner lives");
        assert_eq!(first_difference(&found, &bytes(node as u64, ANCHOR_BYTES as usize)), None);
        session.unmap(anchor).expect("the session is a master");
    }
}

#[test]
fn the_home_may_die_during_a_move() {
    (1..=8).for_each(|seed| kill_during_a_move(HOME, seed));
}

#[test]
fn the_source_may_die_during_a_move() {
    (1..=8).for_each(|seed| kill_during_a_move(SOURCE, seed));
}

#[test]
fn the_target_may_die_during_a_move() {
    (1..=8).for_each(|seed| kill_during_a_move(TARGET, seed));
}

#[test]
fn the_requester_may_die_during_a_move() {
    (1..=8).for_each(|seed| kill_during_a_move(MOVER, seed));
}
