//! Medians and their spread.

use std::fmt;

/// The median and the range of several values.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Spread {
    /// The median; for an even number of values, the mean of the middle two.
    pub median: f64,
    /// Minimum.
    pub min: f64,
    /// Maximum.
    pub max: f64,
}

impl Spread {
    /// Computes the spread of at least one value.
    pub fn of(values: &[f64]) -> Spread {
        assert!(!values.is_empty(), "a spread needs a value");
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (below, above) = (sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2]);
        Spread { median: (below + above) / 2.0, min: sorted[0], max: sorted[sorted.len() - 1] }
    }
}

/// Formats as `median [min..max]` with at least three significant digits.
impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text =
            format!("{} [{}..{}]", significant(self.median), significant(self.min), significant(self.max));
        f.pad(&text)
    }
}

/// Formats with at least three significant digits and no exponent.
fn significant(value: f64) -> String {
    // The ratio to a figure of zero is infinite.
    if !value.is_finite() {
        return value.to_string();
    }
    let digits = if value == 0.0 { 0 } else { value.abs().log10().floor() as i32 + 1 };
    let decimals = (3 - digits).clamp(0, 6) as usize;
    format!("{value:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn infinity_is_formatted_as_inf() {
        assert_eq!(significant(f64::INFINITY), "inf");
    }

    #[test]
    fn the_median_is_the_middle_of_the_sorted_values() {
        assert_eq!(Spread::of(&[3.0, 1.0, 2.0]), Spread { median: 2.0, min: 1.0, max: 3.0 });
        assert_eq!(Spread::of(&[4.0, 1.0, 2.0, 3.0]).median, 2.5);
        assert_eq!(Spread::of(&[7.0]), Spread { median: 7.0, min: 7.0, max: 7.0 });
    }

    #[test]
    fn figures_of_any_size_keep_three_digits() {
        assert_eq!(Spread::of(&[0.0583, 0.0571, 0.06]).to_string(), "0.0583 [0.0571..0.0600]");
        assert_eq!(Spread::of(&[45163.2]).to_string(), "45163 [45163..45163]");
        assert_eq!(Spread::of(&[1.0, 0.98, 1.02]).to_string(), "1.00 [0.980..1.02]");
        assert_eq!(Spread::of(&[0.0]).to_string(), "0.000 [0.000..0.000]");
    }
}
