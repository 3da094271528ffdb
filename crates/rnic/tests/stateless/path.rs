//! The retransmission timeout follows the path: a longer one causes few spurious repeats, a shorter one a fast repair.

use halite_rnic::stateless::WINDOW_PACKETS;

use super::kinds::{Act, acts, execute};
use super::*;

const MS: u64 = 1_000_000;

/// One of the requests of a run: with one packet under way, or with a window of them.
fn works() -> [(&'static str, Work); 4] {
    let bytes = vec![7; 8];
    [
        ("read", Work::Read { address: 0, len: 8 }),
        ("long read", Work::Read { address: 0, len: 60_000 }),
        ("write", Work::Write { address: 0, bytes: bytes.clone() }),
        ("call", Work::Call { bytes }),
    ]
}

/// Executes requests one after the other. Returns the percentage of packets that were repeats, and the time in ns.
fn run(world: &mut World, work: &Work, count: usize) -> (u64, u64) {
    let (begin_ns, (sent, repeated)) = (world.now_ns, world.requester.packets_sent());
    for _ in 0..count {
        assert!(matches!(world.execute(work.clone()), Outcome::Success(_)));
    }
    let (sent, repeated) =
        (world.requester.packets_sent().0 - sent, world.requester.packets_sent().1 - repeated);
    (100 * repeated / sent, world.now_ns - begin_ns)
}

#[test]
fn few_packets_are_repeated_once_the_path_has_become_longer() {
    for (name, work) in works() {
        let mut world = World::new(Rights::ReadWrite);
        world.delay_ns = MS / 10;
        run(&mut world, &work, 20);
        world.delay_ns = 10 * MS;
        run(&mut world, &work, 3);
        let (percent, _) = run(&mut world, &work, 100);
        assert!(percent < 2, "{name}: {percent} % of packets are repeats");
    }
}

#[test]
fn few_packets_are_repeated_on_a_path_with_jitter() {
    for (name, work) in works() {
        let mut world = World::new(Rights::ReadWrite);
        run(&mut world, &work, 20);
        (world.delay_ns, world.jitter_ns) = (MS, 4 * MS);
        run(&mut world, &work, 3);
        let (percent, _) = run(&mut world, &work, 300);
        assert!(percent < 2, "{name}: {percent} % of packets are repeats");
    }
}

#[test]
fn a_loss_is_repaired_soon_once_the_path_has_become_shorter() {
    for (name, work) in works().into_iter().filter(|(name, _)| *name != "call") {
        let mut world = World::new(Rights::ReadWrite);
        world.delay_ns = 10 * MS;
        run(&mut world, &work, 20);
        world.delay_ns = MS / 10;
        let (_, unhurt_ns) = run(&mut world, &work, 40);
        world.chosen = Some((0, Vec::new()));
        let (_, ns) = run(&mut world, &work, 1);
        let late_ns = ns - unhurt_ns / 40;
        assert!((MS..3 * MS).contains(&late_ns), "{name}: {late_ns} ns late");
    }
}

#[test]
fn one_percent_loss_leaves_at_least_half_of_the_goodput() {
    for delay_ns in [DELAY_NS, MS, 10 * MS] {
        // Without a limit of the bandwidth, a long read has too many packets per round trip for this comparison.
        for (name, work) in works().into_iter().filter(|(name, _)| *name != "long read") {
            let mut world = World { delay_ns, ..World::new(Rights::ReadWrite) };
            run(&mut world, &work, 30);
            let (_, unhurt_ns) = run(&mut world, &work, 300);
            world.faults.lost = 1;
            let (_, ns) = run(&mut world, &work, 300);
            assert!(ns < 2 * unhurt_ns, "{name}, {delay_ns} ns: {ns} ns instead of {unhurt_ns}");
        }
    }
}

/// Executes `act` as often as `count`. Returns the time in ns.
fn execute_all(world: &mut World, act: &Act, count: usize) -> u64 {
    let begin_ns = world.now_ns;
    (0..count).for_each(|_| execute(world, act));
    world.now_ns - begin_ns
}

#[test]
fn one_percent_loss_of_any_kind_leaves_at_least_half_of_the_goodput() {
    // The packets of each kind of request and order, by their opcodes.
    let packets = |kind: &str| -> &[(&str, u8)] {
        match kind {
            "RD" => &[("RD", 0xe0), ("RDA", 0xe1)],
            "GD" => &[("GD", 0xe2), ("GDA", 0xe3)],
            "FETCH_ADD" => &[("FETCH_ADD", 0xe7), ("ATA", 0xe9)],
            "COMPARE_SWAP" => &[("COMPARE_SWAP", 0xe8)],
            "SEND" => &[("SEND", 0xea), ("SENDA", 0xeb)],
            "CALL" => &[("CALL", 0xec), ("CALLA", 0xed)],
            "CALL with a long answer" => &[("GDC", 0xef), ("GDA", 0xe3)],
            "CALL with a long input" => &[("CALL", 0xec), ("RDC", 0xcf), ("RDA", 0xe1)],
            "RDM" => &[("RDM", 0xee), ("RDA", 0xe1)],
            "WQEP of a read" => &[("WQEP", 0xe4), ("RD", 0xe0), ("RDA", 0xe1), ("CQEP", 0xe6), ("EA", 0xe5)],
            "WQEP of a write" => &[("WQEP", 0xe4), ("GD", 0xe2), ("GDA", 0xe3), ("CQEP", 0xe6)],
            _ => &[("WQEP", 0xe4), ("CQEP", 0xe6), ("EA", 0xe5)],
        }
    };
    for delay_ns in [DELAY_NS, MS, 10 * MS] {
        for (kind, act) in acts() {
            let mut world = World { delay_ns, ..World::new(Rights::ReadWrite) };
            execute_all(&mut world, &act, 30);
            let unhurt_ns = execute_all(&mut world, &act, 400);
            for (packet, opcode) in packets(kind) {
                let mut world = World { delay_ns, faulty: Some(*opcode), ..World::new(Rights::ReadWrite) };
                execute_all(&mut world, &act, 30);
                world.faults.lost = 1;
                let ns = execute_all(&mut world, &act, 400);
                let lost = world.lost;
                assert!(lost > 0, "{kind}: no {packet} was lost");
                assert!(
                    ns < 2 * unhurt_ns,
                    "{kind}, {delay_ns} ns: {ns} ns instead of {unhurt_ns} with {lost} {packet} lost"
                );
            }
        }
    }
}

/// All timeouts before the first answer over the longer path count as one loss.
#[test]
fn a_longer_path_halves_the_window_once() {
    let mut world = World::new(Rights::ReadWrite);
    let work = Work::Read { address: 0, len: 60_000 };
    run(&mut world, &work, 40);
    let full = world.requester.window_packets();
    assert!(full >= 8 * WINDOW_PACKETS, "{full} packets");
    world.delay_ns = 10 * MS;
    let begin_ns = world.now_ns;
    let (mut posted, mut ended) = (0, 0);
    while ended < 8 {
        if posted < 8 && world.now_ns >= begin_ns + posted * 2 * MS {
            world.requester.post_to(posted, KEY, Work::Read { address: 0, len: 8 }, true).unwrap();
            posted += 1;
        }
        assert!(world.step());
        ended += std::iter::from_fn(|| world.requester.poll_done()).count();
    }
    let halved = world.requester.window_packets();
    assert!(halved >= full / 2, "{halved} of {full} packets");
}
