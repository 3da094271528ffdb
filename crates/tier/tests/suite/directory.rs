//! A directory in a store outside of the cluster, which every node asks by itself.

use crate::common;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use common::{ARENA_BYTES, Cluster};
use halite_tier::directory::{Directory, DirectoryEvent, DirectoryOutput, MoveJob};
use halite_tier::effect::{CommandError, Placement};
use halite_tier::ids::Requester;
use halite_tier::ids::{NodeId, NodeIncarnation, RegionId};
use halite_tier::message::{ErrorReply, Reply, Request};

type Names = Arc<Mutex<BTreeMap<String, (RegionId, NodeIncarnation)>>>;

/// One node's client of the store.
#[derive(Debug)]
struct Client {
    me: NodeId,
    names: Names,
    outputs: VecDeque<DirectoryOutput>,
}

impl Directory for Client {
    fn begin_move(&mut self, _now_ns: u64, _job: MoveJob) {
        unreachable!("names are outside already")
    }

    fn seat(&self) -> NodeId {
        self.me
    }

    fn ask(&mut self, _: u64, requester: Requester, question: Request) {
        let mut names = self.names.lock().unwrap();
        let body = match question {
            Request::ClaimName { name, region } if !names.contains_key(&name) => {
                names.insert(name, (region, requester.incarnation));
                Ok(Reply::Done)
            }
            Request::ClaimName { .. } => Err(ErrorReply::NameTaken),
            Request::ReleaseName { name, .. } => {
                names.remove(&name);
                Ok(Reply::Done)
            }
            Request::FindName { name } => match names.get(&name) {
                Some((region, home)) => Ok(Reply::Found { region: *region, home: home.node }),
                None => Err(ErrorReply::NotFound),
            },
            _ => Err(ErrorReply::Malformed),
        };
        self.outputs.push_back(DirectoryOutput::Answer { requester, body });
    }

    fn tell(&mut self, _: u64, event: DirectoryEvent) {
        if let DirectoryEvent::Names { from, names, .. } = event {
            let told = names.into_iter().map(|(name, region, _)| (name, (region, from)));
            self.names.lock().unwrap().extend(told);
        }
    }

    fn poll(&mut self) -> Option<DirectoryOutput> {
        self.outputs.pop_front()
    }
}

fn cluster_with_a_store(nodes: u32) -> Cluster {
    let (mut cluster, names) = (Cluster::of(0), Names::default());
    cluster.directory_of =
        Some(Box::new(move |me| Box::new(Client { me, names: names.clone(), outputs: VecDeque::new() })));
    for node in 0..nodes {
        cluster.add(node, ARENA_BYTES);
    }
    cluster
}

#[test]
fn outside_names_do_not_depend_on_node_0() {
    let mut cluster = cluster_with_a_store(3);
    let made = cluster.alloc(1, "well", 64, Placement::Local);
    cluster.kill(0);
    let mapped = cluster.map(2, "well");
    cluster.write(1, made, 0, b"water");
    assert_eq!(cluster.read(2, mapped, 0, 5), b"water");
    let again = cluster.command(2, common::allocation(Some("well"), 64, Placement::Local));
    assert_eq!(again, Err(CommandError::Refused(ErrorReply::NameTaken)));
    cluster.alloc(2, "spring", 64, Placement::On(NodeId(1)));
}

#[test]
fn next_homes_update_the_store() {
    use halite_tier::effect::Command;
    use halite_tier::message::RegionCommand;

    let mut cluster = cluster_with_a_store(3);
    let made = cluster.alloc(0, "cart", 64, Placement::Local);
    cluster.write(0, made, 0, b"hay");
    cluster.command(0, Command::RegionCommand(made, RegionCommand::Move { to: NodeId(2) })).unwrap();
    cluster.kill(0);
    let mapped = cluster.map(1, "cart");
    assert_eq!(cluster.read(1, mapped, 0, 3), b"hay");
}
