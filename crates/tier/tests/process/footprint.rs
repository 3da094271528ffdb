//! The memory of the tier per small region: at its home, and where it is mapped.

use crate::common;

use std::alloc::System;

use common::{CHUNK_BYTES, Cluster};
use halite_tier::effect::{Command, Placement};
use halite_tier::ids::NodeId;
use halite_tier::permissions::Permissions;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region as Stretch, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Bytes of the system's allocator per allocation: its size, and the average of rounding to 16.
const ALLOCATION_OVERHEAD_BYTES: usize = 16;

fn bytes_since(start: &Stretch<'_, System>) -> usize {
    let change = start.change();
    let bytes = change.bytes_allocated - change.bytes_deallocated;
    bytes + (change.allocations - change.deallocations) * ALLOCATION_OVERHEAD_BYTES
}

/// The blocks of the handle table double; this many handles exactly fill them, so the test measures handles, not room
/// for more (whose pages are untouched until used).
const REGIONS: usize = 16_000;
const HOME_BYTES_MAX: usize = 256;
const MAPPING_BYTES_MAX: usize = 128;

/// One test, since all tests of a file share the counter.  Node 0 is the directory, node 1 the home, node 2 another
/// mapper.  A session of the home makes each region, which maps it there; then node 2 maps it.
#[test]
fn small_regions_cost_256_bytes_and_128_per_mapping() {
    let _alone = crate::alone();
    let mut cluster = Cluster::of(3);
    // Warm-up: the arena has grown, the first slots and lists exist.
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

    // A named region also costs its name at the directory, on the same counter.
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
