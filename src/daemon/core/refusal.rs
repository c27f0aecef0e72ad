//! Why a request gets no decision.

use std::borrow::Cow;

use swlimit_client::Error;

/// Why a request gets no decision. Each protocol has a status for each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The request is invalid.
    Invalid(Cow<'static, str>),
    /// The server is unavailable, and the limit says `on_failure: error`.
    Unavailable,
    /// The server refuses the command: the module, a permission or the key's type is wrong.
    Refused(String),
    /// The operation needs a server, and there is none.
    NeedsServer,
}

impl Refusal {
    pub fn invalid(message: impl Into<Cow<'static, str>>) -> Self {
        Self::Invalid(message.into())
    }

    /// The message for the caller.
    pub fn message(&self) -> &str {
        match self {
            Self::Invalid(message) => message,
            Self::Unavailable => "the counting server is unavailable",
            Self::Refused(message) => message,
            Self::NeedsServer => "this needs a server",
        }
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        match error {
            Error::Unavailable(_) => Self::Unavailable,
            Error::Invalid(message) => Self::Invalid(message.into()),
            Error::NoServer(_) => Self::NeedsServer,
            error => Self::Refused(error.to_string()),
        }
    }
}
