//! What a client knows of its servers.

use std::time::{Duration, SystemTime};

use crate::reason::Reason;

/// What a client knows of one server: the only one, or a primary of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerState {
    /// Its address, `host:port` or a path; of sentinels the primary's name and the sentinels.
    pub address: String,
    /// Whether requests can rely on it.
    pub state: State,
    /// Why it is unavailable or slow; `None` where it is neither.
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
    /// How it evicts keys, and limits with them; `None` where it does not, or where INFO does not say.
    pub eviction: Option<Eviction>,
}

/// How a server removes keys that have not expired, when they need more than its `maxmemory`. A limit whose key is
/// removed begins again. Only the policy `noeviction` is safe.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Eviction {
    /// Its `maxmemory-policy`, such as `volatile-lru`.
    pub policy: String,
    /// Its `maxmemory`, in bytes.
    pub max_memory: u64,
    /// Keys that it has evicted since it started.
    pub evicted_keys: u64,
}

impl Eviction {
    /// As INFO says in its sections `memory` and `stats`; `None` where nothing is evicted.
    pub(crate) fn read(info: &str) -> Option<Self> {
        let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let number = |name: &str| field(name).and_then(|number| number.parse().ok()).unwrap_or(0);
        let (policy, max_memory) = (field("maxmemory_policy:")?, number("maxmemory:"));
        let evicted_keys = number("evicted_keys:");
        (policy != "noeviction" && max_memory > 0).then(|| Self { policy: policy.into(), max_memory, evicted_keys })
    }
}

/// Whether requests can rely on a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum State {
    /// It answers in time, or was asked nothing yet.
    Up,
    /// Its round trip is above a timeout: requests with that timeout are decided by their policy, until one of the probes
    /// that are sent every half second is answered in time.
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

#[cfg(feature = "metrics")]
impl ServerState {
    /// Sets the server's gauges.
    pub(crate) fn publish(&self) {
        let gauge = |name, value: f64| metrics::gauge!(name, "server" => self.address.clone()).set(value);
        for (name, state) in
            [("swlimit_client_server_unavailable", State::Unavailable), ("swlimit_client_server_slow", State::Slow)]
        {
            gauge(name, if self.state == state { 1.0 } else { 0.0 });
        }
        gauge("swlimit_client_server_script", if self.backend == Some(Backend::Script) { 1.0 } else { 0.0 });
        gauge("swlimit_client_server_evicts", if self.eviction.is_some() { 1.0 } else { 0.0 });
        if let Some(eviction) = &self.eviction {
            gauge("swlimit_client_server_evicted_keys", eviction.evicted_keys as f64);
        }
        if let Some(round_trip) = self.round_trip {
            gauge("swlimit_client_server_round_trip_seconds", round_trip.as_secs_f64());
        }
    }
}

impl State {
    /// Its name in labels of metrics: `up`, `slow`, `unavailable`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Slow => "slow",
            Self::Unavailable => "unavailable",
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_evicts_where_it_has_a_limit_and_a_policy() {
        let of = |policy: &str, max_memory: u64| {
            Eviction::read(&format!("maxmemory:{max_memory}\r\nmaxmemory_policy:{policy}\r\nevicted_keys:7\r\n"))
        };
        let expected = Eviction { policy: "volatile-lru".into(), max_memory: 100, evicted_keys: 7 };
        assert_eq!(of("volatile-lru", 100), Some(expected));
        assert_eq!((of("volatile-lru", 0), of("noeviction", 100), Eviction::read("run_id:1")), (None, None, None));
    }
}
