//! swlimit: server-side sliding-window rate limiting for Redis and Valkey.
//!
//! The arithmetic is in the crates `swlimit_window`, `swlimit_hold` and `swlimit_budget`: functions of state and instant;
//! `swlimit_effect` writes and reads effects. [`arguments`] parses commands, with [`quotas`] for what was parsed before;
//! [`error`] words what they refuse. [`commands`] has one file a command; [`waiting`] lets clients of ACQUIRE and HOLD wait
//! for their turn, and [`denials`] counts denied requests for TOP. [`server`] wraps the module API and holds all `unsafe`
//! code.
//!
//! `#[inline(always)]` marks the functions on the path of every decision: inlined into the command, they take a quarter
//! fewer instructions, 2 to 4 % of the whole command's time (`make bench` counts them).

#![deny(unsafe_code)]

mod arguments;
mod commands;
mod configuration;
mod denials;
mod error;
mod quotas;
#[allow(unsafe_code)]
mod server;
mod statistics;
mod waiting;

use commands::{
    Acquire, Admit, Allow, Apply, Block, Budget as BudgetCommand, Hold, Holders, Info, Mallow, Peek, Record, Refund,
    Release, Renew, Settle, Top, Unblock,
};
use server::Loading;
use swlimit_budget::Budget;
use swlimit_hold::Holds;
use swlimit_window::Entry;
use waiting::Turns;

/// Registers the module's types, commands and settings. On an error the server does not load it.
fn load(loading: &Loading) -> Result<(), String> {
    let settings = configuration::from_load_arguments(loading.arguments())?;
    loading.register_type::<Entry>()?;
    loading.register_type::<Holds>()?;
    loading.register_type::<Budget>()?;
    loading.register::<Allow>()?;
    loading.register::<Acquire>()?;
    loading.register::<Peek>()?;
    loading.register::<Record>()?;
    loading.register::<Refund>()?;
    loading.register::<Block>()?;
    loading.register::<Unblock>()?;
    loading.register::<Info>()?;
    loading.register::<Mallow>()?;
    loading.register::<Top>()?;
    loading.register::<Hold>()?;
    loading.register::<Release>()?;
    loading.register::<Renew>()?;
    loading.register::<Holders>()?;
    loading.register::<BudgetCommand>()?;
    loading.register::<Admit>()?;
    loading.register::<Settle>()?;
    loading.register::<Apply>()?;
    loading.configure(settings)?;
    loading.subscribe::<Turns>(Turns::LISTENER)
}
