//! `rpc_memory`: utilization of a server's request memory, as in LITE, figure 12.
//!
//! The input of each call is as long as a key and its value in Facebook's Memcached (`values`). The ring's own code
//! computes the utilization: bytes that a request leaves free at the end of the ring, because it fits only at the
//! start, count as occupied. The baseline is the receive queues that RDMA send needs: each request occupies the
//! smallest buffer that holds it, and the buffer sizes are optimal for these requests.

use std::time::Instant;

use fastrand::Rng;
use halite::Config;
use halite_tier::rpc::{Input, Kind, RequestHeader, RingReader, RingWriter, SlotId};

use super::calls::Caller;
use super::server::ServerTask;
use super::values;
use super::workload::{Bench, IN_TURN, Measured, PerfArgs, Plan, Planned, Timer, Workload};

/// Seed of the sizes; fixed, so that runs are comparable.
const SEED: u64 = 0x4641_4345;

/// Length of a reply in bytes: a stamp.
const REPLY_BYTES: u64 = 8;

/// Names of the baseline's figures, by number of queues.
const QUEUES: [&str; 4] = ["1_queue_share", "2_queues_share", "3_queues_share", "4_queues_share"];

/// Maximum number of buffer sizes that the search for the optimum considers.
const CANDIDATES_MAX: usize = 512;

pub fn plan(_: &PerfArgs) -> Planned {
    let plan = Plan::of_one_size::<Requests>(IN_TURN, 0);
    Ok(Plan { iterations_max: 100_000, needs_server: true, ..plan })
}

/// Returns the sizes of the first `count` requests.
fn sizes(count: u64) -> Vec<u64> {
    let mut random = Rng::with_seed(SEED);
    let draw = |_| {
        let (key, value) = values::draw(&mut random);
        key + value
    };
    (0..count).map(draw).collect()
}

/// State of a client thread.
struct Requests {
    errors: u64,
}

impl Workload for Requests {
    fn setup(bench: &mut Bench) -> anyhow::Result<Vec<Requests>> {
        bench.start_server_threads(ServerTask {
            threads: 1,
            reply_bytes: REPLY_BYTES,
            ..bench.server_task()
        })?;
        Ok(vec![Requests { errors: 0 }])
    }

    fn operation(&mut self, bench: &Bench, timer: &Timer) -> anyhow::Result<Measured> {
        let mut left = sizes(bench.iterations).into_iter();
        let call = || {
            let size = left.next().expect("one for each call");
            let mut caller = Caller::new(&bench.end, 0, size, REPLY_BYTES);
            let begin = Instant::now();
            caller.call()?;
            let took = begin.elapsed();
            self.errors += caller.errors();
            Ok(took)
        };
        let mut measured = timer.singly(call, None::<fn() -> _>)?;
        // The rounds differ in the sizes of their calls, so only the total is comparable.
        measured.ours.rates = vec![measured.ours.rate];
        Ok(measured)
    }

    fn verify(self, _: &mut Bench) -> anyhow::Result<u64> {
        Ok(self.errors)
    }

    fn figures(bench: &Bench) -> Vec<(&'static str, f64)> {
        let sizes = sizes(bench.iterations);
        let lengths: Vec<u64> = sizes.iter().map(|size| request_bytes(*size)).collect();
        let Usage { sent, taken } = ring_usage(Config::default().request_ring_bytes, &lengths);
        let payload: u64 = sizes.iter().sum();
        let shares = [("ring_share", sent), ("ring_payload_share", payload)];
        let shares = shares.map(|(name, bytes)| (name, bytes as f64 / taken as f64));
        shares.into_iter().chain(QUEUES.into_iter().zip(queue_shares(QUEUES.len(), &lengths))).collect()
    }
}

/// Returns the bytes that a request occupies in the ring.
fn request_bytes(input_bytes: u64) -> u64 {
    let name_bytes = Config::default().principal().len() as u8;
    let header = RequestHeader {
        kind: Kind::Call,
        number: 0,
        slot: SlotId { index: 0, generation: 0 },
        reply_at: None,
        reply_bytes_max: REPLY_BYTES as u32,
        input_bytes: input_bytes as u32,
        input: Input::InRing,
        name_bytes,
        principal: None,
    };
    header.request_bytes()
}

/// Utilization of a ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Usage {
    /// Bytes of the requests themselves.
    sent: u64,
    /// Bytes by which the ring's head advanced, including skipped bytes.
    taken: u64,
}

/// Places requests in a ring. The server reads each request before the next one arrives.
fn ring_usage(ring_bytes: u64, lengths: &[u64]) -> Usage {
    let (mut writer, mut reader) = (RingWriter::new(ring_bytes), RingReader::new(ring_bytes));
    let mut usage = Usage { sent: 0, taken: 0 };
    // Longer requests stay in the caller's memory.
    let fitting = lengths.iter().filter(|len| **len <= writer.request_bytes_max());
    let fitting: Vec<u64> = fitting.copied().collect();
    for len in fitting {
        let place = writer.place(len).expect("all before it has been read");
        let lap_end = (ring_bytes - usage.taken % ring_bytes) % ring_bytes;
        let skipped = if place.offset == 0 { lap_end } else { 0 };
        usage.taken += skipped + len;
        usage.sent += len;
        writer.take(place);
        reader.arrive(place.offset).expect("where the writer says");
        reader.advance(len);
        if let Some(head) = reader.poll_head() {
            writer.set_head(head).expect("not beyond the tail");
        }
    }
    usage
}

/// Returns the fraction of receive buffers that requests fill, for 1 to `queues` buffer sizes.
fn queue_shares(queues: usize, lengths: &[u64]) -> Vec<f64> {
    let mut sorted = lengths.to_vec();
    sorted.sort_unstable();
    let total: u64 = sorted.iter().sum();
    let ends = candidates(sorted.len());
    // best[i] is the minimum number of buffer bytes for all requests up to candidate i, whose largest request the
    // candidate fits exactly.
    let cost = |from: usize, end: usize| (end - from) as u64 * sorted[end - 1];
    let mut best: Vec<u64> = ends.iter().map(|end| cost(0, *end)).collect();
    let mut shares = Vec::new();
    for _ in 0..queues {
        shares.push(total as f64 / best[best.len() - 1] as f64);
        let with_one_more = |i: usize| {
            let others = (0..i).map(|before| best[before] + cost(ends[before], ends[i]));
            others.chain([best[i]]).min().expect("there is one")
        };
        best = (0..ends.len()).map(with_one_more).collect();
    }
    shares
}

/// Returns, for each candidate size, the number of requests that fit. Candidates are evenly spread over the sorted
/// requests. In addition, each of the longest requests is a candidate, because their lengths differ most.
fn candidates(count: usize) -> Vec<usize> {
    let half = CANDIDATES_MAX / 2;
    let tail = count.saturating_sub(half);
    let spread = (1..=half).map(|step| tail * step / half);
    let mut ends: Vec<usize> = spread.chain(tail + 1..=count).filter(|end| *end > 0).collect();
    ends.dedup();
    ends
}
