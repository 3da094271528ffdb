//! What is to be measured, once the flags have been found to make sense together.

use super::args::{PerfArgs, Test};
use super::calls::Calls;
use super::cores::Pinning;
use super::report::BaselineKind;
use crate::output::UsageError;

/// A measurement that makes sense.
#[derive(Clone, PartialEq, Debug)]
pub struct Job {
    /// Which test.
    pub test: Test,
    /// What it does.
    pub kind: Kind,
    /// Bytes of one operation, one entry per line of the result.
    pub sizes: Vec<u64>,
    /// Operations of each thread at each size, if the user said.
    pub iterations: Option<u64>,
    /// How many threads measure.
    pub threads: usize,
    /// Where the threads run.
    pub pinning: Pinning,
    /// The network.
    pub fabric: &'static str,
    /// Whether bare copies are measured too.
    pub has_baseline: bool,
    /// Reads or writes that are begun together.
    pub together: usize,
    /// The node to measure against; none for a process of our own.
    pub peer: Option<u32>,
}

/// What a test does.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Kind {
    /// Both sides write to each other in turn.
    PingPong,
    /// One operation after the other on the same bytes.
    Access(Verb),
    /// Operations at random places.
    Random {
        /// Which operation.
        verb: Verb,
        /// Over how many regions.
        regions: u64,
        /// Bytes of each.
        region_bytes: u64,
    },
    /// Makes regions.
    Alloc {
        /// Whether their memory is taken from the system at once.
        populate: bool,
    },
    /// Maps a region.
    Map,
    /// Calls one after the other, or many under way.
    Calls(Calls),
    /// Calls that come by themselves, on average so many per second.
    Load {
        /// Calls per second of all threads.
        rate: u64,
        /// Also at a half, a quarter and an eighth of it.
        is_sweep: bool,
    },
    /// Requests of many sizes.
    Memory,
    /// A ping-pong of messages.
    Messages,
    /// Words are changed in one piece.
    Words(WordVerb),
    /// A lock is taken and given up.
    Lock,
    /// A barrier is passed.
    Barrier,
    /// Bytes are changed where they are.
    Bulk(BulkVerb),
}

/// A change of a word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WordVerb {
    /// Adds to it.
    FetchAdd,
    /// Replaces it by another.
    CompareSwap,
}

/// An operation of many bytes whose data does not pass through the caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BulkVerb {
    /// Sets bytes.
    Fill,
    /// Copies bytes.
    Copy,
}

/// An operation on bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verb {
    /// From the peer's memory.
    Read,
    /// To the peer's memory.
    Write,
}

/// Largest size of the tests that move bytes.
const SIZE_MAX: u64 = 64 << 20;

/// A word, as the stamp of a ping-pong is.
const WORD_BYTES: u64 = 8;

/// How many calls are under way unless the user says.
const WINDOW: u32 = 16;

/// The load of LITE, section 5.3: calls per second, and threads on either side.
const LOAD_RATE: u64 = 1000;
const LOAD_THREADS: u32 = 8;

/// How much longer intervals get from point to point of LITE's figure 13.
const SLOWDOWNS: [u64; 4] = [1, 2, 4, 8];

/// How long a load lasts, in seconds, unless the user says how many calls there are.
const LOAD_SECONDS: u64 = 2;

/// Regions that only have to be many are a cache line each, so that none shares one with its neighbour.
const REGION_BYTES_MIN: u64 = 64;

