//! Numbers of any width in bits within a value, as `BITFIELD` reads and writes them.

use super::layout::VALUE_BYTES_MAX;

/// A number within a value, and what to do with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Field {
    pub(super) action: Action,
    pub(super) is_signed: bool,
    /// Width in bits: 1 to 64, or to 63 if unsigned.
    pub(super) bits: u8,
    pub(super) overflow: Overflow,
    /// Offset of the highest bit, in bits.
    pub(super) offset: u64,
    /// The number to set or to add.
    pub(super) number: i64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Action {
    Get,
    Set,
    Add,
}

/// The treatment of a number that does not fit into its field.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Overflow {
    Wrap,
    Saturate,
    Fail,
}

const FIELD_BYTES: usize = 20;

impl Field {
    pub(super) fn encode(&self, into: &mut Vec<u8>) {
        into.extend([self.action as u8, self.is_signed.into(), self.bits, self.overflow as u8]);
        into.extend(self.offset.to_le_bytes());
        into.extend(self.number.to_le_bytes());
    }

    /// Decodes fields; `None` if one is invalid.
    pub(super) fn decode_all(bytes: &[u8]) -> Option<Vec<Field>> {
        let (fields, []) = bytes.as_chunks::<FIELD_BYTES>() else { return None };
        fields.iter().map(Field::decode).collect()
    }

    fn decode(bytes: &[u8; FIELD_BYTES]) -> Option<Field> {
        let action = [Action::Get, Action::Set, Action::Add].into_iter().nth(bytes[0].into())?;
        let overflow =
            [Overflow::Wrap, Overflow::Saturate, Overflow::Fail].into_iter().nth(bytes[3].into())?;
        let word = |at: usize| bytes[at..at + 8].try_into().expect("8 bytes");
        let (is_signed, bits) = (bytes[1] != 0, bytes[2]);
        let (offset, number) = (u64::from_le_bytes(word(4)), i64::from_le_bytes(word(12)));
        let is_valid = bits >= 1 && bits <= 63 + u8::from(is_signed);
        is_valid.then_some(Field { action, is_signed, bits, overflow, offset, number })
    }

    /// Returns true if the value is changed, and thus has room for the field.
    pub(super) fn writes(&self) -> bool {
        self.action != Action::Get
    }

    /// Returns the length of a value that contains the field; `None` above the maximum.
    pub(super) fn bytes_min(&self) -> Option<usize> {
        let end = self.offset.checked_add(self.bits.into())?.div_ceil(8);
        usize::try_from(end).ok().filter(|end| *end <= VALUE_BYTES_MAX)
    }

    /// Performs the action on a value, which has room if the field is written. Returns the old number, after an
    /// addition the new one; `None` if it does not fit.
    pub(super) fn apply(&self, value: &mut [u8]) -> Option<i64> {
        let old = self.read(value);
        let new = match self.action {
            Action::Get => return Some(old as i64),
            Action::Set if self.is_signed => i128::from(self.number),
            Action::Set => i128::from(self.number as u64),
            Action::Add => old + i128::from(self.number),
        };
        let new = self.fit(new)?;
        self.write(value, new);
        Some(if self.action == Action::Set { old } else { new } as i64)
    }

    fn fit(&self, number: i128) -> Option<i128> {
        let (min, max) = match self.is_signed {
            true => (-(1i128 << (self.bits - 1)), (1i128 << (self.bits - 1)) - 1),
            false => (0, (1i128 << self.bits) - 1),
        };
        match self.overflow {
            _ if (min..=max).contains(&number) => Some(number),
            Overflow::Wrap => Some((number - min).rem_euclid(1i128 << self.bits) + min),
            Overflow::Saturate => Some(number.clamp(min, max)),
            Overflow::Fail => None,
        }
    }

    fn read(&self, value: &[u8]) -> i128 {
        let bit = |index: u64| value.get((index / 8) as usize).map_or(0, |byte| byte >> (7 - index % 8) & 1);
        let all = (0..u64::from(self.bits)).map(|index| self.offset.saturating_add(index));
        let number = all.fold(0i128, |number, index| number << 1 | i128::from(bit(index)));
        let is_negative = self.is_signed && number >> (self.bits - 1) & 1 != 0;
        if is_negative { number - (1i128 << self.bits) } else { number }
    }

    fn write(&self, value: &mut [u8], number: i128) {
        for index in 0..u64::from(self.bits) {
            let (at, bit) = (self.offset + index, number >> (u64::from(self.bits) - 1 - index) & 1);
            let (byte, mask) = (&mut value[(at / 8) as usize], 1 << (7 - at % 8));
            *byte = if bit != 0 { *byte | mask } else { *byte & !mask };
        }
    }
}
