//! Parts of values: ranges of bytes, and bits.

use super::super::decimal::parse_integer;
use super::super::fields::{Action, Field, Overflow};
use super::commands::{NOT_AN_INTEGER, SYNTAX, is};
use super::reply::Reply;
use super::request::Args;

/// A range of bytes or bits that includes both ends. Negative positions count from the end of the value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Span {
    pub(super) first: i64,
    pub(super) last: i64,
    pub(super) is_of_bits: bool,
}

impl Span {
    /// The whole value.
    pub(super) const ALL: Span = Span { first: 0, last: -1, is_of_bits: false };

    /// Parses a range from the arguments that start at `index`. If `has_unit`, a unit may follow.
    pub(super) fn parse(args: Args<'_>, index: usize, has_unit: bool) -> Result<Span, Reply<'static>> {
        let number = |index: usize| {
            let number = args.get(index).map(parse_integer).unwrap_or(Some(-1));
            number.ok_or_else(|| Reply::error(NOT_AN_INTEGER))
        };
        let (first, last) = (number(index)?, number(index + 1)?);
        let is_of_bits = match args.get(index + 2) {
            None => false,
            Some(unit) if has_unit && is(unit, "bit") => true,
            Some(unit) if has_unit && is(unit, "byte") => false,
            Some(_) => return Err(Reply::error(SYNTAX)),
        };
        if args.len() > index + 3 {
            return Err(Reply::error(SYNTAX));
        }
        Ok(Span { first, last, is_of_bits })
    }

    /// Returns the positions of the range in a value of `len` bytes or bits.
    fn positions_in(self, len: usize) -> std::ops::Range<usize> {
        let len = len as i64;
        let at = |end: i64| if end < 0 { end.saturating_add(len) } else { end };
        let is_reversed = self.first < 0 && self.last < 0 && self.first > self.last;
        let (first, last) = (at(self.first).max(0), at(self.last).max(0).min(len - 1));
        if is_reversed || first > last { 0..0 } else { first as usize..last as usize + 1 }
    }

    /// Returns these bytes of a value.
    pub(super) fn bytes_of(self, value: &[u8]) -> &[u8] {
        &value[self.positions_in(value.len())]
    }

    fn bits_of(self, value: &[u8]) -> std::ops::Range<usize> {
        match self.is_of_bits {
            true => self.positions_in(8 * value.len()),
            false => {
                let bytes = self.positions_in(value.len());
                8 * bytes.start..8 * bytes.end
            }
        }
    }

    /// Returns the number of bits that are set.
    pub(super) fn count(self, value: &[u8]) -> i64 {
        let bits = self.bits_of(value);
        let (first, last) = (bits.start.div_ceil(8), bits.end / 8);
        if first > last {
            return bits.filter(|at| bit_at(value, *at as u64)).count() as i64;
        }
        let edges = (bits.start..8 * first).chain(8 * last..bits.end);
        let whole: u32 = value[first..last].iter().map(|byte| byte.count_ones()).sum();
        i64::from(whole) + edges.filter(|at| bit_at(value, *at as u64)).count() as i64
    }

    /// Returns the position of the first bit with this value; -1 if there is none. If the client did not name the end
    /// of the range, zeros follow the value.
    pub(super) fn find(self, value: &[u8], bit: bool, has_end: bool) -> i64 {
        let mut bits = self.bits_of(value);
        if bits.is_empty() {
            return -1;
        }
        let end = bits.end;
        match bits.find(|at| bit_at(value, *at as u64) == bit) {
            Some(at) => at as i64,
            None if !bit && !has_end => end as i64,
            None => -1,
        }
    }
}

/// Returns a bit of a value; false beyond its end.
pub(super) fn bit_at(value: &[u8], at: u64) -> bool {
    let byte = usize::try_from(at / 8).ok().and_then(|byte| value.get(byte));
    byte.is_some_and(|byte| byte >> (7 - at % 8) & 1 != 0)
}

/// Maximum offset of a bit, as in Redis.
const BIT_MAX: i64 = (1 << 32) - 1;

/// Parses the offset of a bit.
pub(super) fn parse_bit_offset(text: &[u8]) -> Result<u64, Reply<'static>> {
    let offset = parse_integer(text).filter(|offset| (0..=BIT_MAX).contains(offset));
    offset
        .map(|offset| offset as u64)
        .ok_or_else(|| Reply::error("ERR bit offset is not an integer or out of range"))
}

/// Parses the fields of `BITFIELD`; returns them encoded.
pub(super) fn parse_fields(args: Args<'_>, is_read_only: bool) -> Result<Vec<u8>, Reply<'static>> {
    let mut rest = args.iter().skip(2);
    let (mut overflow, mut encoded) = (Overflow::Wrap, Vec::new());
    while let Some(word) = rest.next() {
        let mut next = || rest.next().ok_or_else(|| Reply::error(SYNTAX));
        if is(word, "overflow") {
            let kinds = [("wrap", Overflow::Wrap), ("sat", Overflow::Saturate), ("fail", Overflow::Fail)];
            let kind = next()?;
            let found = kinds.into_iter().find(|(name, _)| is(kind, name));
            overflow = found.ok_or_else(|| Reply::error("ERR Invalid OVERFLOW type specified"))?.1;
            continue;
        }
        let actions = [("get", Action::Get), ("set", Action::Set), ("incrby", Action::Add)];
        let found = actions.into_iter().find(|(name, _)| is(word, name));
        let action = found.ok_or_else(|| Reply::error(SYNTAX))?.1;
        let (kind, at) = (next()?, next()?);
        let (is_signed, bits) = parse_field_type(kind).ok_or_else(|| {
            Reply::error(
                "ERR Invalid bitfield type. Use something like i16 u8. Note that u64 is not supported but i64 is.",
            )
        })?;
        let offset = match at.strip_prefix(b"#") {
            Some(index) => parse_bit_offset(index)? * u64::from(bits),
            None => parse_bit_offset(at)?,
        };
        let number = match action {
            Action::Get => 0,
            _ => parse_integer(next()?).ok_or_else(|| Reply::error(NOT_AN_INTEGER))?,
        };
        if is_read_only && action != Action::Get {
            return Err(Reply::error("ERR BITFIELD_RO only supports the GET subcommand"));
        }
        Field { action, is_signed, bits, overflow, offset, number }.encode(&mut encoded);
    }
    Ok(encoded)
}

/// Parses the type of a field, as `i16` or `u8`.
fn parse_field_type(text: &[u8]) -> Option<(bool, u8)> {
    let (&sign, digits) = text.split_first()?;
    let is_signed = match sign {
        b'i' => true,
        b'u' => false,
        _ => return None,
    };
    let bits = u8::try_from(parse_integer(digits)?).ok()?;
    (bits >= 1 && bits <= 63 + u8::from(is_signed)).then_some((is_signed, bits))
}
