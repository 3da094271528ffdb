//! Sending: packets leave one after the other, and again when they are lost.

use halite_fabric::Status;
use halite_mem::Window;

use super::packet::{Cargo, Packet};
use super::qp::{Source, Verb};
use super::{Event, Net};
use crate::link::Transit;

/// The next packet of a request.
struct Piece {
    number: u64,
    verb: Verb,
    offset: u64,
    len: u64,
    last: bool,
}

impl Net {
    /// Sends the next packet of a queue pair.  Those behind one that is lost wait for it, as in go-back-N.
    pub(super) fn handle_depart(&mut self, qp: u32) {
        let host = self.qps[qp as usize].from_host;
        if self.copies_by_processor(qp) && !self.has_processor(host, Event::Depart { qp }) {
            return;
        }
        let Some(piece) = self.next_piece(qp) else {
            self.qps[qp as usize].busy = false;
            return;
        };
        if piece.offset == 0 && self.awaits_key(qp, piece.number) {
            return self.ask_for_keys(qp);
        }
        let to = self.qps[qp as usize].to_host;
        match self.transmit(host, to, self.now_ns, piece.len) {
            Transit::Lost => self.depart_again(qp),
            Transit::Sent { left_ns, arrives_ns, damaged } => {
                self.depart(qp, &piece, arrives_ns, damaged);
                self.go_on_sending(qp, left_ns);
            }
        }
    }

    fn next_piece(&mut self, qp: u32) -> Option<Piece> {
        let mtu = self.profile(qp).mtu_bytes;
        let end = &mut self.qps[qp as usize];
        let (number, offset) = (end.departing, end.offset);
        if !end.sends() {
            return None;
        }
        let verb = end.work(number)?.verb;
        let rest = verb.outbound_bytes() - offset;
        // A message is put together by the adapter, and lands whole.
        let len = if matches!(verb, Verb::Send { .. }) { rest } else { rest.min(mtu) };
        Some(Piece { number, verb, offset, len, last: len == rest })
    }

    fn depart(&mut self, qp: u32, piece: &Piece, arrives_ns: u64, damaged: bool) {
        let mut bytes = self.source_bytes(qp, piece);
        if damaged {
            self.damage(&mut bytes);
        }
        let profile = self.profile(qp);
        let moves_ns = if piece.len == 0 { 0 } else { 2 * profile.dma_ns(piece.len) } + profile.pcie_ns;
        let end = &mut self.qps[qp as usize];
        end.landed_ns = end.landed_ns.max(arrives_ns + moves_ns);
        let lands_ns = end.landed_ns;
        let work = end.work(piece.number).expect("it departs");
        work.departed = true;
        let solicited = work.solicited;
        let Piece { number, verb, offset, last, .. } = *piece;
        let verb = self.with_adapters_key(qp, verb);
        let packet = Packet { qp, number, cargo: Cargo::Request(verb), offset, last, solicited, bytes };
        let packet = self.packets.add(packet);
        self.schedule(lands_ns, Event::Land { packet });
    }

    /// A snapshot of the bytes as they are now, which is when the adapter fetches them.
    fn source_bytes(&mut self, qp: u32, piece: &Piece) -> Vec<u8> {
        let source = match piece.verb {
            Verb::Write { source: Source::Registered { key, offset }, .. } => Some((key, offset)),
            _ => None,
        };
        if let Some((key, offset)) = source {
            let endpoint = self.qps[qp as usize].endpoint as usize;
            let mut bytes = self.packets.buffer();
            let window = &self.endpoints[endpoint].segments[key];
            read_into(window, offset + piece.offset, piece.len, &mut bytes);
            return bytes;
        }
        let work = self.qps[qp as usize].work(piece.number).expect("it departs");
        if piece.offset == 0 && piece.last {
            return std::mem::take(&mut work.inline);
        }
        let range = piece.offset as usize..(piece.offset + piece.len) as usize;
        let inline = std::mem::take(&mut work.inline);
        let mut bytes = self.packets.buffer();
        bytes.extend_from_slice(&inline[range]);
        self.qps[qp as usize].work(piece.number).expect("it departs").inline = inline;
        bytes
    }

