//! Turns at polling: who holds the poll token, and who sees to arrivals while nobody does.
//!
//! The token is a mutex that is only tried.  While it is held, its holder polls.  While it is free, the node is
//!
//! ```text
//!   cold   the doorbell is armed for the progress thread, which sleeps until it rings
//!   hot    the doorbell is not armed, and the progress thread looks by itself: after WATCH_NS, and then half as often each time
//!
//!          many turns in close succession; the progress thread is rung, once
//!   cold ──────────────────────────────────────────────────────────> hot
//!        <──────────────────────────────────────────────────────────
//!          the progress thread looks, and finds that few turns were taken
//! ```
//!
//! The word that arms a doorbell stands in a cache line that every peer reads when it posts: to disarm and arm it
//! around each turn would cost more than the turn.  While turns are frequent they see to arrivals anyway, so
//! the progress thread's look is only for what comes right after the last of them.  A look interrupts the thread that computes or polls on
//! that processor, for some 50 us on a virtual machine: so each look that finds the node hot doubles the time to the next,
//! up to WATCH_NS_MAX.
//!
//! An arrival is to wake the thread that waits for it, and no other one on the way: a caller that is to sleep, while no other
//! one does, leads.  It sleeps on the fabric, and while it does, the doorbell is armed for it, cold or hot.  (The pattern is
//! known as leader and followers; callers that sleep beside a leader are woken by it, or by the progress thread.)
//!
//! No arrival is left without somebody to handle it:
//!
//! - The arming thread polls once more before letting go: what that poll does not see will ring.
//! - The thread that makes the node hot rings: the progress thread, however deep its sleep, will look.
//! - Only the progress thread makes the node cold again, by arming, and it sleeps for long only after that.
//! - A caller begins to lead with the token in its hand, so that each turn that ends later arms the doorbell for it.  It leads
//!   only while it sleeps: it ends that with the token in its hand, and arms the doorbell for the progress thread; if somebody else has
//!   the token, who may just have armed the doorbell for it, it rings.
//! - A leader that is rung and finds the token taken looks again soon: who has it may have polled for the last time.
//! - A progress thread that finds the token taken looks again, and leaves no note: a turn costs nothing for its sake.
//!
//! All of this state is protected by the token itself.  What is polled, and for whom, is not known here.

use std::sync::TryLockError;

#[cfg(loom)]
use loom::sync::{Mutex, MutexGuard};
#[cfg(not(loom))]
use std::sync::{Mutex, MutexGuard};

use halite_fabric::Sleeper;

/// When the progress thread first looks at a node that has become hot.
const WATCH_NS: u64 = 150_000;
/// How often it looks in the end, which is the longest that an arrival waits which nobody polls for.  Sixteen calls under
/// way, both ends pinned, came to 1.95 million a second with a look every 0.15 ms, to 2.4 with one every 1 ms and to 2.5
/// with one every 5 ms; replies of 1 MiB to 21 GB/s with one every 0.15 ms, and to 28 with these.
const WATCH_NS_MAX: u64 = if cfg!(loom) { 2 * WATCH_NS } else { 16 * WATCH_NS };
/// Turns that end within this time of each other are in close succession.
const CLOSE_NS: u64 = 50_000;
/// How many turns in close succession make the node hot.  A turn that arms the doorbell has the next message wake the
/// progress thread, which takes longer than the turn: sixteen calls under way came to 0.14 million a second where it took 64 turns
/// to get hot and 24 to stay so, and to 1.2 million with these.
const HOT_AFTER: u32 = if cfg!(loom) { 1 } else { 8 };
/// How many turns per WATCH_NS keep the node hot: those of a server that copies 1 MiB in each answer do.
const HOT_TURNS_MIN: u32 = if cfg!(loom) { 1 } else { 2 };
/// How many rounds the token is kept for arrivals that came while it was being given up.
const LAST_ROUNDS_MAX: usize = 4;

