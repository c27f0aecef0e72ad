//! Numbers and durations as clients write them: byte strings, of which any get an answer.

use crate::geometry::{MAX_EXACT, MAX_WINDOW};

/// Decimal digits: 0 … 2^53 − 1. `None` for anything else.
pub fn integer(word: &[u8]) -> Option<u64> {
    match leading_integer(word) {
        Some((value, [])) => Some(value),
        _ => None,
    }
}

/// A duration in ms: digits, then `ms`, `s`, `m`, `h`, `d` in any letter case or nothing for seconds. 1 ms … 3650 d.
/// `None` for anything else.
#[inline(always)]
pub fn duration(word: &[u8]) -> Option<u64> {
    duration_or_zero(word).filter(|ms| *ms > 0)
}

/// A duration as [`duration`] reads it, or none at all: 0 ms … 3650 d.
#[inline(always)]
pub fn duration_or_zero(word: &[u8]) -> Option<u64> {
    let (number, unit) = leading_integer(word)?;
    let unit = match unit {
        [] | [b's' | b'S'] => 1000,
        [b'm' | b'M', b's' | b'S'] => 1,
        [b'm' | b'M'] => 60 * 1000,
        [b'h' | b'H'] => 60 * 60 * 1000,
        [b'd' | b'D'] => 24 * 60 * 60 * 1000,
        _ => return None,
    };
    number.checked_mul(unit).filter(|ms| *ms <= MAX_WINDOW)
}

/// The decimal digits a word begins with, at least one: 0 … 2^53 − 1; and what follows them.
#[inline(always)]
fn leading_integer(word: &[u8]) -> Option<(u64, &[u8])> {
    /// So many digits are within 64 bits, whatever they are.
    const SAFE: usize = 19;
    // Longer words may begin with zeros.
    let (value, rest) = if word.len() <= SAFE { short_digits(word) } else { long_digits(word)? };
    (value <= MAX_EXACT && rest.len() < word.len()).then_some((value, rest))
}

/// The digits a word begins with, which may be none, and what follows them. The word is short enough for 64 bits.
#[inline(always)]
pub fn short_digits(word: &[u8]) -> (u64, &[u8]) {
    let (mut value, mut rest) = (0, word);
    while let Some((eight, after)) = rest.split_first_chunk() {
        let Some(eight) = eight_digits(*eight) else { break };
        (value, rest) = (value * 100_000_000 + eight, after);
    }
    while let [byte, after @ ..] = rest {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            break;
        }
        (value, rest) = (value * 10 + u64::from(digit), after);
    }
    (value, rest)
}

/// The number of eight digits, all at once: first of pairs, then of fours.
#[inline(always)]
fn eight_digits(bytes: [u8; 8]) -> Option<u64> {
    let digits = u64::from_le_bytes(bytes) ^ 0x3030_3030_3030_3030;
    if (digits.wrapping_add(0x7676_7676_7676_7676) | digits) & 0x8080_8080_8080_8080 != 0 {
        return None;
    }
    let pairs = digits * 10 + (digits >> 8);
    let outer = (pairs & 0xff_0000_00ff).wrapping_mul(100 + (1_000_000 << 32));
    let inner = (pairs >> 16 & 0xff_0000_00ff).wrapping_mul(1 + (10_000 << 32));
    Some(outer.wrapping_add(inner) >> 32)
}

/// The digits of a word of any length: every one is looked at before the next.
#[cold]
fn long_digits(word: &[u8]) -> Option<(u64, &[u8])> {
    let (mut value, mut rest) = (0, word);
    while let [digit @ b'0'..=b'9', after @ ..] = rest {
        if value > MAX_EXACT {
            return None;
        }
        (value, rest) = (value * 10 + u64::from(digit - b'0'), after);
    }
    Some((value, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        let day = 86_400_000;
        for (word, ms) in [
            ("60", Some(60_000)),
            ("250ms", Some(250)),
            ("250Ms", Some(250)),
            ("60s", Some(60_000)),
            ("60S", Some(60_000)),
            ("5m", Some(300_000)),
            ("1H", Some(3_600_000)),
            ("7d", Some(7 * day)),
            ("1ms", Some(1)),
            ("3650d", Some(3650 * day)),
            ("3651d", None),
            ("315360001", None),
            ("0", None),
            ("0ms", None),
            ("", None),
            ("s", None),
            ("1w", None),
            ("1mss", None),
            ("-1", None),
            ("+1", None),
            ("1.5s", None),
            (" 1", None),
            ("1 s", None),
            ("1s ", None),
            ("99999999999999999999999999", None),
        ] {
            assert_eq!(duration(word.as_bytes()), ms, "{word:?}");
        }
        assert_eq!(duration(b"1\xff"), None);
        assert_eq!(
            (duration_or_zero(b"0"), duration_or_zero(b"0ms"), duration_or_zero(b"1h")),
            (Some(0), Some(0), Some(3_600_000))
        );
        assert_eq!((duration_or_zero(b""), duration_or_zero(b"-0"), duration_or_zero(b"3651d")), (None, None, None));
    }

    #[test]
    fn integers() {
        assert_eq!(integer(b"0"), Some(0));
        assert_eq!(integer(b"9007199254740991"), Some(MAX_EXACT));
        for word in ["", "9007199254740992", "-1", "+1", "1.0", "1e3", "0x10", " 1", "184467440737095516160"] {
            assert_eq!(integer(word.as_bytes()), None, "{word:?}");
        }
        assert_eq!(integer(b"1\0"), None);
        for digits in 1..=16 {
            let word = &b"9007199254740991"[..digits];
            assert_eq!(integer(word), std::str::from_utf8(word).unwrap().parse().ok());
            for place in 0..digits {
                for byte in [0, b' ', b'/', b':', b'p', 0x7f, 0x80, 0xb0, 0xff] {
                    let mut spoilt = word.to_vec();
                    spoilt[place] = byte;
                    assert_eq!(integer(&spoilt), None, "{spoilt:?}");
                }
            }
        }
        assert_eq!(integer(b"00000000000000000000000000000000000000007"), Some(7));
    }
}
