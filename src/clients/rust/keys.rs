//! What can be done with a key without a limiter.

use std::time::{Duration, SystemTime};

use crate::client::Client;
use crate::error::Error;
use crate::protocol::{Command, DeniedKey, KeyInfo, NO_SUCH_KEY};
use crate::request::Request;
use crate::shared::block_ms;

impl Client {
    /// The keys with the most denied requests on the server, as TOP says. Of a cluster,
    /// of one of its nodes.
    ///
    /// # Errors
    /// [`Error::Unavailable`], [`Error::Refused`], [`Error::ModuleMissing`], [`Error::NoServer`].
    pub async fn top(&self, count: usize) -> Result<Vec<DeniedKey>, Error> {
        DeniedKey::all_of(&self.ask("top", Command::Top { count: count as u64 }).await?)
    }

    /// What the server holds of a key, as INFO says; `None` of a key that it has not.
    ///
    /// # Errors
    /// [`Error::Unavailable`], [`Error::Refused`], [`Error::ModuleMissing`], [`Error::NoServer`].
    pub async fn info<K: AsRef<[u8]> + ?Sized>(&self, key: &K) -> Result<Option<KeyInfo>, Error> {
        let key = self.0.key(key.as_ref());
        match self.ask("info", Command::info(&key)).await {
            Ok(reply) => KeyInfo::of(&reply).map(Some),
            Err(Error::Refused(text)) if text == NO_SUCH_KEY => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Gives back up to `cost` units of a window or a budget: those that count [since](Request::since) an instant, or of
    /// an [age](Request::age), else the youngest. How many were given back. An age includes the way to the server: add
    /// the [timeout](crate::ClientBuilder::timeout). Never refund the same units twice.
    ///
    /// # Errors
    /// [`Error::Invalid`], [`Error::Unavailable`], [`Error::Refused`], [`Error::ModuleMissing`], [`Error::NoServer`].
    pub async fn refund<'a>(&self, request: impl Into<Request<'a>>) -> Result<u64, Error> {
        self.0.refund(request.into().checked()?).await
    }

    /// Blocks a key for so long, whatever its block was before; until when it is blocked.
    ///
    /// # Errors
    /// As [`refund`](Self::refund); [`Error::Invalid`] for a duration out of range: whole ms, 1 ms … 3650 d.
    pub async fn block<K: AsRef<[u8]> + ?Sized>(&self, key: &K, duration: Duration) -> Result<SystemTime, Error> {
        self.0.block(key.as_ref(), block_ms(duration)?, false).await
    }

    /// Blocks a key for so long, unless it is blocked already; until when it is blocked.
    ///
    /// # Errors
    /// As [`block`](Self::block).
    pub async fn block_unless_blocked<K: AsRef<[u8]> + ?Sized>(
        &self,
        key: &K,
        duration: Duration,
    ) -> Result<SystemTime, Error> {
        self.0.block(key.as_ref(), block_ms(duration)?, true).await
    }

    /// Lifts a block; whether the key was blocked.
    ///
    /// # Errors
    /// As [`refund`](Self::refund).
    pub async fn unblock<K: AsRef<[u8]> + ?Sized>(&self, key: &K) -> Result<bool, Error> {
        self.0.unblock(key.as_ref()).await
    }

    /// Deletes a key, whatever it holds: counts, a block, a budget, holds. Whether there was anything.
    ///
    /// # Errors
    /// As [`refund`](Self::refund).
    pub async fn reset<K: AsRef<[u8]> + ?Sized>(&self, key: &K) -> Result<bool, Error> {
        self.0.reset(key.as_ref()).await
    }
}
