//! Timers: tasks that wait for a point in time, and futures with a timeout.

use std::collections::BTreeMap;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::driver::Driver;
use crate::runtime::wait::Wakes;

/// All tasks of a node that wait for a point in time.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    /// Wakers of waiting tasks, by time in nanoseconds and a unique number.
    due: BTreeMap<(u64, u64), Waker>,
    last: u64,
}

impl Timers {
    /// Wakes all tasks whose time has passed.
    pub(crate) fn ring(&mut self, now_ns: u64, wakes: &mut Wakes) {
        while let Some(entry) = self.due.first_entry().filter(|entry| entry.key().0 <= now_ns) {
            wakes.add(Some(entry.remove()));
        }
    }

    /// Returns the time of the next timer, in nanoseconds on the node's clock.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        self.due.keys().next().map(|(at_ns, _)| *at_ns)
    }

    fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }
}

/// A wait until a point in time on the node's clock, or until the node closes.
struct Timer<'c> {
    driver: &'c Driver,
    at_ns: u64,
    number: Option<u64>,
}

impl Future for Timer<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.driver.now_ns() >= self.at_ns || self.driver.is_closed() {
            return Poll::Ready(());
        }
        let (at_ns, waker, before) = (self.at_ns, context.waker().clone(), self.number);
        let number = self.driver.with(|runner, _| {
            let number = before.unwrap_or_else(|| runner.timers.number());
            runner.timers.due.insert((at_ns, number), waker);
            number
        });
        self.number = Some(number);
        Poll::Pending
    }
}

impl Drop for Timer<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.driver.with_unless_failed(|runner, _| drop(runner.timers.due.remove(&(self.at_ns, number))));
        }
    }
}

impl Driver {
    /// Returns the output of `future`. If `timeout` passes first, drops `future` and returns `None`.
    pub(crate) async fn within<F: Future>(&self, timeout: Duration, future: F) -> Option<F::Output> {
        let timeout_ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        self.until(self.now_ns().saturating_add(timeout_ns), future).await
    }

    /// Returns the output of `future`, as [`Driver::within`] does, or `None` at the time `at_ns` on the node's clock.
    pub(crate) async fn until<F: Future>(&self, at_ns: u64, future: F) -> Option<F::Output> {
        let mut timer = pin!(Timer { driver: self, at_ns, number: None });
        let mut future = pin!(future);
        std::future::poll_fn(|context| match future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending => timer.as_mut().poll(context).map(|()| None),
        })
        .await
    }
}
