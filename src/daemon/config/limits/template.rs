//! The key templates of policies.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

use axum::http::{header, HeaderMap, HeaderName};
use ring::digest::{digest, SHA256};
use serde::{de, Deserialize, Deserializer};

use super::matching::{MissingHeader, OriginalRequest};

/// A key template, such as `{header:x-tenant}/{client}`.
#[derive(Debug, PartialEq)]
pub struct Template(Vec<Part>);

#[derive(Debug, PartialEq)]
enum Part {
    Word(String),
    Client,
    ClientNetwork,
    Host,
    Path,
    Method,
    Header(HeaderName),
    Cookie(String),
}

/// Headers with a client address that any client can set.
const UNTRUSTED: [&str; 6] =
    ["x-forwarded-for", "x-real-ip", "forwarded", "true-client-ip", "x-client-ip", "cf-connecting-ip"];

/// The longest value in a key, in bytes; longer values are hashed.
const LONGEST: usize = 200;

impl FromStr for Template {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((word, behind)) = rest.split_once('{') {
            let (name, behind) = behind.split_once('}').ok_or_else(|| format!("'{text}' has an unclosed {{"))?;
            parts.extend((!word.is_empty()).then(|| Part::Word(word.into())));
            parts.push(name.parse()?);
            rest = behind;
        }
        parts.extend((!rest.is_empty()).then(|| Part::Word(rest.into())));
        Ok(Self(parts))
    }
}

impl FromStr for Part {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name.split_once(':') {
            None => match name {
                "client" => Ok(Self::Client),
                "client_network" => Ok(Self::ClientNetwork),
                "host" => Ok(Self::Host),
                "path" => Ok(Self::Path),
                "method" => Ok(Self::Method),
                _ => Err(format!(
                    "'{{{name}}}' is none of {{client}}, {{client_network}}, {{host}}, {{path}}, {{method}}, \
                     {{header:NAME}}, \
                     {{cookie:NAME}}"
                )),
            },
            Some(("header", header)) if UNTRUSTED.contains(&&*header.to_ascii_lowercase()) => {
                Err(format!("any client can set the header {header}; use {{client}}"))
            }
            Some(("header", header)) => {
                header.parse().map(Self::Header).map_err(|_| format!("'{header}' is not a header name"))
            }
            Some(("cookie", cookie)) if !cookie.is_empty() => Ok(Self::Cookie(cookie.into())),
            Some(_) => Err(format!("'{{{name}}}' is neither {{header:NAME}} nor {{cookie:NAME}}")),
        }
    }
}

