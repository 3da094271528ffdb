//! Measures the transport alone: two queue pairs in one thread, without a network.
//!
//! ```text
//! cargo run --release -p halite-rnic --example rnic_costs
//! ```
//!
//! Packets are written into one buffer, sealed, opened, parsed and carried out, and so are their responses.  The reported time is
//! CPU time of both ends together, so that other processes do not disturb it.

use std::cell::RefCell;

use halite_rnic::wire::{Flow, Packet, Psn, Qpn};
use halite_rnic::{
    Access, Config, Event, Local, Memory, Mtu, Operation, QueuePair, Refused, Remote, Request, Source,
};
use rustix::time::{ClockId, clock_gettime};

struct Bytes(RefCell<Vec<u8>>);

impl Memory for Bytes {
    fn check(&self, _key: u32, _access: Access, address: u64, len: u64) -> Result<(), Refused> {
        if address + len <= self.0.borrow().len() as u64 { Ok(()) } else { Err(Refused) }
    }

    fn read(&self, _key: u32, address: u64, target: &mut [u8]) -> Result<(), Refused> {
        target.copy_from_slice(&self.0.borrow()[address as usize..][..target.len()]);
        Ok(())
    }

    fn write(&self, _key: u32, address: u64, source: &[u8]) -> Result<(), Refused> {
        self.0.borrow_mut()[address as usize..][..source.len()].copy_from_slice(source);
        Ok(())
    }

    fn fetch_add(&self, _key: u32, _address: u64, _add: u64) -> Result<u64, Refused> {
        Err(Refused)
    }

    fn compare_swap(&self, _key: u32, _address: u64, _expected: u64, _new: u64) -> Result<u64, Refused> {
        Err(Refused)
    }
}

struct End {
    qp: QueuePair,
    memory: Bytes,
    outwards: Flow,
    inwards: Flow,
}

const MEMORY_BYTES: usize = 1 << 20;

fn pair(mtu: Mtu) -> [End; 2] {
    let addresses = ["10.0.0.1:4000", "10.0.0.2:5000"].map(|text| text.parse().expect("an address"));
    [0, 1].map(|own| {
        let config = Config { mtu, room_packets: 64, ..Config::default() };
        let mut qp = QueuePair::new(config, Qpn::new(own), Psn::new(0));
        qp.ready_to_receive(Qpn::new(1 - own), Psn::new(0));
        qp.ready_to_send();
        qp.add_receives(u32::MAX);
        qp.set_grant(0, 64);
        let (own, peer) = (addresses[own as usize], addresses[1 - own as usize]);
        let memory = Bytes(RefCell::new((0..MEMORY_BYTES).map(|at| (at % 251) as u8).collect()));
        End { qp, memory, outwards: Flow::new(own, peer), inwards: Flow::new(peer, own) }
    })
}

/// Exchanges packets until there are none.
fn settle(ends: &mut [End; 2], buffer: &mut [u8], packets: &mut u64) {
    loop {
        let before = *packets;
        for side in [0, 1] {
            let mut place = 0;
            loop {
                let from = &mut ends[side];
                let Some(len) = from.qp.poll_transmit(0, &from.memory, buffer) else { break };
                from.outwards.seal(place, &mut buffer[..len]);
                place = (place + 1) % 128;
                let to = &mut ends[1 - side];
                let body = to.inwards.open(&buffer[..len]).expect("undamaged");
                let packet = Packet::parse(body).expect("well-formed");
                to.qp.handle_packet(0, &packet, &to.memory);
                *packets += 1;
            }
        }
        if *packets == before {
            return;
        }
    }
}

/// CPU time of this process so far.
fn processor_ns() -> f64 {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    used.tv_sec as f64 * 1e9 + used.tv_nsec as f64
}

fn measure(name: &str, mtu: Mtu, rounds: u64, batch: u64, bytes: u64, operation: impl Fn() -> Operation) {
    let mut ends = pair(mtu);
    let mut buffer = vec![0; ends[0].qp.packet_bytes_max()];
    let (mut packets, mut completed) = (0, 0);
    let begin = processor_ns();
    for _ in 0..rounds {
        for id in 0..batch {
            // One in sixteen completes for itself and those before it.
            let signalled = id % 16 == 15 || batch == 1;
            let request = Request { id, operation: operation(), signalled, solicited: false };
            ends[0].qp.post(request).expect("room");
        }
        settle(&mut ends, &mut buffer, &mut packets);
        for end in &mut ends {
            while let Some(event) = end.qp.poll_event() {
                completed += u64::from(matches!(event, Event::Completed { .. }));
            }
        }
    }
    let ns = processor_ns() - begin;
    assert!(completed >= rounds && ends[0].qp.counters().repeated == 0);
    let done = (rounds * batch) as f64;
    println!(
        "{name:<34} {:8.0} ns each  {:6.0} ns a packet  {:6.2} GB/s",
        ns / done,
        ns / packets as f64,
        done * bytes as f64 / ns
    );
}

fn main() {
    let remote = Remote { rkey: 1, address: 0 };
    let local = Local { key: 1, address: 0 };
    let long = |len| Operation::Write { source: Source::Registered { local, len }, remote, imm: None };
    measure("write of 64 B, 64 at once", Mtu::Bytes4096, 20_000, 64, 64, || Operation::Write {
        source: Source::Inline(vec![7; 64]),
        remote,
        imm: Some(1),
    });
    for (mtu, name) in [(Mtu::Bytes1024, "1024"), (Mtu::Bytes4096, "4096")] {
        measure(&format!("write of 1 MiB, MTU {name}"), mtu, 2000, 1, 1 << 20, || long(1 << 20));
        let read = || Operation::Read { local, remote, len: 1 << 20 };
        measure(&format!("read of 1 MiB, MTU {name}"), mtu, 2000, 1, 1 << 20, read);
    }
}
