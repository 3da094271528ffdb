//! Cancellation: futures that are dropped at a random await point, or at a random time.

use std::pin::pin;
use std::task::Poll;
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

/// Returns the output of `future`; `None` if `end` ends before.
pub(crate) async fn before<F: Future>(end: impl Future<Output = ()>, future: F) -> Option<F::Output> {
    let (mut end, mut future) = (pin!(end), pin!(future));
    std::future::poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => end.as_mut().poll(context).map(|()| None),
    })
    .await
}
