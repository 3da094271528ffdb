//! What a small region costs in memory of the tier: at its home, and where it is mapped.

use crate::common;

use std::alloc::System;

use common::{CHUNK_BYTES, Cluster};
use halite_tier::effect::{Command, Placement};
use halite_tier::ids::NodeId;
use halite_tier::permissions::Permissions;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region as Stretch, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Bytes that the system's allocator keeps with each allocation: its size, and what rounding to 16 costs on average.
const ALLOCATION_OVERHEAD_BYTES: usize = 16;

fn bytes_since(start: &Stretch<'_, System>) -> usize {
    let change = start.change();
    let bytes = change.bytes_allocated - change.bytes_deallocated;
    bytes + (change.allocations - change.deallocations) * ALLOCATION_OVERHEAD_BYTES
}

/// The blocks of the handle table double; this many handles just fill those that are there, so that what is measured
/// is what handles cost, not what room for more costs (which is not touched before it is used).
const REGIONS: usize = 16_000;
const HOME_BYTES_MAX: usize = 256;
const MAPPING_BYTES_MAX: usize = 128;

/// One test, since all tests of a file share the counter.  The nodes are: 0 the directory, 1 the home, and 2
/// another that maps; a region is made by a session of its home (one mapping there), and then mapped by node 2.
#[test]
fn a_small_region_costs_256_bytes_at_its_home_and_128_per_mapping() {
    let _alone = crate::alone();
    let mut cluster = Cluster::of(3);
    // Warm: the arena has grown, the first slots and lists are there.
    cluster.alloc(1, "warm", 64, Placement::Local);
    cluster.map(2, "warm");

    let start = Stretch::new(ALLOCATOR);
    for _ in 0..REGIONS {
        common::slot(cluster.command(
            1,
            Command::Alloc {
                name: None,
                len: 64,
                chunk_bytes: CHUNK_BYTES,
                placement: Placement::On(NodeId(1)),
                everyone: Permissions::READ,
                populate: false,
            },
        ));
    }
    let per_region = bytes_since(&start) / REGIONS;
    println!("{per_region} bytes per unnamed region, its one mapping included");
    assert!(per_region <= HOME_BYTES_MAX + MAPPING_BYTES_MAX, "{per_region} bytes");

    // A named region costs the directory its name as well; that is measured here with it, on the same counter.
    let start = Stretch::new(ALLOCATOR);
    for index in 0..REGIONS {
        cluster.alloc(1, &format!("region-{index:08}"), 64, Placement::Local);
    }
    let named = bytes_since(&start) / REGIONS;
    let directory_bytes_max = 128;
    println!("{named} bytes per named region, its one mapping and its name at the directory included");
    assert!(named <= HOME_BYTES_MAX + MAPPING_BYTES_MAX + directory_bytes_max, "{named} bytes");

    let start = Stretch::new(ALLOCATOR);
    for index in 0..REGIONS {
        cluster.map(2, &format!("region-{index:08}"));
    }
    let per_mapping = bytes_since(&start) / REGIONS;
    println!("{per_mapping} bytes per mapping by another node, its entry at the home included");
    assert!(
        per_mapping <= MAPPING_BYTES_MAX + size_of::<halite_tier::ids::NodeIncarnation>() * 4,
        "{per_mapping} bytes"
    );
}
