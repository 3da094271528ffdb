//! The number of watchers of a region is limited. Notifications are tested by the conformance suite of sessions and by
//! the simulator.

use crate::common;

use common::{CHUNK_BYTES, Cluster};
use halite_tier::effect::{Command, Outcome, Placement};
use halite_tier::engine::WATCHERS_MAX;
use halite_tier::message::ErrorReply;

#[test]
fn watchers_of_a_region_are_bounded() {
    let mut cluster = Cluster::of(2);
    let slot = cluster.alloc(1, "salt", CHUNK_BYTES, Placement::Local);
    let mut watch = |port| cluster.command(1, Command::Watch { slot, port });
    let Ok(Outcome::Watching { region }) = watch(0) else { panic!("the first may watch") };
    for port in 1..WATCHERS_MAX as u32 {
        watch(port).unwrap();
    }
    let full = ErrorReply::TooManyWatchers { max: WATCHERS_MAX as u64 };
    assert_eq!(watch(u32::MAX), Err(full.into()));
    cluster.command(1, Command::Unwatch { region, port: 0 }).unwrap();
    assert!(cluster.command(1, Command::Watch { slot, port: u32::MAX }).is_ok());
}
