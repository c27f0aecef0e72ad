//! Corrects what an admission has taken, once it is known what was used.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{timeout_at, Instant};

use super::member::Resource;
use super::Admission;
use crate::budget::Way;
use crate::client::Client;
use crate::clock::ms_up;
use crate::decision::{Decision, Source};
use crate::demand::Demand;
use crate::error::Error;
use crate::hold::{Hold, Taken};
use crate::limiter::Policy;
use crate::protocol::{Command, Counted};
use crate::request::Request;
use crate::upstream::{HoldName, HoldRenewer, Link, Settlement};

/// What was taken of a limit beside the hold.
pub(super) struct Reserved {
    key: Vec<u8>,
    of: Resource,
    units: u64,
    /// The end of a budget's period in Unix ms, by this machine's clock.
    until: Option<u64>,
}

impl fmt::Debug for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { decisions, hold, is_settled, .. } = self;
        let mut fields = f.debug_struct("Admission");
        fields.field("decisions", decisions).field("hold", hold).field("is_settled", is_settled).finish_non_exhaustive()
    }
}

impl Admission {
    /// Whether all limits granted. Otherwise nothing is counted or held anywhere.
    pub fn granted(&self) -> bool {
        self.decisions.granted()
    }

    /// The decision of each limit, in the order of the members. Where the whole is denied, a limit that did not deny
    /// shows as granted.
    pub fn each(&self) -> &[Decision] {
        self.decisions.each()
    }

    /// The longest wait of those that denied; zero when granted, `None` when one can never be granted.
    pub fn retry_after(&self) -> Option<Duration> {
        self.decisions.retry_after()
    }

    /// The hold, if one was asked for and all was granted.
    pub fn hold(&self) -> Option<&Hold> {
        self.hold.as_ref().filter(|hold| hold.granted())
    }

    /// Takes the hold out, such as to [detach](Hold::detach) it: its new owner settles what it has reserved, by
    /// [`Client::settle`]. `None` without a hold, or denied.
    pub fn take_hold(&mut self) -> Option<Hold> {
        self.is_settled |= self.hold().is_some();
        self.hold.take().filter(Hold::granted)
    }

    /// Says what was really used: units of each member but the hold, in their order. Unused ones are given back, those
    /// beyond are counted, and the hold ends. How each count changed; `None` where the hold had ended before: then what
    /// was reserved stays counted, and what was used beyond is recorded. Only the first call does anything.
    ///
    /// Dropped, it is settled all the same, as soon as the server can be asked, as long as the hold would live; without
    /// a hold it is tried once.
    ///
    /// # Errors
    /// [`Error::Invalid`] for another number of units than of members; [`Error::Unavailable`] and [`Error::Refused`].
    pub async fn settle(&mut self, used: &[u64]) -> Result<Option<Vec<i64>>, Error> {
        if self.is_settled || !self.granted() {
            return Ok(None);
        }
        if used.len() != self.reserved.len() {
            return Err(Error::Invalid(format!("used must be {} numbers: of all but the hold", self.reserved.len())));
        }
        self.is_settled = true;
        let taken = self.hold.as_mut().map(Hold::hand_over);
        match (taken, &self.client.link) {
            (Some(Taken::There(renewer, name, _life)), _) => self.settle_hold(renewer, name, used).await,
            (_, Some(link)) if self.by_server => self.settle_each(link, used).await,
            _ => {
                let age = Some(self.sent.instant.elapsed());
                let each = self.reserved.iter().zip(used).map(|(one, used)| one.settle_here(*used, age));
                Ok(Some(each.collect::<Result<_, _>>()?))
            }
        }
    }

    async fn settle_hold(&self, renewer: HoldRenewer, name: HoldName, used: &[u64]) -> Result<Option<Vec<i64>>, Error> {
        let reserved = self.reserved.iter().zip(used).map(|(one, used)| (one.key.as_slice().into(), *used)).collect();
        let command = Command::Settle { key: Arc::clone(&name.key), id: Arc::clone(&name.id), reserved };
        let each = self.reserved.iter().zip(used);
        let beyond = each.filter(|(one, used)| **used > one.units).map(|(one, used)| one.record(*used - one.units));
        let beyond = beyond.collect::<Result<Vec<Command>, Error>>()?;
        let (done, settled) = oneshot::channel();
        let deadline = Instant::now() + renewer.link().timeout();
        renewer.settle(Settlement { name, command, beyond, done });
        match timeout_at(deadline, settled).await {
            Ok(Ok(settled)) => settled,
            _ => Err(Error::Unavailable("the settlement goes on".into())),
        }
    }

