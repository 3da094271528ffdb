//! The simulation of each published point.

use halite_fabric::Status;
use halite_sim::{Processor, Profile, RunEnd};

use crate::sockets::Sockets;
use crate::tier::{Entry, Writes, call_ns};
use crate::verbs::{PAGE_BYTES, Run, Verb, one_way_ns};

const MB: u64 = 1 << 20;
/// Number of requests before a measurement that fill the caches, enough for the largest cache.
const CACHE_WARM_UP: u64 = 40_000;

/// The reason why a point has no simulated value.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum Unsimulated {
    #[error("the profile has no table [processor], which this point needs")]
    NoProcessor,
    #[error("{field} of the profile is {value}, but this point needs {needed}")]
    Limit { field: &'static str, value: usize, needed: usize },
    #[error("a connection was not established within connect_timeout_ns of the profile")]
    NotConnected,
    #[error("a request failed with status {0:?}")]
    Request(Status),
    #[error("the simulation stopped: each task waits for an event that no task causes")]
    Stuck,
    #[error("the experiment takes too many steps, for example because packets are sent again and again")]
    Endless,
    #[error("{0}")]
    Failed(String),
}

impl Unsimulated {
    pub(crate) fn check(field: &'static str, value: usize, needed: usize) -> Result<(), Unsimulated> {
        if value < needed { Err(Unsimulated::Limit { field, value, needed }) } else { Ok(()) }
    }

    pub(crate) fn unless_finished(end: &RunEnd) -> Result<(), Unsimulated> {
        match end {
            RunEnd::Finished => Ok(()),
            RunEnd::Stuck { .. } => Err(Unsimulated::Stuck),
            RunEnd::StepsExhausted { .. } | RunEnd::DeadlineReached => Err(Unsimulated::Endless),
        }
    }
}

/// Returns the simulated value of a line at `x`, in the unit of its axis. Panics if the figure has no such line.
pub(crate) fn adapter(figure: &str, line: &str, x: f64, profile: &Profile) -> Result<f64, Unsimulated> {
    let n = x as u64;
    let us = |ns: f64| ns / 1e3;
    let processor = profile.processor.ok_or(Unsimulated::NoProcessor);
    Ok(match (figure, line) {
        ("lite-4", "verbs") => {
            let run =
                Run { regions: n, warm_up: CACHE_WARM_UP, requests: 5_000, ..Run::single(Verb::Write, 64) };
            us(run.mean_ns(profile)?)
        }
        ("lite-4", "LITE") => {
            let writes = Writes { regions: n, ..Writes::single(Entry::SystemCall, 64) };
            us(writes.mean_ns(profile)?)
        }
        ("lite-5", "verbs, 64 B") => 1e3 / verbs_over(n * MB, 64).mean_ns(profile)?,
        ("lite-5", "verbs, 1 KB") => 1e3 / verbs_over(n * MB, 1024).mean_ns(profile)?,
        ("lite-5", "LITE, 64 B") => 1e3 / tier_over(n * MB, 64).mean_ns(profile)?,
        ("lite-5", "LITE, 1 KB") => 1e3 / tier_over(n * MB, 1024).mean_ns(profile)?,
        ("lite-6", "verbs") => us(Run::single(Verb::Write, n).mean_ns(profile)?),
        ("lite-6", "LITE, kernel") => us(Writes::single(Entry::Function, n).mean_ns(profile)?),
        ("lite-6", "LITE, user") => us(Writes::single(Entry::SystemCall, n).mean_ns(profile)?),
        ("lite-7", "verbs, 1 thread") => x / Run::single(Verb::Write, n).mean_ns(profile)?,
        ("lite-7", "verbs, 8 threads") => {
            let run = Run { connections: 8, active: 8, requests: 1_600, ..Run::single(Verb::Write, n) };
            x / run.mean_ns(profile)?
        }
        ("lite-7", "LITE, 1 thread") => x / Writes::single(Entry::SystemCall, n).mean_ns(profile)?,
        ("lite-7", "LITE, 8 threads") => {
            x / Writes { threads: 8, ..Writes::single(Entry::SystemCall, n) }.mean_ns(profile)?
        }
        ("lite-8", "verbs register") => {
            us(registration_ns(processor?, n, |own| (own.register_ns, own.register_page_ns)))
        }
        ("lite-8", "verbs deregister") => {
            us(registration_ns(processor?, n, |own| (own.deregister_ns, own.deregister_page_ns)))
        }
        ("lite-10", "LITE, user") => us(call_ns(profile, Entry::SystemCall, n)?),
        ("lite-10", "LITE, kernel") => us(call_ns(profile, Entry::Function, n)?),
        ("lite-10", "two verbs writes") => {
            us(Run::single(Verb::Write, 8).mean_ns(profile)?
                + Run::single(Verb::Write, n).mean_ns(profile)?)
        }
        ("star-1", "reliable connections") => {
            let run = Run {
                connections: n as usize,
                targets: 3,
                active: 192,
                warm_up: CACHE_WARM_UP,
                requests: 60_000,
                ..Run::single(Verb::Read, 32)
            };
            1e3 / run.mean_ns(profile)?
        }
        ("slow-2", "RDMA, throughput") => {
            // More messages would not change the mean.
            let requests = (64 * MB / n).clamp(100, 5_000);
            x / Run { depth: 64, requests, ..Run::single(Verb::Write, n) }.mean_ns(profile)?
        }
        ("slow-2", "RDMA write") => us(one_way_ns(profile, n)?),
        ("slow-2", "RDMA read") => us(Run::single(Verb::Read, n).mean_ns(profile)?),
        ("slow-2", "atomic") => us(Run::single(Verb::FetchAdd, n).mean_ns(profile)?),
        ("slow-3", "RDMA write, client" | "RDMA read, client" | "atomic, client") => {
            processor?.cycles(profile.post_ns + profile.doorbell_ns + profile.poll_ns)
        }
        ("slow-3", "RECEIVE, server") => processor?.cycles(profile.poll_ns),
        _ => panic!("no experiment simulates {line} of {figure}"),
    })
}

/// Returns the value of a line of sockets at a message length, by formula, in the unit of its axis.
pub(crate) fn sockets(line: &str, bytes: f64, sockets: &Sockets) -> f64 {
    match line.split_once(", ") {
        Some((_, "throughput")) => sockets.throughput_gb_s(bytes),
        Some((_, "latency")) => sockets.latency_us(bytes),
        _ => sockets.cycles(bytes),
    }
}

fn verbs_over(region_bytes: u64, bytes: u64) -> Run {
    Run {
        region_bytes,
        depth: 16,
        warm_up: CACHE_WARM_UP,
        requests: 10_000,
        ..Run::single(Verb::Write, bytes)
    }
}

fn tier_over(region_bytes: u64, bytes: u64) -> Writes {
    Writes { region_bytes, threads: 8, ..Writes::single(Entry::SystemCall, bytes) }
}

fn registration_ns(processor: Processor, bytes: u64, of: impl Fn(&Processor) -> (u64, u64)) -> f64 {
    let (base_ns, page_ns) = of(&processor);
    (base_ns + bytes.div_ceil(PAGE_BYTES) * page_ns) as f64
}
