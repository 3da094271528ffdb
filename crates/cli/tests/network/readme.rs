//! The README's section on several machines, executed word by word.

use crate::etcd::world_with_etcd;
use crate::support::{Running, eventually};
use crate::world::{Processes, World};

#[test]
fn readme_works_on_several_machines() {
    if let Some(world) = World::new(2, Processes::Own) {
        run_readme(&world, |line| line.to_owned());
    }
}

/// Without `--join`: nodes find each other through etcd.
#[test]
fn readme_works_on_several_machines_with_etcd() {
    if let Some(world) = world_with_etcd(2, Processes::Own) {
        run_readme(&world, |line| line.replace("--join 10.0.0.1:7000", ""));
        assert_eq!(world.etcdctl("get --prefix /names/names/ --keys-only").trim(), "/names/names/salt");
    }
}

fn run_readme(world: &World, adapt: impl Fn(&str) -> String) {
    let readme = include_str!("../../../../README.md");
    let (_, section) = readme.split_once("## Several machines").unwrap();
    let (section, _) = section.split_once("\n## ").unwrap();
    assert_eq!(section.matches("```sh\n").count(), 1, "the one that is run here");
    let (_, block) = section.split_once("```sh\n").unwrap();
    let (block, _) = block.split_once("```").unwrap();
    let mut running: Vec<Running> = Vec::new();
    for line in block.lines() {
        let on = if line.ends_with("# on the second") { 1 } else { 0 };
        let host = world.host(on);
        if line.starts_with("halite node") {
            running.push(host.start(&adapt(line), "ready"));
        } else {
            host.ok(line);
            // Over a trusted path.
            world.host(1).copy_secret(host, "/tmp/halite.secret");
        }
    }
    assert_eq!(running.len(), 2);
    eventually(|| world.are_alive(2));
    world.host(0).write("/tmp/file", b"salt");
    world.host(0).ok("halite put salt file --node 1");
    assert_eq!(world.host(1).ok("halite get salt"), "salt");
    assert!(world.host(0).ok("halite explain 1").contains("provider roce"));
    // A secret that other users can read is refused.
    world.host(1).ok("chmod 644 halite.secret");
    let flags = "--listen 10.0.0.2:7001 --secret-file halite.secret --join 10.0.0.1:7000";
    world.host(1).fails_with(&format!("HALITE_DIR=/tmp/other halite node {flags}"), "halite.secret");
}
