//! The state that all protocols share: the current configuration, its limiters, and the metrics.

use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::SystemTime;

use arc_swap::ArcSwap;
use tokio::sync::{watch, Notify};

use crate::config::error::ConfigError;
use crate::config::settings::Settings;
use crate::config::source::Source;
use crate::config::watched::Watched;
use crate::config::{Configuration, Origin};
use crate::core::{Answer, Checked, Client, Limiters, Plan, Refusal, ServerState, State};
use crate::observe::decisions::Decision;
use crate::observe::labels::Unmatched;
use crate::observe::metrics::Metrics;

/// The daemon's state.
pub struct Service {
    origin: Origin,
    /// The settings at the start of the process.
    started: Settings,
    client: Client,
    live: ArcSwap<Live>,
    /// The error of the last configuration that was read, and when, if it was invalid.
    refused: Mutex<Option<(SystemTime, ConfigError)>>,
    /// Files were read again: refused limits of the control plane may be valid now.
    files_read: Notify,
    /// What the last check of the server found.
    checked: Mutex<Option<Checked>>,
    /// A check has found that the server can decide.
    was_able: watch::Sender<bool>,
    pub metrics: Metrics,
    stopping: watch::Sender<bool>,
}

/// The result of reading the configuration again.
pub enum Reload {
    Changed,
    Unchanged,
    /// It equals the one in force, after refused ones.
    Restored,
    Refused {
        error: ConfigError,
        /// The last reload had the same error.
        is_known: bool,
    },
}

/// A configuration and its limiters.
pub struct Live {
    pub configuration: Configuration,
    /// When it was read.
    pub read: SystemTime,
    pub limiters: Limiters,
}

impl Live {
    /// The first configuration of a client.
    pub fn first(configuration: Configuration, client: &Client) -> Self {
        let limiters = Limiters::new(client.clone(), &configuration.settings);
        Self::new(configuration, &limiters)
    }

    fn new(configuration: Configuration, before: &Limiters) -> Self {
        let limiters = before.renewed(&configuration.limits);
        Self { configuration, read: SystemTime::now(), limiters }
    }
}

impl Service {
    /// The service of a configuration that was read from there.
    pub fn new(origin: Origin, configuration: Configuration, client: Client, metrics: Metrics) -> Self {
        let started = configuration.settings.clone();
        metrics.configuration.changed(&configuration.hash);
        let live = ArcSwap::from_pointee(Live::first(configuration, &client));
        metrics.rules.keep(&live.load().configuration.limits);
        Self {
            origin,
            started,
            client,
            live,
            refused: Mutex::default(),
            files_read: Notify::new(),
            checked: Mutex::default(),
            was_able: watch::Sender::new(false),
            metrics,
            stopping: watch::Sender::new(false),
        }
    }

    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The prefix of every key.
    pub fn prefix(&self) -> String {
        self.live().configuration.settings.prefix.clone()
    }

    /// The current configuration. A request keeps the one it began with.
    pub fn live(&self) -> Arc<Live> {
        self.live.load_full()
    }

    /// Reads the configuration again, because its files may have changed. An invalid one changes nothing.
    pub fn reload(&self) -> Reload {
        let result = self.load(None);
        self.files_read.notify_one();
        result
    }

    /// Uses new limits of the control plane, and the current files. Invalid ones change nothing.
    pub fn discover(&self, limits: Vec<Source>) -> Reload {
        self.load(Some(limits))
    }

    /// Waits until files were read again.
    pub async fn files_read(&self) {
        self.files_read.notified().await;
    }

    fn load(&self, discovered: Option<Vec<Source>>) -> Reload {
        let mut refused = self.lock_refused();
        let before = self.live();
        let discovered = discovered.or_else(|| before.configuration.discovered.clone());
        let mut configuration = match Configuration::load(&self.origin, discovered) {
            Ok(configuration) => configuration,
            Err(error) => {
                let is_known = refused.as_ref().is_some_and(|(_, last)| *last == error);
                self.metrics.configuration.refused(is_known);
                if !is_known {
                    *refused = Some((SystemTime::now(), error.clone()));
                }
                return Reload::Refused { error, is_known };
            }
        };
        let was_refused = refused.take().is_some();
        if configuration.says_the_same_as(&before.configuration) {
            self.metrics.configuration.unchanged();
            return if was_refused { Reload::Restored } else { Reload::Unchanged };
        }
        let restart_keys = configuration.settings.restart_keys(&self.started);
        let keys = restart_keys.join(", ");
        if self.metrics.configuration.set_restart_keys(restart_keys) {
            tracing::warn!(keys, "these changed keys take effect after a restart only");
        }
        configuration.replace(&before.configuration);
        let live = Arc::new(Live::new(configuration, &before.limiters));
        self.live.store(live.clone());
        self.metrics.rules.keep(&live.configuration.limits);
        self.metrics.configuration.changed(&live.configuration.hash);
        Reload::Changed
    }

