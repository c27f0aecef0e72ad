//! What a reply says about the server's health.

use crate::error::Cause;
use crate::protocol::TOO_OLD;
use crate::reason::{is_unknown_command, Reason};
use crate::transport::{Failure, Reply};

/// What a cluster's node says of a key that it cannot serve: nothing was executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Redirection {
    /// The slot has moved to this address.
    Moved(String),
    /// The key may be at this address: ask there, this once.
    Ask(String),
    /// Some of the keys are on their way.
    TryAgain,
}

/// Whether an error says that the server cannot decide now.
pub(crate) fn is_failure(error: &str) -> bool {
    Reason::of_error(error).is_some_and(|reason| reason != Reason::ModuleMissing) && !error.starts_with(TOO_OLD)
}

/// Why there is no reply; or the first error among the replies with which the server says that it cannot decide now. A
/// redirection is one only where it was followed already.
pub(super) fn failure(reply: &Result<Reply, Failure>, is_redirected: bool) -> Option<Cause> {
    match reply {
        Err(failure) => Some(failure.clone().into()),
        Ok(Reply::Array(replies)) => replies.iter().find_map(|reply| error(reply, is_redirected)),
        Ok(reply) => error(reply, is_redirected),
    }
}

fn error(reply: &Reply, is_redirected: bool) -> Option<Cause> {
    let Reply::Error(text) = reply else { return None };
    let is_failure = match redirection_of(text) {
        Some(_) => is_redirected,
        None => is_failure(text),
    };
    is_failure.then(|| Cause::said(text.clone()))
}

/// Whether the server is no primary any more, or none that may be written to.
pub(super) fn is_read_only(reply: &Result<Reply, Failure>) -> bool {
    let is = |reply: &Reply| matches!(reply, Reply::Error(text) if text.starts_with("READONLY"));
    match reply {
        Ok(Reply::Array(replies)) => replies.iter().any(is),
        Ok(reply) => is(reply),
        Err(_) => false,
    }
}

/// Whether a command, or the last of several, is one that the server does not know.
pub(super) fn is_unknown(reply: &Reply) -> bool {
    match reply {
        Reply::Error(text) => is_unknown_command(text),
        Reply::Array(replies) => replies.last().is_some_and(is_unknown),
        _ => false,
    }
}

/// The redirection of a command, or of the last of several: commands that go out together have keys of one slot.
pub(super) fn redirection(reply: &Reply) -> Option<Redirection> {
    match reply {
        Reply::Error(text) => redirection_of(text),
        Reply::Array(replies) => match replies.last() {
            Some(Reply::Error(text)) => redirection_of(text),
            _ => None,
        },
        _ => None,
    }
}

fn redirection_of(error: &str) -> Option<Redirection> {
    let mut words = error.split(' ');
    let (code, address) = (words.next(), words.nth(1).map(str::to_owned));
    match (code, address) {
        (Some("MOVED"), Some(address)) => Some(Redirection::Moved(address)),
        (Some("ASK"), Some(address)) => Some(Redirection::Ask(address)),
        (Some("TRYAGAIN"), _) => Some(Redirection::TryAgain),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_the_servers_and_not_the_callers() {
        for text in [
            "LOADING Redis is loading",
            "READONLY You can't write",
            "ERR max number of clients reached",
            "NOTEXECUTED connection reset",
        ] {
            assert!(is_failure(text), "{text}");
        }
        for text in ["WRONGTYPE Operation", "NOPERM no", "ERR count would overflow", "ERR unknown command 'X'"] {
            assert!(!is_failure(text), "{text}");
        }
        let replies = [Reply::Integer(1), Reply::Error("WRONGTYPE x".into()), Reply::Error("LOADING y".into())];
        let cause = failure(&Ok(Reply::Array(replies.to_vec())), false);
        assert_eq!(cause.map(|cause| cause.reason()), Some(Reason::Code("LOADING")));
        assert_eq!(failure(&Ok(Reply::Array(replies[..2].to_vec())), false), None);
    }

    #[test]
    fn redirections_are_read() {
        let of = |text: &str| redirection(&Reply::Error(text.into()));
        assert_eq!(of("MOVED 3999 127.0.0.1:6381"), Some(Redirection::Moved("127.0.0.1:6381".into())));
        assert_eq!(of("ASK 3999 127.0.0.1:6381"), Some(Redirection::Ask("127.0.0.1:6381".into())));
        assert_eq!(of("TRYAGAIN Multiple keys"), Some(Redirection::TryAgain));
        assert_eq!(of("MOVED"), None);
    }
}
