//! Unsigned LEB128: integers as bytes, seven bits each, lowest first.

use crate::window::Invalid;

/// Append an integer.
pub fn put(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// Take an integer off the front of some bytes, which are not trusted.
pub fn take(rest: &mut &[u8]) -> Result<u64, Invalid> {
    let mut number = 0;
    for shift in (0..u64::BITS).step_by(7) {
        let (byte, after) = rest.split_first().ok_or(Invalid("bytes missing"))?;
        *rest = after;
        let low = u64::from(byte & 0x7f);
        if low << shift >> shift != low {
            break;
        }
        number |= low << shift;
        if byte & 0x80 == 0 {
            return Ok(number);
        }
    }
    Err(Invalid("an integer of more than 64 bits"))
}