    pub(super) fn damage(&mut self, bytes: &mut [u8]) {
        if !bytes.is_empty() {
            let bit = self.random.index(bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }

    fn depart_again(&mut self, qp: u32) {
        let end = &mut self.qps[qp as usize];
        let (retries_max, retransmit_ns) = self.hardware.of(end.reach).patience();
        end.attempts += 1;
        if end.attempts > retries_max {
            return self.break_off(qp, Status::RetryExceeded);
        }
        self.counters.retransmitted += 1;
        let at_ns = self.now_ns + retransmit_ns;
        self.trace(self.qps[qp as usize].from_host, |_| format!("connection {qp}: packet lost"));
        self.schedule(at_ns, Event::Depart { qp });
    }

    fn go_on_sending(&mut self, qp: u32, left_ns: u64) {
        let mtu = self.profile(qp).mtu_bytes;
        let end = &mut self.qps[qp as usize];
        end.attempts = 0;
        let number = end.departing;
        let work = end.work(number).expect("it departs");
        let (len, is_message) = (work.verb.outbound_bytes(), matches!(work.verb, Verb::Send { .. }));
        end.offset += mtu;
        if end.offset >= len || is_message {
            end.offset = 0;
            end.departing += 1;
        }
        let departing = end.departing;
        match end.work(departing) {
            Some(next) => {
                let at_ns = next.ready_ns.max(left_ns);
                self.schedule(at_ns, Event::Depart { qp });
            }
            None => end.busy = false,
        }
    }

    /// Sends the next piece of what the request `number` of `qp` reads, from its target.
    pub(super) fn handle_respond(&mut self, qp: u32, number: u64) {
        let event = Event::Respond { qp, number };
        let (from, to) = (self.qps[qp as usize].from_host, self.qps[qp as usize].to_host);
        if self.copies_by_processor(qp) && !self.has_processor(from, event) {
            return;
        }
        if !self.qps[qp as usize].sends() {
            return;
        }
        if !self.lets_in(qp ^ 1) {
            return self.await_ack(qp, number);
        }
        let Some(piece) = self.next_answer(qp, number) else {
            return;
        };
        match self.transmit(to, from, self.now_ns, piece.len) {
            Transit::Lost => self.respond_again(qp, number),
            Transit::Sent { left_ns, arrives_ns, damaged } => {
                self.respond(qp, &piece, arrives_ns, damaged);
                if !piece.last {
                    self.schedule(left_ns, event);
                }
            }
        }
    }

    fn next_answer(&mut self, qp: u32, number: u64) -> Option<Piece> {
        let mtu = self.profile(qp).mtu_bytes;
        let work = self.qps[qp as usize].work(number)?;
        let Verb::Read { len, .. } = work.verb else {
            unreachable!("only reads are answered in pieces");
        };
        let rest = len - work.answered;
        let piece_len = rest.min(mtu);
        let (verb, offset) = (work.verb, work.answered);
        Some(Piece { number, verb, offset, len: piece_len, last: piece_len == rest })
    }

    fn respond(&mut self, qp: u32, piece: &Piece, arrives_ns: u64, damaged: bool) {
        let mut bytes = self.packets.buffer();
        let target = self.qps[(qp ^ 1) as usize].endpoint as usize;
        if let Verb::Read { remote, .. } = piece.verb {
            let window = self.endpoints[target].segments.get(remote.key.0 as usize);
            let window = window.expect("memory stays while a connection reaches it");
            read_into(window, remote.offset + piece.offset, piece.len, &mut bytes);
        }
        if damaged {
            self.damage(&mut bytes);
        }
        let profile = self.profile(qp);
        let moves_ns = 2 * profile.dma_ns(piece.len) + 2 * profile.pcie_ns;
        let end = &mut self.qps[qp as usize];
        end.answered_ns = end.answered_ns.max(arrives_ns + moves_ns);
        let lands_ns = end.answered_ns;
        let work = end.work(piece.number).expect("it is answered");
        work.answered += piece.len;
        work.attempts = 0;
        let Piece { number, verb, offset, last, .. } = *piece;
        let cargo = Cargo::Response(verb);
        let packet = Packet { qp, number, cargo, offset, last, solicited: false, bytes };
        let packet = self.packets.add(packet);
        self.schedule(lands_ns, Event::Land { packet });
    }

    fn respond_again(&mut self, qp: u32, number: u64) {
        if self.spend_attempt(qp, number) {
            let at_ns = self.now_ns + self.profile(qp).retransmit_ns;
            self.schedule(at_ns, Event::Respond { qp, number });
        }
    }
}

fn read_into(window: &Window, offset: u64, len: u64, bytes: &mut Vec<u8>) {
    bytes.resize(len as usize, 0);
    window.read(offset, bytes).expect("the range was checked");
}
