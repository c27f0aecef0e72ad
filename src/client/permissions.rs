//! Whether the server allows a user all that the client asks.

use std::time::Duration;

use tokio::time::Instant;

use crate::client::Client;
use crate::commands;
use crate::demand::Demand;
use crate::error::Error;
use crate::quota::Quota;
use crate::wire::{Command, SCRIPT};

/// Stands for the key.
const KEY: &str = "{key}";

/// A right as ACLs name it: a command, and the words behind.
type Tried = (&'static str, &'static [&'static str]);

/// Of the module.
const MODULE: [Tried; 9] = [
    ("swlimit.peek", &[KEY, "?", "1ms", "1ms"]),
    ("swlimit.allow", &[KEY, "?", "1ms", "1ms"]),
    ("swlimit.mallow", &["1", KEY, "?", "1ms", "1ms", "1"]),
    ("swlimit.record", &[KEY, "?", "1ms", "1ms"]),
    ("swlimit.refund", &[KEY, "?"]),
    ("swlimit.block", &[KEY, "?"]),
    ("swlimit.unblock", &[KEY, "AT", "?"]),
    ("swlimit.info", &[KEY]),
    ("swlimit.top", &["1"]),
];

/// What the script needs.
const SCRIPTED: [Tried; 7] = [
    ("evalsha", &["?", "1", KEY]),
    ("evalsha_ro", &["?", "1", KEY]),
    ("script|load", &[SCRIPT]),
    ("getrange", &[KEY, "0", "0"]),
    ("setrange", &[KEY, "0", ""]),
    ("set", &[KEY, "?", "?"]),
    ("del", &[KEY]),
];

/// What both need.
const BOTH: [Tried; 6] = [
    ("time", &[]),
    ("pttl", &[KEY]),
    ("client|id", &[]),
    ("client|tracking", &["OFF"]),
    ("ping", &[]),
    ("info", &["replication"]),
];

impl Client {
    /// The commands that the server refuses to this client's user, as ACLs name them: `swlimit.allow`, `client|tracking`
    /// and so on. Each is asked on one key, `swlimit:connected` behind the client's prefix, and those that write with a
    /// word that they refuse after the user's rights were checked: nothing is counted, changed or shown anywhere.
    ///
    /// # Errors
    /// [`Error::Away`] when nobody answers within a second; [`Error::ModuleMissing`].
    pub async fn forbidden(&self) -> Result<Vec<String>, Error> {
        let Some(link) = &self.0.link else { return Ok(Vec::new()) };
        let key = self.0.key(b"swlimit:connected");
        let until = || Instant::now() + Duration::from_secs(1).max(link.timeout());
        match link.ask(commands::peek(&key, &Demand::of(&Quota::new(1, "1m")?)), until()).await {
            Ok(_) | Err(Error::Refused(_)) => {}
            Err(error) => return Err(error),
        }
        let tried: &[Tried] = if link.is_scripted(&key) { &SCRIPTED } else { &MODULE };
        let mut forbidden = Vec::new();
        for (name, words) in tried.iter().chain(&BOTH).copied() {
            let name_sent = name.to_uppercase();
            let words: Vec<_> = name_sent.split('|').chain(words.iter().copied()).collect();
            let place = words.iter().position(|word| *word == KEY).unwrap_or(usize::MAX);
            let command = words[1..].iter().fold(Command::named(words[0], place), |command, word| {
                command.word(if *word == KEY { &key } else { word.as_bytes() })
            });
            match link.ask(command, until()).await {
                Err(Error::Refused(text)) if text.starts_with("NOPERM") => forbidden.push(name.into()),
                // Releases before 7 have no EVALSHA_RO.
                Ok(_) | Err(Error::Refused(_) | Error::NeedsModule) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(forbidden)
    }
}
