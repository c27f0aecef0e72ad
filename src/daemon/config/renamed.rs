//! Names of earlier versions, which errors translate.

/// Keys and values as they were, and as they are.
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

/// The message of a parser. For a name of an earlier version it says the new name.
pub fn explained(message: &str) -> String {
    let unknown = ["unknown field `", "unknown variant `"].iter().find_map(|begin| message.strip_prefix(begin));
    let name = unknown.and_then(|rest| rest.split_once('`')).map(|(name, _)| name);
    match RENAMED.into_iter().find(|(old, _)| Some(*old) == name) {
        Some((old, new)) => format!("`{old}` is now `{new}`"),
        None => message.into(),
    }
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
        ] {
            assert_eq!(explained(message), expected);
        }
    }
}
