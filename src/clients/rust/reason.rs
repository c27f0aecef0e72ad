//! Why a server is unavailable.

/// Why a server is unavailable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// Nobody listens at the address.
    Refused,
    /// The name has no address.
    Unresolved,
    /// The TLS handshake failed, usually because of the certificate.
    Certificate,
    /// The password or the user is wrong, or is missing.
    Auth,
    /// Nothing comes back, or too late.
    NoAnswer,
    /// The connection broke.
    Disconnected,
    /// It serves no more clients.
    TooManyClients,
    /// Its replies are not understood.
    BadReply,
    /// Replies take longer than the timeout.
    Slow,
    /// The module is no longer loaded.
    ModuleMissing,
    /// It is part of a cluster, and redirects to others, which the client does not follow.
    Cluster,
    /// It answers with an error that begins with this code, such as `READONLY`, `OOM` or `LOADING`.
    Code(&'static str),
    /// Something else: see the message.
    Other,
}

/// Codes of errors with which a server says that it cannot decide now, but may later.
const CODES: [&str; 9] =
    ["BUSY", "CLUSTERDOWN", "FAILOVER", "LOADING", "MASTERDOWN", "MISCONF", "NOREPLICAS", "OOM", "READONLY"];

impl Reason {
    /// What an error of the server's comes to, by its code; `None` for errors that are the caller's. The server has no
    /// codes for too many clients, for passwords before Redis 6, and for unknown commands: these have fixed beginnings.
    pub(crate) fn of_error(error: &str) -> Option<Self> {
        let code = error.split(' ').next().unwrap_or_default();
        if let Some(code) = CODES.into_iter().find(|known| *known == code) {
            return Some(Self::Code(code));
        }
        match code {
            "NOAUTH" | "WRONGPASS" => Some(Self::Auth),
            "MOVED" | "ASK" => Some(Self::Cluster),
            "WRONGTYPE" | "NOPERM" | "UNBLOCKED" | "CROSSSLOT" => None,
            "ERR" if error.starts_with("ERR max number of clients") => Some(Self::TooManyClients),
            "ERR" if error.starts_with("ERR invalid password") || error.starts_with("ERR AUTH ") => Some(Self::Auth),
            "ERR" if is_unknown_command(error) => Some(Self::ModuleMissing),
            "ERR" => None,
            _ => Some(Self::Other),
        }
    }

    /// Whether it says nothing about reads.
    pub(crate) fn refuses_writes(self) -> bool {
        matches!(self, Self::Code("MISCONF" | "NOREPLICAS" | "OOM" | "READONLY"))
    }

    /// Its name in labels of metrics: `refused`, `unresolved`, `certificate`, `auth`, `bad_reply`, `slow`, `no_answer`,
    /// `disconnected`, `too_many_clients`, `module_missing`, `cluster`, `other`, or the code.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::Unresolved => "unresolved",
            Self::Certificate => "certificate",
            Self::Auth => "auth",
            Self::BadReply => "bad_reply",
            Self::Slow => "slow",
            Self::NoAnswer => "no_answer",
            Self::Disconnected => "disconnected",
            Self::TooManyClients => "too_many_clients",
            Self::ModuleMissing => "module_missing",
            Self::Cluster => "cluster",
            Self::Code(code) => code,
            Self::Other => "other",
        }
    }
}

/// Whether an error says that the server, or the service before it, has no such command.
pub(crate) fn is_unknown_command(error: &str) -> bool {
    let is = |start: &str| error.get(..start.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(start));
    is("ERR unknown command") || is("ERR command is not available") || is("ERR unsupported command")
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn reasons_are_those_of_the_vectors() {
        let vectors: Value =
            serde_json::from_str(include_str!("../../../tests/conformance/vectors/reasons.json")).unwrap();
        let words = vectors["words"].as_array().unwrap();
        for case in vectors["replies"].as_array().unwrap() {
            let reason = Reason::of_error(case["reply"].as_str().unwrap()).map(Reason::as_str);
            assert_eq!(reason, case["reason"].as_str(), "{case}");
            assert!(reason.is_none_or(|reason| words.iter().any(|word| word == reason)), "{case}");
        }
    }
}
