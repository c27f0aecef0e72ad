//! From questions to answers: what of a plan is asked when, of whom.

mod limiters;
mod plan;

use std::future::Future;
use std::pin::{pin, Pin};
use std::time::Duration;

use futures_util::future::{join_all, try_join_all};
use swlimit_client::{self as client, Request, Way};
use tokio::time::{timeout_at, Instant};

use crate::keys;
use crate::limits::{Deciding, WhenAway};
pub use limiters::{is_cluster, Limiters};
pub use plan::{retry_after, Answer, Ask, Descriptor, How, Plan, Role};

/// Why there is no answer.
#[derive(Debug)]
pub enum Unanswered {
    /// The server is away, and the limit leaves it to the caller what that means.
    Away,
    /// The server refuses: it lacks the module, the key is something else, the user may not.
    Refused(client::Error),
}

impl Limiters {
    /// The answers to all questions of a plan, in their order.
    pub async fn answers(&self, plan: &Plan<'_>) -> Result<Vec<Answer>, Unanswered> {
        let (answers, counted) = (vec![None; plan.asks.len()], Vec::new());
        let mut asked = Asked { limiters: self, plan, began: Instant::now(), answers, counted };
        let result = asked.all().await;
        if result.is_err() || asked.is_denied() {
            asked.give_back().await;
        }
        result?;
        let missing = || Unanswered::Refused(client::Error::Answer("it has fewer decisions than keys".into()));
        asked.answers.into_iter().collect::<Option<_>>().ok_or_else(missing)
    }

    /// The questions that one command answers together: at best all. Alone are those that this process answers: before
    /// them, where it can give back for certain, and behind them, where it may have told the server already. Apart are
    /// those that no command takes together.
    fn groups(&self, plan: &Plan) -> Vec<Vec<usize>> {
        let mut groups: Vec<Group> = Vec::new();
        for at in plan.together() {
            let Ask { limit, key, .. } = &plan.asks[at];
            let turn = match limit.manner.deciding {
                Deciding::OnlyLocal => Turn::Before,
                Deciding::Direct | Deciding::Denials | Deciding::Leases => Turn::Together,
                Deciding::Background => Turn::Behind,
            };
            let tag = if self.clustered { keys::hash_tag(key) } else { "" };
            let new = Group { turn, strict: limit.strict, tag, places: vec![at] };
            match groups.iter_mut().find(|group| turn == Turn::Together && group.takes(&new)) {
                Some(group) => group.places.push(at),
                None => groups.push(new),
            }
        }
        groups.sort_by_key(|group| group.turn);
        groups.into_iter().map(|group| group.places).collect()
    }
}

struct Group<'a> {
    turn: Turn,
    strict: bool,
    tag: &'a str,
    places: Vec<usize>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Turn {
    Before,
    Together,
    Behind,
}

impl Group<'_> {
    fn takes(&self, other: &Self) -> bool {
        (self.turn, self.strict, self.tag) == (other.turn, other.strict, other.tag)
    }
}

/// A plan of which some is answered.
struct Asked<'a> {
    limiters: &'a Limiters,
    plan: &'a Plan<'a>,
    began: Instant,
    answers: Vec<Option<Answer>>,
    /// Places of what was counted because all that was asked until then was granted.
    counted: Vec<usize>,
}

