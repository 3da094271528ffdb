//! What an operation of the applications takes, beside a bare read: `cargo run --release -p halite-apps --example application_costs [WHICH]`.
//!
//! Two nodes of this process; what is read and written is the other's memory, reached by loads and stores.  Figures are
//! medians of runs that take turns.  With a WHICH, only the figures whose names contain it are taken, so that a counter of
//! instructions sees nothing else.

use std::hint::black_box;
use std::path::Path;

use halite::{Config, Function, Node, NodeId, Permissions, Placement, blocking};
use halite_apps::kv::{Owner, SetOptions, Store};
use halite_apps::log::{Follower, Log, Options, Writer};

type Failure = Box<dyn std::error::Error>;

/// Runs per figure, of which the median counts.
const RUNS: usize = 21;
/// Operations of a run.
const EACH: usize = 16_384;
const KEYS: u64 = 10_000;
const VALUE: [u8; 64] = [7; 64];
const FUNCTION: Function = Function(1);

fn main() -> Result<(), Failure> {
    let which = std::env::args().nth(1).unwrap_or_default();
    let dir = std::env::temp_dir().join(format!("halite-app-costs-{}", std::process::id()));
    let measured = measure(&dir.join("cluster"), &which);
    std::fs::remove_dir_all(dir)?;
    measured
}

fn measure(dir: &Path, which: &str) -> Result<(), Failure> {
    let start = |node| {
        let config =
            Config { dir: dir.into(), node: Some(NodeId(node)), arena_bytes: 512 << 20, ..Config::default() };
        Node::embedded(config)
    };
    let nodes = [start(0)?, start(1)?];
    let session = nodes[0].blocking_session();
    store(&session, &nodes[1], which)?;
    log(&session, which)
}

/// What this thread has had of the processor meanwhile, in ns: others may use that, too.
fn timed(run: impl FnOnce() -> Result<(), Failure>) -> Result<i64, Failure> {
    let now_ns = || {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        time.tv_sec * 1_000_000_000 + time.tv_nsec
    };
    let begin_ns = now_ns();
    run()?;
    Ok(now_ns() - begin_ns)
}

/// A figure: its name, and what carries out one run of it and says what that took.
type FigureRun<'a> = (&'a str, &'a mut dyn FnMut() -> Result<i64, Failure>);

/// Takes the figures by turns, and prints their medians.
fn compare(which: &str, figures: &mut [FigureRun<'_>]) -> Result<(), Failure> {
    let mut times = vec![Vec::new(); figures.len()];
    for _ in 0..RUNS {
        for ((_, run), times) in
            figures.iter_mut().zip(&mut times).filter(|((name, _), _)| name.contains(which))
        {
            times.push(run()? as f64 / EACH as f64);
        }
    }
    for ((name, _), times) in figures.iter().zip(&mut times).filter(|(_, times)| !times.is_empty()) {
        times.sort_by(f64::total_cmp);
        println!("{name:44} {:8.1} ns", times[RUNS / 2]);
    }
    Ok(())
}

/// Values of a shard that the other node owns.
fn store(session: &blocking::Session, node: &Node, which: &str) -> Result<(), Failure> {
    let owning = node.blocking_session();
    let owner = Owner::create(owning.as_async(), "store", 0, FUNCTION, Permissions::empty());
    let owner = owning.block_on(owner)?;
    let stopper = owner.stopper();
    let serving = std::thread::spawn(move || owning.block_on(owner.run(|| 1)));
    let creating = Store::create(session.as_async(), "store", &[NodeId(1)], FUNCTION, Permissions::empty());
    let mut store = session.block_on(creating)?;
    let keys: Vec<Vec<u8>> = (0..KEYS).map(|key| format!("user{key:012}").into_bytes()).collect();
    for key in &keys {
        session.block_on(store.set(key, &VALUE, SetOptions::default()))?;
    }
    let region = session.alloc(None, KEYS * 128, Placement::On(NodeId(1)), Permissions::empty())?;
    session.fill(region, 0, KEYS * 128, 7)?;
    let place = |number: usize| (number * 7919) % KEYS as usize;
    let (mut value, mut bytes) = (Vec::new(), [0; 64]);
    let mut get = || {
        timed(|| {
            for number in 0..EACH {
                let got = session.block_on(store.get_into(&keys[place(number)], &mut value))?;
                assert!(got && value == VALUE);
            }
            Ok(())
        })
    };
    let mut read = || {
        timed(|| {
            for number in 0..EACH {
                session.read(region, place(number) as u64 * 128, &mut bytes)?;
                assert_eq!(black_box(bytes), VALUE);
            }
            Ok(())
        })
    };
    compare(which, &mut [("read of 64 B, bare", &mut read), ("get of 64 B", &mut get)])?;
    stopper.stop();
    serving.join().expect("the owner does not panic")?;
    Ok(())
}

/// Records of 16 bytes, each run into a log of its own.
fn log(session: &blocking::Session, which: &str) -> Result<(), Failure> {
    let record = [7; 16];
    let options = Options {
        slot_bytes: 32,
        segment_slots: 2 * EACH as u64,
        nodes: vec![NodeId(1)],
        ..Options::default()
    };
    let fresh = |name: &str| session.block_on(Log::create(session.as_async(), name, &options));
    let append = |batch: u64, together: usize| -> Result<i64, Failure> {
        let log = fresh("written")?;
        let mut writer = Writer::new(log.clone(), batch);
        let (records, mut positions) = (vec![&record[..]; together], Vec::new());
        // Makes the segment.
        session.block_on(writer.append(&record))?;
        let took = timed(|| {
            for _ in 0..EACH / together {
                match together {
                    1 => positions.push(session.block_on(writer.append(&record))?),
                    _ => session.block_on(writer.append_each(&records, &mut positions))?,
                }
                black_box(&positions);
                positions.clear();
            }
            Ok(())
        });
        session.block_on(log.free())?;
        took
    };
    let log = fresh("read")?;
    let mut writer = Writer::new(log.clone(), 64);
    for _ in 0..EACH {
        session.block_on(writer.append(&record))?;
    }
    let mut follow = || {
        let mut follower = session.block_on(Follower::from_start(log.clone()))?;
        let mut seen = 0;
        timed(|| {
            while seen < EACH {
                session.block_on(follower.poll(1, |entry| seen += entry.records().count()))?;
            }
            Ok(())
        })
    };
    let (mut single, mut many, mut each) = (|| append(1, 1), || append(64, 1), || append(1, 64));
    compare(
        which,
        &mut [
            ("append, one slot reserved at a time", &mut single),
            ("append, 64 slots reserved at a time", &mut many),
            ("append, 64 records by one call", &mut each),
            ("follow", &mut follow),
        ],
    )?;
    Ok(session.block_on(log.free())?)
}
