//! A reusable barrier for threads. A participant that has left does not block the others.
//!
//! The standard library's barrier would block the others forever after a thread has failed.

use std::sync::{Arc, Condvar, Mutex, MutexGuard};

/// A participant of a gate. Dropping it leaves the gate.
#[derive(Debug)]
pub struct Participant(Arc<Gate>);

#[derive(Debug)]
struct Gate {
    state: Mutex<GateState>,
    opened: Condvar,
}

#[derive(Debug)]
struct GateState {
    members: usize,
    waiting: usize,
    /// Number of times that the gate has opened.
    openings: u64,
}

/// Creates a gate and its `count` participants, before any thread waits.
pub fn participants(count: usize) -> Vec<Participant> {
    let state = Mutex::new(GateState { members: count, waiting: 0, openings: 0 });
    let gate = Arc::new(Gate { state, opened: Condvar::new() });
    (0..count).map(|_| Participant(gate.clone())).collect()
}

impl Participant {
    /// Blocks until all participants that have not left are waiting.
    pub fn wait(&self) {
        let mut state = self.0.lock();
        state.waiting += 1;
        if state.waiting == state.members {
            self.0.open(&mut state);
            return;
        }
        let seen = state.openings;
        let passed = self.0.opened.wait_while(state, |state| state.openings == seen);
        drop(passed.expect("no thread panics while it holds the lock"));
    }
}

impl Drop for Participant {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.members -= 1;
        if state.waiting == state.members {
            self.0.open(&mut state);
        }
    }
}

impl Gate {
    fn lock(&self) -> MutexGuard<'_, GateState> {
        self.state.lock().expect("no thread panics while it holds the lock")
    }

    fn open(&self, state: &mut GateState) {
        state.waiting = 0;
        state.openings += 1;
        self.opened.notify_all();
    }
}
