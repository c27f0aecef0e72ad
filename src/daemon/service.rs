//! What all protocols share: the configuration of this moment, and who decides by it.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::future::Future;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Instant;

use arc_swap::ArcSwap;
use axum::http::request::Parts;
use axum::http::HeaderMap;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use swlimit_client::Client;
use tokio::sync::watch;
use tracing::{Instrument, Span};

use crate::auth::{self, Permission};
use crate::deciding::{is_cluster, Answer, Descriptor, Limiters, Plan, Unanswered};
use crate::envoy::{reply, Invalid, Planning, Telling};
use crate::fault::Fault;
use crate::http::Peer;
use crate::limits::Missing;
use crate::metrics::{self, Api, Ending, Metrics, Unmatched};
use crate::settings::{Configuration, Settings, ONLY_LOCAL};
use crate::traces;

/// The daemon's state.
pub struct Service {
    path: PathBuf,
    client: Client,
    /// Whether there is one behind the client.
    pub has_server: bool,
    live: ArcSwap<Live>,
    pub metrics: Metrics,
    /// Whether the end is near.
    ending: watch::Sender<bool>,
}

/// A configuration in force.
pub struct Live {
    pub configuration: Configuration,
    pub limiters: Limiters,
}

/// What callers hear of a server that is away.
pub const AWAY: &str = "the counting server is away";

/// Why a request has no reply.
pub enum Refusal {
    Invalid(Cow<'static, str>),
    Away,
    Refused(String),
}

impl From<Unanswered> for Refusal {
    fn from(unanswered: Unanswered) -> Self {
        match unanswered {
            Unanswered::Away => {
                metrics::failed("away");
                Self::Away
            }
            Unanswered::Refused(error) => {
                metrics::failed("refused");
                tracing::error!(%error, "the server refuses");
                Self::Refused(error.to_string())
            }
        }
    }
}

impl Service {
    /// The service of a configuration file, which was read already.
    pub fn new(path: PathBuf, configuration: Configuration, client: Client, metrics: Metrics) -> Self {
        let Settings { timeout, server, .. } = &configuration.settings;
        let limiters = Limiters::none(client.clone(), (*timeout).into(), is_cluster(server));
        let has_server = server != ONLY_LOCAL;
        let live = ArcSwap::from_pointee(Live::new(configuration, &limiters));
        metrics::loaded(true);
        Self { path, client, has_server, live, metrics, ending: watch::Sender::new(false) }
    }

    /// The line to the server.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The configuration that is in force. What began with it goes on with it.
    pub fn live(&self) -> Arc<Live> {
        self.live.load_full()
    }

    /// Put the files in force as they are now; what is wrong with them leaves all as it was. Whether they had changed.
    pub fn reload(&self) -> Result<bool, Fault> {
        let before = self.live();
        let mut configuration = Configuration::load(&self.path).inspect_err(|_| metrics::loaded(false))?;
        if configuration.sources == before.configuration.sources {
            return Ok(false);
        }
        if !configuration.settings.starts_as(&before.configuration.settings) {
            tracing::warn!("another server, timeout or address is in force after a restart only");
        }
        configuration.replace(&before.configuration);
        self.live.store(Arc::new(Live::new(configuration, &before.limiters)));
        metrics::loaded(true);
        Ok(true)
    }

    /// Decide a request of Envoy's protocol, which came with these headers.
    pub async fn should_rate_limit(
        &self,
        api: Api,
        headers: &HeaderMap,
        request: &RateLimitRequest,
    ) -> Result<RateLimitResponse, Refusal> {
        let span = traces::span(api, headers);
        span.record("domain", &request.domain);
        let denied = |reply: &RateLimitResponse| reply.overall_code() == Code::OverLimit;
        let deciding = pin!(self.decided(request)); // large to be moved
        self.observed(api, span, deciding, |decided| decided.as_ref().map(denied).into()).await
    }

    /// Decide whether a request may pass that a proxy asks about.
    pub async fn authorize(&self, parts: &Parts, peer: Peer) -> Result<Permission, Refusal> {
        let span = traces::span(Api::Auth, &parts.headers);
        let denied = |permission: &Permission| permission.denied;
        let deciding = self.authorized(parts, peer);
        self.observed(Api::Auth, span, deciding, |decided| decided.as_ref().map(denied).into()).await
    }

