//! Parsing of commands' arguments: byte strings, of which any get a value or an error.

use swlimit_hold::MAX_ID;
use swlimit_window::{duration, duration_or_zero, integer, Geometry, GeometryError, Quota, WarmUp};

use crate::error::Error;
use crate::quotas;

/// Arguments of a command that can be parsed.
pub trait Parse: Sized {
    /// Parse the arguments after the command's name.
    fn parse<'a>(words: impl Iterator<Item = &'a [u8]>, max_subintervals: u64) -> Result<Self, Error>;
}

/// A command's options, in any order and letter case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// `COST n`, in units.
    pub cost: u64,
    /// `PARTIAL`
    pub partial: bool,
    /// `STRICT`
    pub strict: bool,
    /// `NX`
    pub nx: bool,
    /// `GT`, instead of `NX`
    pub gt: bool,
    /// `FORCE`
    pub force: bool,
    /// `AGE duration`, in ms.
    pub age: Option<u64>,
    /// `SINCE unix-ms`
    pub since: Option<u64>,
    /// `BLOCK duration`, in ms.
    pub block: Option<u64>,
    /// `WARMUP duration [COLD n]`
    pub warm_up: Option<WarmUp>,
    /// `AT unix-ms`
    pub at: Option<u64>,
    /// `WAIT timeout`, instead of `AT`, in ms.
    pub wait: Option<u64>,
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
    /// `NX`
    Nx,
    /// `GT`, instead of `NX`
    Gt,
    /// `AGE duration`
    Age,
    /// `SINCE unix-ms`, instead of `AGE`
    Since,
    /// `BLOCK duration`
    Block,
    /// `AT unix-ms`
    At,
    /// `FORCE`
    Force,
    /// `WAIT timeout`, instead of `AT`
    Wait,
    /// `WARMUP duration`
    WarmUp,
    /// `COLD n`, beside `WARMUP`
    Cold,
}

impl Keyword {
    const NAMES: [(&'static [u8], Self); 13] = [
        (b"COST", Keyword::Cost),
        (b"AT", Keyword::At),
        (b"STRICT", Keyword::Strict),
        (b"PARTIAL", Keyword::Partial),
        (b"BLOCK", Keyword::Block),
        (b"AGE", Keyword::Age),
        (b"SINCE", Keyword::Since),
        (b"NX", Keyword::Nx),
        (b"GT", Keyword::Gt),
        (b"FORCE", Keyword::Force),
        (b"WAIT", Keyword::Wait),
        (WARM_UP, Keyword::WarmUp),
        (COLD, Keyword::Cold),
    ];

    /// The option that cannot stand beside this one.
    fn excluded(self) -> Option<Self> {
        match self {
            Keyword::Age => Some(Keyword::Since),
            Keyword::Since => Some(Keyword::Age),
            Keyword::Nx => Some(Keyword::Gt),
            Keyword::Gt => Some(Keyword::Nx),
            Keyword::Wait => Some(Keyword::At),
            Keyword::At => Some(Keyword::Wait),
            _ => None,
        }
    }

    fn named(word: &[u8]) -> Option<Self> {
        Self::NAMES.iter().find(|(name, _)| word.eq_ignore_ascii_case(name)).map(|(_, keyword)| *keyword)
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            cost: 1,
            partial: false,
            strict: false,
            nx: false,
            gt: false,
            force: false,
            age: None,
            since: None,
            block: None,
            warm_up: None,
            at: None,
            wait: None,
        }
    }
}

const WARM_UP: &[u8] = b"WARMUP";
const COLD: &[u8] = b"COLD";

