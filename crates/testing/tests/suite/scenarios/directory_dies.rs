//! The first node, which hosts the directory of names, is killed and comes back.

use std::time::Instant;

use halite::blocking::Session;
use halite::{Lh, Placement, RegionCause};

use super::cluster::{ANYBODY, Cluster, PATIENCE, await_state};

/// Maps by name until the directory can be asked again.
fn map_again(session: &Session, name: &str) -> Lh {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match session.map(name, ANYBODY) {
            Ok(lh) => return lh,
            Err(error) => assert_eq!(error.cause, RegionCause::DirectoryDown, "{name}"),
        }
        assert!(Instant::now() < deadline, "the directory is not found again");
    }
}

#[test]
fn without_the_directory_handles_go_on_and_names_come_back_with_it() {
    let cluster = Cluster::new();
    let mut directory = cluster.start(0);
    let node = cluster.join(1);
    let session = node.blocking_session();
    let mut other = cluster.start(2);
    let mine = session.alloc(Some("mine"), 1 << 20, Placement::Local, ANYBODY).expect("there is room");
    other.order("alloc theirs 1048576 here");
    other.order("map mine");
    let theirs = session.map("theirs", ANYBODY).expect("it is there");
    for incarnation in 0..5 {
        directory.order("alloc gone 4096 here");
        directory.kill();
        await_state(&session, 0, halite::NodeState::Dead);

        // What is mapped goes on, in both directions, and regions without a name are made, moved and freed.
        other.order(&format!("fill mine 1048576 {incarnation}"));
        session.write(theirs, 0, &super::pattern::bytes(incarnation, 1 << 20)).expect("its node lives");
        other.order(&format!("check theirs 1048576 {incarnation}"));
        other.order(&format!("check mine 1048576 {incarnation}"));
        let unnamed = session.alloc(None, 4096, Placement::On(halite::NodeId(2)), ANYBODY);
        let unnamed = unnamed.expect("nothing needs the directory");
        session.move_to(unnamed, halite::NodeId(1)).expect("nor does this");
        session.free(unnamed).expect("it is ours");

        // Names are out of reach, and that is said.
        let refused = session.map("theirs", ANYBODY).expect_err("nobody knows names");
        assert_eq!(refused.cause, RegionCause::DirectoryDown);
        let refused = session.alloc(Some("new"), 64, Placement::Local, ANYBODY).expect_err("as before");
        assert_eq!(refused.cause, RegionCause::DirectoryDown);
        assert_eq!(other.ask("map mine"), "DirectoryDown");

        directory = cluster.start(0);
        // Asked of the directory itself, which must not answer before it has heard of all names.
        assert_eq!(directory.ask("alloc mine 4096 here"), "NameTaken");
        directory.order("map theirs");
        directory.order(&format!("check theirs 1048576 {incarnation}"));
        let again = map_again(&session, "theirs");
        session.unmap(again).expect("it is ours");
        let taken = session.alloc(Some("theirs"), 64, Placement::Local, ANYBODY).expect_err("it is taken");
        assert_eq!(taken.cause, RegionCause::NameTaken);
        let gone = session.map("gone", ANYBODY).expect_err("it died with the first node");
        assert_eq!(gone.cause, RegionCause::NotFound);
        // A refused name leaves no memory behind.
        let names: Vec<_> =
            session.list().expect("the directory lives").into_iter().map(|info| info.name).collect();
        assert_eq!(names, [Some("mine".to_owned()), Some("theirs".to_owned())]);
    }
    session.free(mine).expect("it is ours");
    assert_eq!(other.ask("map mine"), "NotFound");
    session.alloc(Some("mine"), 64, Placement::Local, ANYBODY).expect("the name is free");
}
