//! The poll token decides which thread polls, and how arrivals are handled while no thread polls.
//!
//! The token is a mutex that threads only try to lock. Its holder polls; this is a turn. While the token is free, the
//! node is
//!
//! ```text
//!   cold   the doorbell is armed for the progress thread, which sleeps until it rings
//!   hot    the doorbell is not armed; the progress thread polls after WATCH_NS, and then half as often each time
//!
//!          many turns in close succession; the progress thread is rung, once
//!   cold ──────────────────────────────────────────────────────────> hot
//!        <──────────────────────────────────────────────────────────
//!          the progress thread polls, and finds that few turns were taken
//! ```
//!
//! The word that arms a doorbell is in a cache line that every peer reads when it posts, so disarming and arming the
//! doorbell around each turn would cost more than the turn. Frequent turns handle arrivals anyway, and the progress
//! thread only has to handle the arrivals right after the last turn. Its poll interrupts the thread that runs on that
//! core, for about 50 us on a virtual machine, so each poll that finds the node hot doubles the interval, up to
//! WATCH_NS_MAX.
//!
//! An arrival should wake the thread that waits for it, and no other thread. So a caller that goes to sleep becomes the
//! leader unless there is one: it sleeps on the fabric, and the doorbell is armed for it, whether the node is cold or
//! hot. (This is the leader/followers pattern; the leader or the progress thread wakes callers that sleep beside the
//! leader.)
//!
//! No arrival is left unhandled:
//!
//! - The arming thread polls once more before it releases the token; later arrivals ring.
//! - The thread that makes the node hot rings, so the progress thread polls, however deep its sleep.
//! - Only the progress thread makes the node cold again, by arming the doorbell, and it sleeps for long only after
//!   that.
//! - A caller starts to lead while it holds the token, so each turn that ends later arms the doorbell for it. It leads
//!   only while it sleeps. It stops leading while it holds the token, and arms the doorbell for the progress thread; if
//!   another thread holds the token and may just have armed the doorbell for the leader, the leader rings.
//! - A leader that is rung and finds the token taken retries soon: the holder may have polled for the last time.
//! - A progress thread that finds the token taken retries. It leaves no request to the holder, so it adds no cost to
//!   turns.
//!
//! The token protects all of this state. This module does not know what a turn polls, or for which thread.

use std::sync::TryLockError;

#[cfg(loom)]
use loom::sync::{Mutex, MutexGuard};
#[cfg(not(loom))]
use std::sync::{Mutex, MutexGuard};

use halite_fabric::Sleeper;

/// Interval until the progress thread first polls a node that has become hot.
const WATCH_NS: u64 = 150_000;
/// Maximum interval, which is also the longest wait of an arrival that no thread polls for. Sixteen calls in progress,
/// with both ends pinned, reached 1.95 million calls a second at an interval of 0.15 ms, 2.4 million at 1 ms and 2.5
/// million at 5 ms; replies of 1 MiB reached 21 GB/s at 0.15 ms, and 28 GB/s with these values.
const WATCH_NS_MAX: u64 = if cfg!(loom) { 2 * WATCH_NS } else { 16 * WATCH_NS };
/// Time, in nanoseconds, between the ends of two turns in close succession, at most.
const CLOSE_NS: u64 = 50_000;
/// Number of turns in close succession that make the node hot. After a turn that arms the doorbell, the next message
/// wakes the progress thread, which takes longer than the turn: sixteen calls in progress reached 0.14 million calls a
/// second with 64 turns to become hot and 24 to stay hot, and 1.2 million with these values.
const HOT_AFTER: u32 = if cfg!(loom) { 1 } else { 8 };
/// Number of turns per WATCH_NS that keep the node hot; a server that copies 1 MiB per answer takes as many turns.
const HOT_TURNS_MIN: u32 = if cfg!(loom) { 1 } else { 2 };
/// Maximum number of polls for arrivals while a thread releases the token.
const LAST_ROUNDS_MAX: usize = 4;

/// The node's doorbell, which the token arms and rings.
pub(crate) trait Bell {
    /// Sets the thread that arrivals wake. Sequentially consistent with the read of a peer that rings.
    fn arm(&self, sleeper: Option<Sleeper>);
    /// Wakes all threads that sleep on the doorbell.
    fn ring(&self);
    fn has_leader(&self) -> bool;
}

