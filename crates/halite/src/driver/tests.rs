//! Who takes the engine's lock, and who need not.

use std::cell::Cell;
use std::sync::Arc;

use halite_fabric::Fabric;
use halite_fabric::trace::Tracer;
use halite_tier::ids::NodeId;
use halite_tier::permissions::Permissions;

use crate::{Config, Node, Placement};

thread_local! {
    static LOCKED: Cell<u64> = const { Cell::new(0) };
}

/// The calling thread takes the lock of a machine.
pub(super) fn note_lock() {
    LOCKED.set(LOCKED.get() + 1);
}

const ALL: Permissions = Permissions::all();
const ROUNDS: u64 = 2000;

/// Each posted operation took it twice: when it was posted, and when it completed.
#[test]
fn small_posted_operations_and_their_completions_leave_the_engine_alone() {
    let dir = std::env::temp_dir().join(format!("halite-driver-{}", std::process::id()));
    let join = |node| {
        let config = Config { dir: dir.clone(), node: Some(NodeId(node)), ..Config::default() };
        // A tracer hides that loads and stores would reach the others' memory.
        let wrap = |fabric: Arc<dyn Fabric>| -> Arc<dyn Fabric> { Arc::new(Tracer::new(fabric, 16)) };
        Node::wrap(config, wrap).expect("the node joins")
    };
    let (here, _there) = (join(0), join(1));
    let session = here.blocking_session();
    let lh = session.alloc(Some("salt"), 4096, Placement::On(NodeId(1)), ALL).expect("there is room");
    let mut word = [0; 8];
    session.write(lh, 0, &word).expect("it may be written");

    let before = LOCKED.get();
    for round in 0..ROUNDS {
        session.write(lh, 8, &round.to_le_bytes()).expect("it may be written");
        session.read(lh, 8, &mut word).expect("it may be read");
        assert_eq!(u64::from_le_bytes(word), round);
        assert_eq!(session.fetch_add(lh, 0, 1), Ok(round));
    }
    let locked = LOCKED.get() - before;
    std::fs::remove_dir_all(&dir).expect("it is there");
    // Who waits also sees to what happens to be due.
    assert!(locked < ROUNDS / 10, "the lock was taken {locked} times in {} operations", 3 * ROUNDS);
}
