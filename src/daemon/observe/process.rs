//! This process, among others.

use std::sync::OnceLock;
use std::time::Instant;

static STARTED: OnceLock<Instant> = OnceLock::new();

/// Remembers when the process started: the first call.
pub fn started() -> Instant {
    *STARTED.get_or_init(Instant::now)
}

/// The name of this machine.
pub fn host() -> String {
    gethostname::gethostname().to_string_lossy().into_owned()
}
