//! Parses and formats numbers of bytes for users.
//!
//! Suffixes are binary: `K` is 1024, as in perftest.

use std::fmt;
use std::str::FromStr;

/// A number of bytes, read from `4096`, `64K`, `8G` or `1.5MiB`, printed as `8.0 GiB`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ByteCount(pub u64);

/// The reason why a text is not a number of bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ByteCountError {
    /// The text is not a number, or has an unknown suffix.
    #[error("expected a number of bytes such as 4096, 64K, 8G or 1.5MiB")]
    Malformed,
    /// The number exceeds 64 bits.
    #[error("the number of bytes exceeds 64 bits")]
    TooLarge,
}

const SUFFIXES: [char; 5] = ['K', 'M', 'G', 'T', 'P'];

impl FromStr for ByteCount {
    type Err = ByteCountError;

    fn from_str(text: &str) -> Result<ByteCount, ByteCountError> {
        let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, suffix) = text.split_at(digits);
        let unit = unit(suffix).ok_or(ByteCountError::Malformed)?;
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let whole: u128 = match whole.parse() {
            Ok(whole) => whole,
            Err(_) if !whole.is_empty() && whole.bytes().all(|byte| byte.is_ascii_digit()) => {
                return Err(ByteCountError::TooLarge);
            }
            Err(_) => return Err(ByteCountError::Malformed),
        };
        let part = if number.contains('.') { fraction_bytes(fraction, unit)? } else { 0 };
        let bytes = whole.checked_mul(unit).and_then(|bytes| bytes.checked_add(part));
        let bytes = bytes.and_then(|bytes| u64::try_from(bytes).ok());
        bytes.map(ByteCount).ok_or(ByteCountError::TooLarge)
    }
}

/// Returns the bytes that `suffix` stands for; `None` if it is unknown. `K`, `KB` and `KiB` are equal, in either case.
fn unit(suffix: &str) -> Option<u128> {
    let upper = suffix.to_ascii_uppercase();
    let rest = upper.strip_suffix("IB").or(upper.strip_suffix('B')).unwrap_or(&upper);
    let mut letters = rest.chars();
    match (letters.next(), letters.next()) {
        (None, _) if upper == "IB" => None,
        (None, _) => Some(1),
        (Some(letter), None) => {
            let power = SUFFIXES.iter().position(|suffix| *suffix == letter)?;
            Some(1 << (10 * (power + 1)))
        }
        _ => None,
    }
}

/// Returns the bytes of a decimal fraction of `unit`, rounded down.
fn fraction_bytes(digits: &str, unit: u128) -> Result<u128, ByteCountError> {
    // Twelve digits are precise enough, and the product stays below 128 bits.
    if digits.is_empty() || digits.len() > 12 || unit == 1 {
        return Err(ByteCountError::Malformed);
    }
    let value: u128 = digits.parse().map_err(|_| ByteCountError::Malformed)?;
    Ok(value * unit / 10u128.pow(digits.len() as u32))
}

impl fmt::Display for ByteCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let power = SUFFIXES.len().min(self.0.checked_ilog2().unwrap_or(0) as usize / 10);
        let Some(suffix) = power.checked_sub(1).map(|index| SUFFIXES[index]) else {
            return write!(f, "{} B", self.0);
        };
        let unit = 1 << (10 * power);
        let (whole, rest) = (self.0 / unit, self.0 % unit);
        let tenths = whole * 10 + (rest * 10 + unit / 2) / unit;
        write!(f, "{}.{} {suffix}iB", tenths / 10, tenths % 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Result<u64, ByteCountError>) {
        assert_eq!(text.parse().map(|ByteCount(bytes)| bytes), expected, "{text:?}");
    }

    #[test]
    fn sizes_have_optional_suffixes() {
        check("0", Ok(0));
        check("4096", Ok(4096));
        check("8B", Ok(8));
        check("64k", Ok(64 << 10));
        check("64M", Ok(64 << 20));
        check("8G", Ok(8 << 30));
        check("8GiB", Ok(8 << 30));
        check("2gb", Ok(2 << 30));
        check("1.5M", Ok(3 << 19));
        check("18446744073709551615", Ok(u64::MAX));
    }

    #[test]
    fn malformed_sizes_are_refused() {
        for text in ["", "G", "-1", "1 G", "8X", "8iB", "1.5", "1.M", ".5G", "1.2.3M", "8GiBs", "1e3"] {
            check(text, Err(ByteCountError::Malformed));
        }
        for text in ["18446744073709551616", "16777216T", "999999999999999999999999999999999999999999"] {
            check(text, Err(ByteCountError::TooLarge));
        }
    }
}
