//! The client's limiters, which survive reloads.

use std::borrow::Cow;
use std::collections::HashMap;
use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use swlimit_client::{self as client, Backend, BudgetLimiter, Client, ConnectionOptions};

use super::brought::Brought;
use super::holds::BudgetKind;
use super::limiter::AnyLimiter;
use super::rights;
use crate::config::limits::{Lifetime, Limit, Limits, Per, Periods};
use crate::config::policy::DecisionPolicy;
use crate::config::settings::{Server, Settings};

/// A client of the configured server. It connects at its first use.
///
/// # Errors
/// The URL is invalid, or a file of `server_tls`.
pub fn client(settings: &Settings) -> Result<Client, client::Error> {
    let builder = Client::builder()
        .timeout(settings.timeout.into())
        .max_untracked_age(settings.max_untracked_age.into())
        .max_keys(settings.max_keys)
        .max_waiting(settings.max_waiting)
        .module(settings.module)
        .connection_options(connection_options(settings)?);
    match &settings.server {
        Server::None => builder.local(),
        Server::Url(url) => builder.build(url),
    }
}

/// A client that asks whether the server [can decide](check). It connects at its first use.
///
/// # Errors
/// As those of [`client`].
pub fn checker(settings: &Settings) -> Result<Client, client::Error> {
    let builder = Client::builder().timeout(CHECK).prefix(&*settings.prefix).module(settings.module);
    match &settings.server {
        Server::None => builder.local(),
        Server::Url(url) => builder.connection_options(connection_options(settings)?).build(url),
    }
}

/// A server that can decide.
#[derive(Debug, Default)]
pub struct Checked {
    /// It has not loaded the module: the script decides.
    pub by_script: bool,
    /// The rights that it refuses to this user.
    pub forbidden: Vec<String>,
}

/// Whether the server can decide: it answers within a second, knows the password, and has loaded the module, or the
/// script may decide.
///
/// # Errors
/// The server cannot decide.
pub async fn check(checker: &Client, limits: &Limits) -> Result<Checked, client::Error> {
    let mut forbidden = Vec::new();
    let mut needed = rights::needed(limits);
    if needed.is_empty() {
        needed.push(("swlimit:connected".into(), Vec::new())); // callers of the API bring limits
    }
    for (key, rights) in needed {
        let missing = checker.forbidden(&key, &rights).await?;
        forbidden.extend(missing.into_iter().filter(|right| !forbidden.contains(right)).collect::<Vec<_>>());
    }
    let by_script = checker.servers().iter().any(|server| server.backend == Some(Backend::Script));
    Ok(Checked { by_script, forbidden })
}

fn connection_options(settings: &Settings) -> Result<ConnectionOptions, client::Error> {
    let read = |path: &PathBuf| {
        std::fs::read(path).map_err(|error| client::Error::Invalid(format!("{}: {error}", path.display())))
    };
    let mut options = ConnectionOptions::new().sentinel_tls(settings.sentinel.tls);
    if let Some(authority) = &settings.server_tls.authority {
        options = options.authority(read(authority)?);
    }
    if let (Some(certificate), Some(key)) = (&settings.server_tls.certificate, &settings.server_tls.key) {
        options = options.certificate(read(certificate)?, read(key)?);
    }
    if let Some(password) = &settings.sentinel.password {
        options = options.sentinel_login(settings.sentinel.user.as_deref(), password);
    }
    Ok(options)
}

/// How long each question of a check may take.
const CHECK: Duration = Duration::from_secs(1);

/// The limiters of a configuration.
pub struct Limiters {
    pub(super) client: Client,
    /// The longest time a request waits for the server.
    pub(super) timeout: Duration,
    /// In a cluster one command takes only keys with the same hash tag.
    pub(super) clustered: bool,
    pub(super) budgets: Arc<Brought<BudgetKind, BudgetLimiter>>,
    by_id: Vec<AnyLimiter>,
    configured: HashMap<Kind, AnyLimiter>,
    from_requests: Arc<Brought<Kind, AnyLimiter>>,
}

/// Equal limits share a limiter.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Kind {
    Window(u64, [u64; 2], bool, Option<u64>, DecisionPolicy),
    Period(u64, Periods, DecisionPolicy),
    Hold(u64, Lifetime, DecisionPolicy),
}

fn kind(limit: &Limit) -> Kind {
    match &limit.per {
        Per::Window(geometry) => {
            let geometry = [geometry.window(), geometry.resolution()];
            Kind::Window(limit.units, geometry, limit.strict, limit.block, limit.policy)
        }
        Per::Period(periods) => Kind::Period(limit.units, periods.clone(), limit.policy),
        Per::Hold(lifetime) => Kind::Hold(limit.units, *lifetime, limit.policy),
    }
}

impl Limiters {
    /// No limiters yet.
    pub fn new(client: Client, settings: &Settings) -> Self {
        let (configured, from_requests) = (HashMap::new(), Arc::default());
        let (timeout, clustered) = (settings.timeout.into(), is_cluster(&settings.server));
        let budgets = Arc::default();
        Self { client, timeout, clustered, budgets, by_id: Vec::new(), configured, from_requests }
    }

    /// The limiters of other limits. Unchanged limits keep their limiters.
    pub fn renewed(&self, limits: &Limits) -> Self {
        let mut configured: HashMap<Kind, AnyLimiter> = HashMap::new();
        let limiter = |limit: &&Limit| {
            let known = || self.configured.get(&kind(limit)).cloned();
            let known_or_new = || known().unwrap_or_else(|| AnyLimiter::new(&self.client, limit));
            configured.entry(kind(limit)).or_insert_with(known_or_new).clone()
        };
        let by_id = limits.by_id().iter().map(limiter).collect();
        let (budgets, from_requests) = (Arc::clone(&self.budgets), Arc::clone(&self.from_requests));
        Self { client: self.client.clone(), budgets, by_id, configured, from_requests, ..*self }
    }

    /// The limiter of a limit.
    pub(super) fn of(&self, limit: &Limit) -> Cow<'_, AnyLimiter> {
        if let Some(id) = limit.id {
            return Cow::Borrowed(&self.by_id[id]);
        }
        let new = || Ok::<_, Infallible>(AnyLimiter::new(&self.client, limit));
        let Ok(limiter) = self.from_requests.of(kind(limit), new);
        Cow::Owned(limiter)
    }
}

fn is_cluster(server: &Server) -> bool {
    match server {
        Server::None => false,
        Server::Url(url) => url.split_once("://").is_some_and(|(scheme, _)| scheme.ends_with("-cluster")),
    }
}