impl Job {
    /// Reads the flags as a whole.
    pub fn new(args: &PerfArgs) -> Result<Job, UsageError> {
        let kind = kind(args)?;
        let moves_bytes = !matches!(kind, Kind::Alloc { .. } | Kind::Map);
        let only_size = kind.facts(0).only_size;
        if only_size.is_some() && (args.size.is_some() || (args.all && args.test != Test::RpcLoad)) {
            return Err(wrong("this test has no sizes: leave out -s and -a"));
        }
        let sizes = match args.size.map(|size| size.0).or(only_size) {
            Some(size) => vec![size],
            None if args.all => (3..=26).map(|power| 1 << power).collect(),
            None if matches!(args.test, Test::ReadBw | Test::WriteBw) => vec![64 << 10],
            None if moves_bytes && !matches!(kind, Kind::Bulk(_)) => vec![8],
            None if args.populate => vec![4 << 20],
            None => vec![4 << 10],
        };
        let (least, most) = (sizes[0], sizes[sizes.len() - 1]);
        let is_empty = least == 0 && only_size.is_none();
        if is_empty || (moves_bytes && most > SIZE_MAX) {
            return Err(wrong("-s takes 1 byte to 64 MiB"));
        }
        if kind == Kind::PingPong && least < WORD_BYTES {
            return Err(wrong(
                "a ping-pong needs -s of at least 8 bytes; --completion measures smaller writes",
            ));
        }
        if let Kind::Random { region_bytes, .. } = kind
            && most > region_bytes
        {
            return Err(wrong("--span must have room for -s bytes in each region"));
        }
        let together = match kind {
            Kind::Access(_) => args.window.unwrap_or(1) as usize,
            _ => 1,
        };
        if args.window.is_some() && matches!(kind, Kind::Random { .. }) {
            return Err(wrong("operations at random go one by one: leave out --window and --batch"));
        }
        Ok(Job {
            test: args.test,
            kind,
            sizes,
            iterations: args.iterations,
            threads: args.threads.unwrap_or(if args.test == Test::RpcLoad { LOAD_THREADS } else { 1 })
                as usize,
            pinning: args.cores,
            fabric: args.fabric.name(),
            // Nothing is copied by bare memory with several copies under way.
            has_baseline: args.check_memcpy && together == 1,
            together,
            peer: args.peer,
        })
    }

    /// Operations of each thread at `size`: what the user said, or what takes about a second.
    pub fn iterations(&self, size: u64) -> u64 {
        let bytes = if matches!(self.test, Test::ReadBw | Test::WriteBw) { 16 << 30 } else { 1 << 30 };
        let threads = self.threads as u64;
        self.iterations.unwrap_or(match self.kind {
            Kind::Alloc { populate: true } => (bytes / size).clamp(32, 10_000),
            Kind::Alloc { populate: false } | Kind::Map => 10_000,
            Kind::PingPong | Kind::Access(_) | Kind::Random { .. } | Kind::Messages | Kind::Bulk(_) => {
                (bytes / size).clamp(32, 1_000_000)
            }
            Kind::Calls(calls) => (bytes / size.max(calls.reply_bytes.unwrap_or(0))).clamp(32, 1_000_000),
            Kind::Load { rate, .. } => (rate * LOAD_SECONDS / threads).max(1),
            Kind::Words(_) => 1_000_000,
            Kind::Memory => 100_000,
            Kind::Lock if threads == 1 => 1_000_000,
            // Those that wait are slower, the more of them there are.
            Kind::Lock => (200_000 / threads).max(1),
            Kind::Barrier => (50_000 / threads).max(1),
        })
    }

    /// A size for each row, and how many times longer than usual the intervals of a load are.
    pub fn points(&self) -> Vec<(u64, u64)> {
        match self.kind {
            Kind::Load { is_sweep: true, .. } => SLOWDOWNS.map(|slowdown| (self.sizes[0], slowdown)).to_vec(),
            _ => self.sizes.iter().map(|size| (*size, 1)).collect(),
        }
    }

