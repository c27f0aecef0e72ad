//! The key templates of policies.

use std::borrow::Cow;
use std::net::IpAddr;
use std::str::FromStr;

use axum::http::{header, HeaderMap, HeaderName};
use ipnet::IpNet;
use percent_encoding::percent_decode_str;
use serde::{de, Deserialize, Deserializer};

use super::matching::{MissingHeader, OriginalRequest};
use crate::config::hashed::hashed;

/// A key template, such as `{header:x-tenant}/{client}`.
#[derive(Debug, PartialEq)]
pub struct Template {
    parts: Vec<Part>,
    /// The characters of the words between values, which values escape.
    reserved: String,
}

#[derive(Debug, PartialEq)]
enum Part {
    Word(String),
    Client(Prefixes),
    Host,
    Path,
    Method,
    Header(HeaderName, Which),
    Cookie(String, Which),
}

/// How many bits of a client's address count.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Prefixes {
    v4: u8,
    v6: u8,
}

/// Which of several values counts.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Which {
    First,
    Last,
    All,
}

/// Headers with a client address that any client can set.
const UNTRUSTED: [&str; 6] =
    ["x-forwarded-for", "x-real-ip", "forwarded", "true-client-ip", "x-client-ip", "cf-connecting-ip"];

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
        let is_word = |part: &Part| matches!(part, Part::Word(_));
        if parts.windows(2).any(|two| !two.iter().any(is_word)) {
            return Err(format!("'{text}' needs text between its parts, such as a slash"));
        }
        let words = parts.iter().filter_map(|part| if let Part::Word(word) = part { Some(&**word) } else { None });
        let reserved = words.collect::<String>() + "%/";
        Ok(Self { parts, reserved })
    }
}

impl FromStr for Part {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name.split_once(':') {
            None => match name {
                // One machine often has all addresses of an IPv6 network.
                "client" => Ok(Self::Client(Prefixes { v4: 32, v6: 64 })),
                "client_address" => Ok(Self::Client(Prefixes { v4: 32, v6: 128 })),
                "client_network" => Err("{client_network} is now {client}".into()),
                "host" => Ok(Self::Host),
                "path" => Ok(Self::Path),
                "method" => Ok(Self::Method),
                _ => match name.strip_prefix("client/") {
                    Some(prefixes) => prefixes.parse().map(Self::Client),
                    None => Err(format!(
                        "'{{{name}}}' is none of {{client}}, {{client_address}}, {{client/24/56}}, {{host}}, {{path}}, \
                         {{method}}, {{header:NAME}}, {{cookie:NAME}}"
                    )),
                },
            },
            Some((kind, name)) => Self::named(kind, name),
        }
    }
}

impl FromStr for Prefixes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let prefix = |text: &str, most| text.parse().ok().filter(|bits| (1..=most).contains(bits));
        let both = text.split_once('/').and_then(|(v4, v6)| Some((prefix(v4, 32)?, prefix(v6, 128)?)));
        both.map(|(v4, v6)| Self { v4, v6 }).ok_or_else(|| {
            format!("'{{client/{text}}}' needs a prefix of IPv4, 1 to 32, then one of IPv6, 1 to 128, as in {{client/24/56}}")
        })
    }
}

impl Prefixes {
    /// The network of an address, or the address if all of its bits count.
    fn network(self, address: IpAddr) -> String {
        let (bits, all) = if address.is_ipv4() { (self.v4, 32) } else { (self.v6, 128) };
        match IpNet::new(address, bits) {
            Ok(network) if bits < all => network.trunc().to_string(),
            _ => address.to_string(),
        }
    }
}

impl Part {
    fn named(kind: &str, text: &str) -> Result<Self, String> {
        let (name, which) = match text.rsplit_once(':') {
            None => (text, None),
            Some((name, "first")) => (name, Some(Which::First)),
            Some((name, "last")) => (name, Some(Which::Last)),
            Some((name, "all")) => (name, Some(Which::All)),
            Some((_, which)) => return Err(format!("'{which}' is none of first, last, all")),
        };
        match kind {
            "header" if UNTRUSTED.contains(&&*name.to_ascii_lowercase()) => {
                Err(format!("any client can set the header {name}; use {{client}}"))
            }
            "header" => {
                let header = name.parse().map_err(|_| format!("'{name}' is not a header name"))?;
                Ok(Self::Header(header, which.unwrap_or(Which::All)))
            }
            "cookie" if !name.is_empty() => Ok(Self::Cookie(name.into(), which.unwrap_or(Which::First))),
            _ => Err(format!("'{{{kind}:{text}}}' is neither {{header:NAME}} nor {{cookie:NAME}}")),
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
        let is_one = self.parts.len() == 1;
        let values = self.parts.iter().map(|part| match part.value(request) {
            Ok(value) if is_one || matches!(part, Part::Word(_)) => Ok(hashed(value.as_bytes()).unwrap_or(value)),
            value => value.map(|value| self.escaped(&hashed(value.as_bytes()).unwrap_or(value))),
        });
        values.collect()
    }

    fn escaped(&self, value: &str) -> String {
        let mut escaped = String::with_capacity(value.len());
        for c in value.chars() {
            match self.reserved.contains(c) {
                true => c.encode_utf8(&mut [0; 4]).bytes().for_each(|byte| escaped.push_str(&format!("%{byte:02X}"))),
                false => escaped.push(c),
            }
        }
        escaped
    }
}

impl Part {
    fn value(&self, request: &OriginalRequest) -> Result<String, MissingHeader> {
        match self {
            Self::Word(word) => Ok(word.clone()),
            Self::Client(prefixes) => request.client().map(|address| prefixes.network(address)),
            Self::Host => request.host.clone(),
            Self::Path => request.path.clone(),
            // A handler of GET answers HEAD, too.
            Self::Method => request.method.clone().map(|method| if method == "HEAD" { "GET".into() } else { method }),
            Self::Header(name, which) => Ok(which.of(header_values(request.headers, name))),
            Self::Cookie(name, which) => Ok(which.of(cookie_values(request.headers, name))),
        }
    }
}

impl Which {
    fn of<'a>(self, mut values: impl Iterator<Item = Cow<'a, str>>) -> String {
        match self {
            Self::First => values.next().unwrap_or_default().into_owned(),
            Self::Last => values.last().unwrap_or_default().into_owned(),
            Self::All => values.collect::<Vec<_>>().join(", "),
        }
    }
}

