//! Whether the server can decide what is configured.

use std::time::Duration;

use swlimit_client::{Backend, Client, Error, ServerState};

use super::rights;
use crate::config::limits::Limits;

/// A check without an answer is repeated at once: three failures open the client's breaker, which then says why.
const TRIES: usize = 3;

/// What a check has found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Checked {
    /// Why the server cannot decide: it does not answer, knows another password, or has not loaded the module.
    pub error: Option<Error>,
    /// The module is not loaded: the script decides.
    pub by_script: bool,
    /// Rights that its user lacks.
    pub lacks: Vec<String>,
    pub servers: Vec<ServerState>,
}

impl Checked {
    /// Why the server cannot decide until its operator changes something; `None` if it can, or does not answer.
    pub fn unusable(&self) -> Option<String> {
        self.error.as_ref().filter(|error| !matches!(error, Error::Unavailable(_))).map(Error::to_string)
    }

    /// The rights without which limits are not decided.
    pub fn lacks_to_decide(&self) -> impl Iterator<Item = &str> {
        self.lacks.iter().map(String::as_str).filter(|right| rights::is_needed_to_decide(right))
    }

    /// Whether it answers, and all limits are decided.
    pub fn can_decide(&self) -> bool {
        self.error.is_none() && self.lacks_to_decide().next().is_none()
    }
}

/// Whether the server answers within a second, knows the password, has loaded the module or lets the script decide, and
/// allows its user what the limits need.
pub async fn check(checker: &Client, limits: &Limits) -> Checked {
    let mut needed = rights::needed(limits);
    if needed.is_empty() {
        needed.push(("swlimit:connected".into(), Vec::new())); // callers of the API bring limits
    }
    let mut checked = Checked::default();
    for (key, rights) in needed {
        match forbidden(checker, &key, &rights).await {
            Ok(missing) => checked.lacks.extend(missing),
            Err(error) => {
                checked.error = Some(error);
                break;
            }
        }
    }
    checked.lacks.sort_unstable();
    checked.lacks.dedup();
    checked.servers = checker.servers();
    checked.by_script = checked.servers.iter().any(|server| server.backend == Some(Backend::Script));
    checked
}

async fn forbidden(checker: &Client, key: &str, rights: &[&str]) -> Result<Vec<String>, Error> {
    let mut tries = TRIES;
    loop {
        tries -= 1;
        match checker.forbidden(key, rights).await {
            Err(Error::Unavailable(_)) if tries > 0 => {}
            found => return found,
        }
    }
}

/// The shortest of a few round trips to the slowest server; `None` without one.
pub async fn fastest_trip(checker: &Client) -> Option<Duration> {
    let mut fastest: Option<Duration> = None;
    for _ in 0..TRIES {
        let _ = checker.forbidden("swlimit:connected", &["ping"]).await;
        let trip = checker.servers().iter().filter_map(|server| server.round_trip).max();
        fastest = [fastest, trip].into_iter().flatten().min();
    }
    fastest
}
