//! Access to the HTTP API.

use std::net::{IpAddr, SocketAddr};

use ring::digest::{digest, SHA256, SHA256_OUTPUT_LEN};
use subtle::{Choice, ConstantTimeEq};

use super::error::ConfigError;
use super::settings::Api;
use super::source::Source;

#[derive(Debug)]
pub enum Access {
    /// Requests from this machine, to one of these hosts.
    Local(Hosts),
    /// Requests from any machine, to one of these hosts.
    Anybody(Hosts),
    Tokens(Tokens),
}

impl Access {
    /// Access by the given files of tokens, one a line. Without files, `api` decides.
    pub fn new(files: &[Source], api: &Api) -> Result<Self, ConfigError> {
        let mut tokens = Vec::new();
        for Source { file, text } in files {
            let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
            let before = tokens.len();
            tokens.extend(lines.map(hash));
            if tokens.len() == before {
                return Err(ConfigError::in_file(file, "the file has no token"));
            }
        }
        let hosts = || Hosts(api.hosts.iter().map(|host| host.to_ascii_lowercase()).collect());
        Ok(match (files, api.anybody) {
            ([], false) => Self::Local(hosts()),
            ([], true) => Self::Anybody(hosts()),
            _ => Self::Tokens(Tokens(tokens)),
        })
    }
}

/// Names of this service. Only known names are accepted, because a page can point its own name here (DNS rebinding).
#[derive(Debug)]
pub struct Hosts(Vec<String>);

impl Hosts {
    /// Whether a host, with or without a port, is known: an address, a name without a dot (no page has one), or
    /// configured.
    pub fn contains(&self, host: &str) -> bool {
        if host.parse::<IpAddr>().is_ok() || host.parse::<SocketAddr>().is_ok() {
            return true;
        }
        let name = host.split(':').next().unwrap_or_default().to_ascii_lowercase();
        !name.contains('.') || self.0.contains(&name)
    }
}

/// Hashes of tokens, which have one length and are compared in constant time.
#[derive(Debug)]
pub struct Tokens(Vec<[u8; SHA256_OUTPUT_LEN]>);

impl Tokens {
    pub fn contains(&self, token: &str) -> bool {
        let shown = hash(token);
        self.0.iter().fold(Choice::from(0), |known, token| known | token.ct_eq(&shown)).into()
    }
}

fn hash(token: &str) -> [u8; SHA256_OUTPUT_LEN] {
    digest(&SHA256, token.as_bytes()).as_ref().try_into().expect("SHA-256 has this length")
}
