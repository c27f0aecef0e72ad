//! Whose request it is, by what cannot be made up.

use std::net::{IpAddr, SocketAddr};

use axum::http::{HeaderMap, HeaderName};
use ipnet::IpNet;
use serde::{de, Deserialize, Deserializer};

use crate::limits::joined;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Networks of proxies that tell the truth about who asked them.
#[derive(Clone, Debug, PartialEq)]
pub struct TrustedProxies(Vec<IpNet>);

impl Default for TrustedProxies {
    fn default() -> Self {
        Self(["127.0.0.1", "::1"].map(|address| IpNet::from(address.parse::<IpAddr>().expect("it is one"))).into())
    }
}

impl<'de> Deserialize<'de> for TrustedProxies {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let network = |word: &String| {
            let address = word.parse::<IpAddr>().map(IpNet::from);
            word.parse()
                .or(address)
                .map_err(|_| de::Error::custom(format!("'{word}' is not a network such as 10.0.0.0/8")))
        };
        Vec::<String>::deserialize(deserializer)?.iter().map(network).collect::<Result<_, _>>().map(Self)
    }
}

impl TrustedProxies {
    /// The client's address: going back along the way that the request came, the first one that is not a trusted
    /// proxy's. What stands before it in `X-Forwarded-For`, anybody may have written. A `peer` without an address is
    /// on this machine and allowed to use the socket, and trusted.
    pub fn client(&self, peer: Option<IpAddr>, headers: &HeaderMap) -> Option<IpAddr> {
        let mut client = peer.map(|peer| peer.to_canonical());
        let way = joined(headers, &X_FORWARDED_FOR);
        for told in way.rsplit(',') {
            if client.is_some_and(|address| !self.0.iter().any(|network| network.contains(&address))) {
                break;
            }
            // What is not an address was not told by a proxy, and nothing before it was.
            let Some(address) = address(told.trim()) else { break };
            client = Some(address);
        }
        client
    }
}

/// An address, whatever port is told with it.
fn address(word: &str) -> Option<IpAddr> {
    let bare = word.strip_prefix('[').and_then(|word| word.strip_suffix(']')).unwrap_or(word);
    let with_port = || word.parse::<SocketAddr>().ok().map(|address| address.ip());
    bare.parse::<IpAddr>().ok().or_else(with_port).map(|address| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(peer: Option<&str>, told: &[&str]) -> Option<String> {
        let proxies: TrustedProxies = serde_json::from_str(r#"["127.0.0.1", "10.0.0.0/8", "2001:db8::/32"]"#).unwrap();
        let mut headers = HeaderMap::new();
        for line in told {
            headers.append(X_FORWARDED_FOR, line.parse().unwrap());
        }
        let peer = peer.map(|peer| peer.parse().unwrap());
        proxies.client(peer, &headers).map(|address| address.to_string())
    }

    #[test]
    fn the_client_is_the_last_that_no_trusted_proxy_has_the_address_of() {
        for (peer, told, expected) in [
            ("127.0.0.1", &[][..], "127.0.0.1"),
            ("127.0.0.1", &["192.0.2.1"], "192.0.2.1"),
            ("::ffff:127.0.0.1", &["::ffff:192.0.2.1"], "192.0.2.1"),
            ("127.0.0.1", &["192.0.2.1, 10.1.2.3, 2001:db8::1"], "192.0.2.1"),
            ("127.0.0.1", &["10.0.0.1, 10.0.0.2"], "10.0.0.1"),
            ("127.0.0.1", &["192.0.2.1:4711"], "192.0.2.1"),
            ("127.0.0.1", &["[2001:db9::1]:4711"], "2001:db9::1"),
            ("127.0.0.1", &["[2001:db9::1]"], "2001:db9::1"),
            // Somebody writes what he is not.
            ("192.0.2.9", &["192.0.2.1"], "192.0.2.9"),
            ("127.0.0.1", &["192.0.2.1, 192.0.2.9"], "192.0.2.9"),
            ("127.0.0.1", &["192.0.2.1", "192.0.2.9, 10.0.0.1"], "192.0.2.9"),
            ("127.0.0.1", &["10.0.0.1, 192.0.2.9"], "192.0.2.9"),
            ("127.0.0.1", &["192.0.2.1, unknown"], "127.0.0.1"),
            ("127.0.0.1", &["192.0.2.1, , 10.0.0.1"], "10.0.0.1"),
            ("127.0.0.1", &[""], "127.0.0.1"),
        ] {
            assert_eq!(client(Some(peer), told).as_deref(), Some(expected), "{peer} {told:?}");
        }
    }

    #[test]
    fn a_socket_of_this_machine_has_no_address_and_is_trusted() {
        assert_eq!(client(None, &[]), None);
        assert_eq!(client(None, &["192.0.2.9, 192.0.2.1"]).as_deref(), Some("192.0.2.1"));
    }

    #[test]
    fn what_is_no_network_is_refused() {
        for text in [r#"["10.0.0.0/33"]"#, r#"["localhost"]"#, r#""10.0.0.1""#] {
            assert!(serde_json::from_str::<TrustedProxies>(text).is_err(), "{text}");
        }
    }
}
