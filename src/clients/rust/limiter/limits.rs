//! Several rates for each key, from one text.

use std::time::Duration;

use futures_util::future::try_join_all;

use super::{Limiter, LimiterBuilder};
use crate::client::Client;
use crate::clock::ms;
use crate::decision::Decisions;
use crate::error::Error;
use crate::mode::{Mode, OnFailure};
use crate::quota::Quota;
use crate::rates;
use crate::request::Request;

/// Several rates that hold for each key, such as `100/hour; 5/second`: one decision, in the order of the text.
///
/// On the server, each rate has a key of its own: `{user:1}:3600000` and `{user:1}:1000` of the key `user:1`. A key with a
/// hash tag, `{tenant}:1`, keeps it, and gets no other one.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), swlimit_client::Error> {
/// use swlimit_client::Client;
///
/// let limits = Client::local().limits("3/hour; 2/second").build()?;
/// assert!(limits.allow("user:1").await?.granted());
/// assert!(limits.allow("user:1").await?.granted());
/// let denied = limits.allow("user:1").await?;
/// assert!(!denied.granted());
/// assert_eq!(denied.each()[0].remaining(), Some(1));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Limits(Vec<Limiter>);

/// Builder for [`Limits`].
#[derive(Clone, Debug)]
#[must_use = "nothing is built yet"]
pub struct LimitsBuilder(Result<Vec<LimiterBuilder>, Error>);

impl LimitsBuilder {
    /// [`LimiterBuilder::strict`], of each.
    pub fn strict(self) -> Self {
        self.each(LimiterBuilder::strict)
    }

    /// [`LimiterBuilder::mode`], of each.
    pub fn mode(self, mode: Mode) -> Self {
        self.each(|limiter| limiter.mode(mode))
    }

    /// [`LimiterBuilder::on_failure`], of each.
    pub fn on_failure(self, on_failure: OnFailure) -> Self {
        self.each(|limiter| limiter.on_failure(on_failure))
    }

    /// [`LimiterBuilder::local_share`], of each.
    pub fn local_share(self, share: f64) -> Self {
        self.each(|limiter| limiter.local_share(share))
    }

    /// [`LimiterBuilder::warm_up`], of each.
    pub fn warm_up(self, length: Duration) -> Self {
        self.each(|limiter| limiter.warm_up(length))
    }

    /// [`LimiterBuilder::cold`], of each.
    pub fn cold(self, parts: u64) -> Self {
        self.each(|limiter| limiter.cold(parts))
    }

    fn each(self, change: impl Fn(LimiterBuilder) -> LimiterBuilder) -> Self {
        Self(self.0.map(|limiters| limiters.into_iter().map(change).collect()))
    }

    /// The limits.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a text that is no rates, and as [`LimiterBuilder::build`].
    pub fn build(self) -> Result<Limits, Error> {
        self.0?.into_iter().map(LimiterBuilder::build).collect::<Result<_, _>>().map(Limits)
    }
}

impl Client {
    /// Rates such as `100/hour; 5/second`, each for any number of keys, in one decision: `limit/unit` or `limit per k
    /// unit`, of the units ms, second, minute, hour and day.
    pub fn limits(&self, rates: &str) -> LimitsBuilder {
        LimitsBuilder(rates::all(rates).map(|quotas| quotas.into_iter().map(|quota| self.limiter(quota)).collect()))
    }
}

impl Limiter {
    /// A limiter of one rate, such as `100/minute`, on the server at a URL, once it has answered; with the default
    /// settings. Its [`client`](Self::client) can be closed.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a text that is no rate, and as [`Client::connect`].
    pub async fn from_url(url: &str, rate: &str) -> Result<Self, Error> {
        let quota: Quota = rate.parse()?;
        Client::connect(url).await?.limiter(quota).build()
    }
}

impl Limits {
    /// Rates such as `100/hour; 5/second` on the server at a URL, once it has answered; with the default settings. Their
    /// [`client`](Self::client) can be closed.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a text that is no rates, and as [`Client::connect`].
    pub async fn from_url(url: &str, rates: &str) -> Result<Self, Error> {
        rates::all(rates)?;
        Client::connect(url).await?.limits(rates).build()
    }

    /// The client they belong to.
    pub fn client(&self) -> Client {
        self.0[0].client()
    }

    /// The quota of each.
    pub fn quotas(&self) -> impl Iterator<Item = &Quota> {
        self.0.iter().map(Limiter::quota)
    }

