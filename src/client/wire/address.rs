//! Where servers are: what a URL says.

use redis::sentinel::{SentinelClientBuilder, SentinelServerType};
use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion, TlsMode};

use super::Failure;

/// A kind of place.
pub(super) enum Address {
    /// One server.
    One(ConnectionInfo),
    /// The master of that name, as sentinels know it.
    Sentinel(SentinelClientBuilder),
    /// A cluster, by some of its nodes.
    Cluster(Vec<ConnectionInfo>),
}

impl Address {
    /// Read `redis://`, `rediss://`, `unix://`; `redis-cluster://a,b` and `rediss-cluster://a,b`;
    /// `redis-sentinel://a,b/name` and `rediss-sentinel://a,b/name`, of which `rediss` means TLS to the servers. With
    /// `user:password@` and, but for clusters, `/database` behind.
    ///
    /// # Errors
    /// A text that says what is wrong.
    pub fn parse(url: &str) -> Result<Self, String> {
        let (scheme, rest) = url.split_once("://").ok_or("a URL is needed, such as redis://127.0.0.1/")?;
        let (plain, kind) = scheme.split_once('-').unwrap_or((scheme, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, hosts) = authority.rsplit_once('@').map_or(("", authority), |(user, hosts)| (user, hosts));
        let at = if user.is_empty() { "" } else { "@" };
        let nodes = |path: &str, default_port: u16| {
            let node = |host: &str| {
                let port = if has_port(host) { String::new() } else { format!(":{default_port}") };
                info(&format!("{plain}://{user}{at}{host}{port}/{path}"))
            };
            hosts.split(',').map(node).collect::<Result<Vec<_>, _>>()
        };
        match kind {
            "" => Ok(Self::One(info(url)?)),
            "cluster" => Ok(Self::Cluster(nodes("", 6379)?)),
            "sentinel" => {
                let (name, database) = path.split_once('/').unwrap_or((path, ""));
                if name.is_empty() {
                    return Err("the master's name is missing: redis-sentinel://host:26379/NAME".into());
                }
                sentinel(&nodes(database, 26379)?, name).map(Self::Sentinel).map_err(|error| error.to_string())
            }
            _ => Err(format!("unknown scheme {scheme}")),
        }
    }
}

fn info(url: &str) -> Result<ConnectionInfo, String> {
    let info = url.into_connection_info().map_err(|error| error.to_string())?;
    #[cfg(feature = "tls")]
    if matches!(info.addr(), ConnectionAddr::TcpTls { .. }) {
        // Which cryptography to use is the process's choice; where it has made none, it is made here.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
    let tcp = info.tcp_settings().clone().set_nodelay(true);
    Ok(info.set_tcp_settings(tcp))
}

fn has_port(host: &str) -> bool {
    host.rsplit_once(':').is_some_and(|(_, port)| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()))
}

/// A builder with everything that the nodes' URLs say about the servers behind the sentinels.
fn sentinel(nodes: &[ConnectionInfo], name: &str) -> redis::RedisResult<SentinelClientBuilder> {
    let addresses = nodes.iter().map(|node| match node.addr() {
        // Sentinels themselves are asked in the clear.
        ConnectionAddr::TcpTls { host, port, .. } => ConnectionAddr::Tcp(host.clone(), *port),
        address => address.clone(),
    });
    let mut builder = SentinelClientBuilder::new(addresses, name, SentinelServerType::Master)?
        .set_client_to_redis_protocol(ProtocolVersion::RESP3);
    if let Some(node) = nodes.first() {
        let settings = node.redis_settings();
        builder =
            builder.set_client_to_redis_db(settings.db()).set_client_to_redis_tcp_settings(node.tcp_settings().clone());
        if matches!(node.addr(), ConnectionAddr::TcpTls { .. }) {
            builder = builder.set_client_to_redis_tls_mode(TlsMode::Secure);
        }
        if let Some(username) = settings.username() {
            builder = builder.set_client_to_redis_username(username);
        }
        if let Some(password) = settings.password() {
            builder = builder.set_client_to_redis_password(password);
        }
    }
    Ok(builder)
}

impl From<redis::RedisError> for Failure {
    fn from(error: redis::RedisError) -> Self {
        match (error.kind(), error.code()) {
            (redis::ErrorKind::Server(_) | redis::ErrorKind::Extension, Some(code)) => {
                Self::Reply(format!("{code} {}", error.detail().unwrap_or_default()).trim_end().to_owned())
            }
            (redis::ErrorKind::Server(_) | redis::ErrorKind::Extension, None) => Self::Reply(error.to_string()),
            _ => Self::Connection(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_every_kind() {
        let one = |url| matches!(Address::parse(url), Ok(Address::One(_)));
        assert!(one("redis://127.0.0.1/") && one("redis://user:secret@host:7000/3") && one("unix:///run/redis.sock"));
        let Ok(Address::Cluster(nodes)) = Address::parse("redis-cluster://u:p@a,b:7001,[::1]:7002") else { panic!() };
        let addresses: Vec<String> = nodes.iter().map(|node| node.addr().to_string()).collect();
        assert_eq!(addresses, ["a:6379", "b:7001", "::1:7002"]);
        assert!(nodes.iter().all(|node| node.redis_settings().password() == Some("p")));
        assert!(matches!(Address::parse("redis-sentinel://:secret@a,b:26380/mymaster/2"), Ok(Address::Sentinel(_))));
    }

    #[test]
    fn urls_of_no_kind() {
        for url in ["", "127.0.0.1:6379", "http://127.0.0.1/", "redis-sentinel://a,b", "redis-ring://a", "redis://"] {
            assert!(Address::parse(url).is_err(), "{url}");
        }
    }
}
