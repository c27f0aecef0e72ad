//! A limit of how many requests are under way that follows how long they take.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::now;
use crate::error::Error;

/// Shorter requests say nothing of the load.
const SHORTEST: u64 = 100;
/// A window with fewer samples changes nothing.
const FEWEST: u64 = 10;
/// A larger share of drops than one in these samples lowers the limit.
const SAMPLES_A_DROP: u64 = 20;
/// The long-time mean is that of the windows so far, up to so many; then each takes a part in so many.
const FIRST_WINDOWS: u64 = 10;
const LATER_WINDOWS: f64 = 601.0;

/// How the limit follows the response times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Algorithm {
    /// One more each window; a tenth less after drops of more than 5 %, or a mean above the time-out.
    Aimd,
    /// More while the mean is like that of the last minutes; in proportion less when it is longer, and a tenth less after
    /// drops of more than 5 %.
    #[default]
    Gradient2,
}

/// How many requests of this process may be under way: as many as the service behind them takes. Cheap to clone.
///
/// ```
/// use swlimit_client::Adaptive;
///
/// let adaptive = Adaptive::builder().min(1).max(50).build()?;
/// let permit = adaptive.permit().expect("nothing is under way");
/// assert!(adaptive.permit().is_none(), "the limit is 1 at first");
/// permit.done();
/// assert_eq!((adaptive.limit(), adaptive.in_flight()), (1, 0));
/// # Ok::<(), swlimit_client::Error>(())
/// ```
#[derive(Clone)]
pub struct Adaptive(Arc<Inner>);

struct Inner {
    options: AdaptiveBuilder,
    /// With the number of requests under way.
    state: Mutex<(State, u64)>,
    begun: tokio::time::Instant,
}

/// Builder for [`Adaptive`].
#[derive(Clone, Copy, Debug)]
#[must_use = "nothing is built yet"]
pub struct AdaptiveBuilder {
    min: u64,
    max: u64,
    algorithm: Algorithm,
    window: Duration,
    timeout: Duration,
}

impl AdaptiveBuilder {
    /// The least limit, with which it begins: 20 unless set.
    pub fn min(self, min: u64) -> Self {
        Self { min, ..self }
    }

    /// The largest limit: 200 unless set.
    pub fn max(self, max: u64) -> Self {
        Self { max, ..self }
    }

    /// [`Algorithm::Gradient2`] unless set.
    pub fn algorithm(self, algorithm: Algorithm) -> Self {
        Self { algorithm, ..self }
    }

    /// How often the limit may change: every second unless set.
    pub fn window(self, window: Duration) -> Self {
        Self { window, ..self }
    }

    /// The mean from which [`Algorithm::Aimd`] lowers the limit: 5 s unless set.
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// The limit.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a least limit of 0 or above the largest, a largest above 2^32, and no window.
    pub fn build(self) -> Result<Adaptive, Error> {
        let invalid = |text: &str| Err(Error::Invalid(text.into()));
        if self.min == 0 || self.min > self.max || self.max > 1 << 32 {
            return invalid("min must be at least 1 and at most max, and max at most 2^32");
        }
        if micros(self.window) == 0 {
            return invalid("window must be at least 1 µs");
        }
        let state = Mutex::new((State::new(self.min), 0));
        Ok(Adaptive(Arc::new(Inner { options: self, state, begun: now() })))
    }
}

impl Default for Adaptive {
    fn default() -> Self {
        Self::builder().build().expect("the default settings are right")
    }
}

impl fmt::Debug for Adaptive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Adaptive").field("in_flight", &self.in_flight()).field("limit", &self.limit()).finish()
    }
}

impl Adaptive {
    /// A builder with the default settings.
    pub fn builder() -> AdaptiveBuilder {
        AdaptiveBuilder {
            min: 20,
            max: 200,
            algorithm: Algorithm::default(),
            window: Duration::from_secs(1),
            timeout: Duration::from_secs(5),
        }
    }

    /// How many requests may be under way now.
    pub fn limit(&self) -> u64 {
        self.0.state.lock().0.limit()
    }

    /// How many are.
    pub fn in_flight(&self) -> u64 {
        self.0.state.lock().1
    }

    /// How many samples the window has so far, and whether one was dropped.
    #[cfg(all(test, feature = "tower"))]
    pub(crate) fn sampled(&self) -> (u64, bool) {
        let state = self.0.state.lock();
        (state.0.samples, state.0.drops > 0)
    }

    /// A permit for a request, which counts as under way until the permit ends; `None` if as many are as may be. When one
    /// becomes free is unknown.
    pub fn permit(&self) -> Option<Permit> {
        let mut state = self.0.state.lock();
        if state.1 >= state.0.limit() {
            return None;
        }
        state.1 += 1;
        Some(Permit { of: self.clone(), begun: now(), in_flight: state.1, outcome: None })
    }
}

