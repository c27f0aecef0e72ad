//! Values with wildcards.

use memchr::memmem;

/// A value in which each `*` matches any bytes, or none.
#[derive(Debug)]
pub struct Wildcard {
    first: String,
    middle: Vec<String>,
    last: String,
}

impl Wildcard {
    /// `None` for a value that has no `*`.
    pub fn new(value: &str) -> Option<Self> {
        let (first, rest) = value.split_once('*')?;
        let mut middle: Vec<String> = rest.split('*').map(String::from).collect();
        let last = middle.pop().unwrap_or_default();
        Some(Self { first: first.into(), middle, last })
    }

    /// The texts that a value has to contain.
    pub fn texts(&self) -> Vec<&str> {
        let parts = self.middle.iter().chain([&self.first, &self.last]);
        parts.map(String::as_str).filter(|part| !part.is_empty()).collect()
    }

    /// Whether a value matches.
    pub fn matches(&self, value: &[u8]) -> bool {
        let behind = value.strip_prefix(self.first.as_bytes());
        let Some(mut rest) = behind.and_then(|rest| rest.strip_suffix(self.last.as_bytes())) else { return false };
        self.middle.iter().all(|part| match memmem::find(rest, part.as_bytes()) {
            Some(start) => {
                rest = &rest[start + part.len()..];
                true
            }
            None => false,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn matches(pattern: &str, value: &str) -> bool {
        Wildcard::new(pattern).unwrap().matches(value.as_bytes())
    }

    #[test]
    fn a_value_without_a_star_is_none() {
        assert!(Wildcard::new("").is_none());
        assert!(Wildcard::new("abc").is_none());
    }

    #[test]
    fn stars_stand_for_any_characters_or_none() {
        for (pattern, value, expected) in [
            ("*", "", true),
            ("*", "anything", true),
            ("foo*", "foo", true),
            ("foo*", "fo", false),
            ("bar*b", "barb", true),
            ("bar*b", "bar12b", true),
            ("bar*b", "bara", false),
            ("bar*b", "xbarb", false),
            ("aba*aba", "aba", false),
            ("foo*bar*baz", "foo1bar2baz", true),
            ("foo*bar*baz", "foobaz", false),
            ("foo*bar*baz", "foobarba", false),
            ("a**b", "ab", true),
            ("*ü*", "grün", true),
        ] {
            assert_eq!(matches(pattern, value), expected, "{pattern} {value}");
        }
    }

    /// The meaning, without any care for speed.
    fn means(pattern: &[u8], value: &[u8]) -> bool {
        match (pattern.split_first(), value.split_first()) {
            (None, _) => value.is_empty(),
            (Some((b'*', rest)), _) => (0..=value.len()).any(|from| means(rest, &value[from..])),
            (Some((one, rest)), Some((other, behind))) => one == other && means(rest, behind),
            (Some(_), None) => false,
        }
    }

    proptest! {
        #[test]
        fn it_is_what_it_means(pattern in "[ab*]{0,6}[*][ab*]{0,6}", value in "[ab]{0,12}") {
            prop_assert_eq!(matches(&pattern, &value), means(pattern.as_bytes(), value.as_bytes()));
        }
    }
}