/// The token, with the state `P`, which only the token's holder uses.
#[derive(Debug)]
pub(crate) struct PollToken<P> {
    state: Mutex<TokenState<P>>,
}

#[derive(Debug)]
struct TokenState<P> {
    poller: P,
    /// True if the last holder armed the doorbell when it released the token.
    armed: bool,
    hot: bool,
    /// Number of turns in close succession, while the node is cold.
    close: u32,
    /// Number of turns since the progress thread's last poll, while the node is hot.
    turns: u32,
    /// End of the last turn in nanoseconds, while the node is cold.
    ended_ns: u64,
    /// Time in nanoseconds at which the progress thread last counted turns, while the node is hot.
    counted_ns: u64,
    /// Interval in nanoseconds until the progress thread counts turns again.
    watch_ns: u64,
}

/// The held token. The holder releases it by one of the methods that take `self`; if it is merely dropped, as by a
/// panic, arrivals wait for the next thread that polls.
#[derive(Debug)]
pub(crate) struct PollGuard<'t, P> {
    state: MutexGuard<'t, TokenState<P>>,
}

/// Time at which the progress thread must poll next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NextPoll {
    /// Poll when the doorbell rings.
    WhenRung,
    /// Poll within this many nanoseconds.
    Within(u64),
}

impl NextPoll {
    /// Returns when the progress thread must poll next if another thread holds the token.
    pub(crate) fn again(self) -> NextPoll {
        match self {
            NextPoll::WhenRung => NextPoll::Within(WATCH_NS),
            within => within,
        }
    }
}

impl<P> PollToken<P> {
    /// Creates the token of a cold node whose doorbell is not armed yet: the progress thread must take the first turn.
    pub(crate) fn new(poller: P) -> PollToken<P> {
        let state = TokenState {
            poller,
            armed: false,
            hot: false,
            close: 0,
            turns: 0,
            ended_ns: 0,
            counted_ns: 0,
            watch_ns: WATCH_NS,
        };
        PollToken { state: Mutex::new(state) }
    }

    /// Takes the token unless another thread holds it.
    #[inline]
    pub(crate) fn try_take(&self, bell: &impl Bell) -> Option<PollGuard<'_, P>> {
        let mut state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::WouldBlock) => return None,
            Err(TryLockError::Poisoned(_)) => panic!("a thread panicked while it polled for the node"),
        };
        if state.armed {
            state.armed = false;
            bell.arm(None);
        }
        Some(PollGuard { state })
    }
}

impl<P> PollGuard<'_, P> {
    #[inline]
    pub(crate) fn poller(&mut self) -> &mut P {
        &mut self.state.poller
    }

    /// Releases the token for a thread that may poll again soon. Calls `clock_ns` only while the node is cold.
    #[inline]
    pub(crate) fn release(
        mut self,
        bell: &impl Bell,
        clock_ns: impl FnOnce() -> u64,
        poll: impl FnMut(&mut P) -> bool,
    ) {
        self.state.turns = self.state.turns.wrapping_add(1);
        let becomes_hot = !self.state.hot && self.state.becomes_hot(clock_ns());
        if self.state.hot && !bell.has_leader() {
            drop(self);
        } else {
            self.release_armed(bell, poll);
        }
        if becomes_hot {
            // The progress thread sleeps on a doorbell that is not armed for it any more.
            bell.ring();
        }
    }

    /// Releases the token for a thread that goes to sleep, and arms the doorbell: later arrivals ring.
    pub(crate) fn release_armed(mut self, bell: &impl Bell, mut poll: impl FnMut(&mut P) -> bool) {
        self.state.armed = true;
        bell.arm(Some(if bell.has_leader() { Sleeper::Caller } else { Sleeper::Progress }));
        let more = (0..LAST_ROUNDS_MAX).all(|_| poll(&mut self.state.poller));
        drop(self);
        if more {
            bell.ring();
        }
    }

    /// Releases the token for the progress thread. Returns when this thread must poll next.
    pub(crate) fn release_by_progress(
        mut self,
        bell: &impl Bell,
        now_ns: u64,
        poll: impl FnMut(&mut P) -> bool,
    ) -> NextPoll {
        let next = if self.state.stays_hot(now_ns) {
            NextPoll::Within(self.state.watch_ns)
        } else {
            NextPoll::WhenRung
        };
        if next == NextPoll::WhenRung || bell.has_leader() {
            self.release_armed(bell, poll);
        }
        next
    }
}

