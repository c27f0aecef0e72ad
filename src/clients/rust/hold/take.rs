//! How holds are taken: from the server, at once or after a wait, or in this process.

use std::sync::Arc;

use swlimit_window::MAX_EXACT;
use tokio::time::Instant;

use super::guard::{Hold, Taken};
use super::limiter::{HoldLimiter, AGAIN};
use super::poll::Poll;
use super::request::{check_ids, checked_ttl, fresh_id, HoldRequest, InDoubt, PendingHold, MAX_WAIT};
use crate::clock::ms;
use crate::decision::{Decision, Source};
use crate::error::{Cause, Error};
use crate::keyed::Turn;
use crate::mode::OnFailure;
use crate::protocol::HoldReply;
use crate::transport::{Failure, Reply};
use crate::upstream::{Batch, HoldName, HoldRenewer, Moment, Owner, Settled, Upstream, WAITS_ELSEWHERE};
use crate::wait::Wait;

impl HoldLimiter {
    /// Takes units of a key until the guard is dropped. Denied, the guard holds nothing.
    ///
    /// Dropped at any time, it leaves nothing held for longer than a moment, or than the time to live if the server
    /// cannot be asked.
    ///
    /// # Errors
    /// [`Error::Invalid`] for what is out of range; [`Error::Refused`] and [`Error::ModuleMissing`] as the server says;
    /// [`Error::Unavailable`] only with [`OnFailure::Error`].
    pub async fn hold<'a>(&self, request: impl Into<HoldRequest<'a>>) -> Result<Hold, Error> {
        let request = request.into();
        let pending = self.pending(&request)?;
        let until = Instant::now() + request.wait;
        let until = request.deadline.map_or(until, |deadline| deadline.min(until));
        let wait = self.0.client.wait(until);
        let hold = match &self.0.client.renewer {
            None => self.take_here(&pending, self.0.limit, &wait, Source::Local).await,
            Some(renewer) => self.take(renewer, pending, &request, &wait).await?,
        };
        self.0.client.counters.decided(hold.decision());
        Ok(hold)
    }

    /// # Errors
    /// [`Error::Invalid`] for what no server would take.
    pub(crate) fn pending(&self, request: &HoldRequest<'_>) -> Result<PendingHold, Error> {
        let HoldRequest { key, cost, ttl, wait, id, .. } = *request;
        if !(1..=MAX_EXACT).contains(&cost) {
            return Err(Error::Invalid(format!("cost must be an integer between 1 and {MAX_EXACT}")));
        }
        if wait > MAX_WAIT {
            return Err(Error::Invalid("wait must be at most 1h".into()));
        }
        let ttl = ttl.map_or(Ok(self.0.ttl), checked_ttl)?;
        let (id, is_own) = match id {
            None => (fresh_id()?, true),
            Some(id) => {
                check_ids(&[id])?;
                (id.into(), false)
            }
        };
        let key = self.0.client.key(key).into();
        let timeout = self.0.timeout;
        Ok(PendingHold { name: HoldName { key, id, ttl }, is_own, limit: self.0.limit, cost, timeout })
    }

    /// Takes a hold from the server, or by the failure policy for as long as the server is unavailable.
    async fn take(
        &self,
        renewer: &HoldRenewer,
        mut pending: PendingHold,
        request: &HoldRequest<'_>,
        wait: &Wait,
    ) -> Result<Hold, Error> {
        loop {
            let mut denied = None;
            let taken = self.take_there(renewer, pending.clone(), request, wait, &mut denied).await;
            let reason = match (taken.map_err(|error| self.0.client.failure(error)), denied) {
                // The caller's time is over: the denial stands, and the failure policy has no say.
                (Err(Error::Unavailable(_)), Some(denied)) if wait.is_over() => return Ok(Hold::denied(denied)),
                (Err(Error::Unavailable(reason)), _) => reason,
                (taken, _) => return taken,
            };
            let again = Instant::now() + AGAIN;
            let hold = self.by_policy(&pending, reason, &wait.by(again)).await?;
            if hold.granted() || wait.is_over() {
                return Ok(hold);
            }
            wait.sleep_until(again).await;
            pending.renew_id()?; // the former one is being released
        }
    }

    /// The failure policy's decision.
    ///
    /// # Errors
    /// [`Error::Unavailable`] with [`OnFailure::Error`].
    pub(crate) async fn by_policy(&self, pending: &PendingHold, reason: Cause, wait: &Wait) -> Result<Hold, Error> {
        let granted = Source::Failure.unknown(pending.cost, self.0.limit, Some(0));
        Ok(match self.0.on_failure {
            OnFailure::Error => return Err(Error::Unavailable(reason)),
            OnFailure::Allow => Hold::local(granted, Taken::Uncounted),
            OnFailure::Deny => Hold::denied(Source::Failure.unknown(0, self.0.limit, Some(ms(AGAIN)))),
            OnFailure::Local => {
                let share = self.0.local_share.units(self.0.limit);
                self.take_here(pending, share, wait, Source::Failure).await
            }
        })
    }

    /// A seat in this process.
    pub(crate) async fn take_here(&self, pending: &PendingHold, limit: u64, wait: &Wait, source: Source) -> Hold {
        let taken = self.0.local.take(&pending.name.key, limit, pending.cost, wait).await;
        let remaining = Some(self.0.local.remaining(&pending.name.key, limit));
        let retry_after = (pending.cost <= limit).then_some(ms(AGAIN));
        let decision =
            |granted, retry_after| Decision { remaining, ..source.unknown(granted, self.0.limit, retry_after) };
        match taken {
            Some(taken) => Hold::local(decision(pending.cost, Some(0)), Taken::Here(taken)),
            None => Hold::denied(decision(0, retry_after)),
        }
    }

    /// Takes a hold from the server: at once over the connection that all share, so that a free key never waits for a place; else
    /// waiting, over one of its own; or in this process's queue, where the server keeps none. Notes that it was denied.
    async fn take_there(
        &self,
        renewer: &HoldRenewer,
        mut pending: PendingHold,
        request: &HoldRequest<'_>,
        wait: &Wait,
        last_denial: &mut Option<Decision>,
    ) -> Result<Hold, Error> {
        let (upstream, key) = (renewer.upstream(), Arc::clone(&pending.name.key));
        let (mut deadline, mut poll) = (request.deadline, None);
        loop {
            if poll.is_none() && request.waits() && pending.may_fit() && upstream.is_scripted(&key) {
                poll = self.0.client.fair_queue.turn_at_once(&key).map(Poll::new);
                if poll.is_none() {
                    poll = self.turn_in_line(renewer, &pending, wait).await?.map(Poll::new);
                    if poll.is_none() && wait.is_over() {
                        let looked = self.look_there(upstream, &pending, None).await?;
                        return Ok(Hold::denied(Decision { granted: 0, ..looked }));
                    }
                    deadline = deadline.filter(|_| poll.is_none()); // after a wait, the timeout alone counts
                }
            }
            let (held, sent) = ask_at_once(renewer, &pending, deadline).await?;
            if held.granted > 0 {
                return Ok(pending.kept(renewer, &held, sent));
            }
            let denied = pending.decision(&held);
            *last_denial = Some(denied);
            if held.retry_after.is_none() || wait.is_over() {
                return Ok(Hold::denied(denied));
            }
            match wait_there(renewer, &pending, wait).await {
                Some(Err(Error::Refused(text))) if text == WAITS_ELSEWHERE => return Ok(Hold::denied(denied)),
                Some(waited) => match waited? {
                    Waited::Granted(held, renewed) => return Ok(pending.kept(renewer, &held, renewed)),
                    Waited::Denied(held) => return Ok(Hold::denied(pending.decision(&held))),
                    // It ended before it was renewed.
                    Waited::Lost => {}
                },
                None if wait.is_over() => return Ok(Hold::denied(denied)),
                // One of the callers that wait for a key here polls.
                None => match &mut poll {
                    Some(poll) => poll.pause(upstream, &pending, held.retry_after, wait).await,
                    None => poll = self.0.client.fair_queue.turn(&key, wait).await.map(Poll::new),
                },
            }
            pending.renew_id()?; // an id is for one hold
            deadline = None;
        }
    }

    /// The turn to poll, after all who came before. `None` when it has not come in time, and at once for a caller that
    /// asks again for a live hold: nobody waits for its own place.
    async fn turn_in_line(
        &self,
        renewer: &HoldRenewer,
        pending: &PendingHold,
        wait: &Wait,
    ) -> Result<Option<Turn>, Error> {
        if !pending.is_own && renewed(renewer.upstream(), pending).await?.is_some() {
            return Ok(None);
        }
        Ok(self.0.client.fair_queue.turn(&pending.name.key, wait).await)
    }
}

