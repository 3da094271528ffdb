//! The stages of an adapter: a sending and a receiving unit, each for one packet at a time, and the caches that both
//! share.
//!
//! ```text
//!   doorbell ──> sending unit ──> wire ──> receiving unit ──> memory
//!                   │  └ payload: gathered from memory      │
//!                   └───── state of the queue pair, key, pages ─────┘ each a cache; a miss stalls the unit for `fetch_ns`
//! ```
//!
//! Caches replace a random entry. So their hit rate falls smoothly as more entries are in use, as measurements show. If
//! they replaced the least recently used entry, the hit rate would fall to zero abruptly. A message reads the
//! page-table entries of all its pages with its first packet. Acknowledgements are free: the unit that handles the
//! request generates them.
//!
//! Units are reserved in the order in which packets are sent. So a packet keeps its place at the receiving unit, even
//! if a packet that was sent later arrives earlier.

use std::collections::BTreeMap;

use halite_rnic::wire::{Headers, Packet};

use super::Net;
use crate::link::Delivery;
use crate::profile::Adapter;
use crate::random::Random;

/// Stages of one adapter; see the header of this file.
#[derive(Debug)]
pub(super) struct Stages {
    adapter: Adapter,
    sending: Unit,
    receiving: Unit,
    connections: Cache,
    keys: Cache,
    pages: Cache,
    /// The queue pair of the last packet sent, and the time at which it left the sending unit.
    last_sent: Option<(u32, u64)>,
}

/// Memory that a request accesses at its target.
#[derive(Clone, Copy, Debug)]
struct MemoryAccess {
    endpoint: u32,
    key: u32,
    offset: u64,
    len: u64,
    /// Length of the pages of the key's segment; `None` if the adapter needs no page table for it.
    page_bytes: Option<u64>,
}

/// A packet at the receiving unit.
#[derive(Debug)]
struct Arrival {
    at_ns: u64,
    /// Bus time of the payload.
    dma_ns: u64,
    takes_receive: bool,
    qp: u32,
    access: Option<MemoryAccess>,
}

/// Maximum number of page-table entries that one message reads. The wire limits longer messages anyway.
const PAGES_MAX: u64 = 1 << 12;

impl Stages {
    pub(super) fn new(adapter: Adapter) -> Stages {
        Stages {
            adapter,
            sending: Unit::default(),
            receiving: Unit::default(),
            connections: Cache::new(adapter.cached_connections),
            keys: Cache::new(adapter.cached_keys),
            pages: Cache::new(adapter.cached_pages),
            last_sent: None,
        }
    }

    /// Sends a packet of a queue pair over a wire that is free from `wire_free_ns` on. Returns the time at which the
    /// packet leaves the unit.
    fn send(&mut self, now_ns: u64, wire_free_ns: u64, qp: u32, gathers: bool, random: &mut Random) -> u64 {
        let stall_ns = self.lookup(qp, None, random);
        let is_prefetched =
            self.last_sent.is_some_and(|(last, left_ns)| last == qp && left_ns.max(wire_free_ns) >= now_ns);
        let (begin_ns, gather_ns) = match gathers && !is_prefetched {
            true => (now_ns.max(wire_free_ns), self.adapter.gather_ns),
            false => (now_ns, 0),
        };
        let left_ns = self.sending.serve(begin_ns, self.adapter.packet_ns + stall_ns + gather_ns);
        self.last_sent = Some((qp, left_ns));
        left_ns
    }

    /// Receives a packet. Returns the time at which its payload is in memory.
    fn receive(&mut self, arrival: &Arrival, random: &mut Random) -> u64 {
        let stall_ns = self.lookup(arrival.qp, arrival.access, random);
        let receive_ns = if arrival.takes_receive { self.adapter.receive_ns } else { 0 };
        let duration_ns = self.adapter.packet_ns + stall_ns + receive_ns + arrival.dma_ns;
        self.receiving.serve(arrival.at_ns, duration_ns)
    }

    /// Looks up all state for a packet. Returns the time for which misses stall the unit.
    fn lookup(&mut self, qp: u32, access: Option<MemoryAccess>, random: &mut Random) -> u64 {
        let mut misses = u64::from(self.connections.misses(u64::from(qp), random));
        if let Some(MemoryAccess { endpoint, key, offset, len, page_bytes }) = access {
            let key = u64::from(endpoint) << 32 | u64::from(key);
            misses += u64::from(self.keys.misses(key, random));
            if let Some(page_bytes) = page_bytes {
                let (first, last) = (offset / page_bytes, (offset + len.max(1) - 1) / page_bytes);
                for page in first..=last.min(first + PAGES_MAX) {
                    misses += u64::from(self.pages.misses(key.wrapping_mul(PAGE_SPREAD) ^ page, random));
                }
            }
        }
        misses * self.adapter.fetch_ns
    }
}

/// An odd factor that spreads keys over all 64 bits, so that pages of different keys differ.
const PAGE_SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// A unit that serves one packet at a time, in order.
#[derive(Debug, Default)]
struct Unit {
    free_ns: u64,
}

