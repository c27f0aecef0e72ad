//! What the keys of a policy are made of.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

use axum::http::{header, HeaderMap, HeaderName};
use ring::digest::{digest, SHA256};
use serde::{de, Deserialize, Deserializer};

use super::policy::{Asked, Missing, Told};

/// Words and what of a request goes between them: `{header:x-tenant}/{client}`.
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

/// Headers that tell of the client's address, but that anybody can set.
const NO_PROOF: [&str; 6] =
    ["x-forwarded-for", "x-real-ip", "forwarded", "true-client-ip", "x-client-ip", "cf-connecting-ip"];

/// What is longer takes no more of the server's memory than this.
const LONGEST: usize = 200;

impl FromStr for Template {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((word, behind)) = rest.split_once('{') {
            let (name, behind) = behind.split_once('}').ok_or_else(|| format!("a {{ of '{text}' is not closed"))?;
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
            Some(("header", header)) if NO_PROOF.contains(&&*header.to_ascii_lowercase()) => {
                Err(format!("anybody can set the header {header}: {{client}} is the address that can be relied on"))
            }
            Some(("header", header)) => {
                header.parse().map(Self::Header).map_err(|_| format!("'{header}' is not the name of a header"))
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
    /// The key of a request. Requests that lack a header or cookie have one key together.
    pub fn filled(&self, asked: &Asked) -> Told<String> {
        // Of one part its value is the key; of several, none can be made to look like another's end.
        let is_one = self.0.len() == 1;
        let values = self.0.iter().map(|part| match part.value(asked) {
            Ok(value) if is_one || matches!(part, Part::Word(_)) => Ok(bounded(value)),
            value => value.map(|value| bounded(value).replace('%', "%25").replace('/', "%2F")),
        });
        values.collect()
    }
}

impl Part {
    fn value(&self, asked: &Asked) -> Told<String> {
        let client = || asked.client.ok_or(Missing("X-Forwarded-For".into()));
        match self {
            Self::Word(word) => Ok(word.clone()),
            Self::Client => client().map(|address| address.to_string()),
            Self::ClientNetwork => client().map(network),
            Self::Host => asked.host.clone(),
            Self::Path => asked.path.clone(),
            Self::Method => asked.method.clone(),
            Self::Header(name) => Ok(joined(asked.headers, name)),
            Self::Cookie(name) => Ok(cookie(asked.headers, name)),
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

/// An address, of IPv6 its first 64 bits: one machine has all of the others.
fn network(address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => format!("{}/64", Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
    }
}

/// A value that is too long for a key, by its hash.
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
        let asked = Asked {
            client: Some(client.parse().unwrap()),
            host: Ok("shop".into()),
            path: Ok("/a/b".into()),
            method: Ok("GET".into()),
            headers: &headers,
        };
        template.parse::<Template>().unwrap().filled(&asked).unwrap()
    }

    #[test]
    fn keys_are_made_of_requests() {
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
    fn what_is_no_template_is_refused() {
        for (template, expected) in [
            ("{client", "a { of '{client' is not closed"),
            ("{ip}", "'{ip}' is none of {client}"),
            ("{query:a}", "'{query:a}' is neither {header:NAME} nor"),
            ("{cookie:}", "'{cookie:}' is neither"),
            ("{header:a b}", "'a b' is not the name of a header"),
            ("{header:X-Real-IP}", "anybody can set the header X-Real-IP"),
        ] {
            let error = template.parse::<Template>().unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn what_is_not_told_is_missing() {
        let headers = HeaderMap::new();
        let missing = |name: &str| Err(Missing(name.into()));
        let asked =
            Asked { client: None, host: missing("H"), path: missing("P"), method: missing("M"), headers: &headers };
        for (template, expected) in
            [("{client}", "X-Forwarded-For"), ("{host}", "H"), ("{path}", "P"), ("{method}", "M")]
        {
            let template: Template = template.parse().unwrap();
            assert_eq!(template.filled(&asked), Err(Missing(expected.into())));
        }
    }
}
