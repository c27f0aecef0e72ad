//! Where the script's text has to be sent: EVALSHA is answered only by servers that know it.

use std::collections::HashSet;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Keys that are remembered because their command was sent with the text.
const MOST_KEYS: usize = 1024;
/// How often EVALSHA is tried at a server that forgets the script; each pause is up to a half shorter or longer.
const TRIED: Duration = Duration::from_secs(60);

/// How one server knows the script.
#[derive(Default)]
pub(super) struct Texts {
    /// One text is under way at a time.
    pub sending: tokio::sync::Mutex<()>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// How many texts were sent.
    sent: u64,
    keys: HashSet<Box<[u8]>>,
    /// The server forgets the script: all goes with the text, until EVALSHA is tried at this instant.
    forgets_until: Option<Instant>,
    was_logged: bool,
}

impl Texts {
    /// Whether a command goes with the text. Now and then it is tried without.
    pub fn needs_text(&self) -> bool {
        let mut state = self.state.lock();
        let Some(until) = state.forgets_until else { return false };
        let now = Instant::now();
        if now >= until {
            state.forgets_until = Some(now + pause());
        }
        now < until
    }

    /// How many texts were sent so far.
    pub fn sent(&self) -> u64 {
        self.state.lock().sent
    }

    /// A command of a key was sent with the text.
    pub fn was_sent(&self, key: &[u8]) {
        let mut state = self.state.lock();
        state.sent += 1;
        if state.keys.len() >= MOST_KEYS {
            state.keys.clear();
        }
        state.keys.insert(key.into());
    }

    /// The server does not know the script for a key. Where that had the text before, the server forgets it.
    pub fn is_unknown(&self, key: &[u8]) {
        let mut state = self.state.lock();
        if state.forgets_until.is_some() || !state.keys.contains(key) {
            return;
        }
        state.forgets_until = Some(Instant::now() + pause());
        if !std::mem::replace(&mut state.was_logged, true) {
            tracing::warn!("the rate limit server forgets the script: its text is sent with each command");
        }
    }

    /// EVALSHA was answered.
    pub fn is_known(&self) {
        let mut state = self.state.lock();
        if state.forgets_until.take().is_some() {
            state.keys.clear();
        }
    }
}

fn pause() -> Duration {
    TRIED.mul_f64(0.5 + fastrand::f64())
}