impl Asked<'_> {
    /// Ask everything, in its order; once the request is denied, without counting.
    async fn all(&mut self) -> Result<(), Unanswered> {
        self.each(self.plan.before().collect()).await?;
        for group in self.limiters.groups(self.plan) {
            if self.is_denied() {
                self.peeks(group).await?;
                continue;
            }
            self.together(&group).await?;
            if !self.is_denied() {
                self.counted.extend(group);
            }
        }
        let behind = self.plan.behind().collect();
        if self.is_denied() {
            self.peeks(behind).await
        } else {
            self.each(behind).await
        }
    }

    /// Whether the request is denied, as far as is known.
    fn is_denied(&self) -> bool {
        self.plan.is_denied(|ask| self.answers[ask].is_some_and(|answer| !answer.granted))
    }

    /// Ask each by itself, all at the same time.
    async fn each(&mut self, places: Vec<usize>) -> Result<(), Unanswered> {
        if let [only] = *places {
            let ask = &self.plan.asks[only]; // most often; it needs nothing that keeps several
            self.answers[only] = Some(self.alone(ask, ask.how).await?);
            return Ok(());
        }
        let asking = places.iter().map(|at| self.alone(&self.plan.asks[*at], self.plan.asks[*at].how));
        let answers = try_join_all(asking).await?;
        self.keep(&places, answers);
        Ok(())
    }

    /// Ask without counting anything.
    async fn peeks(&mut self, places: Vec<usize>) -> Result<(), Unanswered> {
        let answers = try_join_all(places.iter().map(|at| self.alone(&self.plan.asks[*at], How::Peek))).await?;
        self.keep(&places, answers);
        Ok(())
    }

    fn keep(&mut self, places: &[usize], answers: Vec<Answer>) {
        for (at, answer) in places.iter().zip(answers) {
            self.answers[*at] = Some(answer);
        }
    }

    /// Ask one question.
    async fn alone(&self, ask: &Ask<'_>, how: How) -> Result<Answer, Unanswered> {
        let limiter = self.limiters.of(&ask.limit);
        let request = Request::of(&ask.key).cost(ask.hits);
        let asking = pin!(async {
            match how {
                How::Allow => limiter.allow(request).await,
                How::Peek => limiter.peek(request).await,
                How::Record => limiter.record(request).await,
                How::Refund => {
                    limiter.refund(request).await?;
                    limiter.peek(request.cost(1)).await
                }
            }
        });
        let decision = match self.in_time(asking).await {
            Ok(decision) => decision,
            Err(client::Error::Away(_)) => return self.unseen(ask),
            Err(error) => return Err(Unanswered::Refused(error)),
        };
        let answer = self.answer(ask, &decision)?;
        Ok(if how == How::Refund { Answer { granted: true, ..answer } } else { answer })
    }

    /// Ask so that all grant or nothing is counted.
    async fn together(&mut self, group: &[usize]) -> Result<(), Unanswered> {
        if let [only] = group {
            return self.each(vec![*only]).await;
        }
        let asks: Vec<_> = group.iter().map(|at| &self.plan.asks[*at]).collect();
        let limiters: Vec<_> = asks.iter().map(|ask| self.limiters.of(&ask.limit)).collect();
        let requests: Vec<_> =
            limiters.iter().zip(&asks).map(|(limiter, ask)| (limiter, Request::of(&ask.key).cost(ask.hits))).collect();
        let asking = pin!(self.limiters.client.allow_all(&requests));
        let answers = match self.in_time(asking).await {
            Ok(decisions) => {
                let each = asks.iter().zip(decisions.each());
                self.block(each.clone().map(|(ask, decision)| (*ask, decision))).await;
                each.map(|(ask, decision)| self.answer(ask, decision)).collect::<Result<_, _>>()?
            }
            Err(client::Error::Away(_)) => asks.iter().map(|ask| self.unseen(ask)).collect::<Result<_, _>>()?,
            Err(error) => return Err(Unanswered::Refused(error)),
        };
        self.keep(group, answers);
        Ok(())
    }

    /// Begin the blocks of limits that denied, which a decision upon several limits does not do.
    async fn block<'b>(&self, decided: impl Iterator<Item = (&'b Ask<'b>, &'b client::Decision)>) {
        let denied = decided.filter(|(_, decision)| !decision.granted() && decision.way() == Way::Server);
        let blocking = denied.filter_map(|(ask, _)| Some((ask, Duration::from_millis(ask.limit.block?))));
        let blocking = blocking.map(|(ask, duration)| {
            let (limiter, key) = (self.limiters.of(&ask.limit), ask.key.clone());
            async move {
                if let Err(error) = limiter.block_unless_blocked(&key, duration).await {
                    tracing::warn!(key, %error, "a block was not begun");
                }
            }
        });
        self.see_to(blocking.collect()).await;
    }

    /// Give back what was counted for a request that others denied.
    async fn give_back(&self) {
        let age = self.began.elapsed() + self.limiters.timeout;
        let giving_back = self.counted.iter().map(|at| {
            let Ask { limit, key, hits, .. } = &self.plan.asks[*at];
            let (limiter, key, hits) = (self.limiters.of(limit), key.clone(), *hits);
            // In the background they are the youngest, which the server was hardly told of.
            let is_told = limit.manner.deciding != Deciding::Background;
            async move {
                let units = Request::of(&key).cost(hits);
                if let Err(error) = limiter.refund(if is_told { units.age(age) } else { units }).await {
                    tracing::warn!(key, %error, "units of a denied request were not given back");
                }
            }
        });
        self.see_to(giving_back.collect()).await;
    }

    /// Do what has to be done; the request waits for it as long as it has time.
    async fn see_to(&self, doing: Vec<impl Future<Output = ()> + Send + 'static>) {
        if !doing.is_empty() {
            let _ = timeout_at(self.deadline(), tokio::spawn(join_all(doing))).await;
        }
    }

    fn deadline(&self) -> Instant {
        // The client ends a question by itself a moment earlier, and then decides better.
        self.began + self.limiters.timeout + Duration::from_millis(5)
    }

    /// What the server says within the request's time, however often it is asked. Pinned, for it is large to be moved.
    async fn in_time<T>(
        &self,
        asking: Pin<&mut impl Future<Output = Result<T, client::Error>>>,
    ) -> Result<T, client::Error> {
        timeout_at(self.deadline(), asking).await.unwrap_or_else(|_| Err(client::Error::Away("too slow".into())))
    }

    fn answer(&self, ask: &Ask, decision: &client::Decision) -> Result<Answer, Unanswered> {
        if decision.way() == Way::Away && ask.limit.manner.when_away == WhenAway::Error {
            return Err(Unanswered::Away);
        }
        Ok(decision.into())
    }

    /// The answer where the client has none: the failure policy's, without a window in this process.
    fn unseen(&self, ask: &Ask) -> Result<Answer, Unanswered> {
        let granted = match ask.limit.manner.when_away {
            WhenAway::Error => return Err(Unanswered::Away),
            WhenAway::Deny => false,
            WhenAway::Allow | WhenAway::Local => true,
        };
        let window = Duration::from_millis(ask.limit.quota.geometry.window());
        let wait = if granted { Duration::ZERO } else { window };
        Ok(Answer { granted, remaining: 0, retry_after: Some(wait), reset_after: window, way: Way::Away })
    }
}
