//! Corrects what an admission has taken, once it is known what was used.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::oneshot;
use tokio::time::{timeout_at, Instant};

use super::member::Resource;
use super::{Admission, Granted};
use crate::budget::Way;
use crate::client::Client;
use crate::clock::ms_up;
use crate::decision::{Decision, Source};
use crate::demand::Demand;
use crate::error::Error;
use crate::hold::{Hold, Taken};
use crate::limiter::Policy;
use crate::protocol::{Command, Counted};
use crate::reason::Reason;
use crate::request::Request;
use crate::upstream::{HoldName, HoldRenewer, Settlement, Upstream};

/// What was taken of a limit.
pub(super) struct Reserved {
    key: Vec<u8>,
    of: Resource,
    units: u64,
    /// The end of a budget's period in Unix ms, by this machine's clock.
    until: Option<u64>,
}

impl fmt::Debug for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { decisions, granted: Granted { holds, .. }, is_settled, .. } = self;
        let mut fields = f.debug_struct("Admission");
        fields.field("decisions", decisions).field("holds", holds).field("is_settled", is_settled);
        fields.finish_non_exhaustive()
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

    /// The holds, in the order of their members; none where the whole was denied. Each is renewed, and lost, for itself.
    pub fn holds(&self) -> &[Hold] {
        &self.granted.holds
    }

    /// The first hold.
    pub fn hold(&self) -> Option<&Hold> {
        self.holds().first()
    }

    /// Takes the holds out, such as to [release](Hold::release) one of them, or to hand them to somebody else. What is
    /// reserved can still be settled, which ends them, too.
    pub fn take_holds(&mut self) -> Vec<Hold> {
        std::mem::take(&mut self.granted.holds)
    }

    /// Releases the holds, and waits for that. All else stays counted as it was reserved, and can still be settled.
    ///
    /// # Errors
    /// As [`Hold::release`] of each.
    pub async fn release(&mut self) -> Result<(), Error> {
        let released = join_all(self.take_holds().into_iter().map(Hold::release)).await;
        released.into_iter().try_for_each(|one| one.map(drop))
    }

    /// Says what was really used: units of each member but the holds, in their order. Unused ones are given back, those
    /// beyond are counted, and the holds end. How each count changed; `None` where the reservation had ended before, as
    /// the server was unavailable for longer than the longest time to live: then what was reserved stays counted, and what was
    /// used beyond is recorded. Only the first call does anything.
    ///
    /// Dropped, it is settled all the same, as soon as the server can be asked, as long as the reservation would live;
    /// without holds it is tried once.
    ///
    /// # Errors
    /// [`Error::Invalid`] for another number of units than of members; [`Error::Unavailable`] and [`Error::Refused`].
    pub async fn settle(&mut self, used: &[u64]) -> Result<Option<Vec<i64>>, Error> {
        if self.is_settled || !self.granted() {
            return Ok(None);
        }
        let counted = self.counted().count();
        if used.len() != counted {
            return Err(Error::Invalid(format!("used must be {counted} numbers: of all but the holds")));
        }
        let beyond = match &self.granted.reservation {
            Some(_) => self.beyond(used)?,
            None => Vec::new(),
        };
        self.is_settled = true;
        let holds = self.take_holds();
        let reservation = self.granted.reservation.as_mut().map(Hold::hand_over);
        match (reservation, &self.client.upstream) {
            (Some(Taken::There(renewer, name, _life)), _) => {
                self.settle_reserved(renewer, name, holds, used, beyond).await
            }
            (_, Some(upstream)) if self.by_server => self.settle_each(upstream, used).await,
            _ => {
                let age = Some(self.sent.instant.elapsed());
                let each = self.counted().zip(used).map(|(one, used)| one.settle_here(*used, age));
                Ok(Some(each.collect::<Result<_, _>>()?))
            }
        }
    }

    /// What is counted: all but the holds.
    fn counted(&self) -> impl Iterator<Item = &Reserved> {
        self.granted.reserved.iter().filter(|one| one.is_counted())
    }

    /// Counts what was used beyond what is reserved.
    fn beyond(&self, used: &[u64]) -> Result<Vec<Command>, Error> {
        let each = self.counted().zip(used).filter(|(one, used)| **used > one.units);
        each.map(|(one, used)| one.record(*used - one.units)).collect()
    }

    async fn settle_reserved(
        &self,
        renewer: HoldRenewer,
        name: HoldName,
        holds: Vec<Hold>,
        used: &[u64],
        beyond: Vec<Command>,
    ) -> Result<Option<Vec<i64>>, Error> {
        let mut units = used.iter().copied();
        let mut used_of = |one: &Reserved| if one.is_counted() { units.next().unwrap_or_default() } else { 0 };
        let reserved = self.granted.reserved.iter().map(|one| (one.key.as_slice().into(), used_of(one))).collect();
        let command = Command::Settle { key: Arc::clone(&name.key), id: Arc::clone(&name.id), reserved };
        let holds = holds.into_iter().filter_map(|mut hold| match hold.hand_over() {
            Taken::There(_, name, _) => Some(name),
            _ => None,
        });
        let (done, settled) = oneshot::channel();
        let deadline = Instant::now() + renewer.upstream().timeout();
        renewer.settle(Settlement { name, command, beyond, holds: holds.collect(), done });
        let changes = match timeout_at(deadline, settled).await {
            Ok(Ok(settled)) => settled?,
            _ => return Err(Error::Unavailable(Reason::NoAnswer.because("the settlement goes on"))),
        };
        let is_counted = self.granted.reserved.iter().map(Reserved::is_counted);
        Ok(changes.map(|each| each.into_iter().zip(is_counted).filter(|one| one.1).map(|one| one.0).collect()))
    }

    /// Each by itself, where no hold has reserved it. A request is never sent twice.
    async fn settle_each(&self, upstream: &Upstream, used: &[u64]) -> Result<Option<Vec<i64>>, Error> {
        let mut changes = Vec::with_capacity(used.len());
        for (one, &used) in self.counted().zip(used) {
            let deadline = Instant::now() + upstream.timeout();
            if used >= one.units {
                let beyond = used - one.units;
                if beyond > 0 {
                    upstream.ask(one.record(beyond)?, deadline).await?;
                }
                changes.push(signed(beyond));
            } else {
                // With the way there, or it takes others' younger units.
                let age = ms_up(self.sent.instant.elapsed() + upstream.timeout());
                let refunded = match one.until {
                    Some(_) if !one.is_in_force() => 0,
                    until => {
                        let age = until.is_none().then_some(age);
                        let refund = Command::refund(&one.key, one.units - used, Counted::of(None, age));
                        upstream.ask(refund, deadline).await?.natural()?
                    }
                };
                self.client.denial_cache.forget(&one.key);
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

    fn is_counted(&self) -> bool {
        !matches!(self.of, Resource::Hold(..))
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
            Resource::Rate(limiter, demand) => match limiter.policy(demand, Reason::Other.because("")) {
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
    /// other key, in the order of the members; of further holds 0, which end. How each count changed; `None` where the hold had ended before. An
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
