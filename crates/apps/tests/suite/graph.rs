//! Ranks and components, against plain computations.

use crate::common;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use common::{Cluster, MIB, can_share_pages};
use fastrand::Rng;
use halite_apps::graph::input::{Edge, EdgeList, Input};
use halite_apps::graph::{
    Crowd, GraphError, PageRank, Shard, components, components_on_dsm, pagerank, pagerank_on_dsm, sizes,
};

/// Runs a computation with one worker on each node; returns their results.
fn on_all<T: Send>(
    cluster: &Cluster,
    run: impl AsyncFn(Crowd) -> Result<T, GraphError> + Sync,
) -> Vec<Result<T, GraphError>> {
    let workers = cluster.nodes.len();
    std::thread::scope(|scope| {
        let started: Vec<_> = (0..workers)
            .map(|me| {
                let (blocking, run) = (cluster.session(me), &run);
                scope.spawn(move || {
                    let session = blocking.as_async().clone();
                    let patience = Duration::from_secs(60);
                    blocking.block_on(run(Crowd { session, me, workers, name: "graph".into(), patience }))
                })
            })
            .collect();
        started.into_iter().map(|worker| worker.join().unwrap()).collect()
    })
}

fn ranks_of(cluster: &Cluster, input: &Input, options: PageRank) -> BTreeMap<u64, f64> {
    let parts = on_all(cluster, async |crowd| {
        let shard = Shard::load(&crowd, input, false).await?;
        let found = pagerank(&crowd, &shard, options).await?;
        assert!(found.verified);
        crowd.end().await?;
        Ok(shard.ids.into_iter().zip(found.values).collect::<Vec<_>>())
    });
    parts.into_iter().flat_map(Result::unwrap).collect()
}

fn plain_ranks(edges: &[Edge], iterations: u64) -> BTreeMap<u64, f64> {
    let ids: BTreeSet<u64> = edges.iter().flat_map(|(from, to)| [*from, *to]).collect();
    let count = ids.len() as f64;
    let mut degrees = BTreeMap::new();
    edges.iter().for_each(|(from, _)| *degrees.entry(*from).or_insert(0.0) += 1.0);
    let mut ranks: BTreeMap<u64, f64> = ids.iter().map(|id| (*id, 1.0 / count)).collect();
    for _ in 0..iterations {
        let dangling: f64 =
            ranks.iter().filter(|(id, _)| !degrees.contains_key(id)).map(|(_, rank)| rank).sum();
        let mut next: BTreeMap<u64, f64> =
            ids.iter().map(|id| (*id, (0.15 + 0.85 * dangling) / count)).collect();
        for (from, to) in edges {
            *next.get_mut(to).unwrap() += 0.85 * ranks[from] / degrees[from];
        }
        ranks = next;
    }
    ranks
}

/// A graph with repeated edges, loops, vertices without edges to others, and ids of any size.
fn random_edges(seed: u64, vertices: u64, edges: usize) -> Vec<Edge> {
    let mut random = Rng::with_seed(seed);
    let ids: Vec<u64> =
        (0..vertices).map(|number| if number % 3 == 0 { number } else { random.u64(..) }).collect();
    (0..edges).map(|_| (ids[random.usize(0..ids.len() / 2)], ids[random.usize(..ids.len())])).collect()
}

#[test]
fn ranks_equal_those_of_a_plain_computation() {
    let cluster = Cluster::new(64 * MIB);
    for (seed, vertices, edges) in [(1, 1, 1), (2, 10, 5), (3, 300, 2000)] {
        let edges = random_edges(seed, vertices.max(2), edges);
        let options = PageRank { iterations: 30, tolerance: 0.0, ..PageRank::default() };
        let ranks = ranks_of(&cluster, &Input::Edges(edges.clone().into()), options);
        let expected = plain_ranks(&edges, 30);
        assert!(ranks.keys().eq(expected.keys()));
        for (id, rank) in &ranks {
            assert!((rank - expected[id]).abs() < 1e-9 * expected[id], "{id}: {rank}, not {}", expected[id]);
        }
        assert!((ranks.values().sum::<f64>() - 1.0).abs() < 1e-9);
    }
    assert_eq!(cluster.bytes_used(), 0);
}

#[test]
fn the_engine_on_shared_pages_computes_equal_values() {
    if !can_share_pages() {
        return;
    }
    let cluster = Cluster::new(64 * MIB);
    // Several pages per worker, and fewer words than a page has.
    for (seed, vertices, edges) in [(4, 10, 12), (5, 6000, 20_000)] {
        let input = Input::Edges(random_edges(seed, vertices, edges).into());
        let options = PageRank { iterations: 25, tolerance: 0.0, ..PageRank::default() };
        let expected = ranks_of(&cluster, &input, options);
        let workers = cluster.nodes.len();
        let work = &|me| -> Vec<(u64, f64)> {
            let session = cluster.session(me);
            let (name, patience) = ("graph".to_owned(), Duration::from_secs(60));
            let crowd = Crowd { session: session.as_async().clone(), me, workers, name, patience };
            let shard = session.block_on(Shard::load(&crowd, &input, false)).unwrap();
            let found = pagerank_on_dsm(&session, &crowd, &shard, options).unwrap();
            assert!(found.verified);
            let undirected = session.block_on(Shard::load(&crowd, &input, true)).unwrap();
            let labels = components_on_dsm(&session, &crowd, &undirected).unwrap();
            let ordinary = session.block_on(components(&crowd, &undirected)).unwrap();
            assert!(labels.verified);
            assert_eq!((labels.steps, labels.values), (ordinary.steps, ordinary.values));
            session.block_on(crowd.end()).unwrap();
            shard.ids.into_iter().zip(found.values).collect()
        };
        let parts: Vec<_> = std::thread::scope(|scope| {
            let started: Vec<_> = (0..workers).map(|me| scope.spawn(move || work(me))).collect();
            started.into_iter().map(|worker| worker.join().unwrap()).collect()
        });
        let ranks: BTreeMap<u64, f64> = parts.into_iter().flatten().collect();
        assert!(ranks.keys().eq(expected.keys()));
        for (id, rank) in &ranks {
            assert!((rank - expected[id]).abs() < 1e-9 * expected[id], "{id}: {rank}, not {}", expected[id]);
        }
    }
    assert_eq!(cluster.bytes_used(), 0);
}

