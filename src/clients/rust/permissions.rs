//! Whether the server allows a user all that the client asks.

use std::time::Duration;

use tokio::time::Instant;

use crate::client::Client;
use crate::demand::Demand;
use crate::error::Error;
use crate::protocol::{Command, Trial, BOTH, HELD, MODULE, SCRIPTED};
use crate::quota::Quota;

impl Client {
    /// Those of these rights that the server refuses to this client's user, as ACLs name them: `swlimit.allow`,
    /// `client|tracking` and so on; all that the client can use, if none are named. Where the script decides, its own
    /// rights stand for those of the module. If the user may not touch the key, the only right is `~` and the key.
    ///
    /// Behind this, [`servers`](Client::servers) says how the server evicts keys.
    ///
    /// Each is asked on this key, which must be no limit's, behind the client's prefix; those that write with a word that
    /// they refuse after the user's rights were checked: nothing is counted, changed or shown anywhere.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when nobody answers within a second; [`Error::ModuleMissing`].
    pub async fn forbidden(&self, key: &str, rights: &[&str]) -> Result<Vec<String>, Error> {
        let Some(upstream) = &self.0.upstream else { return Ok(Vec::new()) };
        let key = self.0.key(key.as_bytes());
        let until = || Instant::now() + Duration::from_secs(1).max(upstream.timeout());
        match upstream.ask(Command::peek(&key, &Demand::of(&Quota::new(1, "1m")?)), until()).await {
            Ok(_) | Err(Error::Refused(_)) => {}
            Err(error) => return Err(error),
        }
        let is_scripted = upstream.is_scripted(&key);
        let is_used = |name: &str| rights.is_empty() || rights.contains(&name);
        let holds: &[Trial] = if is_used("swlimit.hold") { &HELD } else { &[] };
        let own: Vec<Trial> = match is_scripted {
            true => [&SCRIPTED[..], holds].concat(),
            false => MODULE.into_iter().filter(|(name, _)| is_used(name)).collect(),
        };
        // The script asks the server for the time, and when a key of holds expires.
        let is_asked = |name: &str| is_scripted && (name == "time" || name == "pttl" && !holds.is_empty());
        let both = BOTH.into_iter().filter(|(name, _)| is_used(name) || is_asked(name));
        let mut forbidden = Vec::new();
        for (name, words) in own.into_iter().chain(both) {
            let command = Command::Server { words, key: Some(key.as_ref().into()) };
            match upstream.ask(command, until()).await {
                Err(Error::Refused(text)) if text.starts_with("NOPERM") && text.contains(" key") => {
                    return Ok(vec![format!("~{}", String::from_utf8_lossy(&key))]);
                }
                Err(Error::Refused(text)) if text.starts_with("NOPERM") => forbidden.push(name.into()),
                // Releases before 7 have no EVALSHA_RO.
                Ok(_) | Err(Error::Refused(_) | Error::NeedsModule) => {}
                Err(error) => return Err(error),
            }
        }
        upstream.identify(&key).await;
        Ok(forbidden)
    }
}
