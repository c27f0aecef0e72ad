//! Writing words.

use swlimit_hold::{Reservation, Reserved};

use crate::{Bytes, Effect, Expiry, Id, Word};

impl Word<'_> {
    /// The word.
    #[inline(always)]
    pub fn write(&self) -> Bytes {
        let mut bytes = Bytes::new();
        match self.effect {
            Effect::Count { geometry, units, instant, dated } => {
                number(&mut bytes, b'c', geometry.resolution());
                number(&mut bytes, b'*', geometry.subintervals());
                number(&mut bytes, b'@', instant);
                if let Some(dated) = dated {
                    number(&mut bytes, b':', dated);
                }
                more_than_one(&mut bytes, units);
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
        Reserved::Rate { instant, geometry } => {
            number(bytes, b'c', geometry.resolution());
            number(bytes, b'*', geometry.subintervals());
            number(bytes, b'@', *instant);
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
