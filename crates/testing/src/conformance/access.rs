//! Reads and writes: bounds checks, and the location of every byte.

use fastrand::Rng;
use halite::{AccessCause, Placement};

use super::cluster::{CHUNK, Cluster, Harness, contents, everyone, in_common, pattern, shared};
use super::refused;

/// Expects that no access reaches a byte beyond the end of the region, and that a refused write changes nothing.
pub fn no_access_reaches_beyond_the_end(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let [(owner, lh), (remote, far)] = in_common(&cluster, "short", 100);
    for (session, lh) in [(&owner, lh), (&remote, far)] {
        for (offset, len) in [(100, 1), (99, 2), (0, 101), (1 << 40, 1), (50, 1000)] {
            let mut bytes = vec![7; len];
            refused!(session.read(lh, offset, &mut bytes), AccessCause::OutOfRange { region_len: 100, .. });
            assert!(bytes.iter().all(|byte| *byte == 7), "a refused read changed the buffer");
            refused!(session.write(lh, offset, &bytes), AccessCause::OutOfRange { region_len: 100, .. });
        }
    }
    assert!(contents(&owner, lh).iter().all(|byte| *byte == 0));
}

/// Expects that an access is refused if its offset plus its length overflows.
pub fn an_offset_that_overflows_is_refused(h: &dyn Harness) {
    let cluster = Cluster::new(h, 1);
    let session = cluster.session(0);
    let lh = shared(&session, "wrap", 100);
    for offset in [u64::MAX, u64::MAX - 1, u64::MAX - 7] {
        let mut bytes = [0; 8];
        refused!(
            session.read(lh, offset, &mut bytes),
            AccessCause::Overflow | AccessCause::OutOfRange { .. }
        );
        refused!(session.write(lh, offset, &bytes), AccessCause::Overflow | AccessCause::OutOfRange { .. });
    }
}

/// Expects that accesses of zero bytes succeed up to the end of the region, and fail beyond it.
pub fn empty_accesses_succeed_up_to_the_end(h: &dyn Harness) {
    let cluster = Cluster::new(h, 1);
    let session = cluster.session(0);
    let lh = shared(&session, "end", 100);
    for offset in [0, 50, 100] {
        session.read(lh, offset, &mut []).unwrap();
        session.write(lh, offset, &[]).unwrap();
    }
    refused!(session.read(lh, 101, &mut []), AccessCause::OutOfRange { .. });
    refused!(session.write(lh, 101, &[]), AccessCause::OutOfRange { .. });
}

/// Expects that random reads and writes on a region have the same results as on an array.
pub fn a_region_behaves_like_an_array(h: &dyn Harness) {
    let cluster = Cluster::new(h, 3);
    let len = 3 * CHUNK + 100;
    let nodes = [0, 1, 2].map(halite::NodeId).to_vec();
    let maker = cluster.session(0);
    maker.alloc(Some("array"), len, Placement::Spread(nodes), everyone()).unwrap();
    let sessions = [0, 1, 2].map(|index| cluster.session(index));
    let handles = sessions.each_ref().map(|session| session.map("array", everyone()).unwrap());

    let seed = 4711;
    let mut random = Rng::with_seed(seed);
    let mut model = vec![0; len as usize];
    for step in 0..600 {
        let node = random.u64(0..3) as usize;
        let size_max = if step % 10 == 0 { len } else { 300 };
        let offset = random.u64(0..len);
        let size = random.u64(0..size_max.min(len - offset) + 1);
        let range = offset as usize..(offset + size) as usize;
        if random.u64(0..2) == 0 {
            let bytes = pattern(size, random.u64(..));
            sessions[node].write(handles[node], offset, &bytes).unwrap();
            model[range].copy_from_slice(&bytes);
        } else {
            let mut bytes = vec![0xEE; size as usize];
            sessions[node].read(handles[node], offset, &mut bytes).unwrap();
            assert_eq!(bytes, model[range], "seed {seed}, step {step}: {size} bytes at {offset}");
        }
    }
    assert_eq!(contents(&sessions[2], handles[2]), model);
}

/// Expects that short accesses are exact at each alignment, and change no neighbouring bytes. Copies have special cases
/// for short lengths and for alignments.
pub fn every_alignment_is_exact(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let [_, (session, lh)] = in_common(&cluster, "small", 256);
    for offset in 0..17u64 {
        for size in 0..40u64 {
            session.write(lh, 0, &[0xAA; 256]).unwrap();
            let bytes = pattern(size, offset);
            session.write(lh, 64 + offset, &bytes).unwrap();
            let mut expected = vec![0xAA; 256];
            expected[(64 + offset) as usize..][..size as usize].copy_from_slice(&bytes);
            assert_eq!(contents(&session, lh), expected, "{size} bytes at {offset}");
            let mut back = vec![0; size as usize];
            session.read(lh, 64 + offset, &mut back).unwrap();
            assert_eq!(back, bytes, "{size} bytes at {offset}");
        }
    }
}

/// Expects that an error contains the attempted operation, the region and the offset.
pub fn an_error_names_the_operation_and_the_region(h: &dyn Harness) {
    let cluster = Cluster::new(h, 1);
    let session = cluster.session(0);
    let lh = shared(&session, "known", 100);
    let text = session.write(lh, 90, &[0; 20]).unwrap_err().to_string();
    for part in ["write", "region", "90", "20", "100"] {
        assert!(text.contains(part), "{text:?} does not mention {part}");
    }
    let text = session.map("absent", everyone()).unwrap_err().to_string();
    for part in ["map", "absent"] {
        assert!(text.contains(part), "{text:?} does not mention {part}");
    }
}
