//! Checks who may use the HTTP API, and refuses cross-site requests of browsers.

use axum::http::uri::Authority;
use axum::http::{header, HeaderMap, HeaderName, Uri};

use super::peer::Peer;
use crate::config::access::{Access, Hosts};

/// The relation between page and host. Browsers set it, and pages cannot change it.
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Why a request may not use the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AccessError {
    NeedsToken,
    NotLocal,
    CrossSite,
}

impl Access {
    /// Checks a request. Without tokens it also rejects cross-site browser requests (CSRF, DNS rebinding); no page
    /// knows a token.
    pub fn check(&self, peer: Peer, uri: &Uri, headers: &HeaderMap) -> Result<(), AccessError> {
        match self {
            Self::Anybody(hosts) if is_foreign(hosts, uri, headers) => Err(AccessError::CrossSite),
            Self::Anybody(_) => Ok(()),
            Self::Local(hosts) => match peer.0 {
                Some(address) if !address.to_canonical().is_loopback() => Err(AccessError::NotLocal),
                Some(_) if is_foreign(hosts, uri, headers) => Err(AccessError::CrossSite),
                // Browsers do not use Unix sockets.
                Some(_) | None => Ok(()),
            },
            Self::Tokens(tokens) => match token(headers) {
                Some(token) if tokens.contains(token) => Ok(()),
                _ => Err(AccessError::NeedsToken),
            },
        }
    }
}

/// Whether a page of another site may have sent the request.
fn is_foreign(hosts: &Hosts, uri: &Uri, headers: &HeaderMap) -> bool {
    is_cross_site(uri, headers) || host(uri, headers).is_some_and(|host| !hosts.contains(host))
}

/// Whether a page in a browser sent the request, whatever its origin.
pub fn is_from_page(headers: &HeaderMap) -> bool {
    headers.contains_key(header::ORIGIN) || headers.contains_key(SEC_FETCH_SITE)
}

/// Whether a page of another origin sent the request.
fn is_cross_site(uri: &Uri, headers: &HeaderMap) -> bool {
    match (headers.get(SEC_FETCH_SITE), headers.get(header::ORIGIN)) {
        (Some(site), _) => site != "same-origin" && site != "none",
        // Older browsers, and insecure origins, send Origin only.
        (None, Some(origin)) => {
            let origin = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
            origin.map(|(_, authority)| authority) != host(uri, headers)
        }
        (None, None) => false,
    }
}

/// The host of the request.
fn host<'a>(uri: &'a Uri, headers: &'a HeaderMap) -> Option<&'a str> {
    let header = || headers.get(header::HOST).map(|host| host.to_str().unwrap_or_default());
    uri.authority().map(Authority::as_str).or_else(header)
}

fn token(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;
    use crate::config::settings::Api;
    use crate::config::source::Source;

    fn access(anybody: bool) -> Access {
        let hosts = vec!["Known.Example".into()];
        Access::new(&[], &Api { anybody, hosts, ..Api::default() }).unwrap()
    }

    fn checked(access: &Access, peer: &str, authorization: &str) -> Result<(), AccessError> {
        let mut headers = HeaderMap::new();
        headers.insert(header::AUTHORIZATION, authorization.parse().unwrap());
        access.check(Peer(Some(peer.parse().unwrap())), &Uri::default(), &headers)
    }

    #[test]
    fn without_tokens_only_this_machine_has_access() {
        let local = access(false);
        for (peer, expected) in [
            ("127.0.0.1", Ok(())),
            ("127.9.9.9", Ok(())),
            ("::1", Ok(())),
            ("::ffff:127.0.0.1", Ok(())),
            ("192.0.2.1", Err(AccessError::NotLocal)),
            ("::ffff:192.0.2.1", Err(AccessError::NotLocal)),
        ] {
            assert_eq!(checked(&local, peer, ""), expected, "{peer}");
        }
        assert_eq!(local.check(Peer(None), &Uri::default(), &HeaderMap::new()), Ok(()));
        assert_eq!(checked(&access(true), "192.0.2.1", ""), Ok(()));
    }

    #[test]
    fn other_pages_are_refused() {
        const HERE: Peer = Peer(Some(IpAddr::V4(Ipv4Addr::LOCALHOST)));
        let (this_machine, anybody) = (access(false), access(true));
        // Host, Origin, Sec-Fetch-Site; whether access `Local` and `Anybody` accept it.
        for (host, origin, site, may) in [
            ("localhost", "", "", [true, true]),
            ("LocalHost:8080", "", "", [true, true]),
            ("127.0.0.1:8080", "", "", [true, true]),
            ("[::1]:8080", "", "", [true, true]),
            ("other.example", "", "", [false, false]),
            ("known.example:8080", "", "", [true, true]),
            ("swlimitd:8080", "", "", [true, true]),
            ("localhost.other.example:8080", "", "", [false, false]),
            ("sub.localhost:8080", "", "", [false, false]),
            ("localhost:8080", "http://localhost:8080", "same-origin", [true, true]),
            ("localhost:8080", "http://localhost:8080", "", [true, true]),
            ("localhost:8080", "", "none", [true, true]),
            ("localhost:8080", "http://other.example", "", [false, false]),
            ("localhost:8080", "http://localhost:3000", "", [false, false]),
            ("localhost:8080", "null", "", [false, false]),
            ("localhost:8080", "http://localhost:3000", "same-site", [false, false]),
            ("localhost:8080", "", "cross-site", [false, false]),
            // DNS rebinding: to the browser this is the page's own host.
            ("other.example:8080", "http://other.example:8080", "same-origin", [false, false]),
            ("known.example:8080", "http://known.example:8080", "same-origin", [true, true]),
        ] {
            let told = [(header::HOST, host), (header::ORIGIN, origin), (SEC_FETCH_SITE, site)];
            let told = told.into_iter().filter(|(_, value)| !value.is_empty());
            let headers: HeaderMap = told.map(|(name, value)| (name, value.parse().unwrap())).collect();
            let found = [&this_machine, &anybody].map(|access| access.check(HERE, &Uri::default(), &headers));
            let expected = may.map(|may| if may { Ok(()) } else { Err(AccessError::CrossSite) });
            assert_eq!(found, expected, "{host} {origin} {site}");
            assert_eq!(this_machine.check(Peer(None), &Uri::default(), &headers), Ok(()));
        }
        let over_http2 = "https://other.example/v1/block".parse().unwrap();
        assert_eq!(this_machine.check(HERE, &over_http2, &HeaderMap::new()), Err(AccessError::CrossSite));
    }

    #[test]
    fn tokens_give_access() {
        let source = |text: &str| Source { file: "tokens".into(), text: text.into() };
        let access = Access::new(&[source("one\n\n  two \n")], &Api { anybody: true, ..Api::default() }).unwrap();
        for (authorization, is_known) in [
            ("Bearer one", true),
            ("bearer  two", true),
            ("Bearer on", false),
            ("Bearer onee", false),
            ("Bearer ", false),
            ("Bearer", false),
            ("Basic one", false),
            ("one", false),
            ("", false),
        ] {
            let expected = if is_known { Ok(()) } else { Err(AccessError::NeedsToken) };
            assert_eq!(checked(&access, "127.0.0.1", authorization), expected, "{authorization}");
        }
        let fault = Access::new(&[source(" \n")], &Api::default()).unwrap_err();
        assert_eq!(fault.to_string(), "tokens: the file has no token");
    }
}
