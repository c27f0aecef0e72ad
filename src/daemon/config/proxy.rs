//! Trusted proxies, and the headers in which proxies describe the original request.

use std::net::IpAddr;

use axum::http::{HeaderName, StatusCode};
use ipnet::IpNet;
use serde::{de, Deserialize, Deserializer};

use super::path::PathRules;

/// How `/auth` reads the original request.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct Auth {
    pub trusted_proxies: Networks,
    pub paths: PathRules,
    // Headers that describe the original request, unless its path follows `/auth`.
    #[serde(deserialize_with = "name")]
    pub method_header: HeaderName,
    #[serde(deserialize_with = "name")]
    pub uri_header: HeaderName,
    #[serde(deserialize_with = "name")]
    pub host_header: HeaderName,
    /// The status of denials. nginx forwards 401 and 403, and logs any other as an error.
    #[serde(deserialize_with = "client_error")]
    pub denied_status: StatusCode,
}

impl Default for Auth {
    fn default() -> Self {
        Self {
            trusted_proxies: Networks::loopback(),
            paths: PathRules::default(),
            method_header: HeaderName::from_static("x-forwarded-method"),
            uri_header: HeaderName::from_static("x-forwarded-uri"),
            host_header: HeaderName::from_static("x-forwarded-host"),
            denied_status: StatusCode::TOO_MANY_REQUESTS,
        }
    }
}

fn name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<HeaderName, D::Error> {
    let word = String::deserialize(deserializer)?;
    word.parse().map_err(|_| de::Error::custom(format!("'{word}' is not a header name")))
}

fn client_error<'de, D: Deserializer<'de>>(deserializer: D) -> Result<StatusCode, D::Error> {
    let status = StatusCode::from_u16(u16::deserialize(deserializer)?).ok().filter(StatusCode::is_client_error);
    status.ok_or_else(|| de::Error::custom("denied_status is 400 to 499"))
}

/// A list of networks, such as those of proxies whose `X-Forwarded-For` is trusted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Networks(Vec<IpNet>);

impl Networks {
    /// This machine.
    fn loopback() -> Self {
        Self(["127.0.0.1", "::1"].map(|address| IpNet::from(address.parse::<IpAddr>().expect("it is one"))).into())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn extend(&mut self, more: Self) {
        self.0.extend(more.0);
    }

    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.iter().any(|network| network.contains(&address))
    }
}

impl<'de> Deserialize<'de> for Networks {
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
            assert!(serde_json::from_str::<Networks>(text).is_err(), "{text}");
        }
    }
}
