//! Creates links to peers, opens them with a handshake, and closes them.

use std::sync::Arc;

use halite_fabric::{Key, Operation, PeerId, PostCause, RemoteAddress};
use halite_tier::ids::NodeId;
use halite_tier::rpc::line::REQUEST_LINES;
use halite_tier::rpc::ring::is_ring_size;
use halite_tier::rpc::wire::CONTROL_IMM;
use halite_tier::rpc::{CallControl, RingReader, RingWriter, Target, Violation};

use super::Rpc;
use super::client::{DEFAULT_SLOT_BYTES, DEFAULT_SLOTS};
use super::server::{REQUEST_LINES_BYTES, clear_row};
use super::shared::{
    Attempt, Block, CALL_WORK, Introduced, LINE_HEAD_OFFSET, Link, LinkMemory, Outbound, OutboundLines,
    PeerParameters, Row,
};
use crate::runtime::locks::lock;
use crate::runtime::wait::Wakes;

/// Length of a head word's memory, in bytes: one cache line.
const HEAD_BYTES: u64 = 64;

impl Rpc {
    /// Creates the link to a peer that will soon be up, with its ring and lines. Returns `None` if there is no memory
    /// for them; then calls to and from this peer time out.
    pub(crate) fn make_link(&self, peer: PeerId, node: NodeId) -> Option<Arc<Link>> {
        let ring = self.poster.allocate(self.ring_bytes)?;
        let head = self.poster.allocate(HEAD_BYTES)?;
        head.window().store_u64(0, 0).expect("blocks are aligned");
        head.window().store_u64(LINE_HEAD_OFFSET, 0).expect("blocks are aligned");
        let lines = self.poster.allocate(REQUEST_LINES_BYTES)?;
        clear_row(&lines);
        let inline_bytes_max = self.poster.fabric.capabilities(peer).inline_bytes_max;
        let memory = Some(LinkMemory { ring: (RingReader::new(self.ring_bytes), ring), head, lines });
        let drops = self.peers.own().drops().clone();
        Some(Arc::new(Link::new(node, Target::Peer(peer), inline_bytes_max, memory, drops)))
    }

    /// Sends the handshake to a peer that is up, before any request and any message in the outbox.
    pub(crate) fn handle_up(&self, peer: PeerId, link: &Link) {
        let handshake = {
            let inbound = lock(&link.inbound);
            let ring = inbound.ring.as_ref().zip(inbound.head.as_ref()).zip(inbound.lines.as_ref());
            ring.map(|(((_, ring), head), lines)| self.handshake(ring, head, lines))
        };
        if let Some(handshake) = handshake {
            self.send_handshake(peer, link, handshake, Attempt::First);
        }
    }

    fn send_handshake(&self, peer: PeerId, link: &Link, control: CallControl, attempt: Attempt) {
        let operation = Operation::Send { bytes: &control.emit(), imm: CONTROL_IMM };
        match self.poster.post(peer, CALL_WORK, operation) {
            Err(PostCause::QueueFull) => {
                lock(&self.handshakes).push((peer, control));
                self.poster.set_deferred(attempt);
            }
            // A peer that is gone needs no handshake.
            _ => link.set_handshake_sent(),
        }
    }

    fn handshake(&self, ring: &Block, head: &Block, lines: &Block) -> CallControl {
        let (ring_at, head_at, lines_at) = (ring.address(), head.address(), lines.address());
        let (slots_at, replies_at) = self.client.addresses();
        CallControl::Handshake {
            ring_key: ring_at.key.0,
            ring_offset: ring_at.offset,
            ring_bytes: ring.len(),
            head_key: head_at.key.0,
            head_offset: head_at.offset,
            slots_key: slots_at.key.0,
            slots_offset: slots_at.offset,
            slot_bytes: DEFAULT_SLOT_BYTES as u32,
            slots: u32::from(DEFAULT_SLOTS),
            lines_key: lines_at.key.0,
            lines_offset: lines_at.offset,
            replies_key: replies_at.key.0,
            replies_offset: replies_at.offset,
        }
    }

