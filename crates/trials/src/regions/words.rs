//! The possible values of each word of a region.
//!
//! A word is a register with concurrent writers. A read may return the value of a write W, unless another write began
//! after W had ended, and ended before the read began. A cancelled or partly failed write never ends, so its value may
//! be read at any time after its start.

/// End of an operation that has not ended.
pub(crate) const NEVER: u64 = u64::MAX;

/// The words of one region, most of which are never written.
#[derive(Debug)]
pub(crate) struct Words {
    len: usize,
    /// Pages of words. A page without written words is empty.
    pages: Vec<Vec<Word>>,
}

/// Number of words of a page.
const PAGE_WORDS: usize = 64;

/// A write, executed or possibly executed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Candidate {
    begin_ns: u64,
    end_ns: u64,
    value: u64,
}

/// The possible values of one word. A fresh word is zero, and takes no memory.
#[derive(Debug)]
pub(crate) struct Word {
    candidates: Vec<Candidate>,
    /// Overwritten values, which only a node that was declared dead can still read.
    overwritten: Vec<u64>,
    /// True after a copy whose source was itself the target of a copy, so that any value is possible.
    is_unknown: bool,
}

static FRESH: Word = Word { candidates: Vec::new(), overwritten: Vec::new(), is_unknown: false };

impl Words {
    pub(crate) fn fresh(len: usize) -> Words {
        let mut pages = Vec::new();
        pages.resize_with(len.div_ceil(PAGE_WORDS), Vec::new);
        Words { len, pages }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn get(&self, index: usize) -> &Word {
        assert!(index < self.len, "word {index} of {}", self.len);
        self.pages[index / PAGE_WORDS].get(index % PAGE_WORDS).unwrap_or(&FRESH)
    }

    pub(crate) fn get_mut(&mut self, index: usize) -> &mut Word {
        assert!(index < self.len, "word {index} of {}", self.len);
        let page = &mut self.pages[index / PAGE_WORDS];
        if page.is_empty() {
            page.resize_with(PAGE_WORDS, Word::fresh);
        }
        &mut page[index % PAGE_WORDS]
    }
}

impl Candidate {
    fn is_open(&self, begin_ns: u64, value: u64) -> bool {
        self.end_ns == NEVER && self.begin_ns == begin_ns && self.value == value
    }
}

/// Number of candidates of a word above which overwritten candidates are removed.
const CANDIDATES_KEPT: usize = 6;

impl Word {
    fn fresh() -> Word {
        Word { candidates: Vec::new(), overwritten: Vec::new(), is_unknown: false }
    }

    /// Records the start of a write of `value`.
    pub(crate) fn begin_write(&mut self, now_ns: u64, value: u64) {
        self.candidates.push(Candidate { begin_ns: now_ns, end_ns: NEVER, value });
    }

    /// Records the end of the write of `value` that began at `begin_ns`. Forgets values that no read in progress can
    /// return; the oldest one began at `oldest_read_ns`.
    pub(crate) fn end_write(&mut self, begin_ns: u64, now_ns: u64, value: u64, oldest_read_ns: u64) {
        if let Some(candidate) = self.candidates.iter_mut().find(|each| each.is_open(begin_ns, value)) {
            candidate.end_ns = now_ns;
        }
        if self.candidates.len() > CANDIDATES_KEPT {
            self.forget_overwritten(oldest_read_ns);
        }
    }

    /// Records that the write of `value` that began at `begin_ns` had no effect.
    pub(crate) fn undo_write(&mut self, begin_ns: u64, value: u64) {
        if let Some(index) = self.candidates.iter().position(|each| each.is_open(begin_ns, value)) {
            self.candidates.swap_remove(index);
        }
    }

    /// Returns the writes and their times, for error messages.
    pub(crate) fn history(&self) -> String {
        let written = self.candidates.iter().map(|each| match each.end_ns {
            NEVER => format!("{:#x} from {} ns on", each.value, each.begin_ns),
            end_ns => format!("{:#x} from {} to {end_ns} ns", each.value, each.begin_ns),
        });
        let written: Vec<String> = written.collect();
        if written.is_empty() { "0, the first value".to_owned() } else { written.join(", ") }
    }

    pub(crate) fn set_unknown(&mut self) {
        self.is_unknown = true;
    }

    pub(crate) fn is_unknown(&self) -> bool {
        self.is_unknown
    }

    /// Returns true if a read that began at `begin_ns` and ends now may return `value`.
    pub(crate) fn may_hold(&self, value: u64, begin_ns: u64) -> bool {
        let last_begin = self.last_begin_before(begin_ns);
        let written = self.candidates.iter().any(|each| each.value == value && each.end_ns >= last_begin);
        written || (value == 0 && last_begin == 0)
    }

    /// Returns true if the word may ever have held `value`.
    pub(crate) fn may_have_held(&self, value: u64) -> bool {
        value == 0
            || self.overwritten.contains(&value)
            || self.candidates.iter().any(|each| each.value == value)
    }

    /// Returns the values that a read that began at `begin_ns` and ends now may return.
    pub(crate) fn possible_values(&self, begin_ns: u64) -> impl Iterator<Item = u64> {
        let last_begin = self.last_begin_before(begin_ns);
        let written = self.candidates.iter().filter(move |each| each.end_ns >= last_begin);
        written.map(|each| each.value).chain((last_begin == 0).then_some(0))
    }

    /// Returns the latest start of a write that ended before `begin_ns`: earlier values are overwritten.
    fn last_begin_before(&self, begin_ns: u64) -> u64 {
        let ended = self.candidates.iter().filter(|each| each.end_ns < begin_ns);
        ended.map(|each| each.begin_ns).max().unwrap_or(0)
    }

    fn forget_overwritten(&mut self, oldest_read_ns: u64) {
        let last_begin = self.last_begin_before(oldest_read_ns);
        let overwritten =
            self.candidates.extract_if(.., |each| each.end_ns < last_begin).map(|each| each.value);
        self.overwritten.extend(overwritten);
    }
}
