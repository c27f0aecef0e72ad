//! The grammar of what commands are given. Arguments are byte strings; any bytes get an answer or an error.

use crate::error::Error;
use swlimit_window::{Demand, Geometry, GeometryError, MAX_EXACT, MAX_WINDOW};

/// `limit window resolution`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Units admitted per window.
    pub limit: u64,
    /// The window and its resolution.
    pub geometry: Geometry,
}

/// What follows the quota, in any order and letter case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// `COST n`, in units.
    pub cost: u64,
    /// `PARTIAL`
    pub partial: bool,
    /// `STRICT`
    pub strict: bool,
    /// `AT unix-ms`
    pub at: Option<u64>,
}

/// An option's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keyword {
    /// `COST n`
    Cost,
    /// `PARTIAL`
    Partial,
    /// `STRICT`
    Strict,
    /// `AT unix-ms`
    At,
}

impl Keyword {
    fn named(word: &[u8]) -> Option<Self> {
        let names = [
            (&b"COST"[..], Keyword::Cost),
            (b"PARTIAL", Keyword::Partial),
            (b"STRICT", Keyword::Strict),
            (b"AT", Keyword::At),
        ];
        names.iter().find(|(name, _)| word.eq_ignore_ascii_case(name)).map(|(_, keyword)| *keyword)
    }
}

impl Quota {
    /// What is demanded of a window with this quota.
    pub fn demand(&self, options: &Options) -> Demand {
        Demand { limit: self.limit, cost: options.cost, partial: options.partial, strict: options.strict }
    }
}

/// The words of a call, one after the other.
pub trait Words<'a>: Iterator<Item = &'a [u8]> {
    /// A word that must be there.
    fn word(&mut self) -> Result<&'a [u8], Error> {
        self.next().ok_or(Error::Arity)
    }

    /// `limit window resolution`, with at most `max_subintervals` subintervals.
    #[inline(always)]
    fn quota(&mut self, max_subintervals: u64) -> Result<Quota, Error> {
        let limit = integer(self.word()?).ok_or(Error::Limit)?;
        let window = duration(self.word()?).ok_or(Error::Duration("window"))?;
        let resolution = duration(self.word()?).ok_or(Error::Duration("resolution"))?;
        let too_many = |subintervals| Error::TooManySubintervals { subintervals, max: max_subintervals };
        match Geometry::new(window, resolution) {
            Ok(geometry) if geometry.subintervals() > max_subintervals => Err(too_many(geometry.subintervals())),
            Ok(geometry) => Ok(Quota { limit, geometry }),
            Err(GeometryError::TooMany(subintervals)) => Err(too_many(subintervals)),
            Err(GeometryError::Uneven) => Err(Error::Uneven),
            Err(GeometryError::OutOfRange) => Err(Error::Duration("window")),
        }
    }

    /// A number of units, from 1; `name` is what an error calls it.
    fn units(&mut self, name: &'static str) -> Result<u64, Error> {
        positive(self.word()?).ok_or(Error::Units(name))
    }

    /// The options up to the end, each at most once.
    #[inline(always)]
    fn options(&mut self, accepted: &[Keyword]) -> Result<Options, Error> {
        let mut options = Options { cost: 1, partial: false, strict: false, at: None };
        let mut seen = [false; 4];
        while let Some(word) = self.next() {
            let syntax = || Error::Syntax(word.to_vec());
            let keyword = Keyword::named(word).filter(|keyword| accepted.contains(keyword)).ok_or_else(syntax)?;
            if std::mem::replace(&mut seen[keyword as usize], true) {
                return Err(syntax());
            }
            match keyword {
                Keyword::Cost => {
                    options.cost = positive(self.next().ok_or_else(syntax)?).ok_or(Error::Units("cost"))?;
                }
                Keyword::Partial => options.partial = true,
                Keyword::Strict => options.strict = true,
                Keyword::At => options.at = Some(integer(self.next().ok_or_else(syntax)?).ok_or(Error::At)?),
            }
        }
        Ok(options)
    }

    /// No more words.
    fn end(&mut self) -> Result<(), Error> {
        match self.next() {
            None => Ok(()),
            Some(_) => Err(Error::Arity),
        }
    }
}

impl<'a, W: Iterator<Item = &'a [u8]>> Words<'a> for W {}

/// Decimal digits: 0 … 2^53 − 1.
pub fn integer(word: &[u8]) -> Option<u64> {
    match leading_integer(word) {
        Some((value, [])) => Some(value),
        _ => None,
    }
}

/// The decimal digits a word begins with, at least one: 0 … 2^53 − 1; and what follows them.
#[inline(always)]
fn leading_integer(word: &[u8]) -> Option<(u64, &[u8])> {
    let mut value: u64 = 0;
    let mut rest = word;
    while let [digit @ b'0'..=b'9', after @ ..] = rest {
        // Within 2^53 − 1 before each step, neither the product nor the sum can overflow.
        value = value * 10 + u64::from(digit - b'0');
        if value > MAX_EXACT {
            return None;
        }
        rest = after;
    }
    (rest.len() < word.len()).then_some((value, rest))
}

