//! Registering commands: name, handler, flags, key specifications, and what COMMAND DOCS shows.

use std::ffi::{c_int, CStr};
use std::mem;
use std::ptr;

use redis_module::raw;

use super::call::Call;
use super::reply::{c_string, Reply};
use super::OK;
use crate::error::Error;

/// A command of the module.
pub trait Command {
    /// Its name, flags, keys and documentation.
    const DECLARATION: Declaration;

    /// Executes it. Parses everything before it opens a key; on an error nothing has changed.
    fn run(call: &Call) -> Result<Reply, Error>;
}

/// A command's name, flags, keys and documentation, as COMMAND INFO and COMMAND DOCS show them.
pub struct Declaration {
    /// In the letter case it is registered with.
    pub name: &'static CStr,
    /// One sentence.
    pub summary: &'static CStr,
    /// Big O.
    pub complexity: &'static CStr,
    /// The version of the module that introduced it.
    pub since: &'static CStr,
    /// The number of arguments including the command's name; negative: a minimum.
    pub arity: c_int,
    /// The server's flags: `write` or `readonly`, `fast`, `deny-oom`.
    pub flags: &'static CStr,
    /// Its ACL categories, on servers that let modules set them.
    pub categories: &'static str,
    /// Where its keys are.
    pub keys: Keys,
    /// Its arguments.
    pub parameters: &'static [Parameter],
}

/// Where a command's keys are, and how it accesses them.
pub enum Keys {
    /// No keys.
    None,
    /// The first argument is a key, read only.
    Read,
    /// The first argument is a key, read and written.
    Change,
    /// The first argument is the number of keys that follow it, all read and written.
    ChangeCounted,
    /// Every other argument, from the first on, is a key, read and written.
    ChangeEachSecond,
}

/// One argument in COMMAND DOCS.
#[derive(Clone, Copy)]
pub struct Parameter {
    name: &'static CStr,
    kind: raw::RedisModuleCommandArgType,
    /// The word before it.
    token: Option<&'static CStr>,
    flags: u32,
    /// Of a block, or of one of several.
    inner: &'static [Parameter],
}

impl Parameter {
    /// A key of the command's key specification.
    pub const fn key(name: &'static CStr) -> Self {
        Self::of(name, raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_KEY)
    }

    /// A string.
    pub const fn string(name: &'static CStr) -> Self {
        Self::of(name, raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_STRING)
    }

    /// An integer.
    pub const fn integer(name: &'static CStr) -> Self {
        Self::of(name, raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_INTEGER)
    }

    /// A Unix time in ms.
    pub const fn unix_time(name: &'static CStr) -> Self {
        Self::of(name, raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_UNIX_TIME)
    }

    /// A token by itself.
    pub const fn flag(name: &'static CStr, token: &'static CStr) -> Self {
        Self::of(name, raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_PURE_TOKEN).after(token)
    }

    /// Several arguments, one after the other.
    pub const fn block(name: &'static CStr, inner: &'static [Self]) -> Self {
        Self { inner, ..Self::of(name, raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_BLOCK) }
    }

    /// One of several arguments.
    pub const fn one_of(name: &'static CStr, inner: &'static [Self]) -> Self {
        Self { inner, ..Self::of(name, raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_ONEOF) }
    }

    const fn of(name: &'static CStr, kind: raw::RedisModuleCommandArgType) -> Self {
        Self { name, kind, token: None, flags: 0, inner: &[] }
    }

    /// With this word before it.
    pub const fn after(self, token: &'static CStr) -> Self {
        Self { token: Some(token), ..self }
    }

    /// It can be left out.
    pub const fn optional(self) -> Self {
        Self { flags: self.flags | raw::REDISMODULE_CMD_ARG_OPTIONAL, ..self }
    }

    /// Once or more often.
    pub const fn multiple(self) -> Self {
        Self { flags: self.flags | raw::REDISMODULE_CMD_ARG_MULTIPLE, ..self }
    }
}

/// The ACL category of all the module's commands.
const OWN_CATEGORY: &str = "swlimit";

/// Register the command `C`.
///
/// # Safety
/// `ctx` is the context of the module's loading.
pub(super) unsafe fn register<C: Command>(ctx: *mut raw::RedisModuleCtx, own_category: bool) -> Result<(), String> {
    let declaration = C::DECLARATION;
    let name = declaration.name;
    let failed = |what: &str| Err(format!("cannot {what} {}", name.to_string_lossy()));
    let (first_key, last_key, key_step) = match declaration.keys {
        Keys::None | Keys::ChangeCounted => (0, 0, 0),
        Keys::Read | Keys::Change => (1, 1, 1),
        Keys::ChangeEachSecond => (1, -1, 2),
    };
    // SAFETY: the loading context; the server copies all strings and structures it is given.
    unsafe {
        let flags = declaration.flags.as_ptr();
        if api!(RedisModule_CreateCommand(ctx, name.as_ptr(), Some(handle::<C>), flags, first_key, last_key, key_step))
            != OK
        {
            return failed("create command");
        }
        let command = api!(RedisModule_GetCommand(ctx, name.as_ptr()));
        if command.is_null() || !document(command, &declaration) {
            return failed("document command");
        }
        if let Some(set_categories) = raw::RedisModule_SetCommandACLCategories {
            let own = if own_category { OWN_CATEGORY } else { "" };
            let categories = c_string(format!("{} {own}", declaration.categories).trim_end().to_owned());
            if set_categories(command, categories.as_ptr()) != OK {
                return failed("set the categories of command");
            }
        }
    }
    Ok(())
}