impl<P> TokenState<P> {
    /// Counts a turn that ends while the node is cold. Returns true if this turn makes the node hot.
    fn becomes_hot(&mut self, now_ns: u64) -> bool {
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

    /// Evaluates the turns since the progress thread's last poll. Returns true if the node stays hot.
    fn stays_hot(&mut self, now_ns: u64) -> bool {
        // After an early wake-up, the number of turns is not significant yet.
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

    /// A doorbell that records the calls of its methods.
    #[derive(Default)]
    struct RecordingBell {
        armed: Cell<Option<Sleeper>>,
        led: Cell<bool>,
        changes: Cell<usize>,
        rings: Cell<usize>,
    }

    impl Bell for RecordingBell {
        fn arm(&self, sleeper: Option<Sleeper>) {
            self.armed.set(sleeper);
            self.changes.set(self.changes.get() + 1);
        }

        fn ring(&self) {
            self.rings.set(self.rings.get() + 1);
        }

        fn has_leader(&self) -> bool {
            self.led.get()
        }
    }

    const PROGRESS: Option<Sleeper> = Some(Sleeper::Progress);

    fn take_turns(token: &PollToken<()>, bell: &RecordingBell, ends_ns: impl IntoIterator<Item = u64>) {
        for end in ends_ns {
            token.try_take(bell).expect("the token is free").release(bell, || end, |()| false);
        }
    }

    fn poll_by_progress(token: &PollToken<()>, bell: &RecordingBell, now_ns: u64) -> NextPoll {
        token.try_take(bell).expect("the token is free").release_by_progress(bell, now_ns, |()| false)
    }

    /// Returns the token of a node that is hot from `HOT_AFTER` us on.
    fn hot() -> (PollToken<()>, RecordingBell) {
        let (token, bell) = (PollToken::new(()), RecordingBell::default());
        take_turns(&token, &bell, (1..=u64::from(HOT_AFTER)).map(|turn| turn * 1000));
        (token, bell)
    }

    #[test]
    fn isolated_turns_do_not_wake_the_progress_thread() {
        let (token, bell) = (PollToken::new(()), RecordingBell::default());
        assert_eq!(poll_by_progress(&token, &bell, 0), NextPoll::WhenRung);
        take_turns(&token, &bell, (1..1000).map(|turn| turn * CLOSE_NS));
        assert_eq!(bell.armed.get(), PROGRESS);
        assert_eq!(bell.rings.get(), 0);
    }

    #[test]
    fn close_turns_wake_the_progress_thread_once() {
        let (token, bell) = hot();
        assert_eq!(bell.armed.get(), None);
        assert_eq!(bell.rings.get(), 1);
        let changes = bell.changes.get();
        for _ in 0..1000 {
            // The clock is not read either.
            token.try_take(&bell).unwrap().release(&bell, || unreachable!(), |()| unreachable!());
        }
        assert_eq!((bell.changes.get(), bell.rings.get()), (changes, 1));
    }

    #[test]
    fn endless_arrivals_go_to_the_progress_thread() {
        let (token, bell) = (PollToken::new(()), RecordingBell::default());
        token.try_take(&bell).unwrap().release_armed(&bell, |()| true);
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
        token: PollToken<()>,
        doorbell: Doorbell,
        /// Relaxed on purpose: the fences of the doorbell alone must make the message or the ring visible.
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

        fn has_leader(&self) -> bool {
            self.led.load(Relaxed)
        }
    }

    impl Node {
        fn new() -> Arc<Node> {
            let segment = Segment::create("doorbell", DOORBELL_BYTES, PagePolicy::Normal).unwrap();
            let doorbell = Doorbell::new(segment.window(0, DOORBELL_BYTES).unwrap()).unwrap();
            let [message, handled, led] = std::array::from_fn(|_| AtomicBool::new(false));
            Arc::new(Node { token: PollToken::new(()), doorbell, message, handled, led })
        }

        fn poll(&self) -> bool {
            let arrived = self.message.load(Relaxed) && !self.handled.load(Relaxed);
            if arrived {
                self.handled.store(true, Relaxed);
                // Ends this model's progress thread, only after the message is handled.
                self.doorbell.wake();
            }
            arrived
        }

        fn peer(&self) {
            self.message.store(true, Relaxed);
            self.doorbell.ring();
        }

        /// Runs an application thread that takes turns ending at these times, and then computes forever.
        fn caller(&self, ends_ns: &[u64]) {
            for end in ends_ns {
                if let Some(turn) = self.token.try_take(self) {
                    self.poll();
                    turn.release(self, || *end, |()| self.poll());
                }
            }
        }

        /// Runs the progress thread as progress.rs does, but with a clock that only its own polls advance. It sleeps
        /// without a time limit unless it must poll soon, so a lost wake-up blocks it forever, which loom reports as a
        /// deadlock.
        fn progress_thread(&self) {
            let mut now = 0;
            let mut next = NextPoll::WhenRung;
            loop {
                let seen = self.doorbell.seq();
                if self.handled.load(Relaxed) {
                    return;
                }
                next = match self.token.try_take(self) {
                    Some(turn) => {
                        self.poll();
                        turn.release_by_progress(self, now, |()| self.poll())
                    }
                    None => next.again(),
                };
                match next {
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

        /// Runs a caller as Driver::lead() does. It sleeps until any thread has handled the message; if `is_notified`,
        /// another event wakes it at once, and it then computes forever.
        fn leader(&self, is_notified: bool) {
            let is_done = || is_notified || self.handled.load(Relaxed);
            while let Some(turn) = self.token.try_take(self) {
                let mut seen = self.doorbell.seq();
                self.poll();
                if self.led.load(Relaxed) || self.handled.load(Relaxed) {
                    return turn.release_armed(self, |()| self.poll());
                }
                self.led.store(true, Relaxed);
                turn.release_armed(self, |()| self.poll());
                // Retries soon if another thread holds the token.
                let mut retries_soon = is_notified;
                loop {
                    match retries_soon {
                        true => loom::thread::yield_now(),
                        false => self.doorbell.wait(Sleeper::Caller, seen, None),
                    }
                    seen = self.doorbell.seq();
                    if let Some(turn) = self.token.try_take(self) {
                        self.led.store(false, Relaxed);
                        turn.release_armed(self, |()| self.poll());
                        break;
                    }
                    if is_done() {
                        self.led.store(false, Relaxed);
                        self.doorbell.wake();
                        break;
                    }
                    retries_soon = true;
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

    /// End of a turn that makes the node hot; `FAR` is the end of a turn that does not.
    const CLOSE: u64 = 0;
    const FAR: u64 = CLOSE_NS;

    /// Checks that the message is handled even if each caller takes only these turns.
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
    fn loom_arrival_after_the_node_becomes_hot() {
        check(4, &[&[CLOSE]]);
    }

    #[test]
    fn loom_arrival_while_the_node_stays_cold() {
        check(4, &[&[FAR]]);
    }

    #[test]
    fn loom_arrival_before_the_node_becomes_hot_again() {
        check(3, &[&[CLOSE, CLOSE]]);
    }

    #[test]
    fn loom_arrival_while_poll_intervals_grow() {
        check(2, &[&[CLOSE, CLOSE, CLOSE, CLOSE]]);
    }

    /// Checks that the message is handled even if some leaders are notified at once while other callers take turns.
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
    fn loom_arrival_while_a_caller_leads() {
        check_led(3, &[false], &[]);
    }

    #[test]
    fn loom_arrival_after_a_leader_stops() {
        check_led(3, &[true], &[]);
    }

    #[test]
    fn loom_arrival_with_a_leader_and_a_poller() {
        check_led(2, &[false], &[&[CLOSE]]);
    }

    #[test]
    fn loom_arrival_after_a_leader_stops_beside_a_poller() {
        check_led(2, &[true], &[&[CLOSE]]);
    }

    #[test]
    fn loom_arrival_with_two_leaders_in_turn() {
        check_led(2, &[true, false], &[]);
    }

    #[test]
    fn loom_arrival_with_two_contending_pollers() {
        check(2, &[&[CLOSE], &[FAR]]);
    }
}