    /// What one row after the other does.
    pub fn what(&self) -> &'static str {
        match self.kind {
            Kind::Access(_) if self.together > 1 => "operations that are begun together, on the same bytes",
            Kind::Lock if self.threads > 1 => "from one session to the next; all others wait",
            kind => kind.facts(0).what,
        }
    }

    /// What bare memory does beside operations of `size` bytes.
    pub fn baseline(&self, size: u64) -> BaselineKind {
        self.kind.facts(size).baseline
    }

    /// The largest size of all.
    pub fn size_max(&self) -> u64 {
        self.sizes.iter().copied().max().unwrap_or(0)
    }

    /// Memory that an end should contribute, in bytes.  Four times what is needed, for freed memory can be used
    /// again only when all who mapped it have let go; and it is taken from the system only as it is touched.
    pub fn arena_bytes(&self) -> u64 {
        let threads = self.threads as u64;
        let needed = match self.kind {
            Kind::Random { regions, region_bytes, .. } => regions.saturating_mul(region_bytes),
            Kind::Bulk(_) => self.size_max().saturating_mul(2 * threads),
            _ => self.size_max().saturating_mul(threads),
        };
        needed.saturating_mul(4).saturating_add(256 << 20)
    }

    /// Memory that the client contributes: none where the other end is to be the home of what is measured.
    pub fn client_arena_bytes(&self) -> u64 {
        if matches!(self.kind, Kind::Lock | Kind::Barrier) { 0 } else { self.arena_bytes() }
    }
}

/// What is known of a kind, but how it is measured.
struct Facts {
    /// What headings say.
    what: &'static str,
    /// What bare memory does beside it, if that has an equal.
    baseline: BaselineKind,
    /// Bytes of its operations, if they are what they are however many one would like: a word; nothing where no bytes are
    /// moved, or of all lengths.
    only_size: Option<u64>,
    /// Whether it takes a process of ours at the other end.
    needs_server: bool,
}

impl Kind {
    /// The table of all kinds, at operations of `size` bytes.
    fn facts(self, size: u64) -> Facts {
        use BaselineKind::{Atomic, Memcpy, Memset, Pages, ReadWrite};
        let facts =
            |what, baseline, only_size, needs_server| Facts { what, baseline, only_size, needs_server };
        let same_bytes = "one operation after the other on the same bytes";
        let in_turn = "one operation after the other";
        match self {
            Kind::PingPong => facts("half a ping-pong of writes", Memcpy, None, true),
            Kind::Access(_) => facts(same_bytes, Memcpy, None, false),
            Kind::Random { verb, .. } => {
                let bare = BaselineKind::of_random(verb, size);
                facts("one operation after the other at random places", bare, None, false)
            }
            Kind::Alloc { .. } => facts(in_turn, Pages, None, false),
            Kind::Map => facts(in_turn, Memcpy, None, false),
            Kind::Calls(Calls { window: None, .. }) => facts(in_turn, Memcpy, None, true),
            Kind::Calls(_) => facts("many calls under way in each thread", Memcpy, None, true),
            Kind::Load { .. } => {
                let what = "calls that come by themselves; times are of the calls, processor time is of both processes";
                facts(what, Memcpy, Some(WORD_BYTES), true)
            }
            Kind::Memory => facts(in_turn, Memcpy, Some(0), true),
            Kind::Messages => facts("half a ping-pong of messages", Memcpy, None, true),
            Kind::Words(_) => facts(same_bytes, Atomic, Some(WORD_BYTES), false),
            Kind::Lock | Kind::Barrier => facts(in_turn, Memcpy, Some(0), true),
            Kind::Bulk(BulkVerb::Fill) => facts(same_bytes, Memset, None, false),
            Kind::Bulk(BulkVerb::Copy) => facts(same_bytes, ReadWrite, None, false),
        }
    }
}