/// Asks without waiting, at most twice, as the id takes nothing twice. What is granted to nobody is released.
async fn ask_at_once(
    renewer: &HoldRenewer,
    pending: &PendingHold,
    deadline: Option<Instant>,
) -> Result<(HoldReply, Moment), Error> {
    let upstream = renewer.upstream();
    let deadline = upstream.time_to_decide(&pending.name.key, pending.timeout, deadline)?;
    let first = ask_once(renewer, pending, deadline).await?;
    let (settled, sent) = match first {
        (Settled { reply: Err(_), .. }, _) => {
            let in_doubt = InDoubt { renewer, name: pending.released_in_doubt() };
            let second = ask_once(renewer, pending, deadline).await?;
            if second.0.reply.is_ok() {
                in_doubt.settle();
            }
            second
        }
        first => first,
    };
    Ok((upstream.understood(settled.reply, &pending.name.key)?.hold()?, sent))
}

async fn ask_once(renewer: &HoldRenewer, pending: &PendingHold, deadline: Instant) -> Result<(Settled, Moment), Error> {
    let late = {
        let (renewer, name) = (renewer.clone(), pending.released_in_doubt());
        Box::new(move |settled: Settled| {
            if let Some(name) = name.filter(|_| may_be_granted(&settled.reply)) {
                renewer.release(name);
            }
        })
    };
    let sent = Moment::now();
    let settled = renewer.upstream().exchange(Batch::One(pending.command(None)), deadline, Owner::Settle(late)).await?;
    Ok((settled, sent))
}

