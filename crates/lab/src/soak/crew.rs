//! The processes of the soak: starts them, kills some, and watches that the others go on.

use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;
use halite::{Lh, Node, Permissions};

use super::board::{Board, INCARNATIONS_MAX, Note, Phase, RECORDS, WorkerState, everything, unexpected};
use super::excuse::Excusable;
use super::worker::config;
use super::{Failure, Result, WORKERS, ensure, locks, mix, regions, words};

/// Within this time every operation ends, every process starts, rests and leaves.
const PATIENCE: Duration = Duration::from_secs(90);
/// How often the crew is looked at: a process does some ten operations meanwhile.
const LOOK_AGAIN: Duration = Duration::from_micros(500);

/// The first node, and all processes.
pub struct Crew {
    // In this order: processes end before the node that they depend on, and that before its directory is removed.
    hands: Vec<Hand>,
    /// See [`Board`].
    pub board: Board,
    /// The first node.
    pub node: Node,
    directory: tempfile::TempDir,
    seed: u64,
    random: Rng,
    /// The last incarnation that was begun.
    last_incarnation: u64,
    /// How many were killed.
    pub kills: u64,
}

/// A process.  It is killed when dropped.
struct Hand {
    child: Child,
    node: u32,
    incarnation: u64,
    /// What it had done when it was last seen to do something, and when that was.
    seen: (u64, Instant),
}

impl Crew {
    /// Starts all processes.
    pub fn start(seed: u64) -> Result<Crew> {
        let private = std::fs::Permissions::from_mode(0o700);
        let directory = tempfile::Builder::new().prefix("halite-soak-").permissions(private).tempdir();
        let directory = directory.map_err(unexpected)?;
        let node = Node::embedded(config(directory.path(), 0)).map_err(unexpected)?;
        let board = Board::make(node.blocking_session())?;
        prepare(&board)?;
        let random = Rng::with_seed(mix(seed));
        let mut crew =
            Crew { hands: Vec::new(), board, node, directory, seed, random, last_incarnation: 0, kills: 0 };
        for node in 1..=WORKERS {
            let hand = crew.begin_incarnation(node)?;
            crew.hands.push(hand);
        }
        Ok(crew)
    }

    /// Lets them work until so much is done, with so many kills on the way.
    pub fn work(&mut self, operations: u64, kills: u64) -> Result<()> {
        let stride = operations / (kills + 1) + 1;
        loop {
            self.look()?;
            let done = self.done()?;
            if done >= operations {
                return Ok(());
            }
            if done / stride > self.kills {
                self.kill_one()?;
            }
            thread::park_timeout(LOOK_AGAIN);
        }
    }

    /// Operations of all incarnations.
    pub fn done(&self) -> Result<u64> {
        self.sum(Note::Done)
    }

    /// The sum of a note over all incarnations.
    pub fn sum(&self, note: Note) -> Result<u64> {
        (1..=self.last_incarnation).map(|incarnation| self.board.note(incarnation, note)).sum()
    }

    /// Which incarnation of each node is the last.
    pub fn survivors(&self) -> Vec<(u32, u64)> {
        self.hands.iter().map(|hand| (hand.node, hand.incarnation)).collect()
    }

    /// Tells all what to do, and waits until they are so far.
    pub fn rest(&mut self) -> Result<()> {
        self.board.set_phase(Phase::Rest)?;
        self.await_all("come to rest", |crew| {
            let states = crew.hands.iter().map(|hand| crew.board.note(hand.incarnation, Note::WorkerState));
            Ok(states
                .collect::<Result<Vec<u64>>>()?
                .iter()
                .all(|state| *state == WorkerState::Resting as u64))
        })
    }

