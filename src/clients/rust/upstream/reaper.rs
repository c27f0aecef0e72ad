//! The owner of exchanges that nobody waits for any more.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::mpsc::{unbounded_channel, UnboundedReceiver, UnboundedSender};
use tokio::sync::Notify;

/// An exchange that ends by itself.
type Exchange = BoxFuture<'static, ()>;

/// Sees exchanges through, in one task. They are bounded by what connections may owe, and by the time after which an
/// exchange is given up.
#[derive(Clone, Default)]
pub(crate) struct Reaper(Arc<Inner>);

#[derive(Default)]
struct Inner {
    exchanges: OnceLock<UnboundedSender<Exchange>>,
    account: Arc<Account>,
}

#[derive(Default)]
struct Account {
    owed: AtomicUsize,
    is_settled: Notify,
    /// Nothing is seen through any longer.
    gives_up: Notify,
}

impl Reaper {
    /// Begins the task, unless it runs. To be called within tokio's runtime.
    pub fn begin(&self) {
        self.0.exchanges.get_or_init(|| {
            let (sender, receiver) = unbounded_channel();
            tokio::spawn(reap(receiver, Arc::clone(&self.0.account)));
            sender
        });
    }

    /// Takes over an exchange.
    pub fn take(&self, exchange: Exchange) {
        if let Some(exchanges) = self.0.exchanges.get() {
            self.0.account.owed.fetch_add(1, Ordering::AcqRel);
            if exchanges.send(exchange).is_err() {
                self.0.account.settled(); // the runtime has ended
            }
        }
    }

    /// Gives up what it has not seen through: how many exchanges. Their connections close with them.
    pub fn give_up(&self) -> usize {
        let owed = self.0.account.owed.load(Ordering::Acquire);
        if owed > 0 {
            self.0.account.gives_up.notify_one();
        }
        owed
    }

    /// Waits until it has nothing left to see through.
    pub async fn settled(&self) {
        loop {
            let settled = self.0.account.is_settled.notified();
            if self.0.account.owed.load(Ordering::Acquire) == 0 {
                return;
            }
            settled.await;
        }
    }
}

impl Account {
    fn settled(&self) {
        if self.owed.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.is_settled.notify_waiters();
        }
    }
}

async fn reap(mut exchanges: UnboundedReceiver<Exchange>, account: Arc<Account>) {
    let mut owed = FuturesUnordered::new();
    let mut is_open = true;
    while is_open || !owed.is_empty() {
        tokio::select! {
            biased;
            exchange = exchanges.recv(), if is_open => match exchange {
                Some(exchange) => owed.push(exchange),
                None => is_open = false,
            },
            Some(()) = owed.next(), if !owed.is_empty() => account.settled(),
            () = account.gives_up.notified() => {
                let given_up = std::mem::take(&mut owed);
                (0..given_up.len()).for_each(|_| account.settled());
            }
        }
    }
}
