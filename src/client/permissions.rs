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
const MODULE: [Tried; 13] = [
    ("swlimit.peek", &[KEY, "?", "1ms", "1ms"]),
    ("swlimit.allow", &[KEY, "?", "1ms", "1ms"]),
    ("swlimit.mallow", &["1", KEY, "?", "1ms", "1ms", "1"]),
    ("swlimit.record", &[KEY, "?", "1ms", "1ms"]),
    ("swlimit.refund", &[KEY, "?"]),
    ("swlimit.block", &[KEY, "?"]),
    ("swlimit.unblock", &[KEY, "AT", "?"]),
    ("swlimit.info", &[KEY]),
    ("swlimit.top", &["1"]),
    ("swlimit.budget", &[KEY, "?", "?"]),
    ("swlimit.hold", &[KEY, "?", "3s", "?"]),
    ("swlimit.release", &[KEY, "?"]),
    ("swlimit.admit", &["1", KEY, "?"]),
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
    /// Those of these rights that the server refuses to this client's user, as ACLs name them: `swlimit.allow`,
    /// `client|tracking` and so on; all that the client can use, if none are named. Where the script decides, its own
    /// rights stand for those of the module. If the user may not touch the key, the only right is `~` and the key.
    ///
    /// Each is asked on this key, which must be no limit's, behind the client's prefix; those that write with a word that
    /// they refuse after the user's rights were checked: nothing is counted, changed or shown anywhere.
    ///
    /// # Errors
    /// [`Error::Away`] when nobody answers within a second; [`Error::ModuleMissing`].
    pub async fn forbidden(&self, key: &str, rights: &[&str]) -> Result<Vec<String>, Error> {
        let Some(link) = &self.0.link else { return Ok(Vec::new()) };
        let key = self.0.key(key.as_bytes());
        let until = || Instant::now() + Duration::from_secs(1).max(link.timeout());
        match link.ask(commands::peek(&key, &Demand::of(&Quota::new(1, "1m")?)), until()).await {
            Ok(_) | Err(Error::Refused(_)) => {}
            Err(error) => return Err(error),
        }
        let is_scripted = link.is_scripted(&key);
        let tried: &[Tried] = if is_scripted { &SCRIPTED } else { &MODULE };
        let is_used = |(name, _): &Tried| rights.is_empty() || rights.contains(name);
        let own = tried.iter().filter(|tried| is_scripted || is_used(tried));
        // The script asks the server for the time.
        let both = BOTH.iter().filter(|tried| is_used(tried) || is_scripted && tried.0 == "time");
        let mut forbidden = Vec::new();
        for (name, words) in own.chain(both).copied() {
            let name_sent = name.to_uppercase();
            let words: Vec<_> = name_sent.split('|').chain(words.iter().copied()).collect();
            let place = words.iter().position(|word| *word == KEY).unwrap_or(usize::MAX);
            let command = words[1..].iter().fold(Command::named(words[0], place), |command, word| {
                command.word(if *word == KEY { &key } else { word.as_bytes() })
            });
            match link.ask(command, until()).await {
                Err(Error::Refused(text)) if text.starts_with("NOPERM") && text.contains(" key") => {
                    return Ok(vec![format!("~{}", String::from_utf8_lossy(&key))]);
                }
                Err(Error::Refused(text)) if text.starts_with("NOPERM") => forbidden.push(name.into()),
                // Releases before 7 have no EVALSHA_RO.
                Ok(_) | Err(Error::Refused(_) | Error::NeedsModule) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(forbidden)
    }
}
