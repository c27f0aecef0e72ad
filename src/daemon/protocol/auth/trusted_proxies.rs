//! The client's address, behind trusted proxies.

use std::net::{IpAddr, SocketAddr};

use axum::http::{HeaderMap, HeaderName};

use crate::config::limits::joined;
use crate::config::proxy::Networks;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The client's address: from the peer back along `X-Forwarded-For`, the first that is not a trusted proxy. Clients can
/// forge what comes before it. A `peer` without an address uses a Unix socket, and is trusted.
pub fn client_address(proxies: &Networks, peer: Option<IpAddr>, headers: &HeaderMap) -> Option<IpAddr> {
    let mut client = peer.map(|peer| peer.to_canonical());
    let forwarded = joined(headers, &X_FORWARDED_FOR);
    for hop in forwarded.rsplit(',') {
        if client.is_some_and(|address| !proxies.contains(address)) {
            break;
        }
        // No proxy wrote an invalid address, so clients may have written all that precedes it.
        let Some(address) = address(hop.trim()) else { break };
        client = Some(address);
    }
    client
}

/// An address with or without a port.
fn address(word: &str) -> Option<IpAddr> {
    let bare = word.strip_prefix('[').and_then(|word| word.strip_suffix(']')).unwrap_or(word);
    let with_port = || word.parse::<SocketAddr>().ok().map(|address| address.ip());
    bare.parse::<IpAddr>().ok().or_else(with_port).map(|address| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(peer: Option<&str>, forwarded: &[&str]) -> Option<String> {
        let proxies: Networks = serde_json::from_str(r#"["127.0.0.1", "10.0.0.0/8", "2001:db8::/32"]"#).unwrap();
        let mut headers = HeaderMap::new();
        for line in forwarded {
            headers.append(X_FORWARDED_FOR, line.parse().unwrap());
        }
        let peer = peer.map(|peer| peer.parse().unwrap());
        client_address(&proxies, peer, &headers).map(|address| address.to_string())
    }

    #[test]
    fn the_client_is_the_last_untrusted_address() {
        for (peer, forwarded, expected) in [
            ("127.0.0.1", &[][..], "127.0.0.1"),
            ("127.0.0.1", &["192.0.2.1"], "192.0.2.1"),
            ("::ffff:127.0.0.1", &["::ffff:192.0.2.1"], "192.0.2.1"),
            ("127.0.0.1", &["192.0.2.1, 10.1.2.3, 2001:db8::1"], "192.0.2.1"),
            ("127.0.0.1", &["10.0.0.1, 10.0.0.2"], "10.0.0.1"),
            ("127.0.0.1", &["192.0.2.1:4711"], "192.0.2.1"),
            ("127.0.0.1", &["[2001:db9::1]:4711"], "2001:db9::1"),
            ("127.0.0.1", &["[2001:db9::1]"], "2001:db9::1"),
            // Forged addresses.
            ("192.0.2.9", &["192.0.2.1"], "192.0.2.9"),
            ("127.0.0.1", &["192.0.2.1, 192.0.2.9"], "192.0.2.9"),
            ("127.0.0.1", &["192.0.2.1", "192.0.2.9, 10.0.0.1"], "192.0.2.9"),
            ("127.0.0.1", &["10.0.0.1, 192.0.2.9"], "192.0.2.9"),
            ("127.0.0.1", &["192.0.2.1, unknown"], "127.0.0.1"),
            ("127.0.0.1", &["192.0.2.1, , 10.0.0.1"], "10.0.0.1"),
            ("127.0.0.1", &[""], "127.0.0.1"),
        ] {
            assert_eq!(client(Some(peer), forwarded).as_deref(), Some(expected), "{peer} {forwarded:?}");
        }
    }

    #[test]
    fn unix_sockets_are_trusted() {
        assert_eq!(client(None, &[]), None);
        assert_eq!(client(None, &["192.0.2.9, 192.0.2.1"]).as_deref(), Some("192.0.2.1"));
    }
}
