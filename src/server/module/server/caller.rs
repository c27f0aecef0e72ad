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
use crate::error::Error;

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

    /// NOPERM unless the ACL lets this caller run its command, which is `name` and changes `key`, in a database.
    pub fn check(&self, name: &'static str, key: &Text, database: c_int) -> Result<(), Error> {
        match self {
            Caller::Server => Ok(()),
            Caller::User(user) if user.may_run(database) => Ok(()),
            Caller::User(user) if !user.may_access(key, CHANGE) => Err(Error::NoKeyPermission),
            Caller::User(_) | Caller::Unknown => Err(Error::NoCommandPermission(name)),
        }
    }
}

impl<'a> Caller<'a> {
    /// The user of this name, as the caller of a command with these arguments.
    pub fn named(name: &Text, words: &'a [Text]) -> Self {
        // SAFETY: a string that is alive; the user is ours to free.
        let user = unsafe { api!(RedisModule_GetModuleUserFromUserName(name.raw())) };
        match user.is_null() {
            true => Caller::Unknown,
            false => Caller::User(User { user, words, in_database: check_permissions() }),
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

/// Access to a key that is read and changed.
const CHANGE: u32 = raw::REDISMODULE_CMD_KEY_ACCESS | raw::REDISMODULE_CMD_KEY_UPDATE;

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
        self.may_access(&OwnText::new(key.name), raw::REDISMODULE_CMD_KEY_ACCESS) && self.may_run_in(key.database)
    }

    fn may_run(&self, database: c_int) -> bool {
        let (words, count) = (self.words.as_ptr().cast_mut().cast(), self.words.len() as c_int);
        // SAFETY: a user and strings that are alive; no word is written to.
        let may_run = unsafe { api!(RedisModule_ACLCheckCommandPermissions(self.user, words, count)) == OK };
        may_run && self.may_run_in(database)
    }

    fn may_access(&self, key: &Text, flags: u32) -> bool {
        // SAFETY: a user and a string that are alive.
        unsafe { api!(RedisModule_ACLCheckKeyPermissions(self.user, key.raw(), flags as c_int)) == OK }
    }

    /// Whether this server's ACL lets the user run its command in a database.
    fn may_run_in(&self, database: c_int) -> bool {
        let (words, count, mut reason) = (self.words.as_ptr().cast_mut().cast(), self.words.len() as c_int, 0);
        // SAFETY: a user and strings that are alive; no word is written to.
        self.in_database.is_none_or(|check| unsafe { check(self.user, words, count, database, &mut reason) == OK })
    }
}

impl Context {
    /// The caller of a command with these arguments.
    pub(super) fn caller(self, words: &[Text]) -> Caller<'_> {
        self.user_name().map_or(Caller::Server, |name| Caller::named(&name, words))
    }

    /// The name of the client's user; `None` where it has no user.
    pub fn user_name(self) -> Option<OwnText> {
        // SAFETY: a valid context whose client has a user; the name is the caller's to free.
        self.has_user().then(|| unsafe { OwnText::from_raw(api!(RedisModule_GetCurrentUserName(self.raw()))) })
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
