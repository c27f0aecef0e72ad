//! Values that clients choose, where they are part of keys.

use ring::digest::{digest, SHA256};

/// A longer value counts by its hash, so that no client makes keys of any length.
const LONGEST: usize = 200;
const PREFIX: &str = "sha256-";

/// The hash of a value of more than 200 bytes, or one that looks like a hash; `None` if the value itself is to count.
pub fn hashed(value: &[u8]) -> Option<String> {
    if value.len() <= LONGEST && !value.starts_with(PREFIX.as_bytes()) {
        return None;
    }
    let hash = digest(&SHA256, value);
    let digits = hash.as_ref().iter().map(|byte| format!("{byte:02x}"));
    Some(format!("{PREFIX}{}", digits.collect::<String>()))
}
