//! `write_lat` as in perftest: both sides write to each other in turn, each polling its own memory.
//!
//! ```text
//!  client                            server
//!  write: payload, stamp 1  ------>  polls the last word of its own region until it is 1
//!  polls its own region     <------  write: payload, stamp 1
//!  write: payload, stamp 2  ------>  ...                          a result is half of such a round trip
//! ```

use std::time::{Duration, Instant};

use anyhow::bail;
use halite::{Lh, NodeId, Permissions, Placement, Posted, blocking};

use super::access::{self, WRITES};
use super::end::End;
use super::job::wrong;
use super::pairs::Partner;
use super::parcel::{differs, pattern};
use super::server::{CLIENT, ServerTask};
use super::workload::{Bench, PerfArgs, Plan, Planned, WORD_BYTES};

/// Timeout of an answer, after which the measurement assumes that the other side is dead.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Interval at which a waiting side checks that the other one is still a node.
const LIVENESS_INTERVAL: Duration = Duration::from_millis(100);

/// Longest write that is sent completely when it is posted; below the maximum that one access may have in progress.
const POSTED_BYTES_MAX: u64 = 512 << 10;

/// Number of reads of the word per reading of the clock.
const READS_PER_CLOCK: u32 = 1 << 8;

/// Plans a ping-pong of writes of at least a word. With --completion, plans writes that are timed without answers.
pub fn plan(args: &PerfArgs) -> Planned {
    if args.completion {
        return access::plan::<WRITES>(args);
    }
    if args.is_random() {
        return Err(wrong("a ping-pong writes to one place: add --completion to write at random places"));
    }
    if args.size.is_some_and(|size| !size.0.is_multiple_of(WORD_BYTES)) {
        return Err(wrong(
            "a ping-pong writes whole words: -s must be a multiple of 8; --completion measures other sizes",
        ));
    }
    let mut plan = Plan::of::<Player>("half a ping-pong of writes");
    let too_short = "a ping-pong needs -s of at least 8 bytes; --completion measures smaller writes";
    plan.limits.push((WORD_BYTES..=u64::MAX, too_short));
    Ok(Plan { needs_server: true, ..plan })
}

/// One side of a pair. As in perftest, the stamp is the last word of a write, so a reader that sees the stamp has
/// received the whole write.
pub struct Player {
    session: blocking::Session,
    peer: NodeId,
    own: Lh,
    other: Lh,
    payload_bytes: u64,
    payload: Vec<u8>,
    /// The last write with its payload, until it has completed.
    posted: Option<Posted<Vec<u8>>>,
    stamp: u64,
}

/// Returns the names of a thread's regions, at the client and at the server.
fn region_names(thread: usize) -> [String; 2] {
    ["perf-client", "perf-server"].map(|end| format!("{end}-{thread}"))
}

impl Partner for Player {
    /// Creates the regions of both sides; only the client does.
    fn prepare(bench: &mut Bench) -> anyhow::Result<()> {
        if bench.regions.is_empty() {
            for thread in 0..bench.job.threads {
                for (name, home) in
                    region_names(thread).iter().zip([Placement::Local, Placement::On(bench.end.peer)])
                {
                    let bytes = bench.job.size_max();
                    let lh = bench.end.session.alloc(Some(name), bytes, home, Permissions::all())?;
                    bench.regions.push(lh);
                }
            }
        }
        Ok(())
    }

    /// Creates one player per thread, with stamp 0.
    fn create(end: &End, task: &ServerTask) -> anyhow::Result<Vec<Player>> {
        let session = &end.session;
        let player = |thread| {
            let [client, server] = region_names(thread);
            let (own, other) = if end.peer == CLIENT { (server, client) } else { (client, server) };
            let [own, other] =
                [own, other].map(|name| session.map(&name, Permissions::READ | Permissions::WRITE));
            let (own, other) = (own?, other?);
            session.write(own, task.size - WORD_BYTES, &[0; WORD_BYTES as usize])?;
            // Both sides of a pair send the same bytes, so each can verify the other's; pairs differ.
            let payload = pattern(task.size, thread);
            Ok(Player {
                session: session.clone(),
                peer: end.peer,
                own,
                other,
                payload_bytes: task.size,
                payload,
                posted: None,
                stamp: 0,
            })
        };
        (0..task.threads).map(player).collect()
    }

    #[inline]
    fn take_turn(&mut self, is_client: bool) -> anyhow::Result<()> {
        self.stamp += 1;
        if is_client {
            self.post_stamp()?;
            self.await_stamp()
        } else {
            self.await_stamp()?;
            self.post_stamp()
        }
    }

    /// Verifies the other side's last write.
    fn finish(mut self) -> anyhow::Result<u64> {
        self.complete()?;
        let errors = differs(&self.session, self.own, 0, &self.payload)?;
        [self.own, self.other].into_iter().try_for_each(|lh| self.session.unmap(lh))?;
        Ok(errors)
    }
}

impl Player {
    /// Posts a write to the other side; it completes during the wait for the answer.
    #[inline]
    fn post_stamp(&mut self) -> anyhow::Result<()> {
        self.complete()?;
        let mut payload = std::mem::take(&mut self.payload);
        let at = payload.len() - WORD_BYTES as usize;
        payload[at..].copy_from_slice(&self.stamp.to_ne_bytes());
        self.posted = Some(self.session.post_write(self.other, 0, payload));
        Ok(())
    }

    /// Waits until the last write has completed.
    #[inline]
    fn complete(&mut self) -> anyhow::Result<()> {
        if let Some(posted) = self.posted.take() {
            let (payload, outcome) = posted.wait();
            self.payload = payload;
            outcome?;
        }
        Ok(())
    }

    /// Waits until the other side's write is in our own region.
    #[inline]
    fn await_stamp(&mut self) -> anyhow::Result<()> {
        // A write by stores has ended already: completing it now adds no time to the ping-pong. A long one sends its
        // rest only while it is awaited.
        if self.payload_bytes > POSTED_BYTES_MAX || self.posted.as_mut().is_some_and(Posted::is_ended) {
            self.complete()?;
        }
        let (at, stamp) = (self.payload_bytes - WORD_BYTES, self.stamp);
        let (mut reads, mut begin) = (0u32, None);
        loop {
            let mut look = None;
            let is_due = |look: &mut Option<Instant>| {
                look.get_or_insert_with(Instant::now).elapsed() > LIVENESS_INTERVAL
            };
            let word = self.session.wait_until(self.own, at, |word| {
                reads = reads.wrapping_add(1);
                word == stamp || reads.is_multiple_of(READS_PER_CLOCK) && is_due(&mut look)
            })?;
            if word == stamp {
                return Ok(());
            }
            // A write by stores does not fail when its target ends.
            if self.session.seen(self.peer).is_none_or(|seen| seen.silent.is_none()) {
                bail!("the other process (node {}) has ended, or the connection to it", self.peer);
            }
            if begin.get_or_insert_with(Instant::now).elapsed() > ANSWER_TIMEOUT {
                bail!("no answer to write number {stamp} within {} s", ANSWER_TIMEOUT.as_secs());
            }
        }
    }
}