fn kind(args: &PerfArgs) -> Result<Kind, UsageError> {
    check_owners(args)?;
    let is_random = args.regions.is_some() || args.span.is_some();
    let reply_bytes = args.reply_size.map(|size| size.0);
    let (window, batch) = (args.window.unwrap_or(WINDOW) as usize, args.batch.unwrap_or(1) as usize);
    let kind = match args.test {
        Test::WriteLat if !args.completion && is_random => {
            return Err(wrong("a ping-pong goes to one place: add --completion to write at random"));
        }
        Test::WriteLat if !args.completion => Kind::PingPong,
        Test::ReadLat | Test::ReadBw if is_random => random(args, Verb::Read)?,
        Test::WriteLat | Test::WriteBw if is_random => random(args, Verb::Write)?,
        Test::ReadLat | Test::ReadBw => Kind::Access(Verb::Read),
        Test::WriteLat | Test::WriteBw => Kind::Access(Verb::Write),
        Test::AllocLat => Kind::Alloc { populate: args.populate },
        Test::MapLat => Kind::Map,
        Test::RpcLat => Kind::Calls(Calls { window: None, batch: 1, reply_bytes, lends: false }),
        Test::RpcRate if window % batch != 0 => {
            return Err(UsageError(format!(
                "--window must be a multiple of --batch, and {window} is no multiple of {batch}"
            )));
        }
        Test::RpcRate => Kind::Calls(Calls { window: Some(window), batch, reply_bytes, lends: args.lend }),
        Test::RpcLoad => Kind::Load { rate: args.rate.unwrap_or(LOAD_RATE), is_sweep: args.all },
        Test::RpcMemory => Kind::Memory,
        Test::SendLat => Kind::Messages,
        Test::FetchAddLat => Kind::Words(WordVerb::FetchAdd),
        Test::CasLat => Kind::Words(WordVerb::CompareSwap),
        Test::LockLat => Kind::Lock,
        Test::BarrierLat => Kind::Barrier,
        Test::FillLat => Kind::Bulk(BulkVerb::Fill),
        Test::CopyLat => Kind::Bulk(BulkVerb::Copy),
    };
    if args.cores == Pinning::Shared && args.peer.is_some() {
        return Err(wrong("a node that runs already stays where it is: leave out --peer or --cores shared"));
    }
    if args.peer.is_some() && kind.facts(0).needs_server {
        return Err(wrong(
            "a node that runs already does not play along: leave out --peer (or, for write_lat, add --completion)",
        ));
    }
    Ok(kind)
}

/// Whether flags stand beside the tests that they belong to.
fn check_owners(args: &PerfArgs) -> Result<(), UsageError> {
    use Test::{AllocLat, MapLat, ReadBw, ReadLat, RpcLat, RpcLoad, RpcRate, WriteBw, WriteLat};
    let belongs = |is_given: bool, tests: &[Test], what: &str| {
        if is_given && !tests.contains(&args.test) { Err(wrong(what)) } else { Ok(()) }
    };
    let accesses = [ReadLat, ReadBw, WriteLat, WriteBw];
    let is_random = args.regions.is_some() || args.span.is_some();
    let is_together = args.window.is_some() || args.batch.is_some();
    let has_reply = args.reply_size.is_some();
    let together = "--window and --batch belong to rpc_rate, read_bw and write_bw";
    let places = "--regions, --span and --completion belong to reads and writes";
    let completion = "--completion belongs to write_lat; the other tests time the call anyway";
    belongs(args.populate, &[AllocLat], "--populate belongs to alloc_lat")?;
    belongs(is_together, &[RpcRate, ReadBw, WriteBw], together)?;
    belongs(args.lend, &[RpcRate], "--lend belongs to rpc_rate")?;
    belongs(has_reply, &[RpcLat, RpcRate], "--reply-size belongs to rpc_lat and rpc_rate")?;
    belongs(args.rate.is_some(), &[RpcLoad], "--rate belongs to rpc_load")?;
    belongs(is_random || args.completion, &[&accesses[..], &[AllocLat, MapLat]].concat(), places)?;
    belongs(args.completion, &[WriteLat], completion)?;
    belongs(is_random, &accesses, "--regions and --span belong to reads and writes")?;
    if matches!(args.test, ReadBw | WriteBw) && args.batch.is_some() && args.batch != args.window {
        return Err(wrong(
            "operations that are begun together end together: give --batch of read_bw and write_bw as much as --window",
        ));
    }
    if args.reply_size.is_some_and(|size| size.0 == 0 || size.0 > SIZE_MAX) {
        return Err(wrong("--reply-size takes 1 byte to 64 MiB"));
    }
    Ok(())
}

