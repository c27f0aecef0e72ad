//! How a window is cut into subintervals.

use std::num::NonZeroU64;

/// Longest window: 3650 days, in milliseconds.
pub const MAX_WINDOW: u64 = 3650 * 24 * 60 * 60 * 1000;

/// Most subintervals any window may have, whatever the configuration says.
pub const MAX_SUBINTERVALS: u64 = 1_000_000;

/// The largest limit, cost, count and instant: 2^53 − 1, the largest integer every client holds exactly.
pub const MAX_EXACT: u64 = (1 << 53) - 1;

/// The window `W`, cut into `N` subintervals of the resolution `R`, so that `W = N·R` by construction.
///
/// Packed into one word (`R` above, `N` in the low 20 bits), because every key holds one. The word is never 0, which leaves
/// room for [`Entry`](crate::Entry) to mark keys that have a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Geometry(NonZeroU64);

const SUBINTERVAL_BITS: u32 = 20;
const SUBINTERVAL_MASK: u64 = (1 << SUBINTERVAL_BITS) - 1;
const _: () = assert!(MAX_SUBINTERVALS <= SUBINTERVAL_MASK);
const _: () = assert!(MAX_WINDOW < 1 << (u64::BITS - SUBINTERVAL_BITS));

/// Why a window and a resolution make no geometry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GeometryError {
    /// Window or resolution is 0 or longer than [`MAX_WINDOW`].
    OutOfRange,
    /// The resolution does not divide the window, or is longer than it.
    Uneven,
    /// The number of subintervals is this, above [`MAX_SUBINTERVALS`].
    TooMany(u64),
}

impl Geometry {
    /// A window of a millisecond: the geometry of windows in which nothing was ever counted.
    pub(crate) const SHORTEST: Self = Self(NonZeroU64::new((1 << SUBINTERVAL_BITS) | 1).unwrap());

    /// A window of `window` ms at a resolution of `resolution` ms.
    pub const fn new(window: u64, resolution: u64) -> Result<Self, GeometryError> {
        if window == 0 || window > MAX_WINDOW || resolution == 0 || resolution > MAX_WINDOW {
            return Err(GeometryError::OutOfRange);
        }
        if window % resolution != 0 {
            return Err(GeometryError::Uneven);
        }
        let subintervals = window / resolution;
        if subintervals > MAX_SUBINTERVALS {
            return Err(GeometryError::TooMany(subintervals));
        }
        match NonZeroU64::new((resolution << SUBINTERVAL_BITS) | subintervals) {
            Some(packed) => Ok(Self(packed)),
            None => Err(GeometryError::OutOfRange),
        }
    }

    /// The window `W`, in ms.
    pub const fn window(self) -> u64 {
        self.resolution() * self.subintervals()
    }

    /// The resolution `R`, in ms.
    pub const fn resolution(self) -> u64 {
        self.0.get() >> SUBINTERVAL_BITS
    }

    /// The number of subintervals `N = W / R`.
    pub const fn subintervals(self) -> u64 {
        self.0.get() & SUBINTERVAL_MASK
    }

    /// The subinterval that contains an instant: `⌊instant / R⌋`.
    pub const fn subinterval_at(self, instant: u64) -> u64 {
        instant / self.resolution()
    }

    /// The first instant of a subinterval, in ms.
    pub const fn start_of(self, subinterval: u64) -> u64 {
        subinterval * self.resolution()
    }
    /// The first instant, in ms, at which a subinterval has slid out of the window wholly.
    pub const fn end_of(self, subinterval: u64) -> u64 {
        self.start_of(subinterval + self.subintervals() + 1)
    }
}
