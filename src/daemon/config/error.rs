//! Configuration errors, with the place in the file.

use std::fmt;

use serde::de::DeserializeOwned;
use serde_saphyr::{Location, UserMessageFormatter};

use super::renamed;

/// The first error of a configuration. Displayed as `file:line:column: message`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    file: String,
    position: Option<(u64, u64)>,
    message: String,
}

impl ConfigError {
    /// An error of a file as a whole.
    pub fn in_file(file: &str, message: impl fmt::Display) -> Self {
        Self { file: file.into(), position: None, message: message.to_string() }
    }

    /// An error at a position in a file.
    pub fn at(file: &str, location: Location, message: impl fmt::Display) -> Self {
        let position = (location != Location::UNKNOWN).then(|| (location.line(), location.column()));
        Self { file: file.into(), position, message: message.to_string() }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.position {
            Some((line, column)) => write!(f, "{}:{line}:{column}: {}", self.file, self.message),
            None => write!(f, "{}: {}", self.file, self.message),
        }
    }
}

impl std::error::Error for ConfigError {}

/// Parses YAML. Unknown and duplicate keys are errors.
pub fn parse<T: DeserializeOwned>(file: &str, text: &str) -> Result<T, ConfigError> {
    // Deeper than any real file, and within a thread's stack.
    let options = serde_saphyr::options! { with_snippet: false, budget: serde_saphyr::budget! { max_depth: 40 } };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| {
        let located = error.location().unwrap_or(Location::UNKNOWN);
        ConfigError::at(file, located, message(&error))
    })
}

/// The error message without its location, which `ConfigError` displays itself.
fn message(error: &serde_saphyr::Error) -> String {
    let text = error.without_snippet().render_with_formatter(&UserMessageFormatter);
    let end = text.rfind(" at line ").unwrap_or(text.len());
    // Which of the parser's bounds it was says its Debug text.
    renamed::explained(text[..end].split(": limits breached").next().unwrap_or_default())
}
