//! Wakes sleeping threads when a packet arrives.
//!
//! Unlike in shared memory, peers do not ring a doorbell: a datagram makes the socket readable, and the kernel wakes
//! the thread that waits for the socket in epoll. So each kind of sleeper has its own epoll, which watches the socket
//! for one edge at a time, and only while this kind is armed. Disarming makes no system call, so an edge that the epoll
//! still holds causes one spurious wake-up.
//!
//! The doorbell's number changes when an event other than a datagram wakes a sleeper, and when a poll finds a packet
//! that rings the doorbell.
//!
//! The thread that runs timers sleeps until the next deadline. If a post adds an earlier deadline, the posting thread
//! sets the alarm and does not wake the sleeping thread: nearly all timers wait for an acknowledgement, which arrives
//! before the alarm and wakes the sleeping thread anyway.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU8, AtomicU32};
use std::time::Duration;

use halite_fabric::{Sleeper, Sleepers};
use rustix::event::EventfdFlags;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

use super::lock;

/// Wakes the sleeping threads of a fabric; see the header of this file.
#[derive(Debug)]
pub(super) struct Bell {
    /// The doorbell's number.
    seq: AtomicU32,
    /// Eventfd by which [`Bell::wake`] wakes the threads of all kinds.
    eventfd: OwnedFd,
    /// Timerfd that wakes the thread that runs timers.
    alarm: OwnedFd,
    /// Time for which the alarm was last set, in ns since the fabric was opened.
    alarm_ns: Mutex<u64>,
    /// Indexed by [`Sleeper::place`].
    kinds: [SleeperKind; 2],
    /// Index of the armed kind plus 1; 0 if none is armed.
    armed: AtomicU8,
}

/// The sleeping threads of one kind.
#[derive(Debug)]
struct SleeperKind {
    sleepers: Sleepers,
    /// Eventfd by which receivers wake the threads of this kind; `None` without receivers.
    receiver_event: Option<OwnedFd>,
    /// Index of the watched source plus 1; 0 if none is watched.
    watched: AtomicU8,
}

/// Place of the control socket in a kind's epoll; the sources follow from place [`SOURCES`] on.
const CONTROL: usize = 1;
const SOURCES: usize = 2;

