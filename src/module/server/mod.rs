//! The boundary to the server: every call of its module API, and every `unsafe` of the project.
//!
//! The server runs commands and the type's callbacks on its main thread, one at a time, except that it may free values
//! on a background thread. Pointers it hands in are valid until the callback returns.

#[macro_use]
mod api;

mod allocator;
mod ask;
mod call;
mod caller;
mod command;
mod context;
mod denying;
mod effect;
mod entry_type;
mod key;
mod module;
mod redirection;
mod reply;
mod slots;
mod text;
mod waiters;

pub use call::Call;
pub use command::{Command, Declaration, Keys, Parameter};
pub use effect::Effect;
pub use key::{Expiry, Key, Moment};
pub use module::Loading;
pub use reply::{DeniedKey, Info, Reply};
pub use text::Text;

/// What functions of the module API answer when all went well.
const OK: std::ffi::c_int = redis_module::raw::REDISMODULE_OK as std::ffi::c_int;