/// A request that is under way, until [`done`](Self::done), [`overloaded`](Self::overloaded) or its drop. A permit that is
/// just dropped, as by `?` or with its task, says nothing of the load: a fast error would raise the limit.
#[derive(Debug)]
#[must_use = "the request is under way for as long as its permit is kept"]
pub struct Permit {
    of: Adaptive,
    begun: tokio::time::Instant,
    /// How many were under way when it began, it included.
    in_flight: u64,
    /// Whether it was dropped, once it has ended.
    outcome: Option<bool>,
}

impl Permit {
    /// The request was answered: its time counts.
    pub fn done(mut self) {
        self.outcome = Some(false);
    }

    /// The service is overloaded: a time-out, HTTP 429 or 503, `UNAVAILABLE`, `RESOURCE_EXHAUSTED`. The limit falls when
    /// more than 5 % of a window's requests end so.
    pub fn overloaded(mut self) {
        self.outcome = Some(true);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let Inner { options, state, begun } = &*self.of.0;
        let end = now();
        let mut state = state.lock();
        state.1 -= 1;
        if let Some(is_dropped) = self.outcome {
            let sample = Sample {
                end: micros(end.saturating_duration_since(*begun)),
                rtt: micros(end.saturating_duration_since(self.begun)),
                in_flight: self.in_flight,
                is_dropped,
            };
            state.0.step(options, sample);
        }
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// A request that has ended; times in µs.
#[derive(Clone, Copy, Debug)]
struct Sample {
    end: u64,
    rtt: u64,
    in_flight: u64,
    is_dropped: bool,
}

/// What the limit depends on; times in µs.
#[derive(Clone, Debug, PartialEq)]
struct State {
    /// When the window ends.
    ends: Option<u64>,
    // Of the window.
    samples: u64,
    sum: u64,
    in_flight: u64,
    drops: u64,
    /// How many windows the long-time mean is of, at first, and the sum of theirs.
    windows: u64,
    total: f64,
    long: f64,
    /// The limit before rounding.
    estimate: f64,
}

impl State {
    fn new(min: u64) -> Self {
        let (samples, sum, in_flight, drops) = (0, 0, 0, 0);
        let (windows, total, long) = (0, 0.0, 0.0);
        Self { ends: None, samples, sum, in_flight, drops, windows, total, long, estimate: min as f64 }
    }

    fn limit(&self) -> u64 {
        self.estimate as u64
    }

    /// Adds a sample; the first behind the window's end closes it.
    fn step(&mut self, options: &AdaptiveBuilder, sample: Sample) {
        if sample.rtt < SHORTEST {
            return;
        }
        self.samples += 1;
        self.sum = self.sum.saturating_add(sample.rtt);
        self.in_flight = self.in_flight.max(sample.in_flight);
        self.drops += u64::from(sample.is_dropped);
        let ends = sample.end.saturating_add(micros(options.window));
        match self.ends {
            None => self.ends = Some(ends),
            Some(end) if sample.end > end => {
                if self.samples >= FEWEST {
                    match options.algorithm {
                        Algorithm::Aimd => self.aimd(options),
                        Algorithm::Gradient2 => self.gradient2(options),
                    }
                }
                (self.samples, self.sum, self.in_flight, self.drops) = (0, 0, 0, 0);
                self.ends = Some(ends);
            }
            Some(_) => {}
        }
    }

    fn mean(&self) -> f64 {
        self.sum as f64 / self.samples as f64
    }

    /// Whether more than a trickle was dropped.
    fn is_overloaded(&self) -> bool {
        self.drops * SAMPLES_A_DROP > self.samples
    }

    /// Whether at least half of the limit was in use.
    fn is_used(&self) -> bool {
        2.0 * self.in_flight as f64 >= self.estimate
    }

    fn aimd(&mut self, options: &AdaptiveBuilder) {
        let limit = self.limit();
        if self.is_overloaded() || self.mean() > micros(options.timeout) as f64 {
            self.estimate = (limit - 1).min(9 * limit / 10).max(options.min) as f64;
        } else if self.is_used() {
            self.estimate = (self.estimate + 1.0).min(options.max as f64);
        }
    }

    fn gradient2(&mut self, options: &AdaptiveBuilder) {
        let (min, max, mean) = (options.min as f64, options.max as f64, self.mean());
        if self.is_overloaded() {
            self.estimate = (0.9 * self.estimate).max(min);
            return;
        }
        if self.windows < FIRST_WINDOWS {
            self.windows += 1;
            self.total += mean;
            self.long = self.total / self.windows as f64;
        } else {
            self.long += (mean - self.long) * 2.0 / LATER_WINDOWS;
        }
        let gradient = (1.5 * self.long / mean).clamp(0.5, 1.0);
        if self.long / mean > 2.0 {
            self.long *= 0.95;
        }
        if self.is_used() {
            let wanted = self.estimate * gradient + 4.0;
            self.estimate = (0.8 * self.estimate + 0.2 * wanted).min(max).max(min);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{json, Value};

    use super::*;

    fn vectors(part: &str) -> Vec<Value> {
        let vectors: Value =
            serde_json::from_str(include_str!("../../../tests/conformance/vectors/adaptive.json")).unwrap();
        vectors[part].as_array().unwrap().clone()
    }

    fn number(of: &Value) -> u64 {
        of.as_u64().unwrap_or_else(|| panic!("{of} is no number"))
    }

    fn options(case: &Value) -> AdaptiveBuilder {
        let of = |name: &str| number(&case["options"][name]);
        let algorithm = match case["options"]["algorithm"].as_str().unwrap() {
            "aimd" => Algorithm::Aimd,
            "gradient2" => Algorithm::Gradient2,
            other => panic!("{other}"),
        };
        let (window, timeout) = (Duration::from_micros(of("window_us")), Duration::from_micros(of("timeout_us")));
        AdaptiveBuilder { min: of("min"), max: of("max"), algorithm, window, timeout }
    }

    /// As the vectors show it.
    fn shown(state: &State) -> Value {
        json!({"ends_us": state.ends, "samples": state.samples, "sum_us": state.sum, "inflight": state.in_flight,
               "drops": state.drops, "windows": state.windows, "windows_us": state.total,
               "long_us": state.long, "estimate": state.estimate})
    }

    #[test]
    fn each_sample_does_what_the_vectors_say() {
        for case in vectors("samples") {
            let options = options(&case);
            let mut state = State::new(options.min);
            for step in case["steps"].as_array().unwrap() {
                let [end, rtt, in_flight] = [0, 1, 2].map(|at| number(&step["sample"][at]));
                let is_dropped = step["sample"][3].as_bool().unwrap();
                state.step(&options, Sample { end, rtt, in_flight, is_dropped });
                assert_eq!(shown(&state), step["state"], "{}: {step}", case["name"]);
            }
        }
    }

    #[test]
    fn each_phase_leads_where_the_vectors_say() {
        for case in vectors("phases") {
            let options = options(&case);
            let (mut state, mut windows, window) = (State::new(options.min), 0, micros(options.window) + 1);
            let mut expected = case["states"].as_array().unwrap().iter().peekable();
            for phase in case["phases"].as_array().unwrap() {
                let of = |name: &str| number(&phase[name]);
                let share = [0, 1, 2].map(|at| phase["share"][at].as_i64().unwrap());
                for n in 0..of("windows") {
                    let in_flight = (state.limit() as i64 * share[0] / share[1] + share[2]) as u64;
                    let mut rtt = of("rtt_us") + n * of("ramp_us");
                    if of("capacity") > 0 {
                        rtt = rtt * in_flight.max(of("capacity")) / of("capacity");
                    }
                    let samples = of("samples");
                    for i in 0..samples {
                        let (end, is_dropped) = (windows * window + window * (i + 1) / samples, i < of("drops"));
                        state.step(&options, Sample { end, rtt: rtt + i, in_flight, is_dropped });
                    }
                    windows += 1;
                    if let Some(next) = expected.next_if(|next| number(&next["windows"]) == windows) {
                        assert_eq!(shown(&state), next["state"], "{}: {windows}", case["name"]);
                    }
                }
            }
            assert!(expected.next().is_none());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn permits_are_given_up_to_the_limit_and_their_ends_move_it() {
        let adaptive = Adaptive::builder().min(2).max(3).algorithm(Algorithm::Aimd).build().unwrap();
        let window = async |outcome: fn(Permit)| {
            for _ in 0..30 {
                let permits: Vec<_> = std::iter::from_fn(|| adaptive.permit()).collect();
                assert_eq!((permits.len() as u64, adaptive.in_flight()), (adaptive.limit(), adaptive.limit()));
                tokio::time::advance(Duration::from_millis(110)).await;
                permits.into_iter().for_each(outcome);
                assert_eq!(adaptive.in_flight(), 0);
            }
        };
        window(drop).await;
        assert_eq!(adaptive.limit(), 2);
        window(Permit::done).await;
        assert_eq!(adaptive.limit(), 3);
        window(Permit::overloaded).await;
        assert_eq!(adaptive.limit(), 2);
        window(Permit::done).await;
        assert_eq!(adaptive.limit(), 3);
        for wrong in [Adaptive::builder().min(0), Adaptive::builder().max(19)] {
            assert!(wrong.build().is_err());
        }
        assert!(Adaptive::builder().window(Duration::ZERO).build().is_err());
    }
}
