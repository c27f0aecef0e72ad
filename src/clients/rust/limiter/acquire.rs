//! How requests wait for their turn.

use std::sync::Arc;
use std::time::Duration;

use swlimit_window::MAX_WINDOW;
use tokio::time::Instant;

use super::Limiter;
use crate::clock::ms;
use crate::decision::{Decision, Source};
use crate::demand::Demand;
use crate::error::Error;
use crate::protocol::Command;
use crate::request::Request;
use crate::transport::Reply;
use crate::upstream::{Outcome, Upstream};
use crate::wait::{Wait, POLL};

/// The server's last denial, if the caller's time is over. It stands where the server no longer answers: the failure policy
/// has no say then.
fn standing(denied: Option<Decision>, wait: &Wait) -> Option<Decision> {
    denied.filter(|denied| wait.is_over() && denied.source != Source::Failure)
}

impl Limiter {
    /// Waits for one's turn, at most so long: first come, first served, whatever each one's cost. The server keeps the
    /// queue where it can; elsewhere each process keeps its own and asks when the wait is over. Denied at once where
    /// there is nothing to hope for.
    ///
    /// # Errors
    /// As [`allow`](Self::allow), and [`Error::Invalid`] for a partial request, and [`Error::Refused`] when too many
    /// wait.
    pub async fn acquire<'a>(&self, request: impl Into<Request<'a>>, timeout: Duration) -> Result<Decision, Error> {
        let request = request.into().checked()?;
        if request.partial {
            return Err(Error::Invalid("a request that waits is granted the whole cost or nothing".into()));
        }
        let (key, demand) = (self.key(request.key), Demand { block: None, ..self.demand(&request) });
        let until = Instant::now() + timeout.min(Duration::from_millis(MAX_WINDOW));
        let until = request.deadline.map_or(until, |deadline| deadline.min(until));
        let decision = self.wait(&key, &demand, &self.0.client.wait(until)).await?;
        self.0.client.counters.decided(&decision);
        Ok(decision)
    }

    async fn wait(&self, key: &[u8], demand: &Demand, wait: &Wait) -> Result<Decision, Error> {
        let mut denied = None;
        if let Ok(upstream) = self.0.deciding.upstream() {
            match self.wait_there(upstream, key, demand, wait, &mut denied).await {
                // No wait on the server now: the failure policy is asked again and again.
                None | Some(Err(Error::Unavailable(_))) => {}
                Some(waited) => return waited,
            }
        }
        if let Some(denied) = standing(denied, wait) {
            return Ok(denied);
        }
        // Where only a place is missing, one may become free, or units be given back.
        let upstream = self.0.deciding.upstream().ok().filter(|upstream| upstream.lets_wait(key));
        let longest = if upstream.is_some() { POLL } else { Duration::MAX };
        let ask = |denied: Option<Decision>| async move {
            if let Some(upstream) = upstream.filter(|upstream| upstream.lets_wait(key)) {
                match self.wait_in_place(upstream, key, demand, wait).await {
                    None | Some(Err(Error::Unavailable(_))) => {}
                    Some(waited) => return waited,
                }
            }
            let outcome = Outcome::default();
            match (self.decide(key, demand, None, &outcome).await, standing(denied, wait)) {
                (Err(Error::Unavailable(_)), Some(denied)) => {
                    outcome.decided(0);
                    Ok(denied)
                }
                (decided, _) => self.allowed_on_failure(decided, key, demand, &outcome),
            }
        };
        match self.0.client.fair_queue.wait(key, wait, longest, denied, ask).await {
            Some(decided) => decided,
            // Others were before, to the end.
            None => {
                let peeked = match (self.peek_as(key, demand, None).await, standing(denied, wait)) {
                    (Err(Error::Unavailable(_)), Some(denied)) => return Ok(denied),
                    (peeked, _) => self.or_on_failure(peeked, demand, &Outcome::default(), |windows, demand| {
                        windows.peek(key, demand)
                    })?,
                };
                let retry_after = peeked.retry_after.map(|ms| ms.max(1));
                Ok(Decision { granted: 0, retry_after, ..peeked })
            }
        }
    }

    /// Waits on the server. A free key is granted over the connection that all share, so that it never waits for a
    /// place; else it is noted that it was denied.
    async fn wait_there(
        &self,
        upstream: &Arc<Upstream>,
        key: &[u8],
        demand: &Demand,
        wait: &Wait,
        denied: &mut Option<Decision>,
    ) -> Option<Result<Decision, Error>> {
        // The script does not know of waiting.
        if upstream.is_scripted(key) {
            return None;
        }
        let decided = |reply: Reply| Ok(Source::Server.decided(reply.decision()?));
        let at_once = match self.ask(upstream, Command::acquire(key, demand, 0), None).await {
            Ok(reply) => decided(reply),
            Err(error) if error.is_unknown_or_forbidden() => return None,
            Err(error) => Err(error),
        };
        let at_once = match at_once {
            Ok(decision) if !decision.granted() => decision,
            done => return Some(done),
        };
        *denied = Some(at_once);
        if at_once.retry_after().is_none_or(|pause| pause > wait.left()) {
            return Some(Ok(at_once));
        }
        self.wait_in_place(upstream, key, demand, wait).await
    }

    /// Waits over a connection of its own; `None` where there is no place.
    async fn wait_in_place(
        &self,
        upstream: &Arc<Upstream>,
        key: &[u8],
        demand: &Demand,
        wait: &Wait,
    ) -> Option<Result<Decision, Error>> {
        let waited = upstream.wait(key, wait, |left| Command::acquire(key, demand, ms(left))).await?;
        Some(waited.and_then(|reply| Ok(Source::Server.decided(reply.decision()?))))
    }
}
