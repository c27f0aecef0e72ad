//! Who may use the HTTP API.

use ring::digest::{digest, SHA256, SHA256_OUTPUT_LEN};
use subtle::{Choice, ConstantTimeEq};

use super::error::ConfigError;
use super::source::Source;

#[derive(Debug)]
pub enum Access {
    /// Requests from this machine.
    Local,
    Anybody,
    Tokens(Tokens),
}

impl Access {
    /// Access by the given files of tokens, one a line. Without files, `anybody` decides.
    pub fn new(files: &[Source], anybody: bool) -> Result<Self, ConfigError> {
        let mut tokens = Vec::new();
        for Source { file, text } in files {
            let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
            let before = tokens.len();
            tokens.extend(lines.map(hash));
            if tokens.len() == before {
                return Err(ConfigError::in_file(file, "the file has no token"));
            }
        }
        Ok(match (files, anybody) {
            ([], false) => Self::Local,
            ([], true) => Self::Anybody,
            _ => Self::Tokens(Tokens(tokens)),
        })
    }
}

/// Hashes of tokens. They are equally long, and compared in constant time.
#[derive(Debug)]
pub struct Tokens(Vec<[u8; SHA256_OUTPUT_LEN]>);

impl Tokens {
    pub fn contains(&self, token: &str) -> bool {
        let shown = hash(token);
        self.0.iter().fold(Choice::from(0), |known, token| known | token.ct_eq(&shown)).into()
    }
}

fn hash(token: &str) -> [u8; SHA256_OUTPUT_LEN] {
    digest(&SHA256, token.as_bytes()).as_ref().try_into().expect("SHA-256 has this length")
}
