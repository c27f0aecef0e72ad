//! What proxies are trusted with: the client's address, and the request they ask about.

use std::net::IpAddr;

use axum::http::HeaderName;
use ipnet::IpNet;
use serde::{de, Deserialize, Deserializer};

use super::path::PathRules;

/// How `/auth` reads the original request.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct Auth {
    pub trusted_proxies: TrustedProxies,
    pub paths: PathRules,
    // Headers that describe the original request, unless its path follows `/auth`.
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
            paths: PathRules::default(),
            method_header: HeaderName::from_static("x-forwarded-method"),
            uri_header: HeaderName::from_static("x-forwarded-uri"),
            host_header: HeaderName::from_static("x-forwarded-host"),
        }
    }
}

fn name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<HeaderName, D::Error> {
    let word = String::deserialize(deserializer)?;
    word.parse().map_err(|_| de::Error::custom(format!("'{word}' is not a header name")))
}

/// Networks of proxies whose `X-Forwarded-For` is trusted.
#[derive(Clone, Debug, PartialEq)]
pub struct TrustedProxies(Vec<IpNet>);

impl TrustedProxies {
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.iter().any(|network| network.contains(&address))
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_networks_are_refused() {
        for text in [r#"["10.0.0.0/33"]"#, r#"["localhost"]"#, r#""10.0.0.1""#] {
            assert!(serde_json::from_str::<TrustedProxies>(text).is_err(), "{text}");
        }
    }
}
