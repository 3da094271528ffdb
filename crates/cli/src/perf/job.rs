//! What is to be measured, once the flags have been found to make sense together.

use super::args::PerfArgs;
use super::cores::Pinning;
use super::workload::{Plan, SIZE_MAX};
use crate::output::UsageError;

/// A measurement that makes sense.
#[derive(Debug)]
pub struct Job {
    /// The flags.
    pub args: PerfArgs,
    /// What they ask for.
    pub plan: Plan,
    /// Bytes of one operation, one entry per line of the result.
    pub sizes: Vec<u64>,
    /// How many threads measure.
    pub threads: usize,
    /// The network.
    pub fabric: &'static str,
}

impl Job {
    /// Reads the flags as a whole.
    pub fn new(args: &PerfArgs) -> Result<Job, UsageError> {
        check_owners(args)?;
        let plan = (args.test.plan)(args)?;
        if args.cores == Pinning::Shared && args.peer.is_some() {
            return Err(wrong(
                "a node that runs already stays where it is: leave out --peer or --cores shared",
            ));
        }
        if args.peer.is_some() && plan.needs_server {
            return Err(wrong(
                "a node that runs already does not play along: leave out --peer (or, for write_lat, add --completion)",
            ));
        }
        let is_all = args.all && plan.slowdowns.len() == 1;
        if plan.has_one_size && (args.size.is_some() || is_all) {
            return Err(wrong("this test has no sizes: leave out -s and -a"));
        }
        let sizes = match args.size {
            Some(size) => vec![size.0],
            None if is_all => (3..=26).map(|power| 1 << power).collect(),
            None => vec![plan.size],
        };
        let (least, most) = (sizes[0], sizes[sizes.len() - 1]);
        let mut limits = plan.limits.iter();
        if let Some((_, what)) = limits.find(|(range, _)| !range.contains(&least) || !range.contains(&most)) {
            return Err(wrong(what));
        }
        let threads = args.threads.unwrap_or(plan.threads) as usize;
        Ok(Job { args: args.clone(), plan, sizes, threads, fabric: args.fabric.name() })
    }

    /// Operations of each thread at `size`: what the user said, or what takes about a second.
    pub fn iterations(&self, size: u64) -> u64 {
        let Plan { bytes, iterations_max, .. } = self.plan;
        let longer_way = size.max(self.args.reply_size.map_or(1, |size| size.0));
        self.args.iterations.unwrap_or((bytes / longer_way).max(32).min(iterations_max))
    }

    /// A size for each row, and how many times longer than usual the intervals of a load are.
    pub fn points(&self) -> Vec<(u64, u64)> {
        let of_size = |size| self.plan.slowdowns.iter().map(move |slowdown| (size, *slowdown));
        self.sizes.iter().copied().flat_map(of_size).collect()
    }

    /// The largest size of all.
    pub fn size_max(&self) -> u64 {
        self.sizes.iter().copied().max().unwrap_or(0)
    }

    /// Memory that an end should contribute, in bytes.
    pub fn arena_bytes(&self) -> u64 {
        let of_threads = self.size_max().saturating_mul(self.plan.arena_sizes * self.threads as u64);
        of_threads.saturating_add(self.plan.arena_bytes).saturating_add(256 << 20)
    }

    /// Memory that the client contributes.
    pub fn client_arena_bytes(&self) -> u64 {
        if self.plan.is_at_server { 0 } else { self.arena_bytes() }
    }
}

/// Whether flags stand beside the tests that they belong to, which are those that the complaint names.
fn check_owners(args: &PerfArgs) -> Result<(), UsageError> {
    let is_named = |tests: &str| tests.contains(args.test.name);
    let is_access = is_named("read_lat, read_bw, write_lat, write_bw");
    let is_access_or_region = is_access || is_named("alloc_lat, map_lat");
    let is_together = args.window.is_some() || args.batch.is_some();
    let of_bandwidth = "give --batch of read_bw and write_bw as much as --window";
    let complaints = [
        (args.populate, "--populate belongs to alloc_lat"),
        (is_together, "--window and --batch belong to rpc_rate, read_bw and write_bw"),
        (args.lend, "--lend belongs to rpc_rate"),
        (args.reply_size.is_some(), "--reply-size belongs to rpc_lat and rpc_rate"),
        (args.rate.is_some(), "--rate belongs to rpc_load"),
        (
            !is_access_or_region && (args.is_random() || args.completion),
            "--regions, --span and --completion belong to reads and writes",
        ),
        (args.completion, "--completion belongs to write_lat; the other tests time the call anyway"),
        (!is_access && args.is_random(), "--regions and --span belong to reads and writes"),
    ];
    if let Some((_, what)) = complaints.iter().find(|(is_given, what)| *is_given && !is_named(what)) {
        return Err(wrong(what));
    }
    if is_named(of_bandwidth) && args.batch.is_some() && args.batch != args.window {
        return Err(UsageError(format!("operations that are begun together end together: {of_bandwidth}")));
    }
    if args.reply_size.is_some_and(|size| size.0 == 0 || size.0 > SIZE_MAX) {
        return Err(wrong("--reply-size takes 1 byte to 64 MiB"));
    }
    Ok(())
}

/// Flags that make no sense together.
pub fn wrong(what: &str) -> UsageError {
    UsageError(what.to_owned())
}

#[cfg(test)]
pub mod tests {
    use clap::Parser;

