//! Listening addresses: `127.0.0.1:8081`, or `unix:/run/swlimitd.sock`.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{de, Deserialize, Deserializer};

use super::words::Words;

/// An address to listen at.
#[derive(Clone, Debug, PartialEq)]
pub enum Address {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl Address {
    /// Whether the system chooses the port.
    pub fn is_chosen_by_system(&self) -> bool {
        matches!(self, Self::Tcp(address) if address.port() == 0)
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        match word.strip_prefix("unix:") {
            Some(path) => Ok(Self::Unix(path.into())),
            None => {
                word.parse().map(Self::Tcp).map_err(|_| format!("'{word}' is not an address such as 127.0.0.1:8081"))
            }
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl<'de> Deserialize<'de> for Address {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

/// A list of addresses, or one address.
pub fn one_or_several<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Address>, D::Error> {
    let addresses = Words::deserialize(deserializer)?.list();
    if addresses.is_empty() {
        return Err(de::Error::custom("there is no address"));
    }
    addresses.iter().map(|word| word.parse()).collect::<Result<_, _>>().map_err(de::Error::custom)
}
