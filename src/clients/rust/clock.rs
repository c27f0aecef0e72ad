//! What time it is: a clock that never jumps, and how it is read in a few nanoseconds.

use std::cell::Cell;
use std::sync::LazyLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

/// When this process first asked for the time, by all clocks.
static START: LazyLock<Start> = LazyLock::new(Start::now);

struct Start {
    instant: Instant,
    /// Since the machine was started.
    booted: Duration,
    unix_ms: u64,
    /// The processor's counter, or the clock where it has none that ticks evenly.
    counter: quanta::Clock,
}

/// ns since the start.
#[derive(Clone, Copy)]
struct Passed {
    /// By the runtime's clock, which stands still while the machine sleeps.
    ns: u64,
    /// While the machine slept.
    asleep: u64,
}

/// When a thread last read the clocks: by the counter, and since the start.
#[derive(Clone, Copy)]
struct Read {
    ticks: u64,
    passed: Passed,
}

/// For so many ns the counter alone is read. How fast it ticks was measured, so it is trusted for a moment only, and
/// what happens to it while the machine sleeps or moves matters no longer than that.
const TRUSTED: u64 = 100_000;
/// The clocks and the counter are one moment's when they were read within so many ns.
const AT_ONCE: u64 = 1_000;

thread_local!(static LAST: Cell<Read> =
    const { Cell::new(Read { ticks: u64::MAX, passed: Passed { ns: 0, asleep: 0 } }) });

/// The runtime's clock, for decisions that wait for nothing: reading it directly takes a third of such a decision. Never
/// ahead of it, at most 2 µs behind, and for each thread monotonic.
#[inline]
pub(crate) fn now() -> Instant {
    if FOLLOWS_TESTS {
        return Instant::now();
    }
    START.instant + Duration::from_nanos(START.passed().ns)
}

/// The same by a clock that goes on while the machine sleeps. A thread may learn 100 µs late that it slept.
#[inline]
pub(crate) fn awake() -> Instant {
    if cfg!(test) {
        return Instant::now(); // simulated machines do not sleep
    }
    let passed = if FOLLOWS_TESTS { START.read() } else { START.passed() };
    START.instant + Duration::from_nanos(passed.ns + passed.asleep)
}

/// The same as Unix time in ms, which goes on evenly, whatever happens to the machine's clock.
#[inline]
pub(crate) fn now_ms() -> u64 {
    if FOLLOWS_TESTS {
        return unix_ms(Instant::now());
    }
    START.unix_ms + START.passed().ns / 1_000_000
}

/// A test may pause the runtime's clock, of which no counter knows.
const FOLLOWS_TESTS: bool = cfg!(any(test, debug_assertions));

/// The Unix time of an instant, in ms, as [`now_ms`] says it.
pub(crate) fn unix_ms(instant: Instant) -> u64 {
    START.unix_ms + ms(instant.saturating_duration_since(START.instant))
}

/// For how long the machine has run or slept.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn since_boot() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or_default(), u32::try_from(time.tv_nsec).unwrap_or_default())
}

/// Elsewhere, the runtime's clock alone counts.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) fn since_boot() -> Duration {
    static STARTED: LazyLock<std::time::Instant> = LazyLock::new(std::time::Instant::now);
    STARTED.elapsed()
}

impl Start {
    fn now() -> Self {
        let counter = quanta::Clock::new();
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { counter, booted: since_boot(), instant: Instant::now(), unix_ms: ms(since) }
    }

    /// How long ago it was.
    #[inline]
    fn passed(&self) -> Passed {
        let (last, ticks) = (LAST.get(), self.counter.raw());
        let passed = self.counter.delta_as_nanos(last.ticks, ticks);
        if ticks < last.ticks || passed >= TRUSTED {
            return self.read();
        }
        // A little slow, so that the next reading of the clock is not behind it.
        Passed { ns: last.passed.ns + passed - passed / 1024, ..last.passed }
    }

    #[cold]
    fn read(&self) -> Passed {
        let begun = self.counter.raw();
        let ran = self.instant.elapsed();
        let asleep = since_boot().saturating_sub(self.booted).saturating_sub(ran);
        let ticks = self.counter.raw();
        let passed = Passed { ns: ns(ran), asleep: ns(asleep) };
        if self.counter.delta_as_nanos(begun, ticks) < AT_ONCE {
            LAST.set(Read { ticks, passed });
        }
        passed
    }
}

fn ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
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

    /// The clocks say no less afterwards, and the thread's next reading is no earlier.
    #[test]
    fn the_counter_is_never_ahead_of_the_clocks_nor_goes_back() {
        let read = || {
            let mut before = [0; 2];
            for _ in 0..200_000 {
                let Passed { ns: ran, asleep } = START.passed();
                let read = [ran, ran + asleep];
                let after = [START.instant.elapsed(), since_boot() - START.booted].map(ns);
                assert!((0..2).all(|clock| before[clock] <= read[clock] && read[clock] <= after[clock]));
                before = read;
            }
        };
        thread::scope(|threads| (0..2).for_each(|_| drop(threads.spawn(read))));
    }

    /// By more than the clock moves while both are read, even where the thread was stopped in between.
    #[test]
    fn the_counter_is_behind_the_clocks_by_microseconds_at_most() {
        let behind = (0..10_000).map(|_| {
            let before = [START.instant.elapsed(), since_boot() - START.booted].map(ns);
            let Passed { ns: ran, asleep } = START.passed();
            before[0].saturating_sub(ran).max(before[1].saturating_sub(ran + asleep))
        });
        assert!(behind.max() <= Some(2_000));
    }

    /// As after a sleep of the machine, or on another one.
    #[test]
    fn a_counter_that_jumped_is_not_trusted() {
        let before = START.passed();
        for ticks in [0, u64::MAX] {
            LAST.set(Read { ticks, passed: Passed { ns: 0, asleep: 0 } });
            assert!(START.passed().ns >= before.ns);
        }
    }

    /// As if it had slept since the process began.
    #[test]
    fn sleep_counts_by_one_clock_only() {
        let slept = Duration::from_secs(3_600);
        let start = Start { booted: since_boot().saturating_sub(slept), ..Start::now() };
        let Passed { ns: ran, asleep } = start.read();
        assert!(ran < ns(slept) && asleep >= ns(slept.min(since_boot()) / 2));
    }

    #[test]
    fn both_readings_are_the_same_time() {
        let before = now_ms();
        let between = unix_ms(now());
        assert!(before <= between && between <= now_ms());
    }
}
