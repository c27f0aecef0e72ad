//! What a client knows of its servers.

use std::time::{Duration, SystemTime};

/// What a client knows of one server: the only one, or a primary of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerState {
    /// Its address, `host:port` or a path; of sentinels the primary's name and the sentinels.
    pub address: String,
    /// Whether requests can rely on it.
    pub state: State,
    /// Why it is unavailable; `None` unless it is.
    pub reason: Option<Reason>,
    /// The same in the words of the server, the system or the client; empty unless it is unavailable.
    pub message: String,
    /// Since when its state is what it is, by this machine's clock; at first, since the client knows of it.
    pub since: SystemTime,
    /// Which rights beside the module's commands the client's servers refused when they were needed last, as ACLs name
    /// them: `client|tracking` and `pttl`, without which denials are remembered for
    /// [`max_untracked_age`](crate::ClientBuilder::max_untracked_age) only; `time` and `info`, without which limiters of
    /// mode [`Leased`](crate::Mode::Leased) decide as those of mode [`Cached`](crate::Mode::Cached); `cluster|slots`,
    /// without which a cluster is unavailable. Each is logged once.
    pub lacks: Vec<&'static str>,
    /// How long the last reply took, in time or late; `None` before the first.
    pub round_trip: Option<Duration>,
    /// What decides there; `None` until that is known.
    pub backend: Option<Backend>,
}

/// Whether requests can rely on a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum State {
    /// It answers in time, or was asked nothing yet.
    Up,
    /// It answers, and in the last second that it was asked, at least once after the timeout.
    Slow,
    /// The breaker is open: requests are decided without it.
    Unavailable,
}

/// What decides on a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Backend {
    /// The module.
    Module,
    /// The script, in which nobody waits, and which has no `top`.
    Script,
}

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
    Password,
    /// Nothing comes back, or too late.
    NoAnswer,
    /// The connection broke.
    Disconnected,
    /// It serves no more clients.
    TooManyClients,
    /// The module is no longer loaded.
    ModuleMissing,
    /// It answers with an error that begins with this code, such as `READONLY`, `OOM` or `LOADING`.
    Code(&'static str),
    /// Something else: see the message.
    Other,
}

#[cfg(feature = "metrics")]
impl ServerState {
    /// Sets the server's gauges.
    pub(crate) fn publish(&self) {
        let gauge = |name, value: f64| metrics::gauge!(name, "server" => self.address.clone()).set(value);
        for (name, state) in
            [("swlimit_client_server_away", State::Unavailable), ("swlimit_client_server_slow", State::Slow)]
        {
            gauge(name, if self.state == state { 1.0 } else { 0.0 });
        }
        gauge("swlimit_client_server_script", if self.backend == Some(Backend::Script) { 1.0 } else { 0.0 });
        if let Some(round_trip) = self.round_trip {
            gauge("swlimit_client_server_round_trip_seconds", round_trip.as_secs_f64());
        }
    }
}

impl State {
    /// Its name in labels of metrics: `up`, `slow`, `away`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Slow => "slow",
            Self::Unavailable => "away",
        }
    }
}

impl Backend {
    /// Its name: `module`, `script`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Module => "module",
            Self::Script => "script",
        }
    }
}

impl Reason {
    /// Its name in labels of metrics: `refused`, `unresolved`, `certificate`, `password`, `no_answer`, `disconnected`,
    /// `too_many_clients`, `module_missing`, `other`, or the code.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::Unresolved => "unresolved",
            Self::Certificate => "certificate",
            Self::Password => "password",
            Self::NoAnswer => "no_answer",
            Self::Disconnected => "disconnected",
            Self::TooManyClients => "too_many_clients",
            Self::ModuleMissing => "module_missing",
            Self::Code(code) => code,
            Self::Other => "other",
        }
    }
}
