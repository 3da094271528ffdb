//! A region is freed by one process while others read and write it.

use halite::Placement;

use super::cluster::{ANYBODY, Cluster};
use super::pattern::first_nonzero;

#[test]
fn a_user_of_a_region_that_another_process_frees_is_told_so_and_writes_to_it_no_more() {
    let cluster = Cluster::new();
    let node = cluster.join(0);
    let session = node.blocking_session();
    let arena = cluster.config.arena_bytes;
    let len = arena / 2;
    let mut users = [cluster.start(1), cluster.start(2)];
    let mut freeing = cluster.start(3);
    for round in 0..10 {
        let lh = session.alloc(Some("brief"), len, Placement::Local, ANYBODY).expect("there is room");
        for user in &mut users {
            user.order("map brief");
            user.order(&format!("flood brief {len}"));
            user.order(&format!("gulp brief {len}"));
        }
        freeing.order("map brief");
        for user in &mut users {
            assert_eq!((user.news(), user.news()), ("brief begun".to_owned(), "brief begun".to_owned()));
        }
        freeing.order("free brief");
        // Whatever memory there is: that of the region is among it, and nobody may write to it any more.
        let fresh = session.alloc(None, arena, Placement::Local, ANYBODY);
        let fresh = fresh.expect("what is freed can be had at once");
        let mut found = vec![1; arena as usize];
        session.read(fresh, 0, &mut found).expect("it is ours");
        assert_eq!(first_nonzero(&found), None, "round {round}: fresh memory is not zero");
        for user in &mut users {
            assert_eq!((user.news(), user.news()), ("brief ended Stale".into(), "brief ended Stale".into()));
            assert_eq!(user.ask("zero brief"), "Stale");
        }
        session.read(fresh, 0, &mut found).expect("it is ours");
        assert_eq!(first_nonzero(&found), None, "round {round}: somebody wrote to freed memory");
        session.free(fresh).expect("it is ours");
        let refused = session.write(lh, 0, b"late").expect_err("the region is gone");
        assert_eq!(refused.cause, halite::AccessCause::Stale);
    }
}
