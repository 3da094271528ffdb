//! What each word of a region may hold.
//!
//! A word is a register that many write at once.  A value that was written may be read as long as no other write both
//! began after it had ended and ended before the read began; what was given up, or failed half way, never ends, and
//! may be read from its beginning on.

/// When something that was begun has not ended.
pub(crate) const NEVER: u64 = u64::MAX;

/// The words of one region, of which most are never written.
#[derive(Debug)]
pub(crate) struct Words {
    len: usize,
    /// Pages of them, by the number of the page; those that nobody wrote to are empty.
    pages: Vec<Vec<Word>>,
}

/// Words of a page.
const PAGE: usize = 64;

/// Something that was written to a word, or may have been.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Candidate {
    begin_ns: u64,
    end_ns: u64,
    value: u64,
}

/// All that one word may hold.  A fresh one is zero, which takes no memory to know.
#[derive(Debug)]
pub(crate) struct Word {
    candidates: Vec<Candidate>,
    /// Values that nobody can see any more, unless who was taken for dead looks where the region was.
    past: Vec<u64>,
    /// A copy whose source was being copied to itself has ended here.
    anything: bool,
}

static FRESH: Word = Word { candidates: Vec::new(), past: Vec::new(), anything: false };

impl Words {
    pub(crate) fn fresh(len: usize) -> Words {
        let mut pages = Vec::new();
        pages.resize_with(len.div_ceil(PAGE), Vec::new);
        Words { len, pages }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn get(&self, index: usize) -> &Word {
        assert!(index < self.len, "word {index} of {}", self.len);
        self.pages[index / PAGE].get(index % PAGE).unwrap_or(&FRESH)
    }

    pub(crate) fn get_mut(&mut self, index: usize) -> &mut Word {
        assert!(index < self.len, "word {index} of {}", self.len);
        let page = &mut self.pages[index / PAGE];
        if page.is_empty() {
            page.resize_with(PAGE, Word::fresh);
        }
        &mut page[index % PAGE]
    }
}

impl Candidate {
    fn is_open(&self, begin_ns: u64, value: u64) -> bool {
        self.end_ns == NEVER && self.begin_ns == begin_ns && self.value == value
    }
}

/// More candidates than that are looked through for those that nobody can see any more.
const CANDIDATES_KEPT: usize = 6;

impl Word {
    fn fresh() -> Word {
        Word { candidates: Vec::new(), past: Vec::new(), anything: false }
    }

    /// Somebody begins to write `value`, and has not ended.
    pub(crate) fn begin(&mut self, now_ns: u64, value: u64) {
        self.candidates.push(Candidate { begin_ns: now_ns, end_ns: NEVER, value });
    }

    /// The write of `value` that began at `begin_ns` has ended.  Forgets what none can see who began to read at
    /// `oldest_read_ns` or later.
    pub(crate) fn end(&mut self, begin_ns: u64, now_ns: u64, value: u64, oldest_read_ns: u64) {
        if let Some(candidate) = self.candidates.iter_mut().find(|each| each.is_open(begin_ns, value)) {
            candidate.end_ns = now_ns;
        }
        if self.candidates.len() > CANDIDATES_KEPT {
            self.forget(oldest_read_ns);
        }
    }

    /// The write of `value` that began at `begin_ns` did nothing.
    pub(crate) fn undo(&mut self, begin_ns: u64, value: u64) {
        if let Some(index) = self.candidates.iter().position(|each| each.is_open(begin_ns, value)) {
            self.candidates.swap_remove(index);
        }
    }

    /// What was written when, for people.
    pub(crate) fn history(&self) -> String {
        let written = self.candidates.iter().map(|each| match each.end_ns {
            NEVER => format!("{:#x} from {} ns on", each.value, each.begin_ns),
            end_ns => format!("{:#x} from {} to {end_ns} ns", each.value, each.begin_ns),
        });
        let written: Vec<String> = written.collect();
        if written.is_empty() { "0, as in the beginning".to_owned() } else { written.join(", ") }
    }

    pub(crate) fn may_be_anything(&mut self) {
        self.anything = true;
    }

    pub(crate) fn is_anything(&self) -> bool {
        self.anything
    }

    /// Whether `value` may be read by who began at `begin_ns` and ends now.
    pub(crate) fn may_be(&self, value: u64, begin_ns: u64) -> bool {
        let last_begin = self.last_begin_before(begin_ns);
        let written = self.candidates.iter().any(|each| each.value == value && each.end_ns >= last_begin);
        written || (value == 0 && last_begin == 0)
    }

    /// Whether it may have held `value` at any time.
    pub(crate) fn was_ever(&self, value: u64) -> bool {
        value == 0 || self.past.contains(&value) || self.candidates.iter().any(|each| each.value == value)
    }

    /// All values that may be read by who began at `begin_ns` and ends now.
    pub(crate) fn values(&self, begin_ns: u64) -> impl Iterator<Item = u64> {
        let last_begin = self.last_begin_before(begin_ns);
        let written = self.candidates.iter().filter(move |each| each.end_ns >= last_begin);
        written.map(|each| each.value).chain((last_begin == 0).then_some(0))
    }

    /// When the last of the writes began that had ended before `begin_ns`: what had ended by then is overwritten.
    fn last_begin_before(&self, begin_ns: u64) -> u64 {
        let ended = self.candidates.iter().filter(|each| each.end_ns < begin_ns);
        ended.map(|each| each.begin_ns).max().unwrap_or(0)
    }

    fn forget(&mut self, oldest_read_ns: u64) {
        let last_begin = self.last_begin_before(oldest_read_ns);
        let past = self.candidates.extract_if(.., |each| each.end_ns < last_begin).map(|each| each.value);
        self.past.extend(past);
    }
}
