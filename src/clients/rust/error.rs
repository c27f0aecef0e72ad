//! Errors.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

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
    /// The server decides with the script, which has no such command.
    NeedsModule,
    /// The server cannot decide now: not reached, too slow, loading, out of memory, read-only. `allow`, `peek`, `acquire`
    /// and several limits at once return this only with [`OnFailure::Error`](crate::OnFailure::Error).
    Unavailable(Cause),
    /// The server refused the command: its own words, which begin with a code such as `WRONGTYPE` or `NOPERM`.
    Refused(String),
    /// The server's reply is not one to the command.
    Answer(String),
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
            Self::Unavailable(cause) => write!(f, "the server is away: {cause}"),
            Self::Answer(reply) => write!(f, "the server's reply is not understood: {reply}"),
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
    /// Whether there is no such command, or not for this user; which keys the user may use is another matter.
    pub(crate) fn is_unknown_or_forbidden(&self) -> bool {
        match self {
            Self::ModuleMissing | Self::ModuleTooOld(_) | Self::NeedsModule => true,
            Self::Refused(text) => text.starts_with("NOPERM") && text.ends_with(" command"),
            _ => false,
        }
    }
}

/// Why a server is unavailable: a text, and as its source the error of the library or the system, where there is one.
/// Equal texts are equal.
#[derive(Clone)]
pub struct Cause {
    text: Cow<'static, str>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

impl Cause {
    /// A text for an error.
    pub fn new(text: impl Into<Cow<'static, str>>, source: impl StdError + Send + Sync + 'static) -> Self {
        Self { text: text.into(), source: Some(Arc::new(source)) }
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl<T: Into<Cow<'static, str>>> From<T> for Cause {
    fn from(text: T) -> Self {
        Self { text: text.into(), source: None }
    }
}

impl PartialEq for Cause {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Cause {}

impl fmt::Debug for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl StdError for Cause {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}
