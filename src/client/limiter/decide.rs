//! How requests are decided, by each mode.

use std::sync::Arc;

use tokio::time::Instant;

use super::{DecidingMode, Limiter};
use crate::clock::now;
use crate::deciding::eventual::Decided;
use crate::deciding::leased::Leases;
use crate::decision::{Decision, Source};
use crate::demand::Demand;
use crate::error::Error;
use crate::protocol::Command;
use crate::request::Request;
use crate::transport::Reply;
use crate::upstream::Link;

impl Limiter {
    /// Decides a request, and counts it if it is granted.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a cost out of range; [`Error::Refused`] and [`Error::ModuleMissing`] as the server says;
    /// [`Error::Unavailable`] only with [`OnFailure::Error`].
    pub async fn allow<'a>(&self, request: impl Into<Request<'a>>) -> Result<Decision, Error> {
        let request = request.into().checked()?;
        let (key, demand) = (self.key(request.key), self.demand(&request));
        // No future is made where nobody is waited for.
        let decision = match self.near(&key, &demand)? {
            Some(decision) => decision,
            None => self.far(&key, &demand, request.deadline).await?,
        };
        self.0.client.counters.decided(&decision);
        Ok(decision)
    }

    /// The decision of a request about which nobody has to be asked.
    #[inline]
    pub(super) fn near(&self, key: &[u8], demand: &Demand) -> Result<Option<Decision>, Error> {
        let known = || self.0.client.deny_cache.find(key, demand, now());
        match &self.0.deciding {
            DecidingMode::Local(windows) => windows.allow(key, demand).map(|exact| Some(Source::Local.decided(exact))),
            DecidingMode::Eventual(_, eventual) => match eventual.decide(key, demand)? {
                Decided::Here(decision) => Ok(Some(decision)),
                Decided::ByPolicy => {
                    let away = Err(Error::Unavailable("nothing could be synchronized lately".into()));
                    self.or_on_failure(away, demand, |windows, demand| windows.allow(key, demand)).map(Some)
                }
                Decided::ByServer => Ok(None),
            },
            DecidingMode::Leased(_, leases) => Ok(leases.take(key, demand).or_else(known)),
            DecidingMode::Cached(_) => Ok(known()),
            DecidingMode::Direct(_) => Ok(None),
        }
    }

    /// The server's decision, or the failure policy's.
    pub(super) async fn far(&self, key: &[u8], demand: &Demand, deadline: Option<Instant>) -> Result<Decision, Error> {
        let decided = match &self.0.deciding {
            DecidingMode::Leased(link, leases) => self.lease(link, leases, key, demand, deadline).await,
            mode => {
                let (link, deny_cache) = (mode.link()?, &self.0.client.deny_cache);
                let (ticket, sent) = (deny_cache.ticket(key), Instant::now());
                let asked = self.ask(link, Command::allow(key, demand), deadline).await;
                asked.and_then(|reply| reply.decision()).map(|exact| {
                    match mode {
                        DecidingMode::Eventual(_, eventual) => eventual.heard(key, &exact),
                        DecidingMode::Cached(_) if exact.granted == 0 => {
                            deny_cache.denied(link, key, demand, &exact, sent, ticket);
                        }
                        _ => {}
                    }
                    Source::Server.decided(exact)
                })
            }
        };
        self.or_on_failure(decided, demand, |windows, demand| windows.allow(key, demand))
    }

    async fn lease(
        &self,
        link: &Arc<Link>,
        leases: &Leases,
        key: &[u8],
        demand: &Demand,
        deadline: Option<Instant>,
    ) -> Result<Decision, Error> {
        let ticket = self.0.client.deny_cache.ticket(key);
        let (decision, asked) = Box::pin(leases.ask(key, demand, link.deadline(deadline)?)).await?;
        if let Some((exact, sent)) = asked.filter(|(exact, _)| exact.granted == 0) {
            self.0.client.deny_cache.denied(link, key, demand, &exact, sent, ticket);
        }
        Ok(decision)
    }

    pub(super) async fn ask(
        &self,
        link: &Arc<Link>,
        command: Command,
        deadline: Option<Instant>,
    ) -> Result<Reply, Error> {
        // Boxed: it is large, and most of those who wait for a decision never ask.
        Box::pin(link.ask(command, link.deadline(deadline)?)).await
    }

    /// The same decision without counting. The server is asked, whatever the mode.
    ///
    /// # Errors
    /// As [`allow`](Self::allow).
    pub async fn peek<'a>(&self, request: impl Into<Request<'a>>) -> Result<Decision, Error> {
        let request = request.into().checked()?;
        let (key, demand) = (self.key(request.key), self.demand(&request));
        let link = match &self.0.deciding {
            DecidingMode::Local(windows) => return Ok(Source::Local.decided(windows.peek(&key, &demand)?)),
            mode => mode.link()?,
        };
        let reply = self.ask(link, Command::peek(&key, &demand), request.deadline).await;
        let decided = reply.and_then(|reply| Ok(Source::Server.decided(reply.decision()?)));
        self.or_on_failure(decided, &demand, |windows, demand| windows.peek(&key, demand))
    }
}
