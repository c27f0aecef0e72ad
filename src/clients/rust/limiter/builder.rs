//! How limiters are made.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use swlimit_window::{WarmUp, MAX_WINDOW};

use super::{DecidingMode, Inner, Limiter};
use crate::client::Client;
use crate::clock::ms;
use crate::deciding::eventual::Eventual;
use crate::deciding::leased::Leases;
use crate::deciding::local::Windows;
use crate::demand::Demand;
use crate::error::Error;
use crate::mode::{Mode, OnFailure, Share, SHARE, SYNC_INTERVAL};
use crate::quota::Quota;
use crate::upstream::Right;

/// Builder for [`Limiter`].
#[derive(Clone, Debug)]
#[must_use = "nothing is built yet"]
pub struct LimiterBuilder {
    client: Client,
    quota: Quota,
    strict: bool,
    block: Option<u64>,
    mode: Option<Mode>,
    on_failure: OnFailure,
    local_share: f64,
    lease_share: f64,
    lease_length: Option<Duration>,
    sync_interval: Duration,
    warm_up: Option<Duration>,
    cold: Option<u64>,
}

impl LimiterBuilder {
    pub(crate) fn new(client: Client, quota: Quota) -> Self {
        Self {
            client,
            quota,
            strict: false,
            block: None,
            mode: None,
            on_failure: OnFailure::default(),
            local_share: SHARE,
            lease_share: SHARE,
            lease_length: None,
            sync_interval: SYNC_INTERVAL,
            warm_up: None,
            cold: None,
        }
    }

    /// Counts the trailing subinterval whole: no span of the window ever sees more than the limit.
    pub fn strict(self) -> Self {
        Self { strict: true, ..self }
    }

    /// Blocks the key for so long when the window denies a request: a penalty. Whole ms, 1 ms … 3650 d.
    pub fn block_for(self, duration: Duration) -> Self {
        Self { block: Some(ms(duration)), ..self }
    }

    /// Where decisions are made: [`Mode::Cached`] unless set; of a client without a server [`Mode::Local`].
    pub fn mode(self, mode: Mode) -> Self {
        Self { mode: Some(mode), ..self }
    }

    /// What decides when the server does not answer: [`OnFailure::Local`] unless set.
    pub fn on_failure(self, on_failure: OnFailure) -> Self {
        Self { on_failure, ..self }
    }

    /// The part of the limit, 0 … 1, that is granted in this process by [`OnFailure::Local`], and by
    /// [`Mode::Eventual`] before the first reply: 0.1 unless set. Rounded up to whole units.
    pub fn local_share(self, share: f64) -> Self {
        Self { local_share: share, ..self }
    }

    /// The most of the limit, 0 … 1, that one lease takes: 0.1 unless set. Rounded up to whole units.
    pub fn lease_share(self, share: f64) -> Self {
        Self { lease_share: share, ..self }
    }

    /// How long leased units are kept, at most the resolution: the smaller of the resolution and a second unless set. Set
    /// it to the resolution where the server is in another region.
    pub fn lease_length(self, length: Duration) -> Self {
        Self { lease_length: Some(length), ..self }
    }

    /// The interval between synchronizations of [`Mode::Eventual`]: 100 ms unless set, at least 1 ms.
    pub fn sync_interval(self, interval: Duration) -> Self {
        Self { sync_interval: interval, ..self }
    }

    /// Lets a key that was idle begin with a part of the limit, which rises to the whole within so long: at least ten
    /// windows. No warm-up unless set.
    pub fn warm_up(self, length: Duration) -> Self {
        Self { warm_up: Some(length), ..self }
    }

    /// A [`warm_up`](Self::warm_up) begins with one part of so many of the limit: 3 unless set, 2 … 1000.
    pub fn cold(self, parts: u64) -> Self {
        Self { cold: Some(parts), ..self }
    }

    /// The limiter.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a share, a lease length, an interval, a block or a warm-up out of range, and for a mode
    /// that needs a server which the client has not.
    pub fn build(self) -> Result<Limiter, Error> {
        let invalid = |text: &str| Error::Invalid(text.into());
        let local_share = Share::named("local_share", self.local_share)?;
        let lease_share = Share::named("lease_share", self.lease_share)?;
        if self.sync_interval < Duration::from_millis(1) {
            return Err(invalid("sync_interval must be at least 1 ms"));
        }
        let lengths = Duration::from_millis(1)..=self.quota.resolution();
        if self.lease_length.is_some_and(|length| !lengths.contains(&length)) {
            return Err(invalid("lease_length must be at least 1 ms and at most the resolution"));
        }
        if self.block.is_some_and(|block| !(1..=MAX_WINDOW).contains(&block)) {
            return Err(invalid("BLOCK must be a duration such as 60, 500ms, 5m, 1h or 7d"));
        }
        let warm_up = self.checked_warm_up()?;
        let Self {
            client: Client(client), quota, strict, block, mode, on_failure, lease_length, sync_interval, ..
        } = self;
        let max_keys = client.max_keys;
        let deciding = match (&client.upstream, mode) {
            (None, None) | (_, Some(Mode::Local)) => DecidingMode::Local(Windows::new(max_keys, &client.counters)),
            (None, Some(_)) => return Err(invalid("mode must be local: the client has no server")),
            (Some(upstream), Some(Mode::Direct)) => DecidingMode::Direct(Arc::clone(upstream)),
            (Some(upstream), None | Some(Mode::Cached)) => DecidingMode::Cached(Arc::clone(upstream)),
            (Some(upstream), Some(Mode::Leased)) => {
                [Right::Time, Right::Info].into_iter().for_each(|right| upstream.need_right(right));
                let (upstream, denial_cache) = (Arc::clone(upstream), Arc::clone(&client.denial_cache));
                let unit = swlimit_window::Request { strict, warm_up, ..Demand::of(&quota).exact };
                let leases =
                    Leases::new(Arc::clone(&upstream), denial_cache, unit, lease_length, lease_share, max_keys);
                client.close_later(leases.closing());
                DecidingMode::Leased(upstream, leases)
            }
            (Some(upstream), Some(Mode::Eventual)) => {
                let eventual = Eventual::new(Arc::clone(upstream), &quota, sync_interval, local_share, max_keys);
                client.close_later(eventual.closing());
                DecidingMode::Eventual(Arc::clone(upstream), eventual)
            }
        };
        let failure_windows = OnceLock::new();
        Ok(Limiter(Arc::new(Inner {
            client,
            quota,
            strict,
            block,
            deciding,
            on_failure,
            local_share,
            failure_windows,
            warm_up,
        })))
    }

    fn checked_warm_up(&self) -> Result<Option<WarmUp>, Error> {
        let invalid = |text: &str| Err(Error::Invalid(text.into()));
        let Some(duration) = self.warm_up.map(ms) else {
            return if self.cold.is_some() { invalid("cold needs warm_up") } else { Ok(None) };
        };
        if duration > MAX_WINDOW {
            return invalid("warm_up must be at most 3650 days");
        }
        if duration < 10 * ms(self.quota.window()) {
            return invalid("warm_up must be at least ten times the window");
        }
        match WarmUp::new(duration, self.cold.unwrap_or(WarmUp::COLD)) {
            None => invalid("cold must be an integer between 2 and 1000"),
            warm_up => Ok(warm_up),
        }
    }
}

impl Client {
    /// A limiter of this quota, for any number of keys.
    pub fn limiter(&self, quota: Quota) -> LimiterBuilder {
        LimiterBuilder::new(self.clone(), quota)
    }
}
