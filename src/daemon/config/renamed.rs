//! Rewrites error messages of parsers in plain words, and names the new key for one of an earlier version.

/// Old and new names of keys and values.
const RENAMED: [(&str, &str); 10] = [
    ("deciding", "mode"),
    ("when_away", "on_failure"),
    ("share", "local_share` and `lease_share"),
    ("interval", "sync_interval"),
    ("key_prefix", "prefix"),
    ("denials", "cached"),
    ("leases", "leased"),
    ("background", "eventual"),
    ("only_local", "local"),
    ("raise", "error"),
];

/// Endings of parsers' messages, and their meaning.
const WORDS: [(&str, &str); 15] = [
    ("invalid u64", "a whole number is expected here, 0 or more"),
    ("invalid u32", "a whole number is expected here, 0 or more"),
    ("invalid u16", "a whole number from 0 to 65535 is expected here"),
    ("invalid u8", "a whole number from 0 to 255 is expected here"),
    ("invalid boolean", "true or false is expected here"),
    ("invalid floating point", "a number is expected here"),
    ("expected string scalar", "one value is expected here, not a list or keys"),
    ("externally tagged enum expected scalar or mapping", "one value is expected here, not a list"),
    ("expected sequence start", "a list is expected here, such as [a, b]"),
    ("expected mapping start", "keys are expected here, such as {key: value}"),
    ("expected u64", "expected a whole number of 0 or more"),
    ("expected u32", "expected a whole number of 0 or more"),
    ("expected usize", "expected a whole number of 0 or more"),
    ("expected f64", "expected a number"),
    ("expected a sequence", "expected a list"),
];

/// The message of a parser in words. For a name of an earlier version it says the new name.
pub fn explained(message: &str) -> String {
    let unknown = ["unknown field `", "unknown variant `"].iter().find_map(|begin| message.strip_prefix(begin));
    let name = unknown.and_then(|rest| rest.split_once('`')).map(|(name, _)| name);
    if let Some((old, new)) = RENAMED.into_iter().find(|(old, _)| Some(*old) == name) {
        return format!("`{old}` is now `{new}`");
    }
    let in_words = |text: String, (parsers, words): (&str, &str)| match text.strip_suffix(parsers) {
        Some(before) => format!("{before}{words}"),
        None => text,
    };
    WORDS.into_iter().fold(message.into(), in_words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn earlier_names_are_translated() {
        for (message, expected) in [
            ("unknown field `deciding`, expected one of `mode`", "`deciding` is now `mode`"),
            ("unknown field `share`, expected `x`", "`share` is now `local_share` and `lease_share`"),
            ("unknown variant `denials`, expected one of", "`denials` is now `cached`"),
            ("unknown field `x`, expected `y`", "unknown field `x`, expected `y`"),
            ("invalid u64", "a whole number is expected here, 0 or more"),
            (
                "invalid value: integer `-5`, expected u64",
                "invalid value: integer `-5`, expected a whole number of 0 or more",
            ),
        ] {
            assert_eq!(explained(message), expected);
        }
    }
}
