//! Several processes write to regions that move between nodes: no write is lost, and none lands in the old place.

use fastrand::Rng;
use halite::blocking::Session;
use halite::{Lh, NodeId, Placement};

use super::cluster::{Cluster, Process, READ_WRITE};
use super::pattern::first_nonzero;
use super::stripes::{self, WRITERS};

const REGION_BYTES: u64 = 1 << 20;
const MOVES: usize = 20;

/// The fourth node, which reads the region and the progress of each writer.
struct Observer<'s> {
    session: &'s Session,
    lh: Lh,
    counts: Lh,
}

impl Observer<'_> {
    fn count(&self, writer: u64) -> u64 {
        let mut word = [0; 8];
        self.session.read(self.counts, writer * 8, &mut word).expect("the region of counts does not move");
        u64::from_le_bytes(word)
    }

    /// Checks that the last completed write of each writer is visible, or a newer one in its place.
    fn check_completed_writes(&self) {
        for writer in 0..WRITERS {
            let count = self.count(writer);
            if count == 0 {
                continue;
            }
            let mut word = [0; 8];
            let offset = stripes::offset(writer, count, REGION_BYTES);
            self.session.read(self.lh, offset, &mut word).expect("the region is readable during a move");
            let found = u64::from_le_bytes(word);
            assert!(found >= count, "write {count} of writer {writer} is lost: found {found}");
        }
    }

    /// Waits until each writer has made progress.
    fn await_progress(&self) {
        for writer in 0..WRITERS {
            let before = self.count(writer);
            let deadline = std::time::Instant::now() + super::cluster::PATIENCE;
            while self.count(writer) < before + 10 {
                assert!(std::time::Instant::now() < deadline, "writer {writer} is stuck at {before}");
            }
        }
    }

    /// Compares the whole region with the completed writes, while no writer runs.
    fn check_all(&self, done: &[u64; 3], round: usize) {
        let mut found = vec![0; REGION_BYTES as usize];
        self.session.read(self.lh, 0, &mut found).expect("the region is readable");
        let checked = stripes::check(&found, done);
        assert_eq!(checked, Ok(()), "after move {round}");
    }

    /// Checks that a new region in the old place of the moved region is zero.
    fn check_zero(&self, lh: Lh, round: usize) {
        let mut found = vec![1; REGION_BYTES as usize];
        self.session.read(lh, 0, &mut found).expect("the region is readable");
        assert_eq!(first_nonzero(&found), None, "a write landed in the old place of move {round}");
    }
}

/// Starts all writers. Each continues after its number of writes in `done`.
fn start_writers(writers: &mut [Process], done: &[u64; 3]) {
    for (writer, (process, done)) in writers.iter_mut().zip(done).enumerate() {
        process.run(&format!("stripes shared counts {writer} {done}"));
    }
}

/// Moves a region several times while three processes write to it, and checks it from a fourth node.
fn move_while_writing(placement: Placement, seed: u64) {
    let cluster = Cluster::new();
    let mut writers: Vec<Process> = (0..3).map(|node| cluster.start(node)).collect();
    let node = cluster.join(3);
    let session = node.blocking_session();
    let lh = session.alloc(Some("shared"), REGION_BYTES, placement, READ_WRITE).expect("there is room");
    let counts = session.alloc(Some("counts"), 4096, Placement::Local, READ_WRITE).expect("there is room");
    let observer = Observer { session: &session, lh, counts };
    for process in &mut writers {
        process.run("map shared");
        process.run("map counts");
    }
    let mut numbers = Rng::with_seed(seed);
    let mut done = [0; 3];
    for round in 0..MOVES {
        start_writers(&mut writers, &done);
        observer.await_progress();
        let old = session.stat("shared").expect("the object exists").home;
        let new = NodeId((old.0 + 1 + numbers.u64(0..2) as u32) % 3);
        std::thread::scope(|scope| {
            let moving = scope.spawn(|| session.move_to(lh, new));
            while !moving.is_finished() {
                observer.check_completed_writes();
            }
            moving
                .join()
                .expect("the thread does not panic")
                .unwrap_or_else(|error| panic!("move {round}: {error}"));
        });
        let old_place =
            session.alloc(None, REGION_BYTES, Placement::On(old), READ_WRITE).expect("there is room");
        observer.check_zero(old_place, round);
        observer.await_progress();
        done = std::array::from_fn(|writer| writers[writer].halt());
        observer.check_all(&done, round);
        observer.check_zero(old_place, round);
        session.free(old_place).expect("the session is a master");
        let info = session.stat("shared").expect("the object exists");
        assert_eq!((info.home, info.nodes), (new, vec![(new, REGION_BYTES)]));
    }
    for process in &mut writers {
        process.run("fill shared 4096 7");
        let mut found = vec![0; 4096];
        session.read(lh, 0, &mut found).expect("the region is readable");
        assert_eq!(super::pattern::first_difference(&found, &super::pattern::bytes(7, 4096)), None);
        session.write(lh, 0, &[0; 4096]).expect("the region is writable");
    }
}

#[test]
fn moves_lose_no_write_of_three_processes() {
    for seed in 1..=2 {
        eprintln!("seed {seed}");
        move_while_writing(Placement::On(NodeId(0)), seed);
    }
}

#[test]
fn moves_of_a_spread_region_lose_no_write() {
    eprintln!("seed 3");
    let everywhere = Placement::Spread(vec![NodeId(1), NodeId(0), NodeId(2)]);
    move_while_writing(everywhere, 3);
}
