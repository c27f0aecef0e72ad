//! Who may use the API: this machine, or whoever has a token.

use std::net::{IpAddr, SocketAddr};

use axum::http::uri::Authority;
use axum::http::{header, HeaderMap, HeaderName, Uri};
use ring::digest::{digest, SHA256, SHA256_OUTPUT_LEN};
use subtle::{Choice, ConstantTimeEq};

use crate::fault::Fault;
use crate::http::Peer;
use crate::limits::Source;

/// Where the page comes from that asks, by a browser's word, which no page can change.
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

#[derive(Debug)]
pub enum Access {
    ThisMachine,
    Anybody,
    /// Whoever has one of these tokens. By their hashes, which are equally long and compared in equal time.
    Tokens(Vec<[u8; SHA256_OUTPUT_LEN]>),
}

/// Why somebody may not.
#[derive(Debug, PartialEq, Eq)]
pub enum Barred {
    NeedsToken,
    NotFromThere,
    OfAnotherPage,
}

impl Access {
    /// By the files with tokens, one a line, if there are any.
    pub fn new(files: &[Source], anybody: bool) -> Result<Self, Fault> {
        let mut tokens = Vec::new();
        for Source { file, text } in files {
            let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
            let before = tokens.len();
            tokens.extend(lines.map(hash));
            if tokens.len() == before {
                return Err(Fault::in_file(file, "there is no token in it"));
            }
        }
        Ok(match (files, anybody) {
            ([], false) => Self::ThisMachine,
            ([], true) => Self::Anybody,
            _ => Self::Tokens(tokens),
        })
    }

    /// Whether a request may pass. A browser that may shall not do what others' pages want it to. None of them knows
    /// a token.
    pub fn check(&self, peer: Peer, uri: &Uri, headers: &HeaderMap) -> Result<(), Barred> {
        match self {
            Self::Anybody if is_of_another_page(uri, headers) => Err(Barred::OfAnotherPage),
            Self::Anybody => Ok(()),
            Self::ThisMachine => match peer.0 {
                Some(address) if !address.to_canonical().is_loopback() => Err(Barred::NotFromThere),
                Some(_) if !is_meant(uri, headers) || is_of_another_page(uri, headers) => Err(Barred::OfAnotherPage),
                // No browser uses a socket of the file system.
                Some(_) | None => Ok(()),
            },
            Self::Tokens(tokens) => {
                let shown = hash(token(headers).ok_or(Barred::NeedsToken)?);
                let known = tokens.iter().fold(Choice::from(0), |known, token| known | token.ct_eq(&shown));
                bool::from(known).then_some(()).ok_or(Barred::NeedsToken)
            }
        }
    }
}

/// Whether a page of a browser asks, whosever it is.
pub fn is_of_a_page(headers: &HeaderMap) -> bool {
    headers.contains_key(header::ORIGIN) || headers.contains_key(SEC_FETCH_SITE)
}

/// Whether a page of a browser asks that does not come from here.
fn is_of_another_page(uri: &Uri, headers: &HeaderMap) -> bool {
    match (headers.get(SEC_FETCH_SITE), headers.get(header::ORIGIN)) {
        (Some(site), _) => site != "same-origin" && site != "none",
        // Not every browser tells more than this, nor to every host.
        (None, Some(origin)) => {
            let origin = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
            origin.map(|(_, authority)| authority) != host(uri, headers)
        }
        (None, None) => false,
    }
}

/// The host that is asked, as whoever asks names it.
fn host<'a>(uri: &'a Uri, headers: &'a HeaderMap) -> Option<&'a str> {
    let told = || headers.get(header::HOST).map(|host| host.to_str().unwrap_or_default());
    uri.authority().map(Authority::as_str).or_else(told)
}

/// Whether whoever asks knows that he asks this machine. A page of a browser may have been told that its own host's
/// address is this one, and would name that host.
fn is_meant(uri: &Uri, headers: &HeaderMap) -> bool {
    let Some(host) = host(uri, headers) else { return true };
    host.parse::<IpAddr>().is_ok()
        || host.parse::<SocketAddr>().is_ok()
        || host.split(':').next().is_some_and(|name| name.eq_ignore_ascii_case("localhost"))
}

fn token(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
}