impl SleeperKind {
    /// Watches only the source with this index, if any. Returns true if the control socket had an edge.
    fn watch(&self, sources: [BorrowedFd<'_>; 2], index: Option<usize>) -> bool {
        let watched = index.map_or(0, |index| index as u8 + 1);
        let before = self.watched.swap(watched, SeqCst);
        let edges = self.sleepers.take_edges_seen();
        let had_edge = |place: usize| edges & 1 << place != 0;
        if before != 0 && before != watched {
            let place = SOURCES + usize::from(before) - 1;
            // A source is no longer watched after its edge.
            if !had_edge(place) {
                self.sleepers.watch_once(place, sources[usize::from(before) - 1], false);
            }
        }
        if let Some(index) = index {
            self.sleepers.watch_once(SOURCES + index, sources[index], true);
        }
        had_edge(CONTROL)
    }
}

impl Bell {
    /// Creates a bell. Sleepers always watch `control`, and at most one of the two `sources` at a time. If the fabric
    /// has receivers, these threads wake the sleepers.
    pub(super) fn new(
        sources: [BorrowedFd<'_>; 2],
        control: BorrowedFd<'_>,
        has_receivers: bool,
    ) -> io::Result<Bell> {
        let eventfd = || rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let common = eventfd()?;
        let alarm =
            timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        let kind = |sleeper| -> io::Result<SleeperKind> {
            // Callers sleep only briefly, so the alarm wakes only the progress thread, which handles timers.
            let alarm = Some(alarm.as_fd()).filter(|_| sleeper == Sleeper::Progress);
            let receiver_event = has_receivers.then(eventfd).transpose()?;
            let required = [common.as_fd(), control, sources[0], sources[1]];
            let optional = alarm.into_iter().chain(receiver_event.as_ref().map(AsFd::as_fd));
            let sleepers = Sleepers::new(required.into_iter().chain(optional))?;
            (0..2).for_each(|index| sleepers.watch_once(SOURCES + index, sources[index], false));
            Ok(SleeperKind { sleepers, receiver_event, watched: AtomicU8::new(0) })
        };
        let [first, second] = Sleeper::KINDS.map(kind);
        Ok(Bell {
            seq: AtomicU32::new(0),
            eventfd: common,
            alarm,
            alarm_ns: Mutex::new(0),
            kinds: [first?, second?],
            armed: AtomicU8::new(0),
        })
    }

    /// Arms the given kind of sleeper; `None` disarms all sleepers. An armed sleeper watches the source with the given
    /// index, or no source. The caller must wake the sleeper if that index changes. Returns true if the control socket
    /// had an edge, so the caller must check this socket.
    pub(super) fn arm(
        &self,
        sleeper: Option<Sleeper>,
        (sources, index): ([BorrowedFd<'_>; 2], Option<usize>),
    ) -> bool {
        self.armed.store(sleeper.map_or(0, |sleeper| sleeper.place() as u8 + 1), SeqCst);
        let Some(armed) = sleeper.map(Sleeper::place) else { return false };
        let (own, other) = (&self.kinds[armed], &self.kinds[1 - armed]);
        let others_had_edge = other.watch(sources, None);
        own.watch(sources, index) || others_had_edge
    }

    /// Returns true if a sleeper is armed, so that an arriving packet wakes a thread.
    pub(super) fn is_armed(&self) -> bool {
        self.armed.load(Relaxed) != 0
    }

    /// Handles a packet that rings the doorbell and that a poll has received: changes the doorbell's number if a
    /// sleeper is armed.
    pub(super) fn on_arrival(&self) {
        if self.armed.load(Relaxed) != 0 {
            self.seq.fetch_add(1, SeqCst);
        }
    }

    /// Wakes the armed sleeper, once, after a receiver handled a packet. If the fabric has receivers, sleepers watch no
    /// socket.
    pub(super) fn on_received(&self) {
        // The event was queued under a lock that an arming thread takes later to check for events. So either that
        // thread finds the event, or this load finds that thread armed.
        if self.armed.load(Relaxed) == 0 {
            return;
        }
        let armed = self.armed.swap(0, SeqCst);
        if let Some(kind) = usize::from(armed).checked_sub(1).map(|place| &self.kinds[place]) {
            self.ring(kind.receiver_event.as_ref().expect("only receivers call this method"));
        }
    }

    pub(super) fn wake(&self) {
        self.ring(&self.eventfd);
    }

    fn ring(&self, eventfd: &OwnedFd) {
        // The number changes before the descriptor becomes readable, so that a woken thread sees the change.
        self.seq.fetch_add(1, SeqCst);
        // If the counter is full, the write fails; reading it makes the next write an edge.
        while rustix::io::write(eventfd, &1u64.to_ne_bytes()).is_err() {
            let _ = rustix::io::read(eventfd, &mut [0; 8]);
        }
    }

    /// Sets the alarm, so that the thread that runs timers wakes at `at_ns` or earlier.
    pub(super) fn wake_at(&self, at_ns: u64, now_ns: u64) {
        let mut alarm_ns = lock(&self.alarm_ns);
        // A pending earlier alarm is enough: the woken thread checks which timers are due.
        if now_ns < *alarm_ns && *alarm_ns <= at_ns {
            return;
        }
        *alarm_ns = at_ns;
        // A timeout of 0 would disable the alarm.
        let left = Timespec::try_from(Duration::from_nanos(at_ns.saturating_sub(now_ns).max(1)));
        let it_value = left.expect("a timer ends within a lease");
        let it_interval = Timespec::default();
        let set =
            timerfd_settime(&self.alarm, TimerfdTimerFlags::empty(), &Itimerspec { it_interval, it_value });
        set.expect("the descriptor is a timer");
    }

    pub(super) fn seq(&self) -> u32 {
        self.seq.load(SeqCst)
    }

    pub(super) fn wait(&self, sleeper: Sleeper, seen: u32, timeout: Option<Duration>) {
        self.kinds[sleeper.place()].sleepers.sleep(timeout, || self.seq() != seen);
    }

    /// Returns the descriptor on which a thread of this kind sleeps if it waits for several fabrics.
    pub(super) fn descriptor(&self, sleeper: Sleeper) -> BorrowedFd<'_> {
        self.kinds[sleeper.place()].sleepers.as_fd()
    }
}
