//! A limiter: one quota, any number of keys.

mod acquire;
mod all_of;
mod builder;
mod decide;
mod fallback;
mod limits;

use std::borrow::Cow;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use swlimit_window::WarmUp;

pub use self::builder::LimiterBuilder;
pub(crate) use self::fallback::Policy;
pub(crate) use self::limits::has_hash_tag;
pub use self::limits::{Limits, LimitsBuilder};
use crate::client::Client;
use crate::clock::{ms, ms_up};
use crate::deciding::eventual::Eventual;
use crate::deciding::leased::Leases;
use crate::deciding::local::Windows;
use crate::decision::{Decision, Source};
use crate::demand::Demand;
use crate::error::Error;
use crate::mode::{Mode, OnFailure, Share};
use crate::protocol::Command;
use crate::quota::Quota;
use crate::request::Request;
use crate::shared::{block_ms, Shared};
use crate::upstream::Upstream;

/// One quota, and any number of keys that it holds for. Cheap to clone.
#[derive(Clone)]
pub struct Limiter(Arc<Inner>);

struct Inner {
    client: Arc<Shared>,
    quota: Quota,
    strict: bool,
    /// The block that a denial begins, in ms.
    block: Option<u64>,
    deciding: DecidingMode,
    on_failure: OnFailure,
    local_share: Share,
    failure_windows: OnceLock<Windows>,
    warm_up: Option<WarmUp>,
}

/// A mode with what it needs.
pub(crate) enum DecidingMode {
    Direct(Arc<Upstream>),
    Cached(Arc<Upstream>),
    Leased(Arc<Upstream>, Leases),
    Eventual(Arc<Upstream>, Eventual),
    Local(Windows),
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter").field("quota", self.quota()).field("mode", &self.mode()).finish_non_exhaustive()
    }
}

impl Limiter {
    /// Its quota.
    pub fn quota(&self) -> &Quota {
        &self.0.quota
    }

    /// Its mode.
    pub fn mode(&self) -> Mode {
        match &self.0.deciding {
            DecidingMode::Direct(_) => Mode::Direct,
            DecidingMode::Cached(_) => Mode::Cached,
            DecidingMode::Leased(..) => Mode::Leased,
            DecidingMode::Eventual(..) => Mode::Eventual,
            DecidingMode::Local(_) => Mode::Local,
        }
    }

    /// The client it belongs to.
    pub fn client(&self) -> Client {
        Client(Arc::clone(&self.0.client))
    }

    /// Counts a request whatever the limit says: usage that is known afterwards. The decision is the one it would have
    /// been, with what remains after counting.
    ///
    /// # Errors
    /// As [`allow`](Self::allow), and [`Error::Unavailable`].
    pub async fn record<'a>(&self, request: impl Into<Request<'a>>) -> Result<Decision, Error> {
        let request = request.into().checked()?;
        let key = self.key(request.key);
        let demand = self.demand(&Request { partial: false, ..request });
        let age = request.age.map(ms);
        Ok(match &self.0.deciding {
            DecidingMode::Local(windows) => Source::Local.decided(windows.record(&key, &demand, age)?),
            DecidingMode::Eventual(_, eventual) => eventual.record(&key, &demand, request.age.unwrap_or_default()),
            mode => {
                let command = Command::record(&key, &demand, age.unwrap_or_default());
                let reply = self.ask(mode.upstream()?, command, request.deadline).await?;
                Source::Server.decided(reply.decision()?)
            }
        })
    }

    /// Gives back up to `cost` units of the request: those that count [since](Request::since) an instant, or of an
    /// [age](Request::age), else the youngest. How many were given back. An age includes the way to the server: add the
    /// [timeout](crate::ClientBuilder::timeout). Never refund the same units twice.
    ///
    /// # Errors
    /// [`Error::Invalid`], [`Error::Refused`], [`Error::ModuleMissing`], [`Error::Unavailable`].
    pub async fn refund<'a>(&self, request: impl Into<Request<'a>>) -> Result<u64, Error> {
        let request = request.into().checked()?;
        let unsent = match &self.0.deciding {
            DecidingMode::Local(windows) => {
                return Ok(windows.refund(&self.key(request.key), request.cost, request.age.map(ms_up)));
            }
            // With an age, the server looks for the units that were counted then.
            DecidingMode::Eventual(_, eventual) if request.age.is_none() && request.since.is_none() => {
                eventual.take_back(&self.key(request.key), request.cost)
            }
            _ => 0,
        };
        let sent = match request.cost - unsent {
            0 => 0,
            left => self.0.client.refund(Request { cost: left, ..request }).await?,
        };
        Ok(unsent + sent)
    }

    /// Blocks a key for so long, whatever its block was before; until when it is blocked.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a duration out of range, otherwise as [`refund`](Self::refund).
    pub async fn block<K: AsRef<[u8]> + ?Sized>(&self, key: &K, duration: Duration) -> Result<SystemTime, Error> {
        self.begin_block(key.as_ref(), duration, false).await
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
        self.begin_block(key.as_ref(), duration, true).await
    }

    async fn begin_block(&self, key: &[u8], duration: Duration, unless_blocked: bool) -> Result<SystemTime, Error> {
        let duration = block_ms(duration)?;
        match &self.0.deciding {
            DecidingMode::Local(windows) => {
                let left = windows.block(&self.key(key), duration, unless_blocked);
                Ok(SystemTime::now() + Duration::from_millis(left))
            }
            _ => self.0.client.block(key, duration, unless_blocked).await,
        }
    }

    /// Lifts a block; whether the key was blocked.
    ///
    /// # Errors
    /// As [`refund`](Self::refund).
    pub async fn unblock<K: AsRef<[u8]> + ?Sized>(&self, key: &K) -> Result<bool, Error> {
        match &self.0.deciding {
            DecidingMode::Local(windows) => Ok(windows.unblock(&self.key(key.as_ref()))),
            _ => self.0.client.unblock(key.as_ref()).await,
        }
    }

    /// Forgets all that was counted for a key, and its block; whether there was anything.
    ///
    /// # Errors
    /// As [`refund`](Self::refund).
    pub async fn reset<K: AsRef<[u8]> + ?Sized>(&self, key: &K) -> Result<bool, Error> {
        match &self.0.deciding {
            DecidingMode::Local(windows) => Ok(windows.reset(&self.key(key.as_ref()))),
            _ => self.0.client.reset(key.as_ref()).await,
        }
    }

    /// The name of a key on the server.
    pub(crate) fn key<'a>(&self, key: &'a [u8]) -> Cow<'a, [u8]> {
        self.0.client.key(key)
    }

    /// A request with this limiter's quota.
    pub(crate) fn demand(&self, request: &Request<'_>) -> Demand {
        let (cost, partial) = (request.cost, request.partial);
        let (quota, strict, warm_up) = (self.0.quota.exact(), self.0.strict, self.0.warm_up);
        let exact = swlimit_window::Request { quota, cost, partial, strict, warm_up };
        Demand { exact, block: self.0.block }
    }

    pub(crate) fn deciding(&self) -> &DecidingMode {
        &self.0.deciding
    }
}

impl DecidingMode {
    pub fn upstream(&self) -> Result<&Arc<Upstream>, Error> {
        match self {
            Self::Direct(upstream)
            | Self::Cached(upstream)
            | Self::Leased(upstream, _)
            | Self::Eventual(upstream, _) => Ok(upstream),
            Self::Local(_) => Err(Error::NoServer("this")),
        }
    }
}
