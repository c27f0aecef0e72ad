//! Who may use the API: this machine, or whoever has a token.

use std::net::{IpAddr, SocketAddr};

use axum::http::{header, HeaderMap};
use ring::digest::{digest, SHA256, SHA256_OUTPUT_LEN};
use subtle::{Choice, ConstantTimeEq};

use crate::fault::Fault;
use crate::http::Peer;
use crate::limits::Source;

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

    /// Whether a request may pass.
    pub fn check(&self, peer: Peer, headers: &HeaderMap) -> Result<(), Barred> {
        match self {
            Self::Anybody => Ok(()),
            Self::ThisMachine => {
                let is_here = |address: IpAddr| address.to_canonical().is_loopback() && is_meant(headers);
                peer.0.is_none_or(is_here).then_some(()).ok_or(Barred::NotFromThere)
            }
            Self::Tokens(tokens) => {
                let shown = hash(token(headers).ok_or(Barred::NeedsToken)?);
                let known = tokens.iter().fold(Choice::from(0), |known, token| known | token.ct_eq(&shown));
                bool::from(known).then_some(()).ok_or(Barred::NeedsToken)
            }
        }
    }
}

/// Whether whoever asks knows that he asks this machine. A page of a browser may have been told that its own host's
/// address is this one, and would name that host.
fn is_meant(headers: &HeaderMap) -> bool {
    let Some(host) = headers.get(header::HOST) else { return true };
    let host = host.to_str().unwrap_or_default();
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
    use super::*;

    fn checked(access: &Access, peer: &str, authorization: &str) -> Result<(), Barred> {
        let mut headers = HeaderMap::new();
        headers.insert(header::AUTHORIZATION, authorization.parse().unwrap());
        access.check(Peer(Some(peer.parse().unwrap())), &headers)
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
        for (host, expected) in [
            ("localhost", Ok(())),
            ("LocalHost:8080", Ok(())),
            ("127.0.0.1:8080", Ok(())),
            ("[::1]:8080", Ok(())),
            ("evil.example", Err(Barred::NotFromThere)),
            ("localhost.evil.example:8080", Err(Barred::NotFromThere)),
            ("", Err(Barred::NotFromThere)),
        ] {
            let headers = HeaderMap::from_iter([(header::HOST, host.parse().unwrap())]);
            assert_eq!(access.check(Peer(Some([127, 0, 0, 1].into())), &headers), expected, "{host}");
            assert_eq!(access.check(Peer(None), &headers), Ok(())); // what no browser can use
        }
        assert_eq!(access.check(Peer(None), &HeaderMap::new()), Ok(()));
        assert_eq!(checked(&Access::new(&[], true).unwrap(), "192.0.2.1", ""), Ok(()));
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
