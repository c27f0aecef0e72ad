//! The holders of a key's units, and commands on their holds by id.

use std::time::Duration;

use super::request::check_ids;
use crate::client::Client;
use crate::clock::ms;
use crate::error::{Cause, Error};
use crate::protocol::{Bytes, Command};
use crate::transport::Reply;

/// A holder of a key's units.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The id that the holder chose.
    pub id: Vec<u8>,
    /// Units held.
    pub units: u64,
    /// For how long they have been held.
    pub held_for: Duration,
    /// When the hold ends unless it is renewed.
    pub expires_after: Duration,
    /// The fencing token.
    pub token: u64,
}

impl Holder {
    fn of(reply: &Reply) -> Result<Self, Error> {
        let unclear = || Error::Unavailable(Cause::unclear(reply));
        let Reply::Array(fields) = reply else { return Err(unclear()) };
        let [Reply::Bytes(id), units, held, left, token] = fields.as_slice() else { return Err(unclear()) };
        let ms = |reply: &Reply| reply.natural().map(Duration::from_millis);
        Ok(Self {
            id: id.clone(),
            units: units.natural()?,
            held_for: ms(held)?,
            expires_after: ms(left)?,
            token: token.natural()?,
        })
    }
}

impl Client {
    /// The holders of a key's units, as [`HoldLimiter::holders`](crate::HoldLimiter::holders) says.
    ///
    /// # Errors
    /// [`Error::Unavailable`], [`Error::Refused`], [`Error::ModuleMissing`], [`Error::NoServer`].
    pub async fn holders<K: AsRef<[u8]> + ?Sized>(&self, key: &K, count: usize) -> Result<Vec<Holder>, Error> {
        let key = self.0.key(key.as_ref());
        let command = Command::Holders { key: key.as_ref().into(), count: count as u64 };
        let reply = self.ask("holders", command).await?;
        let Reply::Array(holders) = &reply else { return Err(Error::Unavailable(Cause::unclear(&reply))) };
        holders.iter().map(Holder::of).collect()
    }

    /// Ends holds of a key by their ids, any client's; the units that were freed. It is for operators: a
    /// [`Hold`](crate::Hold) is released when it is dropped.
    ///
    /// # Errors
    /// As [`holders`](Self::holders).
    pub async fn release<K: AsRef<[u8]> + ?Sized>(&self, key: &K, ids: &[&[u8]]) -> Result<u64, Error> {
        check_ids(ids)?;
        let key = self.0.key(key.as_ref());
        let command =
            Command::Release { key: key.as_ref().into(), ids: ids.iter().copied().map(Bytes::from).collect() };
        self.ask("release", command).await?.natural()
    }

    /// Renews holds of a key by their ids, for a caller that holds for others; whether each is live. A
    /// [`Hold`](crate::Hold) renews itself.
    ///
    /// # Errors
    /// As [`release`](Self::release).
    pub async fn renew<K: AsRef<[u8]> + ?Sized>(
        &self,
        key: &K,
        ttl: Duration,
        ids: &[&[u8]],
    ) -> Result<Vec<bool>, Error> {
        check_ids(ids)?;
        let key = self.0.key(key.as_ref());
        let ids = ids.iter().copied().map(Bytes::from).collect();
        match self.ask("renew", Command::Renew { key: key.as_ref().into(), ttl: ms(ttl), ids }).await? {
            Reply::Array(each) => each.iter().map(|one| Ok(one.natural()? == 1)).collect(),
            reply => Err(Error::Unavailable(Cause::unclear(&reply))),
        }
    }
}
