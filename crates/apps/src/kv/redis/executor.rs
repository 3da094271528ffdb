//! Executes tasks that wait for owners in other processes. Tasks run on the thread of the event loop, which serves
//! other clients while a task waits.
//!
//! ```text
//!   backend -> task: a future, polled once when it begins, and again when its waker was called -> completion: replies
//!                                                                     |
//!                                      the loop, if it sleeps in epoll <- eventfd
//! ```

use std::mem::take;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;

use super::super::error::KvError;
use super::super::store::Store;
use super::task::{Completion, Task};

/// The runnable tasks, and the event that wakes the loop for them.
pub(super) struct RunQueue {
    event: OwnedFd,
    state: Mutex<RunState>,
}

#[derive(Default)]
struct RunState {
    /// Contains each task at most once.
    runnable: Vec<usize>,
    /// True if the loop sleeps, or is about to.
    is_asleep: bool,
}

impl RunQueue {
    pub(super) fn new() -> rustix::io::Result<Arc<RunQueue>> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Arc::new(RunQueue { event, state: Mutex::default() }))
    }

    /// Returns the event, which becomes readable when a task becomes runnable while the loop sleeps.
    pub(super) fn event(&self) -> &OwnedFd {
        &self.event
    }

    /// Makes the event unreadable.
    pub(super) fn reset_event(&self) {
        // The read fails if the event was reset before.
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
    }

    fn state(&self) -> MutexGuard<'_, RunState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks the loop as about to sleep; returns false if a task is runnable already.
    fn prepare_sleep(&self) -> bool {
        let mut state = self.state();
        state.is_asleep = state.runnable.is_empty();
        state.is_asleep
    }

    /// Marks the loop as awake, and takes the runnable tasks.
    fn take_runnable(&self) -> Vec<usize> {
        let mut state = self.state();
        state.is_asleep = false;
        take(&mut state.runnable)
    }

    fn push(&self, task: usize) {
        let mut state = self.state();
        state.runnable.push(task);
        let is_asleep = take(&mut state.is_asleep);
        drop(state);
        if is_asleep {
            // Fails only if 2^64 writes are unread.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }
}

/// The waker of one task.
struct TaskWaker {
    queue: Arc<RunQueue>,
    task: usize,
    /// True if the task is in the queue.
    is_queued: AtomicBool,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Release pairs with the Acquire in Executor::poll(): the next poll sees everything that was done before.
        if !self.is_queued.swap(true, Ordering::AcqRel) {
            self.queue.push(self.task);
        }
    }
}

/// A task that has started.
struct Running {
    /// Resolves to the completion of the task and the handle of the store that the task used.
    future: Pin<Box<dyn Future<Output = (Completion, Store)>>>,
    waker: Arc<TaskWaker>,
}

/// All waiting tasks. A connection waits for at most one task, so there are at most as many tasks as connections.
pub(super) struct Executor {
    queue: Arc<RunQueue>,
    tasks: Vec<Option<Running>>,
    /// Unused indices of `tasks`.
    free: Vec<usize>,
    /// Handles of the store, with their mappings, that ended tasks left for later tasks.
    spare: Vec<Store>,
    /// The handle from which others are made.
    origin: Store,
}

impl Executor {
    pub(super) fn new(queue: Arc<RunQueue>, origin: Store) -> Executor {
        Executor { queue, tasks: Vec::new(), free: Vec::new(), spare: Vec::new(), origin }
    }

    /// Returns a handle of the store that no task uses.
    pub(super) fn store(&mut self) -> &mut Store {
        match self.spare.last_mut() {
            Some(store) => store,
            None => &mut self.origin,
        }
    }

    /// Opens the store again, after owners have changed.
    pub(super) async fn reopen(&mut self) -> Result<(), KvError> {
        self.origin = self.origin.reopen().await?;
        self.spare.clear();
        Ok(())
    }

    fn is_idle(&self) -> bool {
        self.free.len() == self.tasks.len()
    }

    /// Returns true if the loop may sleep until a client or the [event](RunQueue::event) wakes it.
    pub(super) fn may_sleep(&self) -> bool {
        self.is_idle() || self.queue.prepare_sleep()
    }

    /// Starts a task, and polls it once. Returns its completion if it does not wait.
    pub(super) fn spawn(&mut self, task: Task) -> Option<Completion> {
        let mut store = self.spare.pop().unwrap_or_else(|| self.origin.unmapped_clone());
        let future = Box::pin(async move {
            let completion = task.execute(&mut store).await;
            (completion, store)
        });
        let number = self.free.pop().unwrap_or_else(|| {
            self.tasks.push(None);
            self.tasks.len() - 1
        });
        let (queue, is_queued) = (self.queue.clone(), AtomicBool::new(false));
        let waker = Arc::new(TaskWaker { queue, task: number, is_queued });
        self.tasks[number] = Some(Running { future, waker });
        self.poll(number)
    }

    /// Polls the runnable tasks; returns the completions of those that ended.
    pub(super) fn run(&mut self) -> Vec<Completion> {
        if self.is_idle() {
            return Vec::new();
        }
        let runnable = self.queue.take_runnable();
        runnable.into_iter().filter_map(|number| self.poll(number)).collect()
    }

    fn poll(&mut self, number: usize) -> Option<Completion> {
        // A waker may outlive its task.
        let Running { future, waker } = self.tasks[number].as_mut()?;
        waker.is_queued.swap(false, Ordering::AcqRel);
        let waker = Waker::from(waker.clone());
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Pending => None,
            Poll::Ready((completion, store)) => {
                self.tasks[number] = None;
                self.free.push(number);
                if store.epoch == self.origin.epoch {
                    self.spare.push(store);
                }
                Some(completion)
            }
        }
    }
}
