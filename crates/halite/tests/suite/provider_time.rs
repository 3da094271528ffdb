//! A provider that has something to do after a while is polled by then, though nothing arrives.

use crate::common;

use std::sync::Arc;
use std::time::Duration;

use common::Dir;
use common::no_direct::NoDirect;
use halite::Node;
use halite_fabric::Fabric;

#[test]
fn an_idle_node_polls_a_provider_as_soon_as_that_wants_and_sleeps_long_when_it_no_longer_does() {
    let dir = Dir::new();
    let mut wrapped = None;
    let wrap = |fabric| -> Arc<dyn Fabric> { wrapped.insert(Arc::new(NoDirect::new(fabric))).clone() };
    let _node = Node::wrap(dir.config(0), wrap).expect("the node joins");
    let fabric = wrapped.expect("it was wrapped");

    let wanted = Duration::from_millis(3);
    fabric.poll_within(Some(wanted));
    // The first sleep may have been measured before, and the ring ends it.
    let sleeps = fabric.sleeps(7);
    for pair in sleeps[1..].windows(2) {
        let [(timeout, polls_before), (_, polls_after)] = pair else { unreachable!("they are two") };
        assert!(timeout.is_some_and(|timeout| timeout <= wanted), "{sleeps:?}");
        assert!(polls_after > polls_before, "nobody polled after a sleep: {sleeps:?}");
    }

    fabric.poll_within(None);
    let sleeps = fabric.sleeps(3);
    let is_long = |timeout: &Option<Duration>| timeout.is_none_or(|timeout| timeout > wanted);
    assert!(sleeps[1..].iter().any(|(timeout, _)| is_long(timeout)), "{sleeps:?}");
}
