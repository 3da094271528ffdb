//! Scenarios of extents, and random histories compared with a set of intervals.

use proptest::prelude::*;

use super::*;

const KIB: u64 = 1 << 10;
const GIB: u64 = 1 << 30;

fn allocator(segments: &[u64]) -> Allocator {
    let mut allocator = Allocator::new(64);
    for (number, len) in segments.iter().enumerate() {
        assert_eq!(allocator.add_segment(*len), number as u32);
    }
    allocator
}

/// Checks that all memory is free, in whole segments.
fn check_all_free(allocator: &Allocator, segments: usize) {
    assert_eq!(allocator.bytes_free(), allocator.bytes_total());
    assert_eq!(allocator.free.count(), segments);
    assert!(allocator.used.is_empty());
}

#[test]
fn impossible_sizes_are_refused() {
    let mut allocator = allocator(&[GIB, 10]);
    for len in [0, GIB + 1, u64::MAX, u64::MAX - 63] {
        assert_eq!(allocator.allocate(len), None);
    }
    assert_eq!(allocator.allocate_run(GIB + 1, u64::MAX, 64), None);
    check_all_free(&allocator, 1);
}

#[derive(Clone, Debug)]
enum Step {
    Allocate(u64),
    Run { len_min: u64, more: u64, multiple_of: u64 },
    Free(usize),
    FreeAgain(usize),
    FreeUnallocated(Extent),
}

fn len() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 1..4200u64, 2 => 4096..100 * KIB, 1 => 0..500 * KIB]
}

fn step() -> impl Strategy<Value = Step> {
    let unallocated = (0..4u32, 0..400 * KIB / 64, len());
    prop_oneof![
        6 => len().prop_map(Step::Allocate),
        1 => (len(), 0..200 * KIB, 1..5u64)
            .prop_map(|(len_min, more, units)| Step::Run { len_min, more, multiple_of: units * 4096 }),
        5 => any::<usize>().prop_map(Step::Free),
        1 => any::<usize>().prop_map(Step::FreeAgain),
        1 => unallocated.prop_map(|(segment, unit, len)| {
            Step::FreeUnallocated(Extent { segment, offset: unit * 64, len })
        }),
    ]
}

/// The allocator, and a model of the allocated ranges.
struct CheckedAllocator {
    allocator: Allocator,
    segments: Vec<u64>,
    /// Length of each allocated range, by segment and offset.
    live: BTreeMap<(u32, u64), u64>,
    freed: Vec<Extent>,
}

impl CheckedAllocator {
    fn check_allocated(&mut self, extent: Extent) {
        let Extent { segment, offset, len } = extent;
        assert!(len > 0 && offset.is_multiple_of(64));
        assert!(offset + len <= self.segments[segment as usize], "{extent:?} is outside");
        if let Some((before, before_len)) = self.live.range(..=(segment, offset)).next_back() {
            assert!(before.0 < segment || before.1 + before_len <= offset, "{extent:?} overlaps");
        }
        if let Some((after, _)) = self.live.range((segment, offset)..).next() {
            assert!(after.0 > segment || after.1 >= offset + len, "{extent:?} overlaps");
        }
        self.live.insert((segment, offset), len);
        self.freed.retain(|freed| (freed.segment, freed.offset) != (segment, offset));
    }

    fn free_nth(&mut self, index: usize) {
        if self.live.is_empty() {
            return;
        }
        let (&(segment, offset), &len) = self.live.iter().nth(index % self.live.len()).unwrap();
        let extent = Extent { segment, offset, len };
        assert_eq!(self.allocator.free(extent), Ok(()));
        self.live.remove(&(segment, offset));
        self.freed.push(extent);
    }

    fn apply(&mut self, step: Step) {
        match step {
            Step::Allocate(len) => match self.allocator.allocate(len) {
                Some(extent) => {
                    assert_eq!(extent.len, len);
                    self.check_allocated(extent);
                }
                None => {
                    let rounded = len.next_multiple_of(64);
                    assert!(len == 0 || self.allocator.largest_free() < rounded, "refused {len}");
                }
            },
            Step::Run { len_min, more, multiple_of } => {
                let (largest, len_max) = (self.allocator.largest_free(), len_min + more);
                match self.allocator.allocate_run(len_min, len_max, multiple_of) {
                    Some(run) => {
                        assert!(run.len >= len_min);
                        let cut = largest - largest % multiple_of;
                        assert!(run.len == len_max || run.len == cut && largest < len_max);
                        self.check_allocated(run);
                    }
                    None => {
                        assert!(len_max == 0 || largest - largest % multiple_of < len_min.max(1))
                    }
                }
            }
            Step::Free(index) => self.free_nth(index),
            Step::FreeAgain(index) if !self.freed.is_empty() => {
                let extent = self.freed[index % self.freed.len()];
                assert_eq!(self.allocator.free(extent), Err(BadFree { extent }));
            }
            Step::FreeAgain(_) => {}
            Step::FreeUnallocated(extent) => {
                if self.live.get(&(extent.segment, extent.offset)) != Some(&extent.len) {
                    assert_eq!(self.allocator.free(extent), Err(BadFree { extent }));
                }
            }
        }
        let live_bytes: u64 = self.live.values().sum();
        assert!(self.allocator.bytes_free() + live_bytes <= self.allocator.bytes_total());
    }
}

proptest! {
    #[test]
    fn random_histories_match_a_set_of_intervals(
        segments in proptest::collection::vec(0..400 * KIB, 1..4),
        steps in proptest::collection::vec(step(), 0..250),
    ) {
        let nonempty = segments.iter().filter(|len| **len >= 64).count();
        let allocator = allocator(&segments);
        let mut checked = CheckedAllocator { allocator, segments, live: BTreeMap::new(), freed: Vec::new() };
        steps.into_iter().for_each(|step| checked.apply(step));
        while !checked.live.is_empty() {
            checked.free_nth(checked.live.len() / 2);
        }
        check_all_free(&checked.allocator, nonempty);
    }
}

#[test]
fn a_range_of_joined_extents_is_freed_whole() {
    let mut allocator = Allocator::new(64);
    allocator.add_segment(1 << 20);
    let small: Vec<Extent> = (0..16).map(|_| allocator.allocate(4096).expect("there is room")).collect();
    let large = allocator.allocate(8192).expect("there is room");
    let mut all: Vec<Extent> = small.iter().copied().chain([large]).collect();
    all.sort_by_key(|extent| extent.offset);
    // A region with chunks from several reservations frees adjacent extents as one range.
    let mut joined: Vec<Extent> = Vec::new();
    for extent in all {
        match joined.last_mut() {
            Some(last) if last.offset + last.len == extent.offset => last.len += extent.len,
            _ => joined.push(extent),
        }
    }
    assert!(joined.len() < 17, "some extents are adjacent");
    for range in joined {
        let half = Extent { len: 4096, ..range };
        allocator.free_range(half).expect("a chunk of a joined range");
        if range.len > 4096 {
            let rest = Extent { offset: range.offset + 4096, len: range.len - 4096, ..range };
            allocator.free_range(rest).expect("the rest of a joined range");
        }
    }
    assert_eq!(allocator.bytes_free(), allocator.bytes_total());
    assert_eq!(allocator.largest_free(), 1 << 20);
}
