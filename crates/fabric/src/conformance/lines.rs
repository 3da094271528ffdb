//! Cases about lines: 64-byte messages that the reader finds by polling its memory.

use halite_mem::Window;

use super::node::Pair;
use super::{Harness, skip};
use crate::{LINE_BYTES, LINE_WORDS, Lines};

const ROW: u64 = 64 << 10;
const COUNT: u32 = 64;

/// Returns lines in the memory of the other end; `None` if stores do not reach this memory.
fn lines(pair: &Pair<'_>) -> Option<Box<dyn Lines>> {
    let lines = pair.one.fabric.lines(pair.to_two, pair.at(ROW), COUNT);
    if lines.is_none() {
        skip("stores do not reach this peer's lines, which are posted instead");
    }
    lines
}

fn line_at(window: &Window, index: u32) -> [u64; LINE_WORDS] {
    window.load_words(ROW + u64::from(index) * LINE_BYTES as u64).expect("the range lies within the segment")
}

/// Expects that each line arrives complete at its index, and that the words of the line that were not written are
/// unchanged.
pub fn a_line_arrives_whole(harness: &dyn Harness) {
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
        assert_eq!(lines.last_word(index), u64::from(index) + 1);
    }
}

/// Expects that a ring of the doorbell wakes a sleeper, and that the sleeper then finds the line written before the
/// ring.
pub fn a_ring_wakes_a_sleeper_that_polls_lines(harness: &dyn Harness) {
    let mut pair = Pair::new(harness);
    let Some(lines) = lines(&pair) else { return };
    let Pair { two, target: (_, window), .. } = &mut pair;
    let seen = two.fabric.doorbell();
    lines.ring();
    assert_eq!(two.fabric.doorbell(), seen, "a ring reached a sleeper that was not armed");
    two.fabric.arm(Some(crate::Sleeper::Progress));
    lines.put(0, &[9]);
    lines.ring();
    two.until(|_| (line_at(window, 0)[0] == 9).then_some(()));
    assert_ne!(two.fabric.doorbell(), seen);
}
