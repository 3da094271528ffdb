//! Threads that wait for each other: all of them start, or none.

use std::sync::mpsc::{Sender, channel};
use std::thread::{Scope, ScopedJoinHandle};

pub use halite_providers::threads::{Limit, Refused, limits, spawn, spawn_in};

/// Threads of a scope that begin together. If the system refuses one of them and the group is dropped, none does its
/// work.
#[derive(Debug)]
pub struct Group<'scope, 'env> {
    scope: &'scope Scope<'scope, 'env>,
    begins: Vec<Sender<()>>,
}

/// A thread of a group.
#[derive(Debug)]
pub struct Member<'scope, T>(ScopedJoinHandle<'scope, Option<T>>);

impl<'scope, 'env> Group<'scope, 'env> {
    pub fn new(scope: &'scope Scope<'scope, 'env>) -> Group<'scope, 'env> {
        Group { scope, begins: Vec::new() }
    }

    /// Starts a thread that does `work` once the group begins.
    pub fn add<T: Send + 'scope>(
        &mut self,
        work: impl FnOnce() -> T + Send + 'scope,
    ) -> Result<Member<'scope, T>, Refused> {
        let (begin, begun) = channel();
        let member = spawn_in(self.scope, move || begun.recv().ok().map(|()| work()))?;
        self.begins.push(begin);
        Ok(Member(member))
    }

    /// Lets all threads of the group begin.
    pub fn begin(self) {
        self.begins.into_iter().for_each(|begin| begin.send(()).expect("the thread waits"));
    }
}

impl<T> Member<'_, T> {
    /// Waits for the end of the thread, whose group has begun; continues its panic.
    pub fn join(self) -> T {
        let done = self.0.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        done.expect("the group has begun")
    }
}

/// Starts a group of threads, one for each of `works`.
pub fn start_all<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    works: impl IntoIterator<Item = impl FnOnce() -> T + Send + 'scope>,
) -> Result<Vec<Member<'scope, T>>, Refused> {
    let mut group = Group::new(scope);
    let members = works.into_iter().map(|work| group.add(work)).collect();
    if Result::is_ok(&members) {
        group.begin();
    }
    members
}
