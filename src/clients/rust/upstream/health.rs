//! What a reply says about the server's health.

use crate::protocol::{is_unknown_command, NOT_EXECUTED};
use crate::servers::Reason;
use crate::transport::{Failure, Reply};

/// Codes of errors with which a server says that it cannot decide now, but may later.
const FAILURES: [&str; 11] = [
    "BUSY",
    "CLUSTERDOWN",
    "FAILOVER",
    "LOADING",
    "MASTERDOWN",
    "MISCONF",
    "NOAUTH",
    "NOREPLICAS",
    "OOM",
    "READONLY",
    "WRONGPASS",
];

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
    let code = error.split(' ').next().unwrap_or_default();
    FAILURES.contains(&code)
        || code == NOT_EXECUTED
        || redirection_of(error).is_some()
        || error.contains("max number of clients")
}

/// Why there is no reply; or the first error among the replies with which the server says that it cannot decide now. A
/// redirection is one only where it was followed already.
pub(super) fn failure(reply: &Result<Reply, Failure>, is_redirected: bool) -> Option<&str> {
    match reply {
        Err(Failure::Connection(cause)) => Some(cause.as_str()),
        Err(Failure::Refused(text)) => Some(text),
        Ok(Reply::Array(replies)) => replies.iter().find_map(|reply| error(reply, is_redirected)),
        Ok(reply) => error(reply, is_redirected),
    }
}

fn error(reply: &Reply, is_redirected: bool) -> Option<&str> {
    match reply {
        Reply::Error(text) if redirection_of(text).is_some() => is_redirected.then_some(text),
        Reply::Error(text) => is_failure(text).then_some(text),
        _ => None,
    }
}

/// What a failure comes to, by the words of the server, the system or the client.
pub(super) fn reason(text: &str) -> Reason {
    let code = text.split(' ').next().unwrap_or_default();
    if let Some(code) = FAILURES.into_iter().find(|known| *known == code) {
        return if matches!(code, "NOAUTH" | "WRONGPASS") { Reason::Password } else { Reason::Code(code) };
    }
    let text = text.to_ascii_lowercase();
    let of = |words: &[&str]| words.iter().any(|words| text.contains(words));
    match () {
        () if of(&["connection refused", "no such file"]) => Reason::Refused,
        () if of(&["lookup address", "no address found"]) => Reason::Unresolved,
        () if of(&["certificate", "tls", "fatal alert", "corrupt message"]) => Reason::Certificate,
        () if of(&["password", "authentication"]) => Reason::Password,
        () if of(&["max number of clients"]) => Reason::TooManyClients,
        () if of(&["unknown command", "the module is missing"]) => Reason::ModuleMissing,
        () if of(&["no reply", "no connection within", "not answered", "silent", "timed out"]) => Reason::NoAnswer,
        () if of(&["broken pipe", "reset", "end of file", "closed", "terminated", "not made"]) => Reason::Disconnected,
        () => Reason::Other,
    }
}

/// Whether an error refuses writes, and what reads says nothing about it.
pub(super) fn refuses_writes(error: &str) -> bool {
    let code = error.split(' ').next().unwrap_or_default();
    matches!(code, "MISCONF" | "NOREPLICAS" | "OOM" | "READONLY")
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
        assert_eq!(failure(&Ok(Reply::Array(replies.to_vec())), false), Some("LOADING y"));
        assert_eq!(failure(&Ok(Reply::Array(replies[..2].to_vec())), false), None);
    }

    #[test]
    fn reasons_are_told_apart() {
        for (text, expected) in [
            ("Connection refused (os error 111)", Reason::Refused),
            ("failed to lookup address information: Name or service not known", Reason::Unresolved),
            ("invalid peer certificate: UnknownIssuer", Reason::Certificate),
            ("received fatal alert: CertificateRequired", Reason::Certificate),
            ("WRONGPASS invalid username-password pair or user is disabled.", Reason::Password),
            ("NOAUTH Authentication required.", Reason::Password),
            ("READONLY You can't write against a read only replica.", Reason::Code("READONLY")),
            ("ERR max number of clients reached", Reason::TooManyClients),
            ("ERR unknown command 'SWLIMIT.ALLOW'", Reason::ModuleMissing),
            ("no reply in time", Reason::NoAnswer),
            ("Connection reset by peer (os error 104)", Reason::Disconnected),
            ("what nobody thought of", Reason::Other),
        ] {
            assert_eq!(reason(text), expected, "{text}");
        }
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
