//! `halite top`, in scripts and on a terminal.

use crate::support;

use support::{Process, Scratch};

#[test]
fn top_prints_nodes_operations_and_peers() {
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

    // Nodes that do not answer are reported, and all others are shown.
    Process::open(scratch.pid(0)).kill();
    let shown = scratch.ok(&format!("top --once --scrape {}", places.join(",")));
    assert!(shown.contains("dead") && shown.contains("showing the state from the lock files"), "{shown}");
    assert!(shown.contains("Connection refused"), "{shown}");
    scratch.ok("down");
    scratch.fails_with("top", 1, "halite up");
}