    /// Answer a request in its span; count how it ends, and how long it takes.
    pub async fn observed<T>(
        &self,
        api: Api,
        span: Span,
        answering: impl Future<Output = T>,
        ending: impl FnOnce(&T) -> Ending,
    ) -> T {
        let began = Instant::now();
        let answer = answering.instrument(span.clone()).await;
        let ending = ending(&answer);
        traces::ended(&span, ending);
        self.metrics.ended(api, ending, began);
        answer
    }

    async fn decided(&self, request: &RateLimitRequest) -> Result<RateLimitResponse, Refusal> {
        let Live { configuration: Configuration { settings, limits, .. }, limiters } = &*self.live();
        let planning = Planning { limits, key_prefix: &settings.key_prefix, manner: settings.manner() };
        let plan = planning.plan(request).map_err(|Invalid(why)| Refusal::Invalid(why.into()))?;
        let answers = limiters.answers(&plan).await?;
        let unmatched = if limits.domain(&request.domain).is_some() { Unmatched::Rule } else { Unmatched::Domain };
        for descriptor in &plan.descriptors {
            self.count(&request.domain, descriptor, &plan, &answers, unmatched);
        }
        let telling = Telling {
            shadow_mode: settings.shadow_mode,
            rate_limit_headers: settings.rate_limit_headers,
            dynamic_metadata: settings.dynamic_metadata,
        };
        Ok(reply(request, &plan, &answers, telling))
    }

    async fn authorized(&self, parts: &Parts, peer: Peer) -> Result<Permission, Refusal> {
        let Live { configuration: Configuration { settings, limits, .. }, limiters } = &*self.live();
        let asked = auth::asked(parts, auth::PATH, peer, &settings.auth);
        let (plan, domains) = auth::plan(limits, settings, &asked)
            .map_err(|Missing(header)| Refusal::Invalid(format!("the proxy does not send {header}").into()))?;
        let answers = limiters.answers(&plan).await?;
        if domains.is_empty() {
            self.metrics.unmatched(Unmatched::Policy);
        }
        for (descriptor, domain) in plan.descriptors.iter().zip(domains) {
            self.count(domain, descriptor, &plan, &answers, Unmatched::Policy);
        }
        Ok(auth::reply(&plan, &answers, settings.shadow_mode))
    }

    fn count(&self, domain: &str, descriptor: &Descriptor, plan: &Plan, answers: &[Answer], unmatched: Unmatched) {
        let Some(rule) = descriptor.rule else {
            self.metrics.unmatched(unmatched);
            return;
        };
        let decisions = descriptor.asks.iter().map(|ask| (&answers[*ask], plan.asks[*ask].limit.quota.limit));
        self.metrics.rule(domain, &descriptor.measured).decided(descriptor.hits, decisions, rule.shadow_mode);
    }

    /// Put what was measured in order, every [`STEP`](crate::recent::STEP).
    pub fn tidy(&self) {
        self.metrics.tidy(&self.client.statistics());
    }

    /// What Prometheus is told.
    pub fn measured(&self) -> String {
        self.metrics.render(&self.client.statistics())
    }

    /// Tell that the end is near, so that whoever asks how the service is goes elsewhere.
    pub fn begin_ending(&self) {
        self.ending.send_replace(true);
    }

    pub fn is_ending(&self) -> bool {
        *self.ending.borrow()
    }

    /// Hears when the end is near.
    pub fn notice(&self) -> watch::Receiver<bool> {
        self.ending.subscribe()
    }

    /// The folders in which something changes when the configuration does.
    pub fn watched(&self) -> BTreeSet<PathBuf> {
        self.live().configuration.folders(&self.path)
    }

    /// Give back what was taken ahead, and tell the server what it does not know yet.
    pub async fn end(&self) {
        self.client.close().await;
    }
}

impl Live {
    fn new(configuration: Configuration, before: &Limiters) -> Self {
        let limiters = before.renewed(&configuration.limits);
        Self { configuration, limiters }
    }
}

/// A client of the server that is configured. It connects when it is first used.
pub fn client(settings: &Settings) -> Result<Client, swlimit_client::Error> {
    let builder = Client::builder().timeout(settings.timeout.into());
    match &*settings.server {
        ONLY_LOCAL => Ok(builder.only_local()),
        url => builder.build(url),
    }
}
