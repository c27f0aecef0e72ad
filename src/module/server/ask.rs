//! Commands that the module itself asks of the server.

use std::ffi::CStr;
use std::io;

use redis_module::raw;

use super::context::Context;
use super::text::Text;

/// What the server answers.
#[derive(Debug)]
pub enum Answer {
    /// An integer.
    Integer(i64),
    /// A string.
    Text(Vec<u8>),
    /// An array.
    Array(Vec<Answer>),
    /// An error, with its code.
    Error(String),
    /// The key's slot is not this node's, or is about to leave it.
    Elsewhere,
    /// Anything else.
    Other,
}

impl Context {
    /// Ask for a command as a client would be answered: refused where the server has no memory left, cannot write to its
    /// disk, lacks replicas or is one itself.
    pub(super) fn ask(self, command: &CStr, words: &[&Text]) -> Answer {
        let words: Vec<_> = words.iter().map(|word| word.raw()).collect();
        // SAFETY: a valid context; a vector and its length for the one place in the format. S, M and E: as scripts are,
        // refused without memory, errors as replies. The answer is ours to free.
        unsafe {
            let reply =
                api!(RedisModule_Call(self.raw(), command.as_ptr(), c"vSME".as_ptr(), words.as_ptr(), words.len(),));
            let refused = io::Error::last_os_error().kind();
            let answer = Answer::read(reply);
            if !reply.is_null() {
                api!(RedisModule_FreeCallReply(reply));
            }
            match answer {
                // Commands have codes of their own; the server refuses with its general one, and says why beside it.
                Answer::Error(error) if refused == io::ErrorKind::PermissionDenied && error.starts_with("ERR") => {
                    Answer::Elsewhere
                }
                answer => answer,
            }
        }
    }
}

impl Answer {
    /// The integer, if it is one.
    pub(super) fn integer(&self) -> Option<i64> {
        match self {
            Answer::Integer(integer) => Some(*integer),
            _ => None,
        }
    }

    /// # Safety
    /// An answer of the server's, or null.
    unsafe fn read(reply: *mut raw::RedisModuleCallReply) -> Self {
        if reply.is_null() {
            return Answer::Other;
        }
        // SAFETY: the caller's promise; elements belong to their array, and bytes are read before either is freed.
        unsafe {
            let text = || {
                let mut len = 0;
                let bytes = api!(RedisModule_CallReplyStringPtr(reply, &mut len));
                std::slice::from_raw_parts(bytes.cast::<u8>(), len).to_vec()
            };
            match api!(RedisModule_CallReplyType(reply)) as isize {
                raw::REDISMODULE_REPLY_INTEGER => Answer::Integer(api!(RedisModule_CallReplyInteger(reply))),
                raw::REDISMODULE_REPLY_STRING => Answer::Text(text()),
                raw::REDISMODULE_REPLY_ERROR => Answer::Error(String::from_utf8_lossy(&text()).into_owned()),
                raw::REDISMODULE_REPLY_ARRAY => {
                    let elements = 0..api!(RedisModule_CallReplyLength(reply));
                    let element = |index| Self::read(api!(RedisModule_CallReplyArrayElement(reply, index)));
                    Answer::Array(elements.map(element).collect())
                }
                _ => Answer::Other,
            }
        }
    }
}