    /// Each by itself, where no hold has reserved it. A request is never sent twice.
    async fn settle_each(&self, link: &Link, used: &[u64]) -> Result<Option<Vec<i64>>, Error> {
        let mut changes = Vec::with_capacity(used.len());
        for (one, &used) in self.reserved.iter().zip(used) {
            let deadline = Instant::now() + link.timeout();
            if used >= one.units {
                let beyond = used - one.units;
                if beyond > 0 {
                    link.ask(one.record(beyond)?, deadline).await?;
                }
                changes.push(signed(beyond));
            } else {
                // With the way there, or it takes others' younger units.
                let age = ms_up(self.sent.instant.elapsed() + link.timeout());
                let refunded = match one.until {
                    Some(_) if !one.is_in_force() => 0,
                    until => {
                        let age = until.is_none().then_some(age);
                        let refund = Command::refund(&one.key, one.units - used, Counted::of(None, age));
                        link.ask(refund, deadline).await?.natural()?
                    }
                };
                self.client.deny_cache.forget(&one.key);
                changes.push(-signed(refunded));
            }
        }
        Ok(Some(changes))
    }
}

impl Reserved {
    pub fn new(key: Vec<u8>, of: Resource, units: u64) -> Self {
        let until = match &of {
            Resource::Budget(limiter, _) => limiter.until().ok(),
            _ => None,
        };
        Self { key, of, units, until }
    }

    /// Whether the period of a budget in which it was taken has not ended.
    fn is_in_force(&self) -> bool {
        matches!(&self.of, Resource::Budget(limiter, _) if limiter.until().ok() == self.until)
    }

    /// Counts units whatever the limit is.
    fn record(&self, units: u64) -> Result<Command, Error> {
        Ok(match &self.of {
            Resource::Rate(_, demand) => {
                let exact = swlimit_window::Request { cost: units, partial: false, ..demand.exact };
                Command::record(&self.key, &Demand { exact, block: None }, 0)
            }
            Resource::Budget(limiter, _) => {
                let budget = limiter.clause(limiter.until()?, units);
                Command::Budget { key: self.key.as_slice().into(), budget, partial: false, force: true }
            }
            Resource::Hold(..) => return Err(Error::Invalid("a hold has no usage".into())),
        })
    }

    /// Corrects what was taken in this process.
    pub fn settle_here(&self, used: u64, age: Option<Duration>) -> Result<i64, Error> {
        let (age, beyond) = (age.map(ms_up), used.saturating_sub(self.units));
        let unused = self.units.saturating_sub(used);
        match &self.of {
            Resource::Rate(limiter, demand) => match limiter.policy(demand, "".into()) {
                Ok(Policy::Window(windows, _, _)) if unused > 0 => {
                    return Ok(-signed(windows.refund(&self.key, unused, age)));
                }
                Ok(Policy::Window(windows, share, _)) if beyond > 0 => {
                    let exact = swlimit_window::Request { cost: beyond, ..share.exact };
                    let _ = windows.record(&self.key, &Demand { exact, ..share }, None)?;
                }
                _ => return Ok(0),
            },
            Resource::Budget(limiter, _) if !limiter.counts_here() => return Ok(0),
            Resource::Budget(limiter, _) if unused > 0 && self.is_in_force() => {
                return Ok(-signed(limiter.give_back(&self.key, unused, None)));
            }
            Resource::Budget(limiter, _) if beyond > 0 => {
                let request = Request::new(&self.key).cost(beyond);
                let _ = limiter.locally(&self.key, &request, limiter.limit(), Source::Local, Way::Record)?;
            }
            Resource::Budget(..) | Resource::Hold(..) => {}
        }
        Ok(signed(beyond))
    }
}

fn signed(units: u64) -> i64 {
    i64::try_from(units).unwrap_or(i64::MAX)
}

impl Client {
    /// Corrects what a hold has reserved, by its key and id, for a caller that holds for others: units that were used of each
    /// key, in the order in which they were reserved. How each count changed; `None` where the hold had ended before. An
    /// [`Admission`] settles itself.
    ///
    /// # Errors
    /// [`Error::Unavailable`], [`Error::Refused`], [`Error::ModuleMissing`], [`Error::NoServer`].
    pub async fn settle<K: AsRef<[u8]> + ?Sized>(
        &self,
        key: &K,
        id: &[u8],
        used: &[(&[u8], u64)],
    ) -> Result<Option<Vec<i64>>, Error> {
        let reserved = used.iter().map(|(key, units)| (self.0.key(key).as_ref().into(), *units)).collect();
        let command = Command::Settle { key: self.0.key(key.as_ref()).as_ref().into(), id: id.into(), reserved };
        self.ask("settle", command).await?.changes()
    }
}
