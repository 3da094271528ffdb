//! `lock_lat`: a lock whose home is the other process, uncontended or contended by many sessions.
//!
//! One thread drives all contending sessions. So on any number of cores, all sessions except the holder always wait,
//! and the order of their requests is known. A grant out of order counts as an error.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::Poll;

use halite::{Guard, LockCause, LockError, Session, blocking};

use super::measure::NO_BASELINE;
use super::workload::{Bench, IN_TURN, Measured, PerfArgs, Plan, Planned, Timer, Workload};

const LOCK: &str = "perf";

pub fn plan(args: &PerfArgs) -> Planned {
    let (description, iterations_max) = match args.threads() {
        1 => (IN_TURN, 1_000_000),
        // More waiting sessions make the test slower.
        threads => {
            ("passing the lock from one session to the next, while all others wait", 200_000 / threads)
        }
    };
    let plan = Plan::of_one_size::<Lock>(description, 0);
    Ok(Plan { iterations_max, needs_server: true, is_at_server: true, ..plan })
}

/// State of the measuring thread.
struct Lock {
    /// One session per contender, since a session cannot hold a lock twice.
    sessions: Vec<blocking::Session>,
    errors: u64,
}

impl Workload for Lock {
    fn setup(bench: &mut Bench) -> anyhow::Result<Vec<Lock>> {
        Ok(vec![Lock { sessions: bench.end.sessions(bench.job.threads)?, errors: 0 }])
    }

    fn operation(&mut self, bench: &Bench, timer: &Timer) -> anyhow::Result<Measured> {
        let (measured, errors) = match self.sessions.as_slice() {
            [one] => measure_free(one, timer)?,
            many => measure_contended(&bench.end.session, many, timer)?,
        };
        self.errors = errors;
        Ok(measured)
    }

    fn verify(self, _: &mut Bench) -> anyhow::Result<u64> {
        Ok(self.errors)
    }
}

/// Measures lock and unlock without contention.
fn measure_free(session: &blocking::Session, timer: &Timer) -> anyhow::Result<(Measured, u64)> {
    let mut tokens = Tokens::default();
    let once = || {
        let guard = session.lock(LOCK)?;
        tokens.check(guard.token());
        Ok(guard.unlock()?)
    };
    let measured = timer.operations(once, NO_BASELINE)?;
    Ok((measured, tokens.errors))
}

/// Measures how a lock passes from session to session; each requests the lock again as soon as it has unlocked it.
fn measure_contended(
    driver: &blocking::Session,
    sessions: &[blocking::Session],
    timer: &Timer,
) -> anyhow::Result<(Measured, u64)> {
    let sessions: Vec<&Session> = sessions.iter().map(blocking::Session::as_async).collect();
    let mut queue = driver.block_on(Queue::new(driver.as_async(), &sessions))?;
    let measured = timer.operations(|| Ok(driver.block_on(queue.hand_over())?), NO_BASELINE)?;
    Ok((measured, queue.overtakes + queue.tokens.errors))
}

/// Checks that the tokens of a lock increase.
#[derive(Default)]
struct Tokens {
    last: u64,
    errors: u64,
}

impl Tokens {
    fn check(&mut self, token: u64) {
        self.errors += u64::from(token <= self.last);
        self.last = token;
    }
}

type PendingLock<'a> = Pin<Box<dyn Future<Output = Result<Guard, LockError>> + 'a>>;

/// The holder of the lock, and the waiting sessions in the order of their requests.
struct Queue<'a> {
    held: Option<(&'a Session, Guard)>,
    waiting: VecDeque<(&'a Session, PendingLock<'a>)>,
    overtakes: u64,
    tokens: Tokens,
}

impl<'a> Queue<'a> {
    async fn new(driver: &Session, sessions: &[&'a Session]) -> Result<Queue<'a>, LockError> {
        // Each session locks once first: later, the first poll of its future sends the request.
        for session in sessions {
            session.lock(LOCK).await?.unlock().await?;
        }
        let (first, others) = sessions.split_first().expect("there are at least two");
        let held = Some((*first, first.lock(LOCK).await?));
        let mut queue = Queue { held, waiting: VecDeque::new(), overtakes: 0, tokens: Tokens::default() };
        for session in others {
            queue.request(session).await?;
        }
        // The reply to this request follows all earlier ones, so they wait at the lock's home in order.
        let Err(held) = driver.try_lock(LOCK).await else { unreachable!("the first session holds it") };
        if held.cause != LockCause::Held { Err(held) } else { Ok(queue) }
    }

    async fn hand_over(&mut self) -> Result<(), LockError> {
        let (session, guard) = self.held.take().expect("a session holds the lock");
        self.tokens.check(guard.token());
        guard.unlock().await?;
        self.request(session).await?;
        self.held = Some(self.next_holder().await?);
        Ok(())
    }

    /// Requests the lock for a session and appends it to the queue.
    async fn request(&mut self, session: &'a Session) -> Result<(), LockError> {
        loop {
            let mut pending: PendingLock<'a> = Box::pin(session.lock(LOCK));
            let polled = std::future::poll_fn(|context| Poll::Ready(pending.as_mut().poll(context))).await;
            let Poll::Ready(guard) = polled else {
                self.waiting.push_back((session, pending));
                return Ok(());
            };
            // A request that is granted at once overtook the waiting ones. With two sessions this is no error: the
            // other session's request may not have arrived yet.
            self.overtakes += u64::from(self.waiting.len() > 1);
            guard?.unlock().await?;
        }
    }

    async fn next_holder(&mut self) -> Result<(&'a Session, Guard), LockError> {
        let mut is_first_poll = true;
        let (place, guard) = std::future::poll_fn(|context| {
            // Usually the first session of the queue was woken; the others are polled only otherwise.
            let polled = if is_first_poll { 1 } else { self.waiting.len() };
            is_first_poll = false;
            for (place, (_, pending)) in self.waiting.iter_mut().enumerate().take(polled) {
                if let Poll::Ready(guard) = pending.as_mut().poll(context) {
                    return Poll::Ready((place, guard));
                }
            }
            Poll::Pending
        })
        .await;
        self.overtakes += u64::from(place != 0);
        let (session, _) = self.waiting.remove(place).expect("it was there just now");
        Ok((session, guard?))
    }
}
