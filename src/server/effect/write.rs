//! Writing words.

use std::num::NonZeroU64;

use swlimit_hold::{Reservation, Reserved};
use swlimit_window::Geometry;

use crate::{Bytes, Effect, Expiry, Id, Word};

impl Word<'_> {
    /// The word.
    #[inline(always)]
    pub fn write(&self) -> Bytes {
        let mut bytes = Bytes::new();
        match self.effect {
            Effect::Count { geometry, units, instant, dated, since } => {
                return write_count(geometry, units, instant, dated, since, self.expiry)
            }
            ref effect => write_other(&mut bytes, effect),
        }
        match self.expiry {
            Expiry::Kept => {}
            Expiry::OwnEnd => bytes.push(b'!'),
            Expiry::At(instant) => number(&mut bytes, b'~', instant),
        }
        bytes
    }
}

/// The word of a count, which nearly all are, from its end on, as its digits come.
#[inline(always)]
fn write_count(
    geometry: Geometry,
    units: u64,
    instant: u64,
    dated: Option<u64>,
    since: Option<NonZeroU64>,
    expiry: Expiry,
) -> Bytes {
    let mut word = Reversed::new();
    match expiry {
        Expiry::Kept => {}
        Expiry::OwnEnd => word.byte(b'!'),
        Expiry::At(instant) => word.number(b'~', instant),
    }
    if let Some(since) = since {
        word.number(b'^', since.get());
    }
    if units != 1 {
        word.number(b'+', units);
    }
    if let Some(dated) = dated {
        word.number(b':', dated);
    }
    word.number(b'@', instant);
    word.number(b'*', geometry.subintervals());
    word.number(b'c', geometry.resolution());
    Bytes::from_slice(&word.bytes[word.start..])
}

/// A short word, of which the end is written.
struct Reversed {
    bytes: [u8; Self::MOST],
    start: usize,
}

/// The digits of each number below 100.
static PAIRS: [[u8; 2]; 100] = {
    let mut pairs = [[0; 2]; 100];
    let mut number = 0;
    while number < pairs.len() {
        pairs[number] = [b'0' + (number / 10) as u8, b'0' + (number % 10) as u8];
        number += 1;
    }
    pairs
};

impl Reversed {
    /// Seven numbers of at most 20 digits, and their marks.
    const MOST: usize = 7 * 21;

    #[inline(always)]
    fn new() -> Self {
        Self { bytes: [0; Self::MOST], start: Self::MOST }
    }

    #[inline(always)]
    fn byte(&mut self, byte: u8) {
        self.start -= 1;
        self.bytes[self.start] = byte;
    }

    #[inline(always)]
    fn pair(&mut self, number: u64) {
        self.start -= 2;
        self.bytes[self.start..self.start + 2].copy_from_slice(&PAIRS[number as usize]);
    }

    /// A mark and a number.
    #[inline(always)]
    fn number(&mut self, mark: u8, mut number: u64) {
        while number >= 100 {
            self.pair(number % 100);
            number /= 100;
        }
        match number {
            0..10 => self.byte(b'0' + number as u8),
            _ => self.pair(number),
        }
        self.byte(mark);
    }
}

fn write_other(bytes: &mut Bytes, effect: &Effect) {
    match *effect {
        Effect::Count { .. } => {}
        Effect::Refund { units, instant, since } => {
            number(bytes, b'r', units);
            number(bytes, b'@', instant);
            if let Some(since) = since {
                number(bytes, b':', since);
            }
        }
        Effect::Block { until } => number(bytes, b'b', until),
        Effect::Unblock { instant } => {
            bytes.push(b'u');
            number(bytes, b'@', instant);
        }
        Effect::Period { until, units, instant } => {
            number(bytes, b'p', until);
            number(bytes, b'@', instant);
            more_than_one(bytes, units);
        }
        Effect::Hold { ref id, end, token, units, ref reserved, instant } => {
            text(bytes, b'h', id);
            number(bytes, b'>', end);
            number(bytes, b'#', token);
            number(bytes, b'@', instant);
            more_than_one(bytes, units);
            reserved.iter().for_each(|reservation| reserve(bytes, reservation));
        }
        Effect::Renew { ref ids, end, instant } => {
            all(bytes, b'n', ids);
            number(bytes, b'>', end);
            number(bytes, b'@', instant);
        }
        Effect::Release { ref ids, instant } => {
            all(bytes, b'e', ids);
            number(bytes, b'@', instant);
        }
    }
}

fn reserve(bytes: &mut Bytes, Reservation { key, units, of }: &Reservation) {
    bytes.push(b';');
    match of {
        Reserved::Rate { instant, geometry, warms_up } => {
            number(bytes, b'c', geometry.resolution());
            number(bytes, b'*', geometry.subintervals());
            number(bytes, b'@', *instant);
            if *warms_up {
                bytes.push(b'^');
            }
        }
        Reserved::Budget { until } => number(bytes, b'p', *until),
        Reserved::Hold { id, token } => {
            text(bytes, b'h', id);
            number(bytes, b'#', *token);
        }
    }
    more_than_one(bytes, *units);
    bytes.push(b'$');
    key.0.iter().for_each(|byte| bytes.extend_from_slice(&hexadecimal(*byte)));
}

#[inline(always)]
fn number(bytes: &mut Bytes, mark: u8, number: u64) {
    bytes.push(mark);
    bytes.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

#[inline(always)]
fn more_than_one(bytes: &mut Bytes, units: u64) {
    if units != 1 {
        number(bytes, b'+', units);
    }
}

fn all(bytes: &mut Bytes, mut mark: u8, ids: &[Id]) {
    for id in ids {
        text(bytes, mark, id);
        mark = b',';
    }
}

fn text(bytes: &mut Bytes, mark: u8, text: &[u8]) {
    bytes.push(mark);
    let mut rest = text;
    while !rest.is_empty() {
        let plain = rest.iter().take_while(|byte| is_plain(**byte)).count();
        bytes.extend_from_slice(&rest[..plain]);
        rest = &rest[plain..];
        if let [escaped, after @ ..] = rest {
            bytes.push(b'%');
            bytes.extend_from_slice(&hexadecimal(*escaped));
            rest = after;
        }
    }
}

/// Whether a byte of a text stands for itself.
pub(crate) fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.')
}

fn hexadecimal(byte: u8) -> [u8; 2] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    [DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]
}
