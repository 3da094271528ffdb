//! A fabric whose nodes post every access, as on a network.

use std::sync::Arc;

use halite_fabric::{Atomics, Capabilities, Fabric, Key, Middleware, PeerId};
use halite_mem::Window;

/// Hides that loads and stores reach the memory of `inner`'s peers, and its atomics if `has_atomics` is false.
pub struct Posting {
    pub inner: Arc<dyn Fabric>,
    pub has_atomics: bool,
}

impl Middleware for Posting {
    fn inner(&self) -> &dyn Fabric {
        &*self.inner
    }

    fn capabilities(&self, peer: PeerId) -> Capabilities {
        let inner = self.inner.capabilities(peer);
        let atomics = if self.has_atomics { inner.atomics } else { Atomics::None };
        Capabilities { direct: false, atomics, ..inner }
    }

    fn direct(&self, _: PeerId, _: Key) -> Option<Window> {
        None
    }
}