/// The remaining arguments of a call.
pub trait Words<'a>: Iterator<Item = &'a [u8]> + Sized {
    /// The next argument, which is required.
    fn word(&mut self) -> Result<&'a [u8], Error> {
        self.next().ok_or(Error::Arity)
    }

    /// `limit window resolution`, with at most `max` subintervals.
    #[inline(always)]
    fn quota(&mut self, max: u64) -> Result<Quota, Error> {
        let (limit, window, resolution) = (self.word()?, self.next(), self.next());
        let quota = match (window, resolution) {
            (Some(window), Some(resolution)) => {
                quotas::quota([limit, window, resolution], |words| read_quota(words, max))?
            }
            // Whatever is wrong with the words before comes first.
            (window, _) => {
                let window = window.unwrap_or(b"1");
                read_quota([limit, window, window], max)?;
                return Err(Error::Arity);
            }
        };
        match quota.geometry.subintervals() {
            subintervals if subintervals > max => Err(Error::TooManySubintervals { subintervals, max }),
            _ => Ok(quota),
        }
    }

    /// How many keys follow, at least 1: digits without a leading zero, as the server's own parser reads them. Where the
    /// server's key finder refuses a number, it finds no keys, and checks no ACL pattern.
    fn numkeys(&mut self) -> Result<usize, Error> {
        let word = self.word()?;
        let numkeys = integer(word).filter(|_| !word.starts_with(b"0"));
        numkeys.and_then(|numkeys| usize::try_from(numkeys).ok()).ok_or(Error::NumKeys)
    }

    /// `[WARMUP duration [COLD n]]`, behind a quota.
    #[inline(always)]
    fn warm_up(&mut self) -> Result<Option<WarmUp>, Error>
    where
        Self: Clone,
    {
        match self.clone().next() {
            Some(word) if word.eq_ignore_ascii_case(WARM_UP) => self.warm_up_that_is_there(),
            _ => Ok(None),
        }
    }

    #[cold]
    fn warm_up_that_is_there(&mut self) -> Result<Option<WarmUp>, Error>
    where
        Self: Clone,
    {
        let mut options = Options::default();
        for (keyword, name) in [(Keyword::WarmUp, WARM_UP), (Keyword::Cold, COLD)] {
            let Some(option) = self.clone().next().filter(|word| word.eq_ignore_ascii_case(name)) else { break };
            self.next();
            options.set(keyword, &mut Values { words: self, option })?;
        }
        Ok(options.warm_up)
    }

    /// A number of units, from 1; `name` is what an error calls it.
    fn units(&mut self, name: &'static str) -> Result<u64, Error> {
        positive(self.word()?).ok_or(Error::Units(name))
    }

    /// A limit, from 0.
    fn limit(&mut self) -> Result<u64, Error> {
        integer(self.word()?).ok_or(Error::Limit)
    }

    /// A hold's id.
    fn id(&mut self) -> Result<&'a [u8], Error> {
        Some(self.word()?).filter(|id| (1..=MAX_ID).contains(&id.len())).ok_or(Error::Id)
    }

    /// A duration in ms; `name` is what an error calls it.
    fn duration(&mut self, name: &'static str) -> Result<u64, Error> {
        duration(self.word()?).ok_or(Error::Duration(name))
    }

    /// A duration in ms, or 0; `name` is what an error calls it.
    fn duration_or_zero(&mut self, name: &'static str) -> Result<u64, Error> {
        duration_or_zero(self.word()?).ok_or(Error::Duration(name))
    }

    /// The options up to the end, each at most once.
    #[inline(always)]
    fn options(&mut self, accepted: &[Keyword]) -> Result<Options, Error> {
        let mut options = Options::default();
        self.each_option(accepted, |keyword, values| options.set(keyword, values))?;
        Ok(options)
    }

    /// Hands the options up to the end over, each at most once, with the words after it.
    #[inline(always)]
    fn each_option(
        &mut self,
        accepted: &[Keyword],
        mut set: impl FnMut(Keyword, &mut Values<'a, '_, Self>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut seen = [false; Keyword::NAMES.len()];
        let mut unpaired = None;
        while let Some(word) = self.next() {
            let syntax = || Error::Syntax(word.to_vec());
            let keyword = Keyword::named(word).filter(|keyword| accepted.contains(keyword)).ok_or_else(syntax)?;
            let excluded = keyword.excluded().is_some_and(|other| seen[other as usize]);
            if excluded || std::mem::replace(&mut seen[keyword as usize], true) {
                return Err(syntax());
            }
            match keyword {
                Keyword::Cold if !seen[Keyword::WarmUp as usize] => unpaired = Some(word),
                Keyword::WarmUp => unpaired = None,
                _ => {}
            }
            set(keyword, &mut Values { words: self, option: word })?;
        }
        unpaired.map_or(Ok(()), |word| Err(Error::Syntax(word.to_vec())))
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

/// The words after an option's name.
pub struct Values<'a, 'w, W> {
    words: &'w mut W,
    option: &'a [u8],
}

impl<'a, W: Iterator<Item = &'a [u8]>> Values<'a, '_, W> {
    /// The next word, which is required.
    #[inline(always)]
    pub fn value(&mut self) -> Result<&'a [u8], Error> {
        self.words.next().ok_or_else(|| self.syntax())
    }

    /// What is wrong where this option should not be.
    pub fn syntax(&self) -> Error {
        Error::Syntax(self.option.to_vec())
    }
}

impl Options {
    /// Take over an option with its value.
    #[inline(always)]
    pub fn set<'a, W>(&mut self, keyword: Keyword, values: &mut Values<'a, '_, W>) -> Result<(), Error>
    where
        W: Iterator<Item = &'a [u8]>,
    {
        let mut value = || values.value();
        match keyword {
            Keyword::Cost => self.cost = positive(value()?).ok_or(Error::Units("cost"))?,
            Keyword::Partial => self.partial = true,
            Keyword::Strict => self.strict = true,
            Keyword::Nx => self.nx = true,
            Keyword::Gt => self.gt = true,
            Keyword::Force => self.force = true,
            Keyword::Age => self.age = Some(duration_or_zero(value()?).ok_or(Error::Duration("AGE"))?),
            Keyword::Since => self.since = Some(integer(value()?).ok_or(Error::Instant("SINCE"))?),
            Keyword::Block => self.block = Some(duration(value()?).ok_or(Error::Duration("BLOCK"))?),
            Keyword::WarmUp => {
                let duration = duration(value()?).ok_or(Error::Duration("WARMUP"))?;
                self.warm_up = WarmUp::new(duration, self.warm_up.map_or(WarmUp::COLD, WarmUp::cold));
            }
            // It may stand before its duration.
            Keyword::Cold => {
                let cold = integer(value()?).ok_or(Error::Cold)?;
                self.warm_up = WarmUp::new(self.warm_up.map_or(1, WarmUp::duration), cold);
                self.warm_up.ok_or(Error::Cold)?;
            }
            Keyword::At => self.at = Some(integer(value()?).ok_or(Error::Instant("AT"))?),
            Keyword::Wait => {
                let timeout = duration_or_zero(value()?).filter(|ms| *ms <= MAX_WAIT);
                self.wait = Some(timeout.ok_or(Error::Duration("timeout"))?);
            }
        }
        Ok(())
    }
}

fn read_quota([limit, window, resolution]: quotas::Words, max: u64) -> Result<Quota, Error> {
    let limit = integer(limit).ok_or(Error::Limit)?;
    let window = duration(window).ok_or(Error::Duration("window"))?;
    let resolution = duration(resolution).ok_or(Error::Duration("resolution"))?;
    match Geometry::new(window, resolution) {
        Ok(geometry) => Ok(Quota { limit, geometry }),
        Err(GeometryError::TooMany(subintervals)) => Err(Error::TooManySubintervals { subintervals, max }),
        Err(GeometryError::Uneven) => Err(Error::Uneven),
        Err(GeometryError::OutOfRange) => Err(Error::Duration("window")),
    }
}

/// The longest wait of a hold, in ms: an hour.
const MAX_WAIT: u64 = 60 * 60 * 1000;

/// An error if one of these keys is named twice.
pub fn distinct(keys: &[&[u8]]) -> Result<(), Error> {
    let mut names = keys.to_vec();
    names.sort_unstable();
    match names.windows(2).any(|pair| pair[0] == pair[1]) {
        true => Err(Error::KeyTwice),
        false => Ok(()),
    }
}

/// A number of units, from 1.
pub fn positive(word: &[u8]) -> Option<u64> {
    integer(word).filter(|value| *value > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use swlimit_window::{MAX_EXACT, MAX_SUBINTERVALS};

    fn quota(words: &[&str]) -> Result<Quota, Error> {
        words.iter().map(|word| word.as_bytes()).quota(4096)
    }

    fn options(words: &[&str]) -> Result<Options, Error> {
        use Keyword::*;
        let accepted = [Cost, Partial, Strict, Age, Since, Block, At, Wait, WarmUp, Cold];
        words.iter().map(|word| word.as_bytes()).options(&accepted)
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
    fn numbers_of_keys() {
        let numkeys = |word: &str| [word.as_bytes()].into_iter().numkeys();
        assert_eq!((numkeys("1"), numkeys("10"), numkeys("9007199254740991")), (Ok(1), Ok(10), Ok(MAX_EXACT as usize)));
        for word in ["", "0", "01", "+1", "-1", " 1", "1 ", "1\0", "0x1", "9007199254740992", "9223372036854775808"] {
            assert_eq!(numkeys(word), Err(Error::NumKeys), "{word:?}");
        }
    }

    #[test]
    fn options_in_any_order_and_case_but_once() {
        let all = Options {
            cost: 3,
            partial: true,
            strict: true,
            nx: false,
            gt: false,
            force: false,
            age: Some(0),
            since: None,
            block: Some(60_000),
            warm_up: WarmUp::new(600_000, 5),
            at: Some(7),
            wait: None,
        };
        let words =
            ["at", "7", "STRICT", "Partial", "cost", "3", "Block", "1m", "age", "0", "cold", "5", "Warmup", "10m"];
        assert_eq!(options(&words), Ok(all));
        assert_eq!(options(&[]), Ok(Options::default()));
        assert_eq!(options(&["Since", "7"]), Ok(Options { since: Some(7), ..Options::default() }));
        let near = |word: &str| Err(Error::Syntax(word.into()));
        assert_eq!(options(&["STRICT", "strict"]), near("strict"));
        assert_eq!(options(&["COST", "1", "COST", "1"]), near("COST"));
        assert_eq!(options(&["AGE", "1", "since", "1"]), near("since"));
        assert_eq!(options(&["SINCE", "1", "AGE", "1"]), near("AGE"));
        assert_eq!(options(&["COST"]), near("COST"));
        assert_eq!(options(&["AT"]), near("AT"));
        assert_eq!(options(&["COSTS", "1"]), near("COSTS"));
        assert_eq!(options(&[""]), near(""));
        assert_eq!(options(&["COST", "0"]), Err(Error::Units("cost")));
        assert_eq!(options(&["AT", "-1"]), Err(Error::Instant("AT")));
        assert_eq!(options(&["WAIT", "1s"]), Ok(Options { wait: Some(1000), ..Options::default() }));
        assert_eq!(options(&["WAIT", "61m"]), Err(Error::Duration("timeout")));
        assert_eq!(options(&["WAIT", "1s", "AT", "7"]), near("AT"));
        assert_eq!(options(&["AT", "7", "wait", "1s"]), near("wait"));
        assert_eq!(options(&["SINCE", "1s"]), Err(Error::Instant("SINCE")));
        assert_eq!(options(&["AGE", "x"]), Err(Error::Duration("AGE")));
        assert_eq!(options(&["BLOCK", "0"]), Err(Error::Duration("BLOCK")));
        assert_eq!(options(&["WARMUP", "0"]), Err(Error::Duration("WARMUP")));
        for cold in ["1", "1001", "2.5", ""] {
            assert_eq!(options(&["WARMUP", "1s", "COLD", cold]), Err(Error::Cold));
        }
        assert_eq!(options(&["cold", "3"]), near("cold"));
        assert_eq!(options(&["WARMUP", "1s", "COLD", "3", "warmup", "1s"]), near("warmup"));
        assert_eq!(options(&["NX"]), near("NX"));
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
