//! The daemon's own configuration file: where it listens, which server counts, which files say what is limited.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{de, Deserialize, Deserializer};

use crate::fault::{parse, Fault};
use crate::limits::{Deciding, Duration, Limits, Manner, Share, Source, WhenAway};

/// The server that stands for having none: everything is decided in this process.
pub const ONLY_LOCAL: &str = "only_local";

/// The configuration file. What is not there has a default.
#[derive(Debug, Default, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Where the counting server is.
    pub server: Option<String>,
    /// The longest that a request waits for it.
    pub timeout: Option<Duration>,
    /// What every key begins with.
    pub key_prefix: String,

    pub grpc: Listening,
    pub http: Listening,

    /// Files of limits, or folders of such files.
    pub limits: Vec<PathBuf>,
    /// Files that are laid over those.
    pub overlays: Vec<PathBuf>,

    // For limits that do not say it themselves.
    pub deciding: Option<Deciding>,
    pub share: Option<Share>,
    pub interval: Option<Duration>,
    pub when_away: Option<WhenAway>,

    /// Nobody is told to deny anything.
    pub shadow_mode: bool,
    /// Replies name the headers `RateLimit-Limit`, `-Remaining` and `-Reset`.
    pub rate_limit_headers: bool,
    /// Replies carry what was asked, and the metadata of the rules that granted it.
    pub dynamic_metadata: bool,

    pub log: Log,
}

/// Where one of the two protocols is spoken.
#[derive(Debug, Default, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Listening {
    pub address: Option<Address>,
    pub tls: Option<Tls>,
}

/// An address to listen at: `127.0.0.1:8081`, or `unix:/run/swlimitd.sock`.
#[derive(Clone, Debug, PartialEq)]
pub enum Address {
    Tcp(SocketAddr),
    Unix(PathBuf),
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

impl<'de> Deserialize<'de> for Address {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

/// PEM files.
#[derive(Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Tls {
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// Clients have to show a certificate that this one vouches for.
    pub client_authority: Option<PathBuf>,
}

#[derive(Debug, Default, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct Log {
    /// As `RUST_LOG` has it: `info`, or `swlimitd=debug,warn`.
    pub level: Option<String>,
    pub format: LogFormat,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    #[default]
    Text,
    Json,
}

/// All that is configured, checked.
#[derive(Debug)]
pub struct Configuration {
    pub settings: Settings,
    pub limits: Limits,
}

impl Configuration {
    /// What a configuration file says, and the files that it names. Relative paths begin where that file is.
    pub fn load(path: &Path) -> Result<Self, Fault> {
        let Source { file, text } = read(path)?;
        let mut settings: Settings = parse(&file, &text)?;
        settings.resolve(path.parent().unwrap_or(Path::new("")));
        let usual = Manner::default();
        let manner = Manner {
            deciding: settings.deciding.unwrap_or(usual.deciding),
            share: settings.share.map_or(usual.share, |Share(share)| share),
            interval: settings.interval.map_or(usual.interval, |Duration(ms)| ms),
            when_away: settings.when_away.unwrap_or(usual.when_away),
        };
        let limits = Limits::load(&read_all(&settings.limits)?, &read_all(&settings.overlays)?, manner)?;
        Ok(Self { settings, limits })
    }
}

impl Settings {
    fn resolve(&mut self, folder: &Path) {
        let listening = [&mut self.grpc, &mut self.http].into_iter();
        let tls = listening.filter_map(|listening| listening.tls.as_mut());
        let keys =
            tls.flat_map(|tls| [&mut tls.certificate, &mut tls.key].into_iter().chain(&mut tls.client_authority));
        for path in keys.chain(&mut self.limits).chain(&mut self.overlays) {
            *path = folder.join(&*path);
        }
    }
}

/// Files, and those in folders whose names end in `.yaml` or `.yml` and do not begin with a dot, by name.
fn read_all(paths: &[PathBuf]) -> Result<Vec<Source>, Fault> {
    let mut files = Vec::new();
    for path in paths {
        match path.is_dir() {
            true => files.extend(yaml_files(path).map_err(|error| Fault::in_file(&path.to_string_lossy(), error))?),
            false => files.push(path.clone()),
        }
    }
    files.iter().map(|file| read(file)).collect()
}

fn yaml_files(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut files = folder.read_dir()?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()?;
    files.retain(|file| {
        let is_yaml = file.extension().is_some_and(|extension| extension == "yaml" || extension == "yml");
        is_yaml && file.is_file() && !file.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'))
    });
    files.sort();
    Ok(files)
}

fn read(path: &Path) -> Result<Source, Fault> {
    let file = path.display().to_string();
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Source { file, text }),
        Err(error) => Err(Fault::in_file(&file, error)),
    }
}
