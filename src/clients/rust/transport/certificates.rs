//! Why a certificate is not accepted, in words.

/// What the TLS library calls it, and what it means.
const REASONS: [(&str, &str); 12] = [
    ("UnknownIssuer", "no authority that is trusted has signed it"),
    ("CaUsedAsEndEntity", "it is an authority's, where a server's is needed"),
    ("EndEntityUsedAsCa", "a certificate that is no authority's has signed it"),
    ("Expired", "it has expired"),
    ("NotValidYet", "it is not valid yet"),
    ("NotValidForName", "it is for another host"),
    ("Revoked", "it has been revoked"),
    ("UnknownRevocationStatus", "nobody says whether it has been revoked"),
    ("BadSignature", "its signature is wrong"),
    ("BadEncoding", "it is damaged"),
    ("InvalidPurpose", "it is not for servers"),
    ("UnsupportedCertVersion", "it is older than version 3 of X.509"),
];

const INVALID: &str = "invalid peer certificate: ";

/// A text of the TLS library, with the reason in words if that is only a name, such as
/// `Other(OtherError(CaUsedAsEndEntity))`.
pub fn explained(text: &str) -> String {
    let Some((before, reason)) = text.split_once(INVALID) else { return text.into() };
    let name = reason.trim_end_matches(')').rsplit('(').next().unwrap_or_default();
    match REASONS.into_iter().find(|(known, _)| *known == name) {
        Some((_, words)) => format!("{before}{INVALID}{words}"),
        None => text.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_words() {
        for (text, expected) in [
            ("a: invalid peer certificate: UnknownIssuer", "a: invalid peer certificate: no authority that is trusted"),
            (
                "invalid peer certificate: Other(OtherError(CaUsedAsEndEntity))",
                "invalid peer certificate: it is an auth",
            ),
            ("invalid peer certificate: certificate expired: …", "invalid peer certificate: certificate expired: …"),
            ("Connection refused", "Connection refused"),
        ] {
            assert!(explained(text).starts_with(expected), "{}", explained(text));
        }
    }
}
