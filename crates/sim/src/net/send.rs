//! Sending, if processors copy: pieces leave in order, and lost pieces are retransmitted.

use halite_fabric::Status;
use halite_mem::Window;

use super::packet::{Packet, PacketKind};
use super::qp::{Source, Verb};
use super::{Event, Net};
use crate::link::Transit;
use crate::profile::Profile;

/// The next piece of a request or of a response.
struct Piece {
    number: u64,
    verb: Verb,
    offset: u64,
    len: u64,
    is_last: bool,
}

impl Net {
    /// Copies the next piece of a lane. Pieces behind a lost piece wait for it.
    pub(super) fn handle_depart(&mut self, qp: u32) {
        let (host, to) = self.hosts_of(qp);
        if !self.runs_or_defers(host, Event::Depart { qp }) {
            return;
        }
        let Some(piece) = self.next_piece(qp) else {
            self.qps[qp as usize].is_sending = false;
            return;
        };
        match self.transmit(host, to, self.now_ns, piece.len) {
            Transit::Lost => self.retry_depart(qp),
            Transit::Sent { left_ns, arrives_ns } => {
                self.depart(qp, &piece, arrives_ns);
                self.continue_sending(qp, left_ns);
            }
        }
    }

    fn next_piece(&mut self, qp: u32) -> Option<Piece> {
        let mtu = self.profile_of(qp).mtu_bytes;
        let queue = &mut self.qps[qp as usize];
        let (number, offset) = (queue.departing, queue.offset);
        if !self.ends[queue.end].is_active() {
            return None;
        }
        let verb = queue.work(number)?.verb;
        let rest = verb.outbound_bytes() - offset;
        // A message lands in one piece.
        let len = if matches!(verb, Verb::Send { .. }) { rest } else { rest.min(mtu) };
        Some(Piece { number, verb, offset, len, is_last: len == rest })
    }

    fn depart(&mut self, qp: u32, piece: &Piece, arrives_ns: u64) {
        let bytes = self.source_bytes(qp, piece);
        let queue = &mut self.qps[qp as usize];
        queue.landed_ns = queue.landed_ns.max(arrives_ns);
        let lands_ns = queue.landed_ns;
        let work = queue.work(piece.number).expect("the departing request is outstanding");
        work.has_departed = true;
        let solicited = work.solicited;
        let Piece { number, verb, offset, is_last, .. } = *piece;
        let packet =
            Packet { qp, number, kind: PacketKind::Request(verb), offset, is_last, solicited, bytes };
        let packet = self.packets.add(packet);
        self.schedule(lands_ns, Event::Land { packet });
    }

    /// Copies the bytes of a piece from their source.
    fn source_bytes(&mut self, qp: u32, piece: &Piece) -> Vec<u8> {
        let work = self.qps[qp as usize].work(piece.number).expect("the departing request is outstanding");
        if let Verb::Write { source: Source::Registered { offset, .. }, .. } = piece.verb {
            let mut bytes = self.packets.take_buffer();
            let window = work.local.as_ref().expect("the segment was looked up when the write was posted");
            read_into(window, offset + piece.offset, piece.len, &mut bytes);
            return bytes;
        }
        if piece.offset == 0 && piece.is_last {
            return std::mem::take(&mut work.inline);
        }
        let mut bytes = self.packets.take_buffer();
        bytes.extend_from_slice(&work.inline[piece.offset as usize..][..piece.len as usize]);
        bytes
    }

    fn retry_depart(&mut self, qp: u32) {
        let Profile { retries_max, retransmit_ns, .. } = *self.profile_of(qp);
        let queue = &mut self.qps[qp as usize];
        queue.attempts += 1;
        if queue.attempts > retries_max {
            return self.break_connection(self.end_of(qp), Status::RetryExceeded);
        }
        self.counters.retransmitted += 1;
        let at_ns = self.now_ns + retransmit_ns;
        self.trace(self.hosts_of(qp).0, |_| format!("lane {qp}: a piece is lost"));
        self.schedule(at_ns, Event::Depart { qp });
    }

