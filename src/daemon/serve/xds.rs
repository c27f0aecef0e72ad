//! Follows the limits of a control plane: the aggregated discovery service, state of the world.

use std::str::FromStr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::Node;
use envoy_types::pb::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use envoy_types::pb::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};
use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{Struct, Value};
use envoy_types::pb::google::rpc;
use envoy_types::pb::ratelimit::config::ratelimit::v3::RateLimitConfig;
use prost::Name;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::{MetadataKey, MetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Request, Status, Streaming};

use super::FatalError;
use crate::config::xds::{sources, Xds};
use crate::observe::metrics;
use crate::service::{Reload, Service};

const CONNECT: Duration = Duration::from_secs(5);

/// Finds dead connections. Pings of HTTP/2 would be too many for some servers.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// Follows the control plane forever, if one is configured. `first` is notified of the first limits.
pub async fn follow(service: Arc<Service>, first: oneshot::Sender<()>) {
    let live = service.live();
    let Some(xds) = &live.configuration.settings.xds else { return };
    let mut follower =
        Follower { service: service.clone(), xds, first: Some(first), version: String::new(), failures: 0 };
    metrics::control_plane(false);
    let mut reason = String::new();
    loop {
        let ended = match follower.stream().await {
            Ok(()) => "the control plane ended the stream".to_owned(),
            Err(error) => described(&*error),
        };
        metrics::control_plane(false);
        if follower.failures == 0 || ended != reason {
            tracing::warn!(
                server = xds.server,
                reason = ended,
                "the control plane is unavailable; its last limits stay in force"
            );
        }
        reason = ended;
        sleep(follower.pause()).await;
        follower.failures = follower.failures.saturating_add(1);
    }
}

/// An error with its causes.
fn described(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source()).map(ToString::to_string);
    causes.collect::<Vec<_>>().join(": ")
}

struct Follower<'a> {
    service: Arc<Service>,
    xds: &'a Xds,
    first: Option<oneshot::Sender<()>>,
    /// The version that was accepted last on this stream.
    version: String,
    /// How many streams failed since the last response.
    failures: u32,
}