fn random(args: &PerfArgs, verb: Verb) -> Result<Kind, UsageError> {
    if args.all {
        return Err(wrong("-a cannot be combined with --regions or --span: name one size by -s"));
    }
    let size = args.size.map_or(8, |size| size.0);
    let regions = args.regions.unwrap_or(1);
    let region_bytes = match args.span {
        Some(span) => span.0 / regions / 8 * 8,
        None => size.next_multiple_of(REGION_BYTES_MIN),
    };
    Ok(Kind::Random { verb, regions, region_bytes })
}

fn wrong(what: &str) -> UsageError {
    UsageError(what.to_owned())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: PerfArgs,
    }

    fn job(line: &str) -> Result<Job, UsageError> {
        let words = std::iter::once("perf").chain(line.split_whitespace());
        Job::new(&Line::try_parse_from(words).expect("clap accepts it").args)
    }

    #[track_caller]
    fn check(line: &str, kind: Kind, sizes: &[u64]) {
        let job = job(line).unwrap();
        assert_eq!((job.kind, job.sizes.as_slice()), (kind, sizes), "{line}");
    }

    #[test]
    fn every_test_has_its_customary_size() {
        check("write_lat", Kind::PingPong, &[8]);
        check("write_lat --completion", Kind::Access(Verb::Write), &[8]);
        check("read_bw", Kind::Access(Verb::Read), &[64 << 10]);
        check("write_bw -s 64 --window 64 --batch 64", Kind::Access(Verb::Write), &[64]);
        check("alloc_lat -s 4G", Kind::Alloc { populate: false }, &[4 << 30]);
        check("alloc_lat --populate", Kind::Alloc { populate: true }, &[4 << 20]);
        check("map_lat", Kind::Map, &[4096]);
        check(
            "rpc_lat",
            Kind::Calls(Calls { window: None, batch: 1, reply_bytes: None, lends: false }),
            &[8],
        );
        check("fetch_add_lat", Kind::Words(WordVerb::FetchAdd), &[8]);
        check("copy_lat", Kind::Bulk(BulkVerb::Copy), &[4096]);
        check("lock_lat", Kind::Lock, &[0]);
    }

    #[test]
    fn calls_are_under_way_sixteen_at_a_time_and_load_comes_from_eight_threads() {
        let usual = Kind::Calls(Calls { window: Some(16), batch: 1, reply_bytes: None, lends: false });
        check("rpc_rate", usual, &[8]);
        check(
            "rpc_rate --window 4 --batch 2 --reply-size 1M --lend",
            Kind::Calls(Calls { window: Some(4), batch: 2, reply_bytes: Some(1 << 20), lends: true }),
            &[8],
        );
        check("rpc_load -a", Kind::Load { rate: 1000, is_sweep: true }, &[8]);
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
        let verb = Verb::Write;
        check(
            "write_lat --completion --regions 10",
            Kind::Random { verb, regions: 10, region_bytes: 64 },
            &[8],
        );
        check(
            "write_lat --completion --span 1G",
            Kind::Random { verb, regions: 1, region_bytes: 1 << 30 },
            &[8],
        );
        let both = Kind::Random { verb: Verb::Read, regions: 3, region_bytes: 328 };
        check("read_lat --regions 3 --span 1000", both, &[8]);
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
        assert_eq!(job("rpc_load").unwrap().pinning, Pinning::Apart);
        assert_eq!(job("rpc_load --cores shared").unwrap().pinning, Pinning::Shared);
        assert_eq!(job("read_lat --peer 1 --cores any").unwrap().pinning, Pinning::Any);
    }

    #[test]
    fn the_baseline_can_be_left_out() {
        assert!(job("write_bw").unwrap().has_baseline);
        let together = job("write_bw --window 4").unwrap();
        assert_eq!((together.together, together.has_baseline), (4, false));
        assert!(job("write_bw --check-memcpy").unwrap().has_baseline);
        assert!(!job("write_bw --check-memcpy=false").unwrap().has_baseline);
    }
}