#[test]
fn components_equal_those_of_a_plain_computation() {
    let cluster = Cluster::new(64 * MIB);
    // Labels travel along a chain one vertex a step, so most steps change few values.
    let chain: Vec<Edge> =
        (0..400).map(|id| (id + 1, id)).chain((1000..1100).map(|id| (id, id + 1))).collect();
    for edges in [chain, random_edges(5, 2000, 900)] {
        let input = Input::Edges(Arc::from(edges.as_slice()));
        let parts = on_all(&cluster, async |crowd| {
            let shard = Shard::load(&crowd, &input, true).await?;
            let found = components(&crowd, &shard).await?;
            assert!(found.verified);
            let sizes = sizes(&crowd, &found.values).await?;
            crowd.end().await?;
            Ok((shard.ids.into_iter().zip(found.values).collect::<Vec<_>>(), sizes))
        });
        let (labels, sizes): (Vec<_>, Vec<_>) = parts.into_iter().map(Result::unwrap).unzip();
        let labels: BTreeMap<u64, u64> = labels.into_iter().flatten().collect();
        let mut expected: BTreeMap<u64, u64> = labels.keys().map(|id| (*id, *id)).collect();
        while edges.iter().any(|(one, other)| {
            let lower = expected[one].min(expected[other]);
            let old = (expected.insert(*one, lower), expected.insert(*other, lower));
            old != (Some(lower), Some(lower))
        }) {}
        assert_eq!(labels, expected);
        let mut counted = BTreeMap::new();
        expected.values().for_each(|label| *counted.entry(*label).or_insert(0) += 1);
        let sizes: BTreeMap<u64, u64> =
            sizes.into_iter().flatten().map(|(size, label)| (label, size)).collect();
        assert_eq!(sizes, counted);
    }
    assert_eq!(cluster.bytes_used(), 0);
}

#[test]
fn edge_lists_are_read_in_parts_and_checked() {
    let dir = tempfile::tempdir().unwrap();
    let read = |text: &str, parts: usize| -> Result<Vec<Edge>, GraphError> {
        let path = dir.path().join("edges");
        std::fs::write(&path, text).unwrap();
        let input = Input::File(EdgeList::find(&path)?);
        let parts: Result<Vec<_>, _> = (0..parts).map(|part| input.part(part, parts)).collect();
        Ok(parts?.concat())
    };
    let text = "# a comment\n1\t2\n\n3 18446744073709551615\r\n% another\n  4   5 0.25\n6 7";
    let edges = [(1, 2), (3, u64::MAX), (4, 5), (6, 7)];
    for parts in [1, 2, 3, 7, 100] {
        assert_eq!(read(text, parts).unwrap(), edges, "{parts} parts");
    }
    assert_eq!(read("", 2).unwrap(), []);
    for (text, line) in
        [("1 2\n3\n", 2), ("# x\n1 2\nx y\n", 3), ("1 18446744073709551616\n", 1), ("1 -2", 1)]
    {
        let error = read(text, 2).unwrap_err().to_string();
        assert!(error.contains(&format!("edges:{line}: expected two vertex ids")), "{error}");
    }
    // A line that is cut at its maximum must not continue as another edge.
    let long = "9 ".repeat(2050);
    assert_eq!(read(&format!("#{long}\n1 2\n"), 1).unwrap(), [(1, 2)]);
    let error = read(&format!("1 2\n{long}\n"), 1).unwrap_err().to_string();
    assert!(error.contains("edges:2: a line with an edge has at most 4095 bytes"), "{error}");
    for path in [dir.path().join("none"), dir.path().to_owned()] {
        let error = EdgeList::find(&path).unwrap_err();
        assert!(error.to_string().contains("cannot read"), "{error}");
    }
    let input = Input::File(EdgeList::find(&dir.path().join("edges")).unwrap());
    std::fs::write(dir.path().join("edges"), "1 2\n").unwrap();
    let error = std::error::Error::source(&input.part(0, 1).unwrap_err()).unwrap().to_string();
    assert_eq!(error, "it was changed while it was read");
}

#[test]
fn a_graph_without_edges_has_no_vertices() {
    let cluster = Cluster::new(16 * MIB);
    assert!(ranks_of(&cluster, &Input::Edges(Arc::from([])), PageRank::default()).is_empty());
}

#[test]
fn the_error_for_too_little_memory_names_the_bytes() {
    let cluster = Cluster::new(MIB);
    let edges: Vec<Edge> = (0..200_000).map(|id| (id, id + 1)).collect();
    let input = Input::Edges(edges.into());
    let parts = on_all(&cluster, async |crowd| {
        // After one worker fails, the other waits at the barrier until its patience ends.
        let hurried = Crowd { patience: Duration::from_secs(5), ..crowd };
        Shard::load(&hurried, &input, false).await.map(|_| ())
    });
    let errors: Vec<String> = parts.into_iter().map(|part| part.unwrap_err().to_string()).collect();
    assert!(errors.iter().any(|error| error.contains("bytes of its node's memory for")), "{errors:?}");
}