    /// When the last configuration was read, and its error, if it is invalid.
    pub fn refused_configuration(&self) -> Option<(SystemTime, ConfigError)> {
        self.lock_refused().clone()
    }

    fn lock_refused(&self) -> MutexGuard<'_, Option<(SystemTime, ConfigError)>> {
        self.refused.lock().expect("no code panics while it holds this lock")
    }

    /// Decides a plan, observed. `unmatched` is the reason of descriptors without a rule.
    pub async fn decide(&self, live: &Live, plan: &Plan<'_>, unmatched: Unmatched) -> Result<Vec<Answer>, Refusal> {
        let deciding = pin!(live.limiters.decide(plan)); // large to move
        let decision = Decision { plan, unmatched, shadow_mode: live.configuration.settings.shadow_mode };
        self.metrics.observe_decision(decision, deciding, || std::ptr::eq(live, &**self.live.load())).await
    }

    /// Ends a step of the recent counts. It takes long.
    pub fn end_step(&self) {
        if self.servers().iter().any(|server| server.state == State::Unavailable) {
            self.metrics.recent_outages.count(0);
        }
        self.metrics.end_step(&self.client.statistics());
    }

    /// All metrics in Prometheus's text format. It takes long.
    pub fn render_metrics(&self) -> String {
        let can_decide = self.lock_checked().as_ref().map(Checked::can_decide);
        self.metrics.render(&self.client, &self.servers(), can_decide, self.started.module)
    }

    /// Makes health checks fail, so that load balancers choose other instances.
    pub fn begin_stopping(&self) {
        self.stopping.send_replace(true);
    }

    pub fn is_stopping(&self) -> bool {
        *self.stopping.borrow()
    }

    /// Waits until the service is stopping.
    pub async fn until_stopping(&self) {
        let _ = self.stopping.subscribe().wait_for(|is_stopping| *is_stopping).await;
    }

    /// Whether the control plane has to send the first limits before requests can be decided.
    pub fn waits_for_limits(&self) -> bool {
        let live = self.live();
        let xds = live.configuration.settings.xds.as_ref();
        xds.is_some_and(|xds| !xds.start_without) && live.configuration.discovered.is_none()
    }

    /// What to watch for changes of the configuration.
    pub fn watched(&self) -> Watched {
        self.live().configuration.watched(&self.origin)
    }

    /// What the last check of the server found; `None` before the first.
    pub fn checked(&self) -> Option<Checked> {
        self.lock_checked().clone()
    }

    /// Takes over what a check has found; returns what the one before it had.
    pub fn set_checked(&self, checked: Checked) -> Option<Checked> {
        self.was_able.send_if_modified(|was_able| checked.can_decide() && !std::mem::replace(was_able, true));
        self.lock_checked().replace(checked)
    }

    fn lock_checked(&self) -> MutexGuard<'_, Option<Checked>> {
        self.checked.lock().expect("no code panics while it holds this lock")
    }

    /// The state of each server: as requests have found it, or, of one that no request has asked yet, the last check.
    pub fn servers(&self) -> Vec<ServerState> {
        let checked = self.lock_checked().as_ref().map(|checked| checked.servers.clone()).unwrap_or_default();
        let known = |server: ServerState| match (server.state, server.round_trip) {
            (State::Up, None) => checked.iter().find(|one| one.address == server.address).cloned().unwrap_or(server),
            _ => server,
        };
        self.client.servers().into_iter().map(known).collect()
    }

    /// Whether this process may get requests.
    pub fn is_ready(&self) -> bool {
        !self.is_stopping() && (!self.started.wait_for_server || *self.was_able.borrow())
    }

    /// Waits until the process may get requests, if it is not stopping.
    pub async fn until_ready(&self) {
        if self.started.wait_for_server {
            let _ = self.was_able.subscribe().wait_for(|was_able| *was_able).await;
        }
    }

    /// Returns leases and sends unsent counts.
    pub async fn close(&self) {
        self.client.close().await;
    }
}
