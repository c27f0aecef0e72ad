//! Server URLs, and the options that a URL has no room for.

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo};

use super::sentinel::{with_host, Sentinels};
use super::Failure;
use crate::reason::Reason;

/// Options of connections that a URL has no room for. Server names are always checked against their certificates.
#[derive(Clone, Default)]
pub struct ConnectionOptions {
    authority: Option<Vec<u8>>,
    certificate: Option<(Vec<u8>, Vec<u8>)>,
    sentinel_tls: Option<bool>,
    sentinel_login: Option<(Option<String>, String)>,
}

impl ConnectionOptions {
    /// No options: the system's certificate authorities, no client certificate, sentinels without TLS and password.
    pub fn new() -> Self {
        Self::default()
    }

    /// Trusts these certificate authorities (PEM) instead of the system's.
    #[must_use]
    pub fn authority(self, pem: impl Into<Vec<u8>>) -> Self {
        Self { authority: Some(pem.into()), ..self }
    }

    /// Shows the server a client certificate; both in PEM.
    #[must_use]
    pub fn certificate(self, certificate: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        Self { certificate: Some((certificate.into(), key.into())), ..self }
    }

    /// Whether sentinels are asked over TLS; not, unless set. The URL's scheme is about the primary only.
    #[must_use]
    pub fn sentinel_tls(self, is_on: bool) -> Self {
        Self { sentinel_tls: Some(is_on), ..self }
    }

    /// The sentinels' own password, and their user if there is one.
    #[must_use]
    pub fn sentinel_login(self, user: Option<&str>, password: &str) -> Self {
        Self { sentinel_login: Some((user.map(str::to_owned), password.to_owned())), ..self }
    }

    fn secure(&self, info: ConnectionInfo) -> Result<ConnectionInfo, String> {
        if !matches!(info.addr(), ConnectionAddr::TcpTls { .. }) {
            return Ok(info);
        }
        #[cfg(not(feature = "tls"))]
        return Err("TLS needs the feature `tls`".into());
        #[cfg(feature = "tls")]
        {
            // Which cryptography to use is the process's choice; where it has made none, it is made here.
            let _ = rustls::crypto::ring::default_provider().install_default();
            let certificates = redis::TlsCertificates {
                client_tls: self
                    .certificate
                    .clone()
                    .map(|(client_cert, client_key)| redis::ClientTlsConfig { client_cert, client_key }),
                root_cert: self.authority.clone(),
            };
            let tcp = info.tcp_settings().clone();
            let client = redis::Client::build_with_tls(info, certificates).map_err(|error| error.to_string())?;
            Ok(client.get_connection_info().clone().set_tcp_settings(tcp))
        }
    }
}

impl std::fmt::Debug for ConnectionOptions {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.debug_struct("ConnectionOptions")
            .field("authority", &self.authority.is_some())
            .field("certificate", &self.certificate.is_some())
            .field("sentinel_tls", &self.sentinel_tls)
            .field("sentinel_login", &self.sentinel_login.is_some())
            .finish()
    }
}

/// What a URL names.
pub(super) enum Target {
    Server(ConnectionInfo),
    Sentinels(Sentinels),
    /// Some nodes, at least one.
    Cluster(Vec<ConnectionInfo>),
}

