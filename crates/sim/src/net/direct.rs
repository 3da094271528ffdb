//! Direct access to the memory of a peer on the same host: mapped once, as a process does, and unmapped when no window
//! of the process refers to it.

use std::sync::{Arc, Weak};

use halite_fabric::{Key, PeerId};
use halite_mem::{Segment, Window};

use super::end::EndId;
use super::{Event, Net};
use crate::hardware::Reach;

/// Segments of a peer in the addresses of this end's process.
#[derive(Debug, Default)]
pub(super) struct Mapped {
    /// By key.
    segments: Vec<Option<Arc<Segment>>>,
    /// Unmapped segments that windows still refer to.
    given_up: Vec<Weak<Segment>>,
}

impl Mapped {
    /// Hands out no more windows.
    pub(super) fn give_up(&mut self) {
        let segments = std::mem::take(&mut self.segments);
        self.given_up.extend(segments.into_iter().flatten().map(|segment| Arc::downgrade(&segment)));
    }

    /// Hands out no more windows of one segment.
    pub(super) fn give_one_up(&mut self, key: Key) {
        let segment = self.segments.get_mut(key.0 as usize).and_then(Option::take);
        self.given_up.extend(segment.map(|segment| Arc::downgrade(&segment)));
    }

    /// Hides later writes through these windows from other processes, because this process was killed.
    fn become_private(&self, owned: &[Option<Window>]) {
        for (segment, owned) in self.segments.iter().zip(owned) {
            if let (Some(segment), Some(owned)) = (segment, owned) {
                make_private(segment, owned);
            }
        }
    }

    fn is_held(&self) -> bool {
        self.given_up.iter().any(|segment| segment.strong_count() > 0)
    }

    fn get(&mut self, key: usize, segment: &Segment) -> Option<&Arc<Segment>> {
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
        if self.ends[end].reach != Reach::Within {
            return None;
        }
        let target = self.ends[end.other()].endpoint;
        let registered = self.endpoints[target as usize].segment(key)?;
        let mapped = self.ends[end].mapped.get(key.0 as usize, registered.segment())?;
        mapped.window(0, mapped.len())
    }

    /// The process of a fabric is killed: while its values are dropped, nothing that they do is seen by others.
    pub(super) fn silence(&self, index: usize) {
        if !self.hardware.has_processes() {
            return;
        }
        let own = &self.endpoints[index].segments;
        own.iter().flatten().for_each(|window| make_private(window.segment(), window));
        for end in &self.endpoints[index].peers {
            let peer = self.ends[end.other()].endpoint;
            self.ends[*end].mapped.become_private(&self.endpoints[peer as usize].segments);
        }
    }

    /// Tells the peer that its memory is given up, as soon as that is so.
    pub(super) fn detach(&mut self, end: EndId) {
        if !self.ends[end].mapped.is_held() {
            return self.say_detached(end);
        }
        let at_ns = self.now_ns + self.profile(end).notice_ns.max(1);
        self.schedule(at_ns, Event::LookAtWindows { end });
    }

    pub(super) fn handle_look_at_windows(&mut self, end: EndId) {
        let host = self.ends[end].from_host;
        if self.has_processor(host, Event::LookAtWindows { end }) {
            self.detach(end);
        }
    }

    /// The peer holds none of the memory of this end any more.
    pub(super) fn handle_peer_detached(&mut self, end: EndId) {
        let event = Event::PeerDetached { end };
        let this = &self.ends[end];
        let (host, is_open, reach) = (this.from_host, this.sends(), this.reach);
        if reach == Reach::Within && !self.has_processor(host, event) {
            return;
        }
        // That it left is heard first, which may have to wait for a copy.
        if reach == Reach::Within && is_open {
            let at_ns = self.now_ns + self.profile(end).wire_ns.max(1);
            return self.schedule(at_ns, event);
        }
        self.fence(end, false);
    }
}

fn make_private(segment: &Segment, owned: &Window) {
    segment.make_private(owned.segment()).expect("the same length of the same memory can be mapped again");
}
