//! How many units to lease, and when: functions of the demand for a key and of the way to its server. No clock, no I/O.

use std::time::Duration;

/// A dry key is asked about this often at most, unless leases are shorter.
const LEAST_PACE: Duration = Duration::from_millis(100);
/// A smaller batch, in multiples of the largest cost, is not worth a command.
const LEAST: u64 = 3;
/// Fewer requests in half a lease, or leases, than this are not worth a lease.
const FEW: f64 = 3.0;
/// Of fewer requests no such rate is known: they may have come together by chance.
const KNOWN: f64 = 6.0;

/// What a limiter's leases are, at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Terms {
    /// How long units are kept in hand.
    pub length: Duration,
    /// The most units of a key, in hand and on their way.
    pub most: u64,
    /// What the server last said of the limit, which may rise.
    pub limit: u64,
}

/// The demand for a key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Need {
    /// Requests a second, each as if it cost `cost`.
    pub rate: f64,
    /// The largest cost.
    pub cost: u64,
    /// How many requests this is known from.
    pub requests: u32,
}

impl Terms {
    /// Whether leases decide requests of this cost; dearer ones are the server's.
    pub fn cover(&self, cost: u64) -> bool {
        cost <= self.most / 3
    }

    /// How long units are in hand, on average, before they end: half of what the way to the server leaves of a lease.
    fn half_life(&self, trip: Duration) -> Duration {
        self.length.saturating_sub(trip) / 2
    }
}

/// How many arrivals to expect where so many come on average: three standard deviations above.
pub(crate) fn margin(average: f64) -> f64 {
    average + 3.0 * average.sqrt() + 1.0
}

/// Units that are used up, at most, while a batch is on its way.
pub(crate) fn low_water(need: &Need, trip: Duration) -> u64 {
    units(margin(need.rate * trip.as_secs_f64()) * need.cost as f64)
}

/// Whether a key is asked for so often that leases pay. A key that was hot stays it down to half of what makes it hot.
pub(crate) fn is_hot(need: &Need, terms: &Terms, trip: Duration, was_hot: bool) -> bool {
    let part = if was_hot { 0.5 } else { 1.0 };
    let leases = (need.rate * terms.half_life(trip).as_secs_f64()).min(terms.most as f64 / need.cost.max(1) as f64);
    trip.as_secs_f64() * part <= terms.length.as_secs_f64() / 2.0
        && leases >= FEW * part
        && f64::from(need.requests) >= KNOWN * part
        && low_water(need, trip) as f64 * part <= terms.most as f64 / 2.0
}

/// How long a batch is to last once it has come. That of a dry key lasts no longer than until the key may be asked about
/// again: units that come free all at once are for all processes.
pub(crate) fn lasting(need: &Need, terms: &Terms, trip: Duration, is_dry: bool) -> Duration {
    match is_dry {
        true => terms.half_life(trip).min(pace(need, terms, trip, 0.5)),
        false => terms.half_life(trip),
    }
}

/// How many units to lease for a key, to last so long. So many outlive a trip, are in hand altogether, and are on their
/// way. `None` where there is no room for what is worth a command.
pub(crate) fn batch(
    need: &Need,
    terms: &Terms,
    trip: Duration,
    lasting: Duration,
    outliving: u64,
    in_hand: u64,
    flying: u64,
) -> Option<u64> {
    let used_meanwhile = need.rate * trip.as_secs_f64() * need.cost as f64;
    let ahead = margin(need.rate * (trip + lasting).as_secs_f64()).floor() * need.cost as f64;
    let wanted = units(ahead - (outliving as f64 - used_meanwhile).max(0.0)).saturating_sub(flying);
    let least = need.cost.saturating_mul(LEAST);
    let room = terms.most.saturating_sub(in_hand.saturating_add(flying));
    (room >= least).then(|| wanted.max(least).min(room))
}

/// How long to wait between asking twice about a key that is dry. `spread` is random, between 0.5 and 1.5.
pub(crate) fn pace(need: &Need, terms: &Terms, trip: Duration, spread: f64) -> Duration {
    let few = Duration::try_from_secs_f64(FEW / need.rate).unwrap_or(Duration::MAX).min(Duration::from_secs(3600));
    trip.max(few).max(LEAST_PACE.min(terms.length)).mul_f64(spread)
}