    use super::super::calls::under_way;
    use super::super::random::regions;
    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: PerfArgs,
    }

    /// What these flags ask for.
    pub fn job(line: &str) -> Result<Job, UsageError> {
        let words = std::iter::once("perf").chain(line.split_whitespace());
        Job::new(&Line::try_parse_from(words).expect("clap accepts it").args)
    }

    #[track_caller]
    fn check(line: &str, workload: &str, sizes: &[u64]) -> Job {
        let job = job(line).unwrap();
        let found = job.plan.workload.trim_start_matches("halite_cli::perf::");
        assert_eq!((found, job.sizes.as_slice()), (workload, sizes), "{line}");
        job
    }

    #[test]
    fn every_test_has_its_customary_size() {
        check("write_lat", "pingpong::Player", &[8]);
        check("write_lat --completion", "access::Access<true>", &[8]);
        check("read_bw", "access::Access<false>", &[64 << 10]);
        check("write_bw -s 64 --window 64 --batch 64", "access::Access<true>", &[64]);
        assert!(!check("alloc_lat -s 4G", "regions::Alloc", &[4 << 30]).args.populate);
        assert!(check("alloc_lat --populate", "regions::Alloc", &[4 << 20]).args.populate);
        check("map_lat", "regions::Map", &[4096]);
        check("rpc_lat", "calls::Caller", &[8]);
        check("publish_lat", "messages::Correspondent<true, false>", &[8]);
        check("publish_rate", "messages::Correspondent<true, true>", &[8]);
        check("fetch_add_lat", "words::Word<true>", &[8]);
        check("copy_lat", "bulk::Bulk<true>", &[4096]);
        check("lock_lat", "locks::Lock", &[0]);
    }

    #[test]
    fn calls_are_under_way_sixteen_at_a_time_and_load_comes_from_eight_threads() {
        let usual = check("rpc_rate", "calls::Callers", &[8]);
        assert_eq!((under_way(&usual.args), usual.args.lend), ((16, 1), false));
        let line = "rpc_rate --window 4 --batch 2 --reply-size 1M --lend";
        let other = check(line, "calls::Callers", &[8]);
        assert_eq!((under_way(&other.args), other.args.lend), ((4, 2), true));
        assert_eq!(check("rpc_load -a", "calls::Caller", &[8]).points().len(), 4);
        assert_eq!(job("rpc_load").unwrap().iterations(8), 250);
        assert_eq!(job("rpc_load").unwrap().threads, 8);
    }

    #[test]
    fn all_sizes_are_powers_of_two_up_to_64_mib() {
        let sizes = job("write_bw -a").unwrap().sizes;
        assert_eq!((sizes[0], sizes[1], sizes.len()), (8, 16, 24));
        assert_eq!(sizes.last(), Some(&(64 << 20)));
    }

    #[test]
    fn larger_operations_are_fewer_wherever_they_go() {
        for line in ["read_lat -s 1M", "read_lat -s 1M --span 1G"] {
            assert_eq!(job(line).unwrap().iterations(1 << 20), 1024, "{line}");
        }
        assert_eq!(job("read_lat --span 1G").unwrap().iterations(8), 1_000_000);
    }

    #[test]
    fn memory_is_divided_among_the_regions() {
        for (line, workload, divided) in [
            ("write_lat --completion --regions 10", "random::Random<true>", (10, 64)),
            ("write_lat --completion --span 1G", "random::Random<true>", (1, 1 << 30)),
            ("read_lat --regions 3 --span 1000", "random::Random<false>", (3, 328)),
        ] {
            assert_eq!(regions(&check(line, workload, &[8]).args), divided, "{line}");
        }
    }

    /// The largest span that is measured beside others has to fit in half of a machine of 24 GiB, beside as much bare memory.
    #[test]
    fn an_arena_is_not_larger_than_what_is_at_random_in_it() {
        let arena = |line| job(line).unwrap().arena_bytes();
        assert_eq!(arena("write_lat --completion --span 8G"), (8 << 30) + (256 << 20));
        assert!(arena("write_lat --completion --regions 10000000") > 10_000_000 * 64);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for line in [
            "write_lat -s 4",
            "write_lat --regions 3",
            "write_lat --peer 1",
            "read_lat --peer 1 --cores shared",
            "read_lat --completion",
            "read_lat -s 0",
            "read_bw -s 65M",
            "alloc_lat --regions 3",
            "map_lat --populate",
            "read_lat -a --span 1G",
            "read_lat --span 4",
            "read_lat --span 32 --regions 16",
            "rpc_lat --window 3",
            "write_lat --window 4",
            "write_bw --window 4 --batch 2",
            "write_bw --batch 2",
            "write_bw --window 4 --regions 3",
            "rpc_lat --batch 2",
            "rpc_rate --window 4 --batch 3",
            "rpc_rate --window 4 --batch 8",
            "rpc_load -s 16",
            "rpc_lat --peer 1",
            "read_lat --reply-size 8",
            "rpc_rate --reply-size 65M",
            "cas_lat -a",
            "fetch_add_lat --rate 5",
            "fill_lat --span 1G",
        ] {
            assert!(job(line).is_err(), "{line}");
        }
    }

    #[test]
    fn the_ends_of_a_pair_are_apart_unless_the_user_says_otherwise() {
        assert_eq!(job("rpc_load").unwrap().args.cores, Pinning::Apart);
        assert_eq!(job("rpc_load --cores shared").unwrap().args.cores, Pinning::Shared);
        assert_eq!(job("read_lat --peer 1 --cores any").unwrap().args.cores, Pinning::Any);
    }

    #[test]
    fn the_baseline_can_be_left_out() {
        let has_baseline = |line| job(line).unwrap().args.check_memcpy;
        assert!(has_baseline("write_bw") && has_baseline("write_bw --check-memcpy"));
        assert!(!has_baseline("write_bw --check-memcpy=false"));
    }
}
