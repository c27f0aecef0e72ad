//! A limit that rises after idleness: the arithmetic, without clock and keys. `tests/conformance/vectors/README.md` has it in words.

use std::time::Duration;

use swlimit_window::MAX_WINDOW;

use crate::clock::ms;
use crate::error::Error;
use crate::quota::Quota;

/// A limit rises in so many steps.
const STEPS: u64 = 20;
/// How much of the limit there is at first, unless set: one part of so many.
pub(crate) const COLD: f64 = 3.0;

/// How limits rise.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WarmUp {
    /// How long a limit rises, in ms.
    length: u64,
    cold: f64,
    /// A key that nobody has asked about for so many ms may be idle.
    quiet: u64,
}

/// What a process knows of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct State {
    /// How long the limit has been rising, in ms.
    t: u64,
    /// When that was.
    at: u64,
    /// The last step in which the server was asked how much is counted.
    looked: Option<u64>,
}

/// A reply to a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reply {
    /// The limit that was asked with.
    pub asked: u64,
    /// The units that this request has counted.
    pub granted: u64,
    pub remaining: u64,
}

impl State {
    /// When it was that of the key, in ms.
    pub fn at(&self) -> u64 {
        self.at
    }
}

impl WarmUp {
    /// # Errors
    /// [`Error::Invalid`] for what does not go with the quota.
    pub fn new(length: Duration, cold: f64, quota: &Quota) -> Result<Self, Error> {
        let invalid = |text: &str| Err(Error::Invalid(text.into()));
        let (length, window) = (ms(length), ms(quota.window()));
        if length > MAX_WINDOW {
            return invalid("warm_up must be at most 3650 days");
        }
        if length < 10 * window {
            return invalid("warm_up must be at least ten times the window");
        }
        if !(cold > 1.0 && cold <= 1000.0) {
            return invalid("cold must be above 1 and at most 1000");
        }
        Ok(Self { length, cold, quiet: window + ms(quota.resolution()) })
    }

    /// How long a limit rises, in ms.
    pub fn length(&self) -> u64 {
        self.length
    }

    fn step(&self, t: u64) -> u64 {
        STEPS * t / self.length
    }

    /// When a step begins.
    fn begin(&self, step: u64) -> u64 {
        (step * self.length).div_ceil(STEPS)
    }

    /// The limit in a step.
    fn limit(&self, limit: u64, step: u64) -> u64 {
        if step >= STEPS {
            return limit;
        }
        let square = self.cold * self.cold;
        let left = square - (square - 1.0) * step as f64 / STEPS as f64;
        ((limit as f64 / left.sqrt()) as u64).max(1).min(limit)
    }

    /// How long the limit must have been rising where so many units are counted.
    fn shown(&self, limit: u64, used: u64) -> u64 {
        if used == 0 || used as f64 * self.cold <= limit as f64 {
            return 0;
        }
        let (square, ratio) = (self.cold * self.cold, limit as f64 / used as f64);
        let part = (square - ratio * ratio) / (square - 1.0);
        ((self.length as f64 * part) as u64).min(self.length)
    }

    /// How long until the limit is at least the cost.
    pub fn wait(&self, state: State, limit: u64, cost: u64) -> u64 {
        let fits = |step: &u64| self.limit(limit, *step) >= cost;
        let step = (self.step(state.t)..STEPS).find(fits).unwrap_or(STEPS);
        self.begin(step).saturating_sub(state.t)
    }

    /// What is known of a key that is asked for the first time.
    pub fn begin_at(&self, now: u64) -> State {
        self.at(None, now)
    }

    /// The state at an instant, without news.
    fn at(&self, state: Option<State>, now: u64) -> State {
        match state {
            Some(State { t, at, looked }) if now.saturating_sub(at) < self.length => {
                State { t: (t + now.saturating_sub(at)).min(self.length), at: now, looked }
            }
            _ => State { t: 0, at: now, looked: None },
        }
    }

    /// The limit to ask with.
    pub fn ask(&self, state: Option<State>, now: u64, limit: u64) -> u64 {
        let is_quiet = state.is_none_or(|state| now.saturating_sub(state.at) >= self.quiet);
        self.limit(limit, if is_quiet { 0 } else { self.step(self.at(state, now).t) })
    }

