//! Whether packets, as others read them, tell what their sender had to do: messages cut as docs/protocol.md says, without a gap in their
//! numbers, each answered.  Knows nothing of `halite_rnic`.

use std::collections::{BTreeMap, BTreeSet};

use crate::outside::Row;
use crate::roles::Step;

/// Numbers of packets have 24 bits.
const NUMBERS: u64 = 1 << 24;

/// A message, put together from its packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Message {
    kind: Kind,
    /// Where to, or where from; of a send 0.
    address: u64,
    len: u64,
    imm: Option<u64>,
    /// Packets sent before its end, of a read before that of its request.
    end: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Send,
    Write,
    Read,
    FetchAdd { add: u64 },
    CompareSwap { expected: u64, new: u64 },
}

/// Whether these requests, and the answers to them, are those of all steps.
pub fn findings(requests: &[&Row], answers: &[&Row], mtu: u64, steps: &[Step]) -> Vec<String> {
    let mut story = Story { mtu, ..Story::default() };
    requests.iter().for_each(|row| story.request(row));
    answers.iter().for_each(|row| story.answer(row));
    if let Some(open) = story.open {
        story.findings.push(format!("{open:?} has no end"));
    }
    if let Some(place) = story.asked.keys().find(|place| !story.answered.contains(place)) {
        story.findings.push(format!("packet {place} has no answer"));
    }
    story.tell(steps);
    story.findings
}

/// Whether a packet is a request, and neither an answer, nor about the path, nor a question.
pub fn is_request(row: &Row) -> bool {
    matches!(row.get("bth.opcode"), 0..=12 | 19..=31) && !is_question(row)
}

/// Whether it only asks what has come, after silence: it has the number of a packet before, and brings nothing to nowhere (ROCE-TIME-3).
fn is_question(row: &Row) -> bool {
    let is_nothing = ["reth.va", "reth.r_key", "reth.dmalen", "bth.se"].iter().all(|name| row.get(name) == 0);
    row.get("bth.opcode") == 10 && is_nothing && row.get("bth.a") == 1
}

/// Whether it is an answer.
pub fn is_answer(row: &Row) -> bool {
    matches!(row.get("bth.opcode"), 13..=18)
}

impl Row {
    fn get(&self, name: &str) -> u64 {
        self.maybe(name).unwrap_or(0)
    }

    fn maybe(&self, name: &str) -> Option<u64> {
        self.fields.get(format!("infiniband.{name}").as_str()).copied()
    }

    /// What it brings, by its length.
    fn payload(&self) -> u64 {
        self.fields.get("data.len").copied().unwrap_or(0) - self.get("bth.padcnt")
    }
}

#[derive(Default)]
struct Story {
    mtu: u64,
    /// The number of the first packet.
    first: Option<u64>,
    /// Packets sent, and to be sent by the peer as answers.
    count: u64,
    /// By the count of packets before it: opcode, payload, address and length.
    seen: BTreeMap<u64, [u64; 4]>,
    /// A message that has begun, and how much of it has come.
    open: Option<(Message, u64)>,
    messages: Vec<Message>,
    /// What may come as an answer, by the count of packets before: opcodes, and a payload.
    asked: BTreeMap<u64, (BTreeSet<u64>, u64)>,
    /// Which of these have come.
    answered: BTreeSet<u64>,
    findings: Vec<String>,
}

impl Story {
    fn find(&mut self, what: String) {
        self.findings.push(what);
    }

    /// How many packets come before this one.
    fn place(&self, row: &Row) -> u64 {
        (row.get("bth.psn") + NUMBERS - self.first.unwrap_or(0)) % NUMBERS
    }

    fn request(&mut self, row: &Row) {
        self.first.get_or_insert(row.get("bth.psn"));
        let (place, opcode) = (self.place(row), row.get("bth.opcode"));
        self.ask(row, opcode, place);
        let what = [opcode, row.payload(), row.get("reth.va"), row.get("reth.dmalen")];
        if place < self.count {
            // Sent again: as it was, but for the rest of a read.
            if opcode != 12 && self.seen.get(&place) != Some(&what) {
                self.find(format!("packet {place} is sent again as another one: {row:?}"));
            }
            return;
        }
        if place > self.count {
            self.find(format!("packets {} to {place} are missing", self.count));
        }
        self.seen.insert(place, what);
        self.count = place + if opcode == 12 { self.packets(row.get("reth.dmalen")) } else { 1 };
        self.add(row, opcode, place);
    }

    fn packets(&self, len: u64) -> u64 {
        len.div_ceil(self.mtu).max(1)
    }

    /// A request, be it repeated, is answered by packets that depend on how much it asks for.
    fn ask(&mut self, row: &Row, opcode: u64, place: u64) {
        let len = row.get("reth.dmalen");
        let count = if opcode == 12 { self.packets(len) } else { 1 };
        for index in 0..count {
            let (opcode, len) = match opcode {
                12 if count == 1 => (16, len),
                12 if index == 0 => (13, self.mtu),
                12 if index + 1 == count => (15, len - index * self.mtu),
                12 => (14, self.mtu),
                19 | 20 => (18, 0),
                _ => return,
            };
            let asked = self.asked.entry(place + index).or_insert((BTreeSet::new(), len));
            asked.0.insert(opcode);
            if asked.1 != len {
                self.findings.push(format!("the rest of a read has another length: {row:?}"));
            }
        }
    }

