//! One spelling for each path.

use percent_encoding::percent_decode_str;
use serde::Deserialize;

/// What the applications behind the proxy ignore in paths.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct PathRules {
    /// `/LOGIN` is `/login`.
    pub ignore_case: bool,
    /// `/login/` is `/login`.
    pub ignore_trailing_slash: bool,
    /// `/login;a=b` is `/login`.
    pub ignore_parameters: bool,
}

impl PathRules {
    /// The path of a URI as the application sees it: decoded, without query, empty segments, `.` and `..`. A backslash
    /// is a slash, as to Sinatra and IIS.
    pub fn normalize(self, uri: &str) -> String {
        let path = match uri.split_once("://") {
            Some((scheme, rest)) if scheme.bytes().all(|byte| byte.is_ascii_alphanumeric()) => {
                rest.find('/').map_or("/", |begin| &rest[begin..])
            }
            _ => uri,
        };
        let path = path.split(['?', '#']).next().unwrap_or_default();
        let decoded = percent_decode_str(path).decode_utf8_lossy();
        let mut segments: Vec<&str> = Vec::new();
        let mut is_folder = true;
        for segment in decoded.split(['/', '\\']) {
            let bare = if self.ignore_parameters { segment.split(';').next().unwrap_or_default() } else { segment };
            // In regular expressions such as Starlette's and Django's, `$` also matches before a newline.
            let bare = bare.trim_end_matches('\n');
            is_folder = matches!(bare, "" | "." | "..");
            match bare {
                "" | "." => {}
                ".." => drop(segments.pop()),
                segment => segments.push(segment),
            }
        }
        let is_folder = is_folder && !segments.is_empty() && !self.ignore_trailing_slash;
        let normalized = format!("/{}{}", segments.join("/"), if is_folder { "/" } else { "" });
        if self.ignore_case {
            normalized.to_lowercase()
        } else {
            normalized
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn paths_are_normalized() {
        for (uri, expected) in [
            ("/", "/"),
            ("", "/"),
            ("/api/x", "/api/x"),
            ("/api/x/", "/api/x/"),
            ("/api/x?y=/../z#a", "/api/x"),
            ("//api///x", "/api/x"),
            ("/%61pi/%78", "/api/x"),
            ("/other/../api/./x", "/api/x"),
            ("/other/%2e%2e/api/x", "/api/x"),
            ("/api/x/.", "/api/x/"),
            ("/api/x/y/..", "/api/x/"),
            ("/../..", "/"),
            ("https://shop.example/api/x?y", "/api/x"),
            ("https://shop.example", "/"),
            ("/go?to=https://other.example/api", "/go"),
            ("/%ff", "/\u{fffd}"),
            ("/%", "/%"),
            ("/login%0a", "/login"),
            ("/login%0A%0a/", "/login/"),
            ("/a%0ab", "/a\nb"),
            ("/a/..%5c\\login", "/login"),
            ("*", "/*"),
            ("/Login;a=b/", "/Login;a=b/"),
        ] {
            assert_eq!(PathRules::default().normalize(uri), expected, "{uri}");
        }
    }

    #[test]
    fn applications_ignore_parts_of_paths() {
        let none = PathRules::default();
        let (case, slash) =
            (PathRules { ignore_case: true, ..none }, PathRules { ignore_trailing_slash: true, ..none });
        let parameters = PathRules { ignore_parameters: true, ..none };
        for (rules, uri, expected) in [
            (case, "/LOGIN/%41", "/login/a"),
            (case, "/LÖGIN", "/lögin"),
            (slash, "/login/", "/login"),
            (slash, "/login//.", "/login"),
            (slash, "/", "/"),
            (parameters, "/login;jsessionid=1", "/login"),
            (parameters, "/a;b=c/..;d/login;", "/login"),
            (parameters, "/a/%3bb/", "/a/"),
            (parameters, "/;a/login", "/login"),
            (parameters, "/login%0a;a", "/login"),
        ] {
            assert_eq!(rules.normalize(uri), expected, "{uri}");
        }
    }

    proptest! {
        /// Normalizing is idempotent, and no path leaves the root.
        #[test]
        fn normalized_paths_are_stable(
            path in r"[/\\.a;A\n]{0,12}",
            ignore_case: bool,
            ignore_trailing_slash: bool,
            ignore_parameters: bool,
        ) {
            let rules = PathRules { ignore_case, ignore_trailing_slash, ignore_parameters };
            let normalized = rules.normalize(&path);
            prop_assert!(normalized.starts_with('/') && !normalized.contains("//"), "{normalized}");
            prop_assert!(!normalized.contains("/./"), "{normalized}");
            prop_assert_eq!(rules.normalize(&normalized), normalized);
        }
    }
}
