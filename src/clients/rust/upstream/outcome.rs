//! What the caller of an exchange got before the reply came. A late reply is made equal to it.

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::exchange::Owner;

/// The caller's side. Dropped without a decision, the caller has gone.
#[derive(Default)]
pub(crate) struct Outcome {
    told: Mutex<Option<oneshot::Sender<u64>>>,
    /// The caller may pass after an error.
    keeps_late_grant: bool,
}

impl Outcome {
    /// Of a request with [`keep_late_grant`](crate::Request::keep_late_grant), or without.
    pub fn keeping(keeps_late_grant: bool) -> Self {
        Self { keeps_late_grant, ..Self::default() }
    }

    /// The owner of the exchange that begins now. One before it has been answered.
    pub fn owner(&self) -> Owner {
        let (decided, told) = oneshot::channel();
        *self.told.lock() = Some(decided);
        Owner::Caller(told)
    }

    /// The caller got so many units: what a late reply grants beyond them goes back.
    pub fn decided(&self, granted: u64) {
        if let Some(told) = self.told.lock().take() {
            let _ = told.send(granted);
        }
    }

    /// The caller got an error.
    pub fn failed(&self) {
        self.decided(told_of_all(self.keeps_late_grant));
    }
}

/// What callers of several limits got: all that they asked for, or nothing.
pub(crate) fn told_of_all(is_granted: bool) -> u64 {
    if is_granted {
        u64::MAX
    } else {
        0
    }
}
