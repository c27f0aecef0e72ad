//! What time it is: a clock that never jumps, and how it is read in a few nanoseconds.

use std::cell::Cell;
use std::sync::LazyLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

/// When this process first asked for the time, by all clocks.
static START: LazyLock<Start> = LazyLock::new(Start::now);

struct Start {
    instant: Instant,
    unix_ms: u64,
    /// The processor's counter, or the clock where it has none that ticks evenly.
    counter: quanta::Clock,
}

/// When a thread last read the clock: by the counter, and in ns since the start.
#[derive(Clone, Copy)]
struct Read {
    ticks: u64,
    ns: u64,
}

/// For so many ns the counter alone is read. How fast it ticks was measured, so it is trusted for a moment only, and
/// what happens to it while the machine sleeps or moves does not matter.
const TRUSTED: u64 = 100_000;
/// The clock and the counter are one moment's when they were read within so many ns.
const AT_ONCE: u64 = 1_000;

thread_local!(static LAST: Cell<Read> = const { Cell::new(Read { ticks: u64::MAX, ns: 0 }) });

/// The runtime's clock, for decisions that wait for nothing: reading it directly takes a third of such a decision. Never
/// ahead of it, at most 2 µs behind, and for each thread monotonic.
#[inline]
pub(crate) fn now() -> Instant {
    if FOLLOWS_TESTS {
        return Instant::now();
    }
    START.instant + Duration::from_nanos(START.ns())
}

/// The same as Unix time in ms, which goes on evenly, whatever happens to the machine's clock.
#[inline]
pub(crate) fn now_ms() -> u64 {
    if FOLLOWS_TESTS {
        return unix_ms(Instant::now());
    }
    START.unix_ms + START.ns() / 1_000_000
}

/// A test may pause the runtime's clock, of which no counter knows.
const FOLLOWS_TESTS: bool = cfg!(any(test, debug_assertions));

/// The Unix time of an instant, in ms, as [`now_ms`] says it.
pub(crate) fn unix_ms(instant: Instant) -> u64 {
    START.unix_ms + ms(instant.saturating_duration_since(START.instant))
}

impl Start {
    fn now() -> Self {
        let counter = quanta::Clock::new();
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { counter, instant: Instant::now(), unix_ms: ms(since) }
    }

    /// How long ago it was.
    #[inline]
    fn ns(&self) -> u64 {
        let (last, ticks) = (LAST.get(), self.counter.raw());
        let passed = self.counter.delta_as_nanos(last.ticks, ticks);
        if ticks < last.ticks || passed >= TRUSTED {
            return self.read();
        }
        // A little slow, so that the next reading of the clock is not behind it.
        last.ns + passed - passed / 1024
    }

    #[cold]
    fn read(&self) -> u64 {
        let begun = self.counter.raw();
        let ns = u64::try_from(self.instant.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let ticks = self.counter.raw();
        if self.counter.delta_as_nanos(begun, ticks) < AT_ONCE {
            LAST.set(Read { ticks, ns });
        }
        ns
    }
}

/// Measures how fast the counter ticks, unless that was done: mostly a ms, at most 200, for which no request should wait.
pub(crate) fn prepare() {
    LazyLock::force(&START);
}

/// Whole milliseconds, rounded down.
pub(crate) fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Whole milliseconds, rounded up.
pub(crate) fn ms_up(duration: Duration) -> u64 {
    ms(duration + Duration::from_nanos(999_999))
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// The runtime's clock says no less afterwards, and the thread's next reading is no earlier.
    #[test]
    fn the_counter_is_never_ahead_of_the_clock_nor_goes_back() {
        let read = || {
            let mut before = 0;
            for _ in 0..200_000 {
                let ns = START.ns();
                let after = START.instant.elapsed().as_nanos() as u64;
                assert!(before <= ns && ns <= after, "{before} {ns} {after}");
                before = ns;
            }
        };
        thread::scope(|threads| (0..2).for_each(|_| drop(threads.spawn(read))));
    }

    /// By more than the clock moves while both are read, even where the thread was stopped in between.
    #[test]
    fn the_counter_is_behind_the_clock_by_microseconds_at_most() {
        let behind = (0..10_000).map(|_| {
            let before = START.instant.elapsed().as_nanos() as u64;
            before.saturating_sub(START.ns())
        });
        assert!(behind.max() <= Some(2_000));
    }

    /// As after a sleep of the machine, or on another one.
    #[test]
    fn a_counter_that_jumped_is_not_trusted() {
        let ns = START.ns();
        for ticks in [0, u64::MAX] {
            LAST.set(Read { ticks, ns: 0 });
            assert!(START.ns() >= ns);
        }
    }

    #[test]
    fn both_readings_are_the_same_time() {
        let before = now_ms();
        let between = unix_ms(now());
        assert!(before <= between && between <= now_ms());
    }
}
