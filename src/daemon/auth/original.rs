//! The request that a proxy asks about.

use axum::http::{header, request::Parts, HeaderMap, HeaderName};
use percent_encoding::percent_decode_str;
use serde::{de, Deserialize, Deserializer};

use super::TrustedProxies;
use crate::http::Peer;
use crate::limits::{Asked, Missing, Told};

/// How proxies tell of the requests that they ask about.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct Auth {
    pub trusted_proxies: TrustedProxies,
    // Of the request, if it is not in the question's own path.
    #[serde(deserialize_with = "name")]
    pub method_header: HeaderName,
    #[serde(deserialize_with = "name")]
    pub uri_header: HeaderName,
    #[serde(deserialize_with = "name")]
    pub host_header: HeaderName,
}

impl Default for Auth {
    fn default() -> Self {
        Self {
            trusted_proxies: TrustedProxies::default(),
            method_header: HeaderName::from_static("x-forwarded-method"),
            uri_header: HeaderName::from_static("x-forwarded-uri"),
            host_header: HeaderName::from_static("x-forwarded-host"),
        }
    }
}

fn name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<HeaderName, D::Error> {
    let word = String::deserialize(deserializer)?;
    word.parse().map_err(|_| de::Error::custom(format!("'{word}' is not the name of a header")))
}

/// The request that is asked about. What follows `prefix` in the question's path is the request's own: then its method
/// and host are the question's, and no header can say otherwise. Without anything behind it, headers tell.
pub fn asked<'a>(parts: &'a Parts, prefix: &str, peer: Peer, auth: &Auth) -> Asked<'a> {
    let headers = &parts.headers;
    let client = auth.trusted_proxies.client(peer.0, headers);
    match parts.uri.path().strip_prefix(prefix) {
        Some(behind) if !behind.is_empty() => {
            let host = match parts.uri.host() {
                Some(host) => Ok(host.into()),
                None => told(headers, &header::HOST),
            };
            let (host, method) = (host.map(|host| bare_host(&host)), Ok(parts.method.to_string()));
            Asked { client, host, path: Ok(bare_path(behind)), method, headers }
        }
        _ => {
            let host = told(headers, &auth.host_header).map(|host| bare_host(&host));
            let path = told(headers, &auth.uri_header).map(|uri| bare_path(&uri));
            Asked { client, host, path, method: told(headers, &auth.method_header), headers }
        }
    }
}

/// What the proxy has written, which is the last of several: a header that the client sent comes before it.
fn told(headers: &HeaderMap, name: &HeaderName) -> Told<String> {
    let value = headers.get_all(name).iter().next_back();
    value.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned()).ok_or_else(|| Missing(name.to_string()))
}

/// A host without its port, as it is compared.
fn bare_host(host: &str) -> String {
    let end = host.rfind(':').filter(|end| !host[*end..].contains(']')).unwrap_or(host.len());
    host[..end].trim_end_matches('.').to_ascii_lowercase()
}

/// A path as the server behind the proxy will understand it, however it is spelled: without a query, decoded, without
/// empty steps, `.` and `..`.
fn bare_path(uri: &str) -> String {
    let path = match uri.split_once("://") {
        Some((scheme, rest)) if scheme.bytes().all(|byte| byte.is_ascii_alphanumeric()) => {
            rest.find('/').map_or("/", |begin| &rest[begin..])
        }
        _ => uri,
    };
    let path = path.split(['?', '#']).next().unwrap_or_default();
    let decoded = percent_decode_str(path).decode_utf8_lossy();
    let mut steps: Vec<&str> = Vec::new();
    for step in decoded.split('/') {
        match step {
            "" | "." => {}
            ".." => drop(steps.pop()),
            step => steps.push(step),
        }
    }
    let is_folder = !steps.is_empty() && ["/", "/.", "/.."].iter().any(|end| decoded.ends_with(end));
    format!("/{}{}", steps.join("/"), if is_folder { "/" } else { "" })
}

#[cfg(test)]
mod tests {
    use axum::http::Request;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_path_has_one_spelling() {
        for (uri, expected) in [
            ("/", "/"),
            ("", "/"),
            ("/api/x", "/api/x"),
            ("/api/x/", "/api/x/"),
            ("/api/x?y=/../z#a", "/api/x"),
            ("//api///x", "/api/x"),
            ("/%61pi/%78", "/api/x"),
            ("/other/../api/./x", "/api/x"),
            ("/other/%2e%2e/api/x", "/api/x"),
            ("/api/x/.", "/api/x/"),
            ("/api/x/y/..", "/api/x/"),
            ("/../..", "/"),
            ("https://shop.example/api/x?y", "/api/x"),
            ("https://shop.example", "/"),
            ("/go?to=https://other.example/api", "/go"),
            ("/%ff", "/\u{fffd}"),
            ("/%", "/%"),
            ("*", "/*"),
        ] {
            assert_eq!(bare_path(uri), expected, "{uri}");
        }
    }

    #[test]
    fn a_host_has_one_spelling() {
        for (host, expected) in [
            ("Shop.Example", "shop.example"),
            ("shop.example:8080", "shop.example"),
            ("shop.example.", "shop.example"),
            ("[2001:DB8::1]:80", "[2001:db8::1]"),
            ("[2001:db8::1]", "[2001:db8::1]"),
            ("", ""),
        ] {
            assert_eq!(bare_host(host), expected, "{host}");
        }
    }

    fn told_of(uri: &str, headers: &[(&str, &str)]) -> [Told<String>; 3] {
        let mut request = Request::builder().uri(uri).method("PUT");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        let asked = asked(&parts, "/auth", Peer(None), &Auth::default());
        [asked.method, asked.host, asked.path]
    }

    #[test]
    fn the_request_is_in_headers_or_behind_the_prefix() {
        let forwarded =
            [("X-Forwarded-Method", "GET"), ("X-Forwarded-Host", "A:1"), ("X-Forwarded-Uri", "/x?y"), ("Host", "b")];
        let told = |all: [&str; 3]| all.map(|value| Ok(value.into()));
        assert_eq!(told_of("/auth", &forwarded), told(["GET", "a", "/x"]));
        assert_eq!(told_of("/auth/", &forwarded), told(["PUT", "b", "/"]));
        assert_eq!(told_of("/auth/z", &forwarded), told(["PUT", "b", "/z"]));
        assert_eq!(told_of("http://c/auth/z", &[]), told(["PUT", "c", "/z"]));
        // A proxy that adds instead of replacing.
        assert_eq!(told_of("/auth", &[forwarded[2], ("X-Forwarded-Uri", "/own")])[2], Ok("/own".into()));
        let missing = |name: &str| Err(Missing(name.into()));
        assert_eq!(
            told_of("/auth", &[("Host", "b")]),
            ["method", "host", "uri"].map(|it| missing(&format!("x-forwarded-{it}")))
        );
    }

    proptest! {
        /// Once is enough, and no spelling gets out of the top.
        #[test]
        fn paths_stay_as_they_are(path in "[/.a]{0,12}") {
            let bare = bare_path(&path);
            prop_assert!(bare.starts_with('/') && !bare.contains("//") && !bare.contains("/./"), "{bare}");
            prop_assert_eq!(bare_path(&bare), bare);
        }
    }
}