impl Follower<'_> {
    /// How long to wait before the next stream: longer after each failure, and not the same for all instances.
    fn pause(&self) -> Duration {
        let (least, most) = (Duration::from(self.xds.retry_interval), Duration::from(self.xds.max_retry_interval));
        let pause = least.saturating_mul(2_u32.saturating_pow(self.failures.min(20))).min(most);
        pause.mul_f64(0.8 + 0.4 * fastrand::f64())
    }

    /// One stream, until it ends.
    async fn stream(&mut self) -> Result<(), FatalError> {
        let channel = self.endpoint()?.connect().await?;
        let mut client =
            AggregatedDiscoveryServiceClient::new(channel).max_decoding_message_size(self.xds.max_message_bytes);
        let (requests, receiver) = mpsc::channel(1);
        // A restarted control plane may count versions from the beginning: a new stream names none, and gets all.
        self.version = String::new();
        requests.send(self.request(String::new(), None)).await?;
        let mut request = Request::new(ReceiverStream::new(receiver));
        for (name, value) in &self.xds.headers {
            request.metadata_mut().insert(MetadataKey::from_str(name)?, MetadataValue::try_from(value)?);
        }
        let answered = async {
            let mut responses = client.stream_aggregated_resources(request).await?.into_inner();
            let response = responses.message().await?;
            Ok::<_, Status>((responses, response))
        };
        let silent = |_| "the control plane accepts a stream and does not answer";
        let (mut responses, mut first) =
            timeout(self.xds.response_timeout.into(), answered).await.map_err(silent)??;
        metrics::control_plane(true);
        tracing::info!(server = self.xds.server, "connected to the control plane");
        // The last response, if it was refused.
        let mut refused = None;
        loop {
            let (response, is_new) = tokio::select! {
                response = next(&mut responses, &mut first) => match response? {
                    Some(response) => (response, true),
                    None => return Ok(()),
                },
                () = self.service.files_read() => match refused.take() {
                    Some(response) => (response, false), // which may be valid beside other files
                    None => continue,
                },
            };
            self.failures = 0;
            let (version, nonce) = (response.version_info.clone(), response.nonce.clone());
            match self.apply(response.clone()).await? {
                Ok(()) => {
                    tracing::info!(version, "limits of the control plane are used");
                    self.version = version;
                    refused = None;
                    requests.send(self.request(nonce, None)).await?;
                }
                Err(message) => {
                    refused = Some(response);
                    if is_new {
                        let reason = &message;
                        tracing::error!(
                            version,
                            reason,
                            "limits of the control plane are invalid; the old ones stay in force"
                        );
                        let status = rpc::Status { code: Code::InvalidArgument.into(), message, details: Vec::new() };
                        requests.send(self.request(nonce, Some(status))).await?;
                    }
                }
            }
        }
    }

    fn request(&self, response_nonce: String, error_detail: Option<rpc::Status>) -> DiscoveryRequest {
        let text = |text: &String| Value { kind: Some(Kind::StringValue(text.clone())) };
        let fields = self.xds.node_metadata.iter().map(|(name, value)| (name.clone(), text(value))).collect();
        let node = Node { id: self.xds.node.clone(), metadata: Some(Struct { fields }), ..Node::default() };
        DiscoveryRequest {
            version_info: self.version.clone(),
            node: Some(node),
            type_url: RateLimitConfig::type_url(),
            response_nonce,
            error_detail,
            ..DiscoveryRequest::default()
        }
    }

    /// Uses the limits of a response; the inner error says why they are invalid.
    async fn apply(&mut self, response: DiscoveryResponse) -> Result<Result<(), String>, FatalError> {
        let service = self.service.clone();
        let (tell, told) = oneshot::channel();
        // On a thread of its own, as files are read.
        thread::spawn(move || tell.send(apply(&service, response)));
        let result = told.await?;
        if result.is_ok() {
            if let Some(first) = self.first.take() {
                let _ = first.send(()); // cached limits need no wait
            }
        }
        Ok(result)
    }

    fn endpoint(&self) -> Result<Endpoint, FatalError> {
        let Xds { server, tls, tls_name, .. } = self.xds;
        let endpoint = Channel::from_shared(server.clone())?.connect_timeout(CONNECT).tcp_keepalive(Some(KEEPALIVE));
        let endpoint = endpoint.tcp_keepalive_interval(Some(KEEPALIVE)).tcp_keepalive_retries(Some(2));
        if endpoint.uri().scheme_str() != Some("https") {
            return Ok(endpoint);
        }
        let mut config = ClientTlsConfig::new();
        // Read for each connection: certificates are renewed.
        config = match &tls.authority {
            Some(authority) => config.ca_certificate(Certificate::from_pem(std::fs::read(authority)?)),
            None => config.with_native_roots(),
        };
        if let (Some(certificate), Some(key)) = (&tls.certificate, &tls.key) {
            config = config.identity(Identity::from_pem(std::fs::read(certificate)?, std::fs::read(key)?));
        }
        if let Some(name) = tls_name {
            config = config.domain_name(name);
        }
        Ok(endpoint.tls_config(config)?)
    }
}

/// The first response, or the next one; `None` at the end.
async fn next(
    responses: &mut Streaming<DiscoveryResponse>,
    first: &mut Option<DiscoveryResponse>,
) -> Result<Option<DiscoveryResponse>, Status> {
    match first.take() {
        Some(first) => Ok(Some(first)),
        None => responses.message().await,
    }
}

/// Uses the limits of a response, and caches them for the next start.
fn apply(service: &Service, response: DiscoveryResponse) -> Result<(), String> {
    let sources = sources(&response.resources).map_err(|error| error.to_string())?;
    if let Reload::Refused { error, .. } = service.discover(sources) {
        return Err(error.to_string());
    }
    let live = service.live();
    let kept = live.configuration.settings.xds.as_ref().map_or(Ok(()), |xds| xds.keep(response));
    if let Err(error) = kept {
        tracing::warn!(%error, "cannot cache the limits of the control plane; a restart will need it");
    }
    Ok(())
}
