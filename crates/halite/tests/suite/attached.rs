//! Costs of attached sessions.

use halite::blocking::Session;
use halite::{AttachMode, Config, Node, NodeId, Permissions, Placement, Provider};

use crate::common::Dir;

/// Over a network, a node finishes no part of a long write at once.
#[test]
fn a_long_write_to_another_host_leaves_once() {
    let dir = Dir::new();
    let open = |id| {
        let (attach, providers) = (Some(AttachMode::Owner), vec![Provider::Roce]);
        let config = Config {
            dir: dir.path().to_path_buf(),
            node: Some(NodeId(id)),
            attach,
            providers,
            ..Config::default()
        };
        Node::embedded(config).unwrap()
    };
    let nodes = [open(0), open(1)];
    let session = Session::attach_to(dir.path(), NodeId(0)).unwrap();
    let bytes = vec![7; 4 << 20];
    let lh = session.alloc(None, bytes.len() as u64, Placement::On(NodeId(1)), Permissions::all()).unwrap();
    session.write(lh, 0, &bytes).unwrap();
    let metrics = nodes[0].metrics().to_string();
    let written = r#"halite_access_bytes_total{kind="write",path="posted"} 4194304"#;
    assert!(metrics.lines().any(|line| line == written), "{metrics}");
}
