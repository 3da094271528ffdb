//! Names: unique while their region exists, and free afterwards.

use halite::{NodeId, Permissions, Placement, RegionCause, Who};

use super::cluster::{Cluster, Harness, everyone, shared};
use super::refused;
use super::session::Session;
use super::turns::{StartingLine, scope};

/// Expects that a second region with the same name is refused on any node, and that the first region is unaffected.
pub fn a_name_is_unique(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let first = cluster.session(0);
    let lh = shared(&first, "one", 100);
    first.write(lh, 0, b"mine").unwrap();
    for index in [0, 1] {
        let second = cluster.session(index).alloc(Some("one"), 50, Placement::Local, everyone());
        refused!(second, RegionCause::NameTaken);
    }
    assert_eq!(first.stat("one").unwrap().len, 100);
    let mut bytes = [0; 4];
    first.read(lh, 0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"mine");
    assert_eq!(cluster.status(1).bytes_used, 0, "memory reserved for the refused region leaked");
}

/// Expects that the name of a freed region can be used again, on any node.
pub fn a_freed_region_releases_its_name(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let session = cluster.session(0);
    let lh = shared(&session, "again", 100);
    session.free(lh).unwrap();
    refused!(cluster.session(1).map("again", Permissions::READ), RegionCause::NotFound);
    shared(&cluster.session(1), "again", 200);
    assert_eq!(session.stat("again").unwrap().len, 200);
}

/// Expects that exactly one of many concurrent allocations gets the name.
pub fn one_of_many_claims_of_a_name_succeeds(h: &dyn Harness) {
    let cluster = Cluster::new(h, 3);
    let sessions: Vec<_> = (0..6).map(|index| cluster.session(index % 3)).collect();
    let start = StartingLine::new(sessions.len());
    let attempt = |session: &Session| {
        start.wait();
        session.alloc(Some("prize"), 64, Placement::Local, everyone()).is_ok()
    };
    let winners = scope(|scope| {
        let threads: Vec<_> = sessions.iter().map(|session| scope.spawn(move || attempt(session))).collect();
        threads.into_iter().filter_map(|thread| thread.join().then_some(())).count()
    });
    assert_eq!(winners, 1);
    assert_eq!(cluster.session(0).list().unwrap().len(), 1);
}

/// Expects that an empty name is refused, because it could be confused with no name.
pub fn the_empty_name_is_refused(h: &dyn Harness) {
    let cluster = Cluster::new(h, 1);
    refused!(cluster.session(0).alloc(Some(""), 10, Placement::Local, everyone()), RegionCause::NameEmpty);
    cluster.expect_empty();
}

/// Expects that a name may have 255 bytes of UTF-8, and that a longer name is refused. The limit counts bytes, not
/// characters.
pub fn a_name_has_at_most_255_bytes(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let session = cluster.session(1);
    let longest = format!("{}x", "é".repeat(127));
    assert_eq!(longest.len(), 255);
    shared(&session, &longest, 10);
    cluster.session(0).map(&longest, Permissions::READ).unwrap();
    let longer = "é".repeat(128);
    refused!(
        session.alloc(Some(&longer), 10, Placement::Local, everyone()),
        RegionCause::NameTooLong { len: 256, .. }
    );
}

/// Expects that a name may contain spaces, slashes and letters of any script.
pub fn any_text_is_a_name(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let names = ["a b", "/etc/passwd", "..", "名前", "🜔", "new\nline", "nul\0byte", "A", "a"];
    for (index, name) in names.iter().enumerate() {
        shared(&cluster.session(0), name, 10 + index as u64);
    }
    for (index, name) in names.iter().enumerate() {
        assert_eq!(cluster.session(1).stat(name).unwrap().len, 10 + index as u64, "{name:?}");
    }
}

/// Expects that a name matches neither a prefix, nor a longer name, nor a name in another letter case.
pub fn only_the_whole_name_matches(h: &dyn Harness) {
    let cluster = Cluster::new(h, 1);
    let session = cluster.session(0);
    shared(&session, "Region", 10);
    for other in ["region", "Reg", "Region ", "Region\0", "Regions"] {
        refused!(session.map(other, Permissions::READ), RegionCause::NotFound);
    }
}

/// Expects that no other session finds a region before the region has a name, and that a named region outlives its
/// creator.
pub fn a_region_can_be_named_later(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let (maker, other) = (cluster.session(0), cluster.session(1));
    let lh = maker.alloc(None, 100, Placement::On(NodeId(1)), everyone()).unwrap();
    maker.write(lh, 0, b"ready").unwrap();
    refused!(other.map("late", Permissions::READ), RegionCause::NotFound);
    maker.set_name(lh, "late").unwrap();
    maker.unmap(lh).unwrap();
    let lh = other.map("late", Permissions::all()).unwrap();
    let mut bytes = [0; 5];
    other.read(lh, 0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"ready");
    assert_eq!(other.stat_handle(lh).unwrap().name.as_deref(), Some("late"));
    other.free(lh).unwrap();
    refused!(other.map("late", Permissions::READ), RegionCause::NotFound);
    cluster.expect_empty();
}

/// Expects that a region without a name cannot get a taken name, stays unchanged, and can get another name.
pub fn a_region_cannot_take_a_used_name(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let session = cluster.session(1);
    shared(&cluster.session(0), "taken", 10);
    let lh = session.alloc(None, 10, Placement::Local, everyone()).unwrap();
    refused!(session.set_name(lh, "taken"), RegionCause::NameTaken);
    refused!(session.set_name(lh, ""), RegionCause::NameEmpty);
    refused!(session.set_name(lh, "\0lock"), RegionCause::NameReserved);
    assert_eq!(session.stat_handle(lh).unwrap().name, None);
    session.set_name(lh, "free").unwrap();
    assert_eq!(session.list().unwrap().len(), 2);
}

/// Expects that a named region cannot get another name, because sessions that know the first name could no longer find
/// the region.
pub fn a_region_cannot_be_renamed(h: &dyn Harness) {
    let cluster = Cluster::new(h, 1);
    let session = cluster.session(0);
    let lh = shared(&session, "first", 10);
    refused!(session.set_name(lh, "second"), RegionCause::HasName);
    session.set_name(lh, "first").unwrap();
    refused!(session.map("second", Permissions::READ), RegionCause::NotFound);
}

/// Expects that only masters can name a region.
pub fn only_masters_name_regions(h: &dyn Harness) {
    let cluster = Cluster::new(h, 1);
    let session = cluster.session(0);
    let lh = session.alloc(None, 10, Placement::Local, everyone()).unwrap();
    session.add_master(lh, "another principal").unwrap();
    let me = session.stat_handle(lh).unwrap().owner;
    session.revoke(lh, Who::Principal(me), Permissions::MASTER).unwrap();
    refused!(session.set_name(lh, "name"), RegionCause::PermissionDenied { .. });
    assert!(session.list().unwrap().is_empty());
}
