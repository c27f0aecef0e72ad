//! What is wrong with a configuration, and where.

use std::fmt;

use serde::de::DeserializeOwned;
use serde_saphyr::Location;

/// The first thing found that is wrong. Shown as `file:line:column: message`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    file: String,
    place: Option<(u64, u64)>,
    message: String,
}

impl Fault {
    /// Something is wrong in a file as a whole.
    pub fn in_file(file: &str, message: impl fmt::Display) -> Self {
        Self { file: file.into(), place: None, message: message.to_string() }
    }

    /// Something is wrong at a place in a file.
    pub fn at(file: &str, location: Location, message: impl fmt::Display) -> Self {
        let place = (location != Location::UNKNOWN).then(|| (location.line(), location.column()));
        Self { file: file.into(), place, message: message.to_string() }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.place {
            Some((line, column)) => write!(f, "{}:{line}:{column}: {}", self.file, self.message),
            None => write!(f, "{}: {}", self.file, self.message),
        }
    }
}

impl std::error::Error for Fault {}

/// What a YAML text says. Unknown keys, and keys given twice, are faults.
pub fn parse<T: DeserializeOwned>(file: &str, text: &str) -> Result<T, Fault> {
    // Deep enough for anybody, and not too deep for a thread's stack.
    let options = serde_saphyr::options! { with_snippet: false, budget: serde_saphyr::budget! { max_depth: 40 } };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| {
        let located = error.location().unwrap_or(Location::UNKNOWN);
        Fault::at(file, located, message(&error))
    })
}

/// An error's words without its location, which `Fault` tells in its own way.
fn message(error: &serde_saphyr::Error) -> String {
    let text = error.without_snippet().to_string();
    match text.rfind(" at line ") {
        Some(end) => text[..end].to_string(),
        None => text,
    }
}
