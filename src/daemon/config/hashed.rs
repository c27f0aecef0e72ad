//! Hashes: of values that clients choose, where they are part of keys, and of texts.

use ring::digest::{digest, SHA256};

/// Longer values are replaced by their hash, so that clients cannot choose the length of keys.
const LONGEST: usize = 200;
const PREFIX: &str = "sha256-";

/// The hash of a value of more than 200 bytes, or one that looks like a hash; `None` if the value itself is used.
pub fn hashed(value: &[u8]) -> Option<String> {
    if value.len() <= LONGEST && !value.starts_with(PREFIX.as_bytes()) {
        return None;
    }
    Some(format!("{PREFIX}{}", sha256(value)))
}

/// The SHA-256 of a text, in hexadecimal digits.
pub fn sha256(text: &[u8]) -> String {
    digest(&SHA256, text).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}