fn positive(word: &[u8]) -> Option<u64> {
    integer(word).filter(|value| *value > 0)
}

/// A duration in ms: digits, then `ms`, `s`, `m`, `h`, `d` in any letter case or nothing for seconds. 1 ms … 3650 d.
#[inline(always)]
fn duration(word: &[u8]) -> Option<u64> {
    let (number, unit) = leading_integer(word)?;
    let unit = match unit {
        [] | [b's' | b'S'] => 1000,
        [b'm' | b'M', b's' | b'S'] => 1,
        [b'm' | b'M'] => 60 * 1000,
        [b'h' | b'H'] => 60 * 60 * 1000,
        [b'd' | b'D'] => 24 * 60 * 60 * 1000,
        _ => return None,
    };
    number.checked_mul(unit).filter(|ms| (1..=MAX_WINDOW).contains(ms))
}

#[cfg(test)]
mod tests {
    use super::*;
    use swlimit_window::MAX_SUBINTERVALS;

    fn quota(words: &[&str]) -> Result<Quota, Error> {
        words.iter().map(|word| word.as_bytes()).quota(4096)
    }

    fn options(words: &[&str]) -> Result<Options, Error> {
        use Keyword::*;
        words.iter().map(|word| word.as_bytes()).options(&[Cost, Partial, Strict, At])
    }

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
    }

    #[test]
    fn integers() {
        assert_eq!(integer(b"0"), Some(0));
        assert_eq!(integer(b"9007199254740991"), Some(MAX_EXACT));
        for word in ["", "9007199254740992", "-1", "+1", "1.0", "1e3", "0x10", " 1", "184467440737095516160"] {
            assert_eq!(integer(word.as_bytes()), None, "{word:?}");
        }
        assert_eq!(integer(b"1\0"), None);
    }

    #[test]
    fn quotas() {
        let quota_of = quota(&["100", "60", "5"]).unwrap();
        assert_eq!((quota_of.limit, quota_of.geometry.window(), quota_of.geometry.resolution()), (100, 60_000, 5_000));
        assert_eq!(quota(&["0", "60", "60"]).unwrap().geometry.subintervals(), 1);
        assert_eq!(quota(&["1", "4096ms", "1ms"]).unwrap().geometry.subintervals(), 4096);
        for (words, error) in [
            (["x", "60", "5"], Error::Limit),
            (["1", "x", "5"], Error::Duration("window")),
            (["1", "60", "0"], Error::Duration("resolution")),
            (["1", "60", "7"], Error::Uneven),
            (["1", "5", "60"], Error::Uneven),
            (["1", "4097ms", "1ms"], Error::TooManySubintervals { subintervals: 4097, max: 4096 }),
            (["1", "1d", "1ms"], Error::TooManySubintervals { subintervals: 86_400_000, max: 4096 }),
        ] {
            assert_eq!(quota(&words), Err(error));
        }
        assert_eq!(quota(&["1", "60"]), Err(Error::Arity));
        let words = [&b"1"[..], b"1000", b"1ms"];
        assert_eq!(words.into_iter().quota(MAX_SUBINTERVALS).unwrap().geometry.subintervals(), MAX_SUBINTERVALS);
    }

    #[test]
    fn options_in_any_order_and_case_but_once() {
        let all = Options { cost: 3, partial: true, strict: true, at: Some(7) };
        assert_eq!(options(&["at", "7", "STRICT", "Partial", "cost", "3"]), Ok(all));
        assert_eq!(options(&[]), Ok(Options { cost: 1, partial: false, strict: false, at: None }));
        let near = |word: &str| Err(Error::Syntax(word.into()));
        assert_eq!(options(&["STRICT", "strict"]), near("strict"));
        assert_eq!(options(&["COST", "1", "COST", "1"]), near("COST"));
        assert_eq!(options(&["COST"]), near("COST"));
        assert_eq!(options(&["AT"]), near("AT"));
        assert_eq!(options(&["COSTS", "1"]), near("COSTS"));
        assert_eq!(options(&[""]), near(""));
        assert_eq!(options(&["COST", "0"]), Err(Error::Units("cost")));
        assert_eq!(options(&["AT", "-1"]), Err(Error::At));
        let words = [&b"PARTIAL"[..]];
        assert_eq!(words.into_iter().options(&[Keyword::At]), near("PARTIAL"));
    }

    #[test]
    fn errors_quote_any_bytes_on_one_short_line() {
        let error = Error::Syntax([&b"a\r\n\0\xff'"[..], &[b'x'; 1000]].concat()).to_string();
        assert!(error.starts_with(r"ERR syntax error near 'a\r\n\x00\xff\'xxx"), "{error}");
        assert!(error.len() < 400 && error.bytes().all(|byte| (0x20..0x7f).contains(&byte)));
    }
}
