//! The demand for one key, over the last while. A function of what is asked for and when.

use tokio::time::{Duration, Instant};

use super::sizing::Need;

/// The while is counted in so many parts, and the one that passes.
const PARTS: usize = 4;

/// Requests of the last while, granted or not.
#[derive(Clone, Debug)]
pub(super) struct Meter {
    span: Duration,
    /// When demand began, after nothing was asked for.
    began: Instant,
    /// When the current part began; the youngest part is the first.
    turned: Instant,
    parts: [Part; PARTS + 1],
}

#[derive(Clone, Copy, Debug, Default)]
struct Part {
    all: Sum,
    /// Of them, those that leases can decide.
    leasable: Sum,
    dearest: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    units: u64,
    requests: u32,
}

/// Which requests count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    All,
    /// Those that leases can decide: of several limits in one decision, all have to be hot.
    Leasable,
}

impl Meter {
    pub fn new(span: Duration, now: Instant) -> Self {
        Self { span, began: now, turned: now, parts: Default::default() }
    }

    /// A request of this cost.
    pub fn add(&mut self, cost: u64, which: Which, now: Instant) {
        self.turn(now);
        if self.parts.iter().all(|part| part.all.requests == 0) {
            (self.began, self.turned) = (now, now);
        }
        let part = &mut self.parts[0];
        part.dearest = part.dearest.max(cost);
        part.all.add(cost);
        if which == Which::Leasable {
            part.leasable.add(cost);
        }
    }

    /// The demand now, where a trip to the server takes so long: of what came in a shorter time, no rate is known.
    pub fn need(&mut self, which: Which, trip: Duration, now: Instant) -> Need {
        self.turn(now);
        let of = |part: &Part| match which {
            Which::All => part.all,
            Which::Leasable => part.leasable,
        };
        let passed = now.saturating_duration_since(self.turned).as_secs_f64() / self.part().as_secs_f64();
        let [young @ .., oldest] = &self.parts;
        let oldest_units = of(oldest).units as f64 * (1.0 - passed).clamp(0.0, 1.0);
        let units = young.iter().map(|part| of(part).units as f64).sum::<f64>() + oldest_units;
        let cost = self.parts.iter().map(|part| part.dearest).max().unwrap_or_default().max(1);
        let since = now.saturating_duration_since(self.began).max(trip).max(self.span / 8).min(self.span);
        let requests = self.parts.iter().map(|part| of(part).requests).fold(0, u32::saturating_add);
        Need { rate: units / cost as f64 / since.as_secs_f64(), cost, requests }
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.parts = Default::default();
    }

    /// Whether nothing was asked for in the last while.
    pub fn is_idle(&self, now: Instant) -> bool {
        now >= self.turned + self.span + self.part()
    }

    fn part(&self) -> Duration {
        self.span / PARTS as u32
    }

    fn turn(&mut self, now: Instant) {
        let part = self.part();
        for _ in 0..=PARTS {
            if now < self.turned + part {
                return;
            }
            self.turned += part;
            self.parts.rotate_right(1);
            self.parts[0] = Part::default();
        }
        self.turned = now;
    }
}

impl Sum {
    fn add(&mut self, cost: u64) {
        self.units = self.units.saturating_add(cost);
        self.requests = self.requests.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn demand_is_what_came_in_the_last_while() {
        let begun = Instant::now();
        let at = |ms: u64| begun + Duration::from_millis(ms);
        let mut meter = Meter::new(SECOND, begun);
        assert!(meter.is_idle(begun + 2 * SECOND));
        let rate = |meter: &mut Meter, ms| meter.need(Which::Leasable, Duration::ZERO, at(ms)).rate.round();
        // The first requests say little of a rate: an eighth of the while is the least time.
        (0..3).for_each(|_| meter.add(1, Which::Leasable, at(5_000)));
        assert_eq!([5_000, 5_125, 5_500, 6_000].map(|ms| rate(&mut meter, ms)), [24.0, 24.0, 6.0, 3.0]);
        assert_eq!(rate(&mut meter, 6_125), 2.0);
        assert_eq!(rate(&mut meter, 6_250), 0.0);
        for ms in 7_000..12_000 {
            meter.add(1, Which::Leasable, at(ms));
        }
        assert!((980.0..=1_020.0).contains(&rate(&mut meter, 12_000)));
        assert!(!meter.is_idle(at(12_900)) && meter.is_idle(at(13_500)));
    }

    #[test]
    fn the_dearest_counts_and_what_leases_cannot_decide_does_not() {
        let now = Instant::now();
        let mut meter = Meter::new(SECOND, now);
        meter.add(4, Which::Leasable, now);
        meter.add(2, Which::Leasable, now);
        meter.add(2, Which::All, now);
        let of = |meter: &mut Meter, which| meter.need(which, SECOND, now);
        assert_eq!(of(&mut meter, Which::All), Need { rate: 2.0, cost: 4, requests: 3 });
        assert_eq!(of(&mut meter, Which::Leasable), Need { rate: 1.5, cost: 4, requests: 2 });
        meter.clear();
        assert_eq!(of(&mut meter, Which::All).requests, 0);
    }
}
