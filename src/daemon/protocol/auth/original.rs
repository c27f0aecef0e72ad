//! Decodes the original request, which a proxy asks about.

use std::net::{IpAddr, Ipv4Addr};

use axum::http::{header, request::Parts, HeaderMap, HeaderName};

use super::trusted_proxies::client_address;
use crate::config::limits::{MissingHeader, OriginalRequest};
use crate::config::proxy::Auth;
use crate::protocol::peer::Peer;

/// The original request. If the path continues behind `prefix`, the question itself is the original request, and no
/// header can change that. Otherwise headers describe it.
pub fn original<'a>(parts: &'a Parts, prefix: &str, peer: Peer, auth: &Auth) -> OriginalRequest<'a> {
    let headers = &parts.headers;
    let client = client_address(&auth.trusted_proxies, peer.0, headers);
    let words = match parts.uri.path().strip_prefix(prefix) {
        Some(behind) if !behind.is_empty() => {
            let host = match parts.uri.host() {
                Some(host) => Ok(host.into()),
                None => last(headers, &header::HOST),
            };
            WrittenRequest { method: Ok(parts.method.to_string()), host, uri: Ok(behind.into()) }
        }
        _ => WrittenRequest {
            method: last(headers, &auth.method_header),
            host: last(headers, &auth.host_header),
            uri: last(headers, &auth.uri_header),
        },
    };
    words.normalized(client, headers, auth)
}

/// A request's method, host and URI as a client wrote them.
pub struct WrittenRequest {
    pub method: Result<String, MissingHeader>,
    pub host: Result<String, MissingHeader>,
    pub uri: Result<String, MissingHeader>,
}

impl WrittenRequest {
    /// The request as policies match it.
    pub fn normalized<'a>(self, client: Option<IpAddr>, headers: &'a HeaderMap, auth: &Auth) -> OriginalRequest<'a> {
        let Self { method, host, uri } = self;
        let (host, path) = (host.map(|host| normalized_host(&host)), uri.map(|uri| auth.paths.normalize(&uri)));
        let (client, method_written) = (client.map(unwrapped), method.clone());
        let method = method.map(|method| method.to_ascii_uppercase());
        OriginalRequest { client, host, path, method, method_written, headers }
    }
}

/// The IPv4 address that an IPv6 address stands for, mapped or behind NAT64 (RFC 6052): otherwise all clients behind
/// NAT64 would be one network.
fn unwrapped(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) if address.segments()[..6] == [0x64, 0xff9b, 0, 0, 0, 0] => {
            let [.., a, b, c, d] = address.octets();
            Ipv4Addr::new(a, b, c, d).into()
        }
        address => address,
    }
}

/// The last value of a header: a proxy that adds its value appends it to the client's.
fn last(headers: &HeaderMap, name: &HeaderName) -> Result<String, MissingHeader> {
    let value = headers.get_all(name).iter().next_back();
    let value = value.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
    value.ok_or_else(|| MissingHeader(name.to_string()))
}

/// The host in lower case, without port and trailing dot.
fn normalized_host(host: &str) -> String {
    let end = host.rfind(':').filter(|end| !host[*end..].contains(']')).unwrap_or(host.len());
    host[..end].trim_end_matches('.').to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use axum::http::Request;

    use super::*;

    #[test]
    fn hosts_are_normalized() {
        for (host, expected) in [
            ("Shop.Example", "shop.example"),
            ("shop.example:8080", "shop.example"),
            ("shop.example.", "shop.example"),
            ("[2001:DB8::1]:80", "[2001:db8::1]"),
            ("[2001:db8::1]", "[2001:db8::1]"),
            ("", ""),
        ] {
            assert_eq!(normalized_host(host), expected, "{host}");
        }
    }

    fn decoded(uri: &str, headers: &[(&str, &str)]) -> [Result<String, MissingHeader>; 3] {
        let mut request = Request::builder().uri(uri).method("PUT");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        let original = original(&parts, "/auth", Peer(None), &Auth::default());
        [original.method, original.host, original.path]
    }

    #[test]
    fn the_original_request_is_in_headers_or_behind_the_prefix() {
        let forwarded =
            [("X-Forwarded-Method", "GET"), ("X-Forwarded-Host", "A:1"), ("X-Forwarded-Uri", "/x?y"), ("Host", "b")];
        let ok = |all: [&str; 3]| all.map(|value| Ok(value.into()));
        assert_eq!(decoded("/auth", &forwarded), ok(["GET", "a", "/x"]));
        assert_eq!(decoded("/auth/", &forwarded), ok(["PUT", "b", "/"]));
        assert_eq!(decoded("/auth/z", &forwarded), ok(["PUT", "b", "/z"]));
        assert_eq!(decoded("http://c/auth/z", &[]), ok(["PUT", "c", "/z"]));
        // A proxy that appends its header.
        assert_eq!(decoded("/auth", &[forwarded[2], ("X-Forwarded-Uri", "/own")])[2], Ok("/own".into()));
        let missing = |name: &str| Err(MissingHeader(name.into()));
        assert_eq!(
            decoded("/auth", &[("Host", "b")]),
            ["method", "host", "uri"].map(|it| missing(&format!("x-forwarded-{it}")))
        );
    }
}
