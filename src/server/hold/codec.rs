//! Holds as bytes, for RDB files and DUMP payloads.
//!
//! A sequence of unsigned LEB128 integers: the layout, which is 1; the largest token; the number of holds. Then each hold,
//! by end, then token, then id: its end (ms) less the one before (the first: its end); token; units; the length of
//! its id, and the id; the number of its reservations, and those.
//!
//! A reservation is its kind, 16 bytes of its key's digest, its units, and for 0, a rate: instant, resolution (ms),
//! subintervals; for 1, a budget: the end of its period; for 2, a hold: token, the length of its id, and the id; for 3, a
//! rate with a warm-up: as for 0.

use swlimit_window::leb128::{put, take};
use swlimit_window::{Geometry, Invalid, MAX_EXACT};

use crate::holds::{Hold, Holds, MAX_ID};
use crate::reservation::{KeyDigest, Reservation, Reserved, MAX_RESERVATIONS};

/// The data type's encoding version, which the server stores beside every value.
pub const VERSION: i32 = 1;

const LAYOUT: u64 = 1;
const RATE: u64 = 0;
const BUDGET: u64 = 1;
const HOLD: u64 = 2;
const WARMING_RATE: u64 = 3;

/// The shortest hold: a byte each for end, token, units, length, id and number of reservations.
const MIN_HOLD_BYTES: usize = 6;

/// The bytes of all that is stored.
pub fn encode(holds: &Holds) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(16 + 40 * holds.len());
    put(&mut bytes, LAYOUT);
    put(&mut bytes, holds.last_token());
    put(&mut bytes, holds.len() as u64);
    let mut previous = 0;
    for hold in holds.iter() {
        put(&mut bytes, hold.end() - previous);
        put(&mut bytes, hold.token());
        put(&mut bytes, hold.units());
        put_text(&mut bytes, hold.id());
        put(&mut bytes, hold.reserved().len() as u64);
        hold.reserved().iter().for_each(|reservation| put_reservation(&mut bytes, reservation));
        previous = hold.end();
    }
    bytes
}

/// The holds of these bytes, which were stored with an encoding version. They are not trusted: an error says what is
/// wrong with them.
pub fn decode(version: i32, bytes: &[u8]) -> Result<Holds, Invalid> {
    if version != VERSION {
        return Err(Invalid("an encoding version that this module does not know"));
    }
    let mut rest = bytes;
    if take(&mut rest)? != LAYOUT {
        return Err(Invalid("a layout that this module does not know"));
    }
    let last_token = take(&mut rest)?;
    let len = usize::try_from(take(&mut rest)?).unwrap_or(usize::MAX);
    if len > rest.len() / MIN_HOLD_BYTES || len >= u32::MAX as usize {
        return Err(Invalid("too many holds"));
    }
    let mut holds = Vec::with_capacity(len);
    let mut end: u64 = 0;
    for _ in 0..len {
        end = end.checked_add(take(&mut rest)?).ok_or(Invalid("an end out of range"))?;
        let (token, units) = (take(&mut rest)?, take(&mut rest)?);
        let id = take_id(&mut rest)?;
        let reserved = match take(&mut rest)? {
            0 => None,
            len @ 1..=MOST_RESERVATIONS => {
                Some((0..len).map(|_| take_reservation(&mut rest)).collect::<Result<Box<[_]>, _>>()?)
            }
            _ => return Err(Invalid("too many reservations")),
        };
        holds.push(Hold::new(id, units, end, token, reserved)?);
    }
    if !rest.is_empty() {
        return Err(Invalid("bytes left over"));
    }
    Holds::with_holds(last_token, holds)
}

const MOST_RESERVATIONS: u64 = MAX_RESERVATIONS as u64;

fn put_reservation(bytes: &mut Vec<u8>, Reservation { key, units, of }: &Reservation) {
    put(
        bytes,
        match of {
            Reserved::Rate { warms_up: false, .. } => RATE,
            Reserved::Rate { warms_up: true, .. } => WARMING_RATE,
            Reserved::Budget { .. } => BUDGET,
            Reserved::Hold { .. } => HOLD,
        },
    );
    bytes.extend(key.0);
    put(bytes, *units);
    match of {
        Reserved::Rate { instant, geometry, .. } => {
            put(bytes, *instant);
            put(bytes, geometry.resolution());
            put(bytes, geometry.subintervals());
        }
        Reserved::Budget { until } => put(bytes, *until),
        Reserved::Hold { id, token } => {
            put(bytes, *token);
            put_text(bytes, id);
        }
    }
}

fn take_digest(rest: &mut &[u8]) -> Result<KeyDigest, Invalid> {
    let (digest, after) = rest.split_first_chunk::<16>().ok_or(Invalid("bytes missing"))?;
    *rest = after;
    Ok(KeyDigest(*digest))
}

fn take_reservation(rest: &mut &[u8]) -> Result<Reservation, Invalid> {
    let (kind, key) = (take(rest)?, take_digest(rest)?);
    let units = take_exact(rest)?;
    if units == 0 {
        return Err(Invalid("units out of range"));
    }
    let of = match kind {
        RATE | WARMING_RATE => {
            let (instant, resolution, subintervals) = (take_exact(rest)?, take(rest)?, take(rest)?);
            let window = resolution.checked_mul(subintervals).ok_or(Invalid("a window out of range"))?;
            let geometry = Geometry::new(window, resolution).map_err(|_| Invalid("a window out of range"))?;
            Reserved::Rate { instant, geometry, warms_up: kind == WARMING_RATE }
        }
        BUDGET => Reserved::Budget { until: take_exact(rest)? },
        HOLD => {
            let token = take_exact(rest)?;
            Reserved::Hold { id: take_id(rest)?.into(), token }
        }
        _ => return Err(Invalid("a reservation of an unknown kind")),
    };
    Ok(Reservation { key, units, of })
}

fn put_text(bytes: &mut Vec<u8>, text: &[u8]) {
    put(bytes, text.len() as u64);
    bytes.extend(text);
}

/// An integer of at most 2^53 − 1.
fn take_exact(rest: &mut &[u8]) -> Result<u64, Invalid> {
    Some(take(rest)?).filter(|number| *number <= MAX_EXACT).ok_or(Invalid("a number out of range"))
}

fn take_id<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8], Invalid> {
    let len = usize::try_from(take(rest)?).map_err(|_| Invalid("bytes missing"))?;
    let (id, after) = rest.split_at_checked(len).ok_or(Invalid("bytes missing"))?;
    *rest = after;
    match (1..=MAX_ID).contains(&id.len()) {
        true => Ok(id),
        false => Err(Invalid("an id that is empty or too long")),
    }
}
