//! No content of the ring, immediate or control message of a peer makes this end panic or accept an invalid value.
//!
//! The input is a program: each byte selects the next step, and the bytes behind it are its operands.

#![no_main]

use std::sync::{Arc, OnceLock};

use halite_fabric::PeerId;
use halite_mem::{PagePolicy, Segment, Window};
use halite_tier::rpc::atomic::{ATOMIC_ANSWER_BYTES, ATOMIC_CALL_BYTES};
use halite_tier::rpc::line::REQUEST_WORDS;
use halite_tier::rpc::wire::{REQUEST_HEADER_BYTES_MAX, parse_output_address};
use halite_tier::rpc::{
    Abandoned, Arrival, AtomicAnswer, AtomicCall, CallControl, Cancelling, Imm, RING_BYTES_MIN, ReplyHeader,
    ReplySlots, ReplyState, RequestHeader, RequestLine, RingReader, RingWriter, Served, ServedId, SlotId,
    Target,
};
use libfuzzer_sys::fuzz_target;

const PEER: PeerId = PeerId(1);
/// Few, so that programs often select a slot in use.
const SLOTS: usize = 4;

const ARENA_BYTES: u64 = 4096;

/// This end of a link, with its requests and slots in use.
struct End {
    reader: RingReader,
    writer: RingWriter,
    served: Served,
    /// Requests without an answer.
    unanswered: Vec<ServedId>,
    slots: ReplySlots<()>,
    /// Calls of this end whose caller still waits.
    pending: Vec<SlotId>,
    /// Memory for atomics.
    arena: Window,
}

fuzz_target!(|program: &[u8]| {
    let mut end = End {
        reader: RingReader::new(RING_BYTES_MIN),
        writer: RingWriter::new(RING_BYTES_MIN),
        served: Served::default(),
        unanswered: Vec::new(),
        slots: ReplySlots::new(SLOTS / 2, SLOTS),
        pending: Vec::new(),
        arena: arena(),
    };
    let mut input = program;
    while let Some(step) = take(&mut input, 1) {
        match step[0] % 8 {
            0 => end.call(),
            1 => end.read_reply(),
            2 => end.abandon_call(),
            3 => end.reply(),
            4 => {
                let Some(imm) = take(&mut input, 4) else { return };
                let imm = Imm::parse(u32::from_le_bytes(imm.try_into().expect("four bytes")));
                end.handle_imm(imm, &mut input);
            }
            5 => {
                let len = take(&mut input, 1).map_or(0, |len| usize::from(len[0]));
                let Some(bytes) = take(&mut input, len) else { return };
                end.handle_control(bytes);
            }
            6 => {
                let Some(head) = take(&mut input, 8) else { return };
                // Later writes stay inside the ring with any head that the peer reports.
                let _ = end.writer.set_head(u64::from_le_bytes(head.try_into().expect("eight bytes")));
                end.write(1 + u64::from(step[0]) * 3);
            }
            _ => {
                let Some(bytes) = take(&mut input, 16) else { return };
                let (header, address) =
                    (bytes.first_chunk().expect("eight bytes"), bytes.first_chunk().expect("sixteen bytes"));
                if let Ok(header) = ReplyHeader::parse(*header) {
                    assert_eq!(header.emit(), bytes[..8]);
                }
                let _ = parse_output_address(*address);
                // The operands of atomics stay in the input, so that existing programs keep their meaning.
                if let Some(bytes) = input.first_chunk() {
                    end.handle_atomic(bytes);
                }
            }
        }
    }
    // Every slot is free once the peer is cut off.
    end.slots.handle_down(PEER);
    for slot in std::mem::take(&mut end.pending) {
        end.drop_slot(slot);
    }
    end.slots.handle_cut_off(PEER);
    assert_eq!(end.slots.used(), 0);
});

impl End {
    fn call(&mut self) {
        self.pending.extend(self.slots.open(Target::Peer(PEER)));
    }

    fn read_reply(&mut self) {
        let Some(slot) = self.pending.pop() else { return };
        match self.slots.look(slot, 0) {
            ReplyState::Replied => drop(self.slots.free(slot)),
            _ => self.pending.insert(0, slot),
        }
    }

    fn abandon_call(&mut self) {
        if let Some(slot) = self.pending.pop() {
            self.drop_slot(slot);
        }
    }

