//! Why a request gets no decision.

use std::borrow::Cow;

use swlimit_client::{Backend, Client, Error};

/// Why a request gets no decision. Each protocol has a status for each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The request is invalid.
    Invalid(Cow<'static, str>),
    /// The server is away, and the limit says `on_failure: error`.
    Unavailable,
    /// The server refuses the command: the module, a permission or the key's type is wrong.
    Refused(String),
    /// The script wrote this key, and now the module decides.
    WrittenByScript(String),
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
            Self::Unavailable => "the counting server is away",
            Self::Refused(message) => message,
            Self::WrittenByScript(_) => {
                "the script wrote this key, and the module cannot read it: set another prefix, or module: never, or copy \
                 the keys with scripts/convert"
            }
            Self::NeedsServer => "this needs a server",
        }
    }

    /// Recognizes the error of a key that the script wrote, which takes another round trip.
    pub(super) async fn explained<'a>(self, client: &Client, keys: impl Iterator<Item = &'a str>) -> Self {
        if !matches!(&self, Self::Refused(text) if text.starts_with("WRONGTYPE")) {
            return self;
        }
        if client.servers().iter().any(|server| server.backend == Some(Backend::Script)) {
            return self;
        }
        for key in keys {
            match client.is_written_by_script(key).await {
                Ok(true) => return Self::WrittenByScript(key.into()),
                Ok(false) => {}
                Err(_) => return self, // the user may lack the right
            }
        }
        self
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
