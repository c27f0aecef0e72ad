//! The names of keys on the server.

use percent_encoding::{percent_encode, AsciiSet, PercentEncode, CONTROLS};

use crate::config::hashed::hashed;

/// Characters with a meaning in keys. Values are escaped, so that clients cannot choose them.
const RESERVED: &AsciiSet = &CONTROLS.add(b'%').add(b'|').add(b'=').add(b'{').add(b'}');

/// The key of a descriptor in a domain, for a window or period: `{domain}|key=value|key=value|1m`. The braces are the hash
/// tag of a cluster: the domain, or the first pair with the key `hash_tag`. An empty pair, which no descriptor has,
/// marks the key of a [policy](of_policy). Long values are [hashed].
pub fn name<'a>(
    prefix: &str,
    domain: &str,
    hash_tag: Option<&str>,
    pairs: impl Iterator<Item = (&'a [u8], &'a [u8])> + Clone,
    suffix: &str,
) -> String {
    let tagged = hash_tag.and_then(|tag| pairs.clone().position(|(key, _)| key == tag.as_bytes()));
    let braces = |is_tag| if is_tag { ("{", "}") } else { ("", "") };
    let mut name = String::with_capacity(128); // few keys are longer
    let (open, close) = braces(tagged.is_none());
    name.extend([prefix, open].into_iter().chain(escaped(domain.as_bytes())).chain([close]));
    for (at, (key, value)) in pairs.enumerate() {
        let (open, close) = braces(tagged == Some(at));
        let hash = hashed(value);
        let value = hash.as_ref().map_or(value, String::as_bytes);
        name.extend(["|", open].into_iter().chain(escaped(key)).chain(["="]).chain(escaped(value)).chain([close]));
    }
    name + "|" + suffix
}

/// The key of a policy in a domain: `{domain}||name=value|1m`. Policies with priorities share it, without a name.
pub fn of_policy(prefix: &str, domain: &str, name: &str, value: &str, suffix: &str) -> String {
    let [domain, name, value] = [domain, name, value].map(|word| escaped(word.as_bytes()));
    format!("{prefix}{{{domain}}}||{name}={value}|{suffix}")
}

/// A word as keys spell it.
pub fn escaped(word: &[u8]) -> PercentEncode<'_> {
    percent_encode(word, RESERVED)
}

/// The part of a key that decides its slot in a cluster.
pub fn hash_tag(key: &str) -> &str {
    let inside = key.split_once('{').and_then(|(_, behind)| behind.split_once('}'));
    inside.map_or(key, |(tag, _)| tag)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::config::limits::{default_geometry, Per, Periods};
    use swlimit_client::Period;

    fn window(ms: u64) -> Per {
        Per::Window(default_geometry(ms).unwrap())
    }

    #[test]
    fn names_never_change() {
        let pairs: [(&[u8], &[u8]); 3] = [(b"tenant", b"a"), (b"path", b"/x?y=1|{z}%\xff"), (b"bare", b"")];
        let spelled = |tag| name("p:", "shop", tag, pairs.into_iter(), &window(60_000).spelled());
        assert_eq!(spelled(None), "p:{shop}|tenant=a|path=/x?y%3D1%7C%7Bz%7D%25%FF|bare=|1m");
        assert_eq!(spelled(Some("tenant")), "p:shop|{tenant=a}|path=/x?y%3D1%7C%7Bz%7D%25%FF|bare=|1m");
        assert_eq!(spelled(Some("other")), spelled(None));
        assert_eq!((hash_tag(&spelled(None)), hash_tag(&spelled(Some("tenant")))), ("shop", "tenant=a"));
        assert_eq!(hash_tag("none"), "none");
        let long = "l".repeat(201);
        let pairs: [(&[u8], &[u8]); 2] = [(b"tenant", &long.as_bytes()[1..]), (b"path", long.as_bytes())];
        assert_eq!(
            name("", "d", None, pairs.into_iter(), &window(1000).spelled()),
            format!("{{d}}|tenant={}|path={}|1s", &long[1..], hashed(long.as_bytes()).unwrap())
        );
        assert_eq!(of_policy("p:", "shop", "a.b", "1=2", &window(1000).spelled()), "p:{shop}||a.b=1%3D2|1s");
        let month = Per::Period(Periods { period: Period::Month, time_zone: None, anchor: None });
        assert_eq!(of_policy("", "shop", "a", "b", &month.spelled()), "{shop}||a=b|month");
    }

    type Pairs = Vec<(String, String)>;

    fn spelled(pairs: &Pairs) -> String {
        name(
            "",
            "d",
            None,
            pairs.iter().map(|(key, value)| (key.as_bytes(), value.as_bytes())),
            &window(1000).spelled(),
        )
    }

    proptest! {
        /// Different pairs have different keys in the domain's slot, whatever clients put into values.
        #[test]
        fn names_do_not_collide(
            one in prop::collection::vec(("[a|={}%]{0,3}", "[a|={}%]{0,3}"), 0..3),
            other in prop::collection::vec(("[a|={}%]{0,3}", "[a|={}%]{0,3}"), 0..3),
        ) {
            prop_assert_eq!(one == other, spelled(&one) == spelled(&other));
            let spelled = spelled(&one);
            prop_assert_eq!(hash_tag(&spelled), "d");
        }
    }
}