    fn drop_slot(&mut self, slot: SlotId) {
        if let Abandoned::Replied = self.slots.abandon(slot) {
            self.slots.free(slot);
        }
    }

    /// Answers a request.
    fn reply(&mut self) {
        if let Some(call) = self.unanswered.pop() {
            self.served.end(call, true);
        }
    }

    fn handle_imm(&mut self, imm: Imm, input: &mut &[u8]) {
        match imm {
            Imm::Reply(slot) => {
                if let Ok(Arrival::Late) = self.slots.handle_reply(Target::Peer(PEER), slot) {
                    self.slots.free(slot);
                }
            }
            Imm::Request { offset } => self.handle_request(offset, input),
            Imm::Lines => self.handle_line(input),
            Imm::Look(index) => {
                if let Some(slot) = self.slots.awaited(index)
                    && let Ok(Arrival::Late) = self.slots.handle_reply(Target::Peer(PEER), slot)
                {
                    self.slots.free(slot);
                }
            }
        }
    }

    fn handle_line(&mut self, input: &mut &[u8]) {
        let Some(bytes) = take(input, REQUEST_WORDS * 8) else { return };
        let words = std::array::from_fn(|at| u64::from_le_bytes(bytes.as_chunks().0[at]));
        if let Ok(line) = RequestLine::parse(&words)
            && let Ok(call) = self.served.open(line.slot)
            && self.served.begin(call)
        {
            self.unanswered.push(call);
        }
    }

    fn handle_request(&mut self, offset: u64, input: &mut &[u8]) {
        let Ok(bytes_max) = self.reader.arrive(offset) else { return };
        assert!(offset + bytes_max <= RING_BYTES_MIN);
        let len = input.len().min(REQUEST_HEADER_BYTES_MAX).min(bytes_max as usize);
        let Ok(header) = RequestHeader::parse(take(input, len).expect("the input is not shorter")) else {
            return;
        };
        if header.request_bytes() > bytes_max {
            return;
        }
        self.reader.advance(header.request_bytes());
        if let Some(head) = self.reader.poll_head() {
            assert!(head > 0);
        }
        if let Ok(call) = self.served.open(header.slot)
            && self.served.begin(call)
        {
            self.unanswered.push(call);
        }
    }

    fn handle_control(&mut self, bytes: &[u8]) {
        match CallControl::parse(bytes) {
            Ok(CallControl::Cancel { index, generation }) => {
                let slot = SlotId { index, generation };
                if self.served.cancel(slot) == Cancelling::Later {
                    assert!(self.unanswered.iter().any(|call| call.slot == slot));
                }
            }
            Ok(CallControl::Cancelled { index, generation }) => {
                self.slots.handle_cancelled(Target::Peer(PEER), SlotId { index, generation });
            }
            Ok(control) => assert_eq!(CallControl::parse(&control.emit()), Ok(control)),
            Err(_) => {}
        }
    }

    /// Handles bytes as an atomic call and as its answer. The call may change only the word that it names.
    fn handle_atomic(&mut self, bytes: &[u8; ATOMIC_CALL_BYTES]) {
        if let Ok(call) = AtomicCall::parse(bytes) {
            assert_eq!(call.emit(), *bytes);
            let old = call.apply(&self.arena);
            assert!(old.is_none() || call.word.offset.is_multiple_of(8) && call.word.offset < ARENA_BYTES);
        }
        if let Ok(answer) = AtomicAnswer::parse(&bytes[..ATOMIC_ANSWER_BYTES]) {
            assert_eq!(answer.emit(), bytes[..ATOMIC_ANSWER_BYTES]);
        }
    }

    fn write(&mut self, len: u64) {
        let len = len.min(self.writer.request_bytes_max());
        if let Ok(place) = self.writer.place(len) {
            assert!(place.offset + len <= RING_BYTES_MIN);
            self.writer.take(place);
        }
    }
}

/// Returns memory for atomics. All programs share it, because its contents do not matter.
fn arena() -> Window {
    static ARENA: OnceLock<Arc<Segment>> = OnceLock::new();
    let create = || Segment::create("halite-fuzz", ARENA_BYTES, PagePolicy::Normal).expect("a page");
    ARENA.get_or_init(create).window(0, ARENA_BYTES).expect("the whole segment")
}

/// Takes the next `len` bytes of the program; `None` if fewer are left.
fn take<'a>(input: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (taken, rest) = input.split_at_checked(len)?;
    *input = rest;
    Some(taken)
}