fn hash(token: &str) -> [u8; SHA256_OUTPUT_LEN] {
    digest(&SHA256, token.as_bytes()).as_ref().try_into().expect("it is as long as it is")
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn checked(access: &Access, peer: &str, authorization: &str) -> Result<(), Barred> {
        let mut headers = HeaderMap::new();
        headers.insert(header::AUTHORIZATION, authorization.parse().unwrap());
        access.check(Peer(Some(peer.parse().unwrap())), &Uri::default(), &headers)
    }

    #[test]
    fn without_tokens_only_this_machine_may() {
        let access = Access::new(&[], false).unwrap();
        for (peer, expected) in [
            ("127.0.0.1", Ok(())),
            ("127.9.9.9", Ok(())),
            ("::1", Ok(())),
            ("::ffff:127.0.0.1", Ok(())),
            ("192.0.2.1", Err(Barred::NotFromThere)),
            ("::ffff:192.0.2.1", Err(Barred::NotFromThere)),
        ] {
            assert_eq!(checked(&access, peer, ""), expected, "{peer}");
        }
        assert_eq!(access.check(Peer(None), &Uri::default(), &HeaderMap::new()), Ok(()));
        assert_eq!(checked(&Access::new(&[], true).unwrap(), "192.0.2.1", ""), Ok(()));
    }

    #[test]
    fn no_other_page_may() {
        const HERE: Peer = Peer(Some(IpAddr::V4(Ipv4Addr::LOCALHOST)));
        let (this_machine, anybody) = (Access::new(&[], false).unwrap(), Access::new(&[], true).unwrap());
        // By its host, the origin of the page, and where that is by the browser's word: whether it may where only this
        // machine may, and where anybody may.
        for (host, origin, site, may) in [
            ("localhost", "", "", [true, true]),
            ("LocalHost:8080", "", "", [true, true]),
            ("127.0.0.1:8080", "", "", [true, true]),
            ("[::1]:8080", "", "", [true, true]),
            ("other.example", "", "", [false, true]),
            ("localhost.other.example:8080", "", "", [false, true]),
            ("sub.localhost:8080", "", "", [false, true]),
            ("localhost:8080", "http://localhost:8080", "same-origin", [true, true]),
            ("localhost:8080", "http://localhost:8080", "", [true, true]),
            ("localhost:8080", "", "none", [true, true]),
            ("localhost:8080", "http://other.example", "", [false, false]),
            ("localhost:8080", "http://localhost:3000", "", [false, false]),
            ("localhost:8080", "null", "", [false, false]),
            ("localhost:8080", "http://localhost:3000", "same-site", [false, false]),
            ("localhost:8080", "", "cross-site", [false, false]),
            // A name that has become this machine's, of which nobody but the operator knows whether it is his.
            ("other.example:8080", "http://other.example:8080", "same-origin", [false, true]),
        ] {
            let told = [(header::HOST, host), (header::ORIGIN, origin), (SEC_FETCH_SITE, site)];
            let told = told.into_iter().filter(|(_, value)| !value.is_empty());
            let headers: HeaderMap = told.map(|(name, value)| (name, value.parse().unwrap())).collect();
            let found = [&this_machine, &anybody].map(|access| access.check(HERE, &Uri::default(), &headers));
            let expected = may.map(|may| if may { Ok(()) } else { Err(Barred::OfAnotherPage) });
            assert_eq!(found, expected, "{host} {origin} {site}");
            assert_eq!(this_machine.check(Peer(None), &Uri::default(), &headers), Ok(()));
        }
        let of_http2 = "https://other.example/v1/block".parse().unwrap();
        assert_eq!(this_machine.check(HERE, &of_http2, &HeaderMap::new()), Err(Barred::OfAnotherPage));
    }

    #[test]
    fn with_tokens_whoever_has_one_may() {
        let source = |text: &str| Source { file: "tokens".into(), text: text.into() };
        let access = Access::new(&[source("one\n\n  two \n")], true).unwrap();
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
            let expected = if is_known { Ok(()) } else { Err(Barred::NeedsToken) };
            assert_eq!(checked(&access, "127.0.0.1", authorization), expected, "{authorization}");
        }
        let fault = Access::new(&[source(" \n")], true).unwrap_err();
        assert_eq!(fault.to_string(), "tokens: there is no token in it");
    }
}
