//! A rate limit service for Envoy, other proxies, and programs that use HTTP.

mod config;
mod core;
mod explain;
mod observe;
mod page;
mod protocol;
mod serve;
mod service;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{Parser, Subcommand};
use tokio::runtime::{Builder, Runtime};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

use config::environment::Environment;
use config::settings::LogFormat;
use config::{Configuration, Origin};
use observe::metrics::Metrics;
use observe::opentelemetry::Exporter;
use serve::http::Paths;
use serve::listen::Listener;
use serve::shutdown::{serve_until_stopped, Signals};
use serve::FatalError;
use service::Service;

/// A request makes dozens of small allocations, which are faster here than in the system's allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A rate limit service on Redis or Valkey with swlimit.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// The configuration file; /etc/swlimitd/swlimitd.yaml, unless envoyproxy/ratelimit's variables are set
    #[arg(long, global = true, value_name = "FILE", env = "SWLIMITD_CONFIG")]
    config: Option<PathBuf>,
    /// Check the configuration and exit
    #[arg(long)]
    check: bool,
    /// Check the server, too: address, password, module and permissions
    #[arg(long, requires = "check")]
    server: bool,
    /// Print the configuration that envoyproxy/ratelimit's environment variables come to, passwords too, and exit
    #[arg(long, conflicts_with_all = ["config", "check"])]
    from_env: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    Explain(Box<explain::Arguments>),
}

/// How long the last traces may take at shutdown.
const LAST_TRACES: Duration = Duration::from_millis(500);

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let ended = runtime().map_err(FatalError::from).and_then(|runtime| {
        let ended = runtime.block_on(run(arguments));
        runtime.shutdown_background(); // it would wait for a name that is being resolved
        ended
    });
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("swlimitd: {error}");
            ExitCode::FAILURE
        }
    }
}

/// On one core a single thread batches replies: with several threads, the first reply wakes its connection before the
/// other requests are handled.
fn runtime() -> std::io::Result<Runtime> {
    let is_single = std::thread::available_parallelism().is_ok_and(|cores| cores.get() == 1);
    let mut builder = if is_single { Builder::new_current_thread() } else { Builder::new_multi_thread() };
    builder.enable_all().build()
}

async fn run(arguments: Arguments) -> Result<(), FatalError> {
    if arguments.from_env {
        print!("{}", Environment::read()?.source().text);
        return Ok(());
    }
    let origin = Origin::new(arguments.config);
    if let Some(Command::Explain(arguments)) = arguments.command {
        return explain::run(&origin, *arguments).await;
    }
    observe::process::started();
    let configuration = Configuration::load(&origin, None)?;
    let settings = &configuration.settings;
    let in_file = |error: &dyn Error| format!("{origin}: {error}");
    let client = core::client(settings).map_err(|error| in_file(&error))?;
    let filter = EnvFilter::try_new(&settings.log.level).map_err(|error| in_file(&error))?;
    let exporter = settings.traces.as_ref().map(Exporter::new).transpose().map_err(|error| in_file(&error))?;
    let limits = configuration.limits.by_id().len();
    if arguments.check {
        if arguments.server {
            check_server(&configuration).await?;
        }
        for warning in &configuration.limits.warnings {
            eprintln!("warning: {warning}");
        }
        println!("{origin} is valid: {limits} limits");
        return Ok(());
    }
    let format = match settings.log.format {
        LogFormat::Text => tracing_subscriber::fmt::layer().with_ansi(false).with_writer(std::io::stderr).boxed(),
        LogFormat::Json => tracing_subscriber::fmt::layer().json().with_writer(std::io::stderr).boxed(),
    };
    let registry = tracing_subscriber::registry().with(format.with_filter(filter));
    registry.with(exporter.as_ref().map(Exporter::layer)).init();
    // Each connection is an open file, and the usual soft limit is 1024.
    if let Err(error) = rlimit::increase_nofile_limit(u64::MAX) {
        tracing::warn!(%error, "cannot raise the limit of open files; few connections are possible");
    }
    let signals = Signals::install()?; // before other processes can signal this one
    let grpc = Listener::bind(&settings.grpc.address).await?;
    let mut http = Vec::new();
    let paths = if settings.http.monitoring_address.is_empty() { Paths::All } else { Paths::Decisions };
    let addresses = settings.http.address.iter().map(|address| (address, paths));
    let monitoring = settings.http.monitoring_address.iter().map(|address| (address, Paths::Monitoring));
    for (address, paths) in addresses.chain(monitoring) {
        http.push((Listener::bind(address).await?, paths));
    }
    log_start(&origin, &configuration, limits)?;

    let service = Arc::new(Service::new(origin, configuration, client, Metrics::install()));
    serve_until_stopped(service, grpc, http, signals).await?;
    if let Some(exporter) = exporter {
        let last = tokio::task::spawn_blocking(move || exporter.shutdown(LAST_TRACES));
        if let Err(error) = last.await? {
            tracing::warn!(%error, "the last traces are lost");
        }
    }
    Ok(())
}

/// Whether the server can decide all limits in time, and allows everything that is asked of it.
async fn check_server(Configuration { settings, limits, .. }: &Configuration) -> Result<(), FatalError> {
    let server = &settings.server;
    let checker = core::checker(settings)?;
    let checked = core::check(&checker, limits).await;
    if let Some(error) = checked.error {
        return Err(format!("{server}: {error}").into());
    }
    for (address, eviction) in checked.servers.iter().filter_map(|it| Some((&it.address, it.eviction.as_ref()?))) {
        eprintln!(
            "warning: {address} evicts keys, and limits with them (maxmemory-policy {}): use noeviction",
            eviction.policy
        );
    }
    if !checked.lacks.is_empty() {
        let lines = checked.lacks.iter().map(|right| format!("\n  without {right}: {}", core::rights::without(right)));
        let rights = checked.lacks.join(", ");
        return Err(format!("{server} denies its user these rights: {rights}{}", lines.collect::<String>()).into());
    }
    let (fastest, timeout) = (core::fastest_trip(&checker).await, Duration::from(settings.timeout));
    if let Some(fastest) = fastest.filter(|fastest| *fastest > timeout) {
        let (fastest, timeout) = (fastest.as_millis(), timeout.as_millis());
        return Err(format!("{server} is slow: it answers after {fastest} ms, and timeout is {timeout} ms").into());
    }
    let how = if checked.by_script { ", by the script: it has not loaded the module" } else { "" };
    println!("{server} can decide{how}");
    Ok(())
}

/// Logs what runs here, on what configuration.
fn log_start(origin: &Origin, configuration: &Configuration, limits: usize) -> Result<(), FatalError> {
    let Configuration { settings, sources, .. } = configuration;
    let files: Vec<_> = sources.iter().map(|source| &*source.file).collect();
    let [http, monitoring] = [&settings.http.address, &settings.http.monitoring_address]
        .map(|addresses| addresses.iter().map(ToString::to_string).collect::<Vec<_>>());
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        files = files.join(", "),
        limits,
        server = %settings.server,
        grpc = %settings.grpc.address,
        http = http.join(", "),
        monitoring = monitoring.join(", "),
        "listening"
    );
    if let Some(error) = &configuration.unusable {
        tracing::error!(%error, "the cached limits are invalid and not used");
    }
    if let Origin::Environment = origin {
        for note in Environment::read()?.notes {
            tracing::info!("{note}");
        }
    }
    Ok(())
}
