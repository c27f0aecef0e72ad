//! The server's module API: all calls of it, and all `unsafe` code of the project.
//!
//! The server runs commands and the type's callbacks on its main thread, one at a time, except that it may free values
//! on a background thread. Pointers it hands in are valid until the callback returns.

#[macro_use]
mod api;

mod allocator;
mod blocking;
mod call;
mod call_server;
mod caller;
mod changes;
mod command;
mod context;
mod denial_counts;
mod effect;
mod events;
mod key;
mod module;
mod redirection;
mod release;
mod reply;
mod server_events;
mod slots;
mod text;
mod types;

pub use blocking::{wall_clock, Answer, BlockedClient, Timer, Waiting};
pub use call::Call;
pub use call_server::CallReply;
pub use caller::Caller;
pub use changes::Listener;
pub use command::{Command, Declaration, Keys, Parameter};
pub use context::Context;
pub use effect::Effects;
pub use key::{AnyKey, Key, Moment};
pub use module::Loading;
pub use redirection::redirection;
pub use reply::{Admitted, DeniedKey, Holder, Info, Reply};
pub use text::{OwnText, Text};
pub use types::Value;

/// What functions of the module API return on success.
const OK: std::ffi::c_int = redis_module::raw::REDISMODULE_OK as std::ffi::c_int;
