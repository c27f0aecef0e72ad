//! A rate limit service: for Envoy, for other proxies, and for any program that speaks HTTP.

mod deciding;
mod envoy;
mod fault;
mod http;
mod keys;
mod limits;
mod listening;
mod metrics;
mod reloading;
mod service;
mod settings;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use tokio::signal::unix::{signal, SignalKind};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{interval, sleep, timeout};
use tracing_subscriber::EnvFilter;

use listening::Listener;
use metrics::Metrics;
use service::Service;
use settings::{Configuration, Log, LogFormat};

/// A rate limit service on Redis or Valkey with swlimit.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// The configuration file
    #[arg(long, value_name = "FILE", env = "SWLIMITD_CONFIG", default_value = "/etc/swlimitd/swlimitd.yaml")]
    config: PathBuf,
    /// Say whether the configuration is valid, and end
    #[arg(long)]
    check: bool,
}

/// So long the service goes on after it has told that it ends, for balancers to hear of it.
const NOTICE: Duration = Duration::from_millis(500);

/// So long requests that have begun may take then, and so long the last words to the server.
const DRAINING: Duration = Duration::from_secs(2);
const LAST_WORDS: Duration = Duration::from_secs(2);

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let checked = match Configuration::load(&arguments.config) {
        Ok(configuration) if arguments.check => {
            println!("{} is valid: {} limits", arguments.config.display(), configuration.limits.by_id().len());
            Ok(())
        }
        Ok(configuration) => run(arguments.config, configuration),
        Err(fault) => Err(fault.into()),
    };
    match checked {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("swlimitd: {error}");
            ExitCode::FAILURE
        }
    }
}

#[tokio::main]
async fn run(path: PathBuf, configuration: Configuration) -> Result<(), Box<dyn Error + Send + Sync>> {
    log(&configuration.settings.log)?;
    // Before anybody knows that there is somebody to send them to.
    let [mut terminate, mut interrupt, hangup] =
        [signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?, signal(SignalKind::hangup())?];

    let settings = &configuration.settings;
    let bind = |address| async move {
        Listener::bind(address).await.map_err(|error| format!("cannot listen at {address}: {error}"))
    };
    let (grpc, http) = (bind(&settings.grpc.address).await?, bind(&settings.http.address).await?);
    let tls = settings.grpc.tls.as_ref().map(listening::tls).transpose()?;
    tracing::info!(grpc = %settings.grpc.address, http = %settings.http.address, "listening");

    let service = Arc::new(Service::new(path, configuration, Metrics::install())?);
    let end = watch::Sender::new(false);
    let mut speaking = JoinSet::new();
    speaking.spawn(listening::grpc(service.clone(), grpc, tls, end.subscribe()));
    speaking.spawn(listening::http(service.clone(), http, end.subscribe()));
    tokio::spawn(reloading::reload_on_change(service.clone(), hangup));
    tokio::spawn(tidy(service.clone()));

    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        Some(ended) = speaking.join_next() => ended??, // neither ends by itself but by an error
    }
    tracing::info!("ending");
    service.begin_ending();
    sleep(NOTICE).await;
    end.send_replace(true);
    if timeout(DRAINING, speaking.join_all()).await.is_err() {
        tracing::warn!("requests were cut off");
    }
    if timeout(LAST_WORDS, service.end()).await.is_err() {
        tracing::warn!("the server does not know of everything that was counted here");
    }
    Ok(())
}

async fn tidy(service: Arc<Service>) {
    let mut often = interval(Duration::from_secs(5));
    loop {
        often.tick().await;
        service.metrics.tidy();
    }
}

fn log(log: &Log) -> Result<(), Box<dyn Error + Send + Sync>> {
    let filter = EnvFilter::try_new(&log.level).map_err(|error| format!("log level: {error}"))?;
    let subscriber = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match log.format {
        LogFormat::Text => subscriber.with_ansi(false).init(),
        LogFormat::Json => subscriber.json().init(),
    }
    Ok(())
}
