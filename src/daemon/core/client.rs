//! The client of the configured server, and the one that checks it.

use std::path::PathBuf;
use std::time::Duration;

use swlimit_client::{self as client, Client, ConnectionOptions};

use crate::config::settings::{Server, Settings};

/// How long each question of a check may take.
const CHECK: Duration = Duration::from_secs(1);

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
        .on_refused(settings.on_refused)
        .connection_options(connection_options(settings)?);
    match &settings.server {
        Server::None => builder.local(),
        Server::Url(url) => builder.build(url),
    }
}

/// A client that asks whether the server [can decide](super::check). It connects at its first use.
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
