//! Errors.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use crate::reason::Reason;

/// Why there is no decision.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// An argument is wrong: a limit, a duration or a cost out of range, a URL that cannot be read. In the words of the
    /// server.
    Invalid(String),
    /// The server is there, but has not loaded the module.
    ModuleMissing,
    /// The server's module is older than this command of it.
    ModuleTooOld(String),
    /// The server is part of a cluster, and the client cannot follow its redirections: it was made over a connection to
    /// one node, or with [`Cluster::Off`](crate::Cluster::Off).
    NeedsCluster,
    /// The server decides with the script, which has no such command.
    NeedsModule,
    /// The server cannot decide now: not reached, too slow, loading, out of memory, read-only; or its reply is not
    /// understood. `allow`, `peek`, `acquire`
    /// and several limits at once return this only with [`OnFailure::Error`](crate::OnFailure::Error).
    Unavailable(Cause),
    /// The server refused the command: its own words, which begin with a code such as `WRONGTYPE` or `NOPERM`.
    Refused(String),
    /// The client has no server to do that with.
    NoServer(&'static str),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(text) | Self::Refused(text) => f.write_str(text),
            Self::ModuleMissing => f.write_str(
                "the server has not loaded swlimit: start it with `--loadmodule PATH/swlimit.so`, or add `loadmodule \
                 PATH/swlimit.so` to its configuration",
            ),
            Self::ModuleTooOld(command) => write!(f, "the server's module is too old for {command}: load a newer one"),
            Self::NeedsModule => {
                f.write_str("this needs the module, and the server decides with the script: load the module")
            }
            Self::NeedsCluster => f.write_str(
                "the server is part of a cluster: use `Client::connect` with its URL, or a \
                 `redis::cluster_async::ClusterConnection`",
            ),
            Self::Unavailable(cause) => write!(f, "the server is unavailable: {cause}"),
            Self::NoServer(what) => write!(f, "{what} needs a server"),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Unavailable(cause) => cause.source(),
            _ => None,
        }
    }
}

impl Error {
    /// Why the server is unavailable; `None` of other errors.
    pub fn reason(&self) -> Option<Reason> {
        match self {
            Self::Unavailable(cause) => Some(cause.reason()),
            _ => None,
        }
    }

    /// Whether there is no such command, or not for this user; which keys the user may use is another matter.
    pub(crate) fn is_unknown_or_forbidden(&self) -> bool {
        match self {
            Self::ModuleMissing | Self::ModuleTooOld(_) | Self::NeedsModule => true,
            Self::Refused(text) => text.starts_with("NOPERM") && text.ends_with(" command"),
            _ => false,
        }
    }
}

/// Why a server is unavailable: a reason, a text for people, and as its source the error of the library or the system,
/// where there is one. Equal reasons with equal texts are equal.
#[derive(Clone)]
pub struct Cause {
    reason: Reason,
    text: Cow<'static, str>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

/// At most so many bytes are quoted of what a server says.
const QUOTED: usize = 100;

impl Cause {
    /// A reason and a text for an error.
    pub fn new(
        reason: Reason,
        text: impl Into<Cow<'static, str>>,
        source: impl StdError + Send + Sync + 'static,
    ) -> Self {
        Self { source: Some(Arc::new(source)), ..reason.because(text) }
    }

    /// An error of the server's, in its words.
    pub(crate) fn said(text: String) -> Self {
        Reason::of_error(&text).unwrap_or(Reason::Other).because(text)
    }

    /// A reply that is not one to the command, which is quoted.
    pub(crate) fn unclear(reply: &impl fmt::Display) -> Self {
        static IS_LOGGED: AtomicBool = AtomicBool::new(false);
        let mut quoted = reply.to_string();
        if quoted.len() > QUOTED {
            let end = (0..=QUOTED).rev().find(|end| quoted.is_char_boundary(*end));
            quoted.truncate(end.unwrap_or_default());
            quoted.push('…');
        }
        if !IS_LOGGED.swap(true, Ordering::Relaxed) {
            tracing::warn!("a reply of the rate limit server is not understood: {quoted}");
        }
        Reason::BadReply.because(format!("the server's reply is not understood: {quoted}"))
    }

    /// The reason.
    pub fn reason(&self) -> Reason {
        self.reason
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl Reason {
    /// The cause with this reason, and a text for people.
    pub fn because(self, text: impl Into<Cow<'static, str>>) -> Cause {
        Cause { reason: self, text: text.into(), source: None }
    }
}

impl PartialEq for Cause {
    fn eq(&self, other: &Self) -> bool {
        self.reason == other.reason && self.text == other.text
    }
}

impl Eq for Cause {}

impl fmt::Debug for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// The text; `{:#}` has the reason before it.
impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if f.alternate() {
            write!(f, "{}: ", self.reason.as_str())?;
        }
        f.write_str(self.as_str())
    }
}

impl StdError for Cause {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}
