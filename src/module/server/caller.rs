//! The caller of a command, and what its ACL user may access.

use std::ffi::{c_int, c_void};
use std::io;
use std::mem;
use std::ptr;

use redis_module::raw;

use super::context::Context;
use super::text::{OwnText, Text};
use super::OK;
use crate::denials::Key;

/// The caller of a command.
pub enum Caller<'a> {
    /// No user, because the server or another module calls: everything is allowed.
    Server,
    /// A user that the ACL does not have any more.
    Unknown,
    /// A user of the ACL.
    User(User<'a>),
}

impl Caller<'_> {
    /// Whether the ACL lets this caller read a key.
    pub fn may_read(&self, key: Key) -> bool {
        match self {
            Caller::Server => true,
            Caller::Unknown => false,
            Caller::User(user) => user.may_read(key),
        }
    }
}

/// A user of the ACL.
pub struct User<'a> {
    user: *mut raw::RedisModuleUser,
    /// The call's arguments.
    words: &'a [Text],
    in_database: Option<CheckPermissions>,
}

/// Whether a user may run a command, given as its words, in this database; new in Valkey 9.1, which lets nobody into some
/// databases.
type CheckPermissions = unsafe extern "C" fn(
    *mut raw::RedisModuleUser,
    *mut *mut raw::RedisModuleString,
    c_int,
    c_int,
    *mut c_int,
) -> c_int;

impl Drop for User<'_> {
    fn drop(&mut self) {
        // SAFETY: made in `caller` and freed only here.
        unsafe { api!(RedisModule_FreeModuleUser(self.user)) };
    }
}

impl User<'_> {
    fn may_read(&self, key: Key) -> bool {
        let name = OwnText::new(key.name);
        let (read, mut reason) = (raw::REDISMODULE_CMD_KEY_ACCESS as c_int, 0);
        // SAFETY: a user and strings that are alive; no word is written to.
        unsafe {
            api!(RedisModule_ACLCheckKeyPermissions(self.user, name.raw(), read)) == OK
                && self.in_database.is_none_or(|check| {
                    let (words, count) = (self.words.as_ptr().cast_mut().cast(), self.words.len() as c_int);
                    check(self.user, words, count, key.database, &mut reason) == OK
                })
        }
    }
}

impl Context {
    /// The caller of a command with these arguments.
    pub(super) fn caller(self, words: &[Text]) -> Caller<'_> {
        if !self.has_user() {
            return Caller::Server;
        }
        // SAFETY: a valid context whose client has a user. The name is ours, and the user is until it is freed.
        let user = unsafe {
            let name = api!(RedisModule_GetCurrentUserName(self.raw()));
            let user = api!(RedisModule_GetModuleUserFromUserName(name));
            api!(RedisModule_FreeString(self.raw(), name));
            user
        };
        match user.is_null() {
            true => Caller::Unknown,
            false => Caller::User(User { user, words, in_database: check_permissions() }),
        }
    }

    /// Whether the context's client has a user: most servers crash on asking for the user's name where it has none. Running a
    /// command as that user (format C) fails with ENOTSUP there, before the invalid format `?` fails.
    fn has_user(self) -> bool {
        // SAFETY: a valid context and C strings; what is refused has no reply.
        unsafe { api!(RedisModule_Call(self.raw(), c"PING".as_ptr(), c"C?".as_ptr())) };
        // By number: Rust 1.85 has another kind for it than newer ones.
        io::Error::last_os_error().raw_os_error() != Some(libc::ENOTSUP)
    }
}

fn check_permissions() -> Option<CheckPermissions> {
    let mut found: *mut c_void = ptr::null_mut();
    // SAFETY: the server writes a function of this name, which is one of this type, or nothing.
    unsafe {
        let get = { raw::RedisModule_GetApi }?;
        get(c"ValkeyModule_ACLCheckPermissions".as_ptr(), ptr::from_mut(&mut found).cast());
        mem::transmute::<*mut c_void, Option<CheckPermissions>>(found)
    }
}
