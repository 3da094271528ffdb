//! `lock_lat`: a lock whose home is the other process: free, or wanted by many sessions.
//!
//! Those that want it are driven by one thread, so that all but the holder wait at any time, however many cores there are,
//! and so that the order in which they asked is certain: a grant out of order is an error.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::Poll;

use halite::{Guard, LockCause, LockError, Session, blocking};

use super::measure::NO_BASELINE;
use super::workload::{Bench, IN_TURN, Measured, PerfArgs, Plan, Planned, Timer, Workload};

/// The one lock.
const LOCK: &str = "perf";

/// Of no size.
pub fn plan(args: &PerfArgs) -> Planned {
    let (what, iterations_max) = match args.threads() {
        1 => (IN_TURN, 1_000_000),
        // Those that wait are slower, the more of them there are.
        threads => ("from one session to the next; all others wait", 200_000 / threads),
    };
    let plan = Plan::of_one_size::<Lock>(what, 0);
    Ok(Plan { iterations_max, needs_server: true, is_at_server: true, ..plan })
}

/// What the one thread has that measures.
struct Lock {
    /// A session holds a lock once: those that exclude each other are of different sessions.
    sessions: Vec<blocking::Session>,
    errors: u64,
}

impl Workload for Lock {
    fn setup(bench: &mut Bench) -> anyhow::Result<Vec<Lock>> {
        Ok(vec![Lock { sessions: bench.end.sessions(bench.job.threads), errors: 0 }])
    }

    fn operation(&mut self, bench: &Bench, timer: &Timer) -> anyhow::Result<Measured> {
        let (measured, errors) = match self.sessions.as_slice() {
            [one] => free(one, timer)?,
            many => wanted(&bench.end.session, many, timer)?,
        };
        self.errors = errors;
        Ok(measured)
    }

    fn verify(self, _: &mut Bench) -> anyhow::Result<u64> {
        Ok(self.errors)
    }
}

/// Takes a lock that nobody else wants, and gives it up.
fn free(session: &blocking::Session, timer: &Timer) -> anyhow::Result<(Measured, u64)> {
    let mut tokens = Tokens::default();
    let once = || {
        let guard = session.lock(LOCK)?;
        tokens.note(guard.token());
        Ok(guard.unlock()?)
    };
    let measured = timer.operations(once, NO_BASELINE)?;
    Ok((measured, tokens.errors))
}

/// Has a lock go around among sessions that ask for it again as soon as they have given it up.
fn wanted(
    driver: &blocking::Session,
    sessions: &[blocking::Session],
    timer: &Timer,
) -> anyhow::Result<(Measured, u64)> {
    let sessions: Vec<&Session> = sessions.iter().map(blocking::Session::as_async).collect();
    let mut queue = driver.block_on(Queue::begin(driver.as_async(), &sessions))?;
    let measured = timer.operations(|| Ok(driver.block_on(queue.hand_over())?), NO_BASELINE)?;
    Ok((measured, queue.overtakings + queue.tokens.errors))
}

/// The tokens of a lock, which must rise.
#[derive(Default)]
struct Tokens {
    last: u64,
    errors: u64,
}

impl Tokens {
    fn note(&mut self, token: u64) {
        self.errors += u64::from(token <= self.last);
        self.last = token;
    }
}

type Asking<'a> = Pin<Box<dyn Future<Output = Result<Guard, LockError>> + 'a>>;

/// The holder of the lock, and those that wait for it in the order in which they asked.
struct Queue<'a> {
    held: Option<(&'a Session, Guard)>,
    waiting: VecDeque<(&'a Session, Asking<'a>)>,
    overtakings: u64,
    tokens: Tokens,
}

impl<'a> Queue<'a> {
    async fn begin(driver: &Session, sessions: &[&'a Session]) -> Result<Queue<'a>, LockError> {
        // Each gets to know the lock, so that it asks for it at the first look at its future.
        for session in sessions {
            session.lock(LOCK).await?.unlock().await?;
        }
        let (first, others) = sessions.split_first().expect("there are at least two");
        let held = Some((*first, first.lock(LOCK).await?));
        let mut queue = Queue { held, waiting: VecDeque::new(), overtakings: 0, tokens: Tokens::default() };
        for session in others {
            queue.ask(session).await?;
        }
        // The answer comes behind all of these: from here on they wait at the lock's home, and nobody may overtake them.
        let Err(held) = driver.try_lock(LOCK).await else { unreachable!("the first of them holds it") };
        if held.cause != LockCause::Held { Err(held) } else { Ok(queue) }
    }

    async fn hand_over(&mut self) -> Result<(), LockError> {
        let (session, guard) = self.held.take().expect("somebody holds the lock");
        self.tokens.note(guard.token());
        guard.unlock().await?;
        self.ask(session).await?;
        self.held = Some(self.next_holder().await?);
        Ok(())
    }

    /// Puts a session at the end of those that wait.
    async fn ask(&mut self, session: &'a Session) -> Result<(), LockError> {
        loop {
            let mut asking: Asking<'a> = Box::pin(session.lock(LOCK));
            let got_it = std::future::poll_fn(|context| Poll::Ready(asking.as_mut().poll(context))).await;
            let Poll::Ready(guard) = got_it else {
                self.waiting.push_back((session, asking));
                return Ok(());
            };
            // Of two, the other may have asked, but its request be under way still: nobody waits then.  Of more, one
            // waits at the home for sure, and has been overtaken.
            self.overtakings += u64::from(self.waiting.len() > 1);
            guard?.unlock().await?;
        }
    }

    async fn next_holder(&mut self) -> Result<(&'a Session, Guard), LockError> {
        let mut is_first_look = true;
        let (place, guard) = std::future::poll_fn(|context| {
            // Only the first in turn has to be looked at, unless that one was not the reason to be woken.
            let looked_at = if is_first_look { 1 } else { self.waiting.len() };
            is_first_look = false;
            for (place, (_, asking)) in self.waiting.iter_mut().enumerate().take(looked_at) {
                if let Poll::Ready(guard) = asking.as_mut().poll(context) {
                    return Poll::Ready((place, guard));
                }
            }
            Poll::Pending
        })
        .await;
        self.overtakings += u64::from(place != 0);
        let (session, _) = self.waiting.remove(place).expect("it was there just now");
        Ok((session, guard?))
    }
}
