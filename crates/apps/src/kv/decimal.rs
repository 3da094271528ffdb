//! Decimal numbers: integers, and sums of numbers with a fraction.
//!
//! Redis adds in the 80-bit format of x86 and prints 17 digits after the point. Sums of numbers in fixed point have the
//! same digits, but for the rounding of that format; numbers that are too large for that are added as `f64`.

/// Digits after the point.
const DIGITS: i32 = 17;
const ONE: i128 = 10i128.pow(DIGITS as u32);
/// Maximum absolute value in fixed point, so that sums fit.
const MAX: i128 = i128::MAX / 2;

/// The reason why a sum does not exist.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NoSum {
    /// One text is no number.
    NotANumber,
    /// The sum is infinite.
    Infinite,
}

/// Adds two numbers in decimal, perhaps with an exponent; returns the sum without one.
pub(super) fn sum(one: &[u8], other: &[u8]) -> Result<String, NoSum> {
    let numbers = [parse(one)?, parse(other)?];
    if let [(_, Some(one)), (_, Some(other))] = numbers {
        return Ok(print(one + other));
    }
    let sum = numbers[0].0 + numbers[1].0;
    if sum.is_finite() { Ok(sum.to_string()) } else { Err(NoSum::Infinite) }
}

/// Returns a number, also in fixed point if it is not too large.
fn parse(text: &[u8]) -> Result<(f64, Option<i128>), NoSum> {
    let text = std::str::from_utf8(text).map_err(|_| NoSum::NotANumber)?;
    let number: f64 = text.parse().map_err(|_| NoSum::NotANumber)?;
    if number.is_nan() {
        return Err(NoSum::NotANumber);
    }
    Ok((number, fixed(text).filter(|fixed| fixed.abs() <= MAX)))
}

fn fixed(text: &str) -> Option<i128> {
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let (is_negative, whole) = match whole.strip_prefix('-') {
        Some(whole) => (true, whole),
        None => (false, whole.strip_prefix('+').unwrap_or(whole)),
    };
    // Digits beyond the last place are rounded.
    let mut shift =
        DIGITS.checked_add(exponent.parse().ok()?)?.checked_sub(i32::try_from(fraction.len()).ok()?)?;
    let (mut number, mut is_half) = (0i128, false);
    for digit in whole.chars().chain(fraction.chars()) {
        number = number.checked_mul(10)?.checked_add(digit.to_digit(10)?.into())?;
    }
    while shift < 0 && (number > 0 || is_half) {
        is_half = number % 10 >= 5;
        (number, shift) = (number / 10, shift + 1);
    }
    if number != 0 && shift > 0 {
        number = number.checked_mul(10i128.checked_pow(shift as u32)?)?;
    }
    number += i128::from(is_half);
    Some(if is_negative { -number } else { number })
}

fn print(number: i128) -> String {
    let (sign, number) = (if number < 0 { "-" } else { "" }, number.unsigned_abs());
    let (whole, fraction) = (number / ONE as u128, number % ONE as u128);
    let text = format!("{sign}{whole}.{fraction:017}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Numbers with at most this many digits fit into 64 bits, so they are parsed without overflow checks.
const UNCHECKED_DIGITS_MAX: usize = 18;

/// Parses a decimal number in its shortest form.
pub(super) fn parse_integer(text: &[u8]) -> Option<i64> {
    // Fast path for lengths, which are the most frequent numbers.
    if let [b'1'..=b'9', rest @ ..] = text
        && rest.len() < UNCHECKED_DIGITS_MAX
    {
        return text.iter().try_fold(0, |number, digit| {
            digit.is_ascii_digit().then(|| number * 10 + i64::from(digit - b'0'))
        });
    }
    let number: i64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    let is_canonical = match text {
        [b'0'] => true,
        [b'-', first, ..] | [first, ..] => (b'1'..=b'9').contains(first),
        [] => false,
    };
    is_canonical.then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_have_the_digits_of_redis() {
        for (one, other, expected) in [
            ("10.50", "0.1", "10.6"),
            ("0.1", "0.2", "0.3"),
            ("5.0e3", "2.0e2", "5200"),
            ("-1.5", "1.5", "0"),
            ("0", "-0.25", "-0.25"),
            ("1e-17", "1e-18", "0.00000000000000001"),
            ("3", "1.000000000000000005", "4.00000000000000001"),
            ("1e30", "1", "1000000000000000000000000000000"),
        ] {
            assert_eq!(sum(one.as_bytes(), other.as_bytes()).as_deref(), Ok(expected), "{one} {other}");
        }
        assert_eq!(sum(b"x", b"1"), Err(NoSum::NotANumber));
        assert_eq!(sum(b"1", b"nan"), Err(NoSum::NotANumber));
        assert_eq!(sum(b"inf", b"1"), Err(NoSum::Infinite));
        assert_eq!(sum(b"1.7e308", b"1.7e308"), Err(NoSum::Infinite));
        assert_eq!(sum(b" 1", b"1"), Err(NoSum::NotANumber));
    }
}
