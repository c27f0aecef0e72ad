//! What commands ask of the queues.

use swlimit_hold::Holds;

use super::grants;
use super::queues::{WaiterId, Wish};
use super::state::{monotonic_clock, state, Client, Outcome};
use super::turns::{set_timer, Turns};
use crate::configuration::MAX_WAITING;
use crate::error::Error;
use crate::server::{Call, Reply, Text};
use crate::statistics;

impl<'a> Call<'a> {
    /// When the first waiter of a key is due, in Unix ms; `None` when nobody waits, and once for the call that a turn makes.
    /// Ask before opening a key, which may raise an event whose subscriber calls a command, too.
    pub fn due(&self, name: &Text) -> Option<u64> {
        if statistics::WAITING.get() == 0 {
            return None;
        }
        let mut state = state();
        let queue = state.queues.find(self.database(), name.bytes())?;
        let is_turn = state.granting.take_if(|granting| *granting == queue).is_some();
        state.queues.due(queue).filter(|_| !is_turn)
    }

    /// Block the client at the end of the key's queue for at most `timeout` ms. `due` is when its wish may be granted if
    /// nothing else is counted, in Unix ms. A hold's id waits once: a new waiter replaces the old one and keeps its place.
    pub fn wait(&self, name: &Text, wish: Wish, timeout: u64, due: u64) -> Result<Reply, Error> {
        let database = self.database();
        let before = match &wish {
            Wish::Hold { id, .. } => waiter_for(database, name, id),
            Wish::Units(_) => None,
        };
        if before.is_none() && state().queues.len() as u64 >= MAX_WAITING.get() {
            return Err(Error::TooManyWaiting);
        }
        let (user, words) = (self.user_name(), self.arguments().iter().map(Text::share).collect());
        let client = self.block::<Turns>();
        let deadline = monotonic_clock() + timeout;
        if let Some(waiter) = before {
            grants::replace(waiter);
        }
        let mut state = state();
        let id = match before {
            Some(id) => {
                state.queues.replace(id, wish, deadline);
                id
            }
            None => state.queues.push(database, &name.share(), wish, deadline, due),
        };
        state.clients.insert(client, Client { waiter: Some(id), user, words, outcome: None });
        state.by_waiter.insert(id, client);
        statistics::WAITING.add(1);
        drop(state);
        set_timer(0);
        Ok(Reply::Blocked)
    }

    /// Deny the clients that wait for the holds of these ids, if the key can hold any. Opens the key.
    pub fn end_waits(&self, name: &'a Text, holds: &[Text]) -> Result<(), Error> {
        if statistics::WAITING.get() == 0 {
            return Ok(());
        }
        self.write::<Holds>(name)?;
        let database = self.database();
        for hold in holds {
            let waiter = waiter_for(database, name, hold.bytes());
            let denied = waiter.map(|waiter| grants::deny(**self, self.clock(), waiter));
            if denied == Some(true) {
                self.notify(c"swlimit.denied", name);
            }
        }
        set_timer(0);
        Ok(())
    }

    /// Marks a hold as observed, so that a disconnect of the client that it was granted to does not release it.
    pub fn hold_is_known(&self, name: &Text, hold: &[u8]) {
        let mut state = state();
        if state.unsent + state.refunds.len() == 0 {
            return;
        }
        let key = (self.database(), name.bytes());
        state.refunds.retain(|refund| !refund.is_of(key, hold));
        for client in state.clients.values_mut() {
            if let Some(Outcome::Granted(_, refund)) = &mut client.outcome {
                refund.take_if(|refund| refund.is_of(key, hold));
            }
        }
    }
}

/// Who waits for the hold of this id.
fn waiter_for(database: i32, name: &Text, hold: &[u8]) -> Option<WaiterId> {
    let state = state();
    state.queues.waiter_for(state.queues.find(database, name.bytes())?, hold)
}
