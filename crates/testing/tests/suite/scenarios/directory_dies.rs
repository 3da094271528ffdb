//! The first node, which has the directory of names, is killed and returns.

use std::time::Instant;

use halite::blocking::Session;
use halite::{Lh, Placement, RegionCause};

use super::cluster::{Cluster, PATIENCE, READ_WRITE, await_state};

/// Maps a region by name, with retries until the directory answers again.
fn map_with_retries(session: &Session, name: &str) -> Lh {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match session.map(name, READ_WRITE) {
            Ok(lh) => return lh,
            Err(error) => assert_eq!(error.cause, RegionCause::DirectoryDown, "{name}"),
        }
        assert!(Instant::now() < deadline, "the directory does not return");
    }
}

#[test]
fn handles_survive_the_death_of_the_directory() {
    let cluster = Cluster::new();
    let mut directory = cluster.start(0);
    let node = cluster.join(1);
    let session = node.blocking_session();
    let mut other = cluster.start(2);
    let mine = session.alloc(Some("mine"), 1 << 20, Placement::Local, READ_WRITE).expect("there is room");
    other.run("alloc theirs 1048576 here");
    other.run("map mine");
    let theirs = session.map("theirs", READ_WRITE).expect("the object exists");
    for incarnation in 0..5 {
        directory.run("alloc gone 4096 here");
        directory.kill();
        await_state(&session, 0, halite::NodeState::Dead);

        // Mapped regions stay usable in both directions, and regions without a name can be allocated, moved and freed.
        other.run(&format!("fill mine 1048576 {incarnation}"));
        session.write(theirs, 0, &super::pattern::bytes(incarnation, 1 << 20)).expect("the owner lives");
        other.run(&format!("check theirs 1048576 {incarnation}"));
        other.run(&format!("check mine 1048576 {incarnation}"));
        let unnamed = session.alloc(None, 4096, Placement::On(halite::NodeId(2)), READ_WRITE);
        let unnamed = unnamed.expect("the directory is not needed");
        session.move_to(unnamed, halite::NodeId(1)).expect("the directory is not needed");
        session.free(unnamed).expect("the session is a master");

        // Operations with names fail, with the cause.
        let refused = session.map("theirs", READ_WRITE).expect_err("the directory is down");
        assert_eq!(refused.cause, RegionCause::DirectoryDown);
        let refused =
            session.alloc(Some("new"), 64, Placement::Local, READ_WRITE).expect_err("the directory is down");
        assert_eq!(refused.cause, RegionCause::DirectoryDown);
        assert_eq!(other.ask("map mine"), "DirectoryDown");

        directory = cluster.start(0);
        // The new directory must not answer before it knows all names again, not even on its own node.
        assert_eq!(directory.ask("alloc mine 4096 here"), "NameTaken");
        directory.run("map theirs");
        directory.run(&format!("check theirs 1048576 {incarnation}"));
        let again = map_with_retries(&session, "theirs");
        session.unmap(again).expect("the session is a master");
        let taken =
            session.alloc(Some("theirs"), 64, Placement::Local, READ_WRITE).expect_err("the name is taken");
        assert_eq!(taken.cause, RegionCause::NameTaken);
        let gone = session.map("gone", READ_WRITE).expect_err("the region died with the first node");
        assert_eq!(gone.cause, RegionCause::NotFound);
        // The refused allocations left no region.
        let names: Vec<_> =
            session.list().expect("the directory lives").into_iter().map(|info| info.name).collect();
        assert_eq!(names, [Some("mine".to_owned()), Some("theirs".to_owned())]);
    }
    session.free(mine).expect("the session is a master");
    assert_eq!(other.ask("map mine"), "NotFound");
    session.alloc(Some("mine"), 64, Placement::Local, READ_WRITE).expect("the name is free");
}
