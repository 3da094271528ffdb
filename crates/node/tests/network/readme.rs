//! The README's section on several machines, word by word.

use crate::support::{Running, eventually};
use crate::world::{Processes, World};

#[test]
fn what_the_readme_says_of_several_machines_is_so() {
    let Some(world) = World::new(2, Processes::Own) else { return };
    let readme = include_str!("../../../../README.md");
    let (_, section) = readme.split_once("## Several machines").unwrap();
    let (_, block) = section.split_once("```sh\n").unwrap();
    let (block, _) = block.split_once("```").unwrap();
    let mut running: Vec<Running> = Vec::new();
    for line in block.lines() {
        let on = if line.ends_with("# on the second") { 1 } else { 0 };
        let host = world.host(on);
        if line.starts_with("halite node") {
            running.push(host.start(line, "ready"));
        } else {
            host.ok(line);
            // By a way that one trusts.
            world.host(1).copy_secret(host, "/tmp/halite.secret");
        }
    }
    assert_eq!(running.len(), 2);
    eventually(|| world.hosts().iter().all(|host| host.state(0) == "alive" && host.state(1) == "alive"));
    world.host(0).write("/tmp/file", b"salt");
    world.host(0).ok("halite put salt file --node 1");
    assert_eq!(world.host(1).ok("halite get salt"), "salt");
}