/// Add the module's ACL category, on servers that support that; returns whether it exists.
///
/// # Safety
/// `ctx` is the context of the module's loading.
pub(super) unsafe fn add_own_category(ctx: *mut raw::RedisModuleCtx) -> bool {
    // SAFETY: the loading context.
    unsafe { raw::RedisModule_AddACLCategory.is_some_and(|add| add(ctx, c_string(OWN_CATEGORY.into()).as_ptr()) == OK) }
}

unsafe extern "C" fn handle<C: Command>(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    // SAFETY: this is a command's handler, and these are its words.
    let call = unsafe { Call::new(ctx, argv, argc) };
    match C::run(&call) {
        Ok(reply) => reply.send(call.end()),
        Err(error) => call.end().reply_error(&error),
    }
    OK
}

/// # Safety
/// `command` is a command of this module that is being loaded.
unsafe fn document(command: *mut raw::RedisModuleCommand, declaration: &Declaration) -> bool {
    let version = raw::RedisModuleCommandInfoVersion {
        version: 1,
        sizeof_historyentry: mem::size_of::<raw::RedisModuleCommandHistoryEntry>(),
        sizeof_keyspec: mem::size_of::<raw::RedisModuleCommandKeySpec>(),
        sizeof_arg: mem::size_of::<raw::RedisModuleCommandArg>(),
    };
    let mut keys = key_specifications(&declaration.keys);
    keys.push(NO_KEY);
    let mut nested = Vec::new();
    let mut arguments = arguments(declaration.parameters, &mut nested);
    let info = raw::RedisModuleCommandInfo {
        version: &version,
        summary: declaration.summary.as_ptr(),
        complexity: declaration.complexity.as_ptr(),
        since: declaration.since.as_ptr(),
        history: ptr::null_mut(),
        tips: ptr::null(),
        arity: declaration.arity,
        key_specs: keys.as_mut_ptr(),
        args: arguments.as_mut_ptr(),
    };
    // SAFETY: the caller's promise; lists end with an entry of zeros, and the server copies everything.
    unsafe { api!(RedisModule_SetCommandInfo(command, &info)) == OK }
}

const READ_KEY: u32 = raw::REDISMODULE_CMD_KEY_RO | raw::REDISMODULE_CMD_KEY_ACCESS;
const CHANGED_KEY: u32 =
    raw::REDISMODULE_CMD_KEY_RW | raw::REDISMODULE_CMD_KEY_ACCESS | raw::REDISMODULE_CMD_KEY_UPDATE;

/// The end of a list of key specifications.
// SAFETY: numbers, null pointers and unions of numbers: all zeros are a value.
const NO_KEY: raw::RedisModuleCommandKeySpec = unsafe { mem::zeroed() };
/// The end of a list of arguments.
// SAFETY: numbers and null pointers: all zeros are a value.
const NO_ARGUMENT: raw::RedisModuleCommandArg = unsafe { mem::zeroed() };

/// Where a command's keys are.
///
/// Servers route a module's command by key specifications of type range only. So the first of counted keys has a second
/// specification: a range, flagged NOT_KEY, which gives the command a slot.
fn key_specifications(keys: &Keys) -> Vec<raw::RedisModuleCommandKeySpec> {
    match keys {
        Keys::None => vec![],
        Keys::Read => vec![one_key(1, READ_KEY)],
        Keys::Change => vec![one_key(1, CHANGED_KEY)],
        Keys::ChangeEachSecond => {
            let mut keys = one_key(1, CHANGED_KEY);
            keys.fk.range.lastkey = -1;
            keys.fk.range.keystep = 2;
            vec![keys]
        }
        Keys::ChangeCounted => {
            let mut counted = one_key(1, CHANGED_KEY);
            counted.find_keys_type = raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_KEYNUM;
            counted.fk.keynum.keynumidx = 0;
            counted.fk.keynum.firstkey = 1;
            counted.fk.keynum.keystep = 1;
            vec![counted, one_key(2, raw::REDISMODULE_CMD_KEY_RW | raw::REDISMODULE_CMD_KEY_NOT_KEY)]
        }
    }
}

fn one_key(place: c_int, flags: u32) -> raw::RedisModuleCommandKeySpec {
    let mut specification = NO_KEY;
    specification.flags = u64::from(flags);
    specification.begin_search_type = raw::RedisModuleKeySpecBeginSearchType_REDISMODULE_KSPEC_BS_INDEX;
    specification.bs.index.pos = place;
    specification.find_keys_type = raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_RANGE;
    specification.fk.range.lastkey = 0;
    specification.fk.range.keystep = 1;
    specification.fk.range.limit = 0;
    specification
}

/// The server's list of arguments. Lists inside of it are kept in `nested`.
fn arguments(
    parameters: &[Parameter],
    nested: &mut Vec<Vec<raw::RedisModuleCommandArg>>,
) -> Vec<raw::RedisModuleCommandArg> {
    let mut list: Vec<_> = parameters.iter().map(|parameter| argument(parameter, nested)).collect();
    list.push(NO_ARGUMENT);
    list
}

fn argument(parameter: &Parameter, nested: &mut Vec<Vec<raw::RedisModuleCommandArg>>) -> raw::RedisModuleCommandArg {
    let mut argument = NO_ARGUMENT;
    argument.name = parameter.name.as_ptr();
    argument.type_ = parameter.kind;
    let is_key = parameter.kind == raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_KEY;
    argument.key_spec_index = if is_key { 0 } else { -1 };
    argument.token = parameter.token.map_or(ptr::null(), CStr::as_ptr);
    argument.flags = parameter.flags as c_int;
    if !parameter.inner.is_empty() {
        let mut list = arguments(parameter.inner, nested);
        argument.subargs = list.as_mut_ptr();
        nested.push(list);
    }
    argument
}
