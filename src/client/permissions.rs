//! Whether the server allows a user all that the client asks.

use std::time::Duration;

use tokio::time::Instant;

use crate::client::Client;
use crate::error::Error;
use crate::wire::Command;

/// Stands for the key.
const KEY: &str = "{key}";

/// Commands as [`Client::forbidden`] names them, and the words behind.
const TRIED: [(&str, &[&str]); 15] = [
    ("SWLIMIT.PEEK", &[KEY, "?", "1ms", "1ms"]),
    ("SWLIMIT.ALLOW", &[KEY, "?", "1ms", "1ms"]),
    ("SWLIMIT.MALLOW", &["1", KEY, "?", "1ms", "1ms", "1"]),
    ("SWLIMIT.RECORD", &[KEY, "?", "1ms", "1ms"]),
    ("SWLIMIT.REFUND", &[KEY, "?"]),
    ("SWLIMIT.BLOCK", &[KEY, "?"]),
    ("SWLIMIT.UNBLOCK", &[KEY, "AT", "?"]),
    ("SWLIMIT.INFO", &[KEY]),
    ("SWLIMIT.TOP", &["1"]),
    ("TIME", &[]),
    ("PTTL", &[KEY]),
    ("CLIENT ID", &[]),
    ("CLIENT TRACKING", &["OFF"]),
    ("PING", &[]),
    ("INFO", &["replication"]),
];

impl Client {
    /// The commands that the server refuses to this client's user. Each is asked on one key, `swlimit:connected` behind the
    /// client's prefix, and those that write with a word that they refuse after the user's rights were checked: nothing is
    /// counted, changed or shown anywhere.
    ///
    /// # Errors
    /// [`Error::Away`] when nobody answers within a second; [`Error::ModuleMissing`].
    pub async fn forbidden(&self) -> Result<Vec<String>, Error> {
        let Some(link) = &self.0.link else { return Ok(Vec::new()) };
        let key = [self.0.prefix.as_slice(), b"swlimit:connected"].concat();
        let mut forbidden = Vec::new();
        for (name, words) in TRIED {
            let words: Vec<_> = name.split(' ').chain(words.iter().copied()).collect();
            let place = words.iter().position(|word| *word == KEY).unwrap_or(usize::MAX);
            let command = words[1..].iter().fold(Command::named(words[0], place), |command, word| {
                command.word(if *word == KEY { &key } else { word.as_bytes() })
            });
            match link.ask(command, Instant::now() + Duration::from_secs(1).max(link.timeout())).await {
                Err(Error::Refused(text)) if text.starts_with("NOPERM") => forbidden.push(name.into()),
                Ok(_) | Err(Error::Refused(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(forbidden)
    }
}
