//! A rate limit service: for Envoy, for other proxies, and for any program that speaks HTTP.

mod envoy;
mod fault;
mod http;
mod keys;
mod limits;
mod service;
mod settings;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;

use service::Service;
use settings::{Address, Configuration};

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

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let configuration = match Configuration::load(&arguments.config) {
        Ok(configuration) => configuration,
        Err(fault) => {
            eprintln!("{fault}");
            return ExitCode::FAILURE;
        }
    };
    if arguments.check {
        let limits: usize = configuration.limits.rules().iter().map(|(_, rule)| rule.limits.len()).sum();
        println!("{} is valid: {limits} limits", arguments.config.display());
        return ExitCode::SUCCESS;
    }
    let runtime = tokio::runtime::Runtime::new().expect("the system has threads");
    runtime.block_on(run(configuration));
    ExitCode::SUCCESS
}

async fn run(configuration: Configuration) {
    let address = configuration.settings.http.address.clone();
    let service = Arc::new(Service::new(configuration));
    if let Some(Address::Tcp(address)) = address {
        let listener = tokio::net::TcpListener::bind(address).await.expect("the address is free");
        axum::serve(listener, http::router(service)).await.expect("it serves for ever");
    }
}
