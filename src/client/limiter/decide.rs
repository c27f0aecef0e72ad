//! How requests are decided, by each mode.

use std::sync::Arc;

use tokio::time::Instant;

use super::{DecidingMode, Limiter};
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
        let key = self.key(request.key);
        let decision = self.decide(&key, &self.demand(&request), request.deadline).await?;
        self.0.client.counters.decided(&decision);
        Ok(decision)
    }

    pub(super) async fn decide(
        &self,
        key: &[u8],
        demand: &Demand,
        deadline: Option<Instant>,
    ) -> Result<Decision, Error> {
        let decided = match &self.0.deciding {
            DecidingMode::Local(windows) => return Ok(Source::Local.decided(windows.allow(key, demand)?)),
            DecidingMode::Eventual(link, eventual) => match eventual.decide(key, demand)? {
                Decided::Here(decision) => return Ok(decision),
                Decided::ByPolicy => Err(Error::Unavailable("nothing could be synchronized lately".into())),
                Decided::ByServer => {
                    let asked = self.ask(link, Command::allow(key, demand), deadline).await;
                    asked.and_then(|reply| reply.decision()).map(|exact| {
                        eventual.heard(key, &exact);
                        Source::Server.decided(exact)
                    })
                }
            },
            DecidingMode::Leased(link, leases) => {
                if let Some(decision) = leases.take(key, demand) {
                    return Ok(decision);
                }
                if let Some(decision) = self.0.client.deny_cache.find(key, demand, Instant::now()) {
                    return Ok(decision);
                }
                self.lease(link, leases, key, demand, deadline).await
            }
            DecidingMode::Cached(link) => {
                if let Some(decision) = self.0.client.deny_cache.find(key, demand, Instant::now()) {
                    return Ok(decision);
                }
                let (ticket, sent) = (self.0.client.deny_cache.ticket(key), Instant::now());
                let asked = self.ask(link, Command::allow(key, demand), deadline).await;
                asked.and_then(|reply| reply.decision()).map(|exact| {
                    if exact.granted == 0 {
                        self.0.client.deny_cache.denied(link, key, demand, &exact, sent, ticket);
                    }
                    Source::Server.decided(exact)
                })
            }
            DecidingMode::Direct(link) => {
                let asked = self.ask(link, Command::allow(key, demand), deadline).await;
                asked.and_then(|reply| Ok(Source::Server.decided(reply.decision()?)))
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