    /// The state after a decision.
    pub fn feed(&self, state: Option<State>, now: u64, limit: u64, reply: Option<Reply>) -> State {
        let state = self.at(state, now);
        let Some(Reply { asked, granted, remaining }) = reply else { return state };
        let used = asked.saturating_sub(remaining);
        if granted > 0 && used <= granted {
            return State { t: 0, looked: None, ..state };
        }
        State { t: state.t.max(self.shown(limit, used)), ..state }
    }

    /// Whether to ask how much is counted, behind a denial.
    pub fn look(&self, state: &mut State) -> bool {
        let step = Some(self.step(state.t));
        let is_due = step > state.looked;
        state.looked = step.max(state.looked);
        is_due
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{json, Value};

    use super::*;

    fn vectors() -> Value {
        serde_json::from_str(include_str!("../../../tests/conformance/vectors/warm_up.json")).unwrap()
    }

    fn each<'a>(vectors: &'a Value, part: &str) -> impl Iterator<Item = &'a Value> {
        vectors[part].as_array().unwrap().iter()
    }

    fn number(case: &Value, name: &str) -> u64 {
        case[name].as_u64().unwrap_or_else(|| panic!("{name} of {case}"))
    }

    fn warm_up(case: &Value) -> WarmUp {
        let number = |name: &str, unless: u64| case[name].as_u64().unwrap_or(unless);
        WarmUp { length: number("warm_up", 1), cold: case["cold"].as_f64().unwrap_or(COLD), quiet: number("quiet", 0) }
    }

    fn state(state: &State) -> Value {
        json!([state.t, state.at, state.looked.map_or(-1, |step| step as i64)])
    }

    #[test]
    fn each_function_is_that_of_the_vectors() {
        let vectors = vectors();
        for case in each(&vectors, "limits") {
            let limits: Vec<_> = (0..=STEPS).map(|step| warm_up(case).limit(number(case, "limit"), step)).collect();
            assert_eq!(json!(limits), case["limits"], "{case}");
        }
        for case in each(&vectors, "steps") {
            let (warm_up, t) = (warm_up(case), number(case, "t"));
            let step = warm_up.step(t);
            let next = (step < STEPS).then(|| warm_up.begin(step + 1) - t);
            assert_eq!((json!(step), json!(next)), (case["step"].clone(), case["next"].clone()), "{case}");
        }
        for case in each(&vectors, "shown") {
            let shown = warm_up(case).shown(number(case, "limit"), number(case, "used"));
            assert_eq!(shown, number(case, "t"), "{case}");
        }
        for case in each(&vectors, "waits") {
            let state = State { t: number(case, "t"), at: 0, looked: None };
            let wait = warm_up(case).wait(state, number(case, "limit"), number(case, "cost"));
            assert_eq!(wait, number(case, "retry_after"), "{case}");
        }
        for case in each(&vectors, "refused") {
            let quota = Quota::per_window(1, number(case, "window")).unwrap();
            let length = Duration::from_millis(number(case, "warm_up"));
            let error =
                WarmUp::new(length, case["cold"].as_f64().unwrap(), &quota).err().map(|error| error.to_string());
            assert_eq!(json!(error), case["error"], "{case}");
        }
    }

    #[test]
    fn states_follow_the_traces_of_the_vectors() {
        let vectors = vectors();
        for trace in each(&vectors, "traces") {
            let (warm_up, limit, mut states) = (warm_up(trace), number(trace, "limit"), [None; 3]);
            for event in each(trace, "events") {
                let known = &mut states[number(event, "process") as usize];
                if let Some(asked) = event["ask"].as_u64() {
                    assert_eq!(warm_up.ask(*known, number(event, "now"), limit), asked, "{event}");
                    continue;
                }
                if let Some(fed) = event["fed"].as_array() {
                    let [asked, granted, remaining] = [0, 1, 2].map(|at| fed[at].as_u64().unwrap());
                    let reply = Some(Reply { asked, granted, remaining });
                    *known = Some(warm_up.feed(*known, number(event, "now"), limit, reply));
                } else {
                    assert_eq!(warm_up.look(known.as_mut().unwrap()), event["look"], "{event}");
                }
                assert_eq!(state(known.as_ref().unwrap()), event["state"], "{event}");
            }
        }
    }
}
