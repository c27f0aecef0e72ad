//! Metrics of the configuration: which one is in force, how the last reload went, and which keys wait for a restart.

use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use metrics::{counter, describe_counter, describe_gauge, gauge, Counter};

const READ: &str = "swlimitd_configurations_total";
const TIMESTAMP: &str = "swlimitd_configuration_timestamp_seconds";
const INFO: &str = "swlimitd_configuration_info";
const RELOAD_SUCCESSFUL: &str = "swlimitd_configuration_last_reload_successful";
const RELOAD_TIMESTAMP: &str = "swlimitd_configuration_last_reload_timestamp_seconds";
const RESTART_NEEDED: &str = "swlimitd_restart_needed";

/// Metrics of the configuration.
pub struct ConfigurationMetrics {
    valid: Counter,
    invalid: Counter,
    state: Mutex<State>,
}

struct State {
    /// When the configuration in force was read, and its hash.
    in_force: (SystemTime, String),
    /// When one was read last, and whether it was valid.
    last: (SystemTime, bool),
    /// Changed keys that take effect at a start only.
    restart_keys: Vec<&'static str>,
}

impl ConfigurationMetrics {
    /// Describes the metrics. Call it after the recorder is installed.
    pub fn new() -> Self {
        describe_counter!(READ, "Configurations read, valid or invalid");
        describe_gauge!(TIMESTAMP, "Unix time at which the current configuration was read");
        describe_gauge!(INFO, "1, with the hash of the current configuration without its secrets");
        describe_gauge!(RELOAD_SUCCESSFUL, "1 if the configuration that was read last is valid");
        describe_gauge!(RELOAD_TIMESTAMP, "Unix time at which a configuration was read last");
        describe_gauge!(RESTART_NEEDED, "1 for each changed key that takes effect after a restart only");
        let read = |result| counter!(READ, "result" => result);
        let (never, hash, restart_keys) = (UNIX_EPOCH, String::new(), Vec::new());
        let state = State { in_force: (never, hash), last: (never, false), restart_keys };
        Self { valid: read("valid"), invalid: read("invalid"), state: Mutex::new(state) }
    }

    /// A configuration with this hash is in force from now on.
    pub fn changed(&self, hash: &str) {
        self.valid.increment(1);
        let now = SystemTime::now();
        let mut state = self.lock();
        state.in_force = (now, hash.into());
        state.last = (now, true);
    }

    /// The configuration in force was read again.
    pub fn unchanged(&self) {
        self.lock().last = (SystemTime::now(), true);
    }

    /// An invalid configuration was read; counted unless its error `is_known`.
    pub fn refused(&self, is_known: bool) {
        self.invalid.increment(u64::from(!is_known));
        self.lock().last = (SystemTime::now(), false);
    }

    /// Sets the keys that wait for a restart; returns whether one of them is new.
    pub fn set_restart_keys(&self, keys: Vec<&'static str>) -> bool {
        let before = std::mem::replace(&mut self.lock().restart_keys, keys.clone());
        keys.iter().any(|key| !before.contains(key))
    }

    /// The keys that wait for a restart.
    pub fn restart_keys(&self) -> Vec<&'static str> {
        self.lock().restart_keys.clone()
    }

    /// Sets all gauges, so that none expires.
    pub fn publish(&self) {
        let state = self.lock();
        let seconds = |at: SystemTime| at.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs_f64();
        let ((read, hash), (last, is_valid)) = (&state.in_force, state.last);
        gauge!(TIMESTAMP).set(seconds(*read));
        gauge!(INFO, "hash" => hash.clone()).set(1.0);
        gauge!(RELOAD_TIMESTAMP).set(seconds(last));
        gauge!(RELOAD_SUCCESSFUL).set(u8::from(is_valid));
        for key in &state.restart_keys {
            gauge!(RESTART_NEEDED, "key" => *key).set(1.0);
        }
        for counter in [&self.valid, &self.invalid] {
            counter.increment(0);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no code panics while it holds this lock")
    }
}
