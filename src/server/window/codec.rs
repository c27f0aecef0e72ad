//! Entries as bytes, for RDB files and DUMP payloads.
//!
//! A sequence of unsigned LEB128 integers. Layout 1 is a window: resolution (ms), subintervals of the window, number of
//! counts; then for each count, oldest first, the subintervals since the one before (the first: since the epoch) and its
//! units. Later layouts begin with a 0, which is no resolution, and their number. Layout 2 goes on with the instant of a
//! block (ms) and then, if anything is counted, a window as in layout 1. Layout 3 is of a key that remembers since when it is
//! in use: that instant (ms), the instant of a block, 0 without one, and a window as in layout 1.
//!
//! The server stores one encoding version beside all values of a type, whatever each of them is. So that older modules
//! go on reading what they can understand, it stays [`VERSION`]: a window without a block is written as it always was.

use std::num::NonZeroU64;

use crate::counts::Count;
use crate::entry::Entry;
use crate::geometry::Geometry;
use crate::leb128::{put, take};
use crate::window::{Invalid, Window};

/// The data type's encoding version, which the server stores beside every value.
pub const VERSION: i32 = 1;

/// What a layout other than the first begins with.
const LATER_LAYOUT: u64 = 0;
/// The layout of an entry with a block.
const BLOCK_LAYOUT: u64 = 2;
/// The layout of an entry that is in use since an instant.
const USE_LAYOUT: u64 = 3;

/// The shortest count: one byte each for distance and units.
const MIN_COUNT_BYTES: usize = 2;

/// An entry's bytes.
pub fn encode(entry: &Entry) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(32 + 4 * entry.window().map_or(0, Window::counts_held));
    if let Some(since) = entry.since() {
        put(&mut bytes, LATER_LAYOUT);
        put(&mut bytes, USE_LAYOUT);
        put(&mut bytes, since.get());
        put(&mut bytes, entry.blocked_until());
    } else if let until @ 1.. = entry.blocked_until() {
        put(&mut bytes, LATER_LAYOUT);
        put(&mut bytes, BLOCK_LAYOUT);
        put(&mut bytes, until);
    }
    if let Some(window) = entry.window() {
        put_window(&mut bytes, window);
    }
    bytes
}

/// The entry of these bytes, which were stored with an encoding version. They are not trusted: an error says what is
/// wrong with them.
pub fn decode(version: i32, bytes: &[u8]) -> Result<Entry, Invalid> {
    if version != VERSION {
        return Err(Invalid("an encoding version that this module does not know"));
    }
    let mut rest = bytes;
    let first = take(&mut rest)?;
    if first != LATER_LAYOUT {
        return Ok(take_window(first, rest)?.into());
    }
    match take(&mut rest)? {
        BLOCK_LAYOUT => {
            let until = take(&mut rest)?;
            let window = match rest {
                [] => None,
                _ => Some(take_window(take(&mut rest)?, rest)?),
            };
            Entry::blocked(until, window)
        }
        USE_LAYOUT => {
            let since = NonZeroU64::new(take(&mut rest)?).ok_or(Invalid("an instant out of range"))?;
            let until = take(&mut rest)?;
            Entry::in_use(since, until, take_window(take(&mut rest)?, rest)?)
        }
        _ => Err(Invalid("a layout that this module does not know")),
    }
}

fn put_window(bytes: &mut Vec<u8>, window: &Window) {
    put(bytes, window.geometry().resolution());
    put(bytes, window.geometry().subintervals());
    put(bytes, window.counts_held() as u64);
    let mut previous = 0;
    for Count { subinterval, units } in window.counts() {
        put(bytes, subinterval - previous);
        put(bytes, units);
        previous = subinterval;
    }
}

/// The window of the rest, which follows its resolution.
fn take_window(resolution: u64, mut rest: &[u8]) -> Result<Window, Invalid> {
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
        counts.push(Count { subinterval, units: take(&mut rest)? });
    }
    if !rest.is_empty() {
        return Err(Invalid("bytes left over"));
    }
    Window::with_counts(geometry, counts.iter().copied())
}
