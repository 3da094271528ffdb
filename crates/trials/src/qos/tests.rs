//! Writes of low priority in both directions at once.

use super::*;

/// Regression: each adapter sent requests without a pause and no acknowledgement, until the other one gave up.
#[test]
fn writes_in_both_directions_share_no_link() {
    let world = World::new(0, Profile::named("cx3-40g").expect("it is built in"));
    let written = Rc::new(Written::default());
    let (here, total) = (world.clone(), written.clone());
    world.spawn(None, "qos", async move {
        let cluster = Cluster::start(&here).await;
        let end_ns = here.now_ns() + 10_000_000;
        let writing = Rc::new(Cell::new(0));
        for (node, peer) in [(0, 1), (1, 0)] {
            let session =
                cluster.session(node).with_priority(Priority::Low).expect("no principal is limited");
            for _ in 0..STREAMS {
                let on = Placement::On(NodeId(peer));
                let made = session.alloc(None, REGION_BYTES, on, Permissions::empty()).await;
                let stream = Stream {
                    world: here.clone(),
                    session: session.clone(),
                    lh: made.expect("there is room"),
                    is_small: false,
                    written: written.clone(),
                };
                let writing = writing.clone();
                writing.set(writing.get() + 1);
                here.spawn(Some(cluster.host(node)), "stream", async move {
                    stream.write(0..end_ns).await;
                    writing.set(writing.get() - 1);
                });
            }
        }
        while writing.get() > 0 {
            here.sleep(None, Duration::from_micros(100)).await;
        }
    });
    assert_eq!(world.run_until(DEADLINE_NS), RunEnd::Finished);
    world.end();
    let mean = total.bytes.get() / 10_000;
    assert!(mean > 2 * 4_000 * 95 / 100, "{mean} MB/s of 8000");
}
