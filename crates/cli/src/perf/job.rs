//! A measurement with valid flags.

use super::args::PerfArgs;
use super::cores::Pinning;
use super::workload::{Plan, SIZE_MAX};
use crate::output::UsageError;

/// Minimum ratio of the time of a short operation over UDP to its time through shared memory.
const ROCE_SLOWDOWN: u64 = 20;

#[derive(Debug)]
pub struct Job {
    pub args: PerfArgs,
    pub plan: Plan,
    /// Bytes of one operation, for each row.
    pub sizes: Vec<u64>,
    /// Number of measuring threads.
    pub threads: usize,
    pub fabric: &'static str,
    /// The ends that keep state for requests: `stateful` or `stateless`; `None` over shared memory.
    pub responder: Option<String>,
}

impl Job {
    /// Checks the flags, alone and in combination.
    pub fn new(args: &PerfArgs) -> Result<Job, UsageError> {
        check_owners(args)?;
        let plan = (args.test.plan)(args)?;
        if args.cores == Pinning::Shared && args.peer.is_some() {
            return Err(wrong("cannot move a running node to another core: omit --peer or --cores shared"));
        }
        if args.peer.is_some() && plan.needs_server {
            return Err(wrong(
                "this test needs its own server process, because a running node serves no function and sends no writes for it: omit --peer (or, for write_lat, add --completion)",
            ));
        }
        let is_all = args.all && plan.slowdowns.len() == 1;
        if plan.has_one_size && (args.size.is_some() || is_all) {
            return Err(wrong("this test has no sizes: omit -s and -a"));
        }
        let sizes = match args.size {
            Some(size) => vec![size.0],
            None if is_all => (3..=26).map(|power| 1 << power).collect(),
            None => vec![plan.size],
        };
        let (least, most) = (sizes[0], sizes[sizes.len() - 1]);
        let mut limits = plan.limits.iter();
        if let Some((_, error)) = limits.find(|(range, _)| !range.contains(&least) || !range.contains(&most))
        {
            return Err(wrong(error));
        }
        let threads = args.threads.unwrap_or(plan.threads) as usize;
        Ok(Job { args: args.clone(), plan, sizes, threads, fabric: args.fabric.name(), responder: None })
    }

    /// Returns the number of operations of each thread for `size`: the user's choice or, by default, the plan's maximum;
    /// fewer if they are long.
    pub fn iterations(&self, size: u64) -> u64 {
        let Plan { bytes, iterations_max, .. } = self.plan;
        let longer_direction = size.max(self.args.reply_size.map_or(1, |size| size.0));
        let iterations_max =
            if self.fabric == "roce" { iterations_max / ROCE_SLOWDOWN } else { iterations_max };
        self.args.iterations.unwrap_or((bytes / longer_direction).max(32).min(iterations_max.max(1)))
    }

    /// Returns the size and slowdown of each row.
    pub fn points(&self) -> Vec<(u64, u64)> {
        let of_size = |size| self.plan.slowdowns.iter().map(move |slowdown| (size, *slowdown));
        self.sizes.iter().copied().flat_map(of_size).collect()
    }

    /// Returns the largest size of all rows, in bytes.
    pub fn size_max(&self) -> u64 {
        self.sizes.iter().copied().max().unwrap_or(0)
    }

    /// Returns the size of each end's arena, in bytes.
    pub fn arena_bytes(&self) -> u64 {
        let of_threads = self.size_max().saturating_mul(self.plan.arena_sizes * self.threads as u64);
        of_threads.saturating_add(self.plan.arena_bytes).saturating_add(256 << 20)
    }

    pub fn client_arena_bytes(&self) -> u64 {
        if self.plan.is_at_server { 0 } else { self.arena_bytes() }
    }
}

/// Fails if a flag does not apply to the test. The error lists the tests that have the flag.
fn check_owners(args: &PerfArgs) -> Result<(), UsageError> {
    let is_named = |tests: &str| tests.contains(args.test.name);
    let is_access = is_named("read_lat, read_bw, write_lat, write_bw");
    let is_access_or_region = is_access || is_named("alloc_lat, map_lat");
    let is_together = args.window.is_some() || args.batch.is_some();
    let of_bandwidth = "set --batch to the value of --window for read_bw and write_bw";
    let misuses = [
        (
            args.clients.is_some()
                || args.mode.is_some()
                || args.verb.is_some()
                || args.initiator.is_some()
                || args.workload.is_some(),
            "--clients, --mode, --verb, --initiator and --workload apply only to fan_in",
        ),
        (
            args.policy.is_some() || args.seconds.is_some() || args.link_rate.is_some(),
            "--policy, --seconds and --link-rate apply only to qos",
        ),
        (args.out.is_some(), "--out applies only to networks; use --svg"),
        (args.populate, "--populate applies only to alloc_lat"),
        (is_together, "--window and --batch apply only to rpc_rate, read_bw and write_bw"),
        (args.lend, "--lend applies only to rpc_rate"),
        (args.reply_size.is_some(), "--reply-size applies only to rpc_lat, rpc_rate and fan_in"),
        (args.rate.is_some(), "--rate applies only to rpc_load"),
        (
            !is_access_or_region && (args.is_random() || args.completion),
            "--regions, --span and --completion apply only to reads and writes",
        ),
        (args.completion, "--completion applies only to write_lat; the other tests time the call anyway"),
        (!is_access && args.is_random(), "--regions and --span apply only to reads and writes"),
    ];
    if let Some((_, what)) = misuses.iter().find(|(is_given, what)| *is_given && !is_named(what)) {
        return Err(wrong(what));
    }
    if is_named(of_bandwidth) && args.batch.is_some() && args.batch != args.window {
        return Err(UsageError(format!(
            "operations that are posted together complete together: {of_bandwidth}"
        )));
    }
    if args.reply_size.is_some_and(|size| size.0 == 0 || size.0 > SIZE_MAX) {
        return Err(wrong("--reply-size must be from 1 byte to 64 MiB"));
    }
    Ok(())
}

/// Creates the error about contradicting flags.
pub fn wrong(what: &str) -> UsageError {
    UsageError(what.to_owned())
}
