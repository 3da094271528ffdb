//! All functions and ports of a node.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::incoming::ServiceId;
use super::service::Service;

#[derive(Debug, Default)]
pub(crate) struct Services {
    by_id: BTreeMap<ServiceId, Arc<Service>>,
}

impl Services {
    pub(crate) fn get(&self, id: ServiceId) -> Option<&Arc<Service>> {
        self.by_id.get(&id)
    }

    pub(crate) fn insert(&mut self, service: Arc<Service>) {
        self.by_id.insert(service.id, service);
    }

    pub(crate) fn remove(&mut self, service: &Arc<Service>) {
        if self.by_id.get(&service.id).is_some_and(|known| Arc::ptr_eq(known, service)) {
            self.by_id.remove(&service.id);
        }
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<Service>> {
        self.by_id.values()
    }
}
