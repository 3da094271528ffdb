//! Lines: found whole by who looks, or told of.

use halite_mem::Window;

use super::node::{Pair, quiet};
use super::{Harness, leave_out};
use crate::{LINE_BYTES, LINE_WORDS, Lines, Local, Operation};

const ROW: u64 = 64 << 10;
const COUNT: u32 = 64;

/// The lines at the other end, unless stores do not reach it.
fn lines(pair: &Pair<'_>) -> Option<Box<dyn Lines>> {
    let lines = pair.one.fabric.lines(pair.to_two, pair.at(ROW), COUNT);
    if lines.is_none() {
        leave_out("stores do not reach the lines of this peer: they are posted");
    }
    lines
}

fn line_at(window: &Window, index: u32) -> [u64; LINE_WORDS] {
    window.load_words(ROW + u64::from(index) * LINE_BYTES as u64).expect("it is inside")
}

/// Each is in its place, and leaves what it does not fill as it was.
pub fn a_line_that_is_put_is_found_whole(harness: &dyn Harness) {
    let pair = Pair::new(harness);
    let Some(lines) = lines(&pair) else { return };
    for index in 0..COUNT {
        lines.put(index, &[u64::from(index) + 1; LINE_WORDS]);
        lines.put(index, &[77, 78]);
    }
    for index in 0..COUNT {
        let mut expected = [u64::from(index) + 1; LINE_WORDS];
        (expected[0], expected[1]) = (77, 78);
        assert_eq!(line_at(&pair.target.1, index), expected);
    }
}

/// What the peer writes to the end of a line is seen.
pub fn the_last_word_of_a_line_is_the_peers(harness: &dyn Harness) {
    let pair = Pair::new(harness);
    let Some(lines) = lines(&pair) else { return };
    assert_eq!(lines.last_word(3), 0);
    let at = ROW + 3 * LINE_BYTES as u64 + LINE_BYTES as u64 - 8;
    pair.target.1.store_u64(at, 5).expect("it is inside");
    assert_eq!((lines.last_word(3), lines.last_word(4)), (5, 0));
}

/// Who sleeps is woken by a ring, and finds what was put before it.
pub fn a_ring_wakes_who_looks_for_lines(harness: &dyn Harness) {
    let mut pair = Pair::new(harness);
    let Some(lines) = lines(&pair) else { return };
    let Pair { two, target: (_, window), .. } = &mut pair;
    let seen = two.fabric.doorbell();
    lines.ring();
    assert_eq!(two.fabric.doorbell(), seen, "nobody is to be woken");
    two.fabric.arm(Some(crate::Sleeper::Progress));
    lines.put(0, &[9]);
    lines.ring();
    two.until(|_| (line_at(window, 0)[0] == 9).then_some(()));
    assert_ne!(two.fabric.doorbell(), seen);
}

/// There are none beyond the memory that the peer has registered, nor in that of strangers.
pub fn there_are_no_lines_where_nothing_is_registered(harness: &dyn Harness) {
    let pair = Pair::new(harness);
    if lines(&pair).is_none() {
        return;
    }
    let beyond = pair.at(super::node::SEGMENT_BYTES - LINE_BYTES as u64);
    assert!(pair.one.fabric.lines(pair.to_two, beyond, 1).is_some());
    assert!(pair.one.fabric.lines(pair.to_two, beyond, 2).is_none());
    let stranger = crate::PeerId(pair.to_two.0 + 1000);
    assert!(pair.one.fabric.lines(stranger, pair.at(ROW), 1).is_none());
}

/// Where stores do not reach, a line is a write with immediate, of which the peer is told when all of it is there.
pub fn a_line_that_is_posted_is_told_of_when_it_is_whole(harness: &dyn Harness) {
    let mut pair = Pair::new(harness);
    for imm in 0..100 {
        let bytes = [imm as u8 + 1; LINE_BYTES];
        let operation = Operation::WriteImm { local: Local::Inline(&bytes), remote: pair.at(ROW), imm };
        pair.one.try_post(pair.to_two, &[quiet(0, operation)]).expect("it can be posted");
        match pair.two.completion().kind {
            crate::CompletionKind::Notified { imm: told } => assert_eq!(told, imm),
            kind => panic!("expected an immediate, got {kind:?}"),
        }
        assert_eq!(line_at(&pair.target.1, 0), [u64::from_ne_bytes([imm as u8 + 1; 8]); LINE_WORDS]);
    }
}
