//! The executor's tasks: their futures, and the queue of tasks that are ready.

use std::pin::Pin;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};

use crate::random::Random;
use crate::world::HostId;

/// Identifies a task of a world. Ids are never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TaskId {
    slot: u32,
    generation: u32,
}

impl TaskId {
    pub(crate) fn bits(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.slot)
    }
}

pub(crate) type BoxFuture = Pin<Box<dyn Future<Output = ()>>>;

/// All tasks of a world.
#[derive(Default)]
pub(crate) struct Tasks {
    slots: Vec<Slot>,
    free: Vec<u32>,
    ready: Arc<ReadyQueue>,
    /// Tasks taken from `ready` and not polled yet.
    batch: Vec<TaskId>,
    alive: usize,
    /// Number of tasks without a host.
    hostless: usize,
}

#[derive(Default)]
struct Slot {
    generation: u32,
    task: Option<Task>,
}

pub(crate) struct Task {
    pub(crate) host: Option<HostId>,
    pub(crate) name: String,
    /// `None` during a poll.
    future: Option<BoxFuture>,
    wake_handle: Arc<WakeHandle>,
    waker: Waker,
    /// True if the task is ready but its host is paused.
    is_held: bool,
}

/// Ids of woken tasks, in the order of the wakes.
type ReadyQueue = Mutex<Vec<TaskId>>;

const POISONED: &str = "a thread panicked while it held the queue of ready tasks";

struct WakeHandle {
    id: TaskId,
    /// True if the task is in the queue.
    is_queued: AtomicBool,
    ready: Arc<ReadyQueue>,
}

impl Wake for WakeHandle {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Relaxed: a world runs in one thread, so the flag orders nothing.
        if !self.is_queued.swap(true, Relaxed) {
            self.ready.lock().expect(POISONED).push(self.id);
        }
    }
}

impl Tasks {
    pub(crate) fn spawn(&mut self, host: Option<HostId>, name: String, future: BoxFuture) -> TaskId {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() as u32 - 1
        });
        let generation = self.slots[slot as usize].generation;
        let id = TaskId { slot, generation };
        let wake_handle =
            Arc::new(WakeHandle { id, is_queued: AtomicBool::new(false), ready: self.ready.clone() });
        let waker = Waker::from(wake_handle.clone());
        waker.wake_by_ref();
        let task = Task { host, name, future: Some(future), wake_handle, waker, is_held: false };
        self.slots[slot as usize].task = Some(task);
        self.alive += 1;
        self.hostless += usize::from(host.is_none());
        id
    }

    /// Picks a random ready task.
    pub(crate) fn pick(&mut self, random: &mut Random) -> Option<TaskId> {
        self.batch.append(&mut self.ready.lock().expect(POISONED));
        match self.batch.len() {
            0 => None,
            1 => self.batch.pop(),
            len => Some(self.batch.swap_remove(random.index(len))),
        }
    }

    /// Puts a picked task back without a poll.
    pub(crate) fn put_back(&mut self, id: TaskId) {
        self.batch.push(id);
    }

    pub(crate) fn host(&self, id: TaskId) -> Option<Option<HostId>> {
        self.task(id).map(|task| task.host)
    }

    pub(crate) fn name(&self, id: TaskId) -> &str {
        self.task(id).map_or("?", |task| &task.name)
    }

    pub(crate) fn is_alive(&self, id: TaskId) -> bool {
        self.task(id).is_some()
    }

    /// Takes the future for a poll; [`Tasks::restore`] puts it back, or [`Tasks::remove`] ends it.
    pub(crate) fn take(&mut self, id: TaskId) -> Option<(BoxFuture, Waker)> {
        let task = self.task_mut(id)?;
        // The flag is cleared before the poll, so that a wake during the poll queues the task again.
        task.wake_handle.is_queued.store(false, Relaxed);
        let future = task.future.take()?;
        Some((future, task.waker.clone()))
    }

    /// Puts the future of a polled task back. If the task has been removed, returns the future, so that the caller
    /// drops it without borrows.
    pub(crate) fn restore(&mut self, id: TaskId, future: BoxFuture) -> Option<BoxFuture> {
        match self.task_mut(id) {
            Some(task) => {
                task.future = Some(future);
                None
            }
            None => Some(future),
        }
    }

    pub(crate) fn remove(&mut self, id: TaskId) -> Option<Task> {
        self.task(id)?;
        let slot = &mut self.slots[id.slot as usize];
        slot.generation += 1;
        self.free.push(id.slot);
        let task = slot.task.take()?;
        self.alive -= 1;
        self.hostless -= usize::from(task.host.is_none());
        Some(task)
    }

    /// Holds a ready task until its host is resumed.
    pub(crate) fn hold(&mut self, id: TaskId) {
        if let Some(task) = self.task_mut(id) {
            task.is_held = true;
        }
    }

    pub(crate) fn release(&mut self, host: HostId) {
        for task in self.slots.iter_mut().filter_map(|slot| slot.task.as_mut()) {
            if task.host == Some(host) && std::mem::take(&mut task.is_held) {
                self.batch.push(task.wake_handle.id);
            }
        }
    }

    /// Removes all tasks of a host, so that the caller drops them without borrows.
    pub(crate) fn remove_host(&mut self, host: HostId) -> Vec<Task> {
        self.remove_if(|task| task.host == Some(host))
    }

    pub(crate) fn remove_all(&mut self) -> Vec<Task> {
        self.remove_if(|_| true)
    }

    fn remove_if(&mut self, predicate: impl Fn(&Task) -> bool) -> Vec<Task> {
        let tasks = self.slots.iter().filter_map(|slot| slot.task.as_ref());
        let ids: Vec<TaskId> = tasks.filter(|task| predicate(task)).map(|task| task.wake_handle.id).collect();
        ids.into_iter().filter_map(|id| self.remove(id)).collect()
    }

    pub(crate) fn alive(&self) -> usize {
        self.alive
    }

    pub(crate) fn hostless(&self) -> usize {
        self.hostless
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.slots.iter().filter_map(|slot| slot.task.as_ref()).map(Task::title).collect()
    }

    fn task(&self, id: TaskId) -> Option<&Task> {
        let slot = self.slots.get(id.slot as usize).filter(|slot| slot.generation == id.generation)?;
        slot.task.as_ref()
    }

    fn task_mut(&mut self, id: TaskId) -> Option<&mut Task> {
        let slot = self.slots.get_mut(id.slot as usize).filter(|slot| slot.generation == id.generation)?;
        slot.task.as_mut()
    }
}

impl Task {
    fn title(&self) -> String {
        match self.host {
            Some(host) => format!("{} of host-{}", self.name, host.0),
            None => self.name.clone(),
        }
    }
}
