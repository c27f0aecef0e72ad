//! How keys are spelled on the server.

use std::fmt::Write;

use percent_encoding::{utf8_percent_encode, AsciiSet, CONTROLS};

/// What has a meaning of its own in a key, so that no value that a client chooses can have it.
const RESERVED: &AsciiSet = &CONTROLS.add(b'%').add(b'|').add(b'=').add(b'{').add(b'}');

/// The key that keys and values count under in a domain, in a window of so many ms:
/// `{domain}|key=value|key=value|1m`. The braces hold what decides upon a cluster's slot: the domain, or the first pair
/// with the key that `hash_tag` names.
pub fn spell<'a>(
    prefix: &str,
    domain: &str,
    hash_tag: Option<&str>,
    pairs: impl Iterator<Item = (&'a str, &'a str)> + Clone,
    window: u64,
) -> String {
    let tagged = hash_tag.and_then(|tag| pairs.clone().position(|(key, _)| key == tag));
    let escape = |word| utf8_percent_encode(word, RESERVED);
    let (open, close) = if tagged.is_none() { ("{", "}") } else { ("", "") };
    let mut spelled = String::with_capacity(128); // few are longer
    let mut add = |words: std::fmt::Arguments| spelled.write_fmt(words).expect("strings take anything");
    add(format_args!("{prefix}{open}{}{close}", escape(domain)));
    for (at, (key, value)) in pairs.enumerate() {
        let (open, close) = if tagged == Some(at) { ("{", "}") } else { ("", "") };
        add(format_args!("|{open}{}={}{close}", escape(key), escape(value)));
    }
    spelled + "|" + &duration(window)
}

/// What decides upon a key's slot in a cluster.
pub fn hash_tag(key: &str) -> &str {
    let inside = key.split_once('{').and_then(|(_, behind)| behind.split_once('}'));
    inside.map_or(key, |(tag, _)| tag)
}

/// A duration in ms, as short as the commands' spelling allows.
pub fn duration(ms: u64) -> String {
    const UNITS: [(u64, &str); 4] = [(24 * 60 * 60 * 1000, "d"), (60 * 60 * 1000, "h"), (60 * 1000, "m"), (1000, "s")];
    let even = UNITS.into_iter().find(|(unit, _)| ms.is_multiple_of(*unit));
    even.map_or_else(|| format!("{ms}ms"), |(unit, name)| format!("{}{name}", ms / unit))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn keys_are_spelled_alike_for_ever() {
        let pairs = [("tenant", "a"), ("path", "/x?y=1|{z}%"), ("bare", "")];
        let spelled = |tag| spell("p:", "shop", tag, pairs.into_iter(), 60_000);
        assert_eq!(spelled(None), "p:{shop}|tenant=a|path=/x?y%3D1%7C%7Bz%7D%25|bare=|1m");
        assert_eq!(spelled(Some("tenant")), "p:shop|{tenant=a}|path=/x?y%3D1%7C%7Bz%7D%25|bare=|1m");
        assert_eq!(spelled(Some("other")), spelled(None));
        assert_eq!((hash_tag(&spelled(None)), hash_tag(&spelled(Some("tenant")))), ("shop", "tenant=a"));
        assert_eq!(hash_tag("none"), "none");
    }

    #[test]
    fn durations_are_those_of_the_commands() {
        for word in ["1ms", "1500ms", "1s", "90s", "1m", "5m", "1h", "1d", "365d"] {
            assert_eq!(duration(swlimit_window::duration(word.as_bytes()).unwrap()), word);
        }
    }

    type Pairs = Vec<(String, String)>;

    fn spelled(pairs: &Pairs) -> String {
        spell("", "d", None, pairs.iter().map(|(key, value)| (&**key, &**value)), 1000)
    }

    proptest! {
        /// Whatever clients put into values, what counts apart has keys apart, in the domain's slot.
        #[test]
        fn keys_tell_apart(
            one in prop::collection::vec(("[a|={}%]{0,3}", "[a|={}%]{0,3}"), 0..3),
            other in prop::collection::vec(("[a|={}%]{0,3}", "[a|={}%]{0,3}"), 0..3),
        ) {
            prop_assert_eq!(one == other, spelled(&one) == spelled(&other));
            let spelled = spelled(&one);
            prop_assert_eq!(hash_tag(&spelled), "d");
        }
    }
}