    /// Decides a request by all limits, and counts it in all of them if all grant it, as [`Client::allow_all`] does: the
    /// whole cost, or nothing.
    ///
    /// # Errors
    /// As [`Client::allow_all`], and [`Error::Invalid`] for the empty key.
    pub async fn allow<'a>(&self, request: impl Into<Request<'a>>) -> Result<Decisions, Error> {
        let request = request.into();
        let names = self.names(&request)?;
        self.client().allow_all(&self.requests(&names, request).collect::<Vec<_>>()).await
    }

    /// The same decision without counting.
    ///
    /// # Errors
    /// As [`allow`](Self::allow).
    pub async fn peek<'a>(&self, request: impl Into<Request<'a>>) -> Result<Decisions, Error> {
        let request = request.into();
        let names = self.names(&request)?;
        let each = self.requests(&names, request).map(|(limiter, request)| limiter.peek(request));
        try_join_all(each).await.map(Decisions::of)
    }

    /// Counts a request in all limits, whatever they say, as [`Limiter::record`] does; granted if it was within all.
    ///
    /// # Errors
    /// As [`Limiter::record`], and as [`allow`](Self::allow). Some may have counted it then.
    pub async fn record<'a>(&self, request: impl Into<Request<'a>>) -> Result<Decisions, Error> {
        let request = request.into();
        let names = self.names(&request)?;
        let each = self.requests(&names, request).map(|(limiter, request)| limiter.record(request));
        try_join_all(each).await.map(Decisions::of)
    }

    /// Gives units back in all limits, as [`Limiter::refund`] does. How many were given back in each.
    ///
    /// # Errors
    /// As [`Limiter::refund`], and as [`allow`](Self::allow). Some may have given back then.
    pub async fn refund<'a>(&self, request: impl Into<Request<'a>>) -> Result<Vec<u64>, Error> {
        let request = request.into();
        let names = self.names(&request)?;
        try_join_all(self.requests(&names, request).map(|(limiter, request)| limiter.refund(request))).await
    }

    /// Forgets all that was counted for a key, in all limits; whether there was anything.
    ///
    /// # Errors
    /// As [`refund`](Self::refund).
    pub async fn reset<K: AsRef<[u8]> + ?Sized>(&self, key: &K) -> Result<bool, Error> {
        let names = self.names(&Request::new(key))?;
        let each = self.0.iter().zip(&names).map(|(limiter, name)| limiter.reset(name));
        try_join_all(each).await.map(|forgotten| forgotten.contains(&true))
    }

    /// The request for each limiter.
    fn requests<'a>(
        &'a self,
        names: &'a [Vec<u8>],
        request: Request<'a>,
    ) -> impl Iterator<Item = (&'a Limiter, Request<'a>)> {
        self.0.iter().zip(names).map(move |(limiter, key)| (limiter, Request { key, ..request }))
    }

    /// The keys of the limits, as the limiters are given them.
    ///
    /// # Errors
    /// [`Error::Invalid`] for the empty key and for a partial request.
    fn names(&self, request: &Request<'_>) -> Result<Vec<Vec<u8>>, Error> {
        if request.key.is_empty() {
            return Err(Error::Invalid("key must not be empty".into()));
        }
        if request.partial {
            return Err(Error::Invalid("several limits at once grant the whole cost or nothing".into()));
        }
        let mut key = request.key.to_vec();
        if !has_hash_tag(&self.0[0].key(request.key)) {
            key.insert(0, b'{');
            key.push(b'}');
        }
        key.push(b':');
        let name = |quota: &Quota| [key.as_slice(), ms(quota.window()).to_string().as_bytes()].concat();
        Ok(self.quotas().map(name).collect())
    }
}

/// Whether a cluster finds the slot of a key by a part of it.
pub(crate) fn has_hash_tag(key: &[u8]) -> bool {
    let mut behind = key.splitn(2, |byte| *byte == b'{').skip(1);
    behind.next().and_then(|tag| tag.iter().position(|byte| *byte == b'}')).is_some_and(|length| length > 0)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[tokio::test]
    async fn keys_are_named_as_the_vectors_say() {
        let vectors: Value =
            serde_json::from_str(include_str!("../../../../tests/conformance/vectors/rates.json")).unwrap();
        for case in vectors["names"].as_array().unwrap() {
            let client = Client::builder().prefix(case["prefix"].as_str().unwrap()).local().unwrap();
            let limits = client.limits(&format!("1/{}ms", case["window_ms"])).build().unwrap();
            match limits.names(&Request::new(case["key"].as_str().unwrap())) {
                Ok(names) => {
                    let name = String::from_utf8(limits.0[0].key(&names[0]).into_owned()).unwrap();
                    assert_eq!(name, case["name"], "{case}");
                }
                Err(error) => assert_eq!(error.to_string(), case["error"], "{case}"),
            }
        }
    }
}