/// The doorbell of the node, as turns use it.
pub(crate) trait Bell {
    /// Says whom arrivals wake.  Sequentially consistent with the ringers' look at it.
    fn arm(&self, sleeper: Option<Sleeper>);
    /// Wakes all who sleep on the doorbell.
    fn ring(&self);
    /// Whether a caller leads.
    fn is_led(&self) -> bool;
}

/// The token, and with it `P`, which only its holder needs.
#[derive(Debug)]
pub(crate) struct PollToken<P> {
    seat: Mutex<TokenState<P>>,
}

#[derive(Debug)]
struct TokenState<P> {
    poller: P,
    /// What the doorbell was last told.
    armed: bool,
    hot: bool,
    /// Turns in close succession, while cold.
    close: u32,
    /// Turns since the progress thread's last look, while hot.
    turns: u32,
    /// When the last turn ended, while cold.
    ended_ns: u64,
    /// When the progress thread last counted turns, while hot.
    counted_ns: u64,
    /// How long after that it counts again.
    watch_ns: u64,
}

/// The token in the hand of a thread.  It is to be given back by one of the methods that take it; a turn that
/// is merely dropped, as by a panic, leaves arrivals to the next thread.
#[derive(Debug)]
pub(crate) struct PollGuard<'t, P> {
    seat: MutexGuard<'t, TokenState<P>>,
}

/// When the progress thread must look next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NextPoll {
    /// When the doorbell rings.
    WhenRung,
    /// After so many nanoseconds at the latest.
    Within(u64),
}

impl NextPoll {
    /// When to look next if somebody else has the token.
    pub(crate) fn again(self) -> NextPoll {
        match self {
            NextPoll::WhenRung => NextPoll::Within(WATCH_NS),
            within => within,
        }
    }
}

impl<P> PollToken<P> {
    /// Cold, and not armed yet: the progress thread must take its first turn.
    pub(crate) fn new(poller: P) -> PollToken<P> {
        let seat = TokenState {
            poller,
            armed: false,
            hot: false,
            close: 0,
            turns: 0,
            ended_ns: 0,
            counted_ns: 0,
            watch_ns: WATCH_NS,
        };
        PollToken { seat: Mutex::new(seat) }
    }

    /// The token, unless somebody has it.
    #[inline]
    pub(crate) fn try_take(&self, bell: &impl Bell) -> Option<PollGuard<'_, P>> {
        let mut seat = match self.seat.try_lock() {
            Ok(seat) => seat,
            Err(TryLockError::WouldBlock) => return None,
            Err(TryLockError::Poisoned(_)) => panic!("a thread panicked while it polled for the node"),
        };
        if seat.armed {
            seat.armed = false;
            bell.arm(None);
        }
        Some(PollGuard { seat })
    }
}

impl<P> PollGuard<'_, P> {
    /// What only the holder of the token needs.
    #[inline]
    pub(crate) fn poller(&mut self) -> &mut P {
        &mut self.seat.poller
    }

    /// Lets go, for a thread that may be back soon.  `clock_ns` is asked only while the node is cold.
    #[inline]
    pub(crate) fn pass(
        mut self,
        bell: &impl Bell,
        clock_ns: impl FnOnce() -> u64,
        poll: impl FnMut(&mut P) -> bool,
    ) {
        self.seat.turns = self.seat.turns.wrapping_add(1);
        let warms_up = !self.seat.hot && self.seat.warms_up(clock_ns());
        if self.seat.hot && !bell.is_led() {
            drop(self);
        } else {
            self.rest(bell, poll);
        }
        if warms_up {
            // The progress thread sleeps on a doorbell that nobody rings for it any more.
            bell.ring();
        }
    }

    /// Lets go, for a thread that goes to sleep: whatever comes for it is to ring.
    pub(crate) fn rest(mut self, bell: &impl Bell, mut poll: impl FnMut(&mut P) -> bool) {
        self.seat.armed = true;
        bell.arm(Some(if bell.is_led() { Sleeper::Caller } else { Sleeper::Progress }));
        let more = (0..LAST_ROUNDS_MAX).all(|_| poll(&mut self.seat.poller));
        drop(self);
        if more {
            bell.ring();
        }
    }

    /// Lets go, for the progress thread.
    pub(crate) fn keep(
        mut self,
        bell: &impl Bell,
        now_ns: u64,
        poll: impl FnMut(&mut P) -> bool,
    ) -> NextPoll {
        let look = if self.seat.stays_hot(now_ns) {
            NextPoll::Within(self.seat.watch_ns)
        } else {
            NextPoll::WhenRung
        };
        if look == NextPoll::WhenRung || bell.is_led() {
            self.rest(bell, poll);
        }
        look
    }
}

