//! What a packet of a stranger costs: `cargo run --release -p halite-providers --example flood [ROUNDS]`.
//!
//! Datagrams of 64 bytes come to the port of a fabric, for queue pairs that are not there.  Told is the processor time of the thread that polls
//! for each of them, the system's included.

use std::net::UdpSocket;

use halite_fabric::Fabric;
use halite_providers::{RoceConfig, RoceFabric};
use rustix::time::{ClockId, clock_gettime};

/// Datagrams that wait in the socket at a time: less than any buffer holds.
const BATCH: u64 = 64;

fn processor_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let rounds: u64 = std::env::args().nth(1).map_or(Ok(2_000), |text| text.parse())?;
    let dir = std::env::temp_dir().join(format!("halite-flood-{}", std::process::id()));
    let fabric = RoceFabric::open(RoceConfig::new(&dir, "flooded"))?;
    let stranger = UdpSocket::bind("127.0.0.1:0")?;
    let mut events = Vec::new();
    let (mut spent_ns, mut packet) = (0, [0x0a; 64]);
    for round in 0..rounds {
        for index in 0..BATCH {
            packet[5..8].copy_from_slice(&(round * BATCH + index).to_be_bytes()[5..]);
            stranger.send_to(&packet, fabric.local_address())?;
        }
        let begin_ns = processor_ns();
        while fabric.dropped().strangers < (round + 1) * BATCH {
            fabric.poll(&mut events);
        }
        spent_ns += processor_ns() - begin_ns;
    }
    let packets = rounds * BATCH;
    println!("{} ns of processor time for each of {packets} packets of strangers", spent_ns / packets);
    drop(fabric);
    std::fs::remove_dir_all(&dir)?;
    Ok(())
}