impl<'de> Deserialize<'de> for Template {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

impl Template {
    /// The key of a request. Requests without the header or cookie share a key.
    pub fn fill(&self, request: &OriginalRequest) -> Result<String, MissingHeader> {
        // A single part is the key. Several are escaped, so that no value can extend into another part.
        let is_one = self.0.len() == 1;
        let values = self.0.iter().map(|part| match part.value(request) {
            Ok(value) if is_one || matches!(part, Part::Word(_)) => Ok(bounded(value)),
            value => value.map(|value| bounded(value).replace('%', "%25").replace('/', "%2F")),
        });
        values.collect()
    }
}

impl Part {
    fn value(&self, request: &OriginalRequest) -> Result<String, MissingHeader> {
        let client = || request.client.ok_or(MissingHeader("X-Forwarded-For".into()));
        match self {
            Self::Word(word) => Ok(word.clone()),
            Self::Client => client().map(|address| address.to_string()),
            Self::ClientNetwork => client().map(network),
            Self::Host => request.host.clone(),
            Self::Path => request.path.clone(),
            Self::Method => request.method.clone(),
            Self::Header(name) => Ok(joined(request.headers, name)),
            Self::Cookie(name) => Ok(cookie(request.headers, name)),
        }
    }
}

/// All values of a header, in order.
pub fn joined(headers: &HeaderMap, name: &HeaderName) -> String {
    let values = headers.get_all(name).iter().map(|value| String::from_utf8_lossy(value.as_bytes()));
    values.collect::<Vec<_>>().join(", ")
}

fn cookie(headers: &HeaderMap, name: &str) -> String {
    let mut lines = headers.get_all(header::COOKIE).iter().map(|line| String::from_utf8_lossy(line.as_bytes()));
    let value = |line: Cow<str>| {
        let mut pairs = line.split(';').filter_map(|pair| pair.trim().split_once('='));
        pairs.find(|(key, _)| *key == name).map(|(_, value)| value.to_string())
    };
    lines.find_map(value).unwrap_or_default()
}

/// The address, or the /64 network of an IPv6 address: one machine often has all of its addresses.
fn network(address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => format!("{}/64", Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
    }
}

/// The value, or its hash if it is longer than [`LONGEST`].
fn bounded(value: String) -> String {
    if value.len() <= LONGEST {
        return value;
    }
    let hash = digest(&SHA256, value.as_bytes());
    let digits = hash.as_ref().iter().map(|byte| format!("{byte:02x}"));
    format!("sha256-{}", digits.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers() -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert("x-tenant", "a/b%".parse().unwrap());
        headers.append(header::COOKIE, "one=1; session=s=2".parse().unwrap());
        headers.append(header::COOKIE, "two=2".parse().unwrap());
        headers.insert("x-long", "l".repeat(201).parse().unwrap());
        headers
    }

    fn filled(template: &str, client: &str) -> String {
        let headers = headers();
        let request = OriginalRequest {
            client: Some(client.parse().unwrap()),
            host: Ok("shop".into()),
            path: Ok("/a/b".into()),
            method: Ok("GET".into()),
            headers: &headers,
        };
        template.parse::<Template>().unwrap().fill(&request).unwrap()
    }

    #[test]
    fn keys_come_from_requests() {
        for (template, expected) in [
            ("{client}", "2001:db8:1:2:3::4"),
            ("{client_network}", "2001:db8:1:2::/64"),
            ("all", "all"),
            ("{path}", "/a/b"),
            ("{method}/{host}/{path}", "GET/shop/%2Fa%2Fb"),
            ("{header:X-Tenant}", "a/b%"),
            ("t:{header:x-tenant}/", "t:a%2Fb%25/"),
            ("{cookie:session}", "s=2"),
            ("{cookie:two}", "2"),
            ("{cookie:none}/{header:none}", "/"),
        ] {
            assert_eq!(filled(template, "2001:db8:1:2:3::4"), expected, "{template}");
        }
        assert_eq!(filled("{client_network}", "192.0.2.1"), "192.0.2.1");
        assert_eq!(filled("{header:x-long}", "::1").len(), "sha256-".len() + 64);
    }

    #[test]
    fn invalid_templates_are_refused() {
        for (template, expected) in [
            ("{client", "'{client' has an unclosed {"),
            ("{ip}", "'{ip}' is none of {client}"),
            ("{query:a}", "'{query:a}' is neither {header:NAME} nor"),
            ("{cookie:}", "'{cookie:}' is neither"),
            ("{header:a b}", "'a b' is not a header name"),
            ("{header:X-Real-IP}", "any client can set the header X-Real-IP"),
        ] {
            let error = template.parse::<Template>().unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn missing_headers_are_named() {
        let headers = HeaderMap::new();
        let missing = |name: &str| Err(MissingHeader(name.into()));
        let request = OriginalRequest {
            client: None,
            host: missing("H"),
            path: missing("P"),
            method: missing("M"),
            headers: &headers,
        };
        for (template, expected) in
            [("{client}", "X-Forwarded-For"), ("{host}", "H"), ("{path}", "P"), ("{method}", "M")]
        {
            let template: Template = template.parse().unwrap();
            assert_eq!(template.fill(&request), Err(MissingHeader(expected.into())));
        }
    }
}
