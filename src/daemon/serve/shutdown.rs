//! Runs the servers, and stops them in order within 5 seconds.

use std::sync::Arc;
use std::time::Duration;

use sd_notify::NotifyState;
use tokio::signal::unix::{signal, Signal, SignalKind};
use tokio::sync::{oneshot, watch};
use tokio::task::{spawn_blocking, JoinSet};
use tokio::time::{interval, sleep, timeout};

use super::http::{self, Paths, Views};
use super::in_flight::InFlight;
use super::listen::Listener;
use super::{check, grpc, reload, xds, FatalError};
use crate::observe::recent::STEP;
use crate::service::Service;

/// Requests are accepted for this long after health checks begin to fail, so that load balancers notice.
const NOTICE: Duration = Duration::from_millis(500);

/// Timeout of running requests after that. The client then returns leases and sends counts.
const DRAIN: Duration = Duration::from_secs(2);

/// The signals that end the daemon or make it reload.
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    pub fn install() -> std::io::Result<Self> {
        let [terminate, interrupt, hangup] =
            [signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?, signal(SignalKind::hangup())?];
        Ok(Self { terminate, interrupt, hangup })
    }
}

/// Serves until SIGTERM or SIGINT.
pub async fn serve_until_stopped(
    service: Arc<Service>,
    grpc: Listener,
    http: Vec<(Listener, Paths)>,
    signals: Signals,
) -> Result<(), FatalError> {
    let Signals { mut terminate, mut interrupt, hangup } = signals;
    let (tell, mut first) = oneshot::channel();
    tokio::spawn(xds::follow(service.clone(), tell));
    tokio::spawn(reload::reload_on_change(service.clone(), hangup));
    if service.waits_for_limits() {
        tracing::info!("waiting for the first limits of the control plane");
        tokio::select! {
            _ = &mut first => {}
            _ = terminate.recv() => return Ok(()),
            _ = interrupt.recv() => return Ok(()),
        }
    }
    let end = watch::Sender::new(false);
    let mut servers = JoinSet::new();
    let views = Arc::new(Views::new(&service));
    let in_flight = InFlight::new(service.live().configuration.settings.max_bytes_in_flight);
    servers.spawn(grpc::serve(service.clone(), in_flight.clone(), grpc, end.subscribe()));
    for listener in http {
        servers.spawn(http::serve(service.clone(), views.clone(), in_flight.clone(), listener, end.subscribe()));
    }
    tokio::spawn(count_steps(service.clone()));
    tokio::spawn(check::check_server(service.clone()));
    systemd(NotifyState::Ready);

    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        Some(ended) = servers.join_next() => ended?, // a server ends by itself only if it panics
    }
    tracing::info!("stopping");
    systemd(NotifyState::Stopping);
    service.begin_stopping();
    sleep(NOTICE).await;
    end.send_replace(true);
    service.client().end_waits();
    if timeout(DRAIN, servers.join_all()).await.is_err() {
        tracing::warn!("some requests took too long and were cut off");
    }
    service.close().await;
    Ok(())
}

/// Notifies systemd, if it started this process.
fn systemd(state: NotifyState) {
    if let Err(error) = sd_notify::notify(false, &[state]) {
        tracing::warn!(%error, "cannot notify systemd");
    }
}

async fn count_steps(service: Arc<Service>) {
    let mut steps = interval(STEP);
    loop {
        steps.tick().await;
        let service = service.clone();
        if spawn_blocking(move || service.end_step()).await.is_err() {
            return; // it panicked, and logged that
        }
    }
}