impl Unit {
    /// Serves a packet that is ready at `ready_ns`. Returns the time at which the packet is done.
    fn serve(&mut self, ready_ns: u64, duration_ns: u64) -> u64 {
        self.free_ns = self.free_ns.max(ready_ns) + duration_ns;
        self.free_ns
    }
}

/// A cache that replaces a random entry.
#[derive(Debug)]
struct Cache {
    capacity: usize,
    /// The cached entries, in no order.
    entries: Vec<u64>,
    /// Index in `entries` of each cached entry.
    indices: BTreeMap<u64, usize>,
}

impl Cache {
    fn new(capacity: u64) -> Cache {
        Cache { capacity: capacity as usize, entries: Vec::new(), indices: BTreeMap::new() }
    }

    /// Returns true if the entry was not cached, and caches it.
    fn misses(&mut self, entry: u64, random: &mut Random) -> bool {
        if self.indices.contains_key(&entry) {
            return false;
        }
        let index = match self.entries.len() < self.capacity {
            true => {
                self.entries.push(entry);
                self.entries.len() - 1
            }
            false => {
                let index = random.index(self.capacity);
                self.indices.remove(&std::mem::replace(&mut self.entries[index], entry));
                index
            }
        };
        self.indices.insert(entry, index);
        true
    }
}

impl Net {
    /// Passes a packet of a queue pair through the stages of both adapters and the wire between them; `transfer_ns` is
    /// the time on the buses of both ends, and `len` its length on the wire. Without stages, the time on the buses is
    /// latency alone.
    pub(super) fn pass_stages(
        &mut self,
        qp: u32,
        packet: &Packet<'_>,
        len: u64,
        transfer_ns: u64,
    ) -> Delivery {
        let (host, to) = self.hosts_of(qp);
        let profile = self.profile_of(qp);
        let (inline_bytes_max, dma_ns) =
            (profile.inline_bytes_max, profile.dma_ns(packet.payload.len() as u64));
        let is_free = matches!(packet.headers, Headers::Acknowledge(_));
        let wire = &self.wires[host as usize][to as usize];
        let (mut leaves_ns, wire_free_ns) = (self.now_ns, wire.free_ns());
        if let Some(stages) = self.hosts[host as usize].stages.as_deref_mut().filter(|_| !is_free) {
            let gathers = begins_payload(&packet.headers) && packet.payload.len() > inline_bytes_max;
            leaves_ns = stages.send(self.now_ns, wire_free_ns, qp, gathers, &mut self.random);
        }
        let wire = &mut self.wires[host as usize][to as usize];
        let mut delivery = wire.send_datagram(leaves_ns, len, &mut self.random, &mut self.counters);
        let access = self.memory_access(qp ^ 1, &packet.headers);
        if let Some(stages) = self.hosts[to as usize].stages.as_deref_mut().filter(|_| !is_free) {
            let arrival = Arrival {
                at_ns: delivery.on_time_ns,
                dma_ns,
                takes_receive: takes_receive(&packet.headers),
                qp: qp ^ 1,
                access,
            };
            delivery.on_time_ns =
                stages.receive(&arrival, &mut self.random) + transfer_ns.saturating_sub(dma_ns);
        } else {
            delivery.on_time_ns += transfer_ns;
        }
        delivery
    }

    /// Returns the time until which the sending unit of a queue pair's adapter is busy; 0 without stages.
    pub(super) fn sender_busy_until_ns(&self, qp: u32) -> u64 {
        let (host, _) = self.hosts_of(qp);
        self.hosts[host as usize].stages.as_deref().map_or(0, |stages| stages.sending.free_ns)
    }

    /// Returns the memory that a request accesses at its target.
    fn memory_access(&self, target: u32, headers: &Headers) -> Option<MemoryAccess> {
        let (key, offset, len) = match *headers {
            Headers::WriteFirst(reth) | Headers::WriteOnly { reth, .. } | Headers::ReadRequest(reth) => {
                (reth.rkey, reth.address, u64::from(reth.len))
            }
            Headers::FetchAdd(eth) | Headers::CompareSwap(eth) => (eth.rkey, eth.address, 8),
            _ => return None,
        };
        let endpoint = self.ends[self.end_of(target)].endpoint;
        let page_bytes = self.endpoints[endpoint as usize].page_bytes.get(&key).copied();
        Some(MemoryAccess { endpoint, key, offset, len, page_bytes })
    }
}

fn begins_payload(headers: &Headers) -> bool {
    matches!(
        headers,
        Headers::SendFirst | Headers::SendOnly { .. } | Headers::WriteFirst(_) | Headers::WriteOnly { .. }
    )
}

fn takes_receive(headers: &Headers) -> bool {
    match headers {
        Headers::SendLast { .. } | Headers::SendOnly { .. } => true,
        Headers::WriteLast { imm } | Headers::WriteOnly { imm, .. } => imm.is_some(),
        _ => false,
    }
}
