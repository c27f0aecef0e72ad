//! The client of the configured server, and whether that server can decide.

use std::path::PathBuf;
use std::time::Duration;

use swlimit_client::{self as client, Backend, Client, ConnectionOptions};

use super::rights;
use crate::config::limits::Limits;
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
    /// The module is not loaded: the script decides.
    pub by_script: bool,
    /// Rights that the user lacks.
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
