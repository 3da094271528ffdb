//! Packets on the wire. They are stored apart from their requests, because a packet can outlive its sender.

use super::qp::Verb;
use super::slab::Slab;

/// The direction of a packet.
#[derive(Clone, Copy, Debug)]
pub(super) enum PacketKind {
    /// To the target, which executes it.
    Request(Verb),
    /// Back to the requester, with the bytes of a read.
    Response(Verb),
}

#[derive(Debug)]
pub(super) struct Packet {
    /// The requester's end of the lane.
    pub(super) qp: u32,
    pub(super) number: u64,
    pub(super) kind: PacketKind,
    /// Offset of its bytes in the request.
    pub(super) offset: u64,
    pub(super) is_last: bool,
    /// True if the arrival rings the target's doorbell.
    pub(super) solicited: bool,
    pub(super) bytes: Vec<u8>,
}

/// All packets on wires, and free buffers.
#[derive(Debug, Default)]
pub(super) struct Packets {
    in_flight: Slab<Packet>,
    buffers: Vec<Vec<u8>>,
}

/// Maximum number of free buffers. They take a few megabytes.
const BUFFERS_MAX: usize = 256;

impl Packets {
    pub(super) fn add(&mut self, packet: Packet) -> u32 {
        self.in_flight.add(packet)
    }

    pub(super) fn take(&mut self, index: u32) -> Packet {
        self.in_flight.take(index)
    }

    pub(super) fn take_buffer(&mut self) -> Vec<u8> {
        self.buffers.pop().unwrap_or_default()
    }

    pub(super) fn recycle(&mut self, mut buffer: Vec<u8>) {
        if buffer.capacity() > 0 && self.buffers.len() < BUFFERS_MAX {
            buffer.clear();
            self.buffers.push(buffer);
        }
    }
}
