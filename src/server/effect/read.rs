//! Reading words, which are not trusted.

use std::borrow::Cow;
use std::num::NonZeroU64;

use swlimit_hold::{Hold, KeyDigest, Reservation, Reserved, MAX_ID, MAX_RESERVATIONS};
use swlimit_window::{short_digits, Geometry, Invalid, MAX_BLOCK, MAX_EXACT, MAX_WINDOW};

use crate::write::is_plain;
use crate::{Effect, Expiry, Id, Word, MAX_IDS, MAX_WORD};

/// The largest number of as many digits as are read. The end of a value may be later than any instant, by the clock of a
/// server that counts at an instant long past.
const MAX_EXPIRY: u64 = 9_999_999_999_999_999;

impl<'a> Word<'a> {
    /// The effect of this word; an error says what is wrong with it.
    #[inline(always)]
    pub fn read(word: &'a [u8]) -> Result<Self, Invalid> {
        if word.len() > MAX_WORD {
            return Err(Invalid("more than 65536 bytes"));
        }
        let mut parts = Parts(word);
        let effect = match word.first() {
            Some(b'c') => {
                let (geometry, instant) = (parts.geometry()?, parts.exact(b'@')?);
                let dated = parts.optional(b':')?;
                let (units, since) = (parts.units()?, parts.since()?);
                Effect::Count { geometry, units, instant, dated, since }
            }
            _ => parts.other()?,
        };
        let expiry = match parts.0 {
            [] => Expiry::Kept,
            [b'!'] => Expiry::OwnEnd,
            [b'~', ..] => Expiry::At(parts.number(b'~', MAX_EXPIRY)?),
            _ => return Err(Invalid("an unknown part")),
        };
        match parts.0 {
            [] | [b'!'] => Ok(Self { effect, expiry }),
            _ => Err(Invalid("an unknown part")),
        }
    }
}

/// What is left of a word.
struct Parts<'a>(&'a [u8]);

