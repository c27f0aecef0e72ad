//! Errors.

/// Why there is no decision.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An argument is wrong: a limit, a duration or a cost out of range, a URL that cannot be read. In the words of the
    /// server.
    #[error("{0}")]
    Invalid(String),
    /// The server is there, but has not loaded the module.
    #[error(
        "the server has not loaded swlimit: start it with `--loadmodule PATH/swlimit.so`, or add `loadmodule PATH/swlimit.so` to \
         its configuration"
    )]
    ModuleMissing,
    /// The server decides with the script, which has no such command.
    #[error("this needs the module, and the server decides with the script: load the module")]
    NeedsModule,
    /// The server cannot decide now: away, too slow, loading, out of memory, read-only. `allow`, `peek`, `acquire` and
    /// several limits at once return this only with [`OnFailure::Error`](crate::OnFailure::Error).
    #[error("the server is away: {0}")]
    Away(String),
    /// The server refused the command: its own words, which begin with a code such as `WRONGTYPE` or `NOPERM`.
    #[error("{0}")]
    Refused(String),
    /// The server's reply is not one to the command.
    #[error("the server's reply is not understood: {0}")]
    Answer(String),
    /// The client has no server to do that with.
    #[error("{0} needs a server")]
    NoServer(&'static str),
}

impl Error {
    /// Whether there is no such command, or not for this user; which keys the user may use is another matter.
    pub(crate) fn is_unknown_or_forbidden(&self) -> bool {
        match self {
            Self::ModuleMissing | Self::NeedsModule => true,
            Self::Refused(text) => text.starts_with("NOPERM") && text.ends_with(" command"),
            _ => false,
        }
    }
}
