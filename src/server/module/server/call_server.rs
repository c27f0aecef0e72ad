//! Commands that the module calls itself (`RedisModule_Call`).

use std::ffi::CStr;

use redis_module::raw;

use super::context::Context;
use super::text::{OwnText, Text};

/// The reply to a command that the module called.
#[derive(Debug)]
pub enum CallReply {
    /// An integer.
    Integer(i64),
    /// A string.
    Text(Vec<u8>),
    /// An array.
    Array(Vec<CallReply>),
    /// An error, with its code.
    Error(String),
    /// Another node of the cluster serves the key's slot, or the slot is migrating.
    SlotElsewhere,
    /// Anything else.
    Other,
}

impl Context {
    /// Call a command as a script would. The server refuses it with MISCONF, NOREPLICAS or READONLY where it refuses a
    /// client's. Its effects replicate and go into the append-only file.
    pub fn call(self, command: &CStr, words: &[&Text]) -> CallReply {
        self.call_as(command, words, c"!vSE")
    }

    /// Call a command that the server also refuses with OOM, as it does those flagged deny-oom.
    pub fn call_deny_oom(self, command: &CStr, words: &[&Text]) -> CallReply {
        // The server's own check (M) uses the memory state of before the last client's command. The flag is current, but
        // only the server knows whether eviction helps.
        if !self.has_flags(raw::REDISMODULE_CTX_FLAGS_OOM) {
            self.call(command, words)
        } else if self.has_flags(raw::REDISMODULE_CTX_FLAGS_EVICT) {
            self.call_as(command, words, c"!vSME")
        } else {
            CallReply::Error(OUT_OF_MEMORY.into())
        }
    }

    /// Whether another node serves the key's slot, or the key has left with its migrating slot.
    pub fn slot_is_elsewhere(self, key: &Text) -> bool {
        self.has_flags(raw::REDISMODULE_CTX_FLAGS_CLUSTER)
            && matches!(self.call(c"EXISTS", &[key]), CallReply::SlotElsewhere)
    }

    /// A setting of the server's (`CONFIG GET`), which scripts may not read.
    pub(super) fn setting(self, name: &[u8]) -> Option<Vec<u8>> {
        let [get, name] = [&b"GET"[..], name].map(OwnText::new);
        match self.call_as(c"CONFIG", &[&get, &name], c"vE") {
            CallReply::Array(mut pair) => match pair.pop() {
                Some(CallReply::Text(value)) => Some(value),
                _ => None,
            },
            _ => None,
        }
    }

    /// Format E returns refusals as replies. Without it Valkey 9.1 crashes where S refuses a command.
    fn call_as(self, command: &CStr, words: &[&Text], format: &CStr) -> CallReply {
        let words: Vec<_> = words.iter().map(|word| word.raw()).collect();
        // SAFETY: a valid context; a vector and its length for the one place in the format. The reply is ours to free.
        let reply = unsafe {
            let (first, len) = (words.as_ptr(), words.len());
            let raw = api!(RedisModule_Call(self.raw(), command.as_ptr(), format.as_ptr(), first, len));
            let reply = CallReply::read(raw);
            if !raw.is_null() {
                api!(RedisModule_FreeCallReply(raw));
            }
            reply
        };
        match reply {
            CallReply::Error(error) => refusal(error),
            reply => reply,
        }
    }
}

/// Translates errors that the server words differently for modules into those that clients get. Matches the text, because
/// `errno` keeps its old value when a command itself returns an error.
fn refusal(error: String) -> CallReply {
    match error.strip_prefix("ERR ") {
        Some(text) if text.starts_with("Attempted to access a non local key") => CallReply::SlotElsewhere,
        Some(text) if text.ends_with("while the cluster is down") => CallReply::Error(DOWN.into()),
        Some(text) if text.ends_with("while the cluster is down and readonly") => {
            CallReply::Error(DOWN_FOR_WRITING.into())
        }
        _ => CallReply::Error(error),
    }
}

/// The server's own words for clients.
const OUT_OF_MEMORY: &str = "OOM command not allowed when used memory > 'maxmemory'.";
const DOWN: &str = "CLUSTERDOWN The cluster is down";
const DOWN_FOR_WRITING: &str = "CLUSTERDOWN The cluster is down and only accepts read commands";

impl CallReply {
    /// The integer, if it is one.
    pub fn integer(&self) -> Option<i64> {
        match self {
            CallReply::Integer(integer) => Some(*integer),
            _ => None,
        }
    }

    /// # Safety
    /// A reply of the server's, or null.
    unsafe fn read(reply: *mut raw::RedisModuleCallReply) -> Self {
        if reply.is_null() {
            return CallReply::Other;
        }
        // SAFETY: the caller's promise; elements belong to their array, and bytes are read before either is freed.
        unsafe {
            let text = || {
                let mut len = 0;
                let bytes = api!(RedisModule_CallReplyStringPtr(reply, &mut len));
                std::slice::from_raw_parts(bytes.cast::<u8>(), len).to_vec()
            };
            match api!(RedisModule_CallReplyType(reply)) as isize {
                raw::REDISMODULE_REPLY_INTEGER => CallReply::Integer(api!(RedisModule_CallReplyInteger(reply))),
                raw::REDISMODULE_REPLY_STRING => CallReply::Text(text()),
                raw::REDISMODULE_REPLY_ERROR => CallReply::Error(String::from_utf8_lossy(&text()).into_owned()),
                raw::REDISMODULE_REPLY_ARRAY => {
                    let elements = 0..api!(RedisModule_CallReplyLength(reply));
                    let element = |index| Self::read(api!(RedisModule_CallReplyArrayElement(reply, index)));
                    CallReply::Array(elements.map(element).collect())
                }
                _ => CallReply::Other,
            }
        }
    }
}
