//! Nodes over two fabrics each: who reaches whom by which one.

use crate::common;

use std::sync::Arc;

use common::Dir;
use halite::{JoinError, Node, NodeId, Permissions, Placement};
use halite_fabric::{Composite, Fabric};
use halite_providers::{ShmConfig, ShmFabric, Sleep};

const ALL: Permissions = Permissions::all();

/// The fabrics of a node, in the order in which it prefers them.
#[derive(Clone, Copy)]
enum Preferred {
    /// Shared memory.
    Direct,
    /// What stands for a network: shared memory in another directory, of which loads and stores reach nothing.
    Posted,
}

fn join(dir: &Dir, spare: &Dir, node: u32, preferred: Preferred) -> Node {
    let open = |identity: &halite::NodeIdentity| -> Result<Arc<dyn Fabric>, JoinError> {
        let shm = |dir: &Dir, direct: bool| -> Arc<dyn Fabric> {
            let (config, hello) =
                (ShmConfig::new(dir.path(), identity.name_of(halite::Provider::Shm)), identity.hello.clone());
            let config = ShmConfig { hello, sleep: Sleep::Descriptor, direct, ..config };
            ShmFabric::open(config).expect("its name is free")
        };
        let (direct, posted) = (("shm", shm(dir, true)), ("posted", shm(spare, false)));
        let parts = match preferred {
            Preferred::Direct => vec![direct, posted],
            Preferred::Posted => vec![posted, direct],
        };
        Ok(Arc::new(Composite::new(parts).expect("they can be slept for")))
    };
    Node::with_fabric(dir.config(node), open).expect("the node joins")
}

/// Whether loads and stores of `node` reach the memory of `other`, as it explains.
fn reaches(node: &Node, other: &Node) -> bool {
    let session = node.blocking_session();
    let explained = session.explain_peer(other.id()).expect("it is known");
    let capabilities = explained.capabilities.expect("it is connected");
    assert_eq!(capabilities.provider, "shm");
    capabilities.direct
}

/// Writes a word at `home` from `node`, and has it read and changed from the other one.
fn exchange(node: &Node, home: &Node, name: &str) {
    let (here, there) = (node.blocking_session(), home.blocking_session());
    let lh = here.alloc(Some(name), 1 << 20, Placement::On(home.id()), ALL).expect("there is room");
    let bytes: Vec<u8> = (0..200_000u32).map(|byte| byte as u8).collect();
    here.write(lh, 8, &bytes).expect("it may be written");
    let theirs = there.map(name, ALL).expect("it is there");
    let mut read = vec![0; bytes.len()];
    there.read(theirs, 8, &mut read).expect("it may be read");
    assert!(read == bytes, "what was written here is read there");
    assert_eq!((here.fetch_add(lh, 0, 5), there.fetch_add(theirs, 0, 1)), (Ok(0), Ok(5)));
    here.free(lh).expect("it may be freed");
}

#[test]
fn a_cluster_runs_over_several_fabrics_and_tells_which_one_reaches_whom() {
    let (dir, spare) = (Dir::new(), Dir::new());
    let first = join(&dir, &spare, 0, Preferred::Direct);
    let near = join(&dir, &spare, 1, Preferred::Direct);
    // It meets the others by its own first fabric, which is their second.
    let far = join(&dir, &spare, 2, Preferred::Posted);
    assert!(reaches(&first, &near) && reaches(&near, &first));
    assert!(!reaches(&first, &far) && !reaches(&far, &first) && !reaches(&near, &far));
    for (name, node, home) in
        [("near", &first, &near), ("far", &first, &far), ("back", &far, &near), ("own", &near, &near)]
    {
        exchange(node, home, name);
    }
    // Who leaves is gone by whichever fabric it was reached.
    far.leave();
    near.leave();
    let session = first.blocking_session();
    let on = |node| session.alloc(None, 4096, Placement::On(NodeId(node)), ALL);
    assert!(on(1).is_err() && on(2).is_err() && on(0).is_ok());
}
