//! Windows as bytes, for RDB files and DUMP payloads.
//!
//! A sequence of unsigned LEB128 integers: resolution (ms), subintervals of the window, number of counts; then for each
//! count, oldest first, the subintervals since the one before (the first: since the epoch) and its units. The version
//! of this layout is the data type's encoding version, which the server stores beside it.

use super::{Geometry, Invalid, Window};

/// The version of the layout.
pub const VERSION: i32 = 1;

/// The shortest count: one byte each for distance and units.
const MIN_COUNT_BYTES: usize = 2;

/// A window's bytes.
pub fn encode(window: &Window) -> Vec<u8> {
    let geometry = window.geometry();
    let mut bytes = Vec::with_capacity(24 + 4 * window.counts_held());
    put(&mut bytes, geometry.resolution());
    put(&mut bytes, geometry.subintervals());
    put(&mut bytes, window.counts_held() as u64);
    let mut previous = 0;
    for (subinterval, units) in window.held() {
        put(&mut bytes, subinterval - previous);
        put(&mut bytes, units);
        previous = subinterval;
    }
    bytes
}

/// The window of these bytes. They are not trusted: an error says what is wrong with them.
pub fn decode(bytes: &[u8]) -> Result<Window, Invalid> {
    let mut rest = bytes;
    let resolution = take(&mut rest)?;
    let subintervals = take(&mut rest)?;
    let window = resolution.checked_mul(subintervals).ok_or(Invalid("a window out of range"))?;
    let geometry = Geometry::new(window, resolution).map_err(|_| Invalid("a window out of range"))?;
    let len = usize::try_from(take(&mut rest)?).unwrap_or(usize::MAX);
    if len > rest.len() / MIN_COUNT_BYTES || len as u64 > subintervals + 1 {
        return Err(Invalid("too many counts"));
    }
    let mut counts = Vec::with_capacity(len);
    let mut subinterval: u64 = 0;
    for _ in 0..len {
        subinterval = subinterval.checked_add(take(&mut rest)?).ok_or(Invalid("an instant out of range"))?;
        counts.push((subinterval, take(&mut rest)?));
    }
    if !rest.is_empty() {
        return Err(Invalid("bytes left over"));
    }
    Window::with_counts(geometry, counts.iter().copied())
}

pub(super) fn put(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

fn take(rest: &mut &[u8]) -> Result<u64, Invalid> {
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
