//! A process frees a region while others read and write it.

use halite::Placement;

use super::cluster::{Cluster, READ_WRITE};
use super::pattern::first_nonzero;

#[test]
fn users_of_a_freed_region_no_longer_write_to_it() {
    let cluster = Cluster::new();
    let node = cluster.join(0);
    let session = node.blocking_session();
    let arena = cluster.config.arena_bytes;
    let len = arena / 2;
    let mut users = [cluster.start(1), cluster.start(2)];
    let mut freeing = cluster.start(3);
    for round in 0..10 {
        let lh = session.alloc(Some("brief"), len, Placement::Local, READ_WRITE).expect("there is room");
        for user in &mut users {
            user.run("map brief");
            user.run(&format!("rewrite brief {len}"));
            user.run(&format!("reread brief {len}"));
        }
        freeing.run("map brief");
        for user in &mut users {
            assert_eq!((user.event(), user.event()), ("brief begun".to_owned(), "brief begun".to_owned()));
        }
        freeing.run("free brief");
        // The new region takes all memory, including that of the freed region. No process may write to that any more.
        let fresh = session.alloc(None, arena, Placement::Local, READ_WRITE);
        let fresh = fresh.expect("freed memory is available at once");
        let mut found = vec![1; arena as usize];
        session.read(fresh, 0, &mut found).expect("the session is a master");
        assert_eq!(first_nonzero(&found), None, "round {round}: fresh memory is not zero");
        for user in &mut users {
            assert_eq!(
                (user.event(), user.event()),
                ("brief ended Stale".into(), "brief ended Stale".into())
            );
            assert_eq!(user.ask("zero brief"), "Stale");
        }
        session.read(fresh, 0, &mut found).expect("the session is a master");
        assert_eq!(first_nonzero(&found), None, "round {round}: a process wrote to freed memory");
        session.free(fresh).expect("the session is a master");
        let refused = session.write(lh, 0, b"late").expect_err("the region is gone");
        assert_eq!(refused.cause, halite::AccessCause::Stale);
    }
}
