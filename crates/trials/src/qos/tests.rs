//! The phases over a slow link, and writes of low priority in both directions at once.

use super::*;

/// Two simulated adapters with 1 Gb/s, so that few packets pass.
#[test]
fn each_policy_gives_its_shares() {
    let cx3 = Profile::named("cx3-40g").expect("it is built in");
    let slow = Profile { bandwidth_bytes_per_us: 125, retransmit_ns: 50_000_000, ..cx3 };
    let table = qos(&slow);
    let rows: Vec<Vec<f64>> = table
        .lines()
        .skip(2)
        .map(|line| line.split('|').filter_map(|cell| cell.trim().parse().ok()).collect())
        .collect();
    let [sw_pri, hw_sep, none] = &rows[..] else { panic!("{table}") };
    let [high_alone, high_beside, low_alone, low_beside, _, small_beside, ..] = sw_pri[..] else {
        panic!("{table}")
    };
    assert!(high_alone > 120.0 && low_alone > 0.95 * high_alone, "{table}");
    assert!(high_beside > 0.85 * high_alone && low_beside > 2.0, "{table}");
    assert!(small_beside < none[5] / 2.0, "{table}");
    for (index, share) in [0.75, 0.75, 0.25, 0.25].into_iter().enumerate() {
        assert!((hw_sep[index] / 125.0 - share).abs() < 0.02, "{table}");
    }
    assert!((none[1] / none[3] - 1.0).abs() < 0.1, "{table}");
}

/// Regression: each adapter sent requests without a pause and no acknowledgement, until the other one broke the
/// connection.
#[test]
fn writes_in_opposite_directions_do_not_compete() {
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
                    load: Load::Bulk,
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
