//! Combinators of futures: cancellation at a random await point or time, a time limit, and two futures at once.

use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use halite_sim::{HostId, Random, World};

/// Maximum number of polls before a future is dropped.
const POLLS_MAX: u64 = 4;
/// Maximum time before a future is dropped.
const AGE_NS_MAX: u64 = 40_000;

/// Returns the output of `future`. With a probability of `per_mille` thousandths, drops `future` after a random number
/// of polls or a random time, and returns `None` if `future` had not ended by then.
pub(crate) async fn run_or_cancel<F: Future>(
    world: &World,
    host: HostId,
    random: &mut Random,
    per_mille: u32,
    future: F,
) -> Option<F::Output> {
    if !random.chance(per_mille.into(), 1000) {
        return Some(future.await);
    }
    if random.chance(1, 2) {
        after_polls(random.below(POLLS_MAX), future).await
    } else {
        let age = Duration::from_nanos(random.below(AGE_NS_MAX));
        before(world.sleep(Some(host), age), future).await
    }
}

/// Returns the output of `future`; `None` if it has not ended after `polls` polls.
async fn after_polls<F: Future>(mut polls: u64, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    std::future::poll_fn(|context| {
        if polls == 0 {
            return Poll::Ready(None);
        }
        polls -= 1;
        future.as_mut().poll(context).map(Some)
    })
    .await
}

/// Returns the output of `future`; `None` if `end` ends first.
pub(crate) async fn before<F: Future>(end: impl Future<Output = ()>, future: F) -> Option<F::Output> {
    let (mut end, mut future) = (pin!(end), pin!(future));
    std::future::poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => end.as_mut().poll(context).map(|()| None),
    })
    .await
}

/// Returns the outputs of two futures, which are polled alternately.
pub(crate) async fn both<A: Future, B: Future>(first: A, second: B) -> (A::Output, B::Output) {
    let (mut first, mut second) = (pin!(first), pin!(second));
    let (mut from_first, mut from_second) = (None, None);
    std::future::poll_fn(|context| {
        poll_once(&mut from_first, first.as_mut(), context);
        poll_once(&mut from_second, second.as_mut(), context);
        match from_first.is_some() && from_second.is_some() {
            true => Poll::Ready(from_first.take().zip(from_second.take()).expect("both have ended")),
            false => Poll::Pending,
        }
    })
    .await
}

/// Polls a future, unless it has ended already.
fn poll_once<F: Future>(output: &mut Option<F::Output>, future: Pin<&mut F>, context: &mut Context<'_>) {
    if output.is_none()
        && let Poll::Ready(ready) = future.poll(context)
    {
        *output = Some(ready);
    }
}
