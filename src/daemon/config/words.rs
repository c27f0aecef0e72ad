//! Words as people write them: one, or a list.

use serde::Deserialize;

/// A word or a list of words.
#[derive(Deserialize)]
#[serde(untagged)]
pub enum Words {
    One(String),
    Several(Vec<String>),
}

impl Words {
    /// All of them, in their order.
    pub fn list(self) -> Vec<String> {
        match self {
            Self::One(word) => vec![word],
            Self::Several(words) => words,
        }
    }
}
