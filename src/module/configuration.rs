//! What operators may set.

use std::sync::atomic::{AtomicI64, Ordering};

use swlimit_window::MAX_SUBINTERVALS;

/// `swlimit.max-subintervals`: the most subintervals a client may ask for.
pub mod max_subintervals {
    use super::*;

    /// The setting's name; the server puts the module's before it.
    pub const NAME: &str = "max-subintervals";
    /// What holds when nothing is set.
    pub const DEFAULT: i64 = 4096;
    /// The smallest and the largest value.
    pub const RANGE: std::ops::RangeInclusive<i64> = 1..=MAX_SUBINTERVALS as i64;

    static VALUE: AtomicI64 = AtomicI64::new(DEFAULT);

    /// The value in force.
    pub fn get() -> i64 {
        VALUE.load(Ordering::Relaxed)
    }

    /// Put a value of [`RANGE`] in force.
    pub fn set(value: i64) {
        VALUE.store(value, Ordering::Relaxed);
    }
}

/// The value of `max-subintervals` that the module's load arguments ask for, or what is wrong with them.
pub fn from_load_arguments<'a>(mut arguments: impl Iterator<Item = &'a [u8]>) -> Result<i64, String> {
    let mut chosen = None;
    while let Some(name) = arguments.next() {
        if !name.eq_ignore_ascii_case(max_subintervals::NAME.as_bytes()) || chosen.is_some() {
            return Err(format!("unknown or repeated argument '{}'", name.escape_ascii()));
        }
        let value = arguments.next().and_then(|value| std::str::from_utf8(value).ok()?.parse().ok());
        chosen = Some(value.filter(|value| max_subintervals::RANGE.contains(value)).ok_or_else(|| {
            format!("{} must be an integer between 1 and {MAX_SUBINTERVALS}", max_subintervals::NAME)
        })?);
    }
    Ok(chosen.unwrap_or(max_subintervals::DEFAULT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn load_arguments() {
        let from = |words: &[&str]| from_load_arguments(words.iter().map(|word| word.as_bytes()));
        assert_eq!(from(&[]), Ok(4096));
        assert_eq!(from(&["max-subintervals", "1"]), Ok(1));
        assert_eq!(from(&["MAX-SUBINTERVALS", "1000000"]), Ok(1_000_000));
        for words in [
            &["max-subintervals"][..],
            &["max-subintervals", "0"],
            &["max-subintervals", "1000001"],
            &["max-subintervals", "many"],
            &["max-subintervals", "5", "max-subintervals", "6"],
            &["verbose"],
        ] {
            assert!(from(words).is_err(), "{words:?}");
        }
    }
}
