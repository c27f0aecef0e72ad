//! How requests are decided, by each mode.

use std::sync::Arc;

use tokio::time::Instant;

use super::{DecidingMode, Limiter};
use crate::clock::now;
use crate::deciding::eventual::Decided;
use crate::deciding::leased::Elsewhere;
use crate::decision::{Decision, Source};
use crate::demand::Demand;
use crate::error::Error;
use crate::protocol::Command;
use crate::reason::Reason;
use crate::request::Request;
use crate::transport::Reply;
use crate::upstream::{Outcome, Upstream};

/// A request that cannot be decided near itself, and what its leases do about it.
struct Far(Option<Box<Elsewhere>>);

impl Limiter {
    /// Decides a request, and counts it if it is granted.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a cost out of range; [`Error::Refused`] and [`Error::ModuleMissing`] as the server says;
    /// [`Error::Unavailable`] only with [`OnFailure::Error`](crate::OnFailure::Error).
    pub async fn allow<'a>(&self, request: impl Into<Request<'a>>) -> Result<Decision, Error> {
        let request = request.into().checked()?;
        let (key, demand) = (self.key(request.key), self.demand(&request));
        // No future is made where nobody is waited for, and nothing is copied that was just written: the processor would
        // wait for it.
        let decision = match self.near(&key, &demand) {
            Ok(Ok(decision)) => {
                self.0.client.counters.decided(&decision);
                return Ok(decision);
            }
            Ok(Err(far)) => {
                let outcome = Outcome::keeping(request.keeps_late_grant);
                let decided = self.far(far, &key, &demand, request.deadline, &outcome).await;
                self.allowed_on_failure(decided, &key, &demand, &outcome)?
            }
            Err(error) => self.allowed_on_failure(Err(error), &key, &demand, &Outcome::default())?,
        };
        self.0.client.counters.decided(&decision);
        Ok(decision)
    }

    /// The decision of a request as its mode says, and not the failure policy's.
    ///
    /// # Errors
    /// [`Error::Unavailable`] while the server is unavailable; otherwise as [`allow`](Self::allow).
    pub(super) async fn decide(
        &self,
        key: &[u8],
        demand: &Demand,
        deadline: Option<Instant>,
        outcome: &Outcome,
    ) -> Result<Decision, Error> {
        match self.near(key, demand)? {
            Ok(decision) => Ok(decision),
            Err(far) => self.far(far, key, demand, deadline, outcome).await,
        }
    }

    /// The decision, or the failure policy's if the server is unavailable, which counts it.
    pub(super) fn allowed_on_failure(
        &self,
        decided: Result<Decision, Error>,
        key: &[u8],
        demand: &Demand,
        outcome: &Outcome,
    ) -> Result<Decision, Error> {
        self.or_on_failure(decided, demand, outcome, |windows, demand| windows.allow(key, demand))
    }

    /// The decision of a request about which nobody has to be asked.
    #[inline]
    fn near(&self, key: &[u8], demand: &Demand) -> Result<Result<Decision, Far>, Error> {
        match &self.0.deciding {
            DecidingMode::Local(windows) => windows.allow(key, demand).map(|exact| Ok(Source::Local.decided(exact))),
            DecidingMode::Eventual(_, eventual) => match eventual.decide(key, demand)? {
                Decided::Here(decision) => Ok(Ok(decision)),
                Decided::ByPolicy => {
                    Err(Error::Unavailable(Reason::NoAnswer.because("nothing could be synchronized lately")))
                }
                Decided::ByServer => Ok(Err(Far(None))),
            },
            DecidingMode::Leased(_, leases) => {
                Ok(leases.decide(key, demand)?.map_err(|elsewhere| Far(Some(elsewhere))))
            }
            DecidingMode::Cached(_) => Ok(self.0.client.denial_cache.find(key, demand, now()).ok_or(Far(None))),
            DecidingMode::Direct(_) => Ok(Err(Far(None))),
        }
    }

    /// The server's decision.
    async fn far(
        &self,
        far: Far,
        key: &[u8],
        demand: &Demand,
        deadline: Option<Instant>,
        outcome: &Outcome,
    ) -> Result<Decision, Error> {
        match (&self.0.deciding, far.0) {
            (DecidingMode::Leased(upstream, leases), Some(elsewhere)) => {
                let deadline = upstream.time_to_decide(key, upstream.timeout(), deadline)?;
                Box::pin(leases.ask(elsewhere, demand, deadline)).await
            }
            (mode, _) => {
                let (upstream, denial_cache) = (mode.upstream()?, &self.0.client.denial_cache);
                let deadline = upstream.time_to_decide(key, upstream.timeout(), deadline)?;
                let (ticket, sent) = (denial_cache.ticket(key), Instant::now());
                // Boxed: it is large, and most of those who wait for a decision never ask.
                let asked = Box::pin(upstream.ask_for(outcome, Command::allow(key, demand), deadline)).await;
                asked.and_then(|reply| reply.decision()).map(|exact| {
                    match mode {
                        DecidingMode::Eventual(_, eventual) => eventual.heard(key, &exact),
                        DecidingMode::Cached(_) if exact.granted == 0 => {
                            denial_cache.denied(upstream, key, demand, &exact, sent, ticket);
                        }
                        _ => {}
                    }
                    Source::Server.decided(exact)
                })
            }
        }
    }

    pub(super) async fn ask(
        &self,
        upstream: &Arc<Upstream>,
        command: Command,
        deadline: Option<Instant>,
    ) -> Result<Reply, Error> {
        // Boxed: it is large, and most of those who wait for a decision never ask.
        Box::pin(upstream.ask(command, upstream.deadline(deadline)?)).await
    }

    /// The same decision without counting. The server is asked, whatever the mode.
    ///
    /// # Errors
    /// As [`allow`](Self::allow).
    pub async fn peek<'a>(&self, request: impl Into<Request<'a>>) -> Result<Decision, Error> {
        let request = request.into().checked()?;
        let key = self.key(request.key);
        let demand = self.demand(&request);
        let decided = self.peek_as(&key, &demand, request.deadline).await;
        self.or_on_failure(decided, &demand, &Outcome::default(), |windows, demand| windows.peek(&key, demand))
    }

    /// The decision that a demand would get; nobody else decides where the server does not answer.
    pub(super) async fn peek_as(
        &self,
        key: &[u8],
        demand: &Demand,
        deadline: Option<Instant>,
    ) -> Result<Decision, Error> {
        let upstream = match &self.0.deciding {
            DecidingMode::Local(windows) => return Ok(Source::Local.decided(windows.peek(key, demand)?)),
            mode => mode.upstream()?,
        };
        let deadline = upstream.time_to_decide(key, upstream.timeout(), deadline)?;
        // Boxed: it is large, and most of those who wait for a decision never ask.
        let reply = Box::pin(upstream.ask(Command::peek(key, demand), deadline)).await?;
        Ok(Source::Server.decided(reply.decision()?))
    }
}
