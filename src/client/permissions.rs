//! Whether the server allows a user all that the client asks.

use std::time::Duration;

use tokio::time::Instant;

use crate::client::Client;
use crate::error::Error;
use crate::wire::Command;

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
        let on =
            |name, words: &[&str]| words.iter().fold(Command::on(name, &key), |made, word| made.word(word.as_bytes()));
        let plain = |name, words: &[&str]| {
            words.iter().fold(Command::named(name, usize::MAX), |made, word| made.word(word.as_bytes()))
        };
        let quota = ["?", "1ms", "1ms"];
        let one = Command::named("SWLIMIT.MALLOW", 2).number(1).word(&key);
        let tried = [
            on("SWLIMIT.PEEK", &quota),
            on("SWLIMIT.ALLOW", &quota),
            ["?", "1ms", "1ms", "1"].iter().fold(one, |made, word| made.word(word.as_bytes())),
            on("SWLIMIT.RECORD", &quota),
            on("SWLIMIT.REFUND", &["?"]),
            on("SWLIMIT.BLOCK", &["?"]),
            on("SWLIMIT.UNBLOCK", &["AT", "?"]),
            on("SWLIMIT.INFO", &[]),
            plain("SWLIMIT.TOP", &["1"]),
            plain("TIME", &[]),
            on("PTTL", &[]),
            plain("CLIENT", &["ID"]),
            plain("CLIENT", &["TRACKING", "OFF"]),
            plain("PING", &[]),
            plain("INFO", &["replication"]),
        ];
        let mut forbidden = Vec::new();
        for command in tried {
            let mut words = command.words().map(|word| String::from_utf8_lossy(word).into_owned());
            let name = words.next().unwrap_or_default();
            let name = if name == "CLIENT" { format!("{name} {}", words.next().unwrap_or_default()) } else { name };
            drop(words);
            match link.ask(command, Instant::now() + Duration::from_secs(1).max(link.timeout())).await {
                Err(Error::Refused(text)) if text.starts_with("NOPERM") => forbidden.push(name),
                Ok(_) | Err(Error::Refused(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(forbidden)
    }
}
