//! Clients of ACQUIRE and HOLD that wait for their turn: [`queues`] orders them, [`turns`] says when a wait ends and [`grants`]
//! how, [`calls`] is what commands ask, and [`state`] what all of them share.
//!
//! A single timer runs at the earliest instant at which a queue or a deadline is due. A changed key counts nothing: it
//! only makes the key's queue due at once, and the timer runs after the command or transaction has ended. One run of the
//! timer takes a bounded time, so that it does not hold up other clients.

mod calls;
mod grants;
mod queues;
mod state;
mod turns;

pub use queues::Wish;
pub use turns::Turns;