impl<'a> Parts<'a> {
    fn other(&mut self) -> Result<Effect<'a>, Invalid> {
        Ok(match self.0.first() {
            Some(b'r') => {
                let (units, instant) = (at_least_one(self.exact(b'r')?)?, self.exact(b'@')?);
                let since = self.optional(b':')?;
                if since.is_some_and(|since| since > instant) {
                    return Err(Invalid("an instant out of range"));
                }
                Effect::Refund { units, instant, since }
            }
            Some(b'b') => match self.number(b'b', MAX_BLOCK)? {
                0 => return Err(Invalid("an instant out of range")),
                until => Effect::Block { until },
            },
            Some(b'u') => {
                self.0 = &self.0[1..];
                Effect::Unblock { instant: self.exact(b'@')? }
            }
            Some(b'p') => {
                let (until, instant) = (self.exact(b'p')?, self.exact(b'@')?);
                if !until.checked_sub(instant).is_some_and(|ms| (1..=MAX_WINDOW).contains(&ms)) {
                    return Err(Invalid("a period out of range"));
                }
                Effect::Period { until, units: self.units()?, instant }
            }
            Some(b'h') => {
                let (id, end, token) = (self.id(b'h')?, self.exact(b'>')?, self.exact(b'#')?);
                let (instant, units) = (self.exact(b'@')?, self.units()?);
                let mut reserved = Vec::new();
                while let [b';', rest @ ..] = self.0 {
                    self.0 = rest;
                    if reserved.len() == MAX_RESERVATIONS {
                        return Err(Invalid("too many reservations"));
                    }
                    reserved.push(self.reservation()?);
                }
                Hold::new(&id, units, end, token, None)?;
                Effect::Hold { id, end, token, units, reserved: Cow::Owned(reserved), instant }
            }
            Some(b'n') => {
                let (ids, end, instant) = (self.ids(b'n')?, self.exact(b'>')?, self.exact(b'@')?);
                Hold::new(b"any", 1, end, 1, None)?;
                Effect::Renew { ids, end, instant }
            }
            Some(b'e') => Effect::Release { ids: self.ids(b'e')?, instant: self.exact(b'@')? },
            _ => return Err(Invalid("an unknown kind")),
        })
    }

    fn reservation(&mut self) -> Result<Reservation, Invalid> {
        let of = match self.0.first() {
            Some(b'c') => {
                let (geometry, instant) = (self.geometry()?, self.exact(b'@')?);
                Reserved::Rate { geometry, instant, warms_up: self.mark(b'^').is_ok() }
            }
            Some(b'p') => Reserved::Budget { until: self.exact(b'p')? },
            Some(b'h') => Reserved::Hold { id: self.id(b'h')?.into(), token: self.exact(b'#')? },
            _ => return Err(Invalid("a reservation of an unknown kind")),
        };
        let units = self.units()?;
        let key = match self.0 {
            [b'$', rest @ ..] => {
                let (digits, rest) = rest.split_first_chunk::<32>().ok_or(Invalid("bytes missing"))?;
                self.0 = rest;
                let mut digest = [0; 16];
                for (byte, pair) in digest.iter_mut().zip(digits.chunks_exact(2)) {
                    *byte = hexadecimal(pair).ok_or(Invalid("not a digest"))?;
                }
                KeyDigest(digest)
            }
            [b'=', ..] => KeyDigest::of(&self.text(b'=', MAX_WORD)?),
            _ => return Err(Invalid("a reservation without its key")),
        };
        Ok(Reservation { key, units, of })
    }

    /// `cR*N`
    #[inline(always)]
    fn geometry(&mut self) -> Result<Geometry, Invalid> {
        let (resolution, subintervals) = (self.exact(b'c')?, self.exact(b'*')?);
        let window = resolution.checked_mul(subintervals).ok_or(Invalid("a window out of range"))?;
        Geometry::new(window, resolution).map_err(|_| Invalid("a window out of range"))
    }

    /// A mark and an integer of at most 2^53 − 1.
    #[inline(always)]
    fn exact(&mut self, mark: u8) -> Result<u64, Invalid> {
        self.number(mark, MAX_EXACT)
    }

    #[inline(always)]
    fn optional(&mut self, mark: u8) -> Result<Option<u64>, Invalid> {
        if self.0.first() == Some(&mark) {
            self.exact(mark).map(Some)
        } else {
            Ok(None)
        }
    }

    /// `^` and an instant that is not 0, or nothing.
    #[inline(always)]
    fn since(&mut self) -> Result<Option<NonZeroU64>, Invalid> {
        if self.0.first() == Some(&b'^') {
            NonZeroU64::new(self.exact(b'^')?).map(Some).ok_or(Invalid("an instant out of range"))
        } else {
            Ok(None)
        }
    }

    /// `+n`, or 1.
    #[inline(always)]
    fn units(&mut self) -> Result<u64, Invalid> {
        self.optional(b'+')?.map_or(Ok(1), at_least_one)
    }

    #[inline(always)]
    fn number(&mut self, mark: u8, most: u64) -> Result<u64, Invalid> {
        /// As many as the largest number has, and one more, so that it is noticed.
        const DIGITS: usize = 17;
        self.mark(mark)?;
        let word = self.0.get(..DIGITS).unwrap_or(self.0);
        let (number, rest) = short_digits(word);
        let digits = word.len() - rest.len();
        if digits == 0 {
            return Err(Invalid("a number is missing"));
        }
        self.0 = &self.0[digits..];
        match digits < DIGITS && number <= most {
            true => Ok(number),
            false => Err(Invalid("a number out of range")),
        }
    }

    fn ids(&mut self, mark: u8) -> Result<Vec<Id<'a>>, Invalid> {
        let mut ids = vec![self.id(mark)?];
        while self.0.first() == Some(&b',') {
            if ids.len() == MAX_IDS {
                return Err(Invalid("too many ids"));
            }
            ids.push(self.id(b',')?);
        }
        Ok(ids)
    }

    fn id(&mut self, mark: u8) -> Result<Id<'a>, Invalid> {
        match self.text(mark, MAX_ID)? {
            id if id.is_empty() => Err(Invalid("an id that is empty or too long")),
            id => Ok(id),
        }
    }

    /// A mark and a text of at most so many bytes.
    fn text(&mut self, mark: u8, most: usize) -> Result<Id<'a>, Invalid> {
        self.mark(mark)?;
        let plain = self.0.iter().take_while(|byte| is_plain(**byte)).count();
        let (before, mut rest) = self.0.split_at(plain);
        let mut text = Cow::Borrowed(before);
        while let [first, after @ ..] = rest {
            let byte = match first {
                b'%' => {
                    let escaped =
                        after.get(..2).and_then(hexadecimal).ok_or(Invalid("a text that is escaped wrongly"))?;
                    rest = &after[2..];
                    escaped
                }
                plain if is_plain(*plain) => {
                    rest = after;
                    *plain
                }
                _ => break,
            };
            text.to_mut().push(byte);
        }
        self.0 = rest;
        match text.len() <= most {
            true => Ok(text),
            false => Err(Invalid("an id that is empty or too long")),
        }
    }

    #[inline(always)]
    fn mark(&mut self, mark: u8) -> Result<(), Invalid> {
        match self.0 {
            [first, rest @ ..] if *first == mark => {
                self.0 = rest;
                Ok(())
            }
            _ => Err(Invalid("a part is missing")),
        }
    }
}

fn at_least_one(units: u64) -> Result<u64, Invalid> {
    Some(units).filter(|units| *units > 0).ok_or(Invalid("units out of range"))
}

/// The byte of two hexadecimal digits.
fn hexadecimal(digits: &[u8]) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    match digits {
        [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
        _ => None,
    }
}
