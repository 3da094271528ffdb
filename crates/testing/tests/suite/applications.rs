//! Applications in virtual time, on nodes that die.

use std::time::Duration;

use halite::Session;
use halite_apps::graph::input::{Input, Kronecker};
use halite_apps::graph::{Crowd, GraphError, PageRank, Shard, pagerank};
use halite_testing::conformance::Cluster;
use halite_testing::conformance::sim::Simulated;
use halite_testing::conformance::turns::{pause_again, scope, wait};

/// Ranks a small graph with a worker for each session; returns the sums of their ranks.
fn rank(
    sessions: Vec<Session>,
    name: &str,
    options: PageRank,
    meanwhile: impl FnOnce(),
) -> Vec<Result<f64, GraphError>> {
    let input = Input::Kronecker(Kronecker { scale: 6, seed: 1 });
    let workers = sessions.len();
    scope(|scope| {
        let started: Vec<_> = sessions
            .into_iter()
            .enumerate()
            .map(|(me, session)| {
                let (name, patience) = (name.to_owned(), Duration::from_secs(1));
                let (crowd, input) = (Crowd { session, me, workers, name, patience }, &input);
                scope.spawn(move || {
                    wait(async {
                        let shard = Shard::load(&crowd, input, false).await?;
                        let found = pagerank(&crowd, &shard, options).await?;
                        crowd.end().await?;
                        Ok(found.values.iter().sum())
                    })
                })
            })
            .collect();
        meanwhile();
        started.into_iter().map(|worker| worker.join().expect("the thread does not panic")).collect()
    })
}

#[test]
fn a_graph_run_ends_when_a_worker_dies() {
    let harness = Simulated::profile("rnic-100g");
    let mut cluster = Cluster::new(&harness, 3);
    let sessions = |cluster: &Cluster, count| (0..count).map(|node| cluster.futures(node)).collect();
    let short = PageRank { iterations: 20, tolerance: 0.0, ..PageRank::default() };
    let sum_with = |cluster: &Cluster, count, name| -> f64 {
        rank(sessions(cluster, count), name, short, || {}).into_iter().map(Result::unwrap).sum()
    };
    assert!((sum_with(&cluster, 3, "before") - 1.0).abs() < 1e-9);
    let endless = PageRank { iterations: u64::MAX, tolerance: -1.0, ..PageRank::default() };
    let ended = rank(sessions(&cluster, 3), "during", endless, || {
        (0..60).for_each(pause_again);
        cluster.kill(2);
    });
    for error in ended.into_iter().map(Result::unwrap_err) {
        assert!(matches!(error, GraphError::Barrier(_) | GraphError::Access(_)), "{error}");
    }
    // The others go on.
    assert!((sum_with(&cluster, 2, "after") - 1.0).abs() < 1e-9);
}
