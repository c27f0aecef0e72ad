//! A rate limit service: for Envoy, for other proxies, and for any program that speaks HTTP.

mod access;
mod api;
mod auth;
mod deciding;
mod envoy;
mod fault;
mod headers;
mod http;
mod keys;
mod limits;
mod listening;
mod metrics;
mod page;
mod recent;
mod reloading;
mod service;
mod settings;
mod tls;
mod traces;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{signal, SignalKind};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{interval, sleep, timeout};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

use listening::{Failure, Listener};
use metrics::Metrics;
use service::Service;
use settings::{Configuration, LogFormat};

/// A request takes dozens of small pieces of memory, which the system's own allocator is slow to give.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

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

/// So long requests that have begun may take then, and so long the last words to the server, and the last traces.
const DRAINING: Duration = Duration::from_secs(2);
const LAST_WORDS: Duration = Duration::from_millis(1500);
const LAST_SPANS: Duration = Duration::from_millis(500);

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match runtime().map_err(Failure::from).and_then(|runtime| runtime.block_on(run(arguments))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("swlimitd: {error}");
            ExitCode::FAILURE
        }
    }
}

/// On a single core tasks take turns, so that the replies to requests that came together leave together: on several
/// threads, a connection is woken by the first reply, and goes before the requests that wait.
fn runtime() -> std::io::Result<Runtime> {
    let is_single = std::thread::available_parallelism().is_ok_and(|cores| cores.get() == 1);
    let mut builder = if is_single { Builder::new_current_thread() } else { Builder::new_multi_thread() };
    builder.enable_all().build()
}

async fn run(Arguments { config: path, check }: Arguments) -> Result<(), Failure> {
    let configuration = Configuration::load(&path)?;
    let settings = &configuration.settings;
    let in_file = |error: &dyn Error| format!("{}: {error}", path.display());
    let client = service::client(settings).map_err(|error| in_file(&error))?;
    let filter = EnvFilter::try_new(&settings.log.level).map_err(|error| in_file(&error))?;
    if check {
        println!("{} is valid: {} limits", path.display(), configuration.limits.by_id().len());
        return Ok(());
    }
    let tracer = settings.traces.as_ref().map(traces::provider).transpose()?;
    let format = match settings.log.format {
        LogFormat::Text => tracing_subscriber::fmt::layer().with_ansi(false).with_writer(std::io::stderr).boxed(),
        LogFormat::Json => tracing_subscriber::fmt::layer().json().with_writer(std::io::stderr).boxed(),
    };
    let registry = tracing_subscriber::registry().with(format.with_filter(filter));
    registry.with(tracer.as_ref().map(traces::layer)).init();
    // Each connection is a file, and systems begin with few of them: some 1000.
    if let Err(error) = rlimit::increase_nofile_limit(u64::MAX) {
        tracing::warn!(%error, "few can connect at the same time");
    }
    // Before anybody knows that there is somebody to send them to.
    let [mut terminate, mut interrupt, hangup] =
        [signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?, signal(SignalKind::hangup())?];

    let bind = |address| async move {
        Listener::bind(address).await.map_err(|error| format!("cannot listen at {address}: {error}"))
    };
    let (grpc, http) = (bind(&settings.grpc.address).await?, bind(&settings.http.address).await?);
    tracing::info!(grpc = %settings.grpc.address, http = %settings.http.address, "listening");

    let service = Arc::new(Service::new(path, configuration, client, Metrics::install()));
    let end = watch::Sender::new(false);
    let mut speaking = JoinSet::new();
    speaking.spawn(listening::grpc(service.clone(), grpc, end.subscribe()));
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
    if let Some(tracer) = tracer {
        let last = tokio::task::spawn_blocking(move || tracer.shutdown_with_timeout(LAST_SPANS));
        if let Err(error) = last.await? {
            tracing::warn!(%error, "the last traces are lost");
        }
    }
    Ok(())
}

async fn tidy(service: Arc<Service>) {
    let mut often = interval(recent::STEP);
    loop {
        often.tick().await;
        service.tidy();
    }
}
