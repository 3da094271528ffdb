//! The phases over a slow link, and writes of low priority in both directions at once.

use super::*;

const LONG_BYTES: u64 = 4 << 20;

/// Two simulated adapters with 1 Gb/s, so that few packets pass.
#[test]
fn each_policy_gives_its_shares() {
    let cx3 = Profile::named("cx3-40g").expect("it is built in");
    let slow = Profile { bandwidth_bytes_per_us: 125, retransmit_ns: 50_000_000, ..cx3 };
    let rows = qos(&slow);
    let [sw_pri, hw_sep, none] = &rows[..] else { panic!("{rows:?}") };
    assert!(sw_pri.high_alone > 120.0 && sw_pri.low_alone > 0.95 * sw_pri.high_alone, "{sw_pri:?}");
    assert!(sw_pri.high_beside > 0.85 * sw_pri.high_alone && sw_pri.low_beside > 2.0, "{sw_pri:?}");
    assert!(sw_pri.small_p99_us_beside < none.small_p99_us_beside / 2.0, "{rows:?}");
    let shares = [hw_sep.high_alone, hw_sep.high_beside, hw_sep.low_alone, hw_sep.low_beside];
    for (rate, share) in shares.into_iter().zip([0.75, 0.75, 0.25, 0.25]) {
        assert!((rate / 125.0 - share).abs() < 0.02, "{hw_sep:?}");
    }
    assert!((none.high_beside / none.low_beside - 1.0).abs() < 0.1, "{none:?}");
}

/// A quarter of a link of 1 Gb/s is for low priority.
#[test]
fn short_reads_of_low_priority_pass_long_ones() {
    let cx3 = Profile::named("cx3-40g").expect("it is built in");
    let slow = Profile { bandwidth_bytes_per_us: 125, ..cx3 };
    let world = World::new(0, slow);
    let times_us = Rc::new(RefCell::new(Vec::new()));
    let (here, times) = (world.clone(), times_us.clone());
    world.spawn(None, "qos", async move {
        let cluster = Cluster::start(&here).await;
        let qos = Qos { policy: Policy::HwSep, rate: Some(125_000_000) };
        cluster.session(0).set_qos(qos).await.expect("the settings are valid");
        let low = |_| cluster.session(0).with_priority(Priority::Low).expect("no principal is limited");
        let [greedy, polite] = [0, 1].map(low);
        let mut regions = Vec::new();
        for (session, bytes) in [(&greedy, LONG_BYTES), (&polite, 64)] {
            let there = Placement::On(NodeId(1));
            let allocated = session.alloc(None, bytes, there, Permissions::all()).await;
            regions.push(allocated.expect("there is room"));
        }
        let [long, short] = regions[..] else { unreachable!("two regions were allocated") };
        let is_read = Rc::new(Cell::new(false));
        let read = is_read.clone();
        here.spawn(Some(cluster.host(0)), "long read", async move {
            greedy.read(long, 0, &mut vec![0; LONG_BYTES as usize]).await.expect("the region exists");
            read.set(true);
        });
        while !is_read.get() {
            let begin_ns = here.now_ns();
            polite.read(short, 0, &mut [0; 64]).await.expect("the region exists");
            times.borrow_mut().push((here.now_ns() - begin_ns) / 1000);
        }
    });
    assert_eq!(world.run_until(DEADLINE_NS), RunEnd::Finished);
    world.end();
    let (count, longest_us) = (times_us.borrow().len(), times_us.borrow().iter().copied().max().unwrap_or(0));
    // The long read takes 134 ms, and each of its parts half a millisecond.
    assert!(count > 100 && longest_us < 2_000, "{count} reads, at most {longest_us} us");
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
