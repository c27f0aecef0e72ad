//! The boundary to the server: every call of its module API, and every `unsafe` of the project.
//!
//! The server runs commands and the type's callbacks on its main thread, one at a time, except that it may free values
//! on a background thread. Pointers it hands in are valid until the callback returns.

/// Call a function of the module API.
///
/// The table of functions is filled once, while the module is loaded. Functions named here exist since Redis 7.0 or
/// earlier; newer ones are looked up and tested where they are used.
macro_rules! api {
    ($function:ident($($argument:expr),* $(,)?)) => {
        match ::redis_module::raw::$function {
            Some(function) => function($($argument),*),
            None => panic!(concat!("the server has no ", stringify!($function))),
        }
    };
}

mod allocator;
mod call;
mod command;
mod key;
mod module;
mod window_type;

pub use call::Call;
pub use command::{Command, Documentation, Keys, Parameter, Parse};

/// What functions of the module API answer when all went well.
const OK: std::ffi::c_int = redis_module::raw::REDISMODULE_OK as std::ffi::c_int;