impl Target {
    /// Reads `redis://`, `rediss://`, `unix://`; `redis-cluster://a,b` and `rediss-cluster://a,b`;
    /// `redis-sentinel://a,b/name` and `rediss-sentinel://a,b/name`. With `user:password@` and, except for clusters,
    /// `/database` behind.
    ///
    /// # Errors
    /// A text that says what is wrong.
    pub fn parse(url: &str, options: &ConnectionOptions) -> Result<Self, String> {
        let (scheme, rest) = url.split_once("://").ok_or("a URL is needed, such as redis://127.0.0.1/")?;
        let (plain, kind) = scheme.split_once('-').unwrap_or((scheme, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, hosts) = authority.rsplit_once('@').map_or(("", authority), |(user, hosts)| (user, hosts));
        let at = if user.is_empty() { "" } else { "@" };
        let nodes = |scheme: &str, user: &str, at: &str, default_port: u16| {
            let node = |host: &str| {
                let port = if has_port(host) { String::new() } else { format!(":{default_port}") };
                options.secure(info(&format!("{scheme}://{user}{at}{host}{port}/"))?)
            };
            hosts.split(',').map(node).collect::<Result<Vec<_>, _>>()
        };
        match kind {
            "" => Ok(Self::Server(options.secure(info(url)?)?)),
            "cluster" => Ok(Self::Cluster(nodes(plain, user, at, 6379)?)),
            "sentinel" => {
                let (name, database) = path.split_once('/').unwrap_or((path, ""));
                if name.is_empty() {
                    return Err("the primary's name is missing: redis-sentinel://host:26379/NAME".into());
                }
                let scheme = if options.sentinel_tls == Some(true) { "rediss" } else { "redis" };
                let login = |node: ConnectionInfo| match &options.sentinel_login {
                    Some((user, password)) => {
                        let settings = node.redis_settings().clone().set_password(password);
                        let settings = match user {
                            Some(user) => settings.set_username(user),
                            None => settings,
                        };
                        node.set_redis_settings(settings)
                    }
                    None => node,
                };
                let nodes: Vec<_> = nodes(scheme, "", "", 26379)?.into_iter().map(login).collect();
                // The address is the sentinels' to say; any stands for it until then.
                let primary = options.secure(info(&format!("{plain}://{user}{at}primary/{database}"))?)?;
                Ok(Self::Sentinels(Sentinels::new(nodes, primary, name)))
            }
            _ => Err(format!("unknown scheme {scheme}")),
        }
    }
}

fn info(url: &str) -> Result<ConnectionInfo, String> {
    // The library's name of the error stands behind the dash.
    let in_words = |error: redis::RedisError| error.to_string().split(" - ").next().unwrap_or_default().to_owned();
    let info = url.into_connection_info().map_err(in_words)?;
    let keepalive = redis::io::tcp::socket2::TcpKeepalive::new().with_time(std::time::Duration::from_secs(10));
    let tcp = info.tcp_settings().clone().set_nodelay(true).set_keepalive(keepalive);
    Ok(info.set_tcp_settings(tcp))
}

fn has_port(host: &str) -> bool {
    host.rsplit_once(':').is_some_and(|(_, port)| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()))
}

/// The same settings at another address, `host:port`.
pub(super) fn at(seed: &ConnectionInfo, node: &str) -> Result<ConnectionInfo, Failure> {
    let unclear = || Failure::Connection(Reason::Other.because(format!("{node} is no address")));
    let (host, port) = node.rsplit_once(':').ok_or_else(unclear)?;
    Ok(with_host(seed, host.to_owned(), port.parse().map_err(|_| unclear())?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<Target, String> {
        Target::parse(url, &ConnectionOptions::new())
    }

    #[test]
    fn urls_of_every_kind() {
        let one = |url| matches!(parse(url), Ok(Target::Server(_)));
        assert!(one("redis://127.0.0.1/") && one("redis://user:secret@host:7000/3") && one("unix:///run/redis.sock"));
        let Ok(Target::Cluster(nodes)) = parse("redis-cluster://u:p@a,b:7001,[::1]:7002") else { panic!() };
        let addresses: Vec<String> = nodes.iter().map(|node| node.addr().to_string()).collect();
        assert_eq!(addresses, ["a:6379", "b:7001", "::1:7002"]);
        assert!(nodes.iter().all(|node| node.redis_settings().password() == Some("p")));
    }

    #[test]
    fn sentinels_have_a_login_of_their_own() {
        let options = ConnectionOptions::new().sentinel_login(Some("watcher"), "theirs");
        let place = Target::parse("redis-sentinel://:secret@a,b:26380/mymaster/2", &options);
        let Ok(Target::Sentinels(Sentinels { nodes, primary, name, .. })) = place else { panic!() };
        assert_eq!((&*name, primary.redis_settings().db()), ("mymaster", 2));
        assert_eq!(primary.redis_settings().password(), Some("secret"));
        let addresses: Vec<String> = nodes.iter().map(|node| node.addr().to_string()).collect();
        assert_eq!(addresses, ["a:26379", "b:26380"]);
        for node in &nodes {
            let settings = node.redis_settings();
            assert_eq!((settings.username(), settings.password()), (Some("watcher"), Some("theirs")));
        }
    }

    #[test]
    fn urls_of_no_kind() {
        for url in ["", "127.0.0.1:6379", "http://127.0.0.1/", "redis-sentinel://a,b", "redis-ring://a", "redis://"] {
            assert!(parse(url).is_err(), "{url}");
        }
    }
}
