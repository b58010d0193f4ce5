//! What is made of many measurements.

use hdrhistogram::Histogram;

/// The middle of the values, the mean of the middle two of an even number; `None` of none.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        n if n % 2 == 1 => Some(values[middle]),
        _ => Some((values[middle - 1] + values[middle]) / 2.0),
    }
}

/// The value that a share of all values, from 0 to 1, does not exceed; `None` of none.
pub fn percentile(times: &Histogram<u64>, share: f64) -> Option<f64> {
    (!times.is_empty()).then(|| times.value_at_quantile(share) as f64)
}

/// For times in nanoseconds, to three digits.
pub(crate) fn histogram() -> Histogram<u64> {
    let mut times = Histogram::new_with_bounds(1, 3_600_000_000_000, 3)
        .unwrap_or_else(|_| unreachable!("three digits and an hour are in range"));
    times.auto(true);
    times
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[9.0, 1.0, 3.0]), Some(3.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 9.0]), Some(3.0));
    }

    #[test]
    fn percentiles_keep_three_digits() {
        let mut times = histogram();
        assert_eq!(percentile(&times, 0.5), None);
        for time in 1..=1000 {
            times.record(time * 1000).expect("in range");
        }
        for (share, expected) in [(0.5, 500e3), (0.99, 990e3), (1.0, 1e6)] {
            let value = percentile(&times, share).expect("a value");
            assert!((value / expected - 1.0).abs() < 2e-3, "{share}: {value}");
        }
    }
}
