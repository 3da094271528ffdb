//! Many operations of one thread under way at a time.

use std::pin::Pin;
use std::task::{Context, Poll};

/// Runs `count` operations with up to `window` of them under way.  `begin` is told which of the `window` places an
/// operation has, for the buffers that go with it.
///
/// Whoever serves them serves them in order: so only the oldest is asked whether it has ended, and a look costs the same
/// at any window.
pub async fn run<F, E>(window: usize, count: u64, mut begin: impl FnMut(usize) -> F) -> Result<(), E>
where
    F: Future<Output = Result<(), E>>,
{
    let mut places: Vec<Place<F>> = (0..window).map(|_| Place::new()).collect();
    let place = |number: u64| (number % window as u64) as usize;
    let (mut begun, mut ended) = (0, 0);
    std::future::poll_fn(|context| {
        while ended < count {
            while begun < count && begun - ended < window as u64 {
                let next = place(begun);
                places[next].begin(begin(next));
                // What has not been looked at once has not been posted.
                let _ = places[next].poll(context);
                begun += 1;
            }
            let oldest = &mut places[place(ended)];
            if oldest.poll(context).is_pending() {
                return Poll::Pending;
            }
            oldest.ended.take().expect("it has just ended")?;
            ended += 1;
        }
        Poll::Ready(Ok(()))
    })
    .await
}

/// Holds one operation after the other, without allocating for each.
struct Place<F: Future> {
    running: Pin<Box<Option<F>>>,
    ended: Option<F::Output>,
}

impl<F: Future> Place<F> {
    fn new() -> Place<F> {
        Place { running: Box::pin(None), ended: None }
    }

    fn begin(&mut self, operation: F) {
        self.running.set(Some(operation));
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Some(running) = self.running.as_mut().as_pin_mut() else { return Poll::Ready(()) };
        running.poll(context).map(|output| {
            self.running.set(None);
            self.ended = Some(output);
        })
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::convert::Infallible;
    use std::task::Waker;

    use super::*;

    /// Polls until the end, and returns the most operations that were under way, and their places in order.
    fn observe(window: usize, count: u64) -> (u64, Vec<usize>) {
        let (under_way, most, places) = (Cell::new(0), Cell::new(0), RefCell::new(Vec::new()));
        let operation = |place| {
            places.borrow_mut().push(place);
            under_way.set(under_way.get() + 1);
            most.set(most.get().max(under_way.get()));
            let (under_way, mut polls) = (&under_way, 0);
            std::future::poll_fn(move |_| {
                polls += 1;
                if polls < 3 {
                    return Poll::Pending;
                }
                under_way.set(under_way.get() - 1);
                Poll::Ready(Ok::<(), Infallible>(()))
            })
        };
        let mut all = std::pin::pin!(run(window, count, operation));
        let mut context = Context::from_waker(Waker::noop());
        while all.as_mut().poll(&mut context).is_pending() {}
        assert_eq!(under_way.get(), 0);
        (most.get(), places.take())
    }

    #[test]
    fn the_window_is_kept_full_and_never_exceeded() {
        assert_eq!(observe(3, 7), (3, vec![0, 1, 2, 0, 1, 2, 0]));
        assert_eq!(observe(1, 2), (1, vec![0, 0]));
        assert_eq!(observe(16, 2), (2, vec![0, 1]));
        assert_eq!(observe(4, 0).0, 0);
    }

    #[test]
    fn a_failure_ends_them_all() {
        let mut begun = 0;
        let fails_third = |_| {
            begun += 1;
            std::future::ready(if begun == 3 { Err("gone") } else { Ok(()) })
        };
        let mut all = std::pin::pin!(run(2, 10, fails_third));
        assert_eq!(all.as_mut().poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(Err("gone")));
    }
}
