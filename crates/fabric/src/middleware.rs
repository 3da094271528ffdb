//! Middleware: a fabric that wraps another fabric and defines only the methods that differ.
//!
//! For middleware, [`Fabric::lines`] returns `None`, because stores into a peer's memory would bypass the middleware.
//! Callers post lines instead.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use halite_mem::{Segment, Sleeper, Window};

use crate::{
    Capabilities, CutOff, Event, Fabric, Key, Lane, Path, PeerId, PostError, RegisterError, WorkRequest,
};

/// Generates the methods of [`Middleware`] and of its implementation of [`Fabric`] from one list.
macro_rules! forward {
    ($(fn $method:ident(&self $(, $argument:ident: $type:ty)*) $(-> $output:ty)?;)*) => {
        /// A fabric that wraps another fabric.
        ///
        /// A type that implements this trait is a [`Fabric`]: each method that the type does not define calls the inner
        /// fabric. Import only one of the two traits, because their methods have the same names.
        pub trait Middleware: Send + Sync {
            /// Returns the wrapped fabric.
            fn inner(&self) -> &dyn Fabric;

            $(
                #[doc = concat!("As [`Fabric::", stringify!($method), "`].")]
                fn $method(&self $(, $argument: $type)*) $(-> $output)? {
                    self.inner().$method($($argument),*)
                }
            )*
        }

        impl<M: Middleware> Fabric for M {
            $(fn $method(&self $(, $argument: $type)*) $(-> $output)? {
                Middleware::$method(self $(, $argument)*)
            })*
        }
    };
}

forward! {
    fn providers(&self) -> Vec<&'static str>;
    fn capabilities(&self, peer: PeerId) -> Capabilities;
    fn register(&self, segment: Arc<Segment>) -> Result<Key, RegisterError>;
    fn deregister(&self, key: Key);
    fn connect(&self, address: &str, hello: &[u8]);
    fn post(&self, peer: PeerId, lane: Lane, requests: &[WorkRequest<'_>]) -> Result<(), PostError>;
    fn poll(&self, events: &mut Vec<Event>) -> usize;
    fn direct(&self, peer: PeerId, key: Key) -> Option<Window>;
    fn cut_off(&self, peer: PeerId) -> CutOff;
    fn warn(&self, peer: PeerId, text: &str);
    fn disconnect(&self, peer: PeerId);
    fn take_end_reason(&self, peer: PeerId) -> Option<String>;
    fn arm(&self, sleeper: Option<Sleeper>);
    fn wait(&self, sleeper: Sleeper, seen: u32, timeout: Option<Duration>);
    fn poll_timeout(&self) -> Option<Duration>;
    fn heard(&self, peer: PeerId) -> Option<Duration>;
    fn round_trip(&self, peer: PeerId) -> Option<Duration>;
    fn is_being_answered(&self) -> bool;
    fn path(&self, peer: PeerId) -> Option<Path>;
    fn dropped_packets(&self) -> Vec<(&'static str, u64)>;
    fn polls_by_system_calls(&self) -> bool;
    fn traffic(&self) -> u64;
    fn doorbell(&self) -> u32;
    fn wake(&self);
    fn descriptor(&self, sleeper: Sleeper) -> Option<BorrowedFd<'_>>;
    fn close(&self);
}
