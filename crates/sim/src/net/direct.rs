//! Direct access to the memory of a peer on the same host. As in a real process, each segment is mapped once, and
//! unmapped when no window of the process refers to it.

use std::sync::{Arc, Weak};

use halite_fabric::{Key, PeerId};
use halite_mem::{Segment, Window};

use super::end::EndId;
use super::{Event, Net};
use crate::hardware::Reach;

/// Segments of a peer that this end's process has mapped.
#[derive(Debug, Default)]
pub(super) struct Mappings {
    /// Mapped segments by key.
    segments: Vec<Option<Arc<Segment>>>,
    /// Unmapped segments that windows still refer to.
    unmapped: Vec<Weak<Segment>>,
}

impl Mappings {
    /// Unmaps the peer's segments. Existing windows stay valid.
    pub(super) fn unmap_all(&mut self) {
        let segments = std::mem::take(&mut self.segments);
        self.unmapped.extend(segments.into_iter().flatten().map(|segment| Arc::downgrade(&segment)));
    }

    /// Unmaps one segment. Existing windows stay valid.
    pub(super) fn unmap(&mut self, key: Key) {
        let segment = self.segments.get_mut(key.0 as usize).and_then(Option::take);
        self.unmapped.extend(segment.map(|segment| Arc::downgrade(&segment)));
    }

    /// Hides further writes of this killed process to the peer's segments.
    fn hide_writes(&self, owned: &[Option<Window>]) {
        for (segment, owned) in self.segments.iter().zip(owned) {
            if let (Some(segment), Some(owned)) = (segment, owned) {
                make_private(segment, owned);
            }
        }
    }

    fn has_windows(&self) -> bool {
        self.unmapped.iter().any(|segment| segment.strong_count() > 0)
    }

    /// Maps a segment, unless it is mapped already.
    fn map(&mut self, key: usize, segment: &Segment) -> Option<&Arc<Segment>> {
        if self.segments.len() <= key {
            self.segments.resize(key + 1, None);
        }
        let place = &mut self.segments[key];
        if place.is_none() {
            *place = Some(Segment::open(segment.fd()?, segment.len()).ok()?);
        }
        place.as_ref()
    }
}

impl Net {
    pub(crate) fn direct(&mut self, endpoint: u32, peer: PeerId, key: Key) -> Option<Window> {
        let end = self.open_end(endpoint, peer)?;
        if self.ends[end].reach != Reach::WithinHost {
            return None;
        }
        let target = self.ends[end.other()].endpoint;
        let registered = self.endpoints[target as usize].segment(key)?;
        let mapped = self.ends[end].mappings.map(key.0 as usize, registered.segment())?;
        mapped.window(0, mapped.len())
    }

    /// Hides further writes of a killed process: destructors of its values may still write.
    pub(super) fn hide_writes(&self, index: usize) {
        if !self.hardware.has_processes() {
            return;
        }
        let own = &self.endpoints[index].segments;
        own.iter().flatten().for_each(|window| make_private(window.segment(), window));
        for end in &self.endpoints[index].peers {
            let peer = self.ends[end.other()].endpoint;
            self.ends[*end].mappings.hide_writes(&self.endpoints[peer as usize].segments);
        }
    }

    /// Reports to the peer that its memory is unmapped, once no window refers to it.
    pub(super) fn detach(&mut self, end: EndId) {
        if !self.ends[end].mappings.has_windows() {
            return self.notify_detached(end);
        }
        let at_ns = self.now_ns + self.profile(end).notice_ns.max(1);
        self.schedule(at_ns, Event::CheckWindows { end });
    }

    pub(super) fn handle_check_windows(&mut self, end: EndId) {
        let host = self.ends[end].from_host;
        if self.runs_or_defers(host, Event::CheckWindows { end }) {
            self.detach(end);
        }
    }

    /// Handles the report that the peer has unmapped all memory of this end.
    pub(super) fn handle_peer_detached(&mut self, end: EndId) {
        let event = Event::PeerDetached { end };
        let this = &self.ends[end];
        let (host, is_open, reach) = (this.from_host, this.is_active(), this.reach);
        if reach == Reach::WithinHost && !self.runs_or_defers(host, event) {
            return;
        }
        // The peer's notice that it has closed must be handled first, but may still wait for a copy in progress.
        if reach == Reach::WithinHost && is_open {
            let at_ns = self.now_ns + self.profile(end).wire_ns.max(1);
            return self.schedule(at_ns, event);
        }
        self.mark_cut_off(end, false);
    }
}

/// Hides later writes to `segment` from other processes, as if this process had been killed.
fn make_private(segment: &Segment, owned: &Window) {
    segment.make_private(owned.segment()).expect("the same length of the same memory can be mapped again");
}
