//! A connection stays correct over any network and with any peer: neither end panics or hangs, memory that no request
//! names is unchanged, and each posted request ends exactly once.
//!
//! The input is a program: its first byte selects the options of both ends, each further byte selects the next step,
//! and the bytes behind it are its operands.

#![no_main]

use std::cell::RefCell;
use std::collections::VecDeque;
use std::time::Duration;

use halite_rnic::wire::{Packet, Psn, Qpn};
use halite_rnic::{
    Access, Config, Congestion, Event, Local, Memory, Mtu, Operation, QueuePair, Refused, Remote, Request,
    Retry, Source,
};
use libfuzzer_sys::fuzz_target;

const KEY: u32 = 1;
/// Length of the memory that requests may access. The memory behind it contains only `GUARD`.
const BYTES: usize = 4096;
const GUARD: u8 = 0xa5;
const LEASE_NS: u64 = 50_000_000;

struct Bytes(RefCell<Vec<u8>>);

impl Bytes {
    fn range(&self, key: u32, address: u64, len: u64) -> Result<std::ops::Range<usize>, Refused> {
        let end = address.checked_add(len).ok_or(Refused)?;
        if key == KEY && end <= BYTES as u64 { Ok(address as usize..end as usize) } else { Err(Refused) }
    }

    fn change(&self, key: u32, address: u64, change: impl FnOnce(u64) -> u64) -> Result<u64, Refused> {
        assert_eq!(address % 8, 0);
        let range = self.range(key, address, 8)?;
        let word = &mut self.0.borrow_mut()[range];
        let old = u64::from_le_bytes((&*word).try_into().expect("eight bytes"));
        word.copy_from_slice(&change(old).to_le_bytes());
        Ok(old)
    }
}

impl Memory for Bytes {
    fn check(&self, key: u32, _: Access, address: u64, len: u64) -> Result<(), Refused> {
        self.range(key, address, len).map(|_| ())
    }

    fn read(&self, key: u32, address: u64, target: &mut [u8]) -> Result<(), Refused> {
        target.copy_from_slice(&self.0.borrow()[self.range(key, address, target.len() as u64)?]);
        Ok(())
    }

    fn write(&self, key: u32, address: u64, source: &[u8]) -> Result<(), Refused> {
        self.0.borrow_mut()[self.range(key, address, source.len() as u64)?].copy_from_slice(source);
        Ok(())
    }

    fn fetch_add(&self, key: u32, address: u64, add: u64) -> Result<u64, Refused> {
        self.change(key, address, |old| old.wrapping_add(add))
    }

    fn compare_swap(&self, key: u32, address: u64, expected: u64, new: u64) -> Result<u64, Refused> {
        self.change(key, address, |old| if old == expected { new } else { old })
    }
}

struct End {
    qp: QueuePair,
    memory: Bytes,
    posted: u64,
    ended: u64,
    is_broken: bool,
    /// Packets in flight to this end.
    in_flight: VecDeque<Vec<u8>>,
    /// Sequence number of the last sent packet.
    last_psn: u32,
}

impl End {
    fn new(own: u32, peer: u32, options: u8) -> End {
        let config = Config {
            selective: options & 1 == 1,
            tells_waits: options & 2 == 2,
            congestion: [Congestion::Grant, Congestion::Delay, Congestion::Loss]
                [usize::from(options >> 2) % 3],
            mtu: Mtu::Bytes512,
            finds_path: true,
            send_queue_max: 16,
            send_bytes_max: 1024,
            reads_max: 2,
            answers_max: 2,
            room_packets: 4,
            retry: Retry::Lease(Duration::from_nanos(LEASE_NS)),
            ..Config::default()
        };
        let mut qp = QueuePair::new(config, Qpn::new(own), Psn::new(0xff_fffc));
        qp.ready_to_receive(Qpn::new(peer), Psn::new(0xff_fffc));
        qp.ready_to_send();
        let mut bytes = vec![0; BYTES];
        bytes.extend([GUARD; 64]);
        let memory = Bytes(RefCell::new(bytes));
        End {
            qp,
            memory,
            posted: 0,
            ended: 0,
            is_broken: false,
            in_flight: VecDeque::new(),
            last_psn: 0xff_fffc,
        }
    }

    fn post(&mut self, kind: u8, place: u8, len: u8) {
        // Some requests extend beyond the end of the memory, and some are not aligned to a word.
        let remote = Remote { rkey: KEY, address: u64::from(place) * 17 };
        let local = Local { key: KEY, address: u64::from(place) * 16 };
        let len = u32::from(len) * 5;
        let imm = (place & 1 == 0).then_some(u32::from(len));
        let word = Remote { rkey: KEY, address: u64::from(place) * 8 };
        let operation = match kind % 6 {
            0 => Operation::Send { bytes: vec![kind; len as usize], imm },
            1 => Operation::Write { source: Source::Inline(vec![kind; len as usize]), remote, imm },
            2 => Operation::Write { source: Source::Registered { local, len }, remote, imm },
            3 => Operation::Read { local, remote, len },
            4 => Operation::FetchAdd { remote: word, add: 1 },
            _ => Operation::CompareSwap { remote: word, expected: 0, new: u64::from(kind) },
        };
        let request = Request { id: self.posted, operation, signalled: true, solicited: false };
        if self.qp.post(request).is_ok() {
            self.posted += 1;
        }
    }