    fn continue_sending(&mut self, qp: u32, left_ns: u64) {
        let mtu = self.profile_of(qp).mtu_bytes;
        let queue = &mut self.qps[qp as usize];
        queue.attempts = 0;
        let number = queue.departing;
        let work = queue.work(number).expect("the departing request is outstanding");
        let (len, is_message) = (work.verb.outbound_bytes(), matches!(work.verb, Verb::Send { .. }));
        queue.offset += mtu;
        if queue.offset >= len || is_message {
            queue.offset = 0;
            queue.departing += 1;
        }
        let departing = queue.departing;
        match queue.work(departing) {
            Some(next) => {
                let at_ns = next.ready_ns.max(left_ns);
                self.schedule(at_ns, Event::Depart { qp });
            }
            None => queue.is_sending = false,
        }
    }

    /// Sends the next piece of the read `number` of `qp` from its target.
    pub(super) fn handle_respond(&mut self, qp: u32, number: u64) {
        let event = Event::Respond { qp, number };
        let (from, to) = self.hosts_of(qp);
        let end = self.end_of(qp);
        // The requester's processor executes the copy.
        if !self.runs_or_defers(from, event) {
            return;
        }
        if !self.ends[end].is_active() {
            return;
        }
        if !self.accepts_copies(end.other()) {
            return self.await_ack(qp, number);
        }
        let Some(piece) = self.next_response_piece(qp, number) else {
            return;
        };
        if piece.verb.remote().is_some_and(|remote| self.segment(qp ^ 1, remote).is_none()) {
            // The key was deregistered meanwhile.
            return self.refuse(qp, number, true);
        }
        match self.transmit(to, from, self.now_ns, piece.len) {
            Transit::Lost => self.retry_respond(qp, number),
            Transit::Sent { left_ns, arrives_ns } => {
                self.respond(qp, &piece, arrives_ns);
                if !piece.is_last {
                    self.schedule(left_ns, event);
                }
            }
        }
    }

    fn next_response_piece(&mut self, qp: u32, number: u64) -> Option<Piece> {
        let mtu = self.profile_of(qp).mtu_bytes;
        let work = self.qps[qp as usize].work(number)?;
        let Verb::Read { len, .. } = work.verb else {
            unreachable!("only reads are answered in pieces");
        };
        let rest = len - work.response_bytes;
        let piece_len = rest.min(mtu);
        let (verb, offset) = (work.verb, work.response_bytes);
        Some(Piece { number, verb, offset, len: piece_len, is_last: piece_len == rest })
    }

    fn respond(&mut self, qp: u32, piece: &Piece, arrives_ns: u64) {
        let mut bytes = self.packets.take_buffer();
        if let Verb::Read { remote, .. } = piece.verb {
            let window = self.segment(qp ^ 1, remote).expect("memory stays while a connection reaches it");
            read_into(window, remote.offset + piece.offset, piece.len, &mut bytes);
        }
        let queue = &mut self.qps[qp as usize];
        queue.response_landed_ns = queue.response_landed_ns.max(arrives_ns);
        let lands_ns = queue.response_landed_ns;
        let work = queue.work(piece.number).expect("the read is outstanding");
        work.response_bytes += piece.len;
        work.attempts = 0;
        let Piece { number, verb, offset, is_last, .. } = *piece;
        let kind = PacketKind::Response(verb);
        let packet = Packet { qp, number, kind, offset, is_last, solicited: false, bytes };
        let packet = self.packets.add(packet);
        self.schedule(lands_ns, Event::Land { packet });
    }

    fn retry_respond(&mut self, qp: u32, number: u64) {
        if self.count_retry(qp, number) {
            let at_ns = self.now_ns + self.profile_of(qp).retransmit_ns;
            self.schedule(at_ns, Event::Respond { qp, number });
        }
    }
}

fn read_into(window: &Window, offset: u64, len: u64, bytes: &mut Vec<u8>) {
    bytes.resize(len as usize, 0);
    window.read(offset, bytes).expect("the range was checked");
}
