//! Whatever a peer sends, an engine neither panics nor reuses memory too early.

use crate::common;

use common::{CHUNK_BYTES, Cluster};
use halite_fabric::{Key, PeerId};
use halite_tier::effect::{Command, Outcome, Placement};
use halite_tier::engine::REQUESTS_OF_NODE_MAX;
use halite_tier::ids::{Epoch, NodeId, NodeIncarnation, Principal, RequestId};
use halite_tier::layout::Extent;
use halite_tier::link;
use halite_tier::message::{self, Change, ErrorReply, Message, Notice, RegionCommand, Request};
use halite_tier::names::Service;
use halite_tier::permissions::Permissions;
use proptest::prelude::*;

/// Node 1's messages to node 0 while regions are made, mapped, moved and freed: whole messages, in order.
fn conversation() -> Vec<Vec<u8>> {
    let mut cluster = Cluster::of(2);
    cluster.record(1, 0);
    let lh = cluster.alloc(1, "salt", 5 * CHUNK_BYTES, Placement::Spread(vec![NodeId(1), NodeId(0)]));
    cluster.map(0, "salt");
    cluster.command(1, Command::Watch { slot: lh, port: 7 }).unwrap();
    cluster.command(1, Command::ListWatchers(lh)).unwrap();
    cluster.command(1, Command::Status).unwrap();
    cluster.command(1, Command::List { after: None }).unwrap();
    cluster.command(1, Command::RegionCommand(lh, RegionCommand::Move { to: NodeId(0) })).unwrap();
    cluster.command(1, Command::RegionCommand(lh, RegionCommand::Seal)).unwrap();
    cluster.command(1, Command::RegionCommand(lh, RegionCommand::Free)).unwrap();
    cluster.recorded()
}

#[test]
fn other_nodes_cannot_move_local_regions() {
    let mut cluster = Cluster::of(2);
    let lh = cluster.alloc(0, "ours", 3 * CHUNK_BYTES, Placement::Spread(vec![NodeId(0), NodeId(1)]));
    cluster.write(0, lh, 0, b"what is ours");
    let session = cluster.hosts[0].session;
    let region = cluster.hosts[0].path.slots().inspect(lh.index, |mapping| mapping.region).unwrap();
    let owner = NodeIncarnation { node: NodeId(0), id: region.origin };
    let place = Extent { owner, key: Key(0), offset: 9 * CHUNK_BYTES, len: CHUNK_BYTES };
    for change in [Change::Place { from: 0, place }, Change::Drop] {
        let body = Request::Change { region, epoch: Epoch(2), change };
        cluster.forge(1, 0, &Message::Request { id: RequestId(1), body });
        cluster.run();
    }
    let mut read = [0; 12];
    cluster.hosts[0].path.read(session, lh, 0, &mut read).unwrap();
    assert_eq!(&read, b"what is ours");
}

#[test]
fn unbounded_requests_are_refused() {
    let mut cluster = Cluster::of(2);
    let (service, name) = (Service::Barrier, "gate".to_string());
    let everyone = Permissions::all();
    let made = cluster.command(0, Command::Anchor { service, name, everyone });
    let Ok(Outcome::Mapped { slot, region }) = made else { panic!("{made:?}") };
    let Ok(Outcome::Info(info)) = cluster.command(0, Command::StatHandle(slot)) else { panic!("no info") };
    let home = info.home.0 as usize;
    let requester = 1 - home;
    // The requests wait for participants that never arrive. A repeated id does not count as another request.
    let ids = (0..REQUESTS_OF_NODE_MAX as u64 + 3).chain([0]).map(|id| RequestId(1 << 40 | id));
    for id in ids {
        let (participants, timeout_ns) = (u32::MAX, u64::MAX / 2);
        let principal = Principal("ada".into());
        let body = Request::Arrive { region, principal, participants, timeout_ns };
        cluster.forge(requester, home, &Message::Request { id, body });
    }
    let figures = |cluster: &Cluster| cluster.hosts[home].engine.figures(cluster.now_ns).requests_served;
    assert_eq!(figures(&cluster), REQUESTS_OF_NODE_MAX as u64);
    let request = RequestId(1 << 40);
    cluster.forge(requester, home, &Message::Notice(Notice::Withdraw { region, request }));
    // A withdrawn request cannot be withdrawn again.
    cluster.forge(requester, home, &Message::Notice(Notice::Withdraw { region, request }));
    assert_eq!(figures(&cluster), REQUESTS_OF_NODE_MAX as u64 - 1);
    cluster.record(home, requester);
    cluster.run();
    let now_ns = cluster.now_ns;
    cluster.hosts[home].engine.handle_disconnected(now_ns, PeerId(requester as u32 + 1), None);
    assert_eq!(figures(&cluster), 0);
    let max = REQUESTS_OF_NODE_MAX as u64;
    let refusals = cluster.recorded().into_iter().filter(|frame| {
        let Ok(Some(bytes)) = link::Assembler::default().handle_frame(frame) else { return false };
        let refusal = Err(ErrorReply::TooManyRequests { max });
        matches!(message::decode(&bytes), Ok(Message::Reply { body, .. }) if body == refusal)
    });
    assert_eq!(refusals.count(), 3);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn scrambled_messages_do_no_harm(
        picks in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<u8>(), 0..4u8), 1..40),
    ) {
        let frames = conversation();
        let mut cluster = Cluster::of(2);
        let lh = cluster.alloc(0, "ours", 3 * CHUNK_BYTES, Placement::Spread(vec![NodeId(0), NodeId(1)]));
        let data: Vec<u8> = (0..3 * CHUNK_BYTES).map(|index| index as u8).collect();
        cluster.write(0, lh, 0, &data[..CHUNK_BYTES as usize]);
        for (which, at, bits, flips) in picks {
            let mut frame = frames[which.index(frames.len())].clone();
            for flip in 0..flips {
                let at = (at.index(frame.len()) + usize::from(flip)) % frame.len();
                frame[at] ^= bits;
            }
            let now_ns = cluster.now_ns;
            cluster.hosts[0].engine.handle_message(now_ns, PeerId(2), &frame);
            cluster.run();
        }
        // Unless the scrambled peer made this node give up its region, its bytes are still there.
        let mut first = [0; 16];
        let host = &cluster.hosts[0];
        if host.path.read(host.session, lh, 0, &mut first).is_ok() {
            prop_assert_eq!(&first[..], &data[..16]);
        }
        // The node still works.
        let session = cluster.hosts[0].session;
        let op = cluster.hosts[0].engine.submit(cluster.now_ns, session, Command::Status);
        cluster.run();
        prop_assert!(matches!(cluster.outcome(0, op), Some(Ok(Outcome::Status(_)))));
    }

    #[test]
    fn decoded_messages_round_trip(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        if let Ok(decoded) = message::decode(&bytes) {
            let encoded = message::encode(&decoded);
            prop_assert_eq!(message::decode(&encoded).unwrap(), decoded);
        }
    }
}