/// All values of a header, in order.
pub fn joined(headers: &HeaderMap, name: &HeaderName) -> String {
    Which::All.of(header_values(headers, name))
}

fn header_values<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = Cow<'a, str>> {
    headers.get_all(name).iter().map(|value| String::from_utf8_lossy(value.as_bytes()))
}

/// The values of a cookie as applications read them: without quotes, and percent-decoded.
fn cookie_values<'a>(headers: &'a HeaderMap, name: &'a str) -> impl Iterator<Item = Cow<'a, str>> {
    header_values(headers, &header::COOKIE).flat_map(move |line| {
        let pairs = line.split(';').filter_map(|pair| pair.trim().split_once('='));
        let values = pairs.filter(|(key, _)| key.trim() == name).map(|(_, value)| {
            let value = value.trim();
            let bare = value.strip_prefix('"').and_then(|value| value.strip_suffix('"')).unwrap_or(value);
            Cow::Owned(percent_decode_str(bare).decode_utf8_lossy().into_owned())
        });
        values.collect::<Vec<_>>()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers() -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert("x-tenant", "a/b%".parse().unwrap());
        headers.append(header::COOKIE, "one=1; session=s=2".parse().unwrap());
        headers.append(header::COOKIE, "two=2; session=t; quoted=\"v%20v\"".parse().unwrap());
        headers.insert("x-long", "l".repeat(201).parse().unwrap());
        headers
    }

    fn filled(template: &str, client: &str) -> String {
        let headers = headers();
        let request = OriginalRequest {
            client: Some(client.parse().unwrap()),
            host: Ok("shop".into()),
            path: Ok("/a/b".into()),
            method: Ok("HEAD".into()),
            method_written: Ok("head".into()),
            headers: &headers,
        };
        template.parse::<Template>().unwrap().fill(&request).unwrap()
    }

    #[test]
    fn keys_come_from_requests() {
        for (template, expected) in [
            ("{client_address}", "2001:db8:1:2:3::4"),
            ("{client}", "2001:db8:1:2::/64"),
            ("all", "all"),
            ("{path}", "/a/b"),
            ("{method}/{host}/{path}", "GET/shop/%2Fa%2Fb"),
            ("{header:X-Tenant}", "a/b%"),
            ("t:{header:x-tenant}/", "t:a%2Fb%25/"),
            ("{header:x-tenant}a", "%61%2Fb%25a"),
            ("{cookie:session:last}", "t"),
            ("{cookie:session:all}", "s=2, t"),
            ("{cookie:quoted}", "v v"),
            ("{cookie:session}", "s=2"),
            ("{cookie:two}", "2"),
            ("{cookie:none}/{header:none}", "/"),
        ] {
            assert_eq!(filled(template, "2001:db8:1:2:3::4"), expected, "{template}");
        }
        assert_eq!(filled("{client}", "192.0.2.1"), "192.0.2.1");
        assert_eq!(filled("{client/24/56}", "192.0.2.1"), "192.0.2.0/24");
        assert_eq!(filled("{client/32/128}", "192.0.2.1"), "192.0.2.1");
        assert_eq!(filled("{client/20/128}", "2001:db8:1:2:3::4"), "2001:db8:1:2:3::4");
        assert_eq!(filled("{client/24/48}/{path}", "2001:db8:1:2:3::4"), "2001:db8:1::%2F48/%2Fa%2Fb");
        let hash = filled("{header:x-long}", "::1");
        assert_eq!(hash.len(), "sha256-".len() + 64);
        assert_ne!(hashed(hash.as_bytes()), Some(hash)); // which a client may send
    }

    #[test]
    fn invalid_templates_are_refused() {
        for (template, expected) in [
            ("{client", "'{client' has an unclosed {"),
            ("{ip}", "'{ip}' is none of {client}"),
            ("{query:a}", "'{query:a}' is neither {header:NAME} nor"),
            ("{cookie:}", "'{cookie:}' is neither"),
            ("{header:a b}", "'a b' is not a header name"),
            ("{client}{host}", "'{client}{host}' needs text between its parts"),
            ("{client_network}", "{client_network} is now {client}"),
            ("{client/24}", "'{client/24}' needs a prefix of IPv4"),
            ("{client/33/64}", "'{client/33/64}' needs a prefix of IPv4"),
            ("{client/24/0}", "'{client/24/0}' needs a prefix of IPv4"),
            ("{client/24/129}", "'{client/24/129}' needs a prefix of IPv4"),
            ("{client/24/56/8}", "'{client/24/56/8}' needs a prefix of IPv4"),
            ("{cookie:a:b}", "'b' is none of first, last, all"),
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
            method_written: missing("M"),
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
