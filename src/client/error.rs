//! What goes wrong.

use crate::wire::Failure;

/// Why there is no decision.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No server would take this: a limit, a duration or a cost out of range, a URL that cannot be read. In the words
    /// of the server.
    #[error("{0}")]
    Invalid(String),
    /// The server is there, but has not loaded the module.
    #[error(
        "the server has not loaded swlimit: start it with `--loadmodule PATH/swlimit.so`, or add `loadmodule PATH/swlimit.so` to \
         its configuration"
    )]
    ModuleMissing,
    /// The server cannot decide now: away, too slow, loading, out of memory, read-only. `allow`, `peek`, `acquire` and
    /// several limits at once do not return this but decide by the limiter's failure policy.
    #[error("the server is away: {0}")]
    Away(String),
    /// The server refused the command: its own words, which begin with a code such as `WRONGTYPE` or `NOPERM`.
    #[error("{0}")]
    Refused(String),
    /// The server said something that is not an answer to the command.
    #[error("the server's answer is not understood: {0}")]
    Answer(String),
    /// This limiter has no server to do that with.
    #[error("{0} needs a server")]
    OnlyLocal(&'static str),
}

/// The codes of errors that say that a server cannot decide now, but may later.
const AWAY: [&str; 13] = [
    "BUSY",
    "CLUSTERDOWN",
    "FAILOVER",
    "LOADING",
    "MASTERDOWN",
    "MISCONF",
    "MOVED",
    "NOREPLICAS",
    "OOM",
    "READONLY",
    "ASK",
    "TRYAGAIN",
    "UNBLOCKED",
];

impl Error {
    /// Whether there is no such command, or not for this user; which keys the user may use is another matter.
    pub(crate) fn is_unknown_or_forbidden(&self) -> bool {
        match self {
            Self::ModuleMissing => true,
            Self::Refused(text) => text.starts_with("NOPERM") && text.ends_with(" command"),
            _ => false,
        }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Connection(text) => Self::Away(text),
            Failure::Reply(text) => {
                let code = text.split(' ').next().unwrap_or_default();
                if AWAY.contains(&code) {
                    Self::Away(text)
                } else if text.to_ascii_lowercase().starts_with("err unknown command") {
                    Self::ModuleMissing
                } else {
                    Self::Refused(text)
                }
            }
        }
    }
}
