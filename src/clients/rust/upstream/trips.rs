//! How long replies take.

use std::time::Duration;

use parking_lot::Mutex;

/// No round trip takes longer than the mean, four deviations and this.
const TICK: Duration = Duration::from_millis(1);

/// How long replies took lately, late ones too.
#[derive(Debug, Default)]
pub(super) struct Trips(Mutex<Measured>);

#[derive(Clone, Copy, Debug, Default)]
struct Measured {
    /// Moving means, as TCP has them: of the trips, and of how far each was from that.
    mean: Duration,
    deviation: Duration,
    last: Duration,
}

impl Trips {
    /// A reply took so long.
    pub fn took(&self, trip: Duration) {
        let mut measured = self.0.lock();
        let trip = trip.max(Duration::from_micros(1));
        *measured = match measured.mean {
            Duration::ZERO => Measured { mean: trip, deviation: trip / 4, last: trip },
            mean => Measured {
                mean: mean - mean / 8 + trip / 8,
                deviation: measured.deviation - measured.deviation / 4 + mean.abs_diff(trip) / 4,
                last: trip,
            },
        };
    }

    /// The mean; zero where nothing is known.
    pub fn mean(&self) -> Duration {
        self.0.lock().mean
    }

    /// How long one takes, at most; `None` where nothing is known.
    pub fn longest(&self) -> Option<Duration> {
        let Measured { mean, deviation, .. } = *self.0.lock();
        (!mean.is_zero()).then(|| mean + 4 * deviation + TICK)
    }

    /// The last one.
    pub fn last(&self) -> Option<Duration> {
        Some(self.0.lock().last).filter(|last| !last.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steady_trips_are_known_well_and_others_are_not() {
        let (trips, ms) = (Trips::default(), Duration::from_millis);
        assert_eq!((trips.mean(), trips.longest(), trips.last()), (ms(0), None, None));
        trips.took(ms(100));
        assert_eq!((trips.mean(), trips.longest(), trips.last()), (ms(100), Some(ms(201)), Some(ms(100))));
        (0..50).for_each(|_| trips.took(ms(100)));
        assert!(trips.longest() < Some(ms(102)), "{trips:?}");
        (0..50).for_each(|number| trips.took(ms(if number % 2 == 0 { 80 } else { 120 })));
        assert!((ms(98)..ms(102)).contains(&trips.mean()) && trips.longest() > Some(ms(160)), "{trips:?}");
        trips.took(ms(500));
        assert!(trips.longest() > Some(ms(500)), "{trips:?}");
    }
}
