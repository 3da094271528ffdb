//! Panics of a trial, which are among the things that must not be observed in one.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What `work` returns, or what was said by the panic that ended it.
///
/// What `work` has touched may be in any state then: it is to be looked at with care, and not to be used any more.
pub(crate) fn caught<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| format!("panic: {}", words(&*panic)))
}

fn words(panic: &(dyn Any + Send)) -> &str {
    let owned = panic.downcast_ref::<String>().map(String::as_str);
    owned.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without words")
}
