//! A connection that is made when it is needed, and made again after it was given up.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use parking_lot::RwLock;

use super::Failure;

type Making<C> = Pin<Box<dyn Future<Output = Result<C, Failure>> + Send>>;

/// One connection of a kind, shared by all who ask for it.
pub(super) struct Kept<C>(Arc<Inner<C>>);

struct Inner<C> {
    make: Box<dyn Fn() -> Making<C> + Send + Sync>,
    /// The connection, with the number of the attempt that made it.
    connection: RwLock<Option<(u64, C)>>,
    /// One attempt at a time.
    turn: tokio::sync::Mutex<()>,
    attempts: AtomicU64,
}

impl<C> Clone for Kept<C> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<C: Clone + Send + Sync + 'static> Kept<C> {
    /// None yet; this is how one is made.
    pub fn new<F>(make: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<C, Failure>> + Send + 'static,
    {
        Self(Arc::new(Inner {
            make: Box::new(move || Box::pin(make())),
            connection: RwLock::new(None),
            turn: tokio::sync::Mutex::new(()),
            attempts: AtomicU64::new(0),
        }))
    }

    /// The connection, and what to call it when it is to be given up.
    ///
    /// An attempt to make one goes on when whoever began it has no more time to wait. Those who wait for an attempt
    /// that fails have failed with it, so that a server that is away is not tried once for each of them.
    pub async fn get(&self) -> Result<(u64, C), Failure> {
        if let Some(kept) = self.current() {
            return Ok(kept);
        }
        let begun = self.0.attempts.load(Ordering::Acquire);
        let kept = self.clone();
        let made = tokio::spawn(async move {
            let _turn = kept.0.turn.lock().await;
            if let Some(kept) = kept.current() {
                return Ok(kept);
            }
            if kept.0.attempts.load(Ordering::Acquire) > begun {
                return Err(Failure::Connection("no connection".into()));
            }
            let made = (kept.0.make)().await;
            let attempt = kept.0.attempts.fetch_add(1, Ordering::AcqRel) + 1;
            let connection = made?;
            *kept.0.connection.write() = Some((attempt, connection.clone()));
            Ok((attempt, connection))
        });
        made.await.unwrap_or_else(|error| Err(Failure::Connection(error.to_string())))
    }

    fn current(&self) -> Option<(u64, C)> {
        self.0.connection.read().clone()
    }

    /// Give up the connection of that name, unless it is gone already.
    pub fn give_up(&self, name: u64) {
        self.0.connection.write().take_if(|(kept, _)| *kept == name);
    }

    /// Give up whatever there is.
    pub fn give_up_any(&self) {
        *self.0.connection.write() = None;
    }
}
