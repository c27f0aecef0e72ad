//! Who decides by each limit: the client's limiters, which go on from one configuration to the next.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use swlimit_client::{self as client, Client, Limiter, Quota};

use crate::limits::{Deciding, Limit, Limits, Manner, WhenAway};

/// The limiters of a configuration.
pub struct Limiters {
    pub(super) client: Client,
    /// The longest that a request waits.
    pub(super) timeout: Duration,
    /// A cluster decides together only upon keys with the same hash tag.
    pub(super) clustered: bool,
    by_id: Vec<Limiter>,
    configured: HashMap<Kind, Limiter>,
    /// Those of limits that requests brought along.
    from_requests: Mutex<HashMap<Kind, Limiter>>,
}

/// What limits have in common that are of one limiter.
type Kind = (u64, u64, u64, bool, Option<u64>, (Deciding, u64, u64, WhenAway));

/// Limits that requests bring along are forgotten when there are so many different ones.
const MOST_FROM_REQUESTS: usize = 10_000;

fn kind(limit: &Limit) -> Kind {
    let (quota, Manner { deciding, share, interval, when_away }) = (&limit.quota, limit.manner);
    let manner = (deciding, share.to_bits(), interval, when_away);
    (quota.limit, quota.geometry.window(), quota.geometry.resolution(), limit.strict, limit.block, manner)
}

fn made(client: &Client, limit: &Limit) -> Limiter {
    let ms = Duration::from_millis;
    let geometry = limit.quota.geometry;
    let quota = Quota::of(limit.quota.limit, ms(geometry.window()), ms(geometry.resolution()));
    let mut builder = client.limiter(quota.expect("it was checked when it was read"));
    if limit.strict {
        builder = builder.strict();
    }
    if let Some(block) = limit.block {
        builder = builder.blocking(ms(block));
    }
    let Manner { deciding, share, interval, when_away } = limit.manner;
    builder
        .deciding(match deciding {
            Deciding::Direct => client::Deciding::Direct,
            Deciding::Denials => client::Deciding::Denials,
            Deciding::Leases => client::Deciding::Leases { share },
            Deciding::Background => client::Deciding::Background { interval: ms(interval), share },
            Deciding::OnlyLocal => client::Deciding::OnlyLocal,
        })
        .when_away(match when_away {
            WhenAway::Allow => client::WhenAway::Allow,
            WhenAway::Local => client::WhenAway::Local { share },
            // An error is made of what was decided while the server was away.
            WhenAway::Deny | WhenAway::Error => client::WhenAway::Deny,
        })
        .build()
}

impl Limiters {
    /// The limiters of no limits.
    pub fn none(client: Client, timeout: Duration, clustered: bool) -> Self {
        let (configured, from_requests) = (HashMap::new(), Mutex::default());
        Self { client, timeout, clustered, by_id: Vec::new(), configured, from_requests }
    }

    /// The limiters of other limits. Those of limits that are as they were go on with what they know.
    pub fn renewed(&self, limits: &Limits) -> Self {
        let mut configured: HashMap<Kind, Limiter> = HashMap::new();
        let limiter = |limit: &&Limit| {
            let known = || self.configured.get(&kind(limit)).cloned();
            let made = || known().unwrap_or_else(|| made(&self.client, limit));
            configured.entry(kind(limit)).or_insert_with(made).clone()
        };
        let by_id = limits.by_id().iter().map(limiter).collect();
        let from_requests = Mutex::new(self.brought_along().clone());
        Self { client: self.client.clone(), by_id, configured, from_requests, ..*self }
    }

    fn brought_along(&self) -> MutexGuard<'_, HashMap<Kind, Limiter>> {
        self.from_requests.lock().expect("nobody panics with it")
    }

    /// The limiter of a limit.
    pub fn of(&self, limit: &Limit) -> Limiter {
        if let Some(id) = limit.id {
            return self.by_id[id].clone();
        }
        let mut known = self.brought_along();
        if known.len() >= MOST_FROM_REQUESTS {
            known.clear();
        }
        known.entry(kind(limit)).or_insert_with(|| made(&self.client, limit)).clone()
    }
}

/// Whether a server's address is that of a cluster.
pub fn is_cluster(server: &str) -> bool {
    server.split_once("://").is_some_and(|(scheme, _)| scheme.ends_with("-cluster"))
}