impl<P> TokenState<P> {
    /// Counts a turn that ends while the node is cold; whether it makes the node hot.
    fn warms_up(&mut self, now_ns: u64) -> bool {
        let is_close = now_ns.saturating_sub(self.ended_ns) < CLOSE_NS;
        self.close = if is_close { self.close + 1 } else { 0 };
        self.ended_ns = now_ns;
        self.hot = self.close >= HOT_AFTER;
        if self.hot {
            self.close = 0;
            self.turns = 0;
            self.counted_ns = now_ns;
            self.watch_ns = WATCH_NS;
        }
        self.hot
    }

    /// The progress thread's count.
    fn stays_hot(&mut self, now_ns: u64) -> bool {
        // It may have been woken early, when few turns say nothing yet.
        if self.hot && now_ns.saturating_sub(self.counted_ns) >= self.watch_ns {
            let watches = (self.watch_ns / WATCH_NS) as u32;
            self.hot = self.turns >= watches * HOT_TURNS_MIN;
            self.watch_ns = WATCH_NS_MAX.min(2 * self.watch_ns);
            self.turns = 0;
            self.counted_ns = now_ns;
        }
        self.hot
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// A doorbell that remembers what it was told.
    #[derive(Default)]
    struct Told {
        armed: Cell<Option<Sleeper>>,
        led: Cell<bool>,
        changes: Cell<usize>,
        rings: Cell<usize>,
    }

    impl Bell for Told {
        fn arm(&self, sleeper: Option<Sleeper>) {
            self.armed.set(sleeper);
            self.changes.set(self.changes.get() + 1);
        }

        fn ring(&self) {
            self.rings.set(self.rings.get() + 1);
        }

        fn is_led(&self) -> bool {
            self.led.get()
        }
    }

    const PROGRESS: Option<Sleeper> = Some(Sleeper::Progress);

    fn take_turns(turns: &PollToken<()>, bell: &Told, ends_ns: impl IntoIterator<Item = u64>) {
        for end in ends_ns {
            turns.try_take(bell).expect("it is free").pass(bell, || end, |()| false);
        }
    }

    fn look(turns: &PollToken<()>, bell: &Told, now_ns: u64) -> NextPoll {
        turns.try_take(bell).expect("it is free").keep(bell, now_ns, |()| false)
    }

    /// Turns that are hot from `HOT_AFTER` us on.
    fn hot() -> (PollToken<()>, Told) {
        let (turns, bell) = (PollToken::new(()), Told::default());
        take_turns(&turns, &bell, (1..=u64::from(HOT_AFTER)).map(|turn| turn * 1000));
        (turns, bell)
    }

    #[test]
    fn isolated_turns_do_not_wake_the_progress_thread() {
        let (turns, bell) = (PollToken::new(()), Told::default());
        assert_eq!(look(&turns, &bell, 0), NextPoll::WhenRung);
        take_turns(&turns, &bell, (1..1000).map(|turn| turn * CLOSE_NS));
        assert_eq!(bell.armed.get(), PROGRESS);
        assert_eq!(bell.rings.get(), 0);
    }

    #[test]
    fn close_turns_wake_the_progress_thread_once() {
        let (turns, bell) = hot();
        assert_eq!(bell.armed.get(), None);
        assert_eq!(bell.rings.get(), 1);
        let changes = bell.changes.get();
        for _ in 0..1000 {
            // Nor is the clock asked.
            turns.try_take(&bell).unwrap().pass(&bell, || unreachable!(), |()| unreachable!());
        }
        assert_eq!((bell.changes.get(), bell.rings.get()), (changes, 1));
    }

    #[test]
    fn endless_arrivals_go_to_the_progress_thread() {
        let (turns, bell) = (PollToken::new(()), Told::default());
        turns.try_take(&bell).unwrap().rest(&bell, |()| true);
        assert_eq!(bell.rings.get(), 1);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use halite_mem::doorbell::DOORBELL_BYTES;
    use halite_mem::{Doorbell, PagePolicy, Segment};
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicBool;
    use loom::sync::atomic::Ordering::Relaxed;

    use super::*;

    /// A node with a real doorbell, over loom's atomics, and one message that may arrive.
    struct Node {
        turns: PollToken<()>,
        doorbell: Doorbell,
        /// Relaxed on purpose: the doorbell's fences alone must make the message or the ring visible.
        message: AtomicBool,
        handled: AtomicBool,
        led: AtomicBool,
    }

    impl Bell for Node {
        fn arm(&self, sleeper: Option<Sleeper>) {
            self.doorbell.arm(sleeper);
        }

        fn ring(&self) {
            self.doorbell.wake();
        }

        fn is_led(&self) -> bool {
            self.led.load(Relaxed)
        }
    }

    impl Node {
        fn new() -> Arc<Node> {
            let segment = Segment::create("doorbell", DOORBELL_BYTES, PagePolicy::Normal).unwrap();
            let doorbell = Doorbell::new(segment.window(0, DOORBELL_BYTES).unwrap()).unwrap();
            let [message, handled, led] = std::array::from_fn(|_| AtomicBool::new(false));
            Arc::new(Node { turns: PollToken::new(()), doorbell, message, handled, led })
        }

        fn poll(&self) -> bool {
            let arrived = self.message.load(Relaxed) && !self.handled.load(Relaxed);
            if arrived {
                self.handled.store(true, Relaxed);
                // Lets the progress thread of this model end, and only when all is well.
                self.doorbell.wake();
            }
            arrived
        }

        fn peer(&self) {
            self.message.store(true, Relaxed);
            self.doorbell.ring();
        }

        /// A thread of the application, which takes turns that end at these times, and then computes for ever.
        fn caller(&self, ends_ns: &[u64]) {
            for end in ends_ns {
                if let Some(turn) = self.turns.try_take(self) {
                    self.poll();
                    turn.pass(self, || *end, |()| self.poll());
                }
            }
        }

        /// As in progress.rs, but with a clock that only its own looks move.  It sleeps without a time limit unless
        /// it must look soon: a lost wake-up blocks here for ever, which loom reports as a deadlock.
        fn progress_thread(&self) {
            let mut now = 0;
            let mut look = NextPoll::WhenRung;
            loop {
                let seen = self.doorbell.seq();
                if self.handled.load(Relaxed) {
                    return;
                }
                look = match self.turns.try_take(self) {
                    Some(turn) => {
                        self.poll();
                        turn.keep(self, now, |()| self.poll())
                    }
                    None => look.again(),
                };
                match look {
                    NextPoll::Within(watch_ns) => {
                        now += watch_ns;
                        loom::thread::yield_now();
                    }
                    NextPoll::WhenRung => {
                        now += WATCH_NS;
                        self.doorbell.wait(Sleeper::Progress, seen, None);
                    }
                }
            }
        }

        /// As Driver::lead(): a caller that sleeps until the message is handled, by any thread; or one that is notified of
        /// something else at once, and computes for ever.
        fn leader(&self, is_notified: bool) {
            let is_done = || is_notified || self.handled.load(Relaxed);
            while let Some(turn) = self.turns.try_take(self) {
                let mut seen = self.doorbell.seq();
                self.poll();
                if self.led.load(Relaxed) || self.handled.load(Relaxed) {
                    return turn.rest(self, |()| self.poll());
                }
                self.led.store(true, Relaxed);
                turn.rest(self, |()| self.poll());
                // It looks again soon where somebody else has the token.
                let mut looks_soon = is_notified;
                loop {
                    match looks_soon {
                        true => loom::thread::yield_now(),
                        false => self.doorbell.wait(Sleeper::Caller, seen, None),
                    }
                    seen = self.doorbell.seq();
                    if let Some(turn) = self.turns.try_take(self) {
                        self.led.store(false, Relaxed);
                        turn.rest(self, |()| self.poll());
                        break;
                    }
                    if is_done() {
                        self.led.store(false, Relaxed);
                        self.doorbell.wake();
                        break;
                    }
                    looks_soon = true;
                }
                if is_done() {
                    return;
                }
            }
        }
    }

    fn spawn(node: &Arc<Node>, run: impl Fn(&Node) + 'static) -> loom::thread::JoinHandle<()> {
        let node = node.clone();
        loom::thread::spawn(move || run(&node))
    }

    /// A turn that makes the node hot, and one that does not.
    const CLOSE: u64 = 0;
    const FAR: u64 = CLOSE_NS;

    /// Checks that the message is handled although each caller takes only so many turns.
    fn check(preemptions_max: usize, callers: &'static [&'static [u64]]) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(preemptions_max);
        model.check(|| {
            let node = Node::new();
            let mut threads = vec![spawn(&node, Node::peer)];
            threads.extend(callers.iter().map(|ends_ns| spawn(&node, |node| node.caller(ends_ns))));
            node.progress_thread();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
    }

    #[test]
    fn loom_an_arrival_after_the_turn_that_makes_the_node_hot_is_handled() {
        check(4, &[&[CLOSE]]);
    }

    #[test]
    fn loom_an_arrival_during_a_turn_that_leaves_the_node_cold_is_handled() {
        check(4, &[&[FAR]]);
    }

    #[test]
    fn loom_an_arrival_while_a_caller_is_about_to_make_the_node_hot_again_is_handled() {
        check(3, &[&[CLOSE, CLOSE]]);
    }

    #[test]
    fn loom_an_arrival_while_the_progress_thread_looks_less_and_less_often_is_handled() {
        check(2, &[&[CLOSE, CLOSE, CLOSE, CLOSE]]);
    }

    /// Checks that the message is handled although callers lead, of whom some are notified at once, while others take turns.
    fn check_led(preemptions_max: usize, leaders: &'static [bool], callers: &'static [&'static [u64]]) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(preemptions_max);
        model.check(move || {
            let node = Node::new();
            let mut threads = vec![spawn(&node, Node::peer)];
            threads.extend(leaders.iter().map(|is_notified| spawn(&node, |node| node.leader(*is_notified))));
            threads.extend(callers.iter().map(|ends_ns| spawn(&node, |node| node.caller(ends_ns))));
            node.progress_thread();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
    }

    #[test]
    fn loom_an_arrival_while_a_caller_leads_is_handled() {
        check_led(3, &[false], &[]);
    }

    #[test]
    fn loom_an_arrival_when_a_caller_leads_no_longer_is_handled() {
        check_led(3, &[true], &[]);
    }

    #[test]
    fn loom_an_arrival_while_one_caller_leads_and_another_takes_turns_is_handled() {
        check_led(2, &[false], &[&[CLOSE]]);
    }

    #[test]
    fn loom_an_arrival_when_a_caller_leads_no_longer_and_another_takes_turns_is_handled() {
        check_led(2, &[true], &[&[CLOSE]]);
    }

    #[test]
    fn loom_an_arrival_while_one_caller_leads_after_the_other_is_handled() {
        check_led(2, &[true, false], &[]);
    }

    #[test]
    fn loom_an_arrival_while_two_callers_contend_for_the_token_is_handled() {
        check(2, &[&[CLOSE], &[FAR]]);
    }
}