    /// A packet that is new.
    fn add(&mut self, row: &Row, opcode: u64, place: u64) {
        let (len, imm, address) = (row.payload(), row.maybe("immdt"), row.get("reth.va"));
        let whole = |kind, len| Message { kind, address, len, imm, end: place + 1 };
        let of = |base: u64| if base == 0 { Kind::Send } else { Kind::Write };
        match opcode {
            12 | 19 | 20 if self.open.is_some() => self.find(format!("in the middle of a message: {row:?}")),
            0 | 6 => {
                if self.open.is_some() || len != self.mtu || address % 8 != 0 {
                    self.find(format!("no packet for a message to begin with: {row:?}"));
                }
                let declared = row.maybe("reth.dmalen").unwrap_or(0);
                self.open = Some((whole(of(opcode), declared), len));
            }
            1 | 7 | 2 | 3 | 8 | 9 => {
                let (kind, is_last) = (of(opcode / 6), !matches!(opcode, 1 | 7));
                let Some((open, before)) = self.open.take().filter(|(open, _)| open.kind == kind) else {
                    return self.find(format!("it belongs to no message: {row:?}"));
                };
                let sum = before + len;
                if if is_last { len == 0 || len > self.mtu } else { len != self.mtu } {
                    self.find(format!("a payload of {len} in {row:?}"));
                }
                if !is_last {
                    self.open = Some((open, sum));
                    return;
                }
                if kind == Kind::Write && open.len != sum {
                    self.find(format!("{sum} bytes of {}: {row:?}", open.len));
                }
                self.messages.push(Message { len: sum, imm, end: place + 1, ..open });
            }
            4 | 5 | 10 | 11 => {
                if self.open.is_some()
                    || len > self.mtu
                    || row.maybe("reth.dmalen").is_some_and(|said| said != len)
                {
                    self.find(format!("no message of one packet: {row:?}"));
                }
                self.messages.push(whole(of(opcode / 10), len));
            }
            12 => self.messages.push(whole(Kind::Read, row.get("reth.dmalen"))),
            19 => {
                let (expected, new) = (row.get("atomiceth.cmpdt"), row.get("atomiceth.swapdt"));
                self.messages.push(whole(Kind::CompareSwap { expected, new }, 8));
            }
            20 => self.messages.push(whole(Kind::FetchAdd { add: row.get("atomiceth.swapdt") }, 8)),
            _ => self.find(format!("no request: {row:?}")),
        }
    }

    /// A packet of the peer's.
    fn answer(&mut self, row: &Row) {
        let (place, opcode) = (self.place(row), row.get("bth.opcode"));
        if opcode == 17 && place == NUMBERS - 1 {
            // It was asked before anything had come.
            return;
        }
        if place > self.count {
            return self.find(format!("it answers what was not asked: {row:?}"));
        }
        let is_refused = row.maybe("aeth.syndrome").is_some_and(|syndrome| syndrome >= 32);
        // Else it tells how long what is answered has waited.
        if let Some(msn) = row.maybe("aeth.msn").filter(|_| is_refused) {
            let until = place + u64::from(!is_refused);
            let done = self.messages.iter().filter(|message| message.end <= until).count() as u64;
            // What is behind a read may be done before that is answered.
            let most = if opcode == 17 { done } else { self.messages.len() as u64 };
            if !(done..=most).contains(&msn) {
                self.find(format!("{msn} messages are said to be done, of {done}: {row:?}"));
            }
        }
        if opcode == 17 {
            return;
        }
        self.answered.insert(place);
        let is_asked =
            |(opcodes, len): &(BTreeSet<u64>, u64)| opcodes.contains(&opcode) && *len == row.payload();
        if !self.asked.get(&place).is_some_and(is_asked) {
            self.find(format!("no answer to what was asked: {row:?}"));
        }
    }

    /// The messages are those of the steps, of which long ones and those that begin off a word take several.
    fn tell(&mut self, steps: &[Step]) {
        let mut messages = std::mem::take(&mut self.messages).into_iter().peekable();
        for step in steps {
            let meant = meant_by(step);
            let Some(mut whole) = messages.next() else {
                return self.find(format!("{meant:?} was never asked for"));
            };
            while let Some(next) = messages.next_if(|next| {
                whole.imm.is_none()
                    && whole.len < meant.len
                    && next.kind == whole.kind
                    && next.address == whole.address + whole.len
            }) {
                (whole.len, whole.imm) = (whole.len + next.len, next.imm);
            }
            whole.end = 0;
            if whole != meant {
                self.find(format!("{whole:?} was asked for, not {meant:?}"));
            }
        }
        if let Some(more) = messages.next() {
            self.find(format!("nobody had to ask for {more:?}"));
        }
    }
}

fn meant_by(step: &Step) -> Message {
    let (kind, address, len, imm) = match *step {
        Step::Write { at, len } => (Kind::Write, at, len, None),
        Step::WriteImm { at, len, imm } => (Kind::Write, at, len, Some(imm)),
        Step::Read { at, len } => (Kind::Read, at, len, None),
        Step::Send { len, imm } => (Kind::Send, 0, len, Some(imm)),
        Step::FetchAdd { at, add } => (Kind::FetchAdd { add }, at, 8, None),
        Step::CompareSwap { at, expected, new } => (Kind::CompareSwap { expected, new }, at, 8, None),
    };
    Message { kind, address, len, imm: imm.map(u64::from), end: 0 }
}