fn may_be_granted(reply: &Result<Reply, Failure>) -> bool {
    match reply {
        Err(_) => true,
        Ok(reply) => reply.hold().is_ok_and(|held| held.granted > 0),
    }
}

enum Waited {
    /// And renewed, by what was sent at a moment.
    Granted(HoldReply, Moment),
    Denied(HoldReply),
    /// It ended before it could be renewed.
    Lost,
}

/// Waits for one's turn on the server; `None` where nobody can, there is no place, or the client was closed.
async fn wait_there(renewer: &HoldRenewer, pending: &PendingHold, wait: &Wait) -> Option<Result<Waited, Error>> {
    let upstream = renewer.upstream();
    let in_doubt = InDoubt { renewer, name: pending.released_in_doubt() };
    let waited = upstream.wait(&pending.name.key, wait, |left| pending.command(Some(left.min(MAX_WAIT)))).await;
    let held = match waited.map(|waited| waited.and_then(|reply| reply.hold())) {
        Some(Ok(held)) => held,
        Some(Err(error @ Error::Unavailable(_))) => return Some(Err(error)),
        None if wait.is_closed() => return None,
        refused => {
            in_doubt.settle();
            return refused.map(|refused| refused.map(Waited::Denied));
        }
    };
    if held.granted == 0 {
        in_doubt.settle();
        return Some(Ok(Waited::Denied(held)));
    }
    // The time to live runs from the grant, which may be older than its reply.
    let renewed = renewed(upstream, pending).await;
    if renewed.is_ok() {
        in_doubt.settle();
    }
    Some(renewed.map(|renewed| renewed.map_or(Waited::Lost, |sent| Waited::Granted(held, sent))))
}

/// Renews a hold that was granted after a wait: when that was sent; `None` if it has ended.
async fn renewed(upstream: &Arc<Upstream>, pending: &PendingHold) -> Result<Option<Moment>, Error> {
    let sent = Moment::now();
    match upstream.insist(pending.name.renew(), sent.instant + pending.timeout, None).await? {
        Reply::Array(each) if each.len() == 1 => Ok((each[0].natural()? == 1).then_some(sent)),
        reply => Err(Error::Unavailable(Cause::unclear(&reply))),
    }
}