    /// Waits until something holds, while all go on.
    pub fn await_all(&mut self, what: &str, mut holds: impl FnMut(&Crew) -> Result<bool>) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while !holds(self)? {
            self.look()?;
            ensure!(Instant::now() < deadline, "not all {what}: {:?}", self.node.blocking_session().status());
            thread::park_timeout(LOOK_AGAIN);
        }
        Ok(())
    }

    /// Lets all leave; what remains is the first node.
    pub fn leave(mut self) -> Result<(Board, Node, tempfile::TempDir)> {
        self.board.set_phase(Phase::Leave)?;
        let deadline = Instant::now() + PATIENCE;
        for hand in &mut self.hands {
            let ending = loop {
                if let Some(ending) = hand.ending()? {
                    break ending;
                }
                ensure!(Instant::now() < deadline, "{} does not leave", hand.name());
                thread::park_timeout(LOOK_AGAIN);
            };
            ensure!(ending.success(), "{} left with {ending}", hand.name());
        }
        Ok((self.board, self.node, self.directory))
    }

    /// Looks whether all live and get on, and lets those be known who have begun to work.
    fn look(&mut self) -> Result<()> {
        for hand in &mut self.hands {
            if let Some(ending) = hand.ending()? {
                return Err(Failure(format!("{} ended with {ending}", hand.name())));
            }
            let state = self.board.note(hand.incarnation, Note::WorkerState)?;
            if state >= WorkerState::Working as u64 && self.board.incarnation(hand.node)? == 0 {
                self.board.set_incarnation(hand.node, hand.incarnation)?;
            }
            let done = self.board.note(hand.incarnation, Note::Done)?;
            if done != hand.seen.0 || state == WorkerState::Resting as u64 {
                hand.seen = (done, Instant::now());
            }
            let doing = self.board.note(hand.incarnation, Note::Doing)?;
            let stands = hand.seen.1.elapsed() > PATIENCE;
            ensure!(
                !stands,
                "{} has not gone on after {done} operations, in the {doing}th kind",
                hand.name()
            );
        }
        Ok(())
    }

    /// Kills a worker chosen at random, and lets the next incarnation begin; sometimes that one does not live long either.
    fn kill_one(&mut self) -> Result<()> {
        let index = self.random.u64(0..u64::from(WORKERS)) as usize;
        let again = self.random.u64(0..4) == 0;
        self.replace(index)?;
        if again {
            thread::park_timeout(Duration::from_micros(self.random.u64(0..20_000)));
            self.replace(index)?;
        }
        self.kills += 1;
        Ok(())
    }

    fn replace(&mut self, index: usize) -> Result<()> {
        let hand = &mut self.hands[index];
        // Noted first: a worker that sees the death must find it explained.
        self.board.set_incarnation(hand.node, 0)?;
        hand.child.kill().map_err(unexpected)?;
        let ending = hand.child.wait().map_err(unexpected)?;
        ensure!(ending.code().is_none(), "{} ended with {ending} before it was killed", hand.name());
        let node = hand.node;
        self.hands[index] = self.begin_incarnation(node)?;
        self.inherit()
    }

    /// Frees the regions of those who were killed.  They are named, and so live on where they are on other nodes.
    pub fn inherit(&self) -> Result<()> {
        let session = self.board.session();
        let is_owned =
            |name: &str| self.hands.iter().any(|hand| name.ends_with(&regions::owner(hand.incarnation)));
        for region in session.list().map_err(unexpected)? {
            let Some(name) = region.name.filter(|name| name.starts_with(regions::PREFIX) && !is_owned(name))
            else {
                continue;
            };
            // What is on several nodes may be lost with one of them, or have been.
            match session.map(&name, Permissions::MASTER) {
                Err(error) if error.tells_of_a_kill() => {}
                Err(error) => return Err(unexpected(error)),
                Ok(lh) => self.free_inherited(lh)?,
            }
        }
        Ok(())
    }

    fn free_inherited(&self, lh: Lh) -> Result<()> {
        let session = self.board.session();
        match session.free(lh).or_else(|_| session.unmap(lh)) {
            Err(error) if !error.tells_of_a_kill() => Err(unexpected(error)),
            _ => Ok(()),
        }
    }

    fn begin_incarnation(&mut self, node: u32) -> Result<Hand> {
        self.last_incarnation += 1;
        ensure!(
            self.last_incarnation < INCARNATIONS_MAX,
            "the board has no more than {INCARNATIONS_MAX} rows"
        );
        let program = std::env::current_exe().map_err(unexpected)?;
        let mut command = Command::new(&program);
        // So that it dies with us.
        command.args(["tethered", "--parent", &std::process::id().to_string(), "--"]);
        command.arg(&program).arg("soak-worker").arg("--dir").arg(self.directory.path());
        let incarnation = self.last_incarnation;
        for (option, value) in
            [("--node", u64::from(node)), ("--incarnation", incarnation), ("--seed", self.seed)]
        {
            command.args([option, &value.to_string()]);
        }
        let child = command.stdin(Stdio::null()).spawn().map_err(unexpected)?;
        Ok(Hand { child, node, incarnation, seen: (0, Instant::now()) })
    }
}

/// Makes what must not die with a worker.
fn prepare(board: &Board) -> Result<()> {
    for record in 0..RECORDS {
        board.session().create_lock(&locks::name(record), everything()).map_err(unexpected)?;
    }
    let alone = board.session().barrier(words::MEETING, 1, PATIENCE);
    alone.map(drop).map_err(unexpected)
}

impl Hand {
    fn ending(&mut self) -> Result<Option<ExitStatus>> {
        self.child.try_wait().map_err(unexpected)
    }

    fn name(&self) -> String {
        format!("incarnation {} of node {} (process {})", self.incarnation, self.node, self.child.id())
    }
}

impl Drop for Hand {
    fn drop(&mut self) {
        // Both fail only if it has ended and been waited for, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
