//! A question about one key: the shape of every request, whatever its protocol.

use std::borrow::Cow;
use std::time::Duration;

use swlimit_client::{HoldRequest, Request};
use tokio::time::Instant;

use crate::config::limits::Limit;

/// A question about one key.
#[derive(Clone, Debug, PartialEq)]
pub struct Question<'a> {
    pub operation: Operation,
    pub role: Role,
    pub limit: Cow<'a, Limit>,
    pub key: String,
    /// Identifies the request that holds units.
    pub id: Option<Cow<'a, [u8]>>,
    /// Units; of a PEEK, those of the request that it stands for.
    pub hits: u64,
    /// Grant part of the hits where the limit has too few left.
    pub partial: bool,
    /// Wait at most this long to be granted.
    pub wait: Option<Duration>,
    /// The units were used this long ago.
    pub age: Option<Duration>,
    /// The units count since then, in Unix ms of the server's clock.
    pub since: Option<u64>,
    /// A proxy asks, which may let the request pass after an error: units that the server grants later stay counted.
    pub is_proxys: bool,
}

#[cfg(test)]
thread_local! {
    /// How many questions were compared with each other.
    pub static COMPARISONS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

impl<'a> Question<'a> {
    /// Asks to count the hits, and denies the request if the limit does.
    pub fn new(limit: Cow<'a, Limit>, key: String, hits: u64) -> Self {
        Self {
            operation: Operation::Allow,
            role: Role::Decides,
            limit,
            key,
            id: None,
            hits,
            partial: false,
            wait: None,
            age: None,
            since: None,
            is_proxys: false,
        }
    }

    /// The question on its own, for work that outlives the request.
    pub fn into_owned(self) -> Question<'static> {
        let (limit, id) = (Cow::Owned(self.limit.into_owned()), self.id.map(|id| Cow::Owned(id.into_owned())));
        Question { limit, id, ..self }
    }

    /// The client's request for a window or period, which gives up at this deadline.
    pub(super) fn request(&self, deadline: Option<Instant>) -> Request<'_> {
        let request = Request::new(&self.key).cost(self.hits);
        let request = if self.partial { request.partial() } else { request };
        let request = if self.is_proxys { request.keep_late_grant() } else { request };
        let request = self.age.map_or(request, |age| request.age(age));
        let request = self.since.map_or(request, |since| request.since(since));
        deadline.map_or(request, |deadline| request.deadline(deadline))
    }

    /// The client's request for a hold.
    pub(super) fn hold_request(&self, deadline: Option<Instant>) -> HoldRequest<'_> {
        let request = HoldRequest::new(&self.key).cost(self.hits).wait(self.wait.unwrap_or_default());
        let request = deadline.map_or(request, |deadline| request.deadline(deadline));
        self.id.as_ref().map_or(request, |id| request.id(id))
    }

    /// Equal questions are one.
    pub(super) fn equality(&self) -> (&str, Operation, Role, Option<&[u8]>) {
        (&self.key, self.operation, self.role, self.id.as_deref())
    }

    pub(super) fn is_equal(&self, other: &Self) -> bool {
        #[cfg(test)]
        COMPARISONS.with(|count| count.set(count.get() + 1));
        self.equality() == other.equality()
    }
}

/// What a question does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Count the hits if all limits of the request grant them.
    Allow,
    /// Count nothing.
    Peek,
    /// Count the hits whatever the limit says.
    Record,
    /// Give the hits back.
    Refund,
}

/// What a denial means for the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// The request is denied.
    Decides,
    /// The request is denied if all of this role deny it.
    Quota,
    /// Nothing.
    Shadow,
}
