//! What a packet of a stranger costs: `cargo run --release -p halite-providers --example flood [ROUNDS]`.
//!
//! Datagrams of 64 bytes come to the port of a fabric, for queue pairs that are not there; and packets of 4 KiB that a peer has sent, for a queue pair
//! that is there, from another address than the peer's.  Told is the processor time of the thread that polls for each of them, the system's included.

use std::net::UdpSocket;
use std::path::Path;
use std::sync::Arc;

use halite_fabric::{Event, Fabric, Lane, Operation, WorkId, WorkRequest};
use halite_providers::{RoceConfig, RoceFabric};
use rustix::time::{ClockId, clock_gettime};

/// Datagrams that wait in the socket at a time: less than any buffer holds.
const BATCH: u64 = 64;

fn processor_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Has that many packets come from `stranger`, each as `write` makes it, and returns the nanoseconds that polling takes for each.
fn flood(
    fabric: &RoceFabric,
    rounds: u64,
    mut write: impl FnMut(u64) -> Vec<u8>,
) -> Result<u64, std::io::Error> {
    let stranger = UdpSocket::bind("127.0.0.1:0")?;
    let refused = || fabric.dropped().strangers + fabric.dropped().refused;
    let (before, mut spent_ns) = (refused(), 0);
    for round in 0..rounds {
        for index in 0..BATCH {
            stranger.send_to(&write(round * BATCH + index), fabric.local_address())?;
        }
        // Until the last of them has come nothing else is asked of the system.
        let begin_ns = processor_ns();
        while refused() < before + (round + 1) * BATCH {
            fabric.poll(&mut Vec::new());
        }
        spent_ns += processor_ns() - begin_ns;
    }
    Ok(spent_ns / (rounds * BATCH))
}

/// Connects a peer that sends 4 KiB, and returns that packet as it came.
fn packet_of_a_peer(fabric: &RoceFabric, dir: &Path) -> Result<(Arc<RoceFabric>, Vec<u8>), std::io::Error> {
    let pcap = dir.join("peer.pcap");
    let config = RoceConfig { pcap: Some(pcap.clone()), ..RoceConfig::new(dir, "peer") };
    let peer = RoceFabric::open(config).map_err(std::io::Error::other)?;
    peer.connect("flooded.sock", b"");
    let (mut events, bytes) = (Vec::new(), [7; 4096]);
    loop {
        peer.poll(&mut events);
        fabric.poll(&mut Vec::new());
        match events.pop() {
            Some(Event::Connected { peer: to, .. }) => {
                let operation = Operation::Send { bytes: &bytes, imm: 0 };
                let request = WorkRequest { id: WorkId(1), operation, signalled: true, solicited: true };
                peer.post(to, Lane::FIRST, &[request]).map_err(std::io::Error::other)?;
            }
            Some(Event::Completed(_)) => break,
            _ => {}
        }
    }
    // Behind the head of the file, records: a head of 16 bytes with the length of what follows, and IP, UDP and the packet.
    let file = std::fs::read(pcap)?;
    let mut rest = &file[24..];
    let is_data = |packet: &[u8]| packet.len() > 4096 && packet[0] < 0xc0;
    while rest.len() > 16 {
        let len = u32::from_le_bytes([rest[8], rest[9], rest[10], rest[11]]) as usize;
        let packet = &rest[16 + 28..16 + len];
        if is_data(packet) && rest[16 + 22..16 + 24] == fabric.local_address().port().to_be_bytes() {
            return Ok((peer, packet.to_vec()));
        }
        rest = &rest[16 + len..];
    }
    Err(std::io::ErrorKind::NotFound.into())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let rounds: u64 = std::env::args().nth(1).map_or(Ok(2_000), |text| text.parse())?;
    let dir = std::env::temp_dir().join(format!("halite-flood-{}", std::process::id()));
    let fabric = RoceFabric::open(RoceConfig::new(&dir, "flooded"))?;
    let ns = flood(&fabric, rounds, |number| {
        let mut packet = vec![0x0a; 64];
        packet[5..8].copy_from_slice(&number.to_be_bytes()[5..]);
        packet
    })?;
    println!("{ns} ns of processor time for each of {} packets of strangers", rounds * BATCH);
    let (peer, packet) = packet_of_a_peer(&fabric, &dir)?;
    let ns = flood(&fabric, rounds, |_| packet.clone())?;
    println!("{ns} ns for each of as many of a peer that come from elsewhere");
    drop((peer, fabric));
    std::fs::remove_dir_all(&dir)?;
    Ok(())
}