    fn transmit(&mut self, now_ns: u64) -> Option<Vec<u8>> {
        let mut buffer = vec![0; self.qp.packet_bytes_max()];
        let len = self.qp.poll_transmit(now_ns, &self.memory, &mut buffer)?;
        buffer.truncate(len - 4);
        let packet = Packet::parse(&buffer).expect("a sent packet is valid");
        self.last_psn = packet.psn.value();
        Some(buffer)
    }

    fn handle(&mut self, now_ns: u64, packet: &[u8]) {
        if let Ok(packet) = Packet::parse(packet) {
            self.qp.handle_packet(now_ns, &packet, &self.memory);
        }
        while let Some(event) = self.qp.poll_event() {
            assert!(!self.is_broken, "{event:?} after the end of the connection");
            match event {
                Event::Completed { id, .. } => {
                    assert_eq!(id, self.ended, "requests end once, in order");
                    self.ended += 1;
                }
                Event::Received { bytes, .. } => assert!(bytes.len() <= 1024),
                Event::Notified { .. } => {}
                Event::Broken { .. } => {
                    assert_eq!(self.ended, self.posted);
                    self.is_broken = true;
                }
            }
        }
    }
}

fn take<'a>(input: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (taken, rest) = input.split_at_checked(count)?;
    *input = rest;
    Some(taken)
}

fuzz_target!(|program: &[u8]| {
    let (mut now_ns, mut input) = (0, program);
    let Some(options) = take(&mut input, 1) else { return };
    let mut ends = [End::new(1, 2, options[0]), End::new(2, 1, options[0])];
    while let Some(step) = take(&mut input, 1) {
        let (side, step) = ((step[0] >> 7) as usize, step[0] & 0x7f);
        let Some(operand) = take(&mut input, 1) else { break };
        let operand = operand[0];
        let (now, end) = (now_ns, &mut ends[side]);
        match step % 10 {
            0 | 1 => {
                let Some(more) = take(&mut input, 2) else { break };
                end.post(operand, more[0], more[1]);
            }
            2 | 3 => {
                for _ in 0..operand % 8 {
                    let Some(packet) = ends[side].transmit(now) else { break };
                    ends[1 - side].in_flight.push_back(packet);
                }
            }
            4 => {
                for _ in 0..operand % 8 {
                    let Some(packet) = end.in_flight.pop_front() else { break };
                    end.handle(now, &packet);
                }
            }
            5 => {
                // Delivers a packet out of order, and later again in order.
                let at = usize::from(operand) % end.in_flight.len().max(1);
                if let Some(packet) = end.in_flight.get(at).cloned() {
                    end.handle(now, &packet);
                }
            }
            6 => {
                end.in_flight.pop_front();
            }
            7 => {
                // Delivers a forged packet: the destination is valid, and the sequence number is near the last one.
                let Some(forged) = take(&mut input, 12 + usize::from(operand % 64)) else { break };
                let mut forged = forged.to_vec();
                let near = ends[1 - side].last_psn.wrapping_add(u32::from(forged[11])).wrapping_sub(4);
                forged[5..8].copy_from_slice(&[0, 0, side as u8 + 1]);
                forged[9..12].copy_from_slice(&near.to_be_bytes()[1..]);
                ends[side].handle(now, &forged);
            }
            8 => {
                now_ns += u64::from(operand) * 20_000;
                end.qp.handle_timeout(now_ns);
            }
            _ => match operand % 8 {
                0 => end.qp.close(),
                1..=4 => end.qp.add_receives(u32::from(operand)),
                5 => end.qp.find_path(now),
                _ => end.qp.set_grant(now, u32::from(operand)),
            },
        }
    }
    for end in &mut ends {
        end.qp.add_receives(1000);
    }
    settle(&mut ends, now_ns);
    for end in &ends {
        assert_eq!(end.ended, end.posted, "each request ends");
        assert!(end.memory.0.borrow()[BYTES..].iter().all(|byte| *byte == GUARD));
    }
});

/// Delivers all packets until both ends are idle.
fn settle(ends: &mut [End; 2], mut now_ns: u64) {
    for _ in 0..100_000 {
        let mut is_quiet = true;
        for side in [0, 1] {
            while let Some(packet) = ends[side].transmit(now_ns) {
                ends[1 - side].in_flight.push_back(packet);
            }
            while let Some(packet) = ends[1 - side].in_flight.pop_front() {
                ends[1 - side].handle(now_ns, &packet);
                is_quiet = false;
            }
            ends[side].handle(now_ns, &[]);
        }
        if is_quiet {
            // Connections also probe their path once a minute, until they end.
            let is_soon = |at: &u64| *at < now_ns + 100 * LEASE_NS;
            let timeouts = ends.iter().filter_map(|end| end.qp.poll_timeout());
            let Some(next) = timeouts.filter(is_soon).min() else { return };
            now_ns = now_ns.max(next);
            ends.iter_mut().for_each(|end| end.qp.handle_timeout(now_ns));
        }
    }
    panic!("the connection never becomes idle");
}