    pub(super) fn open(&self, link: &Link, peer: PeerId, control: &CallControl) -> Result<(), Violation> {
        let CallControl::Handshake { ring_key, ring_offset, ring_bytes, .. } = *control else {
            unreachable!("the caller checked")
        };
        if !is_ring_size(ring_bytes) {
            return Err(Violation("the size of a ring is not allowed"));
        }
        let parameters = PeerParameters::parse(control).ok_or(Violation("a handshake is malformed"))?;
        let replies = Row::new(&*self.poster.fabric, peer, parameters.replies, parameters.slot_count());
        let head = {
            let inbound = &mut *lock(&link.inbound);
            inbound.parameters = Some(parameters);
            inbound.head.as_ref().map(|head| head.window().clone())
        };
        let head = head.ok_or(Violation("a handshake was sent after the connection ended"))?;
        self.server.reply_rows.open(&link.replies, replies);
        let at = RemoteAddress { key: Key(ring_key), offset: ring_offset };
        let lines = self.poster.fabric.capabilities(peer).direct.then(|| {
            let row = Row::new(&*self.poster.fabric, peer, parameters.lines, REQUEST_LINES);
            OutboundLines::new(row, self.client.new_borrower())
        });
        let ring = RingWriter::new(ring_bytes);
        let (posted_before, introduced) = (0, Introduced::default());
        *lock(&link.outbound) = Some(Outbound { ring, at, head, posted_before, introduced, lines });
        Ok(())
    }

    /// Retries the handshakes that the fabric refused.
    pub(super) fn retry_handshakes(&self) {
        // Taken before the loop, which would otherwise hold the lock.
        let handshakes = std::mem::take(&mut *lock(&self.handshakes));
        for (peer, control) in handshakes {
            if let Some(link) = self.peers.link_of(peer) {
                self.send_handshake(peer, &link, control, Attempt::Retry);
            }
        }
    }

    /// Closes the link to a peer that is down. The memory to which the peer may still write stays reserved.
    pub(crate) fn handle_down(&self, peer: PeerId, link: &Link, wakes: &mut Wakes) {
        let services: Vec<_> = self.peers.read().services.all().cloned().collect();
        link.set_gone();
        link.drop_callers();
        let outbound = lock(&link.outbound).take();
        self.server.reply_rows.close(&link.replies);
        if let Some(lines) = outbound.and_then(|outbound| outbound.lines) {
            self.client.end_lines(lines);
        }
        self.client.handle_down(peer, wakes);
        for service in services {
            self.handle_promoted(&service, service.handle_down(Target::Peer(peer)), wakes);
        }
    }

    /// Releases the memory of the link to a peer, because the peer can no longer access this node's memory.
    pub(crate) fn handle_cut_off(&self, peer: PeerId, link: &Link) {
        self.client.handle_cut_off(peer);
        self.server.reply_rows.close(&link.replies);
        let mut inbound = lock(&link.inbound);
        let given_up = (inbound.ring.take(), inbound.head.take(), inbound.lines.take());
        let kept = std::mem::take(&mut inbound.kept);
        drop(inbound);
        drop((given_up, kept));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use halite_mem::Pins;
    use halite_providers::{ShmConfig, ShmFabric};
    use halite_tier::ids::{Incarnation, NodeIncarnation};

    use super::*;
    use crate::posted::InFlight;
    use crate::rpc::peers::Peers;

    #[test]
    fn used_links_are_freed_with_their_node() {
        let dir = crate::runtime::scratch();
        let fabric = ShmFabric::open(ShmConfig::new(dir.path(), "one")).unwrap();
        let (posted, peers) = (Arc::new(InFlight::new(1)), Arc::new(Peers::new(NodeId(0))));
        let rpc = Rpc::new(fabric.clone(), posted, peers.clone(), Arc::new(Pins::new()), 1 << 16).unwrap();
        // The link to a peer that is still up when the node ends, and the node's own link.
        let incarnation = NodeIncarnation { node: NodeId(1), id: Incarnation(1) };
        peers.set_up(PeerId(7), incarnation, rpc.make_link(PeerId(7), NodeId(1)));
        let links = [0, 1].map(|node| {
            let link = peers.link_to(NodeId(node)).unwrap();
            lock(&link.inbound).caller(&link, b"ada").unwrap();
            Arc::downgrade(&link)
        });
        drop((rpc, peers));
        assert!(links.iter().all(|link| link.upgrade().is_none()));
        drop(fabric);
    }
}