/// Whole units; what is below none is none.
fn units(number: f64) -> u64 {
    number.max(0.0) as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TERMS: Terms = Terms { length: Duration::from_secs(1), most: 100, limit: 1_000 };
    const TRIP: Duration = Duration::from_millis(10);

    fn need(rate: f64) -> Need {
        Need { rate, cost: 1, requests: 10 }
    }

    #[test]
    fn margins_are_three_deviations() {
        assert_eq!([0.0, 1.0, 100.0].map(margin), [1.0, 5.0, 131.0]);
    }

    #[test]
    fn a_key_is_hot_while_leases_pay() {
        let hot = |need: Need, trip| [false, true].map(|was_hot| is_hot(&need, &TERMS, trip, was_hot));
        // Three requests in half of what the way leaves of a lease: 6.06 a second.
        assert_eq!(
            [6.1, 6.0, 3.1, 3.0].map(|rate| hot(need(rate), TRIP)),
            [[true, true], [false, true], [false, true], [false, false]]
        );
        assert_eq!(
            [6, 5, 3, 2].map(|requests| hot(Need { requests, ..need(50.0) }, TRIP)),
            [[true, true], [false, true], [false, true], [false, false]]
        );
        // Too far, or more under way than may be leased.
        let far = [500, 501, 1_001].map(|ms| hot(need(20.0), Duration::from_millis(ms)));
        assert_eq!(far, [[true, true], [false, true], [false, false]]);
        assert_eq!(
            [2_900.0, 3_500.0, 8_000.0].map(|rate| hot(need(rate), TRIP)),
            [[true, true], [false, true], [false, false]]
        );
        // Dearer ones are the server's.
        assert!(TERMS.cover(33) && !TERMS.cover(34));
    }

    #[test]
    fn a_dry_key_is_asked_about_now_and_then() {
        let pace = |rate, trip, spread| pace(&need(rate), &TERMS, trip, spread);
        let ms = Duration::from_millis;
        assert_eq!(pace(1_000.0, TRIP, 1.0), ms(100));
        assert_eq!(pace(10.0, TRIP, 1.0), ms(300));
        assert_eq!(pace(1_000.0, ms(250), 1.0), ms(250));
        assert_eq!(pace(1_000.0, TRIP, 0.5), ms(50));
        assert_eq!(pace(0.0, TRIP, 1.0), ms(3_600_000));
    }

    #[test]
    fn a_batch_of_a_dry_key_lasts_until_it_may_be_asked_about_again() {
        let lasting = |rate, is_dry| lasting(&need(rate), &TERMS, TRIP, is_dry).as_millis();
        assert_eq!(
            [1_000.0, 10.0, 1.0].map(|rate| [false, true].map(|is_dry| lasting(rate, is_dry))),
            [[495, 50], [495, 150], [495, 495]]
        );
    }

    proptest! {
        #[test]
        fn batches_never_pass_the_most_and_are_worth_a_command(
            rate in 0.0..1e6,
            cost in 1u64..1_000,
            most in 1u64..1_000_000,
            trip in 0u64..2_000,
            (outliving, ending, flying) in (0u64..100_000, 0u64..100_000, 0u64..100_000),
            is_dry: bool,
        ) {
            let (terms, trip) = (Terms { most, ..TERMS }, Duration::from_millis(trip));
            let need = Need { rate, cost, requests: 3 };
            let in_hand = outliving + ending;
            let lasting = lasting(&need, &terms, trip, is_dry);
            if let Some(units) = batch(&need, &terms, trip, lasting, outliving, in_hand, flying) {
                prop_assert!(units + in_hand + flying <= most);
                prop_assert!(units >= 3 * cost);
            }
            // What is in hand and on its way covers demand until what is asked for now has come, and is used up.
            let from_nothing = batch(&need, &terms, trip, lasting, 0, 0, 0).unwrap_or_default();
            prop_assert!(from_nothing + cost > low_water(&need, trip).min(most) || most < 3 * cost);
        }

        #[test]
        fn a_hot_key_stays_hot(rate in 0.0..1e4, cost in 1u64..40, trip in 0u64..1_200, requests in 0u32..10) {
            let (need, trip) = (Need { rate, cost, requests }, Duration::from_millis(trip));
            prop_assert!(!is_hot(&need, &TERMS, trip, false) || is_hot(&need, &TERMS, trip, true));
        }
    }
}
